"""Claims: synthetic curves get the known verdict, and the pages are made from an empty folder."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from launch import environment
from matplotlib.figure import Figure
from matplotlib.image import imread
from planted_runs import panel, planted
from scipy import stats

import headlines
import reproduce
from claims.entries import Book, Claim, Experiment, read
from claims.execution import execute
from claims.figures import draw
from claims.interval import interval, p_values, seeds_needed
from claims.page import _settled, outcome, panels_of, sections, write
from claims.panels import matches, restricted, task_title
from claims.values import values_by_seed, worst
from claims.verdicts import in_practice, is_improving, judge, verdict, with_second_search
from mpifed.base.errors import ConfigError
from mpifed.core.metrics import Column
from mpifed.parallel.reproducibility import machine
from mpifed.theory import prescribe

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts/evidence/reproduce.py"


def claim(**changes) -> Claim:
    """Return the claim that the final error of New is below that of Old."""
    table = dict(
        name="planted",
        paper="huang2024adafgda",
        place="here",
        says="New is better than Old",
        job="planted",
        metric="error",
        better=["New"],
        than=["Old"],
    )
    return Claim(**(table | changes))


def against(new, old, **changes):
    """Return a panel of runs with these final errors of New and of Old, by seed."""
    return panel(*ending("New", new, **changes), *ending("Old", old, **changes))


def ending(name: str, ends, **changes) -> list:
    """Return runs with these final errors, one per seed."""
    return [planted(name, seed, [1, end], **changes) for seed, end in enumerate(ends)]


def three(name: str, end: float, **sections) -> list:
    """Return runs of three seeds with final errors from ``end``."""
    return ending(name, [end, end + 0.01, end + 0.02], **sections)


def with_err_D(runs: list) -> list:
    """Add the metric that the theorem wang-kale-2 bounds, with the values of the error."""
    for run in runs:
        run.metrics["err_D"], run.columns["err_D"] = run.metrics["error"], Column("err_D", "test")
    return runs


def state(it: Claim, where) -> str:
    return judge(it, where).state


def test_a_method_with_a_diverged_seed_is_shown_with_the_number_of_seeds(monkeypatch, tmp_path):
    runs = [planted("New", seed, [100, 2, end]) for seed, end in enumerate([0.1, 0.2, 0.4])]
    where = panel(*runs, planted("New", 3, [100], end="diverged"))
    (chosen,) = where.best("error").values()
    assert _settled(chosen[0], "error").endswith("**median 0.2 (0.1 to 0.4), 3 of 4 finite**")
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    draw(Experiment("a", "b", "c", "error"), [where], tmp_path / "a.png")
    line = saved[0].axes[0].lines[0]
    assert line.get_label() == "New (3 of 4 finite)" and line.get_ydata().tolist() == [100, 2, 0.2]


AHEAD, BEHIND = against([0.1, 0.12, 0.09], [0.5, 0.55, 0.52]), against([0.5, 0.55, 0.52], [0.1, 0.12, 0.09])
#: Differences with mean 0.5 and deviation 1 exactly.
NOISE = 0.5 + stats.zscore(np.random.default_rng(2).standard_normal(8), ddof=1)
NOISY = against([5.0] * 8, 5 + NOISE)
EQUAL = against([0.5, 0.52, 0.51], [0.5, 0.521, 0.508])


@pytest.mark.parametrize("tuned, stated, word, detail", [
    (AHEAD, None, "reproduced", ""),
    (BEHIND, None, "not reproduced", ""),
    (AHEAD, BEHIND, "reproduced", "tuned; not at the stated settings"),
    (BEHIND, AHEAD, "only at the stated settings", ""),
    (EQUAL, AHEAD, "only at the stated settings", ""),
    (BEHIND, BEHIND, "not reproduced", "not at the stated settings"),
    (EQUAL, BEHIND, "tie", None),
    (BEHIND, NOISY, "not reproduced", "open at the stated settings"),
    (NOISY, BEHIND, "not decided at this size", None),
])  # fmt: skip
def test_verdicts_on_the_tuned_and_the_stated_settings(tuned, stated, word, detail):
    """An open panel of the stated settings does not reopen a refuted claim."""
    it = claim(margin=0.1)
    reached = verdict(judge(it, tuned), *([judge(it, stated)] if stated else []))
    assert reached.word == word and (detail is None or reached.detail == detail)
    assert word != "only at the stated settings" or reached.pair.state == "holds"


@pytest.mark.parametrize("first, second, word, detail", [
    (AHEAD, BEHIND, "not decided at this size", "depends on the search"),
    (BEHIND, AHEAD, "not decided at this size", "depends on the search"),
    (EQUAL, AHEAD, "not decided at this size", "depends on the search"),
    (AHEAD, AHEAD, "reproduced", ""),
    (BEHIND, EQUAL, "only at the stated settings", ""),
    (AHEAD, NOISY, "reproduced", ""),
    (BEHIND, panel(), "only at the stated settings", ""),
])  # fmt: skip
def test_a_pair_that_two_searches_decide_differently_is_not_decided(first, second, word, detail):
    """The claim holds at the stated settings; an incomplete second search counts for nothing."""
    it = claim(margin=0.1)
    found = verdict(with_second_search(judge(it, first), judge(it, second), it), judge(it, AHEAD))
    assert (found.word, found.detail) == (word, detail)


@pytest.mark.parametrize("seeds", [3, 5, 10, 18, 30])
def test_planted_true_false_and_tied_claims_at_every_size(seeds):
    """Differences with mean ±1 or 0 and deviation 0.1 against a margin of 0.5.

    A standard error of 0.06 for three seeds leaves the margin 8 errors away, more than Student's 4.3.
    """
    noise = stats.zscore(np.random.default_rng(seeds).standard_normal(seeds), ddof=1) / 10
    for lead, word in ((1.0, "reproduced"), (-1.0, "not reproduced"), (0.0, "tie")):
        where = against([5.0] * seeds, 5 + lead + noise)
        assert verdict(judge(claim(margin=0.5), where)).word == word
        # Without a margin there is no tie.
        assert verdict(judge(claim(), where)).word == (word if lead else "not decided at this size")
        assert state(claim(tie=0.5), where) == ("tie" if not lead else "holds" if lead > 0 else "fails")


def test_curves_are_flat_if_the_best_method_gains_less_than_its_deviation():
    """The deviation over the seeds 1.0, 1.1, 1.2 is 0.1; values to minimise, on either scale."""
    worse = [planted("Old", seed, [9, 8, 5, 3]) for seed in range(3)]
    for gain, flat in ((0.05, True), (0.15, False)):
        best = [planted("New", seed, [9, 3, end + gain, end]) for seed, end in enumerate((1.0, 1.1, 1.2))]
        assert is_improving(claim(), panel(*best, *worse)) is not flat
        assert is_improving(claim(scale="log"), panel(*best, *worse)) is not flat
    assert not is_improving(claim(statistic="best"), panel(*best, *worse))
    lost = [planted("New", seed, [9, math.nan, math.nan, math.nan], end="diverged") for seed in range(3)]
    assert is_improving(claim(), panel(*lost, *worse)), "a method without finite values is not the best"


@pytest.mark.parametrize("changes, where, expected", [
    # The deviation of 1 leaves intervals of half a deviation at least, with eight seeds.
    (dict(margin=0.6), NOISY, "not decided"),
    (dict(margin=3), NOISY, "tie"),
    ({}, EQUAL, "not decided"),
    (dict(margin=0.1), EQUAL, "tie"),
    (dict(margin=0.3), AHEAD, "holds"),
    (dict(margin=0.5), AHEAD, "tie"),
    (dict(margin=0.5, tie=0.1), AHEAD, "fails"),
    ({}, against([0.9, 0.91, 0.92], [0.5, 0.51, 0.5], maximised=True), "holds"),
    (dict(statistic="rounds_to", target=0.2), AHEAD, "holds"),
    (dict(statistic="rounds_to", target=0.2), BEHIND, "fails"),
    (dict(than=(), than_level=0.3), AHEAD, "holds"),
    (dict(than=(), than_level=0.3), BEHIND, "fails"),
    (dict(better=(), methods=["New"], than=(), worse_than_level=0.3), BEHIND, "holds"),
    (dict(better=(), methods=["New"], than=(), worse_than_level=0.3), AHEAD, "fails"),
])  # fmt: skip
def test_margins_maximised_metrics_targets_and_levels(changes, where, expected):
    assert state(claim(**changes), where) == expected


def test_a_claim_that_holds_for_some_rivals_is_partly_reproduced():
    runs = [*three("New", 0.3), *three("Old", 0.5), *three("Same", 0.3), *three("Best", 0.1)]
    found = verdict(judge(claim(than=["Old", "Same", "Best"], margin=0.05), panel(*runs)))
    assert found.word == "partly reproduced" and found.pair.rival == "Best"
    assert found.detail == "holds: Old; tie: Same; fails: Best"
    assert verdict(judge(claim(than=["Same", "Best"], margin=0.05), panel(*runs))).word == "not reproduced"
    assert verdict(judge(claim(than=["Same"], margin=0.05), panel(*runs))).word == "tie"


def test_p_values_of_several_rivals_are_corrected():
    """Holm's method multiplies the smallest p-value by the number of rivals."""
    lead = 1.1 + stats.zscore(np.random.default_rng(2).standard_normal(8), ddof=1)
    rivals = [f"Old{number}" for number in range(5)]
    runs = [*ending("New", [5.0] * 8), *(run for name in rivals for run in ending(name, 5 + lead))]
    alone = judge(claim(than=["Old0"]), panel(*runs))
    assert alone.state == "holds" and alone.deciding.low > 0 and 0.01 < alone.deciding.p < 0.05
    together = judge(claim(than=rivals), panel(*runs))
    assert together.state == "not decided" and together.deciding.p == pytest.approx(5 * alone.deciding.p)


