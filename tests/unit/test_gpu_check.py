"""``scripts/gpu_check.sh`` and ``scripts/bench/gpus.py`` without a GPU, and on a simulated one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import simulated_gpu
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS / "bench"))
import gpus  # noqa: E402


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


def test_rehearsal(tmp_path, monkeypatch):
    """Every part, as in a Slurm task and with one method; deviations of the simulated GPU are 0."""
    if reason := simulated_gpu.build(tmp_path)[1]:
        pytest.skip(reason)
    task = {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "9", "SLURM_TASK_PID": str(os.getpid())}
    for name, value in task.items():
        monkeypatch.setenv(name, value)
    report = tmp_path / "gpus.md"
    command = [SCRIPTS / "gpu_check.sh", "--rehearse", "--methods", "LocalSGDA", "--output", report]
    done = subprocess.run(command, timeout=600, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.startswith("## GPU check: no failures in ")
    rows = [
        "| LocalSGDA | FiniteMax | 0.0e+00 | 1 (1) | ok |",
        "| 2 | 1 | 1 | 1 | yes | ",
        "| 2 | 1 | host | 0.0e+00 |",
        "| tests/gpu | 1 | 6 | 0 | 0 |",
        "| 1 | 1 | none | digits-mlp | AdaFGDA |  |",
        "| all | 497 | 1 |",
    ]
    assert [row for row in rows if row not in done.stdout] == []
    assert report.read_text().partition("\n")[2] == done.stdout.partition("\n")[2]


def test_failures_and_time_limits(monkeypatch, capfd):
    """Rows before the end of a job are kept, and other jobs still run."""
    monkeypatch.setenv("SLURM_NTASKS", "1")
    check = gpus.Check(1, None, {})
    code = "import os, time; from launching import send; send(dict(os.environ)); print('end'); time.sleep({})"
    path = f"import sys; sys.path.append({str(SCRIPTS / 'bench')!r}); "
    (row,) = check.run("hang", ["-uc", path + code.format(60)], limit=5)
    assert "SLURM_NTASKS" not in row and row["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    assert len(check.run("failure", ["-c", path + code.format("'x'")])) == 1
    assert len(check.run("success", ["-c", path + code.format(0)])) == 1
    check.deadline = 0
    assert check.run("late", ["-c", ""]) == []
    assert check.failures == [
        "hang: time limit of 5 s", "failure: exit code 1", "late: not run within --minutes 1"
    ]  # fmt: skip
    assert "TypeError" in capfd.readouterr().err


def test_failed_methods_and_other_bits(monkeypatch):
    check = gpus.Check(1, None, {})
    raises = {"method": "A", "problem": "P", "error": "E"}
    far = {"method": "B", "problem": "P", "deviation": 0.1, "waits": 1, "allowed": 2, "error": "far"}
    monkeypatch.setattr(check, "job", lambda *_, **__: [raises, far])
    check.methods([])
    assert "| A | P |  |  | failed: E |\n| B | P | 1.0e-01 | 1 (2) | failed: far |" in check.report()
    one = {"ranks": 1, "reduction": "exact", "group": 1, "digest": "a", "used": 1}
    other = {"ranks": 2, "reduction": "exact", "group": 1, "digest": "b", "used": 1}
    monkeypatch.setattr(check, "job", lambda *_, ranks, **__: [other if ranks else one])
    check.mpirun = "mpirun"
    check.layouts()
    assert check.failures == ["methods: A, B", "exact on 2 ranks: other bits"]
