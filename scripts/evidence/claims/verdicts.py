"""Verdicts of the runs on a claim.

A pair consists of a method and another method, a level or a bound, on one task. The differences between the
two over the seeds are tested against the margin; the p-values of all pairs of a claim are adjusted by Holm's
method. The claim holds for a pair if the difference is above the margin, fails if it is below, and a pair is
tied if the difference is shown to be within the margin of a tie in both directions (two one-sided tests). A
claim that holds for some rivals only is partly reproduced. A universal claim, that of a bound, is not: one
exceeded bound refutes it.

Runs with non-finite values are reported apart from the comparison, in which only the seeds count with which
both methods stay finite. The claim fails for a pair if its method diverges with significantly more seeds than
the rival (Boschloo's exact test). If fewer than two seeds are finite for both, only this test can decide.

With two searches, the first one decides, because the seeds of one search say nothing about other searches and
two searches are too few for a test. But a pair for which the claim holds after one search, and fails or is
tied after the other, depends on the search and is not decided.

The wider question is the same test with the margin of practical equality for the claim's quantity, as margin
and as tie: :func:`in_practice`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType

import numpy as np
import pandas as pd
from scipy import stats

from claims.entries import GROWS, Claim
from claims.formulas import bound, formula
from claims.interval import LEVEL, interval, p_values, seeds_needed
from claims.panels import Panel, restricted, task_title, value
from claims.values import (
    COSTS,
    diverged_seeds,
    mean_cost,
    more_is_better,
    scaled,
    scaled_mean,
    values_by_seed,
    worst,
)
from mpifed.base.errors import ConfigError
from mpifed.report.comparison import Setting
from mpifed.report.statistics import holm

HOLDS, TIE, FAILS, UNDECIDED, NOT_RUN = "holds", "tie", "fails", "not decided", "not run"
#: State of a pair for which the claim holds after one search, and fails or is tied after the other.
CONTESTED = "depends on the search"
#: The claim holds for some rivals, and fails, is tied or undecided for others.
PARTLY = "partly"
REPRODUCED, STATED, REFUTED = "reproduced", "only at the stated settings", "not reproduced"
PARTLY_REPRODUCED = "partly reproduced"
TOO_SMALL = "not decided at this size"
#: State of a pair before the test if no run of it has reached the target.
UNREACHED = "not reached"
#: Answers to the wider question.
AHEAD, EQUAL, NO_LEAD = "practically ahead", "practically equal", "no practical lead"
PARTLY_AHEAD, OPEN = "practically ahead of some", "open"
IN_PRACTICE = {HOLDS: "ahead", TIE: "practically equal", FAILS: "not ahead", UNDECIDED: "open"}
AT_STATED = {
    FAILS: "not at the stated settings",
    TIE: "a tie at the stated settings",
    UNDECIDED: "open at the stated settings",
    PARTLY: "partly at the stated settings",
}
#: States from the worst to the best; the worst is that of several pairs. A single pair is never partly true.
ORDER = (FAILS, UNDECIDED, CONTESTED, TIE, PARTLY, HOLDS)
#: Maximum number of seeds that is reported.
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Pair:
    """A comparison on a task.

    Attributes:
        subject, rival: names of the two sides.
        ours, theirs: values of the two sides; for a trend, the lead at both ends of the setting; for a trend
            with a formula, the exponents of the value (of the lead, if there is a rival) and of the formula.
        differences: one per seed with which both sides are finite, positive if it supports the claim; in
            log10 units if the claim's scale is logarithmic.
        lost: number of seeds with which the subject, and the rival, diverges, and of all seeds.
        p: p-value of the state, adjusted for all pairs of the claim.
        needed: number of seeds that would decide; NaN if more seeds would not.
    """

    task: str
    subject: str
    rival: str
    ours: float
    theirs: float
    differences: Sequence[float]
    lost: tuple[int, int, int] = (0, 0, 0)
    state: str = UNDECIDED
    p: float = math.nan
    needed: float = math.nan

    @property
    def key(self) -> tuple[str, str, str]:
        """The task and the two sides, which identify the pair in other panels."""
        return self.task, self.subject, self.rival

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.differences)

    @property
    def mean(self) -> float:
        """The mean difference; NaN without differences."""
        return float(np.mean(self.differences)) if self.differences else math.nan

    @cached_property
    def _interval(self) -> tuple[float, float]:
        return interval(self.differences)

    @property
    def low(self) -> float:
        """Lower end of the confidence interval of the mean difference, for this pair alone."""
        return self._interval[0]

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self._interval[1]


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
    pairs: list[Pair] = []
    for task, steps in tasks_of(claim, panel):
        lacking = {name for step in steps for name, one in step.items() if one is None}
        if lacking or (claim.trend and len(steps) < 2):
            missing = ", ".join(sorted(lacking)) or f"a second value of {claim.trend['along']}"
            return Judgement(NOT_RUN, missing=f"{missing} is missing")
        pairs += [
            _pair(claim, steps, subject, rival, task)
            for subject in claim.subjects
            for rival in claim.than or [""]
        ]
    pairs = with_states(pairs, claim)
    if panel.missing:
        return Judgement(NOT_RUN, pairs, missing=f"runs missing: {panel.missing}")
    return _judge_pairs(pairs, claim) if pairs else Judgement(NOT_RUN)


def with_second_search(first: Judgement, second: Judgement, claim: Claim) -> Judgement:
    """Return the judgement of the first search, in which pairs that the second contradicts are contested.

    An incomplete second search changes nothing.
    """
    if NOT_RUN in (first.state, second.state):
        return first
    states = {one.key: one.state for one in second.pairs}
    pairs = []
    for one in first.pairs:
        both = {one.state, states.get(one.key)}
        pairs.append(replace(one, state=CONTESTED) if both in ({HOLDS, FAILS}, {HOLDS, TIE}) else one)
    return _judge_pairs(pairs, claim)


def is_improving(claim: Claim, panel: Panel) -> bool:
    """Return whether the curves of a claim about final values are not flat in some task.

    They are flat if the best of the claim's methods improves by less than its deviation over the seeds in the
    last quarter of the evaluations.
    """
    if claim.statistic != "final" or claim.trend or not claim.than:
        return False
    tasks = [[one for one in step.values() if one] for _, (step,) in tasks_of(claim, panel)]
    return any(_improves(claim, settings) for settings in tasks)


def _improves(claim: Claim, settings: Sequence[Setting]) -> bool:
    curves = []  # of each setting: values at the beginning and the end of the last quarter, [seeds, 2]
    for runs in (one.finite(claim.metric) for one in settings):
        values = [run.metrics[claim.metric] for run in runs]
        ends = [[scaled(one[k], claim) for k in (-1 - len(one) // 4, -1)] for one in values]
        curves += [np.array(ends) * (1 if more_is_better(runs[0], claim) else -1)] if runs else []
    if not curves:
        return False
    best = max(curves, key=lambda ends: ends[:, 1].mean())
    return bool((best[:, 1] - best[:, 0]).mean() > (best[:, 1].std(ddof=1) if len(best) > 1 else 0.0))


def tasks_of(claim: Claim, panel: Panel) -> list[tuple[str, list[dict[str, Setting | None]]]]:
    """Return the title of each task of the claim, and the settings of the claim's methods in it.

    For a trend there is one entry per value of the setting, in the order in which the lead should grow;
    otherwise there is only one. A missing setting is ``None``.
    """
    along = claim.trend["along"] if claim.trend else None
    panel = restricted(panel, claim.where)
    if along and panel.settings and along not in panel.keys:
        raise ConfigError(
            f"claim {claim.name!r}: a trend along {along} needs tasks that differ in it, got {panel.keys}"
        )
    keys = [key for key in panel.keys if key != along]
    return [
        (task_title(task, keys), _steps(panel, settings, along, claim))
        for task, settings in panel.tasks(without=along).items()
    ]


def _steps(
    panel: Panel, settings: Sequence[Setting], along: str | None, claim: Claim
) -> list[dict[str, Setting | None]]:
    by = "best" if claim.statistic == "best" else "final"
    part = replace(panel, keys=[along] if along else [], settings=settings)
    cost = partial(mean_cost, claim=claim) if claim.statistic in COSTS else None
    steps = [
        {name: panel.pick(own, name, claim.metric, by, cost) for name in (*claim.subjects, *claim.than)}
        for own in part.tasks().values()
    ]
    return steps[::-1] if claim.trend and GROWS.get(claim.trend.get("grows", "")) else steps


def _pair(claim: Claim, steps: Sequence[Mapping[str, Setting]], subject: str, rival: str, task: str) -> Pair:
    sides = [_sides(claim, step, subject, rival) for step in steps]
    leads = [_leads(claim, step, *side) for step, side in zip(steps, sides)]
    shared = set.intersection(*map(set, leads))
    if not shared:
        raise ConfigError(f"claim {claim.name!r}: no seed is shared by {subject} and {rival}")
    ours_lost, theirs_lost = (
        {seed for step in steps if name for seed in diverged_seeds(step[name])} for name in (subject, rival)
    )
    compares_runs = rival or claim.trend
    seeds = sorted(shared - ours_lost - theirs_lost if compares_runs else shared)
    pair = Pair(task, subject, _rival(claim, rival), math.nan, math.nan, ())
    if rival and not claim.trend:
        pair = replace(pair, lost=(len(shared & ours_lost), len(shared & theirs_lost), len(shared)))
    if not seeds:
        return pair
    table = np.array([[lead[seed] for seed in seeds] for lead in leads])
    if claim.law:
        (ours, theirs), differences = _exponents(claim, steps, subject, rival, table)
    elif claim.trend:
        differences = np.polyfit(range(len(table)), table, 1)[0]
        ours, theirs = (10 ** row.mean() if claim.scale == "log" else row.mean() for row in table[[0, -1]])
    else:
        differences = table[0] * (-1 if claim.worse_than_level is not None else 1)
        ours, theirs = (scaled_mean([side[seed] for seed in seeds], claim) for side in sides[0])
    pair = replace(pair, ours=float(ours), theirs=float(theirs), differences=differences.tolist())
    reached = claim.target is None or any(_reached(step, claim, subject, rival) for step in steps)
    return pair if reached else replace(pair, state=UNREACHED)


def _exponents(
    claim: Claim, steps: Sequence[Mapping[str, Setting]], subject: str, rival: str, table: np.ndarray
) -> tuple[tuple[float, float], np.ndarray]:
    """Return the exponents in the setting, of the value and of the formula, and by how much the lead's
    exponent exceeds the formula's, by seed.

    Args:
        table: log10 of the lead, or its negative for a value to minimise, by value of the setting and seed.
    """
    along = [value(step[subject], claim.trend["along"]) for step in steps]
    if not all(isinstance(one, int | float) and one > 0 for one in along):
        raise ConfigError(f"claim {claim.name!r}: an exponent needs values > 0 of the setting, got {along}")
    sign = -1 if not rival and not more_is_better(steps[0][subject].runs[0], claim) else 1
    predicted = np.log10([formula(step[subject], claim) for step in steps])
    at = np.log10(along)
    found, law = np.polyfit(at, table, 1)[0], np.polyfit(at, predicted, 1)[0]
    return (sign * found.mean(), law), found - sign * law


def with_states(pairs: Sequence[Pair], claim: Claim) -> list[Pair]:
    """Return the pairs with their states, by p-values adjusted for all pairs."""
    counted = [one for one in pairs if one.state != UNREACHED]
    ahead = _adjusted([_p_apart(one, claim) for one in counted])
    tied = _adjusted([_p_tie(one, claim) for one in counted])
    lost = _adjusted([_p_lost(one) for one in counted])
    states = {id(one): _state(one, claim, *p) for one, *p in zip(counted, ahead, tied, lost)}
    return [replace(one, **states.get(id(one), {"state": UNDECIDED})) for one in pairs]


def _threshold(pair: Pair, claim: Claim) -> float:
    """Return the difference above which the claim holds for a pair, or at which it stops being equal."""
    if claim.law == "equal":
        return claim.margin if pair.mean > 0 else -claim.margin
    return -claim.margin if claim.law else claim.margin


def _p_apart(pair: Pair, claim: Claim) -> float:
    """Return the p-value, two-sided, of a difference other than the threshold."""
    return min(1.0, 2 * min(p_values(pair.differences, _threshold(pair, claim))))


def _p_tie(pair: Pair, claim: Claim) -> float:
    """Return the p-value of a tie, or of an exponent that equals the formula's: two one-sided tests."""
    within = claim.margin if claim.law == "equal" else 0 if claim.law else claim.equal_within
    if not within:
        return 1.0
    return max(p_values(pair.differences, -within)[0], p_values(pair.differences, within)[1])


