"""Figures by matplotlib: metrics against rounds and other costs, for reports, papers and given axes.

The best method can depend on the cost: rounds, gradients, bytes or time. :func:`draw_summary` draws the seeds
of a setting in all figures. If the job names a theorem that bounds the metric, the bound is a dotted
horizontal line in the curve's colour.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mpifed.base.log import escape_mathtext
from mpifed.base.settings import suggest
from mpifed.report.comparison import Setting, metrics_of
from mpifed.report.labels import Labels, labels
from mpifed.report.statistics import Curve
from mpifed.storage.files import PNG_METADATA, REPORT_MARK
from mpifed.storage.results import RunData

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "AXES", "BOUND", "DIVERGED", "STYLES", "Axis", "axes_of", "with_finite_counts", "curves", "draw",
    "draw_bound", "draw_setting", "inches", "paper_figure", "plot", "scales", "set_scale", "curve_style",
]  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """A horizontal axis, which shows the sum of some columns of the costs.

    Attributes:
        name: its name on the command line.
        units: sizes and names of units; the largest unit is used in which the costs reach 2.
        optional: whether the axis is omitted for runs in which the cost is always 0.
    """

    name: str
    label: str
    columns: tuple[str, ...]
    units: tuple[tuple[float, str], ...] = ((1, ""),)
    optional: bool = False

    def costs(self, run: RunData, rounds: np.ndarray) -> np.ndarray:
        """The cost of the run up to some of its rounds, ``[E]``."""
        rows = np.searchsorted(run.costs["round"], rounds)
        return sum(run.costs[column][rows].astype(float) for column in self.columns)

    def suits(self, setting: Setting) -> bool:
        """Whether the setting can be drawn against this axis."""
        return not self.optional or all(self.costs(run, run.metric_rounds).any() for run in setting.runs)

    def scale(self, settings: Sequence[Setting], label: str | None = None) -> tuple[float, str]:
        """The unit for the costs of the settings, and the label with this unit."""
        runs = [run for setting in settings for run in setting.runs]
        largest = max(np.max(self.costs(run, run.metric_rounds), initial=0) for run in runs)
        size, name = next((unit for unit in reversed(self.units) if largest >= 2 * unit[0]), self.units[0])
        label = label or self.label
        return size, f"{label} ({name})" if name else label


_COUNT = ((1, ""), (1e3, "thousands"), (1e6, "millions"), (1e9, "billions"))
_SIZE = ((1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"))
_TIME = ((1e-3, "ms"), (1, "s"), (60, "min"), (3600, "h"))
#: The horizontal axes. Bytes are sent and received by federated clients.
AXES = (
    Axis("rounds", "rounds", ("round",)),
    Axis("oracle calls", "oracle calls", ("oracle_calls",), _COUNT),
    Axis("bytes", "bytes, up + down", ("bytes_up", "bytes_down"), _SIZE),
    Axis("seconds", "wall time without evaluation", ("seconds",), _TIME),
    Axis("federated seconds", "federated wall time", ("federated_seconds",), _TIME, optional=True),
)

# The palette of Okabe and Ito without yellow, which is too faint on white. With seven colours and four dash
# patterns, which have no common factor, 28 curves look different and neighbours differ in both.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
#: Dash pattern of a theorem's bound, with wider gaps than any curve.
BOUND = (0, (1, 3))
#: Larger values are not drawn: they would flatten a curve, and overflow when matplotlib computes margins.
DIVERGED = 1e100
STYLES = [dict(color=COLOURS[i % 7], linestyle=DASHES[i % 4], linewidth=1.7) for i in range(28)]
#: Markers for print without colours, and their approximate number per line.
MARKERS, MARKERS_PER_LINE = "os^Dv", 8

#: Number of characters of a legend that fit above a panel of ``curves.png``.
LEGEND_CHARACTERS = 37
#: Largest number of metrics of ``curves.png``: a panel takes 0.1 s, and data may have thousands of groups.
MOST_METRICS = 12
#: A figure for a paper: inches per unit (TeX's point, the unit of ``\the\columnwidth``), range of widths in
#: inches, vector formats.
INCHES_PER_UNIT = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}
WIDTH_RANGE = 1.0, 30.0
FORMATS = (".pdf", ".svg", ".eps")
#: Its font size and line width in points, and the ratio of a panel's height to its width.
FONT_SIZE, LINE_WIDTH, ASPECT = 8, 1.2, 0.7
#: Journals reject Type 3 fonts: TrueType fonts are embedded.
_EMBEDDED = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.hashsalt": "mpifed"}


def axes_of(settings: Sequence[Setting]) -> list[Axis]:
    """The axes that suit any of the settings."""
    return [axis for axis in AXES if any(axis.suits(setting) for setting in settings)]


def scales(settings: Sequence[Setting], metric: str) -> list[str]:
    """The useful vertical scales, the better one first: logarithmic for positive values of a large range."""
    medians = _medians(settings, metric)
    medians = medians[np.abs(medians) < DIVERGED]
    spread = medians.max() / medians.min() if len(medians) and medians.min() > 0 else 1
    return ["log", "linear"] if spread > 100 else ["linear", "log"] if spread > 3 else ["linear"]


def _medians(settings: Sequence[Setting], metric: str) -> np.ndarray:
    """The medians of all settings that have the metric."""
    return np.concatenate([setting.curve(metric).median for setting in settings if metric in setting.metrics])


def curves(settings: Sequence[Setting], file: BinaryIO) -> None:
    """Write a PNG with a row for each metric, of which there is at least one, and a column for each axis.

    Of more than :data:`MOST_METRICS` metrics the first are drawn.
    """
    known, axes = metrics_of(settings), axes_of(settings)
    metrics = known[:MOST_METRICS]
    left_out = f"the first {len(metrics)} of {len(known)} metrics" if len(known) > len(metrics) else None
    width = LEGEND_CHARACTERS * len(axes)
    names = [
        textwrap.fill(escape_mathtext(name), width - 10)
        for name in with_finite_counts(settings, labels(settings), metrics)
    ]
    longest = max(len(line) for name in names for line in name.split("\n"))
    columns = max(1, min(len(names), width // (longest + 10)))
    lines = -(-len(names) // columns) + sum(name.count("\n") for name in names)
    height = 0.7 + 2.5 * len(metrics) + 0.22 * lines
    figure = Figure(figsize=(3.375 * len(axes), height), dpi=150, layout="constrained", facecolor="white")
    _panels(figure, settings, metrics, axes, text=10)
    handles = [Line2D([], [], **curve_style(number)) for number in range(len(settings))]
    place = dict(loc="outside upper center", ncols=columns, frameon=False, fontsize=10, handlelength=3)
    figure.legend(handles, names, title=left_out, **place)
    figure.savefig(file, format="png", metadata=PNG_METADATA)


def _panels(
    figure: Figure,
    settings: Sequence[Setting],
    metrics: Sequence[str],
    axes: Sequence[Axis],
    text: float,
    names: Labels = Labels(),
    marked: bool = False,
) -> np.ndarray:
    """A grid of panels, a row per metric and a column per axis, with labels of ``text`` points."""
    grid = figure.subplots(len(metrics), len(axes), squeeze=False, sharex="col", sharey="row")
    for row, metric in zip(grid, metrics):
        for cell, axis in zip(row, axes):
            draw(cell, settings, metric, axis, marked=marked)
        set_scale(row[0], settings, metric, scales(settings, metric)[0])
        row[0].set_ylabel(names.metric(metric, _quoted), fontsize=text)
    for cell, axis in zip(grid[-1], axes):
        label = axis.scale(settings, names.axes.get(axis.name))[1]
        cell.set_xlabel(_quoted(label, axis.name in names.axes), fontsize=text)
    figure.align_ylabels(grid[:, 0])
    return grid


def _quoted(text: str, by_user: bool) -> str:
    """A text for matplotlib; only the user's names may contain mathematics between dollars."""
    return text if by_user else escape_mathtext(text)


