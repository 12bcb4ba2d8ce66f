"""The notebooks in docs run without errors on the interpreter of the tests."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from ipykernel.kernelspec import write_kernel_spec
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
#: Time limit of a cell in seconds, on a busy machine.
LIMIT = 240


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    write_kernel_spec(tmp_path / "kernels" / "python3")
    specs = KernelSpecManager(kernel_dirs=[str(tmp_path / "kernels")])
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    notebook = nbformat.read(path, as_version=4)
    kernel = AsyncKernelManager(kernel_spec_manager=specs)
    NotebookClient(notebook, km=kernel, timeout=LIMIT).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_whole_and_small(path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)], "run it once from the top"
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    # A documentation page loads its figures
    assert path.stat().st_size < 200_000
