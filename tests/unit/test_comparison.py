"""Settings, their statistics over the seeds, the best setting of each method, and paired tests."""

from __future__ import annotations

import html
import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from runfiles import write
from scipy import stats

from mpifed.problems import PROBLEMS
from mpifed.report.comparison import Rule, best, settings_of
from mpifed.report.labels import columns, labels, setting_cells
from mpifed.report.report import report
from mpifed.report.statistics import MeanStd, holm
from mpifed.report.tables import TEST, paired_rows, setting_rows
from mpifed.storage.results import load


@pytest.fixture
def settings(tmp_path):
    """Write and read runs with maximised auc and accuracy: ``settings(dict(seed=1, auc=[...]), ...)``."""

    def make(*runs):
        made = []
        for one in runs:
            one, number = {"rounds": 10, **one}, len(list(tmp_path.iterdir()))
            config = {
                "seed": one.pop("seed", 0),
                "algorithm": {key: one.pop(key) for key in ("gamma", "eta") if key in one},
                "problem": {"name": "P", "alpha": one.pop("alpha", 1)},
                "run": one.pop("run", {}),
            }
            maximised = ["auc", "accuracy", "validation_auc"]
            made.append(load(write(tmp_path / str(number), config=config, maximised=maximised, **one)))
        return settings_of(made)

    return make


def test_runs_that_differ_only_in_the_seed_are_one_setting(settings):
    where = [{"out": "a", "threads": 1, "dtype": "float32"}, {"out": "b", "threads": 2, "dtype": "float32"}]
    found = settings(
        dict(seed=0, gamma=0.1, run=where[0]),
        dict(seed=1, gamma=0.1, run=where[1]),  # folders and threads do not distinguish settings
        dict(seed=0, gamma=0.2, run=where[0]),
        dict(seed=0, gamma=0.1, run=where[0] | {"dtype": "float64"}),
        dict(seed=0, gamma=0.1, run=where[1]),  # a repetition of the same seed
    )
    assert [[run.folder.name for run in one.runs] for one in found] == [["0", "1"], ["2"], ["3"], ["4"]]
    assert columns(found) == ["algorithm.gamma", "run.dtype"]
    assert labels(found) == [
        "FGDA, gamma=0.1, dtype=float32 (0)",
        "FGDA, gamma=0.2, dtype=float32",
        "FGDA, gamma=0.1, dtype=float64",
        "FGDA, gamma=0.1, dtype=float32 (4)",
    ]
    assert len(best(found, Rule())) == 3, "gamma is tuned; the precision and repetitions are not"


def test_labels_and_columns_of_several_methods(settings):
    etas = [{"name": "constant", "value": value} for value in (0.1, 0.2)]
    found = settings(dict(eta=etas[0]), dict(eta=etas[1]), dict(algorithm="CDMA", gamma=3))
    assert labels(found) == ["FGDA, eta=0.1", "FGDA, eta=0.2", "CDMA"]
    assert columns(found) == ["algorithm.eta"], "gamma has a single value in a single method"


def test_user_defined_objects_have_short_names(tmp_path):
    def run(name, method, net="net"):
        plugins = {"problem.model": {"name": f"/{net}.py:Net", "digest": "0" * 64}}
        problem = {"name": "/problems.py:Mine", "clients": 2, "model": {"name": f"/{net}.py:Net"}}
        return load(write(tmp_path / name, method, config={"problem": problem, "plugins": plugins}))

    one, other = run("a", "/a.py:Mine"), run("b", "/b.py:Mine")
    assert labels(settings_of([one, other])) == ["Mine-a", "Mine-b"]
    (alone,) = settings_of([run("c", "FGDA")])
    names = ("algorithm.name", "problem.name", "problem.model.name")
    assert [alone.settings[key] for key in names] == ["FGDA", "Mine", "Net"]
    assert labels(settings_of([one, run("d", "/a.py:Mine", "wide")])) == [
        "Mine-a, Net-net",
        "Mine-a, Net-wide",
    ]


