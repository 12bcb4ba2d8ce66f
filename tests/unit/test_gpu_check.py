"""``scripts/gpu_check.sh`` and ``scripts/bench/gpus.py`` without a GPU."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS / "bench"))
spec = importlib.util.spec_from_file_location("gpus", SCRIPTS / "bench/gpus.py")
gpus = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpus)


def test_rows_of_the_table():
    done = dict(
        workload="saddle", method="AdaFGDA", ranks=2, transport="nccl", package_ms=1.2345, floor_ms=0.5
    )
    done |= dict(ratio=2.469, communication_share=0.25, autocast="bfloat16", compile="default")
    skipped = dict(workload="mnist-lenet", method="AdaFGDA", ranks=2, skipped="no data: set run.data_dir")
    skipped |= dict(autocast="none", compile="none")
    lines = gpus.table(gpus.COLUMNS, [gpus.cells(2, done), gpus.cells(2, skipped)]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2] == "| 2 | 2 | nccl | saddle | AdaFGDA | bfloat16 default | 1.234 | 0.500 | 2.47 | 25.0% |"
    assert "skipped: no data |" in lines[3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(monkeypatch, capfd):
    """The script, and the check that it starts."""
    done = subprocess.run([SCRIPTS / "gpu_check.sh"], timeout=30, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no GPU: the active Python has no torch that can use one" in done.stderr
    monkeypatch.setattr("sys.argv", ["gpus.py"])
    with pytest.raises(SystemExit) as end:
        gpus.main()
    assert end.value.code == 2 and "gpus: run.device = 'cuda'" in capfd.readouterr().err
