"""The report as one self-contained HTML page: figures, style and script are part of it.

BokehJS draws the curves in the browser from data in the page. Bokeh's Python package is not imported, since
that takes longer than the rest of a page.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mpifed.base.settings import flatten
from mpifed.report.citations import references
from mpifed.report.client_samples import Holdings, draw, title
from mpifed.report.comparison import Rule, Setting, metrics_of
from mpifed.report.figures import DIVERGED, axes_of, counted, scales, still, style
from mpifed.report.labels import labels, run_names, setting_cells
from mpifed.report.statistics import Curve, Spread
from mpifed.report.tables import (
    TEST,
    cell,
    client_rows,
    confusion_rows,
    cost_rows,
    paired_rows,
    run_rows,
    setting_rows,
    theory_rows,
)
from mpifed.storage.results import RunData

__all__ = ["library", "page", "points"]

#: Points of all lines together, and the least and most of one.
BUDGET, LEAST, MOST = 8000, 200, 2000
#: Significant digits of the page's curves: more than a screen shows.
DIGITS = 6
#: The figures' colours on a dark background.
DARK = {
    "#0072B2": "#4FA8E0", "#D55E00": "#F0803C", "#009E73": "#2CC79A", "#CC79A7": "#E59CC6",
    "#000000": "#E6E9EC", "#E69F00": "#F2C14E", "#56B4E9": "#A5DCFA",
}  # fmt: skip
#: The tables whose columns are explained.
_EXPLAINED = ("best", "settings", "runs", "costs", "theory", "clients")
#: Texts with more characters than this are broken into lines.
LONG = 24
#: What the columns of the tables mean, by their name or the last word of it.
COLUMNS = {
    "name": "the run's folder, or its method where there is one run only",
    "method": "the algorithm",
    "setting": "the method, with the settings that set it apart from others of the same method",
    "settings": "those of the method's own that vary within the method",
    "seeds": "pairs of runs that are compared, one a seed",
    "seed": "first part of the address of every random number of the run, the partition of the data "
    "among them",
    "difference": "the setting's value less that of the best one, mean ± standard deviation over the pairs",
    "against": "the best setting of the same task",
    "p": "how often chance alone would make a difference as large; NaN where there are fewer than two pairs, "
    "or all differ by the same",
    "p (Holm)": "the same, corrected for the number of comparisons",
    "theorem": "the theorem that the job names",
    "bound on": "what the theorem bounds, with its own steps",
    "bound": "its value; a dotted level in the figure of the metric that it bounds",
    "measured": "that metric at the last evaluation",
    "prescribed": "the step that the theorem prescribes",
    "used": "the step that the runs have",
    "used / prescribed": "how many times smaller the theorem's step is",
    "runs": "number of runs with these settings, one a seed; every figure of the row is their mean ± "
    "standard deviation, or where some have no finite value the median of the others, least and largest",
    "diverged": "how many of the runs ended in non-finite values; they have no final and no best value, and "
    "the setting ranks behind those of which fewer did",
    "left out": "seeds that make no pair, since one of the two has no finite value",
    "not finished": "how many of the runs are still going on or were killed; they count with their values so "
    "far",
    "infeasible": "how many of the runs have left the problem's sets, or how far a run has; a point outside "
    "is no solution, whatever its metrics",
    "final": "value of the metric at the last evaluation",
    "best": "largest value of the metric at any evaluation if more of it is better, else the smallest; with "
    "a validation split, the value where that of the validation metric is",
    "reached by": "number of runs that reach the target; the mean of the rounds is over these",
    "rounds": "communication rounds done",
    "oracle calls": "gradients or operator values of one sample or batch, added up over all clients",
    "phases": "message exchanges between clients and server; some methods need more than one a round",
    "bytes up": "what all federated clients would send to the server",
    "bytes down": "what the server would send to all federated clients",
    "wire bytes": "what this simulation moved between its ranks",
    "seconds": "wall time of the simulation, without evaluation and files",
    "federated seconds": "wall time that federated clients would take, by the clock of the job file",
    "communication %": "share of communication in the time that the ranks spent computing and communicating",
    "peak memory per rank": "most memory that a process has held (MB = 1,000,000 bytes), "
    "least to largest over the ranks",
    "clients": "number of clients",
    "worst client": "the number of the client with the worst value, in each run",
    "stopped": "why the run ended",
}


def page(settings: Sequence[Setting], chosen: Sequence[Setting], rule: Rule) -> str:
    """The text of the page.

    Args:
        settings: everything that was run.
        chosen: the best setting of every method.
    """
    runs, choosing = [run for one in settings for run in one.runs], len(chosen) < len(settings)
    common, own = _configs(runs)
    tables = _tables(settings, chosen, runs, rule, own)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_template("report.html")).render(
        heading=_heading(settings),
        counts=_counts(settings, runs),
        rule=rule.describe(settings),
        **_charts(settings, chosen),
        metrics=[(one, one) for one in metrics_of(settings)],
        axes=[(axis.name, axis.name) for axis in axes_of(settings)],
        tables=tables,
        test=TEST,
        choosing=choosing,
        several=len(runs) > 1,
        glossary=_glossary(tables),
        confusions=_confusions(chosen),
        holdings=_holdings(settings),
        common=common,
        references=references(run.config for run in runs),
    )


def _tables(settings, chosen, runs, rule: Rule, own) -> dict:
    """The page's tables by name, ``None`` for an empty one."""
    cells, choosing = setting_cells(settings, rule), len(chosen) < len(settings)
    return {
        "best": _table(setting_rows(chosen, rule, cells)) if len(runs) > len(chosen) else None,
        "settings": _table(setting_rows(settings, rule, cells), [one in chosen for one in settings])
        if choosing
        else None,
        "runs": _table(run_rows(settings, rule, costs=False)),
        "costs": _table(cost_rows(chosen)),
        "paired": _table(paired_rows(chosen, rule)),
        "theory": _table(theory_rows(settings)),
        "clients": _table(client_rows(chosen)),
        "files": _table(_files(runs)),
        "places": _table(_places(runs)),
        "versions": _table(_versions(runs)),
        "own": _table(own),
    }


