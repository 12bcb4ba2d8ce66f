"""Runs side by side: what counts as the same setting, means over seeds, which setting is best."""

from __future__ import annotations

import math

import numpy as np
import pytest
from runfiles import write

from mpifed.problems import PROBLEMS
from mpifed.report.comparison import Rule, best, settings_of
from mpifed.report.labels import columns, labels, setting_cells
from mpifed.report.statistics import Spread
from mpifed.report.tables import setting_rows
from mpifed.storage.results import load


@pytest.fixture
def runs(tmp_path):
    """Write runs and read them: ``runs([dict(seed=1, gamma=0.1, auc=[...]), ...])``; maximised are auc, also
    that of validation data, and accuracy."""

    def make(descriptions):
        made = []
        for one in descriptions:
            one, number = dict(one), len(list(tmp_path.iterdir()))
            config = {
                "seed": one.pop("seed", 0),
                "algorithm": {key: one.pop(key) for key in ("gamma", "eta") if key in one},
                "problem": {"name": "P", "alpha": one.pop("alpha", 1)},
                "run": one.pop("run", {}),
            }
            made.append(
                load(
                    write(
                        tmp_path / str(number),
                        config=config,
                        maximised=["auc", "accuracy", "validation_auc"],
                        **{"rounds": 10} | one,
                    )
                )
            )
        return made

    return make


def test_runs_that_differ_only_in_the_seed_are_one_setting(runs):
    where = [{"out": "a", "threads": 1, "dtype": "float32"}, {"out": "b", "threads": 2, "dtype": "float32"}]
    settings = settings_of(
        runs(
            [
                dict(seed=0, gamma=0.1, run=where[0]),
                dict(seed=1, gamma=0.1, run=where[1]),  # places and threads are no settings
                dict(seed=0, gamma=0.2, run=where[0]),
                dict(seed=0, gamma=0.1, run=where[0] | {"dtype": "float64"}),
                dict(seed=0, gamma=0.1, run=where[1]),  # the seed is there already: a repetition
            ]
        )
    )
    assert [[run.folder.name for run in one.runs] for one in settings] == [["0", "1"], ["2"], ["3"], ["4"]]
    assert columns(settings) == ["algorithm.gamma", "run.dtype"]
    assert labels(settings) == [
        "FGDA, gamma=0.1, dtype=float32 (0)",
        "FGDA, gamma=0.2, dtype=float32",
        "FGDA, gamma=0.1, dtype=float64",
        "FGDA, gamma=0.1, dtype=float32 (4)",
    ]
    assert len(best(settings, Rule())) == 3  # gamma is chosen; neither the precision nor a repetition is


def test_names_tell_methods_and_settings_apart(runs):
    schedules = [{"name": "constant", "value": 0.1}, {"name": "constant", "value": 0.2}]
    settings = settings_of(
        runs([dict(eta=schedules[0]), dict(eta=schedules[1]), dict(algorithm="CDMA", gamma=3)])
    )
    assert labels(settings) == ["FGDA, eta=0.1", "FGDA, eta=0.2", "CDMA"]
    assert columns(settings) == ["algorithm.eta"], "what one method alone has, with one value, is no column"


def test_mean_and_deviation_over_seeds_by_hand(runs):
    (one,) = settings_of(
        runs(
            [
                dict(seed=0, every=5, auc=[1, 2, 6]),
                dict(seed=1, every=5, auc=[3, 4, 7]),
                dict(seed=2, every=5, auc=[5, 3, 11]),
            ]
        )
    )
    assert one.spread(lambda run: run.metrics["auc"][-1]) == Spread(
        8.0, pytest.approx(math.sqrt(7))
    )  # (4 + 1 + 9) / 2
    curve = one.curve("auc")
    assert curve.rounds.tolist() == [0, 5, 10] and curve.mean.tolist() == [3, 3, 8]
    assert curve.deviation == pytest.approx([2, 1, math.sqrt(7)])
    (single,) = settings_of(one.runs[:1])
    assert math.isnan(single.curve("auc").deviation[0]) and math.isnan(
        single.spread(lambda run: 3.0).deviation
    )


