"""Curves on the user's axes: what they go through, their styles, and what is asked wrongly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from runfiles import write

import mpifed
from mpifed.report.figures import STYLES


@pytest.fixture
def grid(tmp_path):
    """Two methods with two seeds each, one run of a third, and the table of them."""
    ends = {("A", 0): [4, 2, 1], ("A", 1): [6, 4, 1], ("B", 0): [9, 8, 7], ("B", 1): [9, 8, 5]}
    for (method, seed), error in ends.items():
        folder = tmp_path / f"{method}{seed}"
        write(folder, method, 10, config={"seed": seed}, error=error, gap=[1, 1, 0])
    write(tmp_path / "C", "C", 10, error=[3, math.nan, 2], gap=[1, 1, 0])
    return mpifed.frame(tmp_path)


def test_means_and_bands_over_the_seeds(grid):
    ax = mpifed.plot(grid, "error", ax=Figure().subplots())
    first, second, third = ax.get_lines()
    assert first.get_xdata().tolist() == [0, 5, 10] and first.get_ydata().tolist() == [5, 3, 1]
    assert second.get_ydata().tolist() == [9, 8, 6] and np.isnan(third.get_ydata()[1])
    assert len(ax.collections) == 2, "a single run has no band"
    assert [line.get_marker() for line in (first, third)] == ["None", "o"], (
        "what is alone between gaps is a dot"
    )
    # Errors 4 and 6 deviate by the root of 2 from their mean, 5.
    edges = ax.collections[0].get_paths()[0].vertices
    assert edges[edges[:, 0] == 0][:, 1].max() == pytest.approx(5 + math.sqrt(2))
    assert ax.get_xlabel() == "round" and ax.get_ylabel() == "error"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["A", "B", "C"]


def test_styles_are_those_of_the_report_in_any_part_of_a_table(grid):
    whole = mpifed.plot(grid, "error", ax=Figure().subplots()).get_lines()
    part = mpifed.plot(grid[grid["method"] != "A"], "error", ax=Figure().subplots()).get_lines()
    looks = [(line.get_color(), line.get_linestyle()) for line in whole]
    assert [colour for colour, _ in looks] == [style["color"] for style in STYLES[:3]]
    assert [(line.get_color(), line.get_linestyle()) for line in part] == looks[1:]


def test_against_costs_and_columns_of_the_users_own(grid):
    line = mpifed.plot(grid, x="oracle_calls", ax=Figure().subplots()).get_lines()[0]
    assert line.get_xdata().tolist() == [0, 480, 960]
    grid["traffic"] = grid["bytes_up"] + grid["bytes_down"]
    ax = mpifed.plot(grid, x="traffic", ax=Figure().subplots())
    assert ax.get_lines()[0].get_xdata().tolist() == [0, 20_000, 40_000] and ax.get_xlabel() == "traffic"


def test_from_folders_onto_the_current_axes(tmp_path):
    write(tmp_path / "a", config={"algorithm": {"gamma": "$2"}}, error=[3, 2, 1, 1, 1])
    write(tmp_path / "b", config={"algorithm": {"gamma": "$3"}}, error=[3, 2, 1, 1, 0])
    figure, axes = pyplot.subplots()
    try:
        assert mpifed.plot(tmp_path) is axes
        figure.canvas.draw()  # a dollar begins no formula
        assert to_hex(axes.get_lines()[1].get_color()) == STYLES[1]["color"].lower()
    finally:
        pyplot.close(figure)


def test_what_there_is_not_is_told(grid, tmp_path):
    with pytest.raises(ValueError, match="no metric 'eror': did you mean 'error'"):
        mpifed.plot(grid, "eror")
    with pytest.raises(ValueError, match="no column 'oracle calls': did you mean 'oracle_calls'"):
        mpifed.plot(grid, x="oracle calls")
    with pytest.raises(ValueError, match="these runs have no metrics"):
        mpifed.plot(write(tmp_path / "none"))
