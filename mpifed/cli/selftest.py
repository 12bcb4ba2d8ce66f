"""``mpifed selftest``: whether MPI, files, the reproducibility guarantee and GPUs work on this machine."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from mpifed import __version__
from mpifed.base.errors import expect_extra
from mpifed.base.log import LOG
from mpifed.cli.output import echo
from mpifed.parallel.comm import NO_LIBRARY, CollectiveError, SerialComm, broadcast_text, collective_errors
from mpifed.parallel.world import world

__all__ = ["as_root", "run_checks", "selftest"]

#: Time limit in seconds of a launcher that is started here.
LIMIT = 120
#: More ranks than cores: Open MPI 5, Open MPI 4, and waiting ranks that give up their cores.
OVERSUBSCRIBE = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
#: MPI implementation → words in the versions of its launcher and its library. A launcher of MPICH also starts
#: ranks of the libraries derived from it.
FAMILIES = {"Open MPI": ("Open MPI", "PRRTE"), "MPICH": ("MPICH", "HYDRA", "Intel", "MVAPICH")}
#: Remedy if several ranks and one rank give different results.
NODES = "use nodes of one type, or run.reduction = 'fused' without the reproducibility guarantee"
METHOD = {"name": "FGDA", "q": 2, "gamma": 0.01, "lam": 0.01}
#: Relative tolerance between a GPU and the CPU in float32, after a few rounds.
TOLERANCE = 1e-3


@click.command()
def selftest():
    """Test this installation: MPI, files in the current folder, reproducible results, GPUs.

    Prints a line for each check, and what to do if it fails; the exit code is then 1. In one process, two
    ranks are also started with mpirun. Under a launcher, its ranks are tested:

    \b
    mpifed selftest
    mpirun -n 4 mpifed selftest
    """
    sys.exit(0 if run_checks(world()) else 1)


def as_root() -> dict[str, str]:
    """Return the variables without which Open MPI's mpirun refuses to start; {} for other users than root."""
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return dict.fromkeys(names, "1") if os.geteuid() == 0 else {}


def run_checks(comm: SerialComm) -> bool:
    """Check one process or all ranks, print the outcomes, and return whether no check failed. Collective."""
    level = LOG.level
    LOG.setLevel(logging.WARNING)
    try:
        return _Checks(comm).sound()
    finally:
        LOG.setLevel(level)


class _Checks:
    """The checks, and the number of failed ones. Collective."""

    def __init__(self, comm: SerialComm):
        self.comm, self.failed, self.folder = comm, 0, ""

    def sound(self) -> bool:
        """Run all checks and return whether none has failed."""
        comm, alone = self.comm, type(self.comm) is SerialComm
        where = "one process" if alone else f"{comm.size} ranks"
        self._print(
            f"mpifed {__version__}, Python {platform.python_version()}, {platform.platform()}: {where}"
        )
        if not alone:
            self.check("MPI", lambda: _mpi(comm), "")
            self.check("Allreduce", lambda: _allreduce(comm), "test the MPI library without mpifed")
        try:
            self._check_runs(alone)
            comm.barrier()  # all ranks have read the files
        finally:
            if comm.rank == 0 and self.folder:
                shutil.rmtree(self.folder)
        if alone:
            self._check_launch()
        return not self.failed

    def _check_runs(self, alone: bool) -> None:
        comm = self.comm
        remedy = "start in a folder that you may write to and that all nodes share"
        if not self.check("files", self._files, remedy):
            return
        if not alone:
            self.check("reproducibility", lambda: _reproducibility(comm, self.folder), NODES)
        remedy = "install a PyTorch build for this driver, or set run.device = 'cpu'"
        self.check("GPU", lambda: _gpu(comm, self.folder), remedy)

    def _check_launch(self) -> None:
        if not self.check("MPI library", _library, ""):
            return
        if not self.check("launcher", _launcher, "put the mpirun of mpi4py's MPI library first on PATH"):
            return
        starts = self.check("two ranks", _two_ranks, "try another launcher: srun -n 2 mpifed selftest")
        missing = sorted(as_root().keys() - os.environ)
        if starts and missing and _family(_library()) == "Open MPI":
            change = " ".join(f"{name}=1" for name in missing)
            self._print(f"note    as root, Open MPI's mpirun starts only after: export {change}")

    def _files(self) -> str:
        """Create a folder, and write and read the files of a run."""
        import torch

        comm = self.comm
        with collective_errors(comm, OSError):
            if comm.rank == 0:
                self.folder = tempfile.mkdtemp(prefix="selftest-", dir=os.getcwd())
        self.folder = broadcast_text(comm, self.folder)
        with collective_errors(comm, OSError):
            if not Path(self.folder).is_dir():
                raise FileNotFoundError(f"{self.folder} of rank 0 does not exist on {platform.node()}")
        written = _run(comm, f"{self.folder}/cpu", device="cpu", reduction="exact")
        with collective_errors(comm, Exception):
            if not torch.equal(written, _point(f"{self.folder}/cpu")):
                raise ValueError("an HDF5 file contains other values than were written")
        return f"HDF5 written and read in {Path(self.folder).parent}"

    def check(self, name: str, test: Callable[[], str], remedy: str) -> bool:
        """Print whether ``test`` returns on all ranks, with its text or its error and the remedy. Collective.

        Of several ranks, an error that only one of them raises ends all, because the others may be waiting
        for that rank in ``test``.
        """
        caught = CollectiveError if self.comm.size > 1 else Exception
        try:
            text = test()
            self._print(f"ok      {name}: {text}")
            return True
        except caught as error:
            self.failed += 1
            self._print(f"failed  {name}: {error}\n{remedy}".rstrip().replace("\n", "\n        "))
            return False

    def _print(self, text: str) -> None:
        if self.comm.rank == 0:
            echo(text)