def _p_lost(pair: Pair) -> float:
    """Return the p-value, two-sided, of one side diverging with more seeds: Boschloo's exact test."""
    ours, theirs, seeds = pair.lost
    if ours == theirs:
        return 1.0
    return stats.boschloo_exact([[ours, theirs], [seeds - ours, seeds - theirs]]).pvalue


def _state(pair: Pair, claim: Claim, p: float, p_equal: float, p_lost: float) -> dict:
    """Return the state of a pair, its p-value and the number of seeds needed."""
    ours_lost, theirs_lost, _ = pair.lost
    if p_lost <= 1 - LEVEL and (ours_lost > theirs_lost or pair.seeds < 2):
        return {"state": FAILS if ours_lost > theirs_lost else HOLDS, "p": p_lost}
    threshold = _threshold(pair, claim)
    apart = p <= 1 - LEVEL
    above = pair.mean > threshold
    if claim.law == "equal":
        if p_equal <= 1 - LEVEL:
            return {"state": HOLDS, "p": p_equal}
        if apart and abs(pair.mean) > claim.margin:
            return {"state": FAILS, "p": p}
    elif apart and above:
        return {"state": HOLDS, "p": p}
    elif p_equal <= 1 - LEVEL:
        return {"state": TIE, "p": p_equal}
    elif apart:
        return {"state": FAILS, "p": p}
    needed = max(seeds_needed(pair.differences, threshold), pair.seeds + 1)
    return {"state": UNDECIDED, "p": p, "needed": needed}


