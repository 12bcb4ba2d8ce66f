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

__all__ = ["DeviceStream", "as_tensor", "philox", "to_device"]

#: Maximum size in bytes of copies through pinned memory, which torch does not return to the system.
PINNED = 2**24
_LOW = 0xFFFFFFFF


def as_tensor(values: Any) -> torch.Tensor:
    """Return values as a tensor; arrays of a byte order or strides that torch does not have are copied."""
    if isinstance(values, np.ndarray):
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


def philox(counter: tuple, key: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    """Return the output of Philox4x32-10, as ``streams.philox``, as int64 tensors.

    Products wrap around at 64 bits, which keeps all bits.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((p1 >> 32) & _LOW) ^ c1 ^ k0, p1 & _LOW, ((p0 >> 32) & _LOW) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c0, c1, c2, c3


class DeviceStream(Stream):
    """The random numbers of a stream as tensors on a device.

    Args:
        stream: a stream from which no numbers have been drawn.
    """

    math = torch

    def __init__(self, stream: Stream, device: torch.device):
        self.__dict__.update(vars(stream))
        self._device = device
        self._addresses = [
            to_device(np.broadcast_to(value, self.clients.shape).astype(np.int64), device)[:, None, None]
            for value in (stream.round, stream.clients)
        ]

    def words(self, number: int) -> torch.Tensor:  # type: ignore[override]
        lanes = -(-number // 4)
        lane = torch.arange(self._lane, self._lane + lanes, device=self._device)[None, None, :]
        index = torch.arange(self.first, self.first + self.count, device=self._device)[None, :, None]
        self._lane += lanes
        words = torch.broadcast_tensors(*philox((lane, index, *self._addresses), self._key))
        return torch.stack(words, dim=-1).reshape(len(self.clients), self.count, 4 * lanes)[..., :number]

    def integers(self, high, number: int) -> torch.Tensor:  # type: ignore[override]
        limits = np.broadcast_to(high, self.clients.shape).astype(np.int64)
        return (self.words(number) * to_device(limits, self._device)[:, None, None]) >> 32

    def uniform(self, *shape: int) -> torch.Tensor:  # type: ignore[override]
        words = self.words(2 * int(np.prod(shape, dtype=np.int64)))
        bits = words[..., 0::2] << 20 | words[..., 1::2] >> 12
        return ((bits.double() + 0.5) * 2.0**-52).reshape(len(self.clients), self.count, *shape)

    def normal(self, *shape: int) -> torch.Tensor:  # type: ignore[override]
        return torch.special.ndtri(self.uniform(*shape))

    def permutation(self, n: int) -> torch.Tensor:  # type: ignore[override]
        return torch.argsort(self.uniform(n), dim=-1, stable=True)
