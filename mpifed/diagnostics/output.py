"""What the meter has found: a table on the screen, a CSV and a JSON file, a figure."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.table import Table

from mpifed.base.console import Console
from mpifed.base.log import drawn
from mpifed.storage.atomic import writing
from mpifed.storage.ownership import ASSUMPTION_FILES, MADE_BY

__all__ = ["print_tables", "write"]

#: Most clients that get a row of the printed table each.
CLIENTS = 20
#: Maximum number of panels per row of the figure.
PANELS = 4
#: Columns of the printed tables, also under a launcher that pretends to be a narrow terminal.
WIDTH = 110
#: Column of the table and the figure → what it is called.
NAMES = {
    "L": "L ≥",
    "pl": "μ ≤",
    "sigma_x": "σ_x",
    "sigma_y": "σ_y",
    "sigma_z": "σ_z",
    "delta_x": "δ_x",
    "delta_y": "δ_y",
    "delta_z": "δ_z",
    "tail": "tail index",
}

Row = dict[str, Any]


def _columns(rows: list[Row]) -> list[str]:
    """The columns of :data:`NAMES` in which there is a number."""
    return [name for name in NAMES if any(not math.isnan(row.get(name, math.nan)) for row in rows)]


def _cells(row: Row, columns: Iterable[str]) -> list[str]:
    cells = []
    for name in columns:
        value = row.get(name, math.nan)
        cell = "-" if math.isnan(value) else f"{value:.3g}"
        interval = name == "tail" and cell != "-"
        cells.append(f"{cell} ({row['tail_low']:.2g} to {row['tail_high']:.2g})" if interval else cell)
    return cells


def print_tables(found: dict[str, Any]) -> None:
    """One row per point for all clients, then one row per client for the last point."""
    console = Console(highlight=False, markup=False, width=WIDTH)
    rows, last = found["rows"], found["rows"][-1]["round"]
    everyone = [row for row in rows if row["client"] == "all"]
    clients = [row for row in rows if row["client"] != "all" and row["round"] == last]
    _print(console, f"{found['mpifed measure']}: all clients", "round", everyone)
    _print(console, f"each client after round {last}", "client", clients[:CLIENTS])
    if len(clients) > CLIENTS:
        console.print(f"... and {len(clients) - CLIENTS} more clients, in {ASSUMPTION_FILES[0]}")
    console.print(_explained(found, everyone))


def _explained(found: dict[str, Any], everyone: list[Row]) -> str:
    """What the columns are that the tables show."""
    columns, lines = _columns(everyone), []
    if "L" in columns:
        lines.append("L: lower bounds.")
    if "pl" in columns:
        unsolved = max(row["pl_residual"] for row in everyone)
        lines.append(f"μ: upper bounds, natural residual of y*(x) at most {unsolved:.1g}.")
    if "tail" in columns:
        lines.append(
            f"Tail index: Hill's with 95 % intervals, the largest {found['top']} of {found['samples']} "
            f"lengths of noise a client, {found['top_of_all']} of all"
        )
    return " ".join(lines)


def _print(console: Console, title: str, first: str, rows: list[Row]) -> None:
    columns = _columns(rows)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for heading in (first, *(NAMES[name] for name in columns)):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(str(row[first]), *_cells(row, columns))
    console.print(table)


def write(found: dict[str, Any], folder: Path) -> list[Path]:
    """Write the files, and return their paths.

    Raises:
        ConfigError: one cannot be written.
    """
    paths = [folder / name for name in ASSUMPTION_FILES]
    for path, writer in zip(paths, (_write_csv, _write_json, _draw)):
        with writing(path) as temporary:
            writer(found, temporary)
    return paths


def _write_csv(found: dict[str, Any], path: Path) -> None:
    names = list(dict.fromkeys(name for row in found["rows"] for name in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(found["rows"])


def _write_json(found: dict[str, Any], path: Path) -> None:
    """NaN becomes null, which every reader takes."""
    rows = [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }
        for row in found["rows"]
    ]
    path.write_text(json.dumps(found | {"rows": rows}, indent=1) + "\n")


def _draw(found: dict[str, Any], path: Path) -> None:
    """A panel a column over the rounds: each client in grey, all clients in black, the tail's interval."""
    columns, rows = _columns(found["rows"]), found["rows"]
    across = min(PANELS, len(columns))
    down = -(-len(columns) // across)
    figure = Figure(figsize=(3 * across, 2.8 * down), dpi=150, layout="constrained", facecolor="white")
    grid = figure.subplots(down, across, squeeze=False).flat
    for axes in grid[len(columns) :]:
        axes.set_axis_off()
    for axes, name in zip(grid, columns):
        for client in ("all", *range(found["clients"])):
            own = [row for row in rows if row["client"] == client]
            rounds, values = ([row.get(key, math.nan) for row in own] for key in ("round", name))
            whole = client == "all"
            style = {"color": "black", "zorder": 3} if whole else {"color": "0.75", "linewidth": 0.8}
            axes.plot(rounds, values, marker=".", **style)
            if whole and name == "tail":
                low, high = ([row[key] for row in own] for key in ("tail_low", "tail_high"))
                axes.fill_between(rounds, low, high, color="black", alpha=0.12, linewidth=0)
        _finish(axes, name, [row.get(name, math.nan) for row in rows])
    figure.suptitle(drawn(found["mpifed measure"]), fontsize=10)
    figure.savefig(path, format="png", metadata=MADE_BY)


def _finish(axes, name: str, values: list[float]) -> None:
    positive = [value for value in values if value > 0] or [1.0]
    least, most = np.min(positive), np.max(positive)
    if most > 10 * least:
        axes.set_yscale("log")
    elif most < 1.01 * least:  # constant: a figure of its rounding says nothing
        axes.set_ylim(0, 2 * most)
    axes.set(xlabel="round", title=NAMES[name])
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="0.9")
