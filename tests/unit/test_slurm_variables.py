"""Slurm's variables are ignored in processes that do not belong to the job."""

import os
import subprocess
from importlib.util import find_spec, module_from_spec

import pytest

from mpifed.parallel.comm import SerialComm
from mpifed.parallel.world import slurm_job, world
from mpifed.storage.folder import Folder

LEFT = {"SLURM_JOB_ID": "999", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "64", "SLURM_NTASKS": "64"}


def ended() -> str:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return str(process.pid)


@pytest.fixture(params=["no task", "task ended", "no number"])
def variables_of_ended_job(request, monkeypatch):
    for name, value in LEFT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_TASK_PID", raising=False)
    if request.param != "no task":
        monkeypatch.setenv("SLURM_TASK_PID", ended() if request.param == "task ended" else "٣x")


def test_a_job_that_has_ended_is_ignored(variables_of_ended_job, tmp_path):
    assert slurm_job() is None
    assert isinstance(world(), SerialComm)
    folder = Folder(tmp_path / "run")
    folder.open(create=True)
    assert "Slurm" not in (tmp_path / "run/run.lock").read_text()
    folder.close()


@pytest.mark.parametrize("task", [os.getpid, os.getppid])
def test_the_job_of_this_process(monkeypatch, tmp_path, task):
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_TASK_PID", str(task()))
    assert slurm_job() == "12"
    folder = Folder(tmp_path / "run")
    folder.open(create=True)
    assert ", Slurm job 12, since " in (tmp_path / "run/run.lock").read_text()
    folder.close()


def test_the_process_reports_errors_as_rank_0(variables_of_ended_job):
    """Other ranks leave that to rank 0, so that its errors would be lost."""
    assert fresh_rank() == "0"


def test_a_task_of_srun_reports_errors_as_its_rank(monkeypatch):
    for name, value in (LEFT | {"SLURM_TASK_PID": str(os.getpid())}).items():
        monkeypatch.setenv(name, value)
    assert fresh_rank() == "3"


def fresh_rank() -> str:
    """The rank that a process with these variables assumes; the variables are read on import."""
    spec = find_spec("mpifed.cli.errors")
    errors = module_from_spec(spec)
    spec.loader.exec_module(errors)
    return errors.launcher_rank()
