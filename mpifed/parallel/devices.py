"""The device, threads and memory of a rank."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import resource
from collections.abc import Callable, Sequence
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
from mpifed.parallel.world import local_rank

__all__ = [
    "assign_devices", "choose_device", "device_type", "gpu_id", "keep_freed_memory", "offered_devices",
    "peak_memory", "ranks_on", "recorded", "threads", "unused_gpu", "wait_for",
]  # fmt: skip

#: File that exists if a driver for NVIDIA GPUs is loaded.
DRIVER = Path("/proc/driver/nvidia/version")
#: Number of torch threads when the process starts: the available cores, or OMP_NUM_THREADS.
_THREADS = torch.get_num_threads()
#: Parameters of glibc's ``mallopt(3)``: allocate blocks of up to 32 MiB, the maximum, on the heap; return
#: free memory at its top to the system only above 256 MiB; grow the heap by 16 MiB.
_MALLOC = ((-3, 32 * 2**20), (-1, 256 * 2**20), (-2, 16 * 2**20))


def threads(wanted: int | None, exact: bool, local_size: int) -> int:
    """Return the number of torch threads of a rank: ``wanted``, or 1 for ``exact`` reduction, in which sums
    must not be divided between threads, or ``OMP_NUM_THREADS``, or an equal share of the node."""
    share = _THREADS if "OMP_NUM_THREADS" in os.environ else max(1, _THREADS // local_size)
    return wanted or (1 if exact else share)


def device_type(comm: SerialComm, wanted: str, gpus: Sequence[int] | None = None) -> str:
    """Return the type of the ranks' devices, "cpu" or "cuda". Collective.

    Args:
        wanted, gpus: see :func:`offered_devices`.

    Raises:
        CollectiveError: on all ranks: a GPU is required and not available on some rank, or only some of the
            ranks would use a GPU.
    """
    with collective_errors(comm, ValueError, RuntimeError):
        offered = offered_devices(wanted, gpus, 0)
    on_gpu = reduce_number(comm, bool(offered))
    if 0 < on_gpu < comm.size:
        raise CollectiveError(
            f"run.device = {wanted!r} finds a GPU for {on_gpu} of {comm.size} ranks: expected GPUs on all "
            "nodes or on none; set run.device = 'cpu', or use nodes of the same type"
        )
    return "cuda" if on_gpu else "cpu"


def choose_device(comm: SerialComm, wanted: str, gpus: Sequence[int] | None = None) -> torch.device:
    """Return the device of this rank and make it torch's current device. Collective.

    GPUs are identified by their UUIDs, because a launcher may show each rank other GPUs of its node, or
    the same ones under other numbers. A warning says that ranks share a GPU while another one is unused.

    Args:
        wanted, gpus: see :func:`offered_devices`.

    Raises:
        CollectiveError: on all ranks: as for :func:`device_type`.
    """
    if device_type(comm, wanted, gpus) == "cpu":
        if wanted == "auto" and comm.rank == 0 and (reason := unused_gpu()):
            warning(f"run.device = 'auto' uses the CPU, although this node has a GPU driver: {reason}")
        return torch.device("cpu")
    with collective_errors(comm, ValueError, RuntimeError):
        # If a script has split the communicator, ranks within its parts would map several parts to one GPU.
        launched = local_rank()
        number = comm.local_rank if launched is None else launched
        offered = offered_devices(wanted, gpus, number)
        identities = np.array([[gpu_id(device)] for device in offered], dtype=np.int64)
    ranks = gather_rows(comm, np.array([[len(offered), number]], dtype=np.int64))
    counts, local_ranks = ranks.T.tolist()
    seen = np.split(gather_rows(comm, identities, counts)[:, 0], np.cumsum(counts)[:-1])
    chosen = assign_devices([devices.tolist() for devices in seen], local_ranks)
    if comm.rank == 0 and (text := _uneven(seen, chosen)):
        warning(text)
    device = offered[chosen[comm.rank]]
    with collective_errors(comm, RuntimeError):
        torch.cuda.set_device(device)
    return device


def offered_devices(wanted: str, gpus: Sequence[int] | None, local_rank: int) -> list[torch.device]:
    """Return the GPUs that a rank may use, none for the CPU.

    Args:
        wanted: "cpu", "cuda", or "auto" (a GPU if there is one).
        gpus: numbers of the GPUs for the local ranks 0, 1, ..., repeated as needed. Default: a rank may use
            every GPU that is available to its process.

    Raises:
        ValueError: a GPU is required, but there is none, or none with that number.
    """
    if wanted == "cpu":
        return []
    visible = torch.cuda.device_count()
    if not visible and (gpus or wanted == "cuda"):
        setting = f"run.gpus = {list(gpus)}" if gpus else f"run.device = {wanted!r}"
        raise ValueError(
            f"{setting} requires a GPU, but none is available to this process: {_why_no_gpu()}; set "
            "run.device = 'auto' or 'cpu'"
        )
    missing = [gpu for gpu in gpus or () if gpu >= visible]
    if missing:
        raise ValueError(
            f"run.gpus = {list(gpus or ())}: expected numbers from 0 to {visible - 1}, the GPUs available to "
            f"this process, got {', '.join(map(str, missing))}"
        )
    numbers = [gpus[local_rank % len(gpus)]] if gpus else range(visible)
    return [torch.device("cuda", number) for number in numbers]


def assign_devices(seen: Sequence[Sequence[int]], local_ranks: Sequence[int]) -> list[int]:
    """Assign a device to every rank, so that the ranks are distributed as evenly as possible.

    If all ranks see the same devices, they are assigned round-robin.

    Args:
        seen: the devices that each rank sees, as numbers that are the same on all ranks; at least one.
        local_ranks: the number of each rank on its node, from which its preferred device follows.

    Returns:
        The position of each rank's device in the list of those that it sees.
    """
    users: dict[int, list[int]] = {device: [] for devices in seen for device in devices}
    chosen: dict[int, int] = {}
    for rank in range(len(seen)):
        # Search breadth first for the device with the fewest ranks, among those that the rank sees and those
        # to which the present users of these could move (an optimal semi-matching of a bipartite graph).
        moves: dict[int, int] = {}  # device → the rank that would move to it
        queue = [rank]
        for mover in queue:
            first = local_ranks[mover] % len(seen[mover])
            for device in (*seen[mover][first:], *seen[mover][:first]):
                if device not in moves:
                    moves[device] = mover
                    queue += users[device]
        device = min(moves, key=lambda one: len(users[one]))
        while (mover := moves[device]) != rank:
            left, chosen[mover] = chosen[mover], device
            users[left].remove(mover)
            users[device].append(mover)
            device = left
        chosen[rank] = device
        users[device].append(rank)
    return [list(devices).index(chosen[rank]) for rank, devices in enumerate(seen)]


def _uneven(seen: Sequence[np.ndarray], chosen: Sequence[int]) -> str:
    """Return a warning if ranks share a GPU while one that a rank sees is unused, otherwise ""."""
    used = [int(devices[position]) for devices, position in zip(seen, chosen)]
    unused = len(set(np.concatenate(seen).tolist()) - set(used))
    if not unused or len(set(used)) == len(used):
        return ""
    second = next(rank for rank, device in enumerate(used) if device in used[:rank])
    return (
        f"the ranks {used.index(used[second])} and {second} share a GPU, although {unused} of the GPUs that "
        "other ranks see are unused: start the same number of ranks on every node, and let every rank see "
        "all GPUs of its node (srun --gpu-bind=none)"
    )


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


def recorded(device: torch.device) -> Callable[[], None]:
    """Return a function that waits until the device has completed the work that is queued now."""
    if device.type != "cuda":
        return lambda: None
    return torch.cuda.current_stream(device).record_event().synchronize


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
