"""The search with known values of the metric: accuracy, budget, brackets and extended ranges."""

import math
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifed.base.errors import ConfigError
from mpifed.config.space import Choice, Range
from mpifed.core.metrics import Column
from mpifed.tuning.results import result_of
from mpifed.tuning.search import Search, Trial, rung_rounds
from mpifed.tuning.trials import Preview, TrialOutcome

ROUNDS = 180


def search(
    value,
    open,
    runs=16,
    seeds=3,
    rounds=ROUNDS,
    sign=1,
    each=1,
    refuse=lambda settings: False,
    least=1,
    risk=0.0,
) -> Search:
    """Return a finished search, in which ``value(settings, rounds, seed)`` is the outcome of a run."""

    def config(settings):
        if refuse(settings):
            raise ConfigError("these do not go together")

    study = SimpleNamespace(
        task="", method="M", rounds=rounds, seed=0, config=config, space=SimpleNamespace(open=open)
    )
    preview = Preview(each, each, {"m": Column("m")})
    finished = Search(study, seeds, runs * rounds * each, preview, sign, least, risk)
    steps, outcomes = finished.requests(), None
    while True:
        try:
            requests = steps.send(outcomes)
        except StopIteration:
            return finished
        assert requests
        values = [value(run.settings, run.rounds, run.seed) for run in requests]
        outcomes = [TrialOutcome(result, run.rounds * each) for result, run in zip(values, requests)]


def error(step: float, rounds: int, slow: float, fast: float, noise: float) -> float:
    """Return the error of descent with two curvatures: the best step for few rounds is too large for many."""
    falls = (math.exp(min(700, 2 * rounds * math.log(abs(1 - step * bend) + 1e-12))) for bend in (slow, fast))
    return sum(falls) + noise * step


def quadratic(number: int, size: int):
    """Return the outcomes of a problem with one step per block, and the best steps; seeds differ by 20 %."""
    rng = np.random.default_rng(number)
    blocks = [
        (slow, slow * 10 ** rng.uniform(0.3, 1.5), 10 ** rng.uniform(-3, -1))
        for slow in 10 ** rng.uniform(-1.5, 1, size)
    ]

    def value(settings, rounds, seed):
        draw = np.random.default_rng([zlib.crc32(repr(settings).encode()), seed]).standard_normal()
        total = sum(error(step, rounds, *block) for step, block in zip(settings.values(), blocks))
        return total * math.exp(0.2 * draw) if total < 1e20 else math.nan

    steps = np.logspace(-5, 1.5, 3000)
    return value, [steps[np.argmin([error(step, ROUNDS, *block) for step in steps])] for block in blocks]


