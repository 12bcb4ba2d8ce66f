"""What the columns of a run's history contain, names of metrics, and further results of an evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

__all__ = [
    "CLIENTS",
    "PERSONAL",
    "QUANTILES",
    "VALIDATION",
    "Column",
    "Details",
    "group_metric_name",
    "validation_column",
]

#: The split by which hyperparameters are selected.
VALIDATION = "validation"
#: The samples of each client: evaluated at the averaged point, and at the client's fine-tuned point.
CLIENTS, PERSONAL = "client", "personal"
#: Percentiles over the clients that are reported.
QUANTILES = (10, 50, 90)
#: Maximum number of characters of a group's name in the name of a metric.
_LONGEST = 60


class Column(NamedTuple):
    """What a column of the history contains.

    Attributes:
        metric: the name that the problem or the user gives to the metric.
        split: "test", "train", :data:`VALIDATION`, :data:`CLIENTS` or :data:`PERSONAL`; "" for a measure
            without held-out samples that is evaluated once.
        statistic: over the clients: "mean", "q10", ..., "worst"; "" for other splits.
        maximised: whether the metric is to be maximised.
    """

    metric: str
    split: str = ""
    statistic: str = ""
    maximised: bool = False

    @property
    def name(self) -> str:
        """The name of the column, such as ``auc``, ``validation_auc`` or ``client_auc_q10``."""
        split = "" if self.split == "test" else self.split
        return "_".join(filter(None, (split, self.metric, self.statistic)))

    @property
    def of_clients(self) -> str:
        """The name of the metric in the table of the clients."""
        return self.metric if self.split == CLIENTS else f"{self.split}_{self.metric}"


def validation_column(name: str, columns: Mapping[str, Column]) -> str | None:
    """Return the name of the column with a metric's values on the validation split, ``None`` without one."""
    wanted = (name, VALIDATION)
    return next((other for other, column in columns.items() if column[:2] == wanted), None)


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
        clients: every metric on each client's samples, ``[N]``, by :attr:`Column.of_clients`; empty if it is
            not evaluated.
    """

    confusion: np.ndarray | None = None
    classes: list[str] = []
    clients: dict[str, np.ndarray] = {}

    def joined(self, other: Details) -> Details:
        """Return the results of two evaluations, of which at most one has a confusion matrix."""
        confusion = other.confusion if self.confusion is None else self.confusion
        return Details(confusion, self.classes or other.classes, self.clients | other.clients)
