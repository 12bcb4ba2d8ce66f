"""Methods compared with the best one over the seeds that they share."""

from __future__ import annotations

import html
import math

import numpy as np
import pandas as pd
import pytest
from runfiles import write
from scipy import stats

from mpifed.report.comparison import Rule, best, settings_of
from mpifed.report.report import report
from mpifed.report.statistics import Spread, holm
from mpifed.report.tables import TEST, paired_rows
from mpifed.storage.results import load

FIRST, SECOND, THIRD = [0.9, 0.8, 0.85, 0.95], [0.7, 0.75, 0.8, 0.7], [0.88, 0.81, 0.83, 0.9]


@pytest.fixture
def compared(tmp_path):
    """The rows of methods whose runs end with some values, one a seed: ``compared(FGDA=[0.9, 0.8], ...)``."""

    def make(rule=None, stopped="all rounds done", seeds=range(9), task=0, **values):
        for method, ends in values.items():
            for seed, last in zip(seeds, ends):
                config = {"seed": seed, "problem": {"name": "P", "task": task}}
                folder = tmp_path / f"{task}-{method}-{seed}"
                write(folder, method, 5, config=config, auc=[0.5, last], maximised=["auc"], stopped=stopped)
        rule = rule or Rule()
        found = settings_of(load(path) for path in sorted(tmp_path.iterdir()))
        return paired_rows(best(found, rule), rule)

    return make


def test_each_method_is_compared_with_the_best_by_a_paired_t_test(compared):
    second, third = compared(A=FIRST, B=SECOND, C=THIRD)
    assert (second["setting"], second["against"], second["metric"], second["seeds"]) == ("B", "A", "auc", 4)
    assert second["difference"] == Spread.of(np.subtract(SECOND, FIRST))
    p = [stats.ttest_rel(other, FIRST).pvalue for other in (SECOND, THIRD)]
    # The same sums in another order, of numbers near 1.
    assert [second["p"], third["p"]] == pytest.approx(p, rel=1e-12)
    assert p[0] < p[1] and second["p (Holm)"] == pytest.approx(2 * p[0]) and third["p (Holm)"] == third["p"]


def test_the_figures_of_a_test_by_hand(compared):
    """Differences -1, -2, -3: t² = 12; for two degrees of freedom p = 1 - |t| / sqrt(2 + t²)."""
    (row,) = compared(A=[3, 4, 5], B=[2, 2, 2])
    assert row["difference"] == Spread(-2.0, 1.0)
    assert row["p"] == row["p (Holm)"] == pytest.approx(1 - math.sqrt(12 / 14))


def test_only_seeds_of_both_with_finite_values_are_pairs(compared):
    compared(A=[3, 4, 5, 6])
    (row,) = compared(B=[2, 2, 2, math.nan], seeds=[1, 2, 3, 0])
    assert row["against"] == "A" and row["seeds"] == 3 and row["difference"] == Spread(-3.0, 1.0)
    compared(stopped="non-finite value in round 3", C=[9, 9, 9])
    rows = compared()
    assert [(row["setting"], row["seeds"]) for row in rows] == [("B", 3), ("C", 0)]
    assert math.isnan(rows[1]["p"]) and rows[0]["p (Holm)"] == rows[0]["p"], (
        "what is not tested does not count"
    )


def test_differences_without_a_spread_are_no_evidence(compared):
    (row,) = compared(A=[0.3, 0.4, 0.5], B=[0.2, 0.3, 0.4])
    assert row["difference"].mean == pytest.approx(-0.1) and math.isnan(row["p"])


def test_a_single_seed_gives_no_rows(compared):
    assert compared(A=[1], B=[2]) == [] == compared(task=1, A=[1, 2])


def test_every_task_has_a_best_of_its_own(compared):
    compared(A=FIRST, B=SECOND)
    rows = compared(task=1, A=SECOND, B=FIRST)
    assert [row["against"].split(",")[0] for row in rows] == ["A", "B"]
    assert [row["p (Holm)"] == row["p"] for row in rows] == [True, True]


def test_correction_by_holm_by_hand():
    found = holm(pd.Series([0.01, 0.04, math.nan, 0.03, 0.6]))
    assert found.tolist()[:2] == [0.04, pytest.approx(0.09)] and math.isnan(found[2])
    assert found.tolist()[3:] == [0.09, 0.6], "no p-value falls below a smaller one's"
    assert holm(pd.Series([0.7, 0.8])).tolist() == [1, 1]


def test_page_and_text_tell_whether_it_is_luck(tmp_path, compared, capsys):
    (row,) = compared(A=FIRST, B=SECOND)
    report(sorted(tmp_path.iterdir()), tmp_path / "report")
    said = f"{row['p (Holm)']:.4g}"
    assert TEST in " ".join(capsys.readouterr().out.split())
    for name in ("report.html", "table.txt"):
        text = html.unescape((tmp_path / "report" / name).read_text())
        assert TEST in " ".join(text.split()) and "p (Holm)" in text and said in text, text


def test_a_single_seed_tells_nothing_of_luck(tmp_path, compared, capsys):
    assert compared(A=FIRST[:1], B=SECOND[:1]) == []
    report(sorted(tmp_path.iterdir()), tmp_path / "report")
    assert (
        "Every method against" not in (tmp_path / "report/report.html").read_text() + capsys.readouterr().out
    )
