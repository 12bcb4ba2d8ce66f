"""What an evaluation finds beside its metrics."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["QUANTILES", "Details"]

#: Per cent of the clients below a figure that is told.
QUANTILES = (10, 50, 90)


class Details(NamedTuple):
    """Of one point.

    Attributes:
        confusion: test samples by class (rows) and by the class that they are taken for ``[K, K]``, ``None``
            where scores tell no class.
        classes: the names of the classes.
        clients: every metric on each client's samples, ``[N]``; empty where it is not asked for.
    """

    confusion: np.ndarray | None = None
    classes: list[str] = []
    clients: dict[str, np.ndarray] = {}
