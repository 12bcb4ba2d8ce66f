"""Statistics over the seeds of a setting: of one value per run, along a curve, for ranking and for tests.

Where some seeds end in non-finite values, the mean over all seeds does not exist, and a mean over the others
would hide the divergence. Instead, the median of the finite values is reported, with their count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpifed.storage.results import RunData

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Curve", "FiniteSummary", "MeanStd", "QUANTILES", "best_value", "final_value", "holm", "paired_test",
    "ranking_key",
]  # fmt: skip

#: The ends of a band on a logarithmic axis.
QUANTILES = 0.1, 0.9


class FiniteSummary(NamedTuple):
    """Median, minimum and maximum of the finite values of some runs; NaN if there are none.

    ``count`` of the ``runs`` have a finite value.
    """

    count: int
    runs: int
    median: float
    least: float
    largest: float

    @classmethod
    def from_values(cls, values: np.ndarray) -> FiniteSummary:
        """Summarise one value per run."""
        known = values[np.isfinite(values)]
        summary = (np.median(known), known.min(), known.max()) if len(known) else (np.nan,) * 3
        return cls(len(known), len(values), *map(float, summary))

    def describe(self, text: Callable[[float], str]) -> str:
        """Format as ``median 0.3 (0.1 to 0.4), 4 of 5 finite``, with a function that formats a number."""
        count = f"{self.count} of {self.runs} finite"
        if self.count < 2:
            return f"{text(self.median)}, {count}" if self.count else count
        return f"median {text(self.median)} ({text(self.least)} to {text(self.largest)}), {count}"


class MeanStd(NamedTuple):
    """Mean and sample standard deviation (n - 1) over runs; the deviation of a single run is NaN.

    If a run has no finite value, both are NaN, and ``finite`` summarises the other runs.
    """

    mean: float
    deviation: float
    finite: FiniteSummary | None = None

    @classmethod
    def from_values(cls, values: Iterable[float]) -> MeanStd:
        """Summarise one value per run."""
        values = np.array([*values], dtype=float)
        with np.errstate(all="ignore"):  # diverging values overflow
            if not np.isfinite(values).all():
                return cls(np.nan, np.nan, FiniteSummary.from_values(values))
            if not len(values):
                return cls(np.nan, np.nan)
            return cls(values.mean().item(), values.std(ddof=1).item() if len(values) > 1 else np.nan)

    def describe(self, mean: str = "{:.4g}") -> str:
        """Format as ``0.3 ± 0.01`` or as :meth:`FiniteSummary.describe`; "-" for no value."""
        if self.finite:
            return self.finite.describe(mean.format)
        around = f" ± {self.deviation:.2g}" if np.isfinite(self.deviation) else ""
        return mean.format(self.mean) + around if np.isfinite(self.mean) else "-"


class Curve(NamedTuple):
    """A metric by round: mean, standard deviation, median and :data:`QUANTILES`, ``[E]`` each. Deviation and
    quantiles are NaN for a single run."""

    rounds: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def from_runs(cls, runs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Curve:
        """Aggregate the rounds and values of some runs at all rounds of any of them.

        Between its evaluations a run is interpolated linearly. Every point aggregates the same runs: the
        curve ends where the first run ends, and has a gap (NaN) where a run's value is not finite.
        """
        runs = [*runs]
        rounds = np.unique(np.concatenate([rounds_of_run for rounds_of_run, _ in runs]))
        rounds = rounds[rounds <= min(rounds_of_run.max() for rounds_of_run, _ in runs)]
        with np.errstate(all="ignore"):  # diverging values overflow
            values = np.array([np.interp(rounds, *run) for run in runs])
            values = np.where(np.isfinite(values), values, np.nan)
            low, median, high = np.quantile(values, [QUANTILES[0], 0.5, QUANTILES[1]], axis=0)
            mean, deviation = values.mean(axis=0), np.full(len(rounds), np.nan)
            if len(runs) == 1:
                low = high = deviation
            else:
                deviation = values.std(axis=0, ddof=1)
        return cls(rounds, mean, deviation, median, low, high)

    def line(self, quantiles: bool) -> np.ndarray:
        """The plotted line: the mean, or the median if the band shows quantiles."""
        return self.median if quantiles else self.mean

    def band(self, quantiles: bool) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end of the band: mean ± standard deviation, or the quantiles."""
        if quantiles:
            return self.low, self.high
        return self.mean - self.deviation, self.mean + self.deviation

    def thinned(self, points: int) -> Curve:
        """Keep at most ``points`` evenly spaced points, including the first and the last."""
        if len(self.rounds) <= points:
            return self
        indices = np.unique(np.linspace(0, len(self.rounds) - 1, points).round().astype(int))
        return Curve(*(column[indices] for column in self))


def final_value(run: RunData, metric: str) -> float:
    """The last value of a metric, NaN where there is none."""
    return [np.nan, *run.metrics[metric].tolist()][-1]


def best_value(run: RunData, metric: str) -> float:
    """A metric at the run's best evaluation, NaN where there is none."""
    index = run.best_evaluation(metric)
    return np.nan if index is None else run.metrics[metric][index].item()


def ranking_key(values: Iterable[float], maximised: bool) -> tuple[int, float]:
    """Sort key of a setting, given one value per run; smaller is better.

    The number of non-finite values, then the mean (the median of the finite values if some are not finite),
    negated if ``maximised``; infinite if no value is finite.
    """
    mean, _, finite = MeanStd.from_values(values)
    middle = (finite.median if finite else mean) * (-1 if maximised else 1)
    return finite.runs - finite.count if finite else 0, middle if np.isfinite(middle) else np.inf


def paired_test(differences: pd.Series) -> float:
    """P-value of a two-sided paired t-test; NaN for fewer than two or (up to rounding) equal differences."""
    if np.allclose(differences, differences.mean(), rtol=1e-9, atol=0):
        return np.nan
    from scipy import stats  # the import takes a second

    return stats.ttest_1samp(differences, 0).pvalue.item()


def holm(p: pd.Series) -> pd.Series:
    """P-values with Holm's correction for multiple comparisons, ignoring NaN (Holm 1979)."""
    tests = p.dropna().sort_values()
    return (tests * np.arange(len(tests), 0, -1)).cummax().clip(upper=1).reindex(p.index)
