"""Compression of messages, an option of every method.

``[message] compression = { name = "top-k", ratio = 0.01 }`` selects it. A compression maps vectors of d
numbers to vectors that take fewer bytes. Each field of a message is compressed by itself.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator

from mpifed.base.settings import Section, choice, hyperparameters

__all__ = ["COMPRESSIONS", "QSGD", "Compression", "Message", "TopK"]

#: Bytes of the place of a number in a vector.
INDEX = 4


@hyperparameters
class TopK:
    """The k = ratio · d entries of largest absolute value, the others 0; of equal ones the first.

    A contraction (Stich et al. 2018): ‖C(v) - v‖² ≤ (1 - k/d) ‖v‖².
    """

    ratio: float = Field(
        gt=0, le=1, description="share of a field's numbers that is sent, at least one number"
    )

    random: ClassVar[bool] = False

    def kept(self, size: int) -> int:
        """k: how many of ``size`` numbers are sent."""
        return max(1, round(self.ratio * size))

    def whole(self, size: int) -> bool:
        """Whether a vector of ``size`` numbers is sent as it is."""
        return self.kept(size) == size

    def bytes(self, size: int, item: int) -> int:
        """Bytes of a compressed vector of ``size`` numbers of ``item`` bytes: values and their places of four
        bytes, or all values where that takes less.
        """
        return min(self.kept(size) * (item + INDEX), size * item)

    def __call__(self, values: torch.Tensor, draws: torch.Tensor, contract: bool) -> torch.Tensor:
        """The compressed rows of ``values`` ``[C, d]``; takes no draws."""
        sizes, kept = values.abs(), self.kept(values.shape[-1])
        least = sizes.topk(kept, dim=-1, sorted=True).values[:, -1:]
        above, ties = sizes > least, sizes == least
        ties &= ties.cumsum(-1) <= kept - above.sum(-1, keepdim=True)
        return torch.where(above | ties, values, 0.0)


@hyperparameters
class QSGD:
    """QSGD (Alistarh et al. 2017): the norm, and each entry's share of it rounded at random to s levels.

    Unbiased, with variance at most ω ‖v‖², ω = min(d/s², √d/s). With error feedback it is divided by 1 + ω,
    which makes it a contraction; error feedback around a map that is none lets the residuals grow.
    """

    levels: int = Field(ge=1, le=2**30, description="levels s of an entry's absolute value, in addition to 0")

    random: ClassVar[bool] = True

    def whole(self, size: int) -> bool:
        """As of :class:`TopK`: one number is its norm and sign."""
        return size == 1

    def bytes(self, size: int, item: int) -> int:
        """As of :class:`TopK`: a norm, and of each entry the sign and the level, in bits of fixed number."""
        return item if self.whole(size) else item + -(-size * (1 + self.levels.bit_length()) // 8)

    def __call__(self, values: torch.Tensor, draws: torch.Tensor, contract: bool) -> torch.Tensor:
        """The compressed rows of ``values`` ``[C, d]``.

        Args:
            draws: uniform in (0, 1), float64 ``[C, d]``.
            contract: divide by 1 + ω.
        """
        norms = _sums(values * values).sqrt()
        shares = (values.abs() * (self.levels / norms)).clamp(max=self.levels)
        low = shares.floor()
        levels = low + (draws < (shares - low).double())
        size = values.shape[-1]
        omega = min(size / self.levels**2, math.sqrt(size) / self.levels) if contract else 0.0
        sent = values.sign() * levels * (norms / (self.levels * (1 + omega)))
        return torch.where(norms > 0, sent, 0.0)


def _sums(rows: torch.Tensor) -> torch.Tensor:
    """The sum of each row, ``[C, 1]``, by halves: bitwise identical for a row alone and among others, on
    every device and with any number of threads."""
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
        False, description="each client adds the part that compression has removed to its next message"
    )

    @model_validator(mode="after")
    def _compresses(self):
        if self.error_feedback and self.compression is None:
            raise ValueError(
                "error_feedback is about what compression leaves out: set compression, or leave it out"
            )
        return self