def test_mean_and_deviation_over_seeds(settings):
    values = [[1, 2, 6], [3, 4, 7], [5, 3, 11]]
    (one,) = settings(*(dict(seed=seed, auc=auc) for seed, auc in enumerate(values)))
    deviation = pytest.approx(math.sqrt(7))  # (4 + 1 + 9) / 2
    assert one.spread(lambda run: run.metrics["auc"][-1]) == MeanStd(8.0, deviation)
    curve = one.curve("auc")
    assert curve.rounds.tolist() == [0, 5, 10] and curve.mean.tolist() == [3, 3, 8]
    assert curve.deviation == pytest.approx([2, 1, math.sqrt(7)])
    (single,) = settings_of(one.runs[:1])
    assert math.isnan(single.curve("auc").deviation[0])
    assert math.isnan(single.spread(lambda run: 3.0).deviation)


def test_curves_are_interpolated_and_end_with_the_first_run(settings):
    (one,) = settings(dict(seed=0, auc=[0, 10, 0]), dict(seed=1, every=4, auc=[0, 8, 16]))
    curve = one.curve("auc")
    assert curve.rounds.tolist() == [0, 4, 5, 8], "the second run was not evaluated after round 8"
    assert curve.mean.tolist() == [0, (8 + 8) / 2, (10 + 10) / 2, (4 + 16) / 2]
    assert curve.deviation[-1] == pytest.approx(12 / math.sqrt(2))


def test_a_curve_has_a_gap_where_a_seed_has_no_value(settings):
    (one,) = settings(dict(seed=0, auc=[1, math.nan, 3]), dict(seed=1, auc=[1, 2, 3]))
    curve = one.curve("auc")
    assert curve.mean[[0, 2]].tolist() == [1, 3] and np.isnan([curve.mean[1], curve.median[1]]).all()


def chosen(settings, **rule):
    return [one.settings["algorithm.gamma"] for one in best(settings, Rule(**rule))]


def test_the_best_setting_has_the_best_mean(settings):
    found = settings(
        dict(gamma=1, seed=0, auc=[0, 9, 1], accuracy_gap=[5, 0, 4]),
        dict(gamma=1, seed=1, auc=[0, 9, 4], accuracy_gap=[5, 0, 5]),
        dict(gamma=2, seed=0, auc=[0, 3, 3], accuracy_gap=[5, 4, 2]),
        dict(gamma=2, seed=1, auc=[0, 3, 3], accuracy_gap=[5, 4, 5]),
    )
    assert chosen(found) == [2], "the mean of the last auc is 2.5 and 3"
    assert chosen(found, by="best") == [1]
    assert chosen(found, metric="accuracy_gap") == [2], "it is not declared to be maximised: 3.5 is better"
    assert chosen(found, metric="accuracy_gap", by="best") == [1]
    with pytest.raises(ValueError, match="no run has the metric 'acu': did you mean 'auc'"):
        Rule("acu").check(found)
    assert "then the largest final auc" in Rule().describe(found)
    assert "then the smallest best accuracy_gap" in Rule("accuracy_gap", "best").describe(found)
    without = settings(dict(gamma=1), dict(gamma=2))
    assert chosen(without) == [1] and Rule().metric_of(without[0]) is None


@pytest.fixture
def conflicting(settings):
    """Two settings, two seeds each, whose validation and test data disagree."""
    planted = [
        (1, [0, 0.6, 0.9], [0, 0.5, 0.7]),
        (1, [0, 0.6, 0.9], [0, 0.7, 0.5]),
        (2, [0, 0.9, 0.5], [0, 0.6, 0.9]),
        (2, [0, 0.7, 0.5], [0, 0.6, 0.9]),
    ]
    return settings(
        *(
            dict(gamma=gamma, seed=k % 2, auc=test, validation_auc=held, splits={"test": 9, "validation": 5})
            for k, (gamma, test, held) in enumerate(planted)
        )
    )


def test_settings_are_chosen_on_validation_data_and_reported_on_test_data(conflicting):
    assert chosen(conflicting) == [2], "validation has 0.6 and 0.9, test 0.9 and 0.5"
    (only,) = best(conflicting, Rule())
    assert [Rule().value(run, "auc") for run in only.runs] == [0.5, 0.5]
    words = (
        "then the largest final validation_auc (at the last evaluation; mean over the seeds; chosen on the "
        "validation data, other metrics refer to the test data)."
    )
    assert Rule().describe(conflicting).endswith(words)