def test_curves_meet_at_all_rounds_of_evaluation_and_end_together(runs):
    (one,) = settings_of(
        runs([dict(seed=0, every=5, auc=[0, 10, 0]), dict(seed=1, rounds=10, every=4, auc=[0, 8, 16])])
    )
    curve = one.curve("auc")
    assert curve.rounds.tolist() == [0, 4, 5, 8]  # the second has not been evaluated after round 8
    assert curve.mean.tolist() == [0, (8 + 8) / 2, (10 + 10) / 2, (4 + 16) / 2]
    assert curve.deviation[-1] == pytest.approx(12 / math.sqrt(2))


def test_a_curve_has_a_gap_where_one_seed_has_no_value(runs):
    (one,) = settings_of(runs([dict(seed=0, auc=[1, math.nan, 3]), dict(seed=1, auc=[1, 2, 3])]))
    assert one.curve("auc").mean[[0, 2]].tolist() == [1, 3] and np.isnan(one.curve("auc").mean[1])
    assert np.isnan(one.curve("auc").median[1])


def chosen(settings, **rule):
    return [one.settings["algorithm.gamma"] for one in best(settings, Rule(**rule))]


def test_the_best_has_the_best_mean_in_the_declared_direction(runs):
    settings = settings_of(
        runs(
            [
                dict(gamma=1, seed=0, auc=[0, 9, 1], accuracy_gap=[5, 0, 4]),
                dict(gamma=1, seed=1, auc=[0, 9, 4], accuracy_gap=[5, 0, 5]),
                dict(gamma=2, seed=0, auc=[0, 3, 3], accuracy_gap=[5, 4, 2]),
                dict(gamma=2, seed=1, auc=[0, 3, 3], accuracy_gap=[5, 4, 5]),
            ]
        )
    )
    assert chosen(settings) == [2], "the mean of the last auc is 2.5 and 3"
    assert chosen(settings, by="best") == [1]
    assert chosen(settings, metric="accuracy_gap") == [2], (
        "3.5 is smaller, and better whatever the name has in it"
    )
    assert chosen(settings, metric="accuracy_gap", by="best") == [1]
    with pytest.raises(ValueError, match="no run has the metric 'acu': did you mean 'auc'"):
        Rule("acu").check(settings)
    assert "then the largest final auc" in Rule().describe(settings)
    assert "then the smallest best accuracy_gap" in Rule("accuracy_gap", "best").describe(settings)


@pytest.fixture
def at_odds(runs):
    """Two settings of which the validation and the test data say the opposite, two seeds each."""
    held = {"test": 100, "validation": 50}
    planted = [
        (1, [0, 0.6, 0.9], [0, 0.5, 0.7]),
        (1, [0, 0.6, 0.9], [0, 0.7, 0.5]),
        (2, [0, 0.9, 0.5], [0, 0.6, 0.9]),
        (2, [0, 0.7, 0.5], [0, 0.6, 0.9]),
    ]
    return settings_of(
        runs(
            [
                dict(gamma=gamma, seed=k % 2, auc=test, validation_auc=validation, splits=held, rounds=10)
                for k, (gamma, test, validation) in enumerate(planted)
            ]
        )
    )


def test_settings_are_chosen_on_validation_and_told_on_test(at_odds):
    assert chosen(at_odds) == [2], "validation 0.9 against 0.6; the test data would take 1: 0.9 against 0.5"
    (best_one,) = best(at_odds, Rule())
    assert [Rule().value(run, "auc") for run in best_one.runs] == [0.5, 0.5], (
        "what is told is of the test data"
    )
    assert (
        Rule()
        .describe(at_odds)
        .endswith(
            "then the largest final validation_auc (at the last evaluation; mean over the seeds; chosen on "
            "the validation data, other metrics are of the test data)."
        )
    )


def test_the_best_evaluation_is_the_one_that_validation_chooses(at_odds):
    first, second = at_odds
    rule = Rule(by="best")
    assert [rule.value(run, "auc") for run in first.runs] == [0.9, 0.6], "at rounds 10 and 5"
    assert [rule.value(run, "validation_auc") for run in first.runs] == [0.7, 0.7]
    assert [rule.value(run, "auc") for run in second.runs] == [0.5, 0.5], "not 0.9, before validation's best"
    assert chosen(at_odds, by="best") == [2] and chosen(at_odds, metric="validation_auc") == [2]
    (row, _) = setting_rows(at_odds, rule, setting_cells(at_odds, rule))
    assert row["auc best"].mean == pytest.approx(0.75)