def _heading(settings: Sequence[Setting]) -> str:
    methods = list(dict.fromkeys(one.name for one in settings))
    problems = list(
        dict.fromkeys(str(one.settings.get("problem.name", "")).rpartition(":")[2] for one in settings)
    )
    return ", ".join(methods) + (f" on {', '.join(problems)}" if any(problems) else "")


def _counts(settings: Sequence[Setting], runs: Sequence[RunData]) -> str:
    """The numbers of runs, settings and methods, or how the only run ended, as a sentence."""
    if len(runs) == 1:
        return "; infeasible: ".join(filter(None, [runs[0].stopped or "not finished", runs[0].infeasible]))
    numbers = {"run": len(runs), "setting": len(settings), "method": len({one.name for one in settings})}
    words = [f"{number} {name}{'' if number == 1 else 's'}" for name, number in numbers.items()]
    ends = {
        "ended in non-finite values": sum(run.diverged for run in runs),
        "not finished": sum(not run.stopped for run in runs),
        "infeasible": sum(bool(run.infeasible) for run in runs),
    }
    words += [f"{number} {name}" for name, number in ends.items() if number]
    return ", ".join(words)


def _charts(settings: Sequence[Setting], chosen: Sequence[Setting]) -> dict:
    """The values of the template for the charts; no curves where there are no metrics."""
    if not metrics_of(chosen):
        return {"curves": ""}
    most = points(len(settings))
    long = any(len(one.curve(metric).rounds) > most for one in settings for metric in one.metrics[:1])
    return {
        "curves": Markup(curves_json(settings, chosen)),
        "library": Markup(library()),
        "script": Markup(_template("charts.js")),
        "legend": legend(settings, chosen),
        "still": _still(chosen),
        "thinned": most if long else 0,
    }


def _still(chosen: Sequence[Setting]) -> dict:
    """The first metric against the first axis, for readers without scripts and for paper."""
    metric, axis = metrics_of(chosen)[0], axes_of(chosen)[0]
    return {"metric": metric, "axis": axis.label, "image": _uri(still(chosen, metric, axis), "svg+xml")}


