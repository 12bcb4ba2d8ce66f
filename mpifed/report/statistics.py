"""Statistics of a setting over its seeds: of one value per run, along a curve, and for ranking and tests.

Where some seeds end in non-finite values there is no mean over all of them, and a mean over the others alone
would hide them: the median of the finite ones is reported, with their count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from mpifed.core.evaluation import VALIDATION, of_split
from mpifed.storage.results import RunData

__all__ = [
    "Curve",
    "Finite",
    "Spread",
    "QUANTILES",
    "best_value",
    "final",
    "holm",
    "paired_test",
    "ranking_key",
    "validation_metric",
]

#: The ends of a band on a logarithmic axis.
QUANTILES = 0.1, 0.9


class Finite(NamedTuple):
    """The runs with a finite value where others have none: ``count`` of ``runs``, with their median, least
    and largest value, NaN where ``count`` is 0."""

    count: int
    runs: int
    median: float
    least: float
    largest: float

    @classmethod
    def of(cls, values: np.ndarray) -> Finite:
        """Of one value per run."""
        known = values[np.isfinite(values)]
        figures = (np.median(known), known.min(), known.max()) if len(known) else (np.nan,) * 3
        return cls(len(known), len(values), *map(float, figures))

    def describe(self, spelled: Callable[[float], str]) -> str:
        """In words: ``median 0.3 (0.1 to 0.4), 4 of 5 finite``."""
        count = f"{self.count} of {self.runs} finite"
        if self.count < 2:
            return f"{spelled(self.median)}, {count}" if self.count else count
        return f"median {spelled(self.median)} ({spelled(self.least)} to {spelled(self.largest)}), {count}"


class Spread(NamedTuple):
    """Mean and sample standard deviation (n - 1) over runs; the deviation of a single run is NaN. Where a run
    has no finite value both are NaN, and ``finite`` describes the others."""

    mean: float
    deviation: float
    finite: Finite | None = None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of one value per run."""
        values = np.array([*values], dtype=float)
        if not np.isfinite(values).all():
            return cls(np.nan, np.nan, Finite.of(values))
        if not len(values):
            return cls(np.nan, np.nan)
        return cls(values.mean().item(), values.std(ddof=1).item() if len(values) > 1 else np.nan)

    def describe(self, mean: str = "{:.4g}", deviation: str = "{:.2g}") -> str:
        """In words, with these formats: ``0.3 ± 0.01``, or as :meth:`Finite.describe`; "-" for no value."""
        if self.finite:
            return self.finite.describe(mean.format)
        around = f" ± {deviation.format(self.deviation)}" if np.isfinite(self.deviation) else ""
        return mean.format(self.mean) + around if np.isfinite(self.mean) else "-"


class Curve(NamedTuple):
    """A metric against the rounds, ``[E]`` each: mean and deviation, median and :data:`QUANTILES`. Deviation
    and quantiles are NaN for a single run."""

    rounds: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, runs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Curve:
        """Over runs, given by the rounds and values of each, at all rounds that one of them has.

        Between its own rounds a run is interpolated linearly. The curve ends where the first run ends, and
        has a gap (NaN) where a run's value is not finite, so that every point is over the same runs.
        """
        runs = [*runs]
        rounds = np.unique(np.concatenate([taken for taken, _ in runs]))
        rounds = rounds[rounds <= min(taken.max() for taken, _ in runs)]
        with np.errstate(all="ignore"):  # of values that diverge
            values = pd.DataFrame([np.interp(rounds, *run) for run in runs])
            values = values.where(np.isfinite(values))
            low, median, high = np.quantile(values, [QUANTILES[0], 0.5, QUANTILES[1]], axis=0)
            deviation = values.std(skipna=False).to_numpy()
        if len(runs) == 1:
            low = high = deviation
        return cls(rounds, values.mean(skipna=False).to_numpy(), deviation, median, low, high)

    def line(self, quantiles: bool) -> np.ndarray:
        """The line that is drawn: the mean, or the median in a band of quantiles."""
        return self.median if quantiles else self.mean

    def band(self, quantiles: bool) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the band: one deviation to either side of the mean, or the quantiles."""
        if quantiles:
            return self.low, self.high
        return self.mean - self.deviation, self.mean + self.deviation

    def thinned(self, points: int | None) -> Curve:
        """At most ``points`` of the curve's points, evenly spaced, including the first and the last."""
        if points is None or len(self.rounds) <= points:
            return self
        kept = np.unique(np.linspace(0, len(self.rounds) - 1, points).round().astype(int))
        return Curve(*(column[kept] for column in self))


def validation_metric(metric: str, known: Collection[str]) -> str:
    """The metric on the validation split if it is known, else the metric."""
    validated = of_split(VALIDATION, metric)
    return validated if validated in known else metric


def final(run: RunData, metric: str) -> float:
    """The last value of a metric, NaN where there is none."""
    return [np.nan, *run.metrics[metric].tolist()][-1]


def best_value(run: RunData, metric: str) -> float:
    """A metric at the run's best evaluation, NaN where there is none.

    The best evaluation has the smallest finite value of the metric, or the largest if it is to be maximised,
    on the validation split where there is one.
    """
    judged = validation_metric(metric, run.metrics)
    values = run.metrics[judged] * (1 if judged in run.maximised else -1)
    values = np.where(np.isfinite(values), values, -np.inf)
    return run.metrics[metric][np.argmax(values)].item() if np.isfinite(values).any() else np.nan


def ranking_key(figures: Iterable[float], maximised: bool) -> tuple[int, float]:
    """The rank of a setting by one value per run, less is better: the number of non-finite values, then the
    mean, or the median of the others where some are not finite, negated if ``maximised``; infinite where
    there is none."""
    values = np.array([*figures], dtype=float)
    known = values[np.isfinite(values)]
    lost = len(values) - len(known)
    if not len(known):
        return lost, np.inf
    with np.errstate(all="ignore"):  # of values that diverge
        middle = float(np.median(known) if lost else known.mean()) * (-1 if maximised else 1)
    return lost, middle if np.isfinite(middle) else np.inf


def paired_test(differences: pd.Series) -> float:
    """The p-value of a two-sided t-test of paired differences; NaN for fewer than two, or where all are equal
    but for rounding."""
    if np.allclose(differences, differences.mean(), rtol=1e-9, atol=0):
        return np.nan
    from scipy import stats  # takes a second to import

    return stats.ttest_1samp(differences, 0).pvalue.item()


def holm(p: pd.Series) -> pd.Series:
    """P-values corrected for their number, NaN left out (Holm 1979)."""
    tests = p.dropna().sort_values()
    return (tests * np.arange(len(tests), 0, -1)).cummax().clip(upper=1).reindex(p.index)
