"""Compression of messages, which works with every method.

``[message] compression = { name = "top-k", ratio = 0.01 }`` selects it. A compression maps a vector of d
elements to one that takes fewer bytes. Each field of a message is compressed separately.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator

from mpifed.base.settings import Section, choice, hyperparameters

__all__ = ["COMPRESSIONS", "QSGD", "Compression", "Message", "TopK"]

#: Bytes of the index of an element.
INDEX_BYTES = 4


@hyperparameters
class TopK:
    """Keep the k = ratio · d entries of largest absolute value, in a tie the first, and set the others to 0.

    A contraction (Stich et al. 2018): ‖C(v) - v‖² ≤ (1 - k/d) ‖v‖².
    """

    ratio: float = Field(gt=0, le=1, description="fraction of a field's elements that is sent, at least one")

    random: ClassVar[bool] = False

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

    def __call__(self, values: torch.Tensor, draws: torch.Tensor, contract: bool) -> torch.Tensor:
        """Return the compressed rows of ``values`` ``[C, d]``; ``draws`` and ``contract`` are not used."""
        magnitudes, kept = values.abs(), self.kept(values.shape[-1])
        threshold = magnitudes.topk(kept, dim=-1, sorted=True).values[:, -1:]
        above, ties = magnitudes > threshold, magnitudes == threshold
        ties &= ties.cumsum(-1) <= kept - above.sum(-1, keepdim=True)
        return torch.where(above | ties, values, 0.0)


@hyperparameters
class QSGD:
    """QSGD (Alistarh et al. 2017): the norm, and each entry relative to it, randomly rounded to s levels.

    Unbiased, with variance at most ω ‖v‖², ω = min(d/s², √d/s). With error feedback the result is divided by
    1 + ω, which makes the map a contraction; otherwise the residuals could grow.
    """

    levels: int = Field(ge=1, le=2**30, description="levels s of an entry's absolute value, in addition to 0")

    random: ClassVar[bool] = True

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
        norms = _sums(values * values).sqrt()
        scaled = (values.abs() * (self.levels / norms)).clamp(max=self.levels)
        low = scaled.floor()
        levels = low + (draws < (scaled - low).double())
        size = values.shape[-1]
        omega = min(size / self.levels**2, math.sqrt(size) / self.levels) if contract else 0.0
        sent = values.sign() * levels * (norms / (self.levels * (1 + omega)))
        return torch.where(norms > 0, sent, 0.0)


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
COMPRESSIONS = {"top-k": TopK, "qsgd": QSGD}

#: A compression by name, table or instance.
Compression: Any = choice("compression", COMPRESSIONS)


class Message(Section):
    """[message]: compression of the clients' messages."""

    compression: Compression | None = Field(
        None, description='compression of each field of a message, e.g. { name = "top-k", ratio = 0.01 }'
    )
    error_feedback: bool = Field(
        False, description="each client adds the part that compression removed to its next message"
    )

    @model_validator(mode="after")
    def _compresses(self):
        if self.error_feedback and self.compression is None:
            raise ValueError(
                "error_feedback needs compression: set message.compression, or leave out error_feedback"
            )
        return self