def curve_style(number: int) -> dict:
    """Colour, dashes and width of a line, by its number."""
    return STYLES[number % len(STYLES)]


def draw(cell: Axes, settings: Sequence[Setting], metric: str, axis: Axis, marked: bool = False) -> None:
    """Draw the curves and bounds of settings, with :data:`MARKERS` if ``marked``."""
    size, log = axis.scale(settings)[0], scales(settings, metric)[0] == "log"
    for number, setting in enumerate(settings):
        if metric in setting.metrics and axis.suits(setting):
            draw_setting(cell, setting, metric, axis, number=number, log=log, size=size, marked=marked)
            draw_bound(cell, setting, metric, number)
    cell.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=axis.columns == ("round",)))
    cell.set_axisbelow(True)
    cell.grid(True, which="major", color="0.88", linewidth=0.8)
    cell.spines[["top", "right"]].set_visible(False)
    cell.tick_params(labelsize=9, color="0.4")


def draw_setting(
    cell: Axes,
    setting: Setting,
    metric: str,
    axis: Axis,
    *,
    number: int,
    log: bool,
    size: float = 1.0,
    marked: bool = False,
    label: str | None = None,
) -> None:
    """Draw a setting by :func:`draw_summary` on an axis with the unit ``size``."""
    curve, finite = setting.curve(metric), setting.finite(metric)
    across = np.mean([axis.costs(run, curve.rounds) for run in setting.curve_runs(metric)], axis=0) / size
    seeds = [
        (axis.costs(run, run.metric_rounds) / size, run.metrics[metric], run not in finite)
        for run in setting.runs
    ]
    name = f"seeds of {setting.name}"
    draw_summary(cell, across, curve, seeds, number=number, log=log, name=name, marked=marked, label=label)


