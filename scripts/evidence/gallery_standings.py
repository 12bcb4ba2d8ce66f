"""Ranking of the methods on a problem: by the final value, and by the cost of reaching a target level."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from claims.interval import interval
from mpifed.config.tuning import Tuning, tuning
from mpifed.report.comparison import Rule, Setting, settings_of
from mpifed.report.figures import AXES, Axis
from mpifed.report.statistics import MeanStd, ranking_key
from mpifed.storage.results import find_runs, load

#: Costs of reaching a level. Seconds are left out, because they depend on the machine.
PAID = AXES[:3]


@dataclass(frozen=True, eq=False)
class Entry:
    """A method with its best settings.

    Attributes:
        setting: runs with seeds that were not used in the search.
        tuned: the settings found by the search, as text.
        finals: seed → final value of the metric, NaN for a run that diverged.
        paid: name of a cost → seed → cost until the level is reached; empty unless every seed reaches it.
    """

    setting: Setting
    tuned: str
    finals: Mapping[int, float]
    paid: Mapping[str, Mapping[int, float]]

    @property
    def name(self) -> str:
        return self.setting.name

    @property
    def spread(self) -> MeanStd:
        """Mean and deviation of the final values."""
        return MeanStd.from_values(self.finals.values())


@dataclass(frozen=True)
class Lead:
    """The lead of the best method by some quantity.

    Attributes:
        first, second: the best and the next method; ``second`` is ``None`` if there is only one method.
        ahead, low, high: lead over the next method, mean over the seeds with its confidence interval. It is
            a factor if ``ratio`` is true, otherwise a difference.
        behind: number of other methods that are significantly behind, including those with diverged seeds if
            all seeds of the best method are finite.
        lost: number of other methods with diverged seeds.
        rivals: number of other methods.
    """

    first: Entry
    second: Entry | None
    ahead: float
    low: float
    high: float
    behind: int
    lost: int
    rivals: int
    ratio: bool


@dataclass(frozen=True)
class Standings:
    """The methods on a problem, the best first.

    Attributes:
        problem: class of the problem.
        metric: the metric that is compared, to be maximised if ``maximised``.
        level: target level of the costs, which at least half of the methods reach with every seed.
        tuning: the search.
    """

    problem: type
    metric: str
    maximised: bool
    level: float
    entries: Sequence[Entry]
    tuning: Tuning

    @property
    def settings(self) -> list[Setting]:
        return [one.setting for one in self.entries]

    @property
    def ratios(self) -> bool:
        """Whether final values are compared by ratios: positive values of a metric to minimise."""
        return not self.maximised and all(
            value > 0 or math.isnan(value) for one in self.entries for value in one.finals.values()
        )

    def scaled(self, one: Entry) -> dict[int, float]:
        """Return final values by seed on a scale to minimise; logarithms if ratios are compared."""
        sign = -1 if self.maximised else 1
        return {
            seed: math.log10(value) if self.ratios else sign * value for seed, value in one.finals.items()
        }

    def final_lead(self) -> Lead:
        """Return the lead of the method with the best final value."""
        return _lead([(one, self.scaled(one)) for one in self.entries], self.ratios)

    def behind(self, one: Entry) -> tuple[float, float]:
        """Return the confidence interval of the ratio to, or difference from, the best final value."""
        low, high = _gap(self.scaled(one), self.scaled(self.entries[0]))
        return (_power(low), _power(high)) if self.ratios else (low, high)

    def lead(self, axis: Axis) -> Lead | None:
        """Return the lead by the cost of reaching the level; ``None`` if no method does with all seeds."""
        paid = [(one, one.paid[axis.name]) for one in self.entries if one.paid]
        paid.sort(key=lambda pair: math.fsum(pair[1].values()))
        logs = [(one, {seed: math.log10(max(cost, 1)) for seed, cost in cost.items()}) for one, cost in paid]
        return _lead(logs, True) if logs else None


def _power(logarithm: float) -> float:
    """Return 10 to the power of ``logarithm``, infinity if it is out of range."""
    return math.inf if logarithm > sys.float_info.max_10_exp else 10**logarithm


def _lead(ranked: Sequence[tuple[Entry, Mapping[int, float]]], ratio: bool) -> Lead:
    """Return the lead of the first method. Values are to be minimised; for ratios they are logarithms."""
    (first, best), *others = ranked
    gaps = [_gap(own, best) for _, own in others]
    whole, *rest = (all(map(math.isfinite, own.values())) for _, own in ranked)
    behind = sum(low > 0 or (whole and not one) for one, (low, _) in zip(rest, gaps))
    lead = (math.nan,) * 3
    if others:
        own = others[0][1]
        lead = (math.fsum(own[seed] - best[seed] for seed in best) / len(best), *gaps[0])
    ahead, low, high = map(_power, lead) if ratio else lead
    second = others[0][0] if others else None
    return Lead(first, second, ahead, low, high, behind, rest.count(False), len(others), ratio)


def _gap(own: Mapping[int, float], best: Mapping[int, float]) -> tuple[float, float]:
    """Return the confidence interval of the difference, paired by seed; NaN if a value is not finite."""
    gaps = [own[seed] - best[seed] for seed in best]
    return interval(gaps) if all(map(math.isfinite, gaps)) else (math.nan, math.nan)


def standings(job: Path) -> Standings:
    """Rank the methods of a job by the runs with their best settings.

    Raises:
        ValueError: runs of some methods are missing.
    """
    search = tuning(job)
    settings = settings_of([load(path) for path in find_runs([search.out / "best"])])
    lacking = {study.space.name for study in search.studies} - {one.name for one in settings}
    if lacking:
        raise ValueError(f"{job}: no runs of {', '.join(sorted(lacking))} in {search.out / 'best'}")
    first = settings[0]
    metric = search.tune.metric or next(iter(first.metrics))
    maximised = first.maximises(metric)
    rule = Rule(metric)
    finals = {one: {run.config["seed"]: rule.value(run, metric) for run in one.runs} for one in settings}
    settings.sort(key=lambda one: ranking_key(finals[one].values(), maximised))
    level = _level([_reached(one, metric) for one in settings], maximised)
    reached = Rule(metric, target=level)
    entries = [Entry(one, _tuned(one, search), finals[one], _paid(one, reached)) for one in settings]
    problem = type(search.studies[0].config(search.studies[0].space.costliest).problem)
    return Standings(problem, metric, maximised, level, entries, search)


def _reached(setting: Setting, metric: str) -> float:
    """Return the best value that a method reaches with every seed, i.e. the best value of its worst seed."""
    best, worst = (np.nanmax, min) if setting.maximises(metric) else (np.nanmin, max)
    return float(worst(best(run.metrics[metric]) for run in setting.runs))


def _level(reached: Sequence[float], maximised: bool) -> float:
    """Return the median of the values that the methods reach, rounded to two digits so that it is reached."""
    ranked = sorted(reached, reverse=maximised)
    middle = ranked[len(ranked) // 2]
    if not middle:
        return middle
    size = 10.0 ** (math.floor(math.log10(abs(middle))) - 1)
    towards: Callable[[float], int] = math.floor if maximised else math.ceil
    return float(f"{towards(middle / size) * size:.6g}")


def _paid(setting: Setting, rule: Rule) -> dict[str, dict[int, float]]:
    rounds = {run: rule.rounds_to_target(run, rule.metric) for run in setting.runs}
    if any(at is None for at in rounds.values()):
        return {}
    return {
        axis.name: {run.config["seed"]: float(axis.costs(run, [at])[0]) for run, at in rounds.items()}
        for axis in PAID
    }


def _tuned(setting: Setting, search: Tuning) -> str:
    studies = [study for study in search.studies if study.space.name == setting.name]
    (space,) = {study.method: study.space for study in studies}.values()
    values = {key: setting.settings.get(f"algorithm.{key}") for key in space.open}
    return ", ".join(f"{key} = {value}" for key, value in values.items() if value is not None)
