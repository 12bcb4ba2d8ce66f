"""The value per run of a setting that a claim compares."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from claims.entries import Claim
from mpifed.base.errors import ConfigError
from mpifed.base.settings import suggest
from mpifed.report.comparison import Setting
from mpifed.report.figures import AXES
from mpifed.report.statistics import best_value, final_value
from mpifed.storage.results import RunData

#: The costs up to a target.
COSTS = dict(zip(("rounds_to", "calls_to", "bytes_to"), AXES))


def values_by_seed(setting: Setting, claim: Claim) -> dict[int, float]:
    """Return the claim's value by seed; NaN for a run that diverged or did not reach the target.

    Raises:
        ConfigError: a run does not have the metric.
    """
    return {run.config["seed"]: _figure(run, claim) for run in setting.runs}


def diverged_seeds(setting: Setting) -> set[int]:
    """Return the seeds whose runs have non-finite values."""
    return {run.config["seed"] for run in setting.runs if run.diverged}


def _figure(run: RunData, claim: Claim) -> float:
    if claim.metric not in run.metrics:
        raise ConfigError(f"{run.name} has no metric {claim.metric!r}: {suggest(claim.metric, run.metrics)}")
    values = run.metrics[claim.metric]
    if run.diverged:
        return math.nan
    if claim.statistic in COSTS:
        at = _round_to(run, claim)
        return math.nan if at is None else _cost(run, claim, at)
    if claim.statistic == "slope":
        return np.polyfit(run.metric_rounds, np.log10(values), 1)[0].item()
    if claim.statistic == "best":
        return best_value(run, claim.metric)
    return values.mean().item() if claim.statistic == "mean" else final_value(run, claim.metric)


def _round_to(run: RunData, claim: Claim) -> int | None:
    """Return the first round that reaches the target; ``None`` if no evaluation does.

    Between the last evaluation that misses the target and the first that reaches it, the metric is
    interpolated, on the log axis if it is positive, and the round is rounded up.
    """
    values, at = run.metrics[claim.metric], run.metric_rounds
    reached = values >= claim.target if run.maximises(claim.metric) else values <= claim.target
    if not reached.any():
        return None
    last = int(np.argmax(reached))
    if last == 0 or not math.isfinite(values[last - 1]):
        return int(at[last])
    ends = np.array([values[last - 1], values[last], claim.target])
    before, after, target = np.log(ends) if ends.min() > 0 and not run.maximises(claim.metric) else ends
    part = (before - target) / (before - after)
    return math.ceil(at[last - 1] + part * (at[last] - at[last - 1]) - 1e-9)


def _cost(run: RunData, claim: Claim, at: int) -> float:
    """Return the cost up to a round, at least 1 even if the starting point has reached the target.

    Between evaluations, costs are interpolated.
    """
    evaluated = run.metric_rounds
    return max(np.interp(at, evaluated, COSTS[claim.statistic].costs(run, evaluated)).item(), 1)


def mean_cost(setting: Setting, claim: Claim) -> float:
    """Return the mean cost over the runs, infinite if a run does not reach the target."""
    found = np.mean([*values_by_seed(setting, claim).values()]).item()
    return found if math.isfinite(found) else math.inf


def _cost_after_last(run: RunData, claim: Claim) -> float:
    """Return the cost at the evaluation after the last evaluation of the run."""
    evaluated = run.metric_rounds
    last, previous = (_cost(run, claim, evaluated[at]) for at in (-1, max(len(evaluated) - 2, 0)))
    return 2 * last - previous


def worst(settings: Iterable[Setting], claim: Claim) -> float:
    """Return the value that replaces a missing value: the worst value of all compared runs.

    For a metric, this is its worst value at any evaluation; for a slope, at least as bad as zero. For a
    target, it is the cost of one more evaluation than the longest run has, a lower bound of the cost.
    """
    runs = [run for one in settings for run in one.runs]
    if claim.statistic in COSTS:
        return max(_cost_after_last(run, claim) for run in runs)
    if claim.statistic == "slope":
        found = np.array([0.0, *(_figure(run, claim) for run in runs)])
    else:
        found = np.concatenate([run.metrics[claim.metric] for run in runs])
    found = found[np.isfinite(found)]
    return (found.min() if more_is_better(runs[0], claim) else found.max()).item()


def more_is_better(run: RunData, claim: Claim) -> bool:
    """Return whether the value is to be maximised; costs are to be minimised."""
    return claim.statistic not in COSTS and run.maximises(claim.metric)


def scaled(figure: float, claim: Claim) -> float:
    """Convert a value to the scale of the claim.

    Raises:
        ConfigError: the scale is logarithmic and the value is not positive.
    """
    if claim.scale == "linear":
        return figure
    if figure <= 0:
        raise ConfigError(f'claim {claim.name!r}: scale = "log" needs positive values, got {figure:g}')
    return math.log10(figure)


def scaled_mean(figures: Sequence[float], claim: Claim) -> float:
    """Return the mean in the scale of the claim: the geometric mean if that is logarithmic."""
    mean = float(np.mean([scaled(one, claim) for one in figures]))
    return 10**mean if claim.scale == "log" else mean
