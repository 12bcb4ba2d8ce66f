"""Copies to a GPU, and random numbers on it, that do not make the host wait for the GPU.

A copy from pageable memory waits until the GPU has done all earlier work; a copy from pinned memory is
queued. Large random vectors are drawn on the GPU from the same addresses as on the CPU: words, integers and
uniform numbers are bitwise identical on both, normal numbers differ in the last digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mpifed.core.streams import Stream

__all__ = ["DeviceStream", "as_tensor", "to_device", "to_device_as"]

#: Maximum size in bytes of copies through pinned memory, which torch does not return to the system.
PINNED = 2**24


def as_tensor(values: Any) -> torch.Tensor:
    """Return values as a tensor; arrays of a byte order or strides that torch does not have are copied.

    Unsigned integers of 16 to 64 bits, with which torch does not calculate, become int64.
    """
    if isinstance(values, np.ndarray):
        if values.dtype.kind == "u" and values.dtype.itemsize > 1:
            values = values.astype(np.int64)
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        values = values.copy() if min(values.strides, default=0) < 0 else values
    return torch.as_tensor(values)


def to_device(
    values: torch.Tensor | np.ndarray, device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return ``values`` on a device, by default with the same dtype."""
    tensor = as_tensor(values)
    if torch.device(device).type != "cuda" or tensor.is_cuda or tensor.nbytes > PINNED:
        return tensor.to(device, dtype)
    # torch keeps the pinned copy until the GPU has read it.
    return tensor.to(dtype or tensor.dtype).pin_memory().to(device, non_blocking=True)


def to_device_as(values: torch.Tensor | np.ndarray, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return values on the device, floating-point numbers with the dtype."""
    tensor = as_tensor(values)
    return to_device(tensor, device, dtype if tensor.is_floating_point() else None)


class DeviceStream(Stream):
    """The random numbers of a stream as tensors on a device.

    Args:
        stream: a stream from which no numbers have been drawn.
    """

    math = torch

    def __init__(self, stream: Stream, device: torch.device):
        self.__dict__.update(vars(stream))
        self._device = device

    def _range(self, start: int, stop: int) -> torch.Tensor:
        return torch.arange(start, stop, device=self._device)

    def _per_client(self, values) -> torch.Tensor:
        return to_device(np.array(values, dtype=np.int64).reshape(-1, 1, 1), self._device)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.special.ndtri(self.uniform(*shape))
