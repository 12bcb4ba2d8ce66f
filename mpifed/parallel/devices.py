"""The device of a rank, its threads and memory, deterministic algorithms, and the machine properties on which
bits depend.
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
from mpifed.parallel.comm import CollectiveError, SerialComm, broadcast_text, collective_errors

__all__ = [
    "choose_device",
    "device_for",
    "threads",
    "identity",
    "wait_for",
    "deterministic",
    "machine",
    "differences",
    "expect_alike",
    "expect_reproducible_products",
    "usage",
    "keep_freed_memory",
]

#: cuBLAS sums in a fixed order only with a workspace of a fixed size, and torch's compiler chooses kernels by
#: their speed unless told; they read these when the first handle is made, and when it is imported.
_VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TORCHINDUCTOR_DETERMINISTIC": "1"}
#: Exists if a driver of NVIDIA GPUs is loaded.
DRIVER = Path("/proc/driver/nvidia/version")
#: Where launchers store the number of a process on its node: Open MPI, MPICH, MVAPICH, Cray.
_LOCAL_RANKS = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
)
#: Torch's threads when the process starts: the cores that it may use, or OMP_NUM_THREADS.
_THREADS = torch.get_num_threads()
#: Parameters of glibc's ``mallopt(3)``: blocks up to 32 MiB, the most it takes, come from the heap, of which
#: what is free is given back to the system only above 256 MiB, and which grows by 16 MiB.
_MALLOC = ((-3, 32 * 2**20), (-1, 256 * 2**20), (-2, 16 * 2**20))


def threads(wanted: int | None, exact: bool, local_size: int) -> int:
    """Torch threads of a rank: as wanted, else 1 under ``exact``, else a fair share of the node.

    Under ``exact`` a sum must not be split between threads.
    """
    return wanted or (1 if exact else max(1, _THREADS // local_size))


def choose_device(comm: SerialComm, wanted: str, gpus: Sequence[int] | None = None) -> torch.device:
    """The device of this rank, made torch's current one. Collective.

    Args:
        wanted, gpus: as for :func:`device_for`.

    Raises:
        CollectiveError: on all ranks together: a GPU is asked for and some rank sees none or cannot use it,
            or a part of the ranks would compute on the CPU.
    """
    with collective_errors(comm, ValueError, RuntimeError):
        device = device_for(wanted, gpus, _launched_local_rank(comm))
        if device.type == "cuda":
            torch.cuda.set_device(device)
    on_gpu = np.array([device.type == "cuda"], dtype=np.int64)
    comm.allreduce_(on_gpu)
    masked = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if wanted == "auto" and not on_gpu[0] and comm.rank == 0 and DRIVER.exists() and not masked:
        warning(f"run.device = 'auto' computes on the CPU, although this node has a GPU: {_why_none()}")
    if 0 < on_gpu[0] < comm.size:
        raise CollectiveError(
            f"run.device = {wanted!r} finds a GPU for {on_gpu[0]} of {comm.size} ranks: "
            "expected one on every node or on none (options: run.device = 'cpu', or nodes that are alike)"
        )
    return device


def _launched_local_rank(comm: SerialComm) -> int:
    """Return the number of this process on its node among all processes of the launcher.

    A communicator that a script has split off numbers its own ranks only: two such communicators would use
    the same GPU.
    """
    numbers = (os.environ.get(name, "") for name in _LOCAL_RANKS)
    return next((int(number) for number in numbers if number.isdigit()), comm.local_rank)


def device_for(wanted: str, gpus: Sequence[int] | None, local_rank: int) -> torch.device:
    """The device of the rank ``local_rank`` of a node: a GPU in turn, or the CPU.

    Args:
        wanted: "cpu", "cuda", or "auto" (CUDA where there is a GPU).
        gpus: GPU numbers for the local ranks 0, 1, ..., from the front again when they are used up; all GPUs
            in their order when omitted.

    Raises:
        ValueError: a GPU is asked for, and there is none or none of that number.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if not visible and (gpus or wanted == "cuda"):
        asked = f"run.gpus = {list(gpus)}" if gpus else f"run.device = {wanted!r}"
        raise ValueError(
            f"{asked} asks for a GPU, but this process sees none: {_why_none()} "
            "(options: run.device = auto, cpu)"
        )
    order = list(gpus or range(visible))
    missing = [gpu for gpu in order if gpu >= visible]
    if missing:
        raise ValueError(
            f"run.gpus = {order}: expected numbers from 0 to {visible - 1}, the GPUs that this process sees, "
            f"got {', '.join(map(str, missing))}"
        )
    return torch.device("cuda", order[local_rank % len(order)]) if visible else torch.device("cpu")


def _why_none() -> str:
    """What decides whether a GPU is seen: torch's build, the driver, the environment."""
    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA (install a CUDA build)"
    driver = "loaded" if DRIVER.exists() else "not loaded"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    mask = "not set" if visible is None else repr(visible)
    return (
        f"torch {torch.__version__} is built {build}, the NVIDIA driver is {driver}, "
        f"CUDA_VISIBLE_DEVICES is {mask}"
    )


