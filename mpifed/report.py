"""Curves and tables of finished runs, and of runs that stopped half way.

Every metric is drawn against every cost on :data:`AXES`, because which method is ahead depends on what is paid for:
rounds, gradients, bytes or time.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from rich import box, filesize
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpifed.recorder import RUN_FILE
from mpifed.results import RunData, expect, load

__all__ = ["AXES", "Axis", "RunData", "load", "labels", "curves", "table", "to_csv", "print_table", "report"]


@dataclass(frozen=True)
class Axis:
    """A horizontal axis: the sum of some cost columns, in the largest of ``units`` that leaves numbers above 2.

    An ``optional`` axis is for the runs alone whose cost on it is not zero throughout.
    """

    label: str
    columns: tuple[str, ...]
    units: tuple[tuple[float, str], ...] = ((1, ""),)
    optional: bool = False

    def of(self, run: RunData) -> np.ndarray:
        """The cost at which each metric was taken, ``[E]``."""
        rows = np.searchsorted(run.costs["round"], run.metric_rounds)
        return sum(run.costs[column][rows].astype(float) for column in self.columns)

    def suits(self, run: RunData) -> bool:
        """Whether the run is drawn against this axis."""
        return not self.optional or bool(self.of(run).any())

    def scale(self, runs: Sequence[RunData]) -> tuple[float, str]:
        """Divisor and label that suit the largest cost of the runs."""
        largest = max(np.max(self.of(run), initial=0) for run in runs)
        size, name = next((unit for unit in reversed(self.units) if largest >= 2 * unit[0]), self.units[0])
        return size, f"{self.label} ({name})" if name else self.label


_TIME = ((1e-3, "ms"), (1, "s"), (60, "min"), (3600, "h"))
#: What a metric is drawn against. Bytes are those that federated clients would send and receive.
AXES = (
    Axis("rounds", ("round",)),
    Axis("oracle calls", ("oracle_calls",), ((1, ""), (1e3, "thousands"), (1e6, "millions"), (1e9, "billions"))),
    Axis("bytes, up + down", ("bytes_up", "bytes_down"), ((1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"))),
    Axis("wall time without evaluation", ("seconds",), _TIME),
    Axis("federated wall time", ("federated_seconds",), _TIME, optional=True),
)


def labels(runs: Sequence[RunData]) -> list[str]:
    """A name for each run: its algorithm, and where several share one as much of the folder's path as sets it apart."""
    places = [run.path.parent.parts if run.path.name == RUN_FILE else run.path.parts for run in runs]
    result = []
    for run, place in zip(runs, places):
        rivals = [other for one, other in zip(runs, places) if one.name == run.name]
        apart = (d for d in range(1, len(place)) if len({other[-d:] for other in rivals}) == len(set(rivals)))
        result.append(run.name if len(rivals) == 1 else f"{run.name} ({'/'.join(place[-next(apart, 1) :])})")
    return result


def _all_metrics(runs: Iterable[RunData]) -> list[str]:
    return list(dict.fromkeys(metric for run in runs for metric in run.metrics))


# Okabe and Ito's palette without its yellow, which is too faint on white. Seven colours and four dash patterns have no
# common factor, so that 28 runs look different, and neighbours differ in both.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
DIVERGED = 1e100  # what lies beyond flattens the rest of a curve, and overflows in the margins of an axis
STYLES = [dict(color=COLOURS[i % 7], linestyle=DASHES[i % 4], linewidth=1.7) for i in range(28)]


