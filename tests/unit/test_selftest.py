"""``mpifed selftest``: what it prints and returns if something fails, and once as a user calls it."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import launch
import pytest
import torch

from mpifed.cli import selftest
from mpifed.cli.selftest import run_checks
from mpifed.parallel import devices
from mpifed.parallel.comm import SerialComm

OPEN_MPI, LAUNCHER = "Open MPI v5.0.11, package: Debian", "mpirun (Open MPI) 5.0.11\n\nReport bugs"
HYDRA = "HYDRA build details:\n    Version:     5.0.2\n    CC: cc"


@pytest.fixture
def outcome(tmp_path, monkeypatch, capsys):
    """Return a function that runs the checks and returns whether they passed, and the printed lines."""
    monkeypatch.chdir(tmp_path)

    def run() -> tuple[bool, list[str]]:
        passed = run_checks(SerialComm())
        assert not list(tmp_path.iterdir())
        return passed, capsys.readouterr().out.splitlines()[1:]

    return run


@pytest.fixture
def programs(monkeypatch):
    """Replace the programs that are started by their outputs."""
    outputs = {"--mpi-lib-version": OPEN_MPI, "--version": LAUNCHER, "selftest": "ok      MPI: two ranks"}
    monkeypatch.setattr(selftest.shutil, "which", lambda name: f"/opt/{name}")

    def output(*words, **options):
        return SimpleNamespace(stdout=outputs[words[-1]], returncode=int(not outputs[words[-1]]))

    monkeypatch.setattr(selftest, "_output", output)
    return outputs


def test_everything_works(outcome, programs, tmp_path):
    passed, lines = outcome()
    assert passed and lines[0] == f"ok      files: HDF5 written and read in {tmp_path}"
    assert lines[1].startswith("ok      GPU: ")
    assert lines[2:] == [
        "ok      MPI library: Open MPI v5.0.11",
        "ok      launcher: /opt/mpirun, mpirun (Open MPI) 5.0.11",
        "    ok      MPI: two ranks",
        "ok      two ranks: mpirun -n 2 mpifed selftest succeeds",
    ]


@pytest.mark.parametrize(
    "program, output, expected, printed",
    [
        ("--mpi-lib-version", "", "failed  MPI library: mpi4py cannot load an MPI library: install one", 1),
        ("--version", HYDRA, "failed  launcher: /opt/mpirun belongs to MPICH, mpi4py uses Open MPI", 3),
        ("selftest", "", "failed  two ranks: mpirun -n 2 mpifed selftest ends with exit code 1", 4),
    ],
)
def test_a_failure_of_mpi_ends_its_checks(outcome, programs, program, output, expected, printed):
    programs[program] = output
    passed, lines = outcome()
    assert not passed and [line for line in lines if line.startswith("failed")][0].startswith(expected)
    assert len(lines) == 2 + printed


def test_mpi4py_and_mpirun_are_missing(outcome, programs, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(selftest.shutil, "which", lambda name: None)
        assert "failed  launcher: mpirun is not on PATH" in outcome()[1]
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    passed, lines = outcome()
    assert not passed and lines[-1].startswith("failed  MPI library: several ranks need the extra 'mpi'")


def test_a_folder_without_write_access(outcome, programs, monkeypatch):
    def refuse(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(selftest.tempfile, "mkdtemp", refuse)
    passed, lines = outcome()
    assert not passed and lines[0] == "failed  files: [Errno 13] Permission denied"
    assert "        start in a folder that you may write to and that all nodes share" in lines
    assert not any("GPU" in line for line in lines)


def test_values_that_a_file_does_not_return(outcome, programs, monkeypatch):
    monkeypatch.setattr(selftest, "_point", lambda folder: torch.zeros(1))
    passed, lines = outcome()
    assert not passed and lines[0] == "failed  files: an HDF5 file contains other values than were written"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_driver_whose_gpu_pytorch_cannot_use(outcome, programs, monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "DRIVER", tmp_path.parent)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    passed, lines = outcome()
    assert not passed and lines[1].startswith("failed  GPU: torch ")
    assert "the NVIDIA driver is loaded" in lines[1]
    assert "install a PyTorch build for this driver" in lines[2]


def test_the_command(tmp_path):
    """The only real launch: two ranks of this environment. As root, Open MPI's mpirun needs two variables,
    which are not set in a fresh container."""
    folder = Path(launch.mpirun_path()).parent
    variables = {
        name: value for name, value in launch.environment().items() if "OMPI_ALLOW_RUN_AS_ROOT" not in name
    }
    variables["PATH"] = f"{folder}:{variables['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "mpifed", "selftest"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    assert "    ok      reproducibility: 2 ranks and one rank give bitwise identical results" in done.stdout
    assert done.stdout.splitlines()[0].endswith(": one process")
    assert "\nok      two ranks: mpirun -n 2 mpifed selftest succeeds\n" in done.stdout
    note = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    assert done.stdout.rstrip().endswith(note) == (os.geteuid() == 0)
