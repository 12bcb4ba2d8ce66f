"""Static figures: every metric against every cost on :data:`AXES`, for a report, for a paper and on a user's
own axes.

Which method is ahead depends on the cost: rounds, gradients, bytes or time. :func:`draw_summary` is the one
rule of how the seeds of a setting are drawn. Where the job names a theorem that bounds the metric, the bound
is a dotted level in the curve's colour.
"""

from __future__ import annotations

import io
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mpifed.base.log import drawn
from mpifed.base.settings import suggest
from mpifed.report.comparison import Setting, metrics_of
from mpifed.report.frame import frame
from mpifed.report.labels import Labels, labels
from mpifed.report.statistics import Curve
from mpifed.storage.ownership import FIGURE_MARK, MADE_BY
from mpifed.storage.results import RunData, expect

__all__ = [
    "AXES",
    "BOUND",
    "DIVERGED",
    "STYLES",
    "Axis",
    "axes_of",
    "counted",
    "curves",
    "draw",
    "draw_bound",
    "draw_setting",
    "inches",
    "paper_figure",
    "plot",
    "scales",
    "set_scale",
    "still",
    "style",
]


@dataclass(frozen=True)
class Axis:
    """A horizontal axis: the sum of some cost columns, in the largest of ``units`` that leaves numbers above
    2. ``name`` is its name in commands.

    An ``optional`` axis is drawn only for runs whose cost on it is not always zero.
    """

    name: str
    label: str
    columns: tuple[str, ...]
    units: tuple[tuple[float, str], ...] = ((1, ""),)
    optional: bool = False

    def of(self, run: RunData, rounds: np.ndarray) -> np.ndarray:
        """The cost at some completed rounds of the run, ``[E]``."""
        rows = np.searchsorted(run.costs["round"], rounds)
        return sum(run.costs[column][rows].astype(float) for column in self.columns)

    def suits(self, setting: Setting) -> bool:
        """Whether the setting is drawn against this axis."""
        return not self.optional or all(self.of(run, run.metric_rounds).any() for run in setting.runs)

    def scale(self, settings: Sequence[Setting], label: str | None = None) -> tuple[float, str]:
        """Divisor that suits the largest cost of the runs, and the label with its unit."""
        largest = max(
            np.max(self.of(run, run.metric_rounds), initial=0) for one in settings for run in one.runs
        )
        size, name = next((unit for unit in reversed(self.units) if largest >= 2 * unit[0]), self.units[0])
        label = label or self.label
        return size, f"{label} ({name})" if name else label