def curves(runs: Sequence[RunData], path: str | Path, metric: str | None = None) -> None:
    """Write a PNG with a row a metric (all, or the one named) and a column for each of :data:`AXES` that suits a run.

    Raises:
        ValueError: no run has the metric, or none has any.
    """
    metrics = _all_metrics(runs)
    expect(metrics if metric is None else metric in metrics, f"a metric of these runs ({', '.join(metrics)})", metric)
    metrics = metrics if metric is None else [metric]
    names = [name.replace("$", r"\$") for name in labels(runs)]
    columns = max(1, min(len(names), 150 // (max(map(len, names)) + 10)))
    height = 0.7 + 2.5 * len(metrics) + 0.22 * -(-len(names) // columns)
    axes = [axis for axis in AXES if any(axis.suits(run) for run in runs)]
    figure = Figure(figsize=(3.375 * len(axes), height), dpi=150, layout="constrained", facecolor="white")
    grid = figure.subplots(len(metrics), len(axes), squeeze=False, sharex="col", sharey="row")
    for row, one in zip(grid, metrics):
        _draw_row(row, axes, one, runs)
    for cell, axis in zip(grid[-1], axes):
        cell.set_xlabel(axis.scale(runs)[1], fontsize=10)
    handles = [Line2D([], [], **style) for _, style in zip(runs, cycle(STYLES))]
    figure.legend(handles, names, loc="outside upper center", ncols=columns, frameon=False, fontsize=10, handlelength=3)
    figure.align_ylabels(grid[:, 0])
    figure.savefig(path, format="png")


def _draw_row(row, axes: Sequence[Axis], metric: str, runs: Sequence[RunData]) -> None:
    """One metric against every axis. Values that diverged or are NaN leave a gap; one alone between gaps is a dot."""
    drawn = [(run, run.metrics[metric], style) for run, style in zip(runs, cycle(STYLES)) if metric in run.metrics]
    for cell, axis in zip(row, axes):
        for run, values, style in (one for one in drawn if axis.suits(one[0])):
            seen = np.pad(np.abs(values) < DIVERGED, 1)
            alone = np.flatnonzero(seen[1:-1] & ~seen[:-2] & ~seen[2:]).tolist()
            heights = np.where(seen[1:-1], values, np.nan)
            cell.plot(axis.of(run) / axis.scale(runs)[0], heights, marker="o", markersize=5, markevery=alone, **style)
        cell.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=axis.columns == ("round",)))
        cell.grid(True, which="major", color="0.88", linewidth=0.8)
        cell.spines[["top", "right"]].set_visible(False)
        cell.tick_params(labelsize=9, color="0.4")
    shown = [value for _, values, _ in drawn for value in values.tolist() if abs(value) < DIVERGED]
    if shown and min(shown) > 0 and max(shown) / min(shown) > 100:
        row[0].set_yscale("log")
    row[0].set_ylabel(metric, fontsize=10)


def table(runs: Sequence[RunData]) -> list[dict]:
    """One row a run, all rows with the same keys; ``None`` where a run does not have a metric.

    ``bytes`` are those of federated clients, ``wire bytes`` those moved between ranks; ``communication %`` is the share
    of communication in the time spent computing and communicating.
    """
    rows = []
    for run, label in zip(runs, labels(runs)):
        last = {name: values[-1].item() if "seconds" in name else int(values[-1]) for name, values in run.costs.items()}
        row = {"name": label, "rounds": last["round"]}
        for metric in _all_metrics(runs):
            row[f"{metric} final"], row[f"{metric} best"] = _final_and_best(metric, run.metrics.get(metric))
        busy = last["compute_seconds"] + last["communication_seconds"]
        row |= {"oracle calls": last["oracle_calls"], "bytes": last["bytes_up"] + last["bytes_down"]}
        row |= {"wire bytes": last["wire_bytes"], "seconds": last["seconds"]}
        if any(other.costs["federated_seconds"].any() for other in runs):
            row |= {"federated seconds": last["federated_seconds"] or None}
        row |= {"communication %": 100 * last["communication_seconds"] / busy if busy > 0 else math.nan}
        row |= {"peak memory per rank": run.memory} if any(one.memory for one in runs) else {}
        rows.append(row | {"stopped": run.stopped})
    return rows


def _final_and_best(metric: str, values: np.ndarray | None) -> tuple[float | None, float | None]:
    """Best is the largest of a score (AUC, accuracy ...), the smallest of everything else (errors, gaps, losses)."""
    if values is None:
        return None, None
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    score = words & {"auc", "accuracy", "acc", "f1", "precision", "recall", "score", "reward"}
    pick = max if score and not words & {"error", "gap", "loss"} else min
    return [math.nan, *values.tolist()][-1], pick(values[np.isfinite(values)].tolist(), default=math.nan)


def to_csv(rows: Sequence[dict], path: str | Path) -> None:
    """Write the rows of :func:`table` with full precision; what a run does not have is left empty."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _cell(column: str, value) -> Text:
    """A value as people read it."""
    if value is None or isinstance(value, str):
        return Text("-" if value is None else value or "not finished")
    if column in {"bytes", "wire bytes"}:
        return Text(filesize.decimal(int(value)))
    if column in {"seconds", "federated seconds"}:
        return Text(f"{value:.3g} s" if value < 99.5 else str(timedelta(seconds=round(value))))
    return Text(format(value, {"rounds": ",", "oracle calls": ",", "communication %": ".1f"}.get(column, ".4g")))


def print_table(rows: Sequence[dict], console: Console | None = None) -> None:
    """Print the rows of :func:`table`: one run as a list, several as tables no wider than the console."""
    console = console or Console()
    if len(rows) == 1:
        single = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
        for column, value in rows[0].items():
            single.add_row(Text(column, style="bold"), _cell(column, value))
        console.print(single)
        return

    def page(columns: Sequence[str]) -> Table:
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ("name", *columns):
            text = column in {"name", "stopped"}
            layout = dict(max_width=30, overflow="fold") if text else dict(justify="right", no_wrap=True)
            grid.add_column(Text(column.replace(" ", "\n")), vertical="top", **layout)
        for row in rows:
            grid.add_row(*(_cell(column, row[column]) for column in ("name", *columns)))
        return grid

    pages: list[list[str]] = [[]]
    for column in list(rows[0])[1:]:
        wider = console.measure(page([*pages[-1], column]), options=console.options.update(width=100_000))
        if pages[-1] and wider.maximum > console.width:
            pages.append([])
        pages[-1].append(column)
    for columns in pages:
        console.print(page(columns))


def report(paths: Iterable[str | Path], out: str | Path) -> list[Path]:
    """Write ``curves.png`` (if any metrics), ``table.txt``, ``table.csv`` into ``out``; print; return the paths.

    Raises:
        ValueError: no runs, or one that :func:`load` refuses.
    """
    runs, out = [load(path) for path in paths], Path(out)
    expect(runs, "at least one run folder", "none")
    out.mkdir(parents=True, exist_ok=True)
    rows, written = table(runs), [out / "table.txt", out / "table.csv"]
    with open(written[0], "w", encoding="utf-8") as file:
        print_table(rows, Console(file=file, width=100, color_system=None))
    to_csv(rows, written[1])
    if _all_metrics(runs):
        curves(runs, out / "curves.png")
        written.insert(0, out / "curves.png")
    print_table(rows)
    return written
