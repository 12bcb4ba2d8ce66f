"""The communicator of all processes of a job, and their termination.

With a launcher that does not match the MPI library, each of N processes runs as if it were the only one, and
exits with code 0. Therefore :func:`world` compares the size of MPI's world with that of the launcher.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from mpifed.base.log import print_error, print_traceback
from mpifed.parallel.comm import LaunchError, MpiComm, SerialComm, usable_mpi

__all__ = ["EXIT_LAUNCH", "abort_all", "local_rank", "process_name", "slurm_job", "world"]

#: Exit code if launcher and MPI library do not match.
EXIT_LAUNCH = 71
_LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE")
#: Variables with the number of a process on its node: Open MPI; MPICH and Intel MPI; MVAPICH2; MVAPICH 3; HPE
#: Cray (PALS, Cray PMI); Flux.
_LOCAL_RANKS = (
    "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK", "FLUX_TASK_LOCAL_ID",
)  # fmt: skip
#: Variables that make an MPI library accept GPU memory: HPE Cray MPICH, MPICH, MVAPICH2, Open MPI.
_CUDA_AWARE = (
    "MPICH_GPU_SUPPORT_ENABLED", "MPIR_CVAR_ENABLE_GPU", "MV2_USE_CUDA", "OMPI_MCA_opal_cuda_support",
)  # fmt: skip
_LAUNCHER_MARKS = (
    "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MV2_COMM_", "MPI_LOCALRANKID", "PALS_", "FLUX_", "ALPS_",
)  # fmt: skip


def local_rank() -> int | None:
    """Return the number of this process among those of the launcher on its node; ``None`` if unknown."""
    return _launcher_number(_LOCAL_RANKS, "SLURM_LOCALID")


def _launcher_number(names: Iterable[str], slurm_name: str) -> int | None:
    """Return the number in the first of some environment variables of launchers; ``None`` without one.

    Args:
        slurm_name: variable of Slurm, which is read last, and only in a Slurm task.
    """
    names = [*names, *([slurm_name] if slurm_job() else [])]
    numbers = (os.environ.get(name, "") for name in names)
    return next((int(number) for number in numbers if number.isdigit()), None)


def world(given=None) -> SerialComm:
    """Return the communicator of all processes that the launcher (mpirun, mpiexec, srun) has started.

    Every call returns the same object. Under MPI, an uncaught exception terminates all ranks, which would
    otherwise wait forever.

    Args:
        given: a communicator of mpi4py, which is duplicated, or of this package, which is returned.

    Raises:
        CollectiveError: MPI is not initialised, or has been finalised.
        TypeError: ``given`` is not a communicator.
        LaunchError: there is no MPI library, or the launcher started more processes than are in its world.
    """
    if isinstance(given, SerialComm):
        return given
    if given is not None:
        if not all(hasattr(given, name) for name in ("Dup", "Split_type")):
            raise TypeError(f"expected a communicator of mpi4py, got {type(given).__name__}")
        return _aborting(MpiComm(given))
    launched = _launcher_number(_LAUNCHER_SIZES, "SLURM_STEP_NUM_TASKS") or 1
    if launched == 1 and not any(name.startswith(_LAUNCHER_MARKS) for name in os.environ):
        return SerialComm()
    if "mpi4py.MPI" not in sys.modules:
        _select_gpu()
    usable_mpi()
    comm = _mpi()
    if comm.size != launched and launched > 1:
        library = " ".join(comm.mpi.split(",")[0].split())
        plugin = "pmix" if library.startswith("Open MPI") else "pmi2"
        raise LaunchError(
            f"the launcher started {launched} processes, but MPI's world ({library}) has {comm.size}, so "
            "that each process would run the whole job: use the mpirun of this MPI, under Slurm `srun "
            f"--mpi={plugin}`, or a script of `mpifed launch`, which selects the launcher"
        )
    return _aborting(comm)


def _select_gpu() -> None:
    """Make a GPU torch's current device before MPI is initialised, if a variable makes MPI CUDA-aware.

    Such a library may reserve memory on the current device, which otherwise is the first one on all ranks.
    The job is not known yet, so this is the device that the local rank suggests, not always the one that
    :func:`mpifed.parallel.devices.choose_device` finds.
    """
    number = local_rank()
    if number is None or not any(os.environ.get(name, "").lower() in ("1", "true") for name in _CUDA_AWARE):
        return
    import torch

    if gpus := torch.cuda.device_count():
        # Another rank may use the device exclusively; this is an error only if it is chosen in the end.
        with contextlib.suppress(RuntimeError):
            torch.cuda.set_device(number % gpus)


def _aborting(comm: MpiComm) -> MpiComm:
    """Make an uncaught exception terminate all ranks of a communicator."""
    if comm.size > 1:
        sys.excepthook = lambda *error: _abort_on(comm, *error)
    return comm


@functools.cache
def _mpi() -> MpiComm:
    """Create a communicator once per process, because MPI limits their number."""
    return MpiComm()


def abort_all(code: int) -> None:
    """Terminate all ranks with exit code ``code``; does nothing if there is only one."""
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
    """Return the job number if this process is a descendant of a Slurm task, otherwise ``None``.

    The environment variables alone are not enough: they remain set in a shell whose allocation has ended, and
    a shell of ``salloc`` is not part of the job.
    """
    task = os.environ.get("SLURM_TASK_PID", "")
    if task.isdigit() and int(task) in _ancestors():
        return os.environ.get("SLURM_JOB_ID")
    return None


def process_name() -> str:
    """Describe this process in lock files and logs: its number, host, Slurm job, and the present time."""
    job = f", Slurm job {number}" if (number := slurm_job()) else ""
    now = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
    return f"process {os.getpid()} on {socket.gethostname()}{job}, since {now}"


def _ancestors() -> set[int]:
    """Return the numbers of this process and its ancestors; empty if they are unknown."""
    ancestors, process = set(), os.getpid()
    while process > 0 and process not in ancestors:
        ancestors.add(process)
        try:  # the name of the program, in parentheses, may contain any character
            process = int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            break
    return ancestors
