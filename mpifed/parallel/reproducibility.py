"""Reproducible results on one machine, and the machine properties that affect results."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from mpifed.base.errors import ConfigError
from mpifed.base.log import warning
from mpifed.parallel.comm import SerialComm, texts_of_ranks

__all__ = [
    "deterministic", "differences", "expect_reproducible_products", "float32_precision", "machine",
    "warn_if_machines_differ",
]  # fmt: skip

#: cuBLAS is deterministic only with a workspace of fixed size; it reads its variable with the first handle.
#: torch's compiler otherwise chooses kernels by their speed; it reads its variable when it is imported.
_VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TORCHINDUCTOR_DETERMINISTIC": "1"}


@contextlib.contextmanager
def float32_precision(precision: str) -> Iterator[None]:
    """Compute float32 products and convolutions in full precision ("highest"), or with TF32 on GPUs ("high").

    The settings are restored at the end.
    """
    before, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    torch.set_float32_matmul_precision(precision)
    flags = dict(enabled=cudnn.enabled, benchmark=cudnn.benchmark, deterministic=cudnn.deterministic)
    try:
        with cudnn.flags(**flags, allow_tf32=precision != "highest"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


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
    first, *others = map(json.loads, texts_of_ranks(comm, json.dumps(machine(device))))
    for rank, other in enumerate(others, 1):
        if comm.rank == 0 and other != first:
            warning(
                "run.reduction = 'exact' is reproducible only on machines of the same type, but "
                f"{differences(first, other, 'on rank 0', f'on rank {rank}')}"
            )
            return


def differences(first: dict[str, str], other: dict[str, str], here: str, there: str) -> str:
    """Describe how two machines differ; "" if they do not."""
    return "; ".join(
        f"{name} is {first.get(name, 'none')} {here} and {other.get(name, 'none')} {there}"
        for name in {**first, **other}
        if first.get(name) != other.get(name)
    )
