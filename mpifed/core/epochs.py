"""Epochs: passes of a client through its rows in minibatches, and numbers of local steps in epochs.

An epoch of a client with n rows has ⌈n/b⌉ minibatches of b rows, of which the last may be short, or with
``drop_last`` ⌊n/b⌋ ones. A client with fewer than b rows has one minibatch with all its rows.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from mpifed.base.errors import short_repr
from mpifed.base.settings import Section

__all__ = ["Epochs", "LocalSteps", "batches_per_epoch", "shortest_batch"]


class Epochs(Section):
    """A number of local steps in epochs: a client takes as many steps as they have minibatches."""

    epochs: int = Field(ge=1, description="local epochs per round")


def _local_steps(value):
    count = value.get("epochs") if isinstance(value, dict) and [*value] == ["epochs"] else value
    is_integer = isinstance(count, int | np.integer) and not isinstance(count, bool) and count >= 1
    if not (is_integer or isinstance(value, Epochs)):
        raise ValueError(
            "expected an integer >= 1, the number of local steps, or a table such as { epochs = 5 }, got "
            f"{short_repr(value)}"
        )
    return value


#: A number of local steps per round: the same for all clients, or in epochs.
LocalSteps: Any = Annotated[
    Annotated[int, Field(ge=1)] | Epochs,
    BeforeValidator(_local_steps),
    Field(title="whole number or { epochs = E }"),
]


def batches_per_epoch(rows: np.ndarray, size: int, drop_last: bool) -> np.ndarray:
    """Return the number of minibatches of an epoch, ``[C]``.

    Args:
        rows: number of rows of each client, ``[C]``.
        size: rows per minibatch; 0 for all rows.
        drop_last: whether the last minibatch is left out if it is short, unless it is the only one.
    """
    if not size:
        return np.ones_like(rows)
    return np.maximum(1, rows // size if drop_last else -(-rows // size))


def shortest_batch(rows: np.ndarray, size: int, drop_last: bool) -> np.ndarray:
    """Return the number of rows of the shortest minibatch of an epoch, ``[C]``, for the same arguments."""
    return np.minimum(size, rows - (batches_per_epoch(rows, size, drop_last) - 1) * size)