@pytest.mark.parametrize("margin", [-0.3, 0.0, 0.4, 1.1])
def test_p_values_agree_with_the_interval(margin):
    for seed in range(20):
        x = np.random.default_rng(seed).normal(0.4, 1, 5)
        (low, high), (above, below) = interval(x), p_values(x, margin)
        # The quantiles of 9,999 resamples and their counts may differ by one resample.
        if min(abs(low - margin), abs(high - margin)) > 1e-2:
            assert (above <= 0.025, below <= 0.025) == (low > margin, high < margin)
    assert p_values([0.5, 0.5, 0.5], 0.5) == (1, 0) and p_values([0.5, 0.5, 0.5], 0.4) == (0, 1)
    assert all(map(math.isnan, p_values([0.3], 0.0)))


LAW = {"along": "problem.n", "formula": "n ** -0.5", "law": "at least"}


def power(exponent: float, noise: float = 1e-3):
    """Return runs of New and Old whose errors are n^exponent and 1."""
    rng = np.random.default_rng(1)
    runs = [
        planted(name, seed, [9, n**own * np.exp(noise * rng.standard_normal())], problem={"n": n})
        for name, own in (("New", exponent), ("Old", 0.0))
        for n in (4, 16, 64)
        for seed in range(4)
    ]
    return panel(*runs, keys=["problem.n"])


@pytest.mark.parametrize(
    "exponent, at_least, equal",
    [(-0.5, "holds", "holds"), (-0.9, "holds", "fails"), (-0.2, "fails", "fails")],
)
def test_exponents_are_compared_with_that_of_a_formula(exponent, at_least, equal):
    it = claim(than=(), scale="log", margin=0.05, trend=LAW)
    found = judge(it, power(exponent))
    assert found.state == at_least
    assert (found.deciding.ours, found.deciding.theirs) == pytest.approx((exponent, -0.5), abs=0.01)
    assert state(dataclasses.replace(it, trend=LAW | {"law": "equal"}), power(exponent)) == equal
    assert state(dataclasses.replace(it, trend=LAW | {"law": "equal"}), power(exponent, 1.0)) == "not decided"
    lead = dataclasses.replace(it, than=["Old"], trend=LAW | {"formula": f"n ** {-exponent}", "law": "equal"})
    assert state(lead, power(exponent)) == "holds"