_COUNT = ((1, ""), (1e3, "thousands"), (1e6, "millions"), (1e9, "billions"))
_SIZE = ((1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"))
_TIME = ((1e-3, "ms"), (1, "s"), (60, "min"), (3600, "h"))
#: The horizontal axes. Bytes are those that federated clients would send and receive.
AXES = (
    Axis("rounds", "rounds", ("round",)),
    Axis("oracle calls", "oracle calls", ("oracle_calls",), _COUNT),
    Axis("bytes", "bytes, up + down", ("bytes_up", "bytes_down"), _SIZE),
    Axis("seconds", "wall time without evaluation", ("seconds",), _TIME),
    Axis("federated seconds", "federated wall time", ("federated_seconds",), _TIME, optional=True),
)

# Okabe and Ito's palette without its yellow, which is too faint on white. Seven colours and four dash
# patterns have no common factor, so that 28 curves look different, and neighbours differ in both.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
BOUND = (0, (1, 3))  # dots wider apart than any curve's: a theorem's bound
DIVERGED = 1e100  # larger values flatten the rest of a curve, and overflow in the margins of an axis
STYLES = [dict(color=COLOURS[i % 7], linestyle=DASHES[i % 4], linewidth=1.7) for i in range(28)]
#: Markers for print without colours, and about how many a line has; neighbours differ.
MARKERS, MARKED = "os^Dv", 8
#: Most points of a curve in the still figure of the page.
POINTS = 200

#: Of a paper's figure: inches per unit (a point is TeX's, in which ``\the\columnwidth`` is given), possible
#: widths in inches, vector formats.
UNITS = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}
WIDTHS = 1.0, 30.0
FORMATS = (".pdf", ".svg", ".eps")
#: Its text and lines in points, and the height of a panel over its width.
TEXT, THICKNESS, SHAPE = 8, 1.2, 0.7
#: Its fonts are embedded as a whole, as journals ask for (they refuse Type 3 fonts).
_EMBEDDED = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.hashsalt": "mpifed"}


def axes_of(settings: Sequence[Setting]) -> list[Axis]:
    """The axes that suit one of the settings."""
    return [axis for axis in AXES if any(axis.suits(one) for one in settings)]


def scales(settings: Sequence[Setting], metric: str) -> list[str]:
    """The useful vertical scales, the better one first: logarithmic where all values are positive and span a
    large range."""
    means = np.concatenate([one.curve(metric).median for one in settings if metric in one.metrics])
    means = means[np.abs(means) < DIVERGED]
    spread = means.max() / means.min() if len(means) and means.min() > 0 else 1
    return ["log", "linear"] if spread > 100 else ["linear", "log"] if spread > 3 else ["linear"]


def curves(settings: Sequence[Setting], path: str | Path, metric: str | None = None) -> None:
    """Write a PNG with a row per metric (all, or the one named) and a column for each of :data:`AXES` that
    suits a setting.

    Raises:
        ValueError: no setting has the metric, or none has any.
    """
    metrics = metrics_of(settings)
    expect(
        metrics if metric is None else metric in metrics,
        f"a metric of these runs ({', '.join(metrics)})",
        metric,
    )
    metrics = metrics if metric is None else [metric]
    names = [drawn(name) for name in counted(settings, labels(settings), metrics)]
    columns = max(1, min(len(names), 150 // (max(map(len, names)) + 10)))
    height = 0.7 + 2.5 * len(metrics) + 0.22 * -(-len(names) // columns)
    axes = axes_of(settings)
    figure = Figure(figsize=(3.375 * len(axes), height), dpi=150, layout="constrained", facecolor="white")
    _panels(figure, settings, metrics, axes, text=10)
    handles = [Line2D([], [], **style(number)) for number in range(len(settings))]
    figure.legend(
        handles, names, loc="outside upper center", ncols=columns, frameon=False, fontsize=10, handlelength=3
    )
    figure.savefig(path, format="png", metadata=MADE_BY)


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
    """A text for matplotlib: only a user's own may contain mathematics between dollars."""
    return text if by_user else drawn(text)


def still(settings: Sequence[Setting], metric: str, axis: Axis) -> bytes:
    """One metric against one axis as an SVG, without a legend, its text in the reader's font."""
    figure = Figure(figsize=(7.2, 4), facecolor="white")
    cell = figure.subplots(
        gridspec_kw=dict(left=0.14, right=0.98, bottom=0.14, top=0.97)
    )  # as good as fitted, in half the time
    draw(cell, settings, metric, axis, POINTS)
    cell.set_xlabel(axis.scale(settings)[1], fontsize=11)
    cell.set_ylabel(drawn(metric), fontsize=11)
    set_scale(cell, settings, metric, scales(settings, metric)[0])
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "mpifed"}), io.BytesIO() as file:
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        return file.getvalue()


def style(number: int) -> dict:
    """Colour, dashes and width of a line."""
    return STYLES[number % len(STYLES)]


def draw(
    cell: Axes,
    settings: Sequence[Setting],
    metric: str,
    axis: Axis,
    points: int | None = None,
    marked: bool = False,
) -> None:
    """The curves of the settings, with :data:`MARKERS` if ``marked``, and the bounds."""
    size, log = axis.scale(settings)[0], scales(settings, metric)[0] == "log"
    for number, setting in enumerate(settings):
        if metric in setting.metrics and axis.suits(setting):
            draw_setting(cell, setting, metric, axis, number, log, size=size, points=points, marked=marked)
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
    number: int,
    log: bool,
    size: float = 1.0,
    points: int | None = None,
    marked: bool = False,
    label: str | None = None,
) -> None:
    """A setting by :func:`draw_summary`, on an axis in units of ``size``, with at most so many points."""
    curve, finite = setting.curve(metric).thinned(points), setting.finite(metric)
    across = np.mean([axis.of(run, curve.rounds) for run in setting.drawn(metric)], axis=0) / size
    seeds = [
        (axis.of(run, run.metric_rounds) / size, run.metrics[metric], run not in finite)
        for run in setting.runs
    ]
    draw_summary(cell, across, curve, seeds, number, log, f"seeds of {setting.name}", marked, label)


def draw_bound(cell: Axes, setting: Setting, metric: str, number: int, label: str | None = None) -> None:
    """The bound of the setting's theorem on the metric, if there is one."""
    if (bound := setting.bound(metric)) is not None and bound < DIVERGED:
        cell.axhline(bound, color=style(number)["color"], linestyle=BOUND, linewidth=1.2, label=label)


def draw_summary(
    axes: Axes,
    across: np.ndarray,
    curve: Curve,
    seeds: Sequence[tuple[np.ndarray, np.ndarray, bool]],
    number: int,
    log: bool,
    name: str,
    marked: bool = False,
    label: str | None = None,
) -> None:
    """The rule for the seeds of a setting.

    The line is their mean in a band of one standard deviation; on a logarithmic axis their median in a band
    of quantiles. Where some seeds are lost, i.e. end in non-finite values, it is the median of the others,
    and every seed is a thin line, with a cross where it is lost.

    Args:
        across: places of the curve's points.
        seeds: of each its places, its heights, and whether it is lost.
        name: label of the thin lines.
    """
    lost = any(one for _, _, one in seeds)
    draw_curve(axes, across, curve, number, marked, label, quantiles=log or lost)
    if lost:
        _draw_seeds(axes, seeds, number, name)


def draw_curve(
    axes,
    across: np.ndarray,
    curve: Curve,
    number: int,
    marked: bool = False,
    label: str | None = None,
    quantiles: bool = False,
) -> None:
    """A curve in the style of its number, with its band where there are several runs: the mean, or the median
    and ``quantiles``. Values that diverged or are NaN leave a gap; a single value between gaps is a dot."""
    line = curve.line(quantiles)
    seen = np.pad(np.abs(line) < DIVERGED, 1)
    alone = np.flatnonzero(seen[1:-1] & ~seen[:-2] & ~seen[2:]).tolist()
    heights, look = np.where(seen[1:-1], line, np.nan), style(number)
    axes.plot(across, heights, label=label, **(look | _marks(number, len(across), alone, marked)))
    low, high = curve.band(quantiles)
    around = seen[1:-1] & (high - low < DIVERGED)
    if around.any():
        low, high = np.where(around, low, np.nan), np.where(around, high, np.nan)
        axes.fill_between(across, low, high, color=look["color"], alpha=0.16, linewidth=0)


def _draw_seeds(axes, lines: Sequence[tuple[np.ndarray, np.ndarray, bool]], number: int, label: str) -> None:
    """Seeds as thin lines in the colour of their setting, which no axis is stretched for."""
    color, known = style(number)["color"], [np.isfinite(heights) for _, heights, _ in lines]
    paths = [np.column_stack([x, y])[finite] for (x, y, _), finite in zip(lines, known)]
    seeds = LineCollection(paths, colors=color, linewidths=0.7, alpha=0.6, label=label)
    axes.add_collection(seeds, autolim=False)
    ends = [path[-1] for path, (_, _, lost) in zip(paths, lines) if lost and len(path)]
    if ends:
        x, y = np.transpose(ends)
        crosses = Line2D(x, y, color=color, linestyle="None", marker="x", markersize=5, label="_lost")
        axes.add_artist(crosses)


def counted(settings: Sequence[Setting], names: Sequence[str], metrics: Iterable[str]) -> list[str]:
    """The names, with the number of finite seeds where some are lost."""
    tallies = [one.tally(metrics) for one in settings]
    return [f"{name} ({tally})" if tally else name for name, tally in zip(names, tallies)]


def _marks(number: int, points: int, alone: list[int], marked: bool) -> dict:
    """Markers of a line: at single points between gaps, and evenly spaced along it."""
    if not marked and not alone:
        return {}
    step = max(points // MARKED, 1)
    along = range(number % len(MARKERS) * step // len(MARKERS), points, step)
    size = (
        dict(marker=MARKERS[number % len(MARKERS)], markersize=3.5)
        if marked
        else dict(marker="o", markersize=5)
    )
    return size | dict(markevery=sorted({*alone, *along}) if marked else alone)


def set_scale(cell, settings: Sequence[Setting], metric: str, scale: str) -> None:
    """Set the vertical scale. A logarithmic axis ends a little below the medians: a band that reaches 0 would
    stretch it indefinitely."""
    cell.set_yscale(scale)
    cell.autoscale(axis="y")
    if scale == "log":
        least = min(
            np.nanmin(one.curve(metric).median, initial=np.inf) for one in settings if metric in one.metrics
        )
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

    Fonts and the like are those of the user's matplotlibrc, except the size of text.

    Args:
        width: with its unit, as for :func:`inches`.
        axes: names of :data:`AXES`.

    Returns:
        A function that writes the figure, or raises ValueError for invalid mathematics in ``names``.

    Raises:
        ValueError: unknown format, width or axis.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"expected a figure that ends in {', '.join(FORMATS)}, found {path.name}")
    known = {axis.name: axis for axis in AXES}
    suitable = {axis.name for axis in axes_of(settings)}
    axes = [name.replace("_", " ") for name in axes]
    for name in axes:
        if name not in known:
            raise ValueError(f"no axis is called {name!r}: {suggest(name, known)}")
        if name not in suitable:
            raise ValueError(f"the runs have no {name}: their jobs have no [clock]")
    across, size = [known[name] for name in axes], inches(width)

    def write(file: Path) -> None:
        lines = counted(settings, names.of(settings, _quoted), metrics)
        with matplotlib.rc_context(_EMBEDDED | {"font.size": TEXT}):
            figure = Figure(figsize=(size, 1), layout="constrained", facecolor="white")
            for cell in _panels(figure, settings, metrics, across, TEXT, names, marked=True).flat:
                for line in cell.lines:
                    line.set_linewidth(THICKNESS)
                cell.tick_params(labelsize=TEXT - 1, color="0.4")
            rows = _legend(figure, lines)
            panel = max(SHAPE * size / len(across), 1.1)
            figure.set_size_inches(size, len(metrics) * panel + (rows + 1) * (1.45 * TEXT / 72))
            form = path.suffix.removeprefix(".")
            date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(form, {})
            figure.savefig(file, format=form, metadata={"Creator": FIGURE_MARK} | date)

    return write


def inches(text: str) -> float:
    """A width with its unit, such as ``3.25in`` or ``84mm``.

    Raises:
        ValueError: it is none, or nothing can be drawn in it.
    """
    found = re.fullmatch(rf"([0-9.]+) *({'|'.join(UNITS)})", text.strip())
    try:
        width = float(found[1]) * UNITS[found[2]] if found else 0.0
    except ValueError:
        width = 0.0
    if not WIDTHS[0] <= width <= WIDTHS[1]:
        raise ValueError(
            f"expected a width from {WIDTHS[0]:g}in to {WIDTHS[1]:g}in in one of {', '.join(UNITS)}, "
            f"such as 3.25in or 84mm; found {text!r}"
        )
    return width


def _legend(drawing: Figure, labels: Sequence[str]) -> int:
    """A legend above the panels, in as many columns as the figure is wide; how many lines it has."""
    handle = 3.0  # of TEXT
    width = 72 * drawing.get_figwidth() / TEXT
    labels = [textwrap.fill(label, max(int((width - handle - 1) / 0.62), 8)) for label in labels]
    handles = [
        Line2D(
            [],
            [],
            marker=MARKERS[number % len(MARKERS)],
            markersize=3.5,
            **style(number) | {"linewidth": THICKNESS},
        )
        for number in range(len(labels))
    ]
    for columns in range(len(labels), 0, -1):
        legend = drawing.legend(
            handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=TEXT - 1,
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
    """Draw a metric of each setting over its seeds: the mean with a band of one standard deviation, or, on
    axes that are logarithmic already, the median with a band from the 10 % to the 90 % quantile.

    A curve ends where the first of its runs ends, and has a gap where one of them has no finite value. For a
    setting with diverged runs it is the median of the others, with every run as a thin line.

    Args:
        runs: the argument of :func:`mpifed.frame`, or a table that it returned, or a part of one. Settings
            keep their styles in any part of a table.
        metric: by default the first.
        x: ``round`` or another column of the table, such as the costs ``oracle_calls``, ``bytes_up`` and
            ``seconds``.
        ax: matplotlib axes, by default the current ones.

    Returns:
        The axes, with a legend.

    Raises:
        ValueError: no such metric or column; as for :func:`mpifed.frame`.
    """
    from matplotlib import pyplot  # reports do not need it

    found = runs if isinstance(runs, pd.DataFrame) else frame(runs)
    if x not in found:
        raise ValueError(f"the table has no column {x!r}: {suggest(x, [*found.columns])}")
    rows, settings = _rows(found, metric), found["setting"].astype("category").cat.categories
    ax = ax or pyplot.gca()
    for setting, own in rows.groupby("setting", observed=True):
        _plot_setting(ax, [run for _, run in own.groupby("run", observed=True)], x, str(setting), settings)
    ax.set(xlabel=x.replace("_", " "), ylabel=drawn(rows["metric"].iloc[0]))
    ax.legend(frameon=False)
    return ax


def _plot_setting(ax: Axes, runs: Sequence[pd.DataFrame], x: str, setting: str, settings: pd.Index) -> None:
    """A setting by :func:`draw_summary`."""
    lost = [run["diverged"].any() or not np.isfinite(run["value"].iloc[-1]) for run in runs]
    known = [run for run, without in zip(runs, lost) if not without]
    curve = Curve.of((run["round"], run["value"]) for run in known or runs)
    across = Curve.of((run["round"], run[x]) for run in known or runs).mean
    seeds = [(run[x], run["value"], without) for run, without in zip(runs, lost)]
    tally = f" ({len(known)} of {len(runs)} finite)" if any(lost) else ""
    number, log = settings.get_loc(setting), ax.get_yscale() == "log"
    label = drawn(f"{setting}{tally}")
    draw_summary(ax, across, curve, seeds, number, log, f"_seeds of {setting}", label=label)


def _rows(found: pd.DataFrame, metric: str | None) -> pd.DataFrame:
    """The rows of a metric, by default of the first."""
    known = [*found["metric"].unique()]
    if not known:
        raise ValueError("these runs have no metrics")
    metric = known[0] if metric is None else metric
    if metric not in known:
        raise ValueError(f"these runs have no metric {metric!r}: {suggest(metric, known)}")
    return found[found["metric"] == metric]
