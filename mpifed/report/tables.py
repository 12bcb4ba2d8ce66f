"""Tables of runs, settings, costs, tests, theorems and clients: as rows, as CSV, and on the console."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import product
from pathlib import Path

import numpy as np
from rich import box, filesize
from rich.table import Table
from rich.text import Text

from mpifed.base.console import Console
from mpifed.base.log import escape_cell, escape_control
from mpifed.base.settings import flatten
from mpifed.config.theory import prescription_of
from mpifed.core.metrics import QUANTILES, Column
from mpifed.report.comparison import Rule, Setting, metrics_of, paired_tests
from mpifed.report.labels import labels, run_names, setting_cells
from mpifed.report.statistics import MeanStd, best_value, final_value
from mpifed.storage.results import RunData

__all__ = [
    "TEST", "cell", "client_rows", "confusion_rows", "cost_rows", "describe_memory", "paired_rows",
    "print_table", "run_rows", "setting_rows", "theory_rows", "to_csv",
]  # fmt: skip

#: Costs in the tables of runs and of settings.
RUN_COSTS = ("oracle calls", "bytes", "wire bytes", "seconds")
SETTING_COSTS = ("rounds", "oracle calls", "phases", "bytes up", "bytes down", "wire bytes", "seconds")
#: The test of :func:`paired_rows`.
TEST = "two-sided paired t-test over the seeds, p-values corrected by Holm's method"
#: Maximum number of classes of a printed confusion matrix.
MAX_CLASSES = 30


def run_rows(settings: Sequence[Setting], rule: Rule, costs: bool = True) -> list[dict]:
    """One row per run, with or without its costs. All rows have the same keys; a missing value is ``None``.

    ``bytes`` are sent by federated clients, ``wire bytes`` between ranks; ``communication %`` is the share of
    communication in the time of computation and communication.
    """
    pairs = [(setting, run) for setting in settings for run in setting.runs]
    runs, cells = [run for _, run in pairs], setting_cells(settings, rule)
    seeds = len({run.config.get("seed") for run in runs}) > 1
    spent = _displayed_costs([*map(_totals, runs)], RUN_COSTS) if costs else [{} for _ in runs]
    memory = costs and any(run.ranks for run in runs)
    rows = []
    for (setting, run), name, cost in zip(pairs, run_names(runs), spent):
        row = {"name": name} | ({"method": setting.name} if len(runs) > 1 else {})
        row |= {key: value for key, value in cells[setting].items() if key != "rounds"}
        row |= {"seed": run.config.get("seed")} if seeds else {}
        row["rounds"] = run.last_round
        row |= {"infeasible": run.infeasible or None} if any(other.infeasible for other in runs) else {}
        for metric in metrics_of(settings):
            has = metric in run.metrics
            row[f"{metric} final"] = final_value(run, metric) if has else None
            row[f"{metric} best"] = best_value(run, metric) if has else None
        if rule.target is not None:
            row[_target(rule)] = rule.rounds_to_target(run, rule.metric_of(setting))
        row |= cost | ({"peak memory per rank": _memory([run])} if memory else {})
        rows.append(row | {"stopped": run.stopped})
    return rows


def _totals(run: RunData) -> dict[str, float]:
    """The total costs of a run, with their names in tables."""
    total: dict[str, float] = {}
    for name, values in run.costs.items():
        number = float(values[-1]) if "seconds" in name else int(values[-1])
        total["rounds" if name == "round" else name.replace("_", " ")] = number
    return total | {"bytes": total["bytes up"] + total["bytes down"]}


def _displayed_costs(totals: Sequence[dict[str, float]], names: Sequence[str]) -> list[dict]:
    """Rows of the named costs, the share of communication, and federated seconds if any run has them."""
    clocked, rows = any(total["federated seconds"] for total in totals), []
    for total in totals:
        row = {name: total[name] for name in names}
        row |= {"federated seconds": total["federated seconds"] or None} if clocked else {}
        communication, compute = total["communication seconds"], total["compute seconds"]
        spent = communication + compute
        rows.append(row | {"communication %": 100 * communication / spent if spent else np.nan})
    return rows


def _target(rule: Rule) -> str:
    return f"rounds to {rule.target:g}"


def setting_rows(settings: Sequence[Setting], rule: Rule, cells: Mapping[Setting, dict]) -> list[dict]:
    """One row per setting: its ``cells`` of :mod:`mpifed.report.labels`, how its runs ended, and its metrics
    as :class:`MeanStd`."""
    rows = []
    for setting in settings:
        row = {"method": setting.name} | cells[setting]
        row |= {"runs": len(setting.runs), "diverged": sum(run.diverged for run in setting.runs)}
        row |= {"not finished": sum(not run.stopped for run in setting.runs)}
        row |= {"infeasible": setting.infeasible} if any(other.infeasible for other in settings) else {}
        for metric, by in product(metrics_of(settings), ("final", "best")):
            values = [Rule(by=by).value(run, metric) for run in setting.runs if metric in setting.metrics]
            row[f"{metric} {by}"] = MeanStd.from_values(values) if values else None
        if rule.target is not None:
            metric = rule.metric_of(setting)
            rounds = [rule.rounds_to_target(run, metric) for run in setting.runs]
            reached = [number for number in rounds if number is not None]
            row[_target(rule)] = MeanStd.from_values(reached) if reached else None
            row["reached by"] = len(reached)
        rows.append(row)
    return rows


def cost_rows(settings: Sequence[Setting]) -> list[dict]:
    """One row per setting with the mean costs of its runs."""
    totals = [[*map(_totals, setting.runs)] for setting in settings]
    means = [{name: np.mean([total[name] for total in runs]).item() for name in runs[0]} for runs in totals]
    return [
        {"setting": name} | row | {"peak memory per rank": _memory(setting.runs)}
        for setting, name, row in zip(settings, labels(settings), _displayed_costs(means, SETTING_COSTS))
    ]


def paired_rows(chosen: Sequence[Setting], rule: Rule) -> list[dict]:
    """One row for each setting that is compared with the best setting of its task by
    :func:`mpifed.report.comparison.paired_tests`.

    Without a validation split, the best setting is chosen by the same values that are compared, so ``p`` is
    slightly too small.

    Args:
        chosen: the best setting of each method.
        rule: the rule that determines the metric and the best setting.
    """
    names = dict(zip(chosen, labels(chosen)))
    rows = []
    for competitors in rule.by_task(chosen):
        first = min(competitors, key=rule.rank)
        metric = rule.metric_of(first)
        others = [setting for setting in competitors if setting is not first and metric in setting.metrics]
        if not others:
            continue
        tests = paired_tests(first, others, rule, metric)
        if (tests["seeds"] > 1).any():
            task = {"against": names[first], "metric": metric}
            others_rows = zip(others, tests.to_dict("records"))
            rows += [{"setting": names[setting]} | task | row for setting, row in others_rows]
    return rows


def theory_rows(settings: Sequence[Setting]) -> list[dict]:
    """One row per step size that a setting's theorem prescribes, with values as :class:`MeanStd`."""
    rows = []
    for setting, name in zip(settings, labels(settings)):
        prescription = prescription_of(setting.runs[0].config.get("theory"))
        if prescription is None:
            continue
        theorem, _ = prescription
        steps, bounds = zip(*map(_steps, setting.runs))
        row = {"setting": name, "theorem": theorem.name, "bound on": theorem.of}
        row["bound"] = MeanStd.from_values(bounds) if None not in bounds else None
        has = theorem.metric in setting.metrics
        row["measured"] = setting.spread(lambda run: Rule().value(run, theorem.metric)) if has else None
        for key in steps[0]:
            prescribed, used = [step[key] for step in steps], [_used(run, key) for run in setting.runs]
            if all(used):
                ratios = [step / by_theorem for step, by_theorem in zip(used, prescribed)]
                columns = {"prescribed": prescribed, "used": used, "used / prescribed": ratios}
                spreads = {column: MeanStd.from_values(values) for column, values in columns.items()}
                rows.append(row | {"step": key} | spreads)
    return rows


