"""``scripts/bench/gpus.py`` without a GPU: which runs a node gets, and what its table says."""

import importlib.util
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "gpus.py"
spec = importlib.util.spec_from_file_location("gpus", SCRIPT)
gpus = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpus)


@pytest.mark.parametrize(
    "there, apart", [(1, []), (2, [2]), (3, [2]), (4, [2, 4]), (7, [2, 4]), (8, [2, 4, 8])]
)
def test_ranks_share_the_first_gpu_then_have_one_each(there, apart):
    assert gpus.layouts(there) == [(1, 1), (1, 2), (1, 4), *((ranks, ranks) for ranks in apart)]


def test_rows_of_the_table():
    done = dict(
        workload="saddle", method="AdaFGDA", ranks=2, transport="nccl", package_ms=1.2345, floor_ms=0.5
    )
    done |= dict(ratio=2.469, communication_share=0.25, autocast="bfloat16", compile="default")
    left = dict(workload="mnist-lenet", method="AdaFGDA", ranks=2, skipped="no data: set run.data_dir")
    left |= dict(autocast="none", compile="none")
    lines = gpus.table(gpus.COLUMNS, [gpus.cells(2, done), gpus.cells(2, left)]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2] == "| 2 | 2 | nccl | saddle | AdaFGDA | bfloat16 default | 1.234 | 0.500 | 2.47 | 25.0% |"
    assert "skipped: no data |" in lines[3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpus.py"])
    with pytest.raises(SystemExit) as end:
        gpus.main()
    assert end.value.code == 2 and "gpus: " in capsys.readouterr().err