def _adjusted(p: Sequence[float]) -> list[float]:
    return holm(pd.Series(p, dtype=float)).tolist()


def _sides(claim: Claim, step: Mapping[str, Setting], subject: str, rival: str) -> list[dict[int, float]]:
    """Return the values of both sides by seed; :func:`claims.values.worst` replaces missing values.

    Those of diverged runs count only against a level or a bound.
    """
    least = worst(step.values(), claim)
    ours = _filled(values_by_seed(step[subject], claim), least)
    if rival:
        return [ours, _filled(values_by_seed(step[rival], claim), least)]
    level = claim.level
    if claim.than_bound is not None:
        level = bound(step[subject], claim)
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
        math.isfinite(one)
        for name in (subject, rival)
        if name
        for one in values_by_seed(step[name], claim).values()
    )


def _rival(claim: Claim, rival: str) -> str:
    if claim.than_bound is not None:
        return f"bound of {claim.than_bound}"
    return rival or ("" if claim.level is None else "level")


def _judge_pairs(pairs: Sequence[Pair], claim: Claim) -> Judgement:
    """Combine all pairs. If one of several methods suffices, the one for which most pairs hold counts."""
    if claim.all:
        return _judge_all(pairs, universal=claim.than_bound is not None)
    each = [_judge_all([one for one in pairs if one.subject == name]) for name in claim.subjects]
    best = max(each, key=lambda one: ORDER.index(one.state))
    return Judgement(best.state, pairs, best.deciding)


