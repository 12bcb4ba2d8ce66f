"""All processes that were started together, and ending them together.

A launcher and an MPI library that do not fit start N processes that each believe to be alone, with exit code
0; :func:`world` compares the size with what the launcher has announced and refuses to go on.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

from mpifed.base.log import print_error, print_traceback
from mpifed.parallel.comm import MpiComm, SerialComm, usable_mpi

__all__ = ["world", "abort_all", "LaunchError", "EXIT_LAUNCH", "slurm_job"]

#: Exit code when the processes cannot find each other.
EXIT_LAUNCH = 71
_LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE")
_LAUNCHER_MARKS = (
    "OMPI_COMM_WORLD_",
    "PMI_",
    "PMIX_",
    "MV2_COMM_",
    "MPI_LOCALRANKID",
    "PALS_",
    "FLUX_",
    "ALPS_",
)


class LaunchError(RuntimeError):
    """The launcher started more processes than MPI can see."""


def _announced() -> int:
    """The number of ranks that the launcher says it has started, 1 when it says nothing."""
    names = [*_LAUNCHER_SIZES, *(["SLURM_STEP_NUM_TASKS"] if slurm_job() else [])]
    for name in names:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 1


def world(given=None) -> SerialComm:
    """The communicator of all processes that were started together, the same one at every call; or of those
    of a communicator of mpi4py.

    MPI when a launcher (mpirun, mpiexec, srun) has started this process, one process otherwise. Under MPI, an
    exception that nobody catches ends all ranks: MPI itself would leave the others waiting for ever.

    Args:
        given: a communicator of mpi4py, which is duplicated, or one of this package, which is returned.

    Raises:
        CollectiveError: MPI is not initialised, or has been finalised.
        TypeError: ``given`` is no communicator.
        LaunchError: the launcher started more processes than MPI can see.
    """
    if isinstance(given, SerialComm):
        return given
    if given is not None:
        if not all(hasattr(given, name) for name in ("Dup", "Split_type")):
            raise TypeError(f"expected a communicator of mpi4py, got {type(given).__name__}")
        return MpiComm(given)
    announced = _announced()
    launched = any(name.startswith(_LAUNCHER_MARKS) for name in os.environ) or announced > 1
    if not launched:
        return SerialComm()
    usable_mpi()
    comm = _mpi()
    if comm.size != announced and announced > 1:
        library = " ".join(comm.mpi.split(",")[0].split())
        way = "pmix" if library.startswith("Open MPI") else "pmi2"
        raise LaunchError(
            f"the launcher started {announced} processes, but this MPI ({library}) sees {comm.size}: "
            "launcher and library do not fit, and each process would run the whole job alone. Use the mpirun "
            f"of this MPI, or under Slurm `srun --mpi={way}`; a script of `mpifed launch` finds out by itself"
        )
    if comm.size > 1:
        sys.excepthook = lambda *error: _abort_on(comm, *error)
    return comm


@functools.cache
def _mpi() -> MpiComm:
    """Once a process: MPI has a bounded number of communicators, and a script may run any number of jobs."""
    return MpiComm()


def abort_all(code: int) -> None:
    """End all ranks at once with exit code ``code``, from one of them; returns where there is no other."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        mpi.COMM_WORLD.Abort(code)


def _abort_on(comm: SerialComm, kind, error, trace) -> None:
    print_error(f"rank {comm.rank} of {comm.size} failed:")
    print_traceback(kind, error, trace)
    comm.abort(1)


def slurm_job() -> str | None:
    """The number of the job if Slurm has started this process or an ancestor of it; else ``None``.

    Slurm's variables outlive their job, for instance in a terminal that stays when its allocation ends, so
    they count only below the task that Slurm has started. A shell of ``salloc`` belongs to no job: it runs
    where it was called.
    """
    task = os.environ.get("SLURM_TASK_PID", "")
    if task.isdigit() and int(task) in _ancestors():
        return os.environ.get("SLURM_JOB_ID")
    return None


def _ancestors() -> set[int]:
    """This process, its parent, and so on; empty where the system does not tell."""
    found, process = set(), os.getpid()
    while process > 0 and process not in found:
        found.add(process)
        try:  # the name of the program, in parentheses, may hold anything
            process = int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            break
    return found