def test_a_formula_is_the_bound_of_the_theorem_or_an_expression():
    theory = dict(of="wang-kale-2", L=2.0, sigma=0.0, K=10, M=8, D=10.0)
    runs = [planted("New", seed, [9, 5 / R + seed / 1e6], theory=theory | {"R": R}, problem={"n": R})
            for R in (10, 40, 160) for seed in range(3)]  # fmt: skip
    where = panel(*with_err_D(runs), keys=["problem.n"])
    it = claim(than=(), scale="log", margin=0.05, metric="err_D", trend=LAW | {"formula": "bound"})
    assert judge(it, where).deciding.theirs == pytest.approx(-1)  # 2 L D² / (K R) without noise
    for text, said in (("m + 1", "no run has the setting 'm'"), ("n(2)", r"got n\(2\)"), ("n +", "invalid")):
        with pytest.raises(ConfigError, match=said):
            judge(dataclasses.replace(it, trend=LAW | {"formula": text}), where)
    with pytest.raises(ConfigError, match="names no theorem that bounds error"):
        judge(dataclasses.replace(it, metric="error"), where)
    with pytest.raises(ConfigError, match="needs values > 0 of the setting, got"):
        zero = [planted("New", 0, [1], problem={"n": n}) for n in (0, 1)]
        judge(dataclasses.replace(it, metric="error"), panel(*zero, keys=["problem.n"]))


def test_the_round_of_a_target_is_interpolated_between_evaluations():
    """From 1 to 0.01 in ten rounds, 0.1 is reached in the middle of the log axis."""
    it = claim(statistic="rounds_to", target=0.1)
    for curve, at in (([1, 0.01], 5), ([1, 0.1], 10), ([0.1, 0.01], 1), ([1, 0.5, 0.3, 0.05], 27)):
        assert values_by_seed(panel(planted("New", 0, curve)).settings[0], it) == {0: at}
    rising = panel(planted("New", 0, [0.5, 0.6, 1.0], maximised=True)).settings[0]
    # a quarter of the way from round 10 to 20
    assert values_by_seed(rising, claim(statistic="rounds_to", target=0.7)) == {0: 13}


def test_noise_decides_nothing_and_the_seeds_needed_are_those_of_the_planted_law():
    """34 seeds tell a mean of half a deviation from 0 four times in five: tables of the paired t-test."""
    found = judge(claim(), NOISY)
    assert found.state == "not decided" and found.deciding.needed == 34
    assert verdict(found, judge(claim(), AHEAD)).word == "not decided at this size"
    assert verdict(found).detail == "about 34 seeds needed"
    rng = np.random.default_rng(0)
    decided = [interval(rng.normal(0.5, 1, 34))[0] > 0 for _ in range(200)]
    # Four in five, within three standard errors of 200 trials, which is 0.085.
    assert 0.715 < np.mean(decided) < 0.885


@pytest.mark.parametrize("effect, seeds", [(1.0, 10), (0.5, 34), (0.2, 199)])
def test_seeds_needed_are_those_of_published_tables(effect, seeds):
    """G*Power, two-sided paired t-test, 5 %, power 0.8."""
    differences = effect + stats.zscore([0.3, -1, 2, 0.1], ddof=1)
    assert seeds_needed(differences, 0.0) == seeds_needed(differences + 3, 3.0) == seeds


def test_seeds_needed_where_there_is_nothing_to_estimate():
    assert seeds_needed([0.4], 0.0) == 3
    assert seeds_needed([0.1, 0.2, 0.3], 0.2) == math.inf
    assert seeds_needed([0.5, 0.5, 0.5], 0.0) == 2


@pytest.mark.parametrize(
    "law, seeds, least",
    [("normal", 3, 0.95), ("normal", 5, 0.95), ("exponential", 3, 0.90), ("exponential", 5, 0.93),
     ("lognormal", 3, 0.85), ("lognormal", 5, 0.90)],
)  # fmt: skip
def test_the_interval_covers_the_mean_as_often_as_it_says(law, seeds, least):
    """Coverage as in the module's table, within three standard errors of 400 samples."""
    rng = np.random.default_rng(7)
    mean = {"normal": 0, "exponential": 1, "lognormal": math.exp(0.5)}[law]
    ends = np.array([interval(getattr(rng, law)(size=seeds)) for _ in range(400)])
    covered = np.mean((ends[:, 0] <= mean) & (mean <= ends[:, 1]))
    assert covered > least - 3 * math.sqrt(least * (1 - least) / 400)


def test_interval_of_few_and_of_equal_differences():
    assert all(map(math.isnan, interval([0.3])))
    assert interval([0.3, 0.3, 0.3]) == pytest.approx((0.3, 0.3))
    low, high = interval([0.1, 0.2, 0.4])
    student = stats.ttest_1samp([0.1, 0.2, 0.4], 0).confidence_interval()
    assert low <= student.low and high >= student.high
    assert interval([0.1, 0.2, 0.4]) == (low, high)


def test_logarithms_compare_ratios():
    found = judge(claim(scale="log"), against([1e-3, 1e-4, 1e-5], [1e-1, 1e-2, 1e-3]))
    assert found.deciding.mean == pytest.approx(2) and found.deciding.ours == pytest.approx(1e-4)
    with pytest.raises(ConfigError, match="needs positive values, got 0"):
        judge(claim(scale="log"), against([0.0, 0.0], [1.0, 1.0]))


def test_every_pair_has_to_hold_and_one_of_several_where_that_is_claimed():
    runs = [*three("New", 0.1), *three("Newer", 0.7), *three("Old", 0.5)]
    found = judge(claim(better=["New", "Newer"]), panel(*runs))
    assert found.state == "partly" and found.deciding.subject == "Newer" and len(found.pairs) == 2
    assert [outcome(found.pairs), outcome(found.pairs[:1])] == ["holds: Old; fails: Old", "holds"]
    assert state(claim(better=["New", "Newer"], all=False), panel(*runs)) == "holds"
    assert state(claim(better=["Newer"], than=["New", "Old"], all=False), panel(*runs)) == "fails"


def test_every_task_has_to_hold_and_where_takes_some():
    ends = (1, "New", 0.1), (1, "Old", 0.5), (10, "New", 0.6), (10, "Old", 0.5)
    runs = [run for s, name, end in ends for run in three(name, end, problem={"s": s})]
    tasks = panel(*runs, keys=["problem.s"])
    assert [one.task for one in judge(claim(), tasks).pairs] == ["s = 1", "s = 10"]
    assert state(claim(), tasks) == "partly"
    assert state(claim(where={"problem.s": 1}), tasks) == "holds"
    assert state(claim(where={"problem.s": [1, 10]}), tasks) == "partly"
    assert state(claim(where={"problem.s": 7}), tasks) == "not run"
    with pytest.raises(ConfigError, match=r"no run has the setting 'problem.q'.*problem.s"):
        judge(claim(where={"problem.q": 7}), tasks)
    with pytest.raises(ConfigError, match=r"the runs of New differ in problem.s"):
        judge(claim(), panel(*runs))