def test_the_best_step_is_found_with_half_the_budget_of_a_grid():
    """A grid from 1e-4 to 10 with factors of two and three seeds has 54 runs."""
    grid, open, near = 54, {"eta": Range(1e-4, 10.0)}, 0
    for number in range(10):
        value, (best,) = quadratic(number, 1)
        finished = search(value, open, runs=grid // 2)
        near += 0.5 <= finished.best.settings["eta"] / best <= 2
        assert finished.spent <= grid * ROUNDS / 2
    assert near == 10
    open = {"eta_x": Range(1e-4, 10.0), "eta_y": Range(1e-4, 10.0)}  # a grid of 972 runs
    ratios = []
    for number in range(8):
        value, best = quadratic(number, 2)
        ratios += np.divide([*search(value, open, runs=54).best.settings.values()], best).tolist()
    assert np.mean([0.5 <= ratio <= 2 for ratio in ratios]) >= 0.7


@settings(deadline=None, max_examples=10)
@given(
    runs=st.integers(4, 30),
    seeds=st.integers(1, 3),
    rounds=st.integers(1, 40),
    each=st.integers(1, 5),
    number=st.integers(0, 99),
)
def test_the_budget_is_kept_and_the_best_trial_has_every_seed(runs, seeds, rounds, each, number):
    value, _ = quadratic(number, 2)
    open = {"a": Range(1e-3, 1.0), "b": Range(1e-3, 1.0), "c": Choice((1, 2, 3))}
    finished = search(
        lambda s, *of: value({"a": s["a"], "b": s["b"]}, *of), open, runs, seeds, rounds, each=each
    )
    assert finished.spent <= finished.budget == runs * rounds * each
    assert [*finished.best.outcomes].count((rounds, 0)) == 1 and len(finished.best.values(rounds)) == seeds
    assert len({trial.point for trial in finished.trials}) == len(finished.trials)
    assert all(trial.outcomes and trial.rounds in rung_rounds(rounds) for trial in finished.trials)
    kept = {id(trial) for trial in finished.dropped}
    assert len(finished.dropped) == len(kept) == len(finished.trials)
    complete = [trial for trial in finished.trials if len(trial.values(rounds)) == seeds]
    assert finished.best is min(complete, key=lambda trial: finished.rank(trial, rounds))


def test_the_rungs_of_a_bracket():
    assert rung_rounds(90) == [10, 30, 90] and rung_rounds(2) == [1, 2] and rung_rounds(1) == [1]
    finished = search(lambda s, *_: s["a"], {"a": Range(1e-3, 1.0)}, rounds=90)
    first = [trial for trial in finished.trials if trial.bracket == 1]
    assert len(first) == 9 and {trial.rounds for trial in first} == {10, 30, 90}
    values = sorted(first, key=lambda trial: trial.settings["a"])
    assert [trial.rounds for trial in values] == [90, 30, 30] + [10] * 6
    assert [*values[0].outcomes] == [(10, 0), *((rounds, seed) for rounds in (30, 90) for seed in range(3))]
    assert values[0].calls == 3 * 90 and values[-1].calls == 10


def test_the_shortest_runs_have_the_least_number_of_rounds():
    assert rung_rounds(90, 25) == [25, 30, 90] and rung_rounds(90, 40) == [40, 90]
    assert rung_rounds(9, 20) == [9]
    finished = search(lambda s, *_: s["a"], {"a": Range(1e-3, 1.0)}, rounds=90, least=40)
    assert {rounds for trial in finished.trials for rounds, _ in trial.outcomes} == {40, 90}
    assert finished.spent > 0.8 * finished.budget


def test_metrics_to_maximise_and_diverged_trials():
    def value(settings, rounds, seed):
        return math.nan if settings["a"] > 0.5 and seed == 1 else settings["a"]

    finished = search(value, {"a": Range(1e-3, 1.0)}, sign=-1)
    assert 0.25 < finished.best.settings["a"] <= 0.5
    hopeless = search(lambda *_: math.nan, {"a": Range(1e-3, 1.0)})
    assert (
        "finite values, at points in the problem's sets, with every seed"
        in result_of(hopeless, "m").warnings[0]
    )


@pytest.mark.parametrize("best, end", [(30.0, "upper"), (1e-5, "lower")])
def test_ranges_are_extended_if_the_best_value_is_at_the_end(best, end):
    def value(settings, rounds, seed):
        return 1 + math.log10(settings["a"] / best) ** 2 + math.log10(settings.get("b", 0.1) / 0.1) ** 2

    finished = search(value, {"a": Range(1e-3, 1.0), "b": Range(1e-3, 1.0)}, runs=40)
    assert abs(math.log10(finished.best.settings["a"] / best)) < 0.6, finished.best.settings
    assert 0.01 < finished.best.settings["b"] < 1
    bound = search(value, {"a": Range(1e-3, 1.0, least=1e-3, most=1.0), "b": Range(1e-3, 1.0)}, runs=30)
    assert 1e-3 <= bound.best.settings["a"] <= 1.0 and not result_of(bound, "m").warnings
    away = 1 if end == "upper" else -1  # without a minimum
    endless = search(lambda settings, *_: -away * math.log10(settings["a"]), {"a": Range(1e-3, 1.0)}, runs=22)
    assert endless.open["a"].high / endless.open["a"].low > 1e4
    assert f"is at the {end} end of the searched range" in result_of(endless, "m").warnings[0]
    assert not result_of(finished, "m").warnings


@pytest.mark.parametrize("value, start, says", [
    (0.0, 0.5, "7 of 7 settings tie at m = 0: more rounds or another metric"),
    (0.5, 0.5, "no setting that was tried is better than the starting point, m = 0.5: the best value is m"),
    (0.7, 0.5, "no setting that was tried is better than the starting point, m = 0.5: the best value is m"),
])  # fmt: skip
def test_ties_and_searches_without_an_improvement_are_reported(value, start, says):
    finished = search(lambda *_: value, {"eta": Choice((1, 2, 3, 4, 5, 6, 7))}, runs=30)
    finished.preview = Preview(1, 1, {}, {"m": start})
    result = result_of(finished, "m")
    assert any(text.startswith(says) for text in result.warnings), result.warnings
    assert result.improves == (value < start)
    finished = search(lambda settings, *_: settings["eta"], {"eta": Choice((1, 2, 3))})
    assert result_of(finished, "m").warnings == []


def test_small_spaces_are_exhausted():
    finished = search(lambda s, *_: s["a"], {"a": Choice((3, 1, 2))}, runs=30)
    assert (
        len(finished.trials) == 3 and finished.best.settings == {"a": 1} and finished.spent < finished.budget
    )
    fixed = search(lambda *_: 1.0, {}, runs=3)
    assert fixed.spent == fixed.budget and fixed.best.settings == {} and len(fixed.trials) == 1


def test_incompatible_settings_are_replaced():
    refuse = lambda settings: settings["a"] * settings["b"] > 1e-2  # noqa: E731
    open = {"a": Range(1e-3, 1.0), "b": Range(1e-3, 1.0)}
    finished = search(lambda s, *_: -s["a"] * s["b"], open, refuse=refuse)
    assert finished.incompatible and len([trial for trial in finished.trials if trial.bracket == 1]) == 9
    assert not any(refuse(trial.settings) for trial in finished.trials)
    with pytest.raises(ConfigError, match="do not go together"):
        search(lambda *_: 1.0, open, refuse=lambda settings: True)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_penalty_for_risk_ranks_settings_whose_seeds_differ_behind(sign):
    """Values 0, 1, 2 have the mean and the deviation 1, against three times 1.5."""

    def trial(*ends):
        return Trial(
            (), {}, 1, {(ROUNDS, seed): TrialOutcome(sign * end, 1) for seed, end in enumerate(ends)}
        )

    varying, steady, failed = trial(0.0, 1.0, 2.0), trial(1.5, 1.5, 1.5), trial(0.0, 0.0, math.nan)
    for risk, first in ((0.0, varying), (0.4, varying), (0.6, steady)):
        ranked = search(lambda *_: 1.0, {"a": Range(0.1, 1.0)}, runs=4, sign=sign, risk=risk)
        order = sorted([failed, varying, steady], key=lambda one: ranked.rank(one, ROUNDS))
        assert order[0] is first and order[-1] is failed
    assert search(lambda *_: 1.0, {"a": Range(0.1, 1.0)}, runs=4, seeds=1, risk=1.0).best, "one seed has none"


def test_values_whose_sum_overflows_are_ranked_last():
    """Such values occur shortly before a run in float64 diverges."""
    finished = search(lambda settings, *_: settings["a"] * 1e308, {"a": Range(0.7, 1.7)}, runs=4)
    assert finished.rank(finished.best, ROUNDS) == (0, math.inf)
