"""Metrics of how well scores rank positive above negative samples: partial areas under the ROC curve, and
average precision.

The scores of two classes rank by the probability of class 1. With more classes, each class is compared with
all others by its probability, the softmax of the scores in double precision, and the value is the mean over
the classes. The value is NaN for scores that are not finite, and without positive or negative samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import hyperparameters

__all__ = ["METRICS", "AveragePrecision", "PartialAUC", "RankingMetric", "TwoWayPartialAUC"]


class RankingMetric(ABC):
    """A metric to maximise of ``(scores, labels)``, with the attributes of a user-defined metric."""

    of_scores = True

    @property
    @abstractmethod
    def title(self) -> str:
        """Name under which the value is recorded."""

    @property
    def maximised(self) -> list[str]:
        """Names of the metrics to maximise."""
        return [self.title]

    def given(self, scores: torch.Tensor, labels: torch.Tensor) -> float:
        """Compute the metric.

        Args:
            scores: ``[n]``, larger for class 1, or ``[n, classes]``.
            labels: ``[n]``, int64.
        """
        if not torch.isfinite(scores).all():
            return float("nan")
        if scores.dim() == 1:
            columns = {1: scores}
        elif scores.shape[1] == 2:
            columns = {1: scores[:, 1] - scores[:, 0]}
        else:
            columns = dict(enumerate(scores.double().softmax(dim=1).T))
        values = [
            self._value(*_counts(column.numpy(), labels.numpy() == label))
            for label, column in columns.items()
            if (labels == label).any() and (labels != label).any()
        ]
        return float(np.mean(values)) if values else float("nan")

    @abstractmethod
    def _value(self, positive: np.ndarray, negative: np.ndarray) -> float:
        """Compute the value from the numbers of positive and negative samples above each threshold, whose
        first is 0 and whose last is the number of samples."""


def _counts(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of positive and negative samples with scores of at least each distinct score."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    above = np.cumsum(positive[order])[ends]
    return np.append(0, above), np.append(0, ends + 1 - above)


def _area(positive: np.ndarray, negative: np.ndarray, max_fpr: float, min_tpr: float = 0.0) -> float:
    """Return the area between the ROC curve and ``min_tpr`` at false positive rates up to ``max_fpr``."""
    fpr, tpr = negative / negative[-1], positive / positive[-1]
    along = fpr + tpr  # strictly increasing
    start, end = np.interp(min_tpr, tpr, along), np.interp(max_fpr, fpr, along)
    knots = np.concatenate([[start], along[(start < along) & (along < end)], [max(start, end)]])
    return float(np.trapezoid(np.interp(knots, along, tpr) - min_tpr, np.interp(knots, along, fpr)))


@hyperparameters
class PartialAUC(RankingMetric):
    """One-way partial AUC: the area under the ROC curve at false positive rates up to ``max_fpr``,
    standardised so that 0.5 is chance and 1 is perfect (McClish 1989), as in scikit-learn's
    ``roc_auc_score(max_fpr=...)``."""

    max_fpr: float = Field(gt=0, le=1, description="largest false positive rate; 1 is the AUC")

    @property
    def title(self) -> str:
        return f"partial_auc_{self.max_fpr:g}"

    def _value(self, positive: np.ndarray, negative: np.ndarray) -> float:
        least = self.max_fpr**2 / 2
        return (1 + (_area(positive, negative, self.max_fpr) - least) / (self.max_fpr - least)) / 2


@hyperparameters
class TwoWayPartialAUC(RankingMetric):
    """Two-way partial AUC: the fraction of the region of true positive rates from ``min_tpr`` and false
    positive rates up to ``max_fpr`` that is below the ROC curve, i.e. the AUC of the hardest samples (Yang et
    al. 2021)."""

    max_fpr: float = Field(gt=0, le=1, description="largest false positive rate")
    min_tpr: float = Field(ge=0, lt=1, description="smallest true positive rate")

    @property
    def title(self) -> str:
        return f"two_way_partial_auc_{self.max_fpr:g}_{self.min_tpr:g}"

    def _value(self, positive: np.ndarray, negative: np.ndarray) -> float:
        region = self.max_fpr * (1 - self.min_tpr)
        return _area(positive, negative, self.max_fpr, self.min_tpr) / region


@hyperparameters
class AveragePrecision(RankingMetric):
    """Average precision: the precision at each threshold, weighted by the increase in recall, as in
    scikit-learn's ``average_precision_score``."""

    title = "average_precision"

    def _value(self, positive: np.ndarray, negative: np.ndarray) -> float:
        precision = positive[1:] / (positive[1:] + negative[1:])
        return float((np.diff(positive) * precision).sum() / positive[-1])


#: Metrics by name.
METRICS = {
    "partial_auc": PartialAUC,
    "two_way_partial_auc": TwoWayPartialAUC,
    "average_precision": AveragePrecision,
}