def test_a_figure_has_a_cell_for_each_task_that_is_drawn(tmp_path):
    runs = panel(*[planted("New", 0, [1, 0.1], problem={"s": s}) for s in (1, 10)], keys=["problem.s"])
    for drawn, cells in (({}, 2), ({"problem.s": 10}, 1), ({"problem.s": 7}, 2)):
        shown = Experiment("planted", "huang2024adafgda", "Planted", "error", drawn=drawn)
        draw(shown, [runs], tmp_path / "figure.png")
        width = imread(tmp_path / "figure.png").shape[1]
        assert width == 80 + 340 * cells  # 3.4 inches per cell


def test_a_grid_counts_with_the_best_of_each_method():
    ends = ("New", 0.1, 0.2), ("New", 1.0, 0.9), ("Old", 0.1, 0.5), ("Old", 1.0, 0.4)
    runs = [run for name, gamma, end in ends for run in three(name, end, algorithm={"gamma": gamma})]
    found = judge(claim(), panel(*runs)).deciding
    assert (found.ours, found.theirs) == pytest.approx((0.21, 0.41))
    assert state(claim(better=["New,gamma=1.0"]), panel(*runs)) == "fails"


def lost(name: str, seeds) -> list:
    """Return runs that diverge at their second evaluation."""
    return [planted(name, seed, [3, np.nan], end="diverged") for seed in seeds]


@pytest.mark.parametrize("seeds", [3, 5, 12, 24])
def test_a_method_that_diverges_more_often_is_not_ahead(seeds):
    """Every run of New diverges, or of Old, or only the first one."""
    old, new = ending("Old", 0.5 + np.arange(seeds) / 100), ending("New", 0.4 + np.arange(seeds) / 100)
    found = judge(claim(), panel(*old, *lost("New", range(seeds))))
    assert found.state == "fails" and found.deciding.lost == (seeds, 0, seeds)
    assert math.isnan(found.deciding.ours) and found.deciding.seeds == 0
    assert state(claim(), panel(*lost("Old", range(seeds)), *new)) == "holds"
    one = judge(claim(), panel(*old, *lost("New", [0]), *new[1:])).deciding
    assert one.lost == (1, 0, seeds) and one.seeds == seeds - 1
    assert one.mean == pytest.approx(0.1) and one.state == "holds", "only finite runs are compared"
    both = judge(claim(), panel(*lost("Old", range(seeds)), *lost("New", range(seeds))))
    assert both.state == "not decided"


def test_a_diverged_seed_is_a_failure_against_a_level_and_leaves_a_trend():
    """At the level of 0.6, two of three seeds are ahead; the diverged one has the worst value, 3."""
    runs = [*ending("New", [0.5, 0.5]), *lost("New", [2])]
    level = judge(claim(than=(), than_level=0.6), panel(*runs)).deciding
    assert level.ours == pytest.approx(4 / 3) and level.seeds == 3
    steps = [one for at, end in ((1.0, 0.5), (2.0, 0.4)) for one in three("New", end, problem={"s": at})]
    steps[0] = planted("New", 0, [3, np.nan], end="diverged", problem={"s": 1.0})
    it = claim(than=(), trend={"along": "problem.s", "grows": "rising"})
    assert judge(it, panel(*steps, keys=["problem.s"])).deciding.seeds == 2


@pytest.mark.parametrize("seeds", [3, 5, 12, 18, 24])
def test_the_wider_question_of_planted_leads(seeds):
    """Leads of 1, 0.2, -0.2 and -1 with a deviation of 0.03, against a margin of 0.5."""
    noise = 0.03 * stats.zscore(np.random.default_rng(seeds).standard_normal(seeds), ddof=1)
    where = {lead: against([5.0] * seeds, 5 + lead + noise) for lead in (1, 0.2, -0.2, -1)}
    words = [in_practice(claim(), 0.5, one).word for one in where.values()]
    assert words == ["practically ahead", "practically equal", "practically equal", "no practical lead"]
    assert in_practice(claim(), 0.5, where[1], where[-1]).word == "open", "the searches contradict each other"
    wide = against([5.0] * seeds, 5 + 0.45 + 20 * noise)
    assert in_practice(claim(), 0.5, wide).word == "open"


def test_the_wider_question_about_several_rivals():
    runs = [*three("New", 0.3), *three("Old", 0.5), *three("Same", 0.3), *three("Best", 0.1)]
    found = in_practice(claim(than=["Old", "Same"]), 0.05, panel(*runs))
    assert (found.word, found.detail) == ("practically ahead of some", "ahead: Old; practically equal: Same")
    found = in_practice(claim(than=["Same", "Best"]), 0.05, panel(*runs))
    assert (found.word, found.detail) == ("no practical lead", "practically equal: Same; not ahead: Best")
    best = in_practice(claim(better=["New", "Best"], than=["Old"], all=False), 0.3, panel(*runs))
    assert best.word == "practically ahead" and best.pair.subject == "Best"


def test_the_wider_question_has_the_margin_of_the_quantity():
    book = Book(Path(), [], {}, {}, practical={"error": 0.01, "ratio": 1.25})
    assert book.practical_margin(claim(margin=0.002)) == 0.01
    assert book.practical_margin(claim(scale="log")) == pytest.approx(math.log10(1.25))
    assert book.practical_margin(claim(margin=0.02, tie=0.002)) == 0.01, "the tie becomes wider"
    slope = claim(statistic="slope", than=(), than_level=0.0)
    for other in (claim(margin=0.01), claim(metric="loss"), slope):
        assert book.practical_margin(other) == 0


def test_rounds_calls_and_bytes_to_a_target():
    one = panel(planted("New", 0, [1, 0.5, 0.1, 0.1]), planted("Old", 0, [1, 0.9, 0.8, 0.7]))
    for statistic, cost in (("rounds_to", 16), ("calls_to", 32), ("bytes_to", 112)):
        it = claim(statistic=statistic, target=0.2)
        assert values_by_seed(one.settings[0], it) == {0: cost}
        assert math.isnan(values_by_seed(one.settings[1], it)[0])
        # Four evaluations of the run, and another ten rounds.
        assert worst(one.settings, it) == cost / 16 * 40


