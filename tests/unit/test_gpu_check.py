"""``scripts/gpu_check.sh`` and ``scripts/bench/gpus.py`` without a GPU: layouts and the table."""

import importlib.util
import subprocess
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
spec = importlib.util.spec_from_file_location("gpus", SCRIPTS / "bench/gpus.py")
gpus = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpus)

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.parametrize(
    "count, separate", [(1, []), (2, [2]), (3, [2]), (4, [2, 4]), (7, [2, 4]), (8, [2, 4, 8])]
)
def test_ranks_share_the_first_gpu_then_have_one_each(count, separate):
    assert gpus.layouts(count) == [(1, 1), (1, 2), (1, 4), *((ranks, ranks) for ranks in separate)]


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


@no_gpu
def test_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpus.py"])
    with pytest.raises(SystemExit) as end:
        gpus.main()
    assert end.value.code == 2 and "gpus: " in capsys.readouterr().err


@no_gpu
def test_gpu_check_without_a_gpu():
    done = subprocess.run([SCRIPTS / "gpu_check.sh"], timeout=30, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpu_check: no GPU: nvidia-smi does not list any\n"