def _template(name: str) -> str:
    return resources.files("mpifed.report").joinpath("templates", name).read_text(encoding="utf-8")


def _uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _table(rows: Sequence[dict], marks: Sequence[bool] = ()) -> dict | None:
    """Rows as texts, with the type of each column: number, short (never broken) or long."""
    if not rows:
        return None
    texts, kinds = [[cell(column, value) for column, value in row.items()] for row in rows], []
    for number, column in enumerate(rows[0]):
        numeric = any(isinstance(row[column], int | float | Spread) for row in rows)
        kinds.append(
            "number" if numeric else "long" if max(len(row[number]) for row in texts) > LONG else "short"
        )
    return {
        "columns": list(rows[0]),
        "kinds": kinds,
        "rows": texts,
        "marks": list(marks) or [False] * len(rows),
    }


def _glossary(tables: dict[str, dict | None]) -> dict[str, str]:
    """The meaning of every column that occurs."""
    found = {name: tables[name]["columns"] for name in _EXPLAINED if tables[name]}
    columns = dict.fromkeys(column for names in found.values() for column in names)
    meanings = {column: COLUMNS[column] for column in columns if column in COLUMNS}
    meanings |= {
        f"… {word}": COLUMNS[word]
        for word in ("final", "best")
        if any(name.endswith(f" {word}") for name in columns)
    }
    targets = {
        column: "rounds to the first evaluation at which the metric reaches the target"
        for column in columns
        if column.startswith("rounds to ")
    }
    return meanings | targets


def _confusions(chosen: Sequence[Setting]) -> list[tuple[str, dict]]:
    """The tables of confusion of the best settings, with their names."""
    tables = ((name, _table(confusion_rows(one))) for one, name in zip(chosen, labels(chosen)))
    return [(name, table) for name, table in tables if table]


def _holdings(settings: Sequence[Setting]) -> list[dict]:
    """Samples by client and class in the first run of every problem with classes."""
    firsts: dict[str, RunData] = {}
    for run in (one.runs[0] for one in settings):
        if run.class_counts is not None:
            firsts.setdefault(json.dumps(run.config["problem"], sort_keys=True), run)
    found = []
    for run in firsts.values():
        with io.BytesIO() as file:
            draw(Holdings(title(run.config), run.class_counts, run.classes), file)
            found.append({"title": title(run.config), "image": _uri(file.getvalue(), "png")})
    return found


def _files(runs: Sequence[RunData]) -> list[dict]:
    """The data files that were read, each version once."""
    found = {(name, file["digest"], file["path"]): None for run in runs for name, file in run.data.items()}
    return [{"data file": name, "path": path, "SHA-256": digest} for name, digest, path in sorted(found)]


def _places(runs: Sequence[RunData]) -> list[dict]:
    """The results file of each run, and the machine it ran on."""
    names = dict.fromkeys(
        key for run in runs for key, value in run.layout.items() if not isinstance(value, list | dict)
    )
    return [
        {"run": name, "results": str(run.path)} | {key: run.layout.get(key) for key in names}
        for name, run in zip(run_names(runs), runs)
    ]


