"""Compression of messages, which works with every method.

``[message] compression = { name = "top-k", ratio = 0.01 }`` selects it. A compression maps a vector of d
elements to one that takes fewer bytes. Each field of a message is compressed separately.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from pydantic import Field

from mpifed.base.settings import Needs, Section, choice, hyperparameters
from mpifed.core.device import DeviceStream
from mpifed.core.numerics import scaled_norm
from mpifed.core.streams import Stream

__all__ = ["COMPRESSIONS", "QSGD", "Compression", "Message", "RandK", "TopK", "compress"]

#: Bytes of the index of an element.
INDEX_BYTES = 4
#: Number of columns for which one call draws random numbers; even, because a lane of the generator gives two.
#: On a GPU, fewer calls mean fewer kernel launches.
COLUMNS = {"cpu": 2**12, "cuda": 2**20}


@hyperparameters
class _Sparse:
    """Base class of compressions that keep k = ratio · d entries and set the others to 0."""

    ratio: float = Field(gt=0, le=1, description="fraction of a field's elements that is sent, at least one")

    def kept(self, size: int) -> int:
        """Return k for vectors of ``size`` elements."""
        return max(1, round(self.ratio * size))

    def is_lossless(self, size: int) -> bool:
        """Return whether a vector of ``size`` elements is sent uncompressed."""
        return self.kept(size) == size

    def bytes(self, size: int, item: int) -> int:
        """Return the bytes of a compressed vector of ``size`` elements of ``item`` bytes.

        It consists of values and 4-byte indices, or of all values if that takes less.
        """
        return min(self.kept(size) * (item + INDEX_BYTES), size * item)


@hyperparameters
class TopK(_Sparse):
    """Keep the k = ratio · d entries of largest absolute value, and set the others to 0. Of equal entries,
    the first are kept.

    A contraction (Stich et al. 2018): ‖C(v) - v‖² ≤ (1 - k/d) ‖v‖².
    """

    random: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def __call__(self, values: torch.Tensor, draws: torch.Tensor, contract: bool) -> torch.Tensor:
        """Return the compressed rows of ``values`` ``[C, d]``; ``draws`` and ``contract`` are not used."""
        return torch.where(_largest(values.abs(), self.kept(values.shape[-1])), values, 0.0)


@hyperparameters
class RandK(_Sparse):
    """Keep k = ratio · d entries, sampled uniformly without replacement, times d/k, and set the others to 0.

    Unbiased, with variance (d/k - 1) ‖v‖². With error feedback the entries are not multiplied by d/k, which
    makes the map a contraction (Stich et al. 2018): E‖C(v) - v‖² = (1 - k/d) ‖v‖².
    """

    random: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def __call__(self, values: torch.Tensor, draws: torch.Tensor, contract: bool) -> torch.Tensor:
        """Return the compressed rows of ``values`` ``[C, d]``.

        Args:
            draws: random numbers uniform in (0, 1), float64 ``[C, d]``; the entries of the largest are kept.
            contract: whether to omit the factor d/k.
        """
        size = values.shape[-1]
        kept = self.kept(size)
        return torch.where(_largest(draws, kept), values if contract else values * (size / kept), 0.0)


@hyperparameters
class QSGD:
    """QSGD (Alistarh et al. 2017): the norm, and each entry relative to it, randomly rounded to s levels.

    Unbiased, with variance at most ω ‖v‖², ω = min(d/s², √d/s). With error feedback the result is divided by
    1 + ω, which makes the map a contraction; otherwise the residuals could grow.
    """

    levels: int = Field(ge=1, le=2**30, description="levels s of an entry's absolute value, in addition to 0")

    random: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def is_lossless(self, size: int) -> bool:
        """Return whether a vector of ``size`` elements is sent uncompressed: if it has one element."""
        return size == 1

    def bytes(self, size: int, item: int) -> int:
        """Return the bytes of a norm, and of sign and level of each entry with a fixed number of bits."""
        return item if self.is_lossless(size) else item + -(-size * (1 + self.levels.bit_length()) // 8)

    def __call__(self, values: torch.Tensor, draws: torch.Tensor, contract: bool) -> torch.Tensor:
        """Return the compressed rows of ``values`` ``[C, d]``.

        Args:
            draws: random numbers uniform in (0, 1), float64 ``[C, d]``.
            contract: whether to divide by 1 + ω.
        """
        values, _, scale = scaled_norm(values)
        norms = _sums(values * values).sqrt()
        scaled = (values.abs() * (self.levels / norms)).clamp(max=self.levels)
        low = scaled.floor()
        levels = low + (draws < (scaled - low).double())
        size = values.shape[-1]
        omega = min(size / self.levels**2, math.sqrt(size) / self.levels) if contract else 0.0
        sent = values.sign() * levels * (norms / (self.levels * (1 + omega))) / scale
        return torch.where(norms == 0, 0.0, sent)


def _largest(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return a mask ``[C, d]`` of the ``count`` largest entries of each row; of equal entries, the first.

    NaN is in the mask, so that compression does not hide it.
    """
    threshold = rows.topk(count, dim=-1, sorted=True).values[:, -1:]
    above, ties = ~(rows <= threshold), rows == threshold
    ties &= ties.cumsum(-1) <= count - above.sum(-1, keepdim=True)
    return above | ties


