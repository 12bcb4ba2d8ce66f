"""Figures of reports and :func:`mpifed.plot`: axes, units, scales, curves, bands."""

from __future__ import annotations

import io
import math

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from runfiles import decay, write

import mpifed
from mpifed.report import figures
from mpifed.report.comparison import settings_of
from mpifed.storage.results import load


def single(folder, *names, **options):
    """A setting with one run."""
    (one,) = settings_of([load(write(folder, *names, **options))])
    return one


def seeds(folder, *values, **options):
    """A setting with one run for each list of errors."""
    runs = [
        load(write(folder / str(k), config={"seed": k}, error=one, **options)) for k, one in enumerate(values)
    ]
    (one,) = settings_of(runs)
    return one


def pixels(settings):
    """The image of :func:`curves`."""
    with io.BytesIO() as file:
        figures.curves(settings, file)
        file.seek(0)
        image = imread(file)[..., :3]
    assert image.shape[0] > 300 and image.shape[1] > 1500, "readable at 150 dpi"
    colours = np.rint(255 * image).astype(int) @ [65536, 256, 1]
    assert len(np.unique(colours)) > 10, "an empty canvas has one colour"
    return image


def count(image, colour):
    return np.sum(np.all(np.abs(image - to_rgb(colour)) < 0.02, axis=-1))  # 0.02: five of 255 levels


def has_colours(image, number):
    """Whether the first lines are drawn; a handle of the legend has more than 20 pixels."""
    return [count(image, colour) > 20 for colour in figures.COLOURS[:number]]


def test_costs_and_labels_of_the_axes(tmp_path):
    one = single(tmp_path / "a", every=10, auc=[0.5, 0.6, 0.7])
    run = one.runs[0]
    assert {axis.label: axis.costs(run, run.metric_rounds).tolist() for axis in figures.AXES} == {
        "rounds": [0, 10, 20], "oracle calls": [0, 960, 1920], "bytes, up + down": [0, 40_000, 80_000],
        "wall time without evaluation": [0, 5, 10], "federated wall time": [0, 0, 0],
    }  # fmt: skip
    assert [axis.scale([one]) for axis in figures.axes_of([one])] == [
        (1, "rounds"),
        (1, "oracle calls"),
        (1e3, "bytes, up + down (kB)"),
        (1, "wall time without evaluation (s)"),
    ]
    long = single(tmp_path / "b", rounds=100_000, every=50_000, auc=[0.5, 0.6, 0.7])
    assert [axis.scale([long]) for axis in figures.axes_of([long])] == [
        (1, "rounds"),
        (1e6, "oracle calls (millions)"),  # 9.6e6
        (1e6, "bytes, up + down (MB)"),  # 4e8
        (3600, "wall time without evaluation (h)"),  # 5e4 s
    ]


def test_curves_show_every_setting_and_do_not_change_matplotlib(tmp_path):
    before = dict(matplotlib.rcParams)
    rates = {"FGDA": 0.1, "CDMA": 0.5, "SAGDA": 1.0}
    settings = [
        single(tmp_path / name, name, auc=lambda r: r / 40, x_error=decay(rate))
        for name, rate in rates.items()
    ]
    image, alone = pixels(settings), pixels([single(tmp_path / "alone", auc=lambda r: r / 40)])
    assert has_colours(image, 4) == [True, True, True, False] and has_colours(alone, 2) == [True, False]
    assert alone.shape[0] < 0.75 * image.shape[0], "one row of panels is lower than two"
    assert dict(matplotlib.rcParams) == before


def test_many_metrics_are_not_drawn(tmp_path, drawn, monkeypatch):
    monkeypatch.setattr(figures, "MOST_METRICS", 2)
    few = drawn([single(tmp_path / "a", auc=decay(1), b=decay(1))])
    many = drawn([single(tmp_path / "c", auc=decay(1), b=decay(1), d=decay(1))])
    assert len(few.axes) == len(many.axes) and not few.legends[0].get_title().get_text()
    assert many.legends[0].get_title().get_text() == "the first 2 of 3 metrics"