def test_a_grid_counts_with_the_setting_that_reaches_a_target_first():
    fast, slow = [1, 0.1, 0.05], [1, 0.5, 0.01]
    runs = [planted("New", seed, curve, algorithm={"gamma": gamma})
            for gamma, curve in ((0.1, slow), (1.0, fast)) for seed in range(2)]  # fmt: skip
    old = [planted("Old", seed, [1, 0.5, 0.1]) for seed in range(2)]
    found = judge(claim(statistic="rounds_to", target=0.1), panel(*runs, *old)).deciding
    assert (found.ours, found.theirs) == pytest.approx((10, 20))


def test_a_target_that_none_reaches_decides_nothing():
    found = judge(claim(statistic="rounds_to", target=1e-6), AHEAD)
    assert found.state == "not decided" and verdict(found).detail == "no run reaches the target"


def test_slopes_means_and_bests():
    falling, rising = [1, 0.1, 0.01], [0.01, 0.1, 1]
    one = panel(planted("New", 0, falling), planted("Old", 0, rising)).settings
    assert values_by_seed(one[0], claim(statistic="slope"))[0] == pytest.approx(-0.1)  # log10 per ten rounds
    assert values_by_seed(one[0], claim(statistic="mean"))[0] == pytest.approx(0.37)
    assert values_by_seed(one[1], claim(statistic="best"))[0] == 0.01


def test_the_bound_is_that_of_the_runs_own_theorem():
    theory = dict(of="wang-kale-2", L=2.0, sigma=0.3, K=10, R=80, M=8, D=10.0)
    runs = [planted("New", seed, [9, 0.1 + seed / 100], theory=theory) for seed in range(3)]
    it = claim(than=(), than_bound="wang-kale-2", metric="err_D")
    found = judge(it, panel(*with_err_D(runs)))
    assert found.state == "holds" and found.deciding.theirs == pytest.approx(7.8, abs=2)
    with pytest.raises(ConfigError, match="names no theorem that bounds error"):
        judge(claim(than=(), than_bound="wang-kale-2"), AHEAD)


@pytest.mark.parametrize("grows, expected", [("falling", "holds"), ("rising", "fails")])
def test_a_lead_that_grows_along_a_setting(grows, expected):
    runs = [
        planted(name, seed, [1, end * (1 + seed / 100)], problem={"lam": lam})
        for lam, new, old in ((0.1, 0.1, 0.2), (0.01, 0.1, 0.4), (0.001, 0.1, 0.8))
        for name, end in (("New", new), ("Old", old))
        for seed in range(3)
    ]
    it = claim(scale="log", trend={"along": "problem.lam", "grows": grows})
    found = judge(it, panel(*runs, keys=["problem.lam"]))
    assert found.state == expected
    assert abs(found.deciding.mean) == pytest.approx(math.log10(2))  # the ratio doubles from one to the next
    alone = claim(better=["Old"], than=(), trend={"along": "problem.lam", "grows": "rising"})
    assert state(alone, panel(*runs, keys=["problem.lam"])) == "holds"
    with pytest.raises(ConfigError, match=r"a trend along problem.lam"):
        judge(it, panel(*runs, keys=["problem.s"]))


def test_missing_runs_are_reported():
    only = panel(planted("New", 0, [1, 0.1]))
    found = judge(claim(), only)
    assert (found.state, found.missing) == ("not run", "Old is missing")
    assert state(claim(), panel()) == "not run"
    assert verdict(judge(claim(), BEHIND), judge(claim(), panel())).word == "not run"
    assert verdict(judge(claim(), AHEAD), judge(claim(), panel())).word == "reproduced"


def test_a_claim_is_open_while_runs_of_its_job_are_missing():
    whole = against([0.1, 0.12, 0.11], [0.9, 0.8, 0.85])
    part = dataclasses.replace(whole, missing=2)
    assert judge(claim(), whole).state == "holds"
    found = judge(claim(), part)
    assert (found.state, found.missing) == ("not run", "runs missing: 2") and found.pairs


def test_one_seed_decides_nothing():
    found = judge(claim(), panel(planted("New", 0, [1, 0.1]), planted("Old", 0, [1, 0.9])))
    assert found.state == "not decided" and verdict(found).detail == "about 3 seeds needed"


def test_methods_are_named_with_settings_and_tasks_by_values():
    setting = panel(planted("New", 0, [1], algorithm={"p": 0.0, "q": 4})).settings[0]
    assert matches(setting, "New,p=0.0,q=4") and not matches(setting, "New,p=0.1")
    assert task_title(("mnist", 4), ["problem.dataset", "algorithm.q|algorithm.p"]) == "mnist, q = 4"


def written(folder: Path, text: str) -> Path:
    """Write a file of claims and a job next to it."""
    (folder / "job.toml").write_text("# A job.\n")
    path = folder / "claims.toml"
    path.write_text(text)
    return path


ENTRY = """
[[claim]]
name = "one"
paper = "huang2024adafgda"
place = "here"
says = "New is better"
job = "job"
metric = "error"
better = ["New"]
than = ["Old"]
"""


def test_an_experiment_is_shown_with_its_claims(tmp_path):
    book = read(written(tmp_path, ENTRY))
    one = book.experiments["job"]
    assert (one.title, one.metric, one.source) == ("A job", "error", "huang2024adafgda")
    book = read(written(tmp_path, ENTRY + '[experiment.job]\nsource = "wang_nd_slippax"\nmetric = "gap"'))
    assert (book.experiments["job"].metric, book.experiments["job"].title) == ("gap", "A job")


