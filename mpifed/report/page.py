"""The report as one self-contained HTML page with figures, style and script.

BokehJS draws the curves in the browser from data in the page. Bokeh's Python package is not imported, since
its import takes longer than the rest of the page.
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
from mpifed.report.client_samples import ClassCounts, draw_class_counts, title
from mpifed.report.comparison import Rule, Setting, metrics_of
from mpifed.report.figures import DIVERGED, axes_of, curve_style, scales, with_finite_counts
from mpifed.report.labels import labels, run_names, setting_cells, whole_setting_cells
from mpifed.report.statistics import Curve, MeanStd
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

__all__ = ["bokeh_js", "page", "points_per_line"]

#: Points of all lines together, and the minimum and maximum per line.
BUDGET, LEAST, MOST = 8000, 200, 2000
#: Significant digits of the page's curves, more than a screen can show.
DIGITS = 6
#: Colours of the figures → colours on a dark background.
DARK = {
    "#0072B2": "#4FA8E0", "#D55E00": "#F0803C", "#009E73": "#2CC79A", "#CC79A7": "#E59CC6",
    "#000000": "#E6E9EC", "#E69F00": "#F2C14E", "#56B4E9": "#A5DCFA",
}  # fmt: skip
#: Tables whose columns the page explains.
_EXPLAINED = ("best", "settings", "runs", "costs", "theory", "clients")
#: Columns with longer texts are broken into lines.
LONG = 24
#: Meaning of the columns, by name or last word.
COLUMNS = {
    "name": "folder of the run, or its method if there is only one run",
    "method": "the algorithm",
    "setting": "the method, with the settings that distinguish it from other settings of the same method",
    "settings": "settings of the algorithm: all of them in the table of the best settings, in other tables "
    "those that vary within the method",
    "seeds": "number of pairs of runs with the same seed",
    "seed": "seed of all random numbers of the run, including the partition of the data",
    "difference": "value of the setting minus value of the best setting, mean ± standard deviation over the "
    "pairs",
    "against": "the best setting of the same task",
    "p": "probability of an at least equally large difference by chance; NaN for fewer than two pairs, or if "
    "all differences are equal",
    "p (Holm)": "p corrected for the number of comparisons",
    "theorem": "the theorem that the job names",
    "bound on": "the quantity that the theorem bounds for its own step sizes",
    "bound": "value of the bound; a dotted line in the figure of its metric",
    "measured": "last value of the bounded metric",
    "prescribed": "the step size that the theorem prescribes",
    "used": "the step size of the runs",
    "used / prescribed": "ratio of the two step sizes",
    "runs": "number of runs with these settings, one per seed; all values are mean ± standard deviation over "
    "the runs, or median (minimum to maximum) of the finite values if some are not finite",
    "diverged": "number of runs that ended in non-finite values; they have no final and no best value, and "
    "settings with fewer diverged runs rank first",
    "left out": "number of seeds at which one of the two runs has no finite value",
    "not finished": "number of runs that are still in progress or were killed; their values so far are used",
    "infeasible": "number of runs that left the problem's constraint sets, or how far a run did; an "
    "infeasible point is not a solution",
    "final": "value of the metric at the last evaluation",
    "best": "best value of the metric at any evaluation: the largest if it is to be maximised, else the "
    "smallest; with a validation split, the value at the best evaluation of the validation metric",
    "reached by": "number of runs that reach the target; the mean number of rounds is over these runs",
    "rounds": "completed communication rounds",
    "oracle calls": "evaluations of gradients or operators on a sample or minibatch, summed over all clients",
    "phases": "message exchanges between clients and server; some methods need several per round",
    "bytes up": "bytes that federated clients would send to the server",
    "bytes down": "bytes that the server would send to federated clients",
    "wire bytes": "bytes that this simulation moved between its ranks",
    "seconds": "wall time of the simulation, without evaluation and files",
    "federated seconds": "wall time of federated clients according to the clock of the job file",
    "communication %": "share of communication in the ranks' time of computation and communication",
    "peak memory per rank": "largest memory of a process (MB = 1,000,000 bytes), smallest to largest over "
    "the ranks",
    "clients": "number of clients",
    "worst client": "number of the client with the worst value, in each run",
    "stopped": "reason for the end of the run",
}


def page(settings: Sequence[Setting], chosen: Sequence[Setting], rule: Rule, figure: bytes = b"") -> str:
    """The HTML text of the page.

    Args:
        settings: all settings.
        chosen: the best setting of every method.
        figure: a PNG of the curves, for print and browsers without scripts.
    """
    runs, choosing = [run for setting in settings for run in setting.runs], len(chosen) < len(settings)
    common, differing = _configs(runs)
    tables = _tables(settings, chosen, runs, rule, differing)
    options = dict(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return (
        Environment(autoescape=True, **options)
        .from_string(_template("report.html"))
        .render(
            heading=_heading(settings),
            counts=_counts(settings, runs),
            rule=rule.describe(settings),
            **_charts(settings, chosen),
            figure=_uri(figure) if figure else "",
            metrics=[(metric, metric) for metric in metrics_of(settings)],
            axes=[(axis.name, axis.name) for axis in axes_of(settings)],
            tables=tables,
            test=TEST,
            choosing=choosing,
            several=len(runs) > 1,
            glossary=_meanings(tables),
            confusions=_confusions(chosen),
            partitions=_partitions(settings),
            common=common,
            references=references(run.config for run in runs),
        )
    )


def _tables(settings, chosen, runs, rule: Rule, differing) -> dict:
    """The page's tables by name, ``None`` for an empty table."""
    cells, marks = setting_cells(settings, rule), [setting in chosen for setting in settings]
    best = setting_rows(chosen, rule, whole_setting_cells(settings, rule))
    return {
        "best": _table(best) if len(runs) > len(chosen) else None,
        "settings": None if all(marks) else _table(setting_rows(settings, rule, cells), marks),
        "runs": _table(run_rows(settings, rule, costs=False)),
        "costs": _table(cost_rows(chosen)),
        "paired": _table(paired_rows(chosen, rule)),
        "theory": _table(theory_rows(settings)),
        "clients": _table(client_rows(chosen)),
        "files": _table(_files(runs)),
        "places": _table(_places(runs)),
        "versions": _table(_versions(runs)),
        "differing": _table(differing),
    }


