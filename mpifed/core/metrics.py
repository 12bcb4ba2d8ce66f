"""Names of metrics by split of the data, and further results of an evaluation.

Metrics of the test split have the names that the problem gives them. The names of all other splits begin with
the split, such as ``validation_auc``.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

__all__ = [
    "CLIENTS",
    "PERSONAL",
    "QUANTILES",
    "VALIDATION",
    "Details",
    "group_metric_name",
    "split_metric_name",
]

#: The split by which hyperparameters are selected.
VALIDATION = "validation"
#: Prefixes of metrics on the clients' samples: of the averaged point, and of each client's fine-tuned point.
CLIENTS, PERSONAL = "client", "personal"
#: Percentiles over the clients that are reported.
QUANTILES = (10, 50, 90)
#: Maximum number of characters of a group's name in the name of a metric.
_LONGEST = 60


def split_metric_name(split: str, metric: str) -> str:
    """Return the name of a metric on a split other than the test split."""
    return f"{split}_{metric}"


def group_metric_name(metric: str, group: str) -> str:
    """Return the name of a metric of a group, which differs for different groups.

    Names of metrics are paths in results files. Hence "/", "%", unprintable characters and blanks at the ends
    of the group's name are percent-encoded, and a long name is cut and completed by its digest.
    """
    ends = (0, len(group) - 1)
    encoded = "".join(
        quote(character, safe="", errors="surrogatepass")
        if character in "/%" or not character.isprintable() or (character == " " and place in ends)
        else character
        for place, character in enumerate(group)
    )
    if len(encoded) > _LONGEST:
        digest = hashlib.sha256(group.encode(errors="surrogatepass")).hexdigest()
        encoded = f"{encoded[:_LONGEST]}~{digest[:8]}"
    return f"{metric}_{encoded}"


class Details(NamedTuple):
    """Results of an evaluation at one point, in addition to its metrics.

    Attributes:
        confusion: number of test samples by true class (rows) and predicted class, ``[K, K]``; ``None`` if
            the scores do not determine a class.
        classes: names of the classes.
        clients: every metric on each client's samples, ``[N]``; empty if it is not evaluated. Names of
            metrics of fine-tuned points begin with :data:`PERSONAL`.
    """

    confusion: np.ndarray | None = None
    classes: list[str] = []
    clients: dict[str, np.ndarray] = {}

    def joined(self, other: Details) -> Details:
        """Return the results of two evaluations, of which at most one has a confusion matrix."""
        confusion = other.confusion if self.confusion is None else self.confusion
        return Details(confusion, self.classes or other.classes, self.clients | other.clients)