def test_long_names_fit_above_the_panels(tmp_path, drawn):
    runs = []
    for k in (1, 2):
        problem = {"name": "Saddle"} | {f"setting_{j}": 10.0**k for j in range(20)}
        runs.append(load(write(tmp_path / str(k), config={"problem": problem}, e=decay(1))))
    figure = drawn(settings_of(runs))
    figure.canvas.draw()
    (legend,) = figure.legends
    extent = legend.get_window_extent()
    assert extent.width < figure.bbox.width and extent.y1 < figure.bbox.height
    names = [" ".join(text.get_text().split()) for text in legend.get_texts()]
    assert len(names) == 2 and all("setting_0=" in name and "setting_19=" in name for name in names)


def test_a_curve_is_the_mean_over_the_seeds_with_a_band_of_one_deviation(tmp_path, drawn):
    setting = seeds(tmp_path, [1, 2, 3], [3, 6, 3], rounds=2, every=1)
    (cell, *_) = drawn([setting]).axes
    assert cell.lines[0].get_ydata().tolist() == [2, 4, 3]
    corners = cell.collections[0].get_paths()[0].vertices
    middle = corners[corners[:, 0] == 1, 1]
    assert (middle.min(), middle.max()) == pytest.approx((4 - math.sqrt(8), 4 + math.sqrt(8)))
    assert not drawn(settings_of(setting.runs[:1])).axes[0].collections, "a single run has no band"


def test_costs_are_averaged_over_the_seeds(tmp_path, drawn):
    runs = []
    for seed in (0, 1):
        settings = dict(config={"seed": seed}, costs={"seconds": seed + 0.5}, rounds=2, every=1)
        runs.append(load(write(tmp_path / f"{seed}", e=[1, 1, 1], **settings)))
    assert drawn(settings_of(runs)).axes[3].lines[0].get_xdata().tolist() == [0, 1.0, 2.0]


@pytest.mark.parametrize(("values", "scales"), [
    ([100, 10, 0.5], ["log", "linear"]),
    ([100, 10, 2], ["linear", "log"]),
    ([0.9, 0.8, 0.5], ["linear"]),
    ([100, 1, 0], ["linear"]),
    ([100, 1e-3, -1], ["linear"]),
    ([100, math.nan, 0.5], ["log", "linear"]),
    ([math.nan] * 3, ["linear"]),
    ([math.inf, 2, 1], ["linear"]),
])  # fmt: skip
def test_the_scale_is_logarithmic_for_positive_values_of_a_large_range(tmp_path, drawn, values, scales):
    one = single(tmp_path / "a", rounds=10, x_error=values)
    assert [cell.get_yscale() for cell in drawn([one]).axes] == 4 * scales[:1]
    assert figures.scales([one], "x_error") == scales


def test_a_band_that_reaches_zero_does_not_stretch_a_logarithmic_axis(tmp_path, drawn):
    setting = seeds(tmp_path, [1000, 10, 0.171573], [1000, 10, 1.0], rounds=2, every=1)
    low, high = drawn([setting]).axes[0].get_ylim()  # mean - deviation is 1.5e-7
    assert 0.1 < low < 0.5 and high > 1000, "the mean ends at 0.59"


def test_the_axis_of_federated_seconds_is_drawn_only_for_runs_with_a_clock(tmp_path, drawn):
    without = single(tmp_path / "a", auc=decay(0.1))
    clock = single(tmp_path / "b", auc=decay(0.2), costs={"federated_seconds": 90})
    first, second = (
        {cell.get_xlabel(): len(cell.lines) for cell in drawn(settings).axes}
        for settings in ([without], [without, clock])
    )
    assert not [label for label in first if "federated" in label] and {*first.values()} == {1}
    assert second["federated wall time (min)"] == 1 and sorted(second.values()) == [1, 2, 2, 2, 2]


def test_curves_of_diverged_runs_and_of_different_metrics(tmp_path):
    huge = dict(x_error=[1e-300, 1, 1e200, 1e308, math.inf], gap=[-3, -1e9, 1e99, -1e308, 0])
    assert has_colours(pixels([single(tmp_path / "huge", **huge)]), 1) == [True]
    settings = [
        single(tmp_path / "a", "FGDA", auc=lambda r: r / 40),
        single(tmp_path / "b", "_My$^^$", rounds=7, every=7, vi_gap=decay(1.0)),
    ]
    assert has_colours(pixels(settings), 2) == [True, True]