def _heading(settings: Sequence[Setting]) -> str:
    methods = list(dict.fromkeys(setting.name for setting in settings))
    problems = list(dict.fromkeys(str(setting.settings.get("problem.name", "")) for setting in settings))
    return ", ".join(methods) + (f" on {', '.join(problems)}" if any(problems) else "")


def _counts(settings: Sequence[Setting], runs: Sequence[RunData]) -> str:
    """The numbers of runs, settings and methods, or how the only run ended."""
    if len(runs) == 1:
        return "; infeasible: ".join(filter(None, [runs[0].stopped or "not finished", runs[0].infeasible]))
    numbers = {
        "run": len(runs),
        "setting": len(settings),
        "method": len({setting.name for setting in settings}),
    }
    words = [f"{number} {name}{'' if number == 1 else 's'}" for name, number in numbers.items()]
    ends = {
        "ended in non-finite values": sum(run.diverged for run in runs),
        "not finished": sum(not run.stopped for run in runs),
        "infeasible": sum(bool(run.infeasible) for run in runs),
    }
    words += [f"{number} {name}" for name, number in ends.items() if number]
    return ", ".join(words)


def _charts(settings: Sequence[Setting], chosen: Sequence[Setting]) -> dict:
    """The template's values for the charts; no curves without metrics."""
    if not metrics_of(chosen):
        return {"curves": ""}
    most = points_per_line(len(settings))
    measured = [setting for setting in settings if setting.metrics]
    long = any(len(setting.curve(next(iter(setting.metrics))).rounds) > most for setting in measured)
    return {
        "curves": Markup(curves_json(settings, chosen)),
        "library": Markup(bokeh_js()),
        "script": Markup(_template("charts.js")),
        "legend": legend(settings, chosen),
        "thinned": most if long else 0,
    }


def _template(name: str) -> str:
    return resources.files("mpifed.report").joinpath("templates", name).read_text(encoding="utf-8")


