"""The device, threads and memory of a rank."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import resource
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from mpifed.base.log import warning
from mpifed.parallel.comm import (
    CollectiveError,
    SerialComm,
    collective_errors,
    gather_rows,
    reduce_number,
)
from mpifed.parallel.world import launcher_number

__all__ = [
    "choose_device", "device_for", "gpu_id", "keep_freed_memory", "peak_memory", "ranks_on", "threads",
    "unused_gpu", "wait_for",
]  # fmt: skip

#: File that exists if a driver for NVIDIA GPUs is loaded.
DRIVER = Path("/proc/driver/nvidia/version")
#: Environment variables with the local rank of a process: Open MPI, MPICH, MVAPICH, Cray.
_LOCAL_RANKS = (
    "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID",
)  # fmt: skip
#: Number of torch threads when the process starts: the available cores, or OMP_NUM_THREADS.
_THREADS = torch.get_num_threads()
#: Parameters of glibc's ``mallopt(3)``: allocate blocks of up to 32 MiB, the maximum, on the heap; return
#: free memory at its top to the system only above 256 MiB; grow the heap by 16 MiB.
_MALLOC = ((-3, 32 * 2**20), (-1, 256 * 2**20), (-2, 16 * 2**20))


def threads(wanted: int | None, exact: bool, local_size: int) -> int:
    """Return the number of torch threads of a rank: ``wanted``, or 1 for ``exact`` reduction, in which sums
    must not be divided between threads, or an equal share of the node."""
    return wanted or (1 if exact else max(1, _THREADS // local_size))


def choose_device(comm: SerialComm, wanted: str, gpus: Sequence[int] | None = None) -> torch.device:
    """Return the device of this rank and make it torch's current device. Collective.

    Args:
        wanted, gpus: see :func:`device_for`.

    Raises:
        CollectiveError: on all ranks: a GPU is required and not available on some rank, or only some of the
            ranks would use a GPU.
    """
    with collective_errors(comm, ValueError, RuntimeError):
        # If a script has split the communicator, ranks within its parts would map several parts to one GPU.
        local_rank = launcher_number(_LOCAL_RANKS, "SLURM_LOCALID")
        device = device_for(wanted, gpus, comm.local_rank if local_rank is None else local_rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
    on_gpu = reduce_number(comm, device.type == "cuda")
    if wanted == "auto" and not on_gpu and comm.rank == 0 and (reason := unused_gpu()):
        warning(f"run.device = 'auto' uses the CPU, although this node has a GPU driver: {reason}")
    if 0 < on_gpu < comm.size:
        raise CollectiveError(
            f"run.device = {wanted!r} finds a GPU for {on_gpu} of {comm.size} ranks: expected GPUs on all "
            "nodes or on none; set run.device = 'cpu', or use nodes of the same type"
        )
    return device


def device_for(wanted: str, gpus: Sequence[int] | None, local_rank: int) -> torch.device:
    """Return the device of the rank ``local_rank`` of a node; GPUs are assigned round-robin.

    Args:
        wanted: "cpu", "cuda", or "auto" (a GPU if there is one).
        gpus: indices of the GPUs for the local ranks 0, 1, ..., repeated as needed. Default: all GPUs.

    Raises:
        ValueError: a GPU is required, but there is none, or none with that index.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if not visible and (gpus or wanted == "cuda"):
        setting = f"run.gpus = {list(gpus)}" if gpus else f"run.device = {wanted!r}"
        raise ValueError(
            f"{setting} requires a GPU, but none is available to this process: {_why_no_gpu()}; set "
            "run.device = 'auto' or 'cpu'"
        )
    order = list(gpus or range(visible))
    missing = [gpu for gpu in order if gpu >= visible]
    if missing:
        raise ValueError(
            f"run.gpus = {order}: expected numbers from 0 to {visible - 1}, the GPUs available to this "
            f"process, got {', '.join(map(str, missing))}"
        )
    return torch.device("cuda", order[local_rank % len(order)]) if visible else torch.device("cpu")


def unused_gpu() -> str:
    """Describe why no GPU is available although a driver is loaded; "" if GPUs are hidden."""
    masked = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return _why_no_gpu() if DRIVER.exists() and not masked else ""


def _why_no_gpu() -> str:
    """Describe what determines whether a GPU is available: torch's build, the driver, the environment."""
    cuda = torch.version.cuda
    build = f"for CUDA {cuda} (older drivers need another build)" if cuda else "without CUDA"
    driver = "loaded" if DRIVER.exists() else "not loaded"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    mask = "not set" if visible is None else repr(visible)
    return (
        f"torch {torch.__version__} is built {build}, the NVIDIA driver is {driver}, "
        f"CUDA_VISIBLE_DEVICES is {mask}"
    )


def gpu_id(device: torch.device) -> int:
    """Return a positive number that identifies a GPU in all processes; 0 for the CPU."""
    if device.type != "cuda":
        return 0
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return 1 + int.from_bytes(hashlib.sha256(uuid.encode()).digest()[:7], "big")


def ranks_on(comm: SerialComm, device: torch.device) -> int:
    """Return the number of ranks that use the same GPU as this rank; 1 on a CPU. Collective."""
    gpu = gpu_id(device)
    gpus = gather_rows(comm, np.array([[gpu]], dtype=np.int64))
    return int((gpus == gpu).sum()) if gpu else 1


def wait_for(device: torch.device) -> None:
    """Wait until the device has completed all work queued so far."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def peak_memory(comm: SerialComm, device: torch.device) -> dict[str, np.ndarray]:
    """Return the GPU index (-1: CPU) and the peak memory in bytes of each rank, ``[ranks]``. Collective.

    GPU memory is the maximum that torch reserved, without the CUDA context (several hundred MB per process).
    """
    on_gpu = device.type == "cuda"
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    mine = [device.index if on_gpu else -1, host, torch.cuda.max_memory_reserved(device) if on_gpu else 0]
    ranks = gather_rows(comm, np.array([mine], dtype=np.int64))
    return dict(zip(("gpu", "peak_host_bytes", "peak_gpu_bytes"), ranks.T))


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, unless the environment has settings for its allocator.

    Otherwise tensors of about 100 KB or more are returned to the system at every step, and page faults of the
    next tensors take a fifth of the step.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    with contextlib.suppress(OSError, AttributeError):  # another system, another C library
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for parameter, value in _MALLOC:
            mallopt(parameter, value)
