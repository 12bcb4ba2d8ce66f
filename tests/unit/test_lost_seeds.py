"""A method of which some seeds end in non-finite values: the count, the median of the others, every seed."""

from __future__ import annotations

import csv
import json
import math
import re

import pytest
from matplotlib.figure import Figure
from runfiles import write

import mpifed
from mpifed.report import figures
from mpifed.report.comparison import Rule, best, settings_of
from mpifed.report.labels import Labels, setting_cells
from mpifed.report.latex import table
from mpifed.report.page import page
from mpifed.report.report import Paper, report
from mpifed.report.statistics import Finite, Spread, ranking_key
from mpifed.report.tables import cell, paired_rows, setting_rows, to_csv
from mpifed.storage.results import find_runs, load

LOST = "non-finite value in round 3: client 0"
#: Last errors of seeds that end; "Four" has a fifth seed that is lost before its second evaluation.
ENDS = {"Whole": [4.0, 5.0, 6.0, 7.0, 8.0], "Four": [1.0, 2.0, 4.0, 5.0], "None": []}


@pytest.fixture
def runs(tmp_path):
    """The folder of runs of three methods with five seeds: all finite, four of them, none."""
    for method, ends in ENDS.items():
        for seed in range(5):
            lost = seed >= len(ends)
            error = [1000.0] if lost else [1000.0, 100.0 + seed, ends[seed]]
            config = {"seed": seed, "rounds": 10, "problem": {"name": "P", "clients": 2}}
            rounds, stopped = (4, LOST) if lost else (10, "all rounds done")
            write(tmp_path / f"runs/{method}{seed}", method, rounds, 5, stopped, config, error=error)
    return tmp_path / "runs"


@pytest.fixture
def settings(runs):
    found = {one.name: one for one in settings_of(load(path) for path in find_runs([runs]))}
    return [found[name] for name in ENDS]


def test_the_figures_of_finite_seeds_by_hand(settings):
    whole, four, none = (one.spread(lambda run: Rule().value(run, "error")) for one in settings)
    assert whole == Spread(6.0, pytest.approx(math.sqrt(2.5))) and whole.finite is None
    assert math.isnan(four.mean) and four.finite == Finite(4, 5, 3.0, 1.0, 5.0)
    assert math.isnan(none.mean) and none.finite[:2] == (0, 5) and math.isnan(none.finite.median)
    assert Spread.of([math.inf, 2.0]).finite == Finite(1, 2, 2.0, 2.0, 2.0)
    assert [cell("error final", one) for one in (whole, four, none)] == [
        *("6 ± 1.6", "median 3 (1 to 5), 4 of 5 finite", "0 of 5 finite")
    ]
    assert cell("x", Spread.of([math.nan, 2.0])) == "2, 1 of 2 finite"


def test_a_table_has_the_counts_and_its_csv_the_numbers(settings, tmp_path):
    rows = setting_rows(settings, Rule(), setting_cells(settings, Rule()))
    assert [(row["runs"], row["diverged"]) for row in rows] == [(5, 0), (5, 1), (5, 5)]
    to_csv(rows, tmp_path / "settings.csv")
    with open(tmp_path / "settings.csv", newline="") as file:
        _, four, none = csv.DictReader(file)
    parts = ("mean", "deviation", "finite", "median", "least", "largest")
    assert [four[f"error final {part}"] for part in parts] == ["nan", "nan", "4", "3.0", "1.0", "5.0"]
    assert [none[f"error final {part}"] for part in parts] == ["nan", "nan", "0", "nan", "nan", "nan"]


def test_a_lost_seed_ranks_behind_all_methods_without_one(settings):
    """However good the others are; among methods with as many, the median of the others decides."""
    whole, four, none = settings
    assert sorted(settings, key=Rule().rank) == [whole, four, none]
    assert ranking_key([5.0, 1.0], False) == (0, 3.0)
    assert ranking_key([1.0, math.nan, 3.0, 5.0], False) == (1, 3.0)
    assert ranking_key([math.nan, 3.0], True) == (1, -3.0) and ranking_key([math.inf], False) == (1, math.inf)
    said = Rule().describe(settings)
    assert (
        "fewest runs that end in non-finite values" in said and "median of the others where some do" in said
    )


def test_a_test_of_pairs_says_what_it_leaves_out(settings):
    four, none = paired_rows(settings, Rule())
    assert (four["against"], four["seeds"], four["left out"]) == ("Whole", 4, 1)
    assert (none["seeds"], none["left out"]) == (0, 5)


def test_a_table_of_a_paper_counts_seeds_and_marks_no_method_that_lost_one(settings):
    text = table(settings, Rule(), ["error"], Labels())
    assert r"Whole & $\mathbf{6.0 \pm 1.6}$" in text and r"None & 0/5 \\" in text
    assert r"Four & $3.000$ (4/5) \\" in text and r"\dagger" not in text
    assert "($k$/$n$): median of the $k$ of $n$ seeds that end in finite values; such a method ranks" in text