def _steps(run: RunData) -> tuple[dict[str, float], float | None]:
    """The step sizes that a run's theorem prescribes (for a schedule, as ``eta.scale``), and its bound."""
    theory = prescription_of(run.config["theory"])
    assert theory is not None
    _, prescription = theory
    steps = flatten(prescription.steps).items()
    numbers = {key: float(value) for key, value in steps if isinstance(value, int | float) and value}
    return numbers, prescription.bound


def _used(run: RunData, key: str) -> float:
    """The step size that a run used; 0 if it used none or another schedule."""
    settings = flatten(run.config["algorithm"])
    value = settings.get(key, settings.get(f"{key}.value"))
    return float(value) if isinstance(value, int | float) else 0.0


def client_rows(settings: Sequence[Setting]) -> list[dict]:
    """One row per setting and metric: mean, quantiles and worst value of the clients, averaged over the runs,
    and the number of the worst client in each run."""
    rows = []
    for setting, name in zip(settings, labels(settings)):
        runs = [run for run in setting.runs if run.details.clients]
        for column in runs[0].columns.values() if runs else ():
            metric = column.of_clients
            if column.statistic != "worst" or metric not in runs[0].details.clients:
                continue
            known = [_known_values(run, metric) for run in runs]
            worst = [_worst(run, column) for run in runs]
            quantiles = {
                f"{per_cent} %": MeanStd.from_values(np.quantile(values, per_cent / 100) for values in known)
                for per_cent in QUANTILES
            }
            row = {"setting": name, "metric": metric, "clients": len(runs[0].details.clients[metric])}
            row |= {"mean": MeanStd.from_values(values.mean() for values in known)} | quantiles
            worst_values = (run.details.clients[metric][k] for run, k in zip(runs, worst))
            row |= {"worst": MeanStd.from_values(worst_values), "worst client": ", ".join(map(str, worst))}
            rows.append(row)
    return rows


