"""Verdicts of the runs on a claim.

A pair consists of a method and another method, a level or a bound, on one task. The differences between the
two over the seeds have a confidence interval. The claim holds for the pair if the whole interval is above the
margin, and fails if no part of it is. A claim holds if it holds for all pairs, and fails if it fails for any
pair. Each pair is judged at 95 %, so a claim with many pairs is harder to confirm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from claims.entries import GROWS, Claim
from claims.interval import interval, seeds_needed
from claims.panels import Panel, taken, task_title
from claims.values import figures, middle, more_is_better, scaled, worst
from mpifed.base.errors import ConfigError
from mpifed.report.comparison import Setting

HOLDS, FAILS, UNDECIDED, NOT_RUN = "holds", "fails", "not decided", "not run"
REPRODUCED, STATED, REFUTED = "reproduced", "only at the stated settings", "not reproduced"
TOO_SMALL = "not decided at this size"
#: Maximum number of seeds that is reported.
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Pair:
    """A comparison on a task.

    Attributes:
        subject, rival: names of the two sides.
        ours, theirs: values of the two sides; for a trend, the lead at both ends of the setting.
        mean, low, high: the difference, positive if it supports the claim, and its confidence interval; in
            log10 units if the claim's scale is logarithmic.
        needed: number of seeds that would decide; NaN if more seeds would not.
    """

    task: str
    subject: str
    rival: str
    ours: float
    theirs: float
    mean: float
    low: float
    high: float
    seeds: int
    state: str
    needed: float


@dataclass(frozen=True)
class Judgement:
    """The judgement of one panel; ``deciding`` is the pair that determines it."""

    state: str
    pairs: Sequence[Pair] = ()
    deciding: Pair | None = None
    missing: str = ""


@dataclass(frozen=True)
class Verdict:
    """The verdict of all panels; ``pair`` determines it."""

    word: str
    detail: str = ""
    pair: Pair | None = None


def judge(claim: Claim, panel: Panel) -> Judgement:
    """Judge the claim in one panel; it is undecided while any runs of its job are missing.

    Raises:
        ConfigError: the runs lack a method, metric or setting that the claim names.
    """
    along = claim.trend["along"] if claim.trend else None
    panel = taken(panel, claim.where)
    if along and panel.settings and along not in panel.keys:
        raise ConfigError(
            f"claim {claim.name!r}: a trend along {along} needs tasks that differ in it, got {panel.keys}"
        )
    keys = [key for key in panel.keys if key != along]
    pairs: list[Pair] = []
    for task, settings in panel.tasks(without=along).items():
        steps = _steps(panel, settings, along, claim)
        lacking = {name for step in steps for name, one in step.items() if one is None}
        if lacking or (along and len(steps) < 2):
            missing = ", ".join(sorted(lacking)) or f"a second value of {along}"
            return Judgement(NOT_RUN, missing=f"{missing} is missing")
        pairs += [
            _pair(claim, steps, subject, rival, task_title(task, keys))
            for subject in claim.subjects
            for rival in claim.than or [""]
        ]
    if panel.missing:
        return Judgement(NOT_RUN, pairs, missing=f"runs missing: {panel.missing}")
    return _combine(pairs, claim) if pairs else Judgement(NOT_RUN)


def _steps(
    panel: Panel, settings: Sequence[Setting], along: str | None, claim: Claim
) -> list[dict[str, Setting | None]]:
    """Return the settings of the claim's methods in a task.

    For a trend there is one entry per value of the setting, in the order in which the lead should grow.
    """
    by = "best" if claim.statistic == "best" else "final"
    part = replace(panel, keys=[along] if along else [], settings=settings)
    steps = [
        {name: panel.pick(own, name, claim.metric, by) for name in (*claim.subjects, *claim.than)}
        for own in part.tasks().values()
    ]
    return steps[::-1] if claim.trend and GROWS[claim.trend["grows"]] else steps


def _pair(claim: Claim, steps: Sequence[Mapping[str, Setting]], subject: str, rival: str, task: str) -> Pair:
    sides = [_sides(claim, step, subject, rival) for step in steps]
    leads = [_leads(claim, step, *side) for step, side in zip(steps, sides)]
    seeds = sorted(set.intersection(*map(set, leads)))
    if not seeds:
        raise ConfigError(f"claim {claim.name!r}: no seed is shared by {subject} and {rival}")
    table = np.array([[lead[seed] for seed in seeds] for lead in leads])
    if claim.trend:
        differences = np.polyfit(range(len(table)), table, 1)[0]
        ends = tuple(10 ** row.mean() if claim.scale == "log" else row.mean() for row in table[[0, -1]])
    else:
        differences = table[0] * (-1 if claim.worse_than_level is not None else 1)
        ends = tuple(middle([*side.values()], claim) for side in sides[0])
    low, high = interval(differences)
    state = HOLDS if low > claim.margin else FAILS if high <= claim.margin else UNDECIDED
    needed = max(seeds_needed(differences, claim.margin), len(seeds) + 1) if state == UNDECIDED else math.nan
    if claim.target is not None and not any(_reached(step, claim, subject, rival) for step in steps):
        state, needed = UNDECIDED, math.nan
    shown = _rival(claim, rival)
    return Pair(task, subject, shown, *ends, differences.mean().item(), low, high, len(seeds), state, needed)


def _sides(claim: Claim, step: Mapping[str, Setting], subject: str, rival: str) -> list[dict[int, float]]:
    """Return the values of both sides by seed; :func:`claims.values.worst` replaces missing values."""
    least = worst(step.values(), claim)
    ours = _filled(figures(step[subject], claim), least)
    if rival:
        return [ours, _filled(figures(step[rival], claim), least)]
    level = claim.level
    if claim.than_bound is not None:
        level = step[subject].bound(claim.metric)
        if level is None:
            raise ConfigError(
                f"claim {claim.name!r}: the job of {subject} names no theorem that bounds {claim.metric}"
            )
    return [ours] if level is None else [ours, dict.fromkeys(ours, float(level))]


def _filled(values: Mapping[int, float], least: float) -> dict[int, float]:
    return {seed: one if math.isfinite(one) else least for seed, one in values.items()}


def _leads(claim: Claim, step: Mapping[str, Setting], *sides: Mapping[int, float]) -> dict[int, float]:
    """Return the lead of the first side by common seed, or its value if there is no second side."""
    sign = 1 if more_is_better(next(iter(step.values())).runs[0], claim) else -1
    ours, *others = ({seed: sign * scaled(one, claim) for seed, one in side.items()} for side in sides)
    return {
        seed: one - sum(other[seed] for other in others)
        for seed, one in ours.items()
        if all(seed in other for other in others)
    }


def _reached(step: Mapping[str, Setting], claim: Claim, subject: str, rival: str) -> bool:
    """Return whether any run of the two methods has reached the target."""
    return any(
        math.isfinite(one) for name in (subject, rival) if name for one in figures(step[name], claim).values()
    )


def _rival(claim: Claim, rival: str) -> str:
    if claim.than_bound is not None:
        return f"bound of {claim.than_bound}"
    return rival or ("" if claim.level is None else "level")


def _combine(pairs: Sequence[Pair], claim: Claim) -> Judgement:
    """Combine all pairs. If one of several methods suffices, all pairs of one method have to hold."""
    if claim.all:
        return all_of(pairs)
    each = [all_of([one for one in pairs if one.subject == name]) for name in claim.subjects]
    order = (HOLDS, UNDECIDED, FAILS)
    first = min(each, key=lambda one: order.index(one.state))
    return Judgement(first.state, pairs, first.deciding)


def all_of(pairs: Sequence[Pair]) -> Judgement:
    """Return the judgement of pairs that all have to hold."""
    for state in (FAILS, UNDECIDED, HOLDS):
        own = [one for one in pairs if one.state == state]
        if own:
            return Judgement(state, pairs, _weakest(own))
    raise AssertionError("a claim has pairs")


def _weakest(pairs: Iterable[Pair]) -> Pair:
    """Return the pair that contradicts the claim most, by the number of seeds needed, then by its mean."""
    return max(pairs, key=lambda one: (one.needed if math.isfinite(one.needed) else 0, -one.mean))


def verdict(tuned: Judgement, stated: Judgement | None = None) -> Verdict:
    """Return the verdict of both panels; ``stated`` is ``None`` if the paper states no settings.

    A claim that holds with tuned settings is reproduced. A claim that fails there may still hold with the
    settings stated in the paper.
    """
    if tuned.state == HOLDS:
        also = {FAILS: "tuned; not at the stated settings", UNDECIDED: "tuned; open at the stated settings"}
        return Verdict(REPRODUCED, also.get(stated.state, "") if stated else "", tuned.deciding)
    if tuned.state == NOT_RUN:
        return Verdict(NOT_RUN, tuned.missing)
    if tuned.state == UNDECIDED:
        return Verdict(TOO_SMALL, advice(tuned), tuned.deciding)
    if stated is None or stated.state == FAILS:
        return Verdict(REFUTED, "", tuned.deciding)
    word = {HOLDS: STATED, UNDECIDED: TOO_SMALL, NOT_RUN: NOT_RUN}[stated.state]
    detail = stated.missing
    if stated.state == UNDECIDED:
        detail = f"not when tuned; at the stated settings {advice(stated)}"
    return Verdict(word, detail, stated.deciding)


def advice(judgement: Judgement) -> str:
    """Return what would decide the claim."""
    needed = [one.needed for one in judgement.pairs if one.state == UNDECIDED]
    if any(math.isnan(one) for one in needed):
        return "no run reaches the target"
    most = max(needed)
    return (
        f"about {most:.0f} seeds needed" if most <= MOST_SEEDS else f"more than {MOST_SEEDS:,} seeds needed"
    )