def test_markers_are_used_again_if_there_are_more_lines(tmp_path):
    settings = [single(tmp_path / f"{k}", auc=lambda r: r / 40) for k in range(2 * len(figures.MARKERS) + 2)]
    cell = Figure().subplots()
    figures.draw(cell, settings, "auc", figures.AXES[0], marked=True)
    assert [line.get_marker() for line in cell.lines] == [*figures.MARKERS * 2, *figures.MARKERS[:2]]


@pytest.fixture
def table(tmp_path):
    """The table of two methods with two seeds each, and one run of a third method."""
    ends = {("A", 0): [4, 2, 1], ("A", 1): [6, 4, 1], ("B", 0): [9, 8, 7], ("B", 1): [9, 8, 5]}
    for (method, seed), error in ends.items():
        write(tmp_path / f"{method}{seed}", method, 10, config={"seed": seed}, error=error, gap=[1, 1, 0])
    write(tmp_path / "C", "C", 10, error=[3, math.nan, 2], gap=[1, 1, 0])
    return mpifed.frame(tmp_path)


def test_plot_draws_means_and_bands(table):
    ax = mpifed.plot(table, "error", ax=Figure().subplots())
    first, second, third = ax.get_lines()
    assert first.get_xdata().tolist() == [0, 5, 10] and first.get_ydata().tolist() == [5, 3, 1]
    assert second.get_ydata().tolist() == [9, 8, 6] and np.isnan(third.get_ydata()[1])
    assert len(ax.collections) == 2, "a single run has no band"
    assert [line.get_marker() for line in (first, third)] == ["None", "o"], "dots between gaps"
    # Errors 4 and 6 deviate by the square root of 2 from their mean, 5.
    edges = ax.collections[0].get_paths()[0].vertices
    assert edges[edges[:, 0] == 0][:, 1].max() == pytest.approx(5 + math.sqrt(2))
    assert ax.get_xlabel() == "round" and ax.get_ylabel() == "error"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["A", "B", "C"]


def test_plot_of_a_single_evaluation(tmp_path):
    write(tmp_path / "a", rounds=0, error=[3])
    ax = mpifed.plot(tmp_path, ax=Figure().subplots())
    assert ax.get_lines()[0].get_ydata().tolist() == [3] and ax.get_ylabel() == "error"


def test_plot_keeps_styles_in_a_selection_of_rows(table):
    whole = mpifed.plot(table, "error", ax=Figure().subplots()).get_lines()
    part = mpifed.plot(table[table["method"] != "A"], "error", ax=Figure().subplots()).get_lines()
    looks = [(line.get_color(), line.get_linestyle()) for line in whole]
    assert [colour for colour, _ in looks] == [style["color"] for style in figures.STYLES[:3]]
    assert [(line.get_color(), line.get_linestyle()) for line in part] == looks[1:]


def test_plot_against_costs_and_columns_of_the_user(table):
    line = mpifed.plot(table, x="oracle_calls", ax=Figure().subplots()).get_lines()[0]
    assert line.get_xdata().tolist() == [0, 480, 960]
    table["traffic"] = table["bytes_up"] + table["bytes_down"]
    ax = mpifed.plot(table, x="traffic", ax=Figure().subplots())
    assert ax.get_lines()[0].get_xdata().tolist() == [0, 20_000, 40_000] and ax.get_xlabel() == "traffic"


def test_plot_reads_folders_and_draws_on_the_current_axes(tmp_path):
    write(tmp_path / "a", config={"algorithm": {"gamma": "$2"}}, error=[3, 2, 1, 1, 1])
    write(tmp_path / "b", config={"algorithm": {"gamma": "$3"}}, error=[3, 2, 1, 1, 0])
    figure, axes = pyplot.subplots()
    try:
        assert mpifed.plot(tmp_path) is axes
        figure.canvas.draw()  # dollars do not start mathematics
        assert to_hex(axes.get_lines()[1].get_color()) == figures.STYLES[1]["color"].lower()
    finally:
        pyplot.close(figure)


def test_errors_of_plot(table, tmp_path):
    with pytest.raises(ValueError, match="no metric 'eror': did you mean 'error'"):
        mpifed.plot(table, "eror")
    with pytest.raises(ValueError, match="no column 'oracle calls': did you mean 'oracle_calls'"):
        mpifed.plot(table, x="oracle calls")
    with pytest.raises(ValueError, match="these runs have no metrics"):
        mpifed.plot(write(tmp_path / "none"))