def test_validation_data_determine_the_best_evaluation(conflicting):
    (first, second), rule = conflicting, Rule(by="best")
    assert [rule.value(run, "auc") for run in first.runs] == [0.9, 0.6], "at rounds 10 and 5"
    assert [rule.value(run, "validation_auc") for run in first.runs] == [0.7, 0.7]
    assert [rule.value(run, "auc") for run in second.runs] == [0.5, 0.5], "not 0.9, at an earlier evaluation"
    assert chosen(conflicting, by="best") == [2] and chosen(conflicting, metric="validation_auc") == [2]
    (row, _) = setting_rows(conflicting, rule, setting_cells(conflicting, rule))
    assert row["auc best"].mean == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("splits", "words"),
    [({"test": 100}, "over the seeds; chosen on the test data)."), (None, "over the seeds).")],
)
def test_the_rule_names_the_data_of_the_choice(settings, splits, words):
    assert Rule().describe(settings(dict(auc=[0, 1, 2], splits=splits))).endswith(words)


def test_a_setting_with_fewer_diverged_runs_is_better(settings):
    found = settings(
        dict(gamma=1, seed=0, auc=[0, 1, 1]),
        dict(gamma=1, seed=1, auc=[0, 1, 1], stopped="non-finite value in round 7: client 0"),
        dict(gamma=2, seed=0, auc=[0, 0, 0.1]),
        dict(gamma=2, seed=1, auc=[0, 0, 0.1]),
        dict(gamma=3, seed=0, auc=[0, 0, 1]),
        dict(gamma=3, seed=1, auc=[0, 0, math.nan]),
    )
    assert chosen(found) == [2]
    assert chosen(found[::2]) == [1], "the first of equal settings"
    assert all(math.isnan(one.spread(lambda run: Rule().value(run, "auc")).mean) for one in found[::2])


def test_each_method_has_a_best_setting_for_each_problem(settings):
    grid = product(((1, 1), (2, -1)), ("FGDA", "CDMA"), (1, 2))
    found = settings(
        *(
            dict(alpha=alpha, gamma=gamma, algorithm=method, auc=[0, 0, gamma * sign])
            for (alpha, sign), method, gamma in grid
        )
    )
    chosen = [
        (one.name, *(one.settings[key] for key in ("problem.alpha", "algorithm.gamma")))
        for one in best(found, Rule())
    ]
    assert chosen == [("FGDA", 1, 2), ("CDMA", 1, 2), ("FGDA", 2, 1), ("CDMA", 2, 1)]


@pytest.mark.parametrize(("metric", "target", "rounds"), [
    ("auc", 0.5, 5), ("auc", 0.95, None), ("error", 0.5, 10), ("error", 9, 0),
])  # fmt: skip
def test_rounds_to_a_target(settings, metric, target, rounds):
    (one,) = settings(dict(auc=[0, 0.5, 0.9], error=[9, 2, 0.1]))
    assert Rule(target=target).rounds_to_target(one.runs[0], metric) == rounds


def test_maximised_metrics_of_the_problems():
    declared = {name: set(cls.maximised) for name, cls in PROBLEMS.items() if cls.maximised}
    assert declared == {
        "DeepAUC": {"auc"}, "TextAUC": {"auc"}, "FairClassification": {"mean_accuracy", "worst_accuracy"},
        "RobustRegression": {"accuracy", "perturbed_accuracy"}, "FewShotMAML": {"accuracy"},
        "DistributionallyRobust": {"accuracy"}, "Classification": {"accuracy", "worst_accuracy"},
        "AffineShift": {"accuracy", "shifted_accuracy", "attacked_accuracy"}, "ClientMixture": {"accuracy"},
        "DataCleaning": {"accuracy", "worst_accuracy", "f1"}, "GroupParity": {"accuracy"},
        "AdversarialTraining": {"accuracy", "attacked_accuracy"},
        "OneWayPAUC": {"auc", "partial_auc"}, "TwoWayPAUC": {"auc", "partial_auc"},
    }  # fmt: skip


def test_an_algorithm_setting_can_be_part_of_the_task(settings):
    """``each`` gives every value its own best setting."""
    planted = [(4, 0.1, 0.7), (4, 0.2, 0.8), (8, 0.1, 0.6), (8, 0.2, 0.5)]
    found = settings(*(dict(eta=eta, gamma=gamma, auc=[0.5, 0.5, auc]) for eta, gamma, auc in planted))
    assert chosen(found, metric="auc") == [0.2]
    keys = ("algorithm.eta", "algorithm.gamma")
    several = best(found, Rule("auc", each=("eta",)))
    assert [tuple(one.settings[key] for key in keys) for one in several] == [(4, 0.2), (8, 0.1)]
    with pytest.raises(ValueError, match="no method has the setting 'etta'.*eta"):
        Rule("auc", each=("etta",)).check(found)


