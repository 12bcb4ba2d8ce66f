"""The figures of the gallery: the best methods in colour in front of all others in grey."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from gallery_standings import PAID, Entry, Standings
from mpifed.report.figures import DIVERGED, Axis, draw_setting, with_finite_counts

#: Number of methods in colour per panel.
SHOWN = 6
#: Number of panels per row.
ACROSS = 3
DPI = 100
#: Width of the figure, and width and height of its thumbnail, in pixels.
WIDTH, SMALL = 1200, (220, 132)
#: Number of colours in a file, which limits its size.
COLOURS = 48


def picture(found: Standings, path: Path) -> None:
    """Plot the metric against rounds, oracle calls and bytes, with the best methods in colour.

    Panels below plot the other methods against oracle calls, six per panel in the order of the page's table.
    """
    above, rest = found.entries[:SHOWN], found.entries[SHOWN:]
    groups = [rest[start : start + SHOWN] for start in range(0, len(rest), SHOWN)]
    rows = 1 + -(-len(groups) // ACROSS)
    height = 4.0 + 2.9 * (rows - 1)
    figure = Figure(figsize=(WIDTH / DPI, height), dpi=DPI, layout="constrained", facecolor="white")
    grid = figure.subplots(rows, ACROSS, squeeze=False, height_ratios=[4.0, *[2.9] * (rows - 1)])
    for cell, axis in zip(grid[0], PAID):
        _draw(cell, found, axis, above)
    _legend(grid[0, 0], "best at the end" if rest else "")
    for number, (cell, group) in enumerate(zip(grid[1:].flat, groups)):
        _draw(cell, found, PAID[1], group)
        first = SHOWN * (number + 1) + 1
        _legend(cell, f"ranks {first} to {first + len(group) - 1}")
    for cell in grid[1:].flat[len(groups) :]:
        cell.remove()
    for row in grid:
        row[0].set_ylabel(found.metric, fontsize=10)
    _save(figure, path)


def thumbnail(found: Standings, path: Path) -> None:
    """Plot the best methods against rounds, without text."""
    figure = Figure(figsize=(SMALL[0] / DPI, SMALL[1] / DPI), dpi=DPI, facecolor="white")
    cell = figure.subplots(gridspec_kw=dict(left=0.02, right=0.98, bottom=0.03, top=0.97))
    _draw(cell, found, PAID[0], found.entries[:SHOWN])
    cell.tick_params(which="both", length=0, labelleft=False, labelbottom=False)
    cell.grid(False)
    cell.set(xlabel="")
    for line in cell.lines:
        line.set_linewidth(min(line.get_linewidth(), 1.2))
    _save(figure, path)


def _draw(cell, found: Standings, axis: Axis, shown: Sequence[Entry]) -> None:
    size, label = axis.scale(found.settings)
    low, high, scale = heights(found)
    for one in found.entries:
        if one not in shown:
            curve = one.setting.curve(found.metric)
            costs = [axis.costs(run, curve.rounds) for run in one.setting.curve_runs(found.metric)]
            line = curve.line(scale == "log" or not one.setting.all_finite(found.metric))
            line = np.where(np.abs(line) < DIVERGED, line, np.nan)
            across = np.mean(costs, axis=0) / size
            cell.plot(across, line, color="0.86", linewidth=0.8, zorder=0.5, antialiased=False)
    for number, one in enumerate(shown):
        (name,) = with_finite_counts([one.setting], [one.name], [found.metric])
        draw_setting(
            cell, one.setting, found.metric, axis, number=number, log=scale == "log", size=size, label=name
        )
    cell.axhline(found.level, color="0.45", linewidth=0.8, linestyle=(0, (1, 2)), zorder=0.6)
    cell.set_yscale(scale)
    cell.set_ylim(low, high)
    cell.set_xlim(left=0)
    cell.set_xlabel(label, fontsize=9)
    cell.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    cell.grid(True, which="major", color="0.92", linewidth=0.8)
    cell.set_axisbelow(True)
    cell.spines[["top", "right"]].set_visible(False)
    cell.tick_params(labelsize=8.5, color="0.4")


def _legend(cell, title: str) -> None:
    cell.legend(title=title, fontsize=8, title_fontsize=8, framealpha=0.8, edgecolor="none", borderpad=0.2)


def heights(found: Standings) -> tuple[float, float, str]:
    """Return the limits and the scale of the vertical axis.

    The axis extends from slightly beyond the best value to slightly beyond the start, so curves that diverge
    leave the figure.
    """
    curves = [one.setting.curve(found.metric).median for one in found.entries]
    start = float(np.nanmedian([curve[0] for curve in curves]))
    values = np.concatenate(curves)
    values = values[np.abs(values) < DIVERGED]
    if found.maximised:
        best, least = float(values.max()), min(start, float(np.quantile(values, 0.01)))
        room = 0.04 * (best - least)
        return least - room, best + room, "linear"
    best = float(values.min())
    if best > 0:
        return best / 1.3, start * 1.5, "log"
    return best - 0.04 * (start - best), start + 0.1 * (start - best), "linear"


def _save(figure: Figure, path: Path) -> None:
    """Write a PNG with a palette. An octree keeps the colours of thin lines, a median cut does not."""
    with io.BytesIO() as file:
        figure.savefig(file, format="png")
        image = Image.open(file).convert("RGB")
        image.quantize(COLOURS, method=Image.Quantize.FASTOCTREE).save(path, optimize=True)
