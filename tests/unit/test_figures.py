"""Curves: axes, units, scales, what is drawn."""

from __future__ import annotations

import math

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from runfiles import decay, write

from mpifed.report import figures
from mpifed.report.comparison import settings_of
from mpifed.storage.results import load


def single(folder, *names, **options):
    """One setting with one run."""
    (one,) = settings_of([load(write(folder, *names, **options))])
    return one


def pixels(path):
    image = imread(path)[..., :3]
    assert image.shape[0] > 300 and image.shape[1] > 1500, "readable at 150 dpi takes hundreds of pixels"
    colours = np.rint(255 * image).astype(int) @ [65536, 256, 1]
    assert len(np.unique(colours)) > 10, "an empty canvas has one colour"
    return image


def has_colour(image, colour):
    """Whether a line of that colour was drawn: 20 pixels is less than a legend's handle has."""
    return count(image, colour) > 20


def count(image, colour):
    return np.sum(np.all(np.abs(image - to_rgb(colour)) < 0.02, axis=-1))  # 0.02: five of 255 levels


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, which are not written."""
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    return saved


def test_every_axis_is_read_at_the_rounds_of_the_metrics(tmp_path):
    one = single(tmp_path / "a", every=10, auc=[0.5, 0.6, 0.7])
    expected = {"rounds": [0, 10, 20], "oracle calls": [0, 960, 1920], "bytes, up + down": [0, 40_000,
    80_000],
                "wall time without evaluation": [0, 5, 10], "federated wall time": [0, 0, 0]}  # fmt: skip
    assert {
        axis.label: axis.of(one.runs[0], one.runs[0].metric_rounds).tolist() for axis in figures.AXES
    } == expected
    assert [axis.scale([one])[1] for axis in figures.axes_of([one])] == [
        "rounds", "oracle calls", "bytes, up + down (kB)", "wall time without evaluation (s)",
    ]  # fmt: skip


def test_units_grow_with_the_costs(tmp_path):
    one = single(tmp_path / "a", rounds=100_000, every=50_000, auc=[0.5, 0.6, 0.7])
    assert [axis.scale([one]) for axis in figures.axes_of([one])] == [
        (1, "rounds"),
        (1e6, "oracle calls (millions)"),  # 9.6e6
        (1e6, "bytes, up + down (MB)"),  # 4e8
        (3600, "wall time without evaluation (h)"),  # 5e4 s
    ]


def test_curves_show_every_setting_and_leave_matplotlib_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    settings = [single(tmp_path / name, name, auc=lambda r: r / 40, x_error=decay(rate))
                for name, rate in {"FGDA": 0.1, "CDMA": 0.5, "SAGDA": 1.0}.items()]  # fmt: skip
    figures.curves(settings, tmp_path / "all.png")
    figures.curves(settings[:1], tmp_path / "one.png", metric="auc")
    image, alone = pixels(tmp_path / "all.png"), pixels(tmp_path / "one.png")
    assert [has_colour(image, colour) for colour in figures.COLOURS[:4]] == [True, True, True, False]
    assert [has_colour(alone, colour) for colour in figures.COLOURS[:2]] == [True, False]
    assert alone.shape[0] < 0.75 * image.shape[0], "one row of curves is lower than two"
    figures.still(settings, "auc", figures.AXES[0])
    assert dict(matplotlib.rcParams) == before


def test_a_curve_is_the_mean_over_the_seeds_and_its_band_one_deviation(tmp_path, drawn):
    runs = [
        load(
            write(
                tmp_path / str(seed),
                config={"seed": seed},
                rounds=2,
                every=1,
                auc=values,
                costs={"seconds": 0.5 + seed},
            )
        )
        for seed, values in enumerate([[1, 2, 3], [3, 6, 3]])
    ]
    (setting,) = settings_of(runs)
    figures.curves([setting], tmp_path / "a.png")
    cells = drawn[0].axes
    assert cells[0].lines[0].get_ydata().tolist() == [2, 4, 3]
    assert cells[3].lines[0].get_xdata().tolist() == [0, 1.0, 2.0], "the mean of 0.5 s and 1.5 s a round"
    corners = cells[0].collections[0].get_paths()[0].vertices
    middle = corners[corners[:, 0] == 1, 1]
    assert (middle.min(), middle.max()) == pytest.approx((4 - math.sqrt(8), 4 + math.sqrt(8)))
    figures.curves(settings_of(runs[:1]), tmp_path / "a.png")
    assert not drawn[1].axes[0].collections, "one run has no band"


@pytest.mark.parametrize(
    ("values", "scales"),
    [([100, 10, 0.5], ["log", "linear"]), ([100, 10, 2], ["linear", "log"]), ([0.9, 0.8, 0.5], ["linear"]),
    ([100, 1, 0], ["linear"]),
     ([100, 1e-3, -1], ["linear"]), ([100, math.nan, 0.5], ["log", "linear"]), ([math.nan] * 3,
     ["linear"]), ([math.inf, 2, 1], ["linear"])],
)  # fmt: skip
def test_logarithmic_where_positive_and_wide(tmp_path, drawn, values, scales):
    one = single(tmp_path / "a", rounds=10, x_error=values)
    figures.curves([one], tmp_path / "a.png")
    assert [cell.get_yscale() for cell in drawn[0].axes] == 4 * scales[:1]
    assert figures.scales([one], "x_error") == scales


def test_a_band_down_to_zero_does_not_stretch_a_logarithmic_axis(tmp_path, drawn):
    runs = [
        load(write(tmp_path / str(seed), config={"seed": seed}, rounds=2, every=1, error=[1000, 10, last]))
        for seed, last in enumerate([0.171573, 1.0])
    ]  # mean - deviation is 1.5e-7
    figures.curves(settings_of(runs), tmp_path / "a.png")
    low, high = drawn[0].axes[0].get_ylim()
    assert 0.1 < low < 0.5 and high > 1000, "the mean ends at 0.59"


def test_the_federated_axis_is_there_for_runs_with_a_clock_only(tmp_path, drawn):
    without = single(tmp_path / "a", auc=decay(0.1))
    clock = single(tmp_path / "b", auc=decay(0.2), costs={"federated_seconds": 90})
    figures.curves([without], tmp_path / "a.png")
    figures.curves([without, clock], tmp_path / "b.png")
    lines = [{cell.get_xlabel(): len(cell.lines) for cell in figure.axes} for figure in drawn]
    assert not [label for label in lines[0] if "federated" in label] and set(lines[0].values()) == {1}
    assert lines[1]["federated wall time (min)"] == 1 and sorted(lines[1].values()) == [1, 2, 2, 2, 2]


def test_curves_of_a_run_that_diverged(tmp_path):
    one = single(tmp_path / "a", x_error=[1e-300, 1, 1e200, 1e308, math.inf], gap=[-3, -1e9, 1e99, -1e308, 0])
    figures.curves([one], tmp_path / "a.png")
    assert has_colour(pixels(tmp_path / "a.png"), figures.COLOURS[0])


def test_curves_of_runs_with_different_metrics(tmp_path):
    settings = [
        single(tmp_path / "a", "FGDA", auc=lambda r: r / 40),
        single(tmp_path / "b", "_My$^^$", rounds=7, every=7, vi_gap=decay(1.0)),
    ]
    figures.curves(settings, tmp_path / "curves.png")
    image = pixels(tmp_path / "curves.png")
    assert all(has_colour(image, colour) for colour in figures.COLOURS[:2])
    with pytest.raises(ValueError, match=r"auc, vi_gap.* found auk"):
        figures.curves(settings, tmp_path / "none.png", metric="auk")
    assert not (tmp_path / "none.png").exists()


def test_points_between_gaps_are_seen(tmp_path):
    blue = {}
    for name, values in {"dots": [0.5, math.nan, 0.7], "none": [math.nan] * 3}.items():
        figures.curves([single(tmp_path / name, rounds=10, auc=values)], tmp_path / "a.png")
        blue[name] = count(pixels(tmp_path / "a.png"), figures.COLOURS[0])
    assert (
        blue["dots"] > blue["none"] + 320
    )  # eight dots, 10 pixels wide, 40 of the 80 pixels of each for certain


def test_long_curves_are_thinned_in_the_page_alone(tmp_path, drawn):
    one = single(tmp_path / "a", rounds=5000, every=1, auc=decay(1e-4))
    figures.still([one], "auc", figures.AXES[0])
    figures.curves([one], tmp_path / "a.png")
    few, all_ = (figure.axes[0].lines[0].get_xdata() for figure in drawn)
    assert len(few) == figures.POINTS and few[0] == 0 and few[-1] == 5000 and len(all_) == 5001