def _sums(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row, ``[C, 1]``, by repeated halving.

    The bits do not depend on the other rows, the device or the number of threads.
    """
    while (size := rows.shape[-1]) > 1:
        half = (size + 1) // 2
        left = rows[:, :half].clone()
        left[:, : size - half] += rows[:, half:]
        rows = left
    return rows


#: Name in a job file → compression.
COMPRESSIONS = {"top-k": TopK, "rand-k": RandK, "qsgd": QSGD}

#: A compression by name, table or instance.
Compression: Any = choice("compression", COMPRESSIONS)


def compress(compression, values: torch.Tensor, stream: Stream, contract: bool = False) -> torch.Tensor:
    """Return what the receiver reconstructs from compressed vectors.

    Args:
        compression: a compression; ``None`` returns ``values``.
        values: the vectors of the clients of ``stream``, ``[C, d]``, or the vector of the server, ``[d]``.
        stream: random numbers. In a method, it is ``now.stream(purpose, oracle.client)`` for clients and
            ``now.stream(purpose)`` for the server.
        contract: whether the compression must be a contraction, as error feedback requires.
    """
    size = values.shape[-1]
    if compression is None or size == 0 or compression.is_lossless(size):  # 0: y of a problem without y
        return values
    draws = torch.empty(0)
    if compression.random:
        on_device = values.is_cuda and not isinstance(stream, DeviceStream)
        draws = _uniform(DeviceStream(stream, values.device) if on_device else stream, size, values.device)
    return compression(values.reshape(-1, size), draws, contract).reshape(values.shape)


def _uniform(stream: Stream, size: int, device: torch.device) -> torch.Tensor:
    """Return uniform numbers for a field, float64 ``[C, size]``, drawn for some columns at a time to bound
    the memory."""
    draws = torch.empty(len(stream.clients), size, dtype=torch.float64, device=device)
    for start in range(0, size, COLUMNS[device.type]):
        stop = min(start + COLUMNS[device.type], size)
        draws[:, start:stop] = torch.as_tensor(stream.uniform(stop - start)[:, 0])
    return draws


class Message(Section):
    """[message]: compression of the clients' messages."""

    compression: Compression | None = Field(
        None, description='compression of each field of a message, e.g. { name = "top-k", ratio = 0.01 }'
    )
    error_feedback: bool = Field(
        False, description="each client adds the part that compression removed to its next message"
    )

    needs: ClassVar[Needs] = {
        "error_feedback": ("compression", lambda message: message.compression is not None)
    }