def _judge_all(pairs: Sequence[Pair], universal: bool = False) -> Judgement:
    """Return the judgement of pairs that all should hold.

    It is partly true if all pairs of a method and a rival hold, or of a task if there are only one method and
    one rival; a ``universal`` claim is never partly true.
    """
    held = [{one.state for one in own} == {HOLDS} for own in _groups(pairs).values()]
    if all(held):
        return Judgement(HOLDS, pairs, _weakest(pairs))
    if any(held) and not universal:
        return Judgement(PARTLY, pairs, _weakest([one for one in pairs if one.state != HOLDS]))
    return judge_by_worst(pairs)


def _groups(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Return the pairs by method and rival, or by task if there are only one method and one rival."""
    subjects, rivals = ({*names} for names in zip(*((one.subject, one.rival) for one in pairs)))
    groups: dict[str, list[Pair]] = {}
    for one in pairs:
        words = [one.subject] if len(subjects) > 1 else []
        words += [one.rival] if len(rivals) > 1 else []
        groups.setdefault(" against ".join(words) or one.task, []).append(one)
    return groups


def by_rival(pairs: Sequence[Pair], words: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the states of the groups of pairs as text, from the best to the worst, in other ``words``."""
    found: dict[str, list[str]] = {}
    for name, own in _groups(pairs).items():
        found.setdefault(judge_by_worst(own).state, []).append(name)
    return "; ".join(
        f"{words.get(state, state)}: {', '.join(found[state])}" for state in ORDER[::-1] if state in found
    )


def judge_by_worst(pairs: Sequence[Pair]) -> Judgement:
    """Return the judgement by the worst state of the pairs."""
    worst_state = min((one.state for one in pairs), key=ORDER.index)
    return Judgement(worst_state, pairs, _weakest([one for one in pairs if one.state == worst_state]))


def _weakest(pairs: Iterable[Pair]) -> Pair:
    """Return the pair that contradicts the claim most, by the number of seeds needed, then by its mean."""
    return max(pairs, key=lambda one: (one.needed if math.isfinite(one.needed) else 0, -one.mean))


def in_practice(claim: Claim, margin: float, first: Panel, second: Panel | None = None) -> Verdict:
    """Answer the wider question: the claim with ``margin`` as margin and as tie, after one or two searches.

    "Ahead" means a lead above the margin, "practically equal" a difference within it in both directions, "not
    ahead" a lead below it.
    """
    asked = replace(claim, margin=max(claim.margin, margin), tie=max(claim.equal_within, margin))
    found = judge(asked, first)
    if second is not None:
        found = with_second_search(found, judge(asked, second), asked)
    if found.state in (NOT_RUN, HOLDS):
        return Verdict(AHEAD if found.state == HOLDS else NOT_RUN, found.missing, found.deciding)
    pairs = [one for one in found.pairs if claim.all or one.subject == found.deciding.subject]
    states = {one.state for one in pairs}
    if states == {TIE}:
        return Verdict(EQUAL, "", found.deciding)
    word = PARTLY_AHEAD if found.state == PARTLY else NO_LEAD if states & {TIE, FAILS} else OPEN
    return Verdict(word, by_rival(pairs, IN_PRACTICE) if len(states) > 1 else "", found.deciding)


def verdict(tuned: Judgement, stated: Judgement | None = None) -> Verdict:
    """Return the verdict of both panels; ``stated`` is ``None`` if the paper states no settings.

    A claim that holds with tuned settings is reproduced. One that is refuted there may still hold with the
    settings stated in the paper; if that is open, it remains refuted.
    """
    if tuned.state == NOT_RUN:
        return Verdict(NOT_RUN, tuned.missing)
    if tuned.state == HOLDS:
        detail = f"tuned; {AT_STATED[stated.state]}" if stated and stated.state in AT_STATED else ""
        return Verdict(REPRODUCED, detail, tuned.deciding)
    if tuned.state in (UNDECIDED, CONTESTED):
        return Verdict(TOO_SMALL, advice(tuned), tuned.deciding)
    if tuned.state == PARTLY:
        return Verdict(PARTLY_REPRODUCED, by_rival(tuned.pairs), tuned.deciding)
    if stated and stated.state in (HOLDS, NOT_RUN):
        return Verdict({HOLDS: STATED, NOT_RUN: NOT_RUN}[stated.state], stated.missing, stated.deciding)
    word = TIE if tuned.state == TIE else REFUTED
    return Verdict(word, AT_STATED[stated.state] if stated else "", tuned.deciding)


def advice(judgement: Judgement) -> str:
    """Return what would decide the claim."""
    needed = [one.needed for one in judgement.pairs if one.state == UNDECIDED]
    if not needed:
        return CONTESTED
    if any(math.isnan(one) for one in needed):
        return "no run reaches the target"
    most = max(needed)
    return (
        f"about {most:.0f} seeds needed" if most <= MOST_SEEDS else f"more than {MOST_SEEDS:,} seeds needed"
    )