@pytest.mark.parametrize("old, new, said", [
    ("[[claim]]", "[[claims]]", "unknown 'claims': did you mean 'claim'"),
    ("better =", "beter =", "claim 'one': unknown 'beter': did you mean 'better'"),
    ('metric = "error"', "", "claim 'one': expected 'metric', which is missing"),
    ('job = "job"', 'job = "jop"', "no job file jop.toml in .*did you mean 'job'"),
    ("huang2024adafgda", "huang2024adafgd", "no key 'huang2024adafgd' in references.bib: did you mean"),
    ('["New"]', '"New"', 'expected better = Sequence.str., got "New"'),
    ('than = ["Old"]', "", "expected one of than, than_level, than_bound, worse_than_level, or a trend"),
    ('than = ["Old"]', 'than = ["Old"]\nthan_level = 1', "got .'than', 'than_level'."),
    ('than = ["Old"]', "worse_than_level = 1", "expected the methods in 'methods'"),
    ('than = ["Old"]', 'than_bound = "wang-kale-22"', "no theorem 'wang-kale-22': did you mean"),
    ("", 'statistic = "finale"', "no statistic 'finale': did you mean 'final'"),
    ("", 'statistic = "rounds_to"', "expected a target only for"),
    ("", 'statistic = "slope"\nscale = "log"', "since a slope is that of the logarithm"),
    ("", "margin = -1", "expected a margin of at least 0, got -1"),
    ("", 'trend = { along = "problem.s" }', "expected trend = "),
    ("", "tie = -1.0", "expected tie > 0"),
    ("", 'trend = { along = "problem.s", formula = "s", law = "equal" }', "the tolerance of the exponent"),
    ("[[claim]]", 'page = "papers"\n[[claim]]', "no page 'papers'"),
    ("[[claim]]", "[paper.wang_nd_slippax]\n[[claim]]", r"\[paper.wang_nd_slippax\]: expected 'title'"),
    ("[[claim]]", "paper.wang_nd_slippax = 3\n[[claim]]", r"\[paper.wang_nd_slippax\]: expected a table"),
    ("[[claim]]", ENTRY + "[[claim]]", "two claims are called 'one'"),
    ("[[claim]]", "[experiment.jop]\n[[claim]]", r"\[experiment.jop\]: no job file jop.toml"),
])  # fmt: skip
def test_errors_in_a_file_of_claims(old, new, said, tmp_path):
    """``new`` replaces ``old`` in the entry, or is appended to it."""
    with pytest.raises(ConfigError, match=said):
        read(written(tmp_path, ENTRY.replace(old, new, 1) if old else ENTRY + new))


JOB = """# {title}.
rounds = 20
output = "last"

[problem]
name = "AffineGame"
clients = 2
smooth = 0.0
d = 2

[oracle]
noise = {{ name = "gaussian", scale = 0.01 }}

[run]
eval_every = 5
out = "{out}"
"""
CLAIM = """
[[claim]]
name = "{}"
paper = "wang_nd_slippax"
place = "here"
says = "One is ahead of the other"
job = "{}"
metric = "err_D"
scale = "log"
better = ["{}"]
than = ["{}"]
"""
TUNE = """
[tune]
runs = 3
seeds = 1
fresh = 3
[[tune.methods]]
name = "LSGD"
K = 5
eta = [0.03, 0.3]
[[tune.methods]]
name = "LESGD"
K = 5
eta = {{ low = 0.09, high = 0.1 }}
"""
SWEEP = """
[sweep]
seed = [0, 1, 2]
algorithm = [
    {{ name = "LSGD", K = 5, eta = {lsgd} }},
    {{ name = "LESGD", K = 5, eta = {lesgd} }},
]
"""


def test_the_pages_are_made_from_an_empty_folder(tmp_path):
    """On a rotation, LESGD is better than LSGD, and worse if its step is too large."""
    jobs = tmp_path / "jobs"
    (jobs / "stated").mkdir(parents=True)
    for name, out, own in (
        ("rotation", "runs/rotation", TUNE.format()),
        ("stated/rotation", "runs/stated", SWEEP.format(lsgd=0.03, lesgd=3.0)),
        ("later", "runs/later", SWEEP.format(lsgd=0.1, lesgd=0.1)),
    ):
        (jobs / f"{name}.toml").write_text(JOB.format(title=f"A rotation, {name}", out=out) + own)
    entries = {"true": ("rotation", "LESGD", "LSGD"), "false": ("rotation", "LSGD", "LESGD"),
               "open": ("later", "LESGD", "LSGD")}  # fmt: skip
    twice = '[experiment.rotation]\nsource = "wang_nd_slippax"\nmetric = "err_D"\nsearches = 2\n'
    claims = [CLAIM.format(name, *own) for name, own in entries.items()]
    paper = '[paper.wang_nd_slippax]\ntitle = "Games"\npage = "games"\n'
    (jobs / "claims.toml").write_text("".join([paper, twice, *claims]))
    expected = {"true": "reproduced", "false": "only at the stated settings", "open": "not run"}
    for more in (["true"], ["--draw"]):
        assert verdicts(tmp_path, "jobs/claims.toml", *more)[0] == expected
    page, index = pages(tmp_path)
    assert "(games.md#a-rotation-later) | **not run** (runs missing: 6) |  |  |  |" in index
    command = "`python scripts/evidence/reproduce.py --claims jobs/claims.toml later`"
    assert "LESGD" in page and command in page
    assert (tmp_path / "docs/papers/rotation.png").read_bytes()[:4] == b"\x89PNG"
    assert "| search noise |" in page and "| second search |" in page
    assert "| [One is ahead of the other](#a-rotation-rotation) | **reproduced** (tuned" in page
    every, selected = verdicts(tmp_path, "jobs/claims.toml", "true", "later", "--processes", "2")
    assert every["open"] == "reproduced" and [*selected] == ["true", "open"]
    written = pages(tmp_path)
    shutil.rmtree(tmp_path / "runs")
    verdicts(tmp_path, "jobs/claims.toml", "--draw")
    assert pages(tmp_path) == written, "stored results give the same pages"
    (jobs / "results/later.jsonl.xz").unlink()
    every, selected = verdicts(tmp_path, "jobs/claims.toml", "open")
    assert selected == {"open": "reproduced"} and every == expected | selected
    assert not (tmp_path / "runs/rotation").exists(), "only the experiment of the selected claim is repeated"
    job = jobs / "later.toml"
    job.write_text(job.read_text().replace("eta = 0.1 }", "eta = 0.11 }"))
    shutil.rmtree(tmp_path / "runs")
    found = verdicts(tmp_path, "jobs/claims.toml", "--draw")
    assert found == (expected, {}), "results of another job do not count"