def identity(device: torch.device) -> int:
    """A positive number that ranks on the same GPU share, whatever they call it; 0 for the CPU."""
    if device.type != "cuda":
        return 0
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return 1 + int.from_bytes(hashlib.sha256(uuid.encode()).digest()[:7], "big")


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what it has been given so far."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


@contextlib.contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """With ``on``, torch uses algorithms that give the same bits every time, in full precision, or refuses to
    go on.

    cuBLAS obeys only where it has not been used before in the process, or was told by
    ``CUBLAS_WORKSPACE_CONFIG``. NumPy's linear algebra gets one thread, since a problem's data and metrics
    would else depend on the cores of a rank. All settings are restored in the end.
    """
    if not on:
        yield
        return
    mode, precision = torch.get_deterministic_debug_mode(), torch.get_float32_matmul_precision()
    variables, cudnn = {name: os.environ.get(name) for name in _VARIABLES}, torch.backends.cudnn
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
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
        for name in [name for name, value in variables.items() if value is None]:
            os.environ.pop(name, None)


def _use_deterministic(mode: int) -> None:
    """Switch torch's debug mode, and its compiler where that is loaded.

    ``torch.use_deterministic_algorithms`` would load it only to tell it, which takes longer than a small run.
    """
    torch.set_deterministic_debug_mode(mode)
    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)


@functools.cache
def _products_depend_on_alignment() -> bool:
    """Whether this process computes products of matrices with other bits where operands begin elsewhere."""
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
    """Refuse ``run.reduction = "exact"`` where MKL was used before it could be set up for it.

    Without MKL nothing is refused: single clients are computed from operands that always begin at the same
    alignment, and clients are stepped together only if their numbers do not depend on their positions.

    Raises:
        ConfigError: products depend on the alignment of their operands.
    """
    if torch.backends.mkl.is_available() and _products_depend_on_alignment():
        raise ConfigError(
            "run.reduction = 'exact': the matrix products of this process depend on where their operands are "
            f"in memory. MKL reads MKL_CBWR, which is {os.environ.get('MKL_CBWR')!r}, once, at the first "
            "product: import mpifed before that, set MKL_CBWR=AUTO in the environment, or set run.reduction "
            "= 'fused', which does not promise the same bits"
        )


@functools.cache
def machine(device: torch.device) -> dict[str, str]:
    """What the bits of a kernel depend on that no setting says, by name: processor, GPU, libraries.

    Torch and NumPy choose kernels by the processor's instructions, and the libraries below them, for products
    of matrices, by its model.
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
    """The model of the processor, its architecture where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def expect_alike(comm: SerialComm, device: torch.device) -> None:
    """Warn where bits may depend on which rank has which client: the ranks' machines differ. Collective."""
    text = json.dumps(machine(device))
    least = np.frombuffer(hashlib.sha256(text.encode()).digest()[:7] + b"\0", np.int64).copy()
    most = least.copy()
    comm.allreduce_(least, "min")
    comm.allreduce_(most, "max")
    if least[0] == most[0]:
        return
    machines = [json.loads(broadcast_text(comm, text, rank)) for rank in range(comm.size)]
    other = next(rank for rank in range(comm.size) if machines[rank] != machines[0])
    if comm.rank == 0:
        warning(
            "run.reduction = 'exact' gives the same bits on machines that are alike, but "
            f"{differences(machines[0], machines[other], 'on rank 0', f'on rank {other}')}"
        )


def differences(one: dict[str, str], other: dict[str, str], here: str, there: str) -> str:
    """What two machines differ in, in words; "" where they do not."""
    return "; ".join(
        f"{name} is {one.get(name, 'none')} {here} and {other.get(name, 'none')} {there}"
        for name in {**one, **other}
        if one.get(name) != other.get(name)
    )


def usage(comm: SerialComm, device: torch.device) -> dict[str, np.ndarray]:
    """Each rank's GPU (-1: the CPU) and its process's peak memory in bytes, by rank. Collective.

    Of a GPU the most that torch has held counts; the CUDA context (some hundred MB a process) comes on top.
    """
    on_gpu = device.type == "cuda"
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    mine = [device.index if on_gpu else -1, host, torch.cuda.max_memory_reserved(device) if on_gpu else 0]
    rows = np.empty(3 * comm.size, dtype=np.int64)
    comm.allgatherv(np.array(mine, dtype=np.int64), rows, [3] * comm.size)
    return dict(zip(("gpu", "peak_host_bytes", "peak_gpu_bytes"), rows.reshape(-1, 3).T))


def keep_freed_memory() -> None:
    """Let the C library keep what is freed: else tensors of some 100 KB and more are given back to the system
    at every step, and the next ones fault their pages in again, a fifth of a step's time.

    glibc alone has this; elsewhere nothing happens. Whoever has set one of its variables in the environment
    has decided.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    with contextlib.suppress(OSError, AttributeError):  # another system, another C library
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for parameter, value in _MALLOC:
            mallopt(parameter, value)
