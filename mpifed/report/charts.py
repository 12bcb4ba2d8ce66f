"""The page's curves as data for its script, which draws them with BokehJS.

Bokeh's Python package is not imported, since that takes longer than the rest of a page: the browser needs
its script alone, and whoever reads the page chooses what is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mpifed.report.comparison import Setting, metrics_of
from mpifed.report.figures import DIVERGED, axes_of, scales, style, thinned
from mpifed.report.names import labels
from mpifed.report.theory import bound_of

__all__ = ["curves_json", "library", "legend", "points"]

#: Points of all lines together, and the least and most of one.
BUDGET, LEAST, MOST = 8000, 200, 2000
#: The figures' colours as they are seen on black.
DARK = {
    "#0072B2": "#4FA8E0", "#D55E00": "#F0803C", "#009E73": "#2CC79A", "#CC79A7": "#E59CC6",
    "#000000": "#E6E9EC", "#E69F00": "#F2C14E", "#56B4E9": "#A5DCFA",
}  # fmt: skip
#: Digits that are kept: more than a screen shows.
DIGITS = 6


def library() -> str:
    """The text of BokehJS with its interface for scripts, of the installed package."""
    package = find_spec("bokeh")
    assert package is not None and package.submodule_search_locations is not None
    folder = Path(package.submodule_search_locations[0], "server", "static", "js")
    return "\n".join(
        (folder / name).read_text(encoding="utf-8") for name in ("bokeh.min.js", "bokeh-api.min.js")
    )


def points(lines: int) -> int:
    """Most points of a line where there are so many lines."""
    return min(max(BUDGET // lines, LEAST), MOST)


def legend(settings: Sequence[Setting], chosen: Sequence[Setting]) -> list[dict]:
    """What the legend shows of each line, those of the chosen settings first."""
    ordered, names = in_order(settings, chosen), dict(zip(settings, labels(settings)))
    if len(chosen) == len(settings):
        names = dict(zip(chosen, labels(chosen)))
    entries = []
    for number, one in enumerate(ordered):
        look = style(number)
        dashes = [] if look["linestyle"] == "-" else [2 * part for part in look["linestyle"][1]]
        entries.append(
            {"label": names[one], "color": look["color"], "dark": DARK[look["color"]], "dashes": dashes}
            | {"best": one in chosen}
        )
    return entries


def in_order(settings: Sequence[Setting], chosen: Sequence[Setting]) -> list[Setting]:
    """All settings, the chosen ones first: with the colours that they have in other figures."""
    return [*chosen, *(one for one in settings if one not in chosen)]


def curves_json(settings: Sequence[Setting], chosen: Sequence[Setting]) -> str:
    """All curves, as a text that can stand in a page."""
    ordered = in_order(settings, chosen)
    axes = [(axis, *axis.scale(settings)) for axis in axes_of(settings)]
    found = {
        "axes": [{"name": axis.name, "label": label} for axis, _, label in axes],
        "scales": {metric: scales(settings, metric) for metric in metrics_of(settings)},
        "lines": [_line(one, axes, points(len(ordered))) for one in ordered],
    }
    return json.dumps(found, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _line(setting: Setting, axes: Sequence, most: int) -> dict:
    """The curves of a setting: costs by axis; by metric the mean, the deviation and a bound of theory."""
    x: dict[str, list] = {}
    y: dict[str, dict] = {}
    for metric in metrics_of([setting]):
        curve = thinned(setting.curve(metric), most)
        own = {"mean": _numbers(curve.mean)}
        if len(setting.runs) > 1:
            own["deviation"] = _numbers(curve.deviation)
        bound = bound_of(setting, metric)
        y[metric] = own | ({"bound": bound} if bound is not None and bound < DIVERGED else {})
        if not x:  # all metrics are taken at the same rounds
            for axis, size, _ in axes:
                if axis.suits(setting):
                    costs = np.mean([axis.of(run, curve.rounds) for run in setting.runs], axis=0)
                    x[axis.name] = _numbers(costs / size)
    return {"x": x, "y": y}


def _numbers(values: np.ndarray) -> list[float | None]:
    """Finite numbers, with :data:`DIGITS` digits; whatever is not drawn is ``None``."""
    return [float(f"{value:.{DIGITS}g}") if abs(value) < DIVERGED else None for value in values.tolist()]