def ys(cell) -> list:
    """The heights of the lines of methods."""
    return [line.get_ydata().tolist() for line in cell.lines if line.get_linestyle() != "None"]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, which are not written."""
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    return saved


def test_a_logarithmic_axis_has_medians_and_bands_of_quantiles(tmp_path, settings, drawn):
    figures.curves(settings[:1], tmp_path / "a.png")
    cell = drawn[0].axes[0]
    assert cell.get_yscale() == "log" and ys(cell) == [[1000, 102, 6]]
    corners = cell.collections[0].get_paths()[0].vertices
    ends = corners[corners[:, 0] == 10, 1]
    assert (ends.min(), ends.max()) == (pytest.approx(4.4), pytest.approx(7.6))  # of 4, 5, 6, 7, 8
    curve = settings[0].curve("error")
    assert curve.mean[-1] == 6 and (curve.low[-1], curve.high[-1]) == (pytest.approx(4.4), pytest.approx(7.6))


def test_a_curve_goes_on_with_the_seeds_that_end_and_every_seed_is_a_thin_line(tmp_path, settings, drawn):
    figures.curves(settings, tmp_path / "a.png")
    figure = drawn[0]
    whole, four, none = ys(figure.axes[0])
    assert four == [1000, 101.5, 3.0], "not a dot at round 0"
    assert none == [1000], "what there is"
    (seeds,) = [one for one in figure.axes[0].collections if one.get_label() == "seeds of Four"]
    ends = [path.vertices[-1].tolist() for path in seeds.get_paths()]
    assert ends == [[10, 1], [10, 2], [10, 4], [10, 5], [0, 1000]]
    lost = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [line.get_xydata().tolist() for line in lost] == [[[0, 1000]], [[0, 1000]] * 5]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        *("Whole", "Four (4 of 5 finite)", "None (0 of 5 finite)")
    ]


def test_a_seed_that_explodes_does_not_stretch_the_axis(tmp_path, drawn):
    for seed in range(3):
        error = [3.0, 1e80] if seed == 2 else [3.0, 2.0, 1.0]
        stopped = LOST if seed == 2 else "done"
        write(
            tmp_path / f"{seed}",
            "A",
            5 * len(error) - 5,
            5,
            stopped,
            {"seed": seed, "rounds": 10},
            error=error,
        )
    found = settings_of(load(path) for path in find_runs([tmp_path]))
    figures.curves(found, tmp_path / "a.png")
    assert drawn[0].axes[0].get_ylim()[1] < 4
    (seeds,) = [one for one in drawn[0].axes[0].collections if one.get_label() == "seeds of A"]
    assert seeds.get_paths()[2].vertices[:, 1].tolist() == [3, 1e80]


def test_a_users_axes_show_the_same(runs):
    ax = mpifed.plot(runs, ax=Figure().subplots())
    own = [line for line in ax.get_lines() if line.get_marker() != "x"]
    heights = {text.get_text(): line for text, line in zip(ax.get_legend().get_texts(), own)}
    assert [*heights] == ["Four (4 of 5 finite)", "None (0 of 5 finite)", "Whole"]
    assert heights["Four (4 of 5 finite)"].get_ydata().tolist() == [1000, 101.5, 3.0]
    assert heights["Whole"].get_ydata()[-1] == 6, "the mean"
    log = Figure().subplots()
    log.set_yscale("log")
    assert (
        mpifed.plot([runs / f"Whole{seed}" for seed in (0, 1, 4)], ax=log).get_lines()[0].get_ydata()[-1] == 5
    )
    found = mpifed.frame(runs)
    assert found.groupby("setting", observed=True)["diverged"].sum().to_dict() == {
        "Four": 1, "None": 5, "Whole": 0,
    }  # fmt: skip


def test_the_page_has_the_median_and_the_seeds(settings):
    text = page(settings, best(settings, Rule()), Rule())
    (block,) = re.findall(r'<script type="application/json" id="curves">(.*?)</script>', text, re.S)
    whole, four, none = (line["y"]["error"] for line in json.loads(block)["lines"])
    assert whole["median"] == [1000, 102, 6] and whole["low"][-1] == 4.4 and "seeds" not in whole
    assert four["median"] == [1000, 101.5, 3] and [one["y"][-1] for one in four["seeds"]] == [
        1,
        2,
        4,
        5,
        1000,
    ]
    assert four["seeds"][4]["x"]["rounds"] == [0] and [one["lost"] for one in four["seeds"]] == [
        False
    ] * 4 + [True]
    assert len(none["seeds"]) == 5
    assert "Four (4 of 5 finite)" in text and "median 3 (1 to 5), 4 of 5 finite" in text


def test_a_report_and_a_figure_for_a_paper_are_made(runs, tmp_path, capsys):
    paper = Paper(tmp_path / "fig.pdf", tmp_path / "t.tex")
    assert len(report([runs], tmp_path / "out", Rule(), paper)) == 7
    assert "4 of 5 finite" in (tmp_path / "out/table.txt").read_text()
    assert "4 of 5 finite" in capsys.readouterr().out
