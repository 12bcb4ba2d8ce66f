"""Methods with seeds that end in non-finite values: count, median of the other seeds, ranks, figures."""

from __future__ import annotations

import csv
import json
import math
import re

import pytest
from matplotlib.figure import Figure
from runfiles import write

import mpifed
from mpifed.report.comparison import Rule, best, settings_of
from mpifed.report.labels import Labels, setting_cells
from mpifed.report.latex import table
from mpifed.report.page import page
from mpifed.report.statistics import FiniteSummary, MeanStd, ranking_key
from mpifed.report.tables import cell, paired_rows, setting_rows, to_csv
from mpifed.storage.results import find_runs, load

DIVERGED = "non-finite value in round 3: client 0"
#: Last errors of the finite seeds; the others, up to five, diverge before their second evaluation.
ENDS = {"Whole": [4.0, 5.0, 6.0, 7.0, 8.0], "Four": [1.0, 2.0, 4.0, 5.0], "None": []}


@pytest.fixture
def runs(tmp_path):
    """The folder of runs of three methods with five seeds each, of which five, four and none are finite."""
    for method, ends in ENDS.items():
        for seed in range(5):
            diverged = seed >= len(ends)
            error = [1000.0] if diverged else [1000.0, 100.0 + seed, ends[seed]]
            config = {"seed": seed, "rounds": 10, "problem": {"name": "P", "clients": 2}}
            rounds, stopped = (4, DIVERGED) if diverged else (10, "all rounds done")
            write(tmp_path / f"runs/{method}{seed}", method, rounds, 5, stopped, config, error=error)
    return tmp_path / "runs"


@pytest.fixture
def settings(runs):
    by_name = {setting.name: setting for setting in settings_of(load(path) for path in find_runs([runs]))}
    return [by_name[name] for name in ENDS]


def test_statistics_of_the_finite_seeds(settings):
    whole, four, none = (value.spread(lambda run: Rule().value(run, "error")) for value in settings)
    assert whole == MeanStd(6.0, pytest.approx(math.sqrt(2.5))) and whole.finite is None
    assert math.isnan(four.mean) and four.finite == FiniteSummary(4, 5, 3.0, 1.0, 5.0)
    assert math.isnan(none.mean) and none.finite[:2] == (0, 5) and math.isnan(none.finite.median)
    assert MeanStd.from_values([math.inf, 2.0]).finite == FiniteSummary(1, 2, 2.0, 2.0, 2.0)
    texts = [
        cell("error final", value) for value in (whole, four, none, MeanStd.from_values([math.nan, 2.0]))
    ]
    assert texts[:2] == ["6 ± 1.6", "median 3 (1 to 5), 4 of 5 finite"]
    assert texts[2:] == ["0 of 5 finite", "2, 1 of 2 finite"]
    assert [cell("seconds", value) for value in (99.0, 100.0, 1e300)] == ["99 s", "0:01:40", "1e+300 s"]


def test_tables_count_diverged_seeds(settings, tmp_path):
    rows = setting_rows(settings, Rule(), setting_cells(settings, Rule()))
    assert [(row["runs"], row["diverged"]) for row in rows] == [(5, 0), (5, 1), (5, 5)]
    to_csv(rows, tmp_path / "settings.csv")
    with open(tmp_path / "settings.csv", newline="") as file:
        _, four, none = csv.DictReader(file)
    parts = ("mean", "deviation", "finite", "median", "least", "largest")
    assert [four[f"error final {part}"] for part in parts] == ["nan", "nan", "4", "3.0", "1.0", "5.0"]
    assert [none[f"error final {part}"] for part in parts] == ["nan", "nan", "0", "nan", "nan", "nan"]
    four, none = paired_rows(settings, Rule())
    assert (four["against"], four["seeds"], four["left out"]) == ("Whole", 4, 1)
    assert (none["seeds"], none["left out"]) == (0, 5)
    text = table(settings, Rule(), ["error"], Labels())
    assert r"Whole & $\mathbf{6.0 \pm 1.6}$" in text and r"None & 0/5 \\" in text
    assert r"Four & $3.000$ (4/5) \\" in text and r"\dagger" not in text
    assert "($k$/$n$): median over the $k$ of $n$ seeds that end in finite values; such a method" in text


def test_methods_with_fewer_diverged_seeds_rank_first(settings):
    assert sorted(settings, key=Rule().rank) == settings
    assert ranking_key([5.0, 1.0], False) == (0, 3.0)
    assert ranking_key([1.0, math.nan, 3.0, 5.0], False) == (1, 3.0)
    assert ranking_key([math.nan, 3.0], True) == (1, -3.0) and ranking_key([math.inf], False) == (1, math.inf)
    words = Rule().describe(settings)
    assert "fewest runs that end in non-finite values" in words and "median of the finite values" in words