def test_results_in_the_size_of_the_paper_are_shown_without_a_verdict(tmp_path, monkeypatch, capsys):
    """The job of the full size has another step of LSGD; one of its seeds is run."""
    jobs = tmp_path / "jobs"
    (jobs / "full").mkdir(parents=True)
    for name, lsgd in (("rotation", 0.1), ("full/rotation", 0.2)):
        job = JOB.format(title="A rotation", out=f"runs/{name}") + SWEEP.format(lsgd=lsgd, lesgd=0.1)
        (jobs / f"{name}.toml").write_text(job)
    (jobs / "claims.toml").write_text(CLAIM.format("true", "rotation", "LESGD", "LSGD"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce, "CLAIMS", jobs / "claims.toml")
    full = ["rotation", "--full", "--store", "sweep.seed=[0]"]
    for words in (["rotation"], full, ["--claims", "--draw", "--out", "docs"]):
        monkeypatch.setattr(sys, "argv", ["reproduce.py", *words])
        assert reproduce.main() == 0
    text = (tmp_path / "docs/experiments/wang_nd_slippax.md").read_text()
    processor = machine(torch.device("cpu"))["processor"]
    assert "Panel *full size*, seeds 0: " in text and "with `sweep.seed=[0]`, without a verdict" in text
    assert text.count(f"Total time of the rounds ({processor}): ") == 2
    assert re.search(r"^\|  \| LSGD \| eta 0.2: \*\*\S+ \| eta 0.1: \*\*[^|]+ \|$", text, re.M)
    next(Path("runs/full").rglob("run.h5")).unlink()
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "--draw", *full])
    with pytest.raises(SystemExit):
        reproduce.main()
    assert "rotation: runs that have not finished in the paper's size: 1" in capsys.readouterr().err