def _mpi(comm: SerialComm) -> str:
    from importlib.metadata import version

    import numpy as np

    leaders = np.array([comm.rank == comm.node], dtype=np.int64)
    comm.allreduce_(leaders)
    note = "" if comm.threads == "MPI_THREAD_MULTIPLE" else ", so reports of hangs name one rank only"
    library = " ".join(comm.mpi.split(",")[0].split())
    return f"{library}, mpi4py {version('mpi4py')}, {leaders[0]} node(s), {comm.threads}{note}"


def _allreduce(comm: SerialComm) -> str:
    import numpy as np

    with collective_errors(comm, MemoryError):
        values = np.full(2**17, comm.rank + 1.0)
    began = time.perf_counter()
    comm.allreduce_(values)
    took, expected = time.perf_counter() - began, comm.size * (comm.size + 1) / 2
    with collective_errors(comm, ValueError):
        if not (values == expected).all():
            raise ValueError(
                f"expected the sum {expected} of all ranks, got {values.min()} to {values.max()}"
            )
    return f"1 MiB in {1e3 * took:.1f} ms"


def _run(comm: SerialComm, folder: str, clients: int = 0, **settings):
    """Run a small job that writes a checkpoint, and return its output point."""
    import torch

    from mpifed.running.run import run

    problem = {"name": "Saddle", "clients": clients or max(8, comm.size), "d": 5}
    settings |= {"out": folder, "progress": False, "checkpoint_every": 2}
    job = {"rounds": 5, "algorithm": METHOD, "problem": problem, "oracle": {"batch_size": 0}, "run": settings}
    return torch.cat(list(run(job, comm).point.values())).cpu()


def _point(folder: str):
    """Read the output point of a run."""
    import torch

    from mpifed.running.result import load

    return torch.cat(list(load(folder).point.values()))


def _reproducibility(comm: SerialComm, folder: str) -> str:
    """Compare the result of all ranks with that of each rank alone."""
    import torch

    with collective_errors(comm, Exception):
        together = _point(f"{folder}/cpu")
        with tempfile.TemporaryDirectory() as temporary:
            alone = _run(SerialComm(), temporary, max(8, comm.size), device="cpu", reduction="exact")
        if not torch.equal(alone, together):
            raise ValueError(
                f"{comm.size} ranks and one rank differ by up to {(alone - together).abs().max():.3g}"
            )
    return f"{comm.size} ranks and one rank give bitwise identical results"


def _gpu(comm: SerialComm, folder: str) -> str:
    """Run the small job on the GPUs, and compare its result with that of the CPU."""
    import torch

    from mpifed.parallel.devices import choose_device, unused_gpu

    if choose_device(comm, "auto").type == "cpu":
        with collective_errors(comm, RuntimeError):
            if reason := unused_gpu():
                raise RuntimeError(reason)
        return "none, runs use the CPU"
    computed = _run(comm, f"{folder}/gpu", device="cuda")
    with collective_errors(comm, Exception):
        expected = _point(f"{folder}/cpu")
        if not torch.allclose(computed, expected, rtol=TOLERANCE, atol=TOLERANCE):
            raise ValueError(f"GPU and CPU differ by up to {(computed - expected).abs().max():.3g}")
    return f"{torch.cuda.get_device_name()}, the first of {torch.cuda.device_count()} on the node of rank 0"


def _library() -> str:
    """Load the MPI library of mpi4py in another process, without initialising MPI."""
    expect_extra("mpi", "several ranks")
    done = _output(sys.executable, "-m", "mpi4py", "--mpi-lib-version")
    if done.returncode:
        raise RuntimeError(f"mpi4py cannot load an MPI library: {NO_LIBRARY}")
    return " ".join(done.stdout.split("\n")[0].split(",")[0].split())


def _launcher() -> str:
    """Compare the MPI implementation of mpirun with that of mpi4py."""
    launcher, library = shutil.which("mpirun"), _library()
    if launcher is None:
        raise FileNotFoundError("mpirun is not on PATH")
    lines = [line.strip() for line in _output(launcher, "--version").stdout.splitlines() if line.strip()]
    version = " ".join(" ".join(lines[: 1 if "(" in lines[0] else 2]).split())
    if {_family(version), _family(library)} == set(FAMILIES):
        raise ValueError(f"{launcher} belongs to {_family(version)}, mpi4py uses {library}")
    return f"{launcher}, {version}"


def _family(version: str) -> str:
    """Return the implementation that a version names; "" if it is unknown."""
    return next((name for name, words in FAMILIES.items() if any(word in version for word in words)), "")


def _two_ranks() -> str:
    """Run this command on two ranks."""
    command = "mpirun", "-n", "2", sys.executable, "-m", "mpifed", "selftest"
    done = _output(*command, env=os.environ | OVERSUBSCRIBE | as_root())
    for line in done.stdout.splitlines():
        echo(f"    {line}")
    if done.returncode:
        raise RuntimeError(f"mpirun -n 2 mpifed selftest ends with exit code {done.returncode}")
    return "mpirun -n 2 mpifed selftest succeeds"


def _output(*words: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LIMIT,
        **options,
    )