FIRST, SECOND, THIRD = [0.9, 0.8, 0.85, 0.95], [0.7, 0.75, 0.8, 0.7], [0.88, 0.81, 0.83, 0.9]


@pytest.fixture
def compared(tmp_path):
    """Rows of paired tests for methods whose runs end with the given values, one per seed:
    ``compared(FGDA=[0.9, 0.8], ...)``."""

    def make(stopped="all rounds done", seeds=range(9), task=0, **values):
        for method, ends in values.items():
            for seed, last in zip(seeds, ends):
                config = {"seed": seed, "problem": {"name": "P", "task": task}}
                folder = tmp_path / f"{task}-{method}-{seed}"
                write(folder, method, 5, config=config, auc=[0.5, last], maximised=["auc"], stopped=stopped)
        found = settings_of(load(path) for path in sorted(tmp_path.iterdir()))
        return paired_rows(best(found, Rule()), Rule())

    return make


def test_methods_are_compared_with_the_best_by_a_paired_t_test(compared):
    second, third = compared(A=FIRST, B=SECOND, C=THIRD)
    assert (second["setting"], second["against"], second["metric"], second["seeds"]) == ("B", "A", "auc", 4)
    assert second["difference"] == MeanStd.from_values(np.subtract(SECOND, FIRST))
    p = [stats.ttest_rel(other, FIRST).pvalue for other in (SECOND, THIRD)]
    # The same sums in another order, of numbers near 1.
    assert [second["p"], third["p"]] == pytest.approx(p, rel=1e-12)
    assert p[0] < p[1] and second["p (Holm)"] == pytest.approx(2 * p[0]) and third["p (Holm)"] == third["p"]


def test_only_seeds_with_two_finite_values_are_pairs(compared):
    compared(A=[3, 4, 5, 6])
    (row,) = compared(B=[2, 2, 2, math.nan], seeds=[1, 2, 3, 0])
    assert row["against"] == "A" and row["seeds"] == 3 and row["difference"] == MeanStd(-3.0, 1.0)
    rows = compared(stopped="non-finite value in round 3", C=[9, 9, 9])
    assert [(row["setting"], row["seeds"]) for row in rows] == [("B", 3), ("C", 0)]
    assert math.isnan(rows[1]["p"]) and rows[0]["p (Holm)"] == rows[0]["p"], "one test, no correction"


def test_equal_differences_have_no_p_value(compared):
    (row,) = compared(A=[0.3, 0.4, 0.5], B=[0.2, 0.3, 0.4])
    assert row["difference"].mean == pytest.approx(-0.1) and math.isnan(row["p"])


def test_each_task_has_its_own_tests(compared):
    compared(A=FIRST, B=SECOND)
    rows = compared(task=1, A=SECOND, B=FIRST)
    assert [row["against"].split(",")[0] for row in rows] == ["A", "B"]
    assert [row["p (Holm)"] == row["p"] for row in rows] == [True, True]


def test_holm_correction():
    found = holm(pd.Series([0.01, 0.04, math.nan, 0.03, 0.6]))
    assert found.tolist()[:2] == [0.04, pytest.approx(0.09)] and math.isnan(found[2])
    assert found.tolist()[3:] == [0.09, 0.6], "no p-value is smaller than a smaller one's"
    assert holm(pd.Series([0.7, 0.8])).tolist() == [1, 1]


@pytest.mark.parametrize("seeds", [4, 1])
def test_reports_show_tests_if_there_are_several_seeds(tmp_path, compared, capsys, seeds):
    rows = compared(A=FIRST[:seeds], B=SECOND[:seeds])
    report(sorted(tmp_path.iterdir()), tmp_path / "report")
    texts = [html.unescape((tmp_path / "report" / name).read_text()) for name in ("report.html", "table.txt")]
    for text in (*texts, capsys.readouterr().out):
        assert (TEST in " ".join(text.split()) and "p (Holm)" in " ".join(text.split())) == (seeds > 1)
        assert all(f"{row['p (Holm)']:.4g}" in text for row in rows) and bool(rows) == (seeds > 1)
