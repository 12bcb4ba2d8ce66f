"""Names of metrics by split, and the details of an evaluation in addition to its metrics.

Metrics of the test split have the names that the problem gives them. The names of all other splits begin with
the split: ``validation_auc``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = [
    "VALIDATION",
    "of_split",
    "QUANTILES",
    "Details",
]


#: The split that selects settings.
VALIDATION = "validation"


def of_split(split: str, metric: str) -> str:
    """The name of a metric of a split."""
    return f"{split}_{metric}"


#: The percentiles over the clients that are reported.
QUANTILES = (10, 50, 90)


class Details(NamedTuple):
    """Details of the evaluation at one point.

    Attributes:
        confusion: number of test samples by true (rows) and predicted class, ``[K, K]``; ``None`` if the
            scores do not determine a class.
        classes: the names of the classes.
        clients: every metric on each client's samples, ``[N]``; empty if it is not evaluated.
    """

    confusion: np.ndarray | None = None
    classes: list[str] = []
    clients: dict[str, np.ndarray] = {}