def test_a_logarithmic_axis_has_medians_and_bands_of_quantiles(settings, drawn):
    panel = drawn(settings[:1]).axes[0]
    assert panel.get_yscale() == "log" and panel.lines[0].get_ydata().tolist() == [1000, 102, 6]
    corners = panel.collections[0].get_paths()[0].vertices
    ends = corners[corners[:, 0] == 10, 1]
    assert (ends.min(), ends.max()) == (pytest.approx(4.4), pytest.approx(7.6))  # of 4, 5, 6, 7, 8
    curve = settings[0].curve("error")
    assert curve.mean[-1] == 6 and (curve.low[-1], curve.high[-1]) == (pytest.approx(4.4), pytest.approx(7.6))


def test_a_curve_aggregates_the_finite_seeds_and_every_seed_is_a_thin_line(settings, drawn):
    panel = drawn(settings).axes[0]
    lines = [line.get_ydata().tolist() for line in panel.lines if line.get_linestyle() != "None"]
    assert lines == [[1000, 102, 6], [1000, 101.5, 3.0], [1000]]
    (seeds,) = [drawing for drawing in panel.collections if drawing.get_label() == "seeds of Four"]
    ends = [path.vertices[-1].tolist() for path in seeds.get_paths()]
    assert ends == [[10, 1], [10, 2], [10, 4], [10, 5], [0, 1000]]
    crosses = [line.get_xydata().tolist() for line in panel.lines if line.get_marker() == "x"]
    assert crosses == [[[0, 1000]], [[0, 1000]] * 5]
    texts = [text.get_text() for text in panel.figure.legends[0].get_texts()]
    assert texts == ["Whole", "Four (4 of 5 finite)", "None (0 of 5 finite)"]


def test_a_diverging_seed_does_not_stretch_the_axis(tmp_path, drawn):
    for seed, error in enumerate([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 1e80]]):
        stopped, config = DIVERGED if len(error) < 3 else "done", {"seed": seed, "rounds": 10}
        write(tmp_path / f"{seed}", "A", 5 * len(error) - 5, 5, stopped, config, error=error)
    panel = drawn(settings_of(load(path) for path in find_runs([tmp_path]))).axes[0]
    assert panel.get_ylim()[1] < 4
    (seeds,) = [drawing for drawing in panel.collections if drawing.get_label() == "seeds of A"]
    assert seeds.get_paths()[2].vertices[:, 1].tolist() == [3, 1e80]


def test_plot_draws_diverged_seeds(runs):
    ax = mpifed.plot(runs, ax=Figure().subplots())
    lines = [line for line in ax.get_lines() if line.get_marker() != "x"]
    heights = {
        text.get_text(): line.get_ydata().tolist() for text, line in zip(ax.get_legend().get_texts(), lines)
    }
    assert [*heights] == ["Four (4 of 5 finite)", "None (0 of 5 finite)", "Whole"]
    assert heights["Four (4 of 5 finite)"] == [1000, 101.5, 3.0] and heights["Whole"][-1] == 6, "the mean"
    (log := Figure().subplots()).set_yscale("log")
    part = mpifed.plot([runs / f"Whole{seed}" for seed in (0, 1, 4)], ax=log)
    assert part.get_lines()[0].get_ydata()[-1] == 5, "the median"
    diverged = mpifed.frame(runs).groupby("setting", observed=True)["diverged"].sum()
    assert diverged.to_dict() == {"Four": 1, "None": 5, "Whole": 0}


def test_the_page_has_medians_and_seeds(settings):
    text = page(settings, best(settings, Rule()), Rule())
    (block,) = re.findall(r'<script type="application/json" id="curves">(.*?)</script>', text, re.S)
    whole, four, none = (line["y"]["error"] for line in json.loads(block)["lines"])
    assert whole["median"] == [1000, 102, 6] and whole["low"][-1] == 4.4 and "seeds" not in whole
    assert four["median"] == [1000, 101.5, 3] and four["seeds"][4]["x"]["rounds"] == [0]
    ends = [(seed["y"][-1], seed["diverged"]) for seed in four["seeds"]]
    assert ends == [(1, False), (2, False), (4, False), (5, False), (1000, True)]
    assert len(none["seeds"]) == 5
    assert "Four (4 of 5 finite)" in text and "median 3 (1 to 5), 4 of 5 finite" in text