def _versions(runs: Sequence[RunData]) -> list[dict]:
    """Every version of each software that a run has used."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, version in run.versions.items():
            found.setdefault(name, {})[str(version)] = None
    return [{"software": name, "version": ", ".join(versions)} for name, versions in found.items()]


def _configs(runs: Sequence[RunData]) -> tuple[dict[str, str], list[dict]]:
    """All settings as JSON texts: those that the runs share, and a row per run of the others."""
    configs = [{key: json.dumps(value) for key, value in flatten(run.config).items()} for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    apart = [key for key in keys if len({config.get(key) for config in configs}) > 1]
    common = {key: configs[0][key] for key in keys if key not in apart}
    own = [
        {"run": name} | {key: config.get(key) for key in apart}
        for name, config in zip(run_names(runs), configs)
    ]
    return common, own if apart else []


def library() -> str:
    """The text of BokehJS with its interface for scripts, of the installed package."""
    package = find_spec("bokeh")
    assert package is not None and package.submodule_search_locations is not None
    folder = Path(package.submodule_search_locations[0], "server", "static", "js")
    return "\n".join(
        (folder / name).read_text(encoding="utf-8") for name in ("bokeh.min.js", "bokeh-api.min.js")
    )


def points(lines: int) -> int:
    """Most points per line for this number of lines."""
    return min(max(BUDGET // lines, LEAST), MOST)


def legend(settings: Sequence[Setting], chosen: Sequence[Setting]) -> list[dict]:
    """The legend's entry of each line, those of the chosen settings first."""
    ordered, names = _in_order(settings, chosen), dict(zip(settings, labels(settings)))
    if len(chosen) == len(settings):
        names = dict(zip(chosen, labels(chosen)))
    texts, entries = counted(ordered, [names[one] for one in ordered], metrics_of(settings)), []
    for number, one in enumerate(ordered):
        look = style(number)
        dashes = [] if look["linestyle"] == "-" else [2 * part for part in look["linestyle"][1]]
        entries.append(
            {"label": texts[number], "color": look["color"], "dark": DARK[look["color"]], "dashes": dashes}
            | {"best": one in chosen}
        )
    return entries


def _in_order(settings: Sequence[Setting], chosen: Sequence[Setting]) -> list[Setting]:
    """All settings, the chosen ones first, so that they keep their colours of other figures."""
    return [*chosen, *(one for one in settings if one not in chosen)]


def curves_json(settings: Sequence[Setting], chosen: Sequence[Setting]) -> str:
    """All curves, as JSON that is safe within HTML."""
    ordered = _in_order(settings, chosen)
    axes = [(axis, *axis.scale(settings)) for axis in axes_of(settings)]
    found = {
        "axes": [{"name": axis.name, "label": label} for axis, _, label in axes],
        "scales": {metric: scales(settings, metric) for metric in metrics_of(settings)},
        "lines": [_line(one, axes, points(len(ordered))) for one in ordered],
    }
    return json.dumps(found, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _line(setting: Setting, axes: Sequence, most: int) -> dict:
    """The curves of a setting: costs by axis, those of the first metric and of others where they differ; by
    metric the line and the band of each kind of axis, the seeds where some are lost, a bound of theory."""
    x: dict[str, list] = {}
    y: dict[str, dict] = {}
    for metric in metrics_of([setting]):
        curve, runs = setting.curve(metric).thinned(most), setting.drawn(metric)
        costs = _costs(axes, setting, runs, curve.rounds)
        x = x or costs
        own: dict = ({} if costs == x else {"x": costs}) | {"mean": _numbers(curve.mean)}
        if len(runs) > 1:
            names = ("deviation", "median", "low", "high")
            own |= {name: _numbers(getattr(curve, name)) for name in names}
        if not setting.is_whole(metric):
            finite = setting.finite(metric)
            own["seeds"] = [_seed(setting, run, metric, axes, run not in finite) for run in setting.runs]
        bound = setting.bound(metric)
        y[metric] = own | ({"bound": bound} if bound is not None and bound < DIVERGED else {})
    return {"x": x, "y": y}


def _seed(setting: Setting, run: RunData, metric: str, axes: Sequence, lost: bool) -> dict:
    """The values of a run, at most :data:`LEAST` of them, and whether it is lost."""
    curve = Curve.of([(run.metric_rounds, run.metrics[metric])]).thinned(LEAST)
    x = _costs(axes, setting, [run], curve.rounds)
    return {"x": x, "y": _numbers(curve.mean), "lost": lost}


def _costs(axes: Sequence, setting: Setting, runs: Sequence[RunData], rounds: np.ndarray) -> dict[str, list]:
    """The mean cost of runs at some rounds, by axis."""
    return {
        axis.name: _numbers(np.mean([axis.of(run, rounds) for run in runs], axis=0) / size)
        for axis, size, _ in axes
        if axis.suits(setting)
    }


def _numbers(values: np.ndarray) -> list[float | None]:
    """Finite numbers with :data:`DIGITS` digits; values that are not drawn are ``None``."""
    return [float(f"{value:.{DIGITS}g}") if abs(value) < DIVERGED else None for value in values.tolist()]
