"""One figure of each run of a setting: what a claim compares."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from claims.entries import Claim
from mpifed.core.errors import ConfigError
from mpifed.core.settings import near_miss
from mpifed.report.comparison import Setting
from mpifed.report.values import best_value, final
from mpifed.storage.results import RunData

#: What a target costs.
COSTS = {"rounds_to": ("round",), "calls_to": ("oracle_calls",), "bytes_to": ("bytes_up", "bytes_down")}


def figures(setting: Setting, claim: Claim) -> dict[int, float]:
    """The claim's figure by seed; NaN of a run that has ended in non-finite values or not reached the target.

    Raises:
        ConfigError: a run has no such metric.
    """
    return {run.config["seed"]: _figure(run, claim) for run in setting.runs}


def _figure(run: RunData, claim: Claim) -> float:
    if claim.metric not in run.metrics:
        raise ConfigError(
            f"{run.name} has no metric {claim.metric!r}: {near_miss(claim.metric, run.metrics)}"
        )
    values = run.metrics[claim.metric]
    if run.diverged:
        return math.nan
    if claim.statistic in COSTS:
        reached = values >= claim.target if claim.metric in run.maximised else values <= claim.target
        return _cost(run, claim, np.argmax(reached)) if reached.any() else math.nan
    if claim.statistic == "slope":
        return np.polyfit(run.metric_rounds, np.log10(values), 1)[0].item()
    if claim.statistic == "best":
        return best_value(run, claim.metric)
    return values.mean().item() if claim.statistic == "mean" else final(run, claim.metric)


def _cost(run: RunData, claim: Claim, evaluation: int) -> float:
    """The cost up to an evaluation, one at least: what the starting point has reached costs no less."""
    row = np.searchsorted(run.costs["round"], run.metric_rounds[evaluation])
    return max(sum(run.costs[column][row].item() for column in COSTS[claim.statistic]), 1)


def _longer(run: RunData, claim: Claim) -> float:
    """The cost of one evaluation more than the run has."""
    last, before = (_cost(run, claim, max(len(run.metric_rounds) - back, 0)) for back in (1, 2))
    return 2 * last - before


def worst(settings: Iterable[Setting], claim: Claim) -> float:
    """What counts for a run without a figure: the worst that any of the compared runs has shown.

    Of a metric, at any of their evaluations; of a slope, none at all if that is worse; of a target, one
    evaluation more than the longest of the runs has, which is the least that it can have taken.
    """
    runs = [run for one in settings for run in one.runs]
    if claim.statistic in COSTS:
        return max(_longer(run, claim) for run in runs)
    if claim.statistic == "slope":
        found = np.array([0.0, *(_figure(run, claim) for run in runs)])
    else:
        found = np.concatenate([run.metrics[claim.metric] for run in runs])
    found = found[np.isfinite(found)]
    return (found.min() if more_is_better(runs[0], claim) else found.max()).item()


def more_is_better(run: RunData, claim: Claim) -> bool:
    """Whether more of the figure is better; of a cost less is."""
    return claim.statistic not in COSTS and claim.metric in run.maximised


def scaled(figure: float, claim: Claim) -> float:
    """A figure in the scale of the claim.

    Raises:
        ConfigError: a logarithm is asked for, and it is not positive.
    """
    if claim.scale == "linear":
        return figure
    if figure <= 0:
        raise ConfigError(f'claim {claim.name!r}: scale = "log" needs positive figures, found {figure:g}')
    return math.log10(figure)


def middle(figures: Sequence[float], claim: Claim) -> float:
    """The mean in the scale of the claim: geometric where that is logarithmic."""
    mean = float(np.mean([scaled(one, claim) for one in figures]))
    return 10**mean if claim.scale == "log" else mean