def _uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _table(rows: Sequence[dict], marks: Sequence[bool] = ()) -> dict | None:
    """Rows as texts, with the type of each column: number, short (never broken into lines) or long."""
    if not rows:
        return None
    texts, types = [[cell(column, value) for column, value in row.items()] for row in rows], []
    for column, words in zip(rows[0], zip(*texts)):
        numeric = any(isinstance(row[column], int | float | MeanStd) for row in rows)
        types.append("number" if numeric else "long" if max(map(len, words)) > LONG else "short")
    marks = list(marks) or [False] * len(rows)
    return {"columns": list(rows[0]), "types": types, "rows": texts, "marks": marks}


def _meanings(tables: dict[str, dict | None]) -> dict[str, str]:
    """The meaning of every column that occurs."""
    headings = [table["columns"] for name in _EXPLAINED if (table := tables[name])]
    columns = dict.fromkeys(column for names in headings for column in names)
    meanings = {column: COLUMNS[column] for column in columns if column in COLUMNS}
    for word in ("final", "best"):
        if any(column.endswith(f" {word}") for column in columns):
            meanings[f"… {word}"] = COLUMNS[word]
    target = "rounds until the first evaluation at which the metric reaches the target"
    return meanings | {column: target for column in columns if column.startswith("rounds to ")}


def _confusions(chosen: Sequence[Setting]) -> list[tuple[str, dict]]:
    """The confusion matrices of the best settings, with their names."""
    tables = ((name, _table(confusion_rows(setting))) for setting, name in zip(chosen, labels(chosen)))
    return [(name, table) for name, table in tables if table]


def _partitions(settings: Sequence[Setting]) -> list[dict]:
    """Figures of the samples by client and class in the first run of every problem with classes."""
    firsts: dict[str, RunData] = {}
    for run in (setting.runs[0] for setting in settings):
        if run.class_counts is not None:
            firsts.setdefault(json.dumps(run.config["problem"], sort_keys=True), run)
    pictures = []
    for run in firsts.values():
        with io.BytesIO() as file:
            clients = run.config["problem"]["clients"]
            draw_class_counts(ClassCounts(title(run.config), run.class_counts, run.classes, clients), file)
            pictures.append({"title": title(run.config), "image": _uri(file.getvalue())})
    return pictures


def _files(runs: Sequence[RunData]) -> list[dict]:
    """The data files, each version once."""
    files = {(name, file["digest"], file["path"]): None for run in runs for name, file in run.data.items()}
    return [{"data file": name, "path": path, "SHA-256": digest} for name, digest, path in sorted(files)]


def _places(runs: Sequence[RunData]) -> list[dict]:
    """The results file and the machine of each run."""
    names = dict.fromkeys(
        key for run in runs for key, value in run.layout.items() if not isinstance(value, list | dict)
    )
    return [
        {"run": name, "results": str(run.path)} | {key: run.layout.get(key) for key in names}
        for name, run in zip(run_names(runs), runs)
    ]


def _versions(runs: Sequence[RunData]) -> list[dict]:
    """All versions of each software that the runs used."""
    by_software: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, version in run.versions.items():
            by_software.setdefault(name, {})[str(version)] = None
    return [{"software": name, "version": ", ".join(versions)} for name, versions in by_software.items()]