def draw_bound(cell: Axes, setting: Setting, metric: str, number: int, label: str | None = None) -> None:
    """Draw the bound of the setting's theorem on the metric, if there is one."""
    if (bound := setting.bound(metric)) is not None and bound < DIVERGED:
        cell.axhline(bound, color=curve_style(number)["color"], linestyle=BOUND, linewidth=1.2, label=label)


def draw_summary(
    axes: Axes,
    across: np.ndarray,
    curve: Curve,
    seeds: Sequence[tuple[np.ndarray, np.ndarray, bool]],
    *,
    number: int,
    log: bool,
    name: str,
    marked: bool = False,
    label: str | None = None,
) -> None:
    """Draw the seeds of a setting in the style of its number.

    The line is their mean with a band of one standard deviation; on a logarithmic axis their median with a
    band of quantiles. If some seeds diverge, i.e. end in non-finite values, it is the median of the others;
    each seed is a thin line in addition, and a cross marks the last finite value of a diverged seed. Values
    that are NaN or diverge leave a gap; a single value between gaps is a dot.

    Args:
        across: x values of the curve's points.
        seeds: x values, y values and whether the seed diverged, for each seed.
        name: label of the thin lines.
    """
    diverged = any(is_diverged for _, _, is_diverged in seeds)
    quantiles, style = log or diverged, curve_style(number)
    line = curve.line(quantiles)
    drawn = np.pad(np.abs(line) < DIVERGED, 1)
    isolated = np.flatnonzero(drawn[1:-1] & ~drawn[:-2] & ~drawn[2:]).tolist()
    marks = _markers(number, len(across), isolated, marked)
    axes.plot(across, np.where(drawn[1:-1], line, np.nan), label=label, **style | marks)
    low, high = curve.band(quantiles)
    has_band = drawn[1:-1] & (high - low < DIVERGED)
    if has_band.any():
        low, high = np.where(has_band, low, np.nan), np.where(has_band, high, np.nan)
        axes.fill_between(across, low, high, color=style["color"], alpha=0.16, linewidth=0)
    if diverged:
        _draw_seeds(axes, seeds, style["color"], name)


def _draw_seeds(axes, lines: Sequence[tuple[np.ndarray, np.ndarray, bool]], color: str, label: str) -> None:
    """Draw seeds as thin lines that do not change the limits of the axes."""
    paths = [np.column_stack([x, y])[np.isfinite(y)] for x, y, _ in lines]
    seeds = LineCollection(paths, colors=color, linewidths=0.7, alpha=0.6, label=label)
    axes.add_collection(seeds, autolim=False)
    ends = [path[-1] for path, (_, _, diverged) in zip(paths, lines) if diverged and len(path)]
    if ends:
        x, y = np.transpose(ends)
        crosses = Line2D(x, y, color=color, linestyle="None", marker="x", markersize=5, label="_diverged")
        axes.add_artist(crosses)