def _known_values(run: RunData, metric: str) -> np.ndarray:
    """The clients' values that are not NaN; a single NaN if all are."""
    values = run.details.clients[metric]
    return values[~np.isnan(values)] if not np.isnan(values).all() else values[:1]


def _worst(run: RunData, column: Column) -> int:
    """The number of the client with the worst value; 0 if all are NaN."""
    values = run.details.clients[column.of_clients] * (1 if column.maximised else -1)
    return 0 if np.isnan(values).all() else int(np.nanargmin(values))


def confusion_rows(setting: Setting) -> list[dict]:
    """One row per class: its test samples by predicted class, summed over the runs; no rows without a
    confusion matrix or for more than :data:`MAX_CLASSES` classes."""
    evaluated = [run.details for run in setting.runs if run.details.confusion is not None]
    if not evaluated or len(evaluated[0].classes) > MAX_CLASSES:
        return []
    counts, classes = sum(details.confusion for details in evaluated), evaluated[0].classes
    return [
        {"class": name} | dict(zip((f"as {other}" for other in classes), row))
        for name, row in zip(classes, counts.tolist())
    ]


def cell(column: str, value) -> str:
    """Format a value."""
    if isinstance(value, MeanStd):
        return value.describe()
    if value is None:
        return "-"
    if isinstance(value, str):
        return escape_control(value, line=True) or ("not finished" if column == "stopped" else "")
    if "bytes" in column.split():
        return filesize.decimal(round(value))
    if "seconds" in column.split():
        return str(timedelta(seconds=round(value))) if 99.5 <= value < 1e9 else f"{value:.3g} s"
    if column in {"rounds", "oracle calls", "phases"}:
        return f"{value:,.0f}"
    if isinstance(value, float) and "." not in column:  # a dotted column is a setting, shown unchanged
        return format(value, ".1f" if column == "communication %" else ".4g")
    return escape_control(str(value), line=True)


def to_csv(rows: Sequence[dict], path: str | Path) -> None:
    """Write rows with full precision. Missing values are empty.

    A :class:`MeanStd` takes two columns, and four more if a run has no finite value in some row.
    """
    spreads = [(key, entry) for row in rows for key, entry in row.items() if isinstance(entry, MeanStd)]
    spread, diverged = {key for key, _ in spreads}, {key for key, entry in spreads if entry.finite}

    def cells(column: str, value) -> dict:
        """The columns of one value; ``None`` is empty, NaN is written as such."""
        if column not in spread:
            return {column: "" if value is None else value}
        parts = {part: getattr(value, part, "") for part in ("mean", "deviation")}
        finite = getattr(value, "finite", None)
        more = ("count", "median", "least", "largest") if column in diverged else ()
        parts |= {"finite" if part == "count" else part: getattr(finite, part, "") for part in more}
        return {f"{column} {part}": entry for part, entry in parts.items()}

    flat = [{key: text for cell in row.items() for key, text in cells(*cell).items()} for row in rows]
    with open(path, "w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        names = dict.fromkeys(column for row in flat for column in row)
        writer = csv.DictWriter(file, names, restval="nan", lineterminator="\n")
        writer.writerow({name: escape_cell(name) for name in names})
        writer.writerows({name: escape_cell(entry) for name, entry in row.items()} for row in flat)


def print_table(rows: Sequence[dict], console: Console) -> None:
    """Print one row as a list, several as tables that fit the console, each with the first column."""
    if len(rows) == 1:
        single = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
        for column, value in rows[0].items():
            single.add_row(Text(escape_control(column, line=True), style="bold"), Text(cell(column, value)))
        console.print(single)
        return
    first, *others = rows[0]

    def page(columns: Sequence[str]) -> Table:
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in (first, *columns):
            long = column in {first, "settings", "stopped"}
            layout = dict(max_width=30, overflow="fold") if long else dict(justify="right", no_wrap=True)
            heading = Text(escape_control(column, line=True).replace(" ", "\n"))
            grid.add_column(heading, vertical="top", **layout)
        for row in rows:
            grid.add_row(*(Text(cell(column, row[column])) for column in (first, *columns)))
        return grid

    pages: list[list[str]] = [[]]
    for column in others:
        wider = console.measure(page([*pages[-1], column]), options=console.options.update(width=100_000))
        if pages[-1] and wider.maximum > console.width:
            pages.append([])
        pages[-1].append(column)
    for part in pages:
        console.print(page(part))


def _memory(runs: Sequence[RunData]) -> str | None:
    known = [run.ranks for run in runs if run.ranks]
    if not known:
        return None
    return describe_memory({name: np.concatenate([ranks[name] for ranks in known]) for name in known[0]})


def describe_memory(ranks: Mapping[str, np.ndarray]) -> str:
    """Format the peak memory per rank, from the columns of the group ``ranks``."""
    ranges = []
    for name in ("host", "gpu"):
        low, high = (f"{pick(ranks[f'peak_{name}_bytes']) / 1e6:.0f}" for pick in (np.min, np.max))
        ranges.append(low if low == high else f"{low}-{high}")
    return f"host {ranges[0]} MB, GPU {ranges[1]} MB"