def _configs(runs: Sequence[RunData]) -> tuple[dict[str, str], list[dict]]:
    """All settings as JSON texts: the settings that the runs share, and one row per run with the others."""
    configs = [{key: json.dumps(value) for key, value in flatten(run.config).items()} for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    apart = [key for key in keys if len({config.get(key) for config in configs}) > 1]
    common = {key: configs[0][key] for key in keys if key not in apart}
    if not apart:
        return common, []
    named = zip(run_names(runs), configs)
    return common, [{"run": name} | {key: config.get(key) for key in apart} for name, config in named]


def bokeh_js() -> str:
    """The text of BokehJS, with its scripting interface, from the installed package."""
    package = find_spec("bokeh")
    assert package is not None and package.submodule_search_locations is not None
    folder = Path(package.submodule_search_locations[0], "server", "static", "js")
    return "\n".join(
        (folder / name).read_text(encoding="utf-8") for name in ("bokeh.min.js", "bokeh-api.min.js")
    )


def points_per_line(lines: int) -> int:
    """Return the maximum number of points per line, given the number of lines."""
    return min(max(BUDGET // lines, LEAST), MOST)


def legend(settings: Sequence[Setting], chosen: Sequence[Setting]) -> list[dict]:
    """The legend's entries, the chosen settings first."""
    ordered, names = _chosen_first(settings, chosen), dict(zip(settings, labels(settings)))
    texts = with_finite_counts(ordered, [names[setting] for setting in ordered], metrics_of(settings))
    entries = []
    for number, (setting, text) in enumerate(zip(ordered, texts)):
        color, line = curve_style(number)["color"], curve_style(number)["linestyle"]
        dashes = [] if line == "-" else [2 * part for part in line[1]]
        entry = {"label": text, "color": color, "dark": DARK[color], "dashes": dashes}
        entries.append(entry | {"best": setting in chosen})
    return entries


def _chosen_first(settings: Sequence[Setting], chosen: Sequence[Setting]) -> list[Setting]:
    """The chosen settings, then the others, so that colours agree with other figures."""
    return [*chosen, *(setting for setting in settings if setting not in chosen)]


def curves_json(settings: Sequence[Setting], chosen: Sequence[Setting]) -> str:
    """All curves as JSON that is safe within HTML."""
    ordered = _chosen_first(settings, chosen)
    axes = [(axis, *axis.scale(settings)) for axis in axes_of(settings)]
    data = {
        "axes": [{"name": axis.name, "label": label} for axis, _, label in axes],
        "scales": {metric: scales(settings, metric) for metric in metrics_of(settings)},
        "lines": [_line(setting, axes, points_per_line(len(ordered))) for setting in ordered],
    }
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _line(setting: Setting, axes: Sequence, most: int) -> dict:
    """The curves of a setting: the costs by axis, and for each metric the line and band on linear and
    logarithmic axes, its costs if they differ, the seeds if some diverged, and a theorem's bound."""
    x: dict[str, list] = {}
    y: dict[str, dict] = {}
    for metric in metrics_of([setting]):
        curve, runs = setting.curve(metric).thinned(most), setting.curve_runs(metric)
        costs = _costs(axes, setting, runs, curve.rounds)
        x = x or costs
        entry: dict = ({} if costs == x else {"x": costs}) | {"mean": _numbers(curve.mean)}
        if len(runs) > 1:
            names = ("deviation", "median", "low", "high")
            entry |= {name: _numbers(getattr(curve, name)) for name in names}
        if not setting.all_finite(metric):
            finite = setting.finite(metric)
            entry["seeds"] = [_seed(setting, run, metric, axes, run not in finite) for run in setting.runs]
        bound = setting.bound(metric)
        y[metric] = entry | ({"bound": bound} if bound is not None and bound < DIVERGED else {})
    return {"x": x, "y": y}


def _seed(setting: Setting, run: RunData, metric: str, axes: Sequence, diverged: bool) -> dict:
    """At most :data:`LEAST` values of a run, and whether it diverged."""
    curve = Curve.from_runs([(run.metric_rounds, run.metrics[metric])]).thinned(LEAST)
    x = _costs(axes, setting, [run], curve.rounds)
    return {"x": x, "y": _numbers(curve.mean), "diverged": diverged}


def _costs(axes: Sequence, setting: Setting, runs: Sequence[RunData], rounds: np.ndarray) -> dict[str, list]:
    """The mean cost of runs up to some rounds, by axis."""
    return {
        axis.name: _numbers(np.mean([axis.costs(run, rounds) for run in runs], axis=0) / size)
        for axis, size, _ in axes
        if axis.suits(setting)
    }


def _numbers(values: np.ndarray) -> list[float | None]:
    """Numbers with :data:`DIGITS` digits; values that are not drawn are ``None``."""
    return [float(f"{value:.{DIGITS}g}") if abs(value) < DIVERGED else None for value in values.tolist()]