def test_it_is_said_where_settings_are_chosen_on_the_test_data(runs):
    settings = settings_of(runs([dict(gamma=1, auc=[0, 1, 2], splits={"test": 100})]))
    assert (
        Rule()
        .describe(settings)
        .endswith("(at the last evaluation; mean over the seeds; chosen on the test data).")
    )
    without = settings_of(runs([dict(gamma=1, auc=[0, 1, 2])])[:1])
    assert Rule().describe(without).endswith("(at the last evaluation; mean over the seeds).")


def test_a_setting_with_fewer_diverged_runs_comes_first(runs):
    lost = dict(stopped="non-finite value in round 7: client 0")
    settings = settings_of(
        runs(
            [
                dict(gamma=1, seed=0, auc=[0, 1, 1]),
                dict(gamma=1, seed=1, auc=[0, 1, 1], **lost),
                dict(gamma=2, seed=0, auc=[0, 0, 0.1]),
                dict(gamma=2, seed=1, auc=[0, 0, 0.1]),
                dict(gamma=3, seed=0, auc=[0, 0, 1]),
                dict(gamma=3, seed=1, auc=[0, 0, math.nan]),
            ]
        )
    )
    assert chosen(settings) == [2]
    assert chosen(settings[::2]) == [1], "of settings that all diverged somewhere the first"
    assert all(math.isnan(one.spread(lambda run: Rule().value(run, "auc")).mean) for one in settings[::2])


def test_every_method_has_a_best_for_every_problem(runs):
    settings = settings_of(
        runs(
            [
                dict(alpha=alpha, gamma=gamma, algorithm=method, auc=[0, 0, gamma * sign])
                for alpha, sign in ((1, 1), (2, -1))
                for method in ("FGDA", "CDMA")
                for gamma in (1, 2)
            ]
        )
    )
    found = [
        (one.name, one.settings["problem.alpha"], one.settings["algorithm.gamma"])
        for one in best(settings, Rule())
    ]
    assert found == [("FGDA", 1, 2), ("CDMA", 1, 2), ("FGDA", 2, 1), ("CDMA", 2, 1)]


@pytest.mark.parametrize(
    ("metric", "target", "rounds"),
    [("auc", 0.5, 5), ("auc", 0.95, None), ("error", 0.5, 10), ("error", 9, 0)],
)
def test_rounds_to_a_target(runs, metric, target, rounds):
    (run,) = runs([dict(auc=[0, 0.5, 0.9], error=[9, 2, 0.1])])
    assert Rule(target=target).rounds_to_target(run, metric) == rounds


def test_runs_without_metrics_are_compared_all_the_same(runs):
    settings = settings_of(runs([dict(gamma=1), dict(gamma=2)]))
    assert chosen(settings) == [1] and Rule().metric_of(settings[0]) is None


def test_problems_declare_what_more_is_better_of():
    declared = {name: set(cls.maximised) for name, cls in PROBLEMS.items() if cls.maximised}
    assert declared == {
        "DeepAUC": {"auc"}, "TextAUC": {"auc"}, "FairClassification": {"mean_accuracy", "worst_accuracy"},
        "RobustRegression": {"accuracy", "perturbed_accuracy"}, "FewShotMAML": {"accuracy"},
        "DistributionallyRobust": {"accuracy"},
        "Classification": {"accuracy", "worst_accuracy"},
        "AffineShift": {"accuracy", "shifted_accuracy", "attacked_accuracy"},
    }  # fmt: skip


def test_a_setting_of_methods_that_is_part_of_the_task(runs):
    """With ``each`` there is a best setting for every value; ``eta`` stands in for the number of local
    steps."""
    settings = settings_of(
        runs(
            [
                dict(eta=steps, gamma=gamma, auc=[0.5, 0.5, auc])
                for steps, gamma, auc in [(4, 0.1, 0.7), (4, 0.2, 0.8), (8, 0.1, 0.6), (8, 0.2, 0.5)]
            ]
        )
    )
    assert [one.settings["algorithm.gamma"] for one in best(settings, Rule("auc"))] == [0.2]
    chosen = best(settings, Rule("auc", each=("eta",)))
    assert [(one.settings["algorithm.eta"], one.settings["algorithm.gamma"]) for one in chosen] == [
        (4, 0.2),
        (8, 0.1),
    ]
    with pytest.raises(ValueError, match="no method has the setting 'etta'.*eta"):
        Rule("auc", each=("etta",)).check(settings)
