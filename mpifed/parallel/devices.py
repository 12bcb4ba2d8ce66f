"""The device, threads and memory of a rank, deterministic algorithms, and machine properties that affect
results.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import platform
import resource
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from mpifed.base.errors import ConfigError
from mpifed.base.log import warning
from mpifed.parallel.comm import (
    CollectiveError,
    SerialComm,
    broadcast_text,
    collective_errors,
    same_on_all_ranks,
)
from mpifed.parallel.world import launcher_number

__all__ = [
    "choose_device", "device_for", "unused_gpu", "threads", "gpu_id", "ranks_on", "wait_for", "deterministic",
    "machine", "differences", "warn_if_machines_differ", "expect_reproducible_products", "peak_memory",
    "keep_freed_memory",
]  # fmt: skip

#: cuBLAS is deterministic only with a workspace of fixed size; it reads its variable with the first handle.
#: torch's compiler otherwise chooses kernels by their speed; it reads its variable when it is imported.
_VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TORCHINDUCTOR_DETERMINISTIC": "1"}
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
    on_gpu = np.array([device.type == "cuda"], dtype=np.int64)
    comm.allreduce_(on_gpu)
    if wanted == "auto" and not on_gpu[0] and comm.rank == 0 and (reason := unused_gpu()):
        warning(f"run.device = 'auto' uses the CPU, although this node has a GPU driver: {reason}")
    if 0 < on_gpu[0] < comm.size:
        raise CollectiveError(
            f"run.device = {wanted!r} finds a GPU for {on_gpu[0]} of {comm.size} ranks: expected GPUs on all "
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
    own, all_ranks = np.array([gpu_id(device)], dtype=np.int64), np.empty(comm.size, dtype=np.int64)
    comm.allgatherv(own, all_ranks, [1] * comm.size)
    return int((all_ranks == own[0]).sum()) if own[0] else 1


def wait_for(device: torch.device) -> None:
    """Wait until the device has completed all work queued so far."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


@contextlib.contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """Restrict torch to deterministic algorithms in full precision if ``on``; others raise an error.

    Reproducible cuBLAS needs ``CUBLAS_WORKSPACE_CONFIG`` to be set before its first use in the process.
    NumPy's linear algebra uses one thread, because data and metrics of a problem would otherwise depend on
    the number of cores of a rank. All settings are restored at the end.
    """
    if not on:
        yield
        return
    mode, precision = torch.get_deterministic_debug_mode(), torch.get_float32_matmul_precision()
    unset, cudnn = [name for name in _VARIABLES if name not in os.environ], torch.backends.cudnn
    os.environ.update({name: _VARIABLES[name] for name in unset})
    _use_deterministic(2)
    torch.set_float32_matmul_precision("highest")
    try:
        with (
            cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=False),
            threadpool_limits(1, "blas"),
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        _use_deterministic(mode)
        for name in unset:
            os.environ.pop(name, None)


def _use_deterministic(mode: int) -> None:
    """Set torch's deterministic debug mode, also in its compiler if that is loaded.

    ``torch.use_deterministic_algorithms`` imports the compiler, which takes longer than a small run.
    """
    torch.set_deterministic_debug_mode(mode)
    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)


@functools.cache
def _products_depend_on_alignment() -> bool:
    """Return whether matrix products depend on the alignment of their operands in this process."""
    rng = np.random.default_rng(0)
    rows, columns = (torch.from_numpy(rng.standard_normal(shape)).float() for shape in ((13, 9), (7, 9)))
    first = rows @ columns.T
    for offset in range(1, 16):
        memory = torch.zeros(offset + rows.numel(), dtype=rows.dtype)
        moved = memory[offset:].view_as(rows).copy_(rows)
        if not torch.equal(moved @ columns.T, first):
            return True
    return False


def expect_reproducible_products() -> None:
    """Raise an error if MKL was used before it was configured for ``run.reduction = "exact"``.

    Without MKL there is no error: the operands of a single client always have the same alignment, and
    clients are vectorised only if their results do not depend on their positions.

    Raises:
        ConfigError: products depend on the alignment of their operands.
    """
    if torch.backends.mkl.is_available() and _products_depend_on_alignment():
        raise ConfigError(
            "run.reduction = 'exact': matrix products in this process depend on the alignment of their "
            f"operands in memory (MKL reads MKL_CBWR, here {os.environ.get('MKL_CBWR')!r}, at the first "
            "product): import mpifed before the first product, set MKL_CBWR=AUTO in the environment, or set "
            "run.reduction = 'fused', without the reproducibility guarantee"
        )


@functools.cache
def machine(device: torch.device) -> dict[str, str]:
    """Return the properties of this machine that affect rounding, by name: processor, GPU, libraries.

    Torch and NumPy choose kernels by the processor's instruction set, BLAS libraries by its model.
    """
    here = {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": version("scipy"),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "MKL_CBWR": os.environ.get("MKL_CBWR", "not set"),
    }
    if device.type != "cuda":
        return here
    return here | {
        "gpu": torch.cuda.get_device_name(device),
        "cuda": f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}",
    }


def _processor() -> str:
    """Return the model of the processor, or its architecture if the model is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def warn_if_machines_differ(comm: SerialComm, device: torch.device) -> None:
    """Warn if the ranks' machines differ, so that results may depend on the placement. Collective."""
    text = json.dumps(machine(device))
    if same_on_all_ranks(comm, text):
        return
    machines = [json.loads(broadcast_text(comm, text, rank)) for rank in range(comm.size)]
    other = next(rank for rank in range(comm.size) if machines[rank] != machines[0])
    if comm.rank == 0:
        warning(
            "run.reduction = 'exact' is reproducible only on machines of the same type, but "
            f"{differences(machines[0], machines[other], 'on rank 0', f'on rank {other}')}"
        )


def differences(one: dict[str, str], other: dict[str, str], here: str, there: str) -> str:
    """Describe how two machines differ; "" if they do not."""
    return "; ".join(
        f"{name} is {one.get(name, 'none')} {here} and {other.get(name, 'none')} {there}"
        for name in {**one, **other}
        if one.get(name) != other.get(name)
    )


def peak_memory(comm: SerialComm, device: torch.device) -> dict[str, np.ndarray]:
    """Return the GPU index (-1: CPU) and the peak memory in bytes of each rank, ``[ranks]``. Collective.

    GPU memory is the maximum that torch reserved, without the CUDA context (several hundred MB per process).
    """
    on_gpu = device.type == "cuda"
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    mine = [device.index if on_gpu else -1, host, torch.cuda.max_memory_reserved(device) if on_gpu else 0]
    rows = np.empty(3 * comm.size, dtype=np.int64)
    comm.allgatherv(np.array(mine, dtype=np.int64), rows, [3] * comm.size)
    return dict(zip(("gpu", "peak_host_bytes", "peak_gpu_bytes"), rows.reshape(-1, 3).T))


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