@pytest.mark.parametrize("folder, source", [("theory", "jobs/theory/claims.toml "), ("papers", "")])
def test_the_pages_follow_from_the_stored_results(folder, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # without runs
    book = read(ROOT / f"jobs/{folder}/claims.toml")
    write(book, sections(book, {}), source, tmp_path / "docs")
    written = [path.relative_to(tmp_path) for path in tmp_path.glob("docs/**/*.md")]
    assert len(written) == (len(book.papers) + 1 if folder == "papers" else 1)
    for path in written:
        assert (tmp_path / path).read_text() == (ROOT / path).read_text(), path


def test_the_bounds_on_the_page_of_the_theory_are_those_of_the_games(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # without runs
    book = read(ROOT / "jobs/papers/claims.toml")
    (games,) = panels_of(book, book.experiments["bounds_of_the_theorems"])
    page = " ".join((ROOT / "docs/theory.md").read_text().split())
    job = {"rounds": 40, "algorithm.K": 8, "problem.clients": 8, "oracle.noise.scale": 0.1}
    stated = {
        "wang-kale-3": "113 with H = 8 inner steps, 13.5 with 20 and 10.2 from 40 on",
        "wang-kale-4": "35,107 with H = 8, 1,566 with 20 and 473 with 40",
    }
    for name, text in stated.items():
        (setting,) = restricted(games, job | {"algorithm.eta": name}).settings
        theories = [run.config["theory"] for run in setting.runs]
        constants = [{key: own[key] for key in own.keys() - {"of", "times"}} for own in theories]
        bounds = [
            np.mean([prescribe(name, **own | {"H": H}).bound for own in constants]) for H in (8, 20, 40)
        ]
        numbers = [float(word.replace(",", "")) for word in re.findall(r"(?<!= )\b[\d,.]*\d\b", text)]
        printed = [number for number in numbers if number not in (8, 20, 40)]
        assert text in page and printed == pytest.approx(bounds, rel=5e-3), name  # three digits
    # The last bound with more inner steps, and the initial errors of both theorems' runs.
    last = np.mean([prescribe("wang-kale-4", **own | {"H": 400}).bound for own in constants])
    third, fourth = (
        restricted(games, job | {"algorithm.eta": name}).settings[0].runs
        for name in ("wang-kale-3", "wang-kale-4")
    )
    starts = [np.mean([run.metrics["err_D"][0] for run in runs]) for runs in (third, fourth)]
    assert f"the initial error is {starts[0]:.0f}" in page
    # 14.5 is rounded up.
    text = (
        f"keeps it at {last:.0f} for every larger H, above the initial error of {math.floor(starts[1] + 0.5)}"
    )
    assert text in page, (last, starts)


@pytest.fixture(scope="module")
def books() -> dict:
    """Return the entries of both pages, by the folder of the jobs."""
    return {name: read(ROOT / f"jobs/{name}/claims.toml") for name in ("theory", "papers")}


def first_panel(book, it: Claim):
    """Return the stored results that a claim is judged by."""
    return panels_of(book, book.experiments[it.job])[0]


def test_bounds_are_as_many_times_the_measured_values_as_the_page_of_the_theory_says(
    books, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # without runs
    ratios: dict[str, list[float]] = {}
    for it in books["theory"].claims:
        if it.than_bound:
            pairs = judge(it, first_panel(books["theory"], it)).pairs
            ratios.setdefault(it.than_bound.rpartition("-")[2], []).extend(10**pair.mean for pair in pairs)
    sixth = ratios.pop("6")
    others = [ratio for own in ratios.values() for ratio in own]
    least, most = (f"{value:.0e}".replace("e+0", "e") for value in (min(sixth), max(sixth)))
    assert [*ratios] == ["1", "2", "3", "7"]
    text = f"are {min(others):.0f} to {max(others):.0f} for Theorems 1, 2, 3 and 7, and {least} to {most} for"
    assert f"{text} Theorem 6" in " ".join((ROOT / "docs/theory.md").read_text().split())


def test_open_claims_have_a_reason_and_changed_verdicts_have_changed(books, tmp_path, monkeypatch):
    """Of a claim with the same verdict as before, the wider question has been answered since."""
    monkeypatch.chdir(tmp_path)  # without runs
    found = [one for part in sections(books["papers"], {}) for one in part.claims]
    assert len(found) == 87 and sum(one.is_open for one in found) <= 8
    for one in found:
        assert bool(one.claim.still_open) == one.is_open, one.claim.name
        assert bool(one.claim.was) == bool(one.claim.because), one.claim.name
        assert one.claim.was != one.verdict.word or (one.practical and not one.is_open), one.claim.name


def test_exponents_of_laws_have_one_tolerance(books):
    """0.05 on both pages, and 0.02 for independence, as the page of the theory states."""
    laws = [it for book in books.values() for it in book.claims if it.law]
    assert {it.margin for it in laws if it.trend["formula"] != "1"} == {0.05}
    assert {it.margin for it in laws if it.trend["formula"] == "1"} == {0.02}


def test_notes_about_the_composite_gap_are_those_of_both_jobs(books, tmp_path, monkeypatch):
    """Its exponent, from R = 10 and from R = 40 on. According to the page of the theory, more seeds do not
    reproduce the claim, but that about ProxSkip."""
    monkeypatch.chdir(tmp_path)  # without runs
    gaps = {"theory": "rate_of_dual_extrapolation", "papers": "gap_falls_with_rounds"}
    (proxskip,) = (it for it in books["theory"].claims if it.name == "local_steps_of_proxskip")
    assert judge(proxskip, first_panel(books["theory"], proxskip)).state == "holds"
    states, exponents = {}, {}
    for name, book in books.items():
        (it,) = (one for one in book.claims if one.name == gaps[name])
        where = first_panel(book, it)
        states[name] = judge(it, where).state
        later = dataclasses.replace(it, where=it.where | {"rounds": [40, 160, 640]})
        exponents[name] = f"{judge(later, where).deciding.ours:.2f}"
        assert f"the exponents of both pages are {exponents[name]}" in it.note
    assert states == {"theory": "fails", "papers": "fails"}


def test_the_choice_of_the_best_setting_is_stated(books, tmp_path, monkeypatch):
    """Where a method of a claim has several settings in a task, the note of the experiment says so."""
    monkeypatch.chdir(tmp_path)  # without runs
    book, chosen = books["theory"], set()
    for it in book.claims:
        for settings in restricted(first_panel(book, it), it.where).tasks().values():
            names = [one.name for one in settings]
            if any(names.count(name) > 1 for name in (*it.subjects, *it.than)):
                chosen.add(it.job)
    assert chosen == {"kappa", "local_steps", "finite_max", "tails", "nonlinear"}
    assert all("on the seeds of the test count" in book.experiments[job].note for job in chosen)


def test_tail_indices_on_the_page_of_measures_are_those_of_the_texts(books, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # without runs
    (panel_of_texts,) = panels_of(books["papers"], books["papers"].experiments["noise_of_texts"])
    columns = ("tail", "tail_low", "tail_high")
    values = np.concatenate(
        [
            np.transpose([run.metrics[name] for name in columns])
            for one in panel_of_texts.settings
            for run in one.runs
        ]
    )
    low, high = values[values[:, 1].argmin(), 1:]
    text = (
        f"the estimates are between {values[:, 0].min():.1f} and {values[:, 0].max():.1f}, and the lowest "
        f"confidence interval is {low:.1f} to {high:.1f}"
    )
    assert text in " ".join((ROOT / "docs/measures.md").read_text().split())


def test_the_headline_page_follows_from_the_stored_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # without runs
    monkeypatch.setattr(sys, "argv", ["headlines.py", str(tmp_path / "docs")])
    assert headlines.main() == 0
    page = (tmp_path / "docs/headlines.md").read_text()
    assert page == (ROOT / "docs/headlines.md").read_text(), "run python scripts/evidence/headlines.py"
    drawn = {path.name: path for path in (tmp_path / "docs/headlines").iterdir()}
    assert sorted(drawn) == sorted(re.findall(r"\(headlines/(.*?)\)", page))
    assert all(imread(path).shape[:2] == (320, 420) for path in drawn.values())


def verdicts(folder: Path, *arguments: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the verdicts that reproduce.py prints of all claims, and of the selected claims."""
    command = [sys.executable, SCRIPT, "--claims", *arguments, "--out", "docs"]
    done = subprocess.run(command, cwd=folder, env=environment(), timeout=200, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    before, _, after = done.stdout.partition("\nThe selected claims:\n")
    *_, first, second, third, _ = before.splitlines()
    return by_claim([first, second, third]), by_claim(after.splitlines())


def by_claim(lines: Sequence[str]) -> dict[str, str]:
    """Return the verdicts in lines of a summary, by claim."""
    said = [re.split(" {2,}", line) for line in lines]
    return {name.partition(" (")[0]: word for word, name in said}


@pytest.mark.parametrize("user", [0, 1000])
def test_searches_on_several_ranks_start_as_root(monkeypatch, user):
    """Open MPI's mpirun refuses to, unless two variables are set."""
    started = []
    monkeypatch.setattr(os, "geteuid", lambda: user)
    for name in (names := ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")):
        monkeypatch.delenv(name, raising=False)
    process = SimpleNamespace(wait=lambda: 0)
    monkeypatch.setattr(subprocess, "Popen", lambda command, env: started.append(env) or process)
    assert execute(["tune", "job.toml"], 2) == 0
    assert [[env.get(name) for name in names] for env in started] == [[None if user else "1"] * 2]


def pages(folder: Path) -> tuple[str, str]:
    """Return the page of the paper and the index."""
    return tuple((folder / "docs/experiments" / name).read_text() for name in ("games.md", "index.md"))


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_exit_code_of_a_failed_experiment_is_returned(processes, tmp_path, monkeypatch):
    table = '[experiment.{}]\nsource = "huang2024adafgda"\nmetric = "error"\n'
    written(tmp_path, "".join(map(table.format, "abc")) + ENTRY.replace('"job"', '"a"'))
    for name in "abc":
        (tmp_path / f"{name}.toml").write_text('[run]\nout = "runs"\n')
    monkeypatch.chdir(tmp_path)
    options = ["--claims", "claims.toml", "--processes", processes, "--out", "docs"]
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *options])
    monkeypatch.setattr(reproduce, "execute", lambda command, processes, quiet: 3 * ("b.toml" in command[1]))
    monkeypatch.setattr(reproduce.page, "store", lambda book, one: [])
    assert reproduce.main() == 3 and not (tmp_path / "docs").exists()


@pytest.mark.parametrize("words, said", [
    (["--claims", "claims.toml"], "unknown 'beter'"),
    (["--claims", "rounds=3"], "cannot be combined with KEY=VALUE"),
    (["auc_mnits"], "no experiment 'auc_mnits': did you mean 'auc_mnist'"),
])  # fmt: skip
def test_errors_are_found_before_any_run(words, said, tmp_path, monkeypatch, capsys):
    written(tmp_path, ENTRY.replace("better =", "beter ="))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *words])
    monkeypatch.setattr(reproduce, "execute", None)
    with pytest.raises(SystemExit) as end:
        reproduce.main()
    assert end.value.code == 2 and said in capsys.readouterr().err