def with_finite_counts(
    settings: Sequence[Setting], names: Sequence[str], metrics: Iterable[str]
) -> list[str]:
    """Append the number of finite seeds to the names of settings with diverged seeds."""
    counts = [setting.finite_count(metrics) for setting in settings]
    return [f"{name} ({count})" if count else name for name, count in zip(names, counts)]


def _markers(number: int, points: int, isolated: list[int], marked: bool) -> dict:
    """Markers of a line: at single points between gaps, and if ``marked`` evenly spaced along the line."""
    if not marked and not isolated:
        return {}
    step = max(points // MARKERS_PER_LINE, 1)
    along = range(number % len(MARKERS) * step // len(MARKERS), points, step)
    if marked:
        marker = MARKERS[number % len(MARKERS)]
        return dict(marker=marker, markersize=3.5, markevery=sorted({*isolated, *along}))
    return dict(marker="o", markersize=5, markevery=isolated)


def set_scale(cell, settings: Sequence[Setting], metric: str, scale: str) -> None:
    """Set the vertical scale; a logarithmic axis starts just below the medians, since a band can reach 0."""
    cell.set_yscale(scale)
    cell.autoscale(axis="y")
    if scale == "log":
        least = np.nanmin(_medians(settings, metric), initial=np.inf)
        cell.set_ylim(bottom=max(cell.get_ylim()[0], least / 3))


def paper_figure(
    settings: Sequence[Setting],
    path: Path,
    width: str,
    metrics: Sequence[str],
    axes: Sequence[str],
    names: Labels = Labels(),
) -> Callable[[Path], None]:
    """Prepare a figure of an exact size for a paper, in the format of ``path``.

    The user's matplotlibrc applies, except for sizes of fonts and lines.

    Args:
        width: width with its unit, as for :func:`inches`.
        axes: names of :data:`AXES`.

    Returns:
        A function that writes the figure, and raises ValueError for invalid mathematics in ``names``.

    Raises:
        ValueError: the format, the width or an axis is invalid.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"expected a figure file that ends in {', '.join(FORMATS)}, got {path.name}")
    known = {axis.name: axis for axis in AXES}
    suitable = {axis.name for axis in axes_of(settings)}
    axes = [name.replace("_", " ") for name in axes]
    for name in axes:
        if name not in known:
            raise ValueError(f"unknown axis {name!r}: {suggest(name, known)}")
        if name not in suitable:
            raise ValueError(f"the runs have no {name}, because their jobs have no [clock]")
    across, size = [known[name] for name in axes], inches(width)

    def write(file: Path) -> None:
        lines = with_finite_counts(settings, names.for_settings(settings, _quoted), metrics)
        with matplotlib.rc_context(_EMBEDDED | {"font.size": FONT_SIZE}):
            figure = Figure(figsize=(size, 1), layout="constrained", facecolor="white")
            for cell in _panels(figure, settings, metrics, across, FONT_SIZE, names, marked=True).flat:
                for line in cell.lines:
                    line.set_linewidth(LINE_WIDTH)
                cell.tick_params(labelsize=FONT_SIZE - 1, color="0.4")
            rows = _legend(figure, lines)
            panel = max(ASPECT * size / len(across), 1.1)
            figure.set_size_inches(size, len(metrics) * panel + (rows + 1) * (1.45 * FONT_SIZE / 72))
            form = path.suffix.removeprefix(".")
            date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(form, {})
            figure.savefig(file, format=form, metadata={"Creator": REPORT_MARK} | date)

    return write


def inches(text: str) -> float:
    """Parse a width such as ``3.25in`` or ``84mm``.

    Raises:
        ValueError: the text is not a width in :data:`WIDTH_RANGE`.
    """
    match = re.fullmatch(rf"([0-9]+\.?[0-9]*|\.[0-9]+) *({'|'.join(INCHES_PER_UNIT)})", text.strip())
    width = float(match[1]) * INCHES_PER_UNIT[match[2]] if match else 0.0
    if not WIDTH_RANGE[0] <= width <= WIDTH_RANGE[1]:
        raise ValueError(
            f"expected a width from {WIDTH_RANGE[0]:g}in to {WIDTH_RANGE[1]:g}in with a unit "
            f"({', '.join(INCHES_PER_UNIT)}), such as 3.25in or 84mm; got {text!r}"
        )
    return width


def _legend(drawing: Figure, labels: Sequence[str]) -> int:
    """Draw a legend above the panels with as many columns as fit; return its number of lines."""
    handle = 3.0  # in units of the font size
    width = 72 * drawing.get_figwidth() / FONT_SIZE
    labels = [textwrap.fill(label, max(int((width - handle - 1) / 0.62), 8)) for label in labels]
    handles = []
    for number in range(len(labels)):
        style = curve_style(number) | {"linewidth": LINE_WIDTH}
        handles.append(Line2D([], [], **style, marker=MARKERS[number % len(MARKERS)], markersize=3.5))
    for columns in range(len(labels), 0, -1):
        legend = drawing.legend(
            handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=FONT_SIZE - 1,
            handlelength=handle, columnspacing=1, handletextpad=0.5, borderaxespad=0, labelspacing=0.25,
        )  # fmt: skip
        extent = legend.get_window_extent()
        if columns == 1 or extent.width <= drawing.bbox.width:
            break
        legend.remove()
    return -(-len(labels) // columns) + sum(label.count("\n") for label in labels) // columns


def plot(
    runs: pd.DataFrame | str | os.PathLike | Iterable[str | os.PathLike],
    metric: str | None = None,
    x: str = "round",
    ax: Axes | None = None,
) -> Axes:
    """Plot a metric of each setting over its seeds: the mean with a band of one standard deviation, or, if
    the y axis is already logarithmic, the median with a band from the 10 % to the 90 % quantile.

    A curve ends where the first of its runs ends, and has a gap where a run has no finite value. For a
    setting with diverged runs it is the median of the others, with every run as a thin line.

    Args:
        runs: the argument of :func:`mpifed.frame`, or the table that it returned, or some of its rows.
            Settings keep their styles in any selection of rows.
        metric: by default the first.
        x: ``round`` or another column of the table, such as the costs ``oracle_calls``, ``bytes_up`` and
            ``seconds``.
        ax: matplotlib axes, by default the current axes.

    Returns:
        The axes, with a legend.

    Raises:
        ValueError: there is no such metric or column; or as for :func:`mpifed.frame`.
    """
    import pandas as pd  # this and pyplot are not needed for reports
    from matplotlib import pyplot

    from mpifed.report.frame import frame

    table = runs if isinstance(runs, pd.DataFrame) else frame(runs)
    if x not in table:
        raise ValueError(f"the table has no column {x!r}: {suggest(x, [*table.columns])}")
    rows, settings = _rows(table, metric), table["setting"].astype("category").cat.categories
    ax = ax or pyplot.gca()
    for setting, group in rows.groupby("setting", observed=True):
        by_run = [run for _, run in group.groupby("run", observed=True)]
        _plot_setting(ax, by_run, x, str(setting), settings)
    ax.set(xlabel=x.replace("_", " "), ylabel=escape_mathtext(rows["metric"].iloc[0]))
    ax.legend(frameon=False)
    return ax


def _plot_setting(ax: Axes, runs: Sequence[pd.DataFrame], x: str, setting: str, settings: pd.Index) -> None:
    """Plot the runs of a setting by :func:`draw_summary`."""
    diverged = [run["diverged"].any() or not np.isfinite(run["value"].iloc[-1]) for run in runs]
    finite = [run for run, is_diverged in zip(runs, diverged) if not is_diverged]
    curve = Curve.from_runs((run["round"], run["value"]) for run in finite or runs)
    across = Curve.from_runs((run["round"], run[x]) for run in finite or runs).mean
    seeds = [(run[x], run["value"], is_diverged) for run, is_diverged in zip(runs, diverged)]
    count = f" ({len(finite)} of {len(runs)} finite)" if any(diverged) else ""
    number, log = settings.get_loc(setting), ax.get_yscale() == "log"
    label = escape_mathtext(f"{setting}{count}")
    draw_summary(ax, across, curve, seeds, number=number, log=log, name=f"_seeds of {setting}", label=label)


def _rows(table: pd.DataFrame, metric: str | None) -> pd.DataFrame:
    """The rows of a metric, by default the first."""
    known = [*table["metric"].unique()]
    if not known:
        raise ValueError("these runs have no metrics")
    metric = known[0] if metric is None else metric
    if metric not in known:
        raise ValueError(f"these runs have no metric {metric!r}: {suggest(metric, known)}")
    return table[table["metric"] == metric]
