"""Output of ``mpifed estimate``: printed tables, a CSV file, a JSON file and a figure."""

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
from mpifed.base.log import escape_mathtext
from mpifed.storage.files import ASSUMPTION_FILES, PNG_METADATA, writing

__all__ = ["finish_panel", "print_tables", "write"]

#: Maximum number of clients in the printed table.
CLIENTS = 20
#: Maximum number of panels per row of the figure.
PANELS = 4
#: Width of the printed tables in characters, also under launchers that report a narrow terminal.
WIDTH = 110
#: Column → its label in the tables and the figure.
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
    """Return the columns of :data:`NAMES` that contain a number."""
    return [name for name in NAMES if not np.isnan(_values(rows, name)).all()]


def _values(rows: list[Row], name: str) -> list[float]:
    """Return a column; NaN where it is missing."""
    return [row.get(name, math.nan) for row in rows]


def _cells(row: Row, columns: Iterable[str]) -> list[str]:
    values = {name: value for name in columns if not math.isnan(value := row.get(name, math.nan))}
    texts = {name: f"{value:.3g}" for name, value in values.items()}
    if "tail" in texts:
        texts["tail"] += f" ({row['tail_low']:.2g} to {row['tail_high']:.2g})"
    return [texts.get(name, "-") for name in columns]


def print_tables(estimates: dict[str, Any]) -> None:
    """Print two tables: all clients with one row per point, and the last point with one row per client."""
    console = Console(highlight=False, markup=False, width=WIDTH)
    rows, last = estimates["rows"], estimates["rows"][-1]["round"]
    everyone = [row for row in rows if row["client"] == "all"]
    clients = [row for row in rows if row["client"] != "all" and row["round"] == last]
    _print(console, f"{estimates['mpifed estimate']}: all clients", "round", everyone)
    _print(console, f"each client after round {last}", "client", clients[:CLIENTS])
    if len(clients) > CLIENTS:
        console.print(f"... and {len(clients) - CLIENTS} more clients, in {ASSUMPTION_FILES[0]}")
    console.print(_explanation(estimates, everyone))


def _explanation(estimates: dict[str, Any], everyone: list[Row]) -> str:
    """Return an explanation of the columns of the printed tables."""
    columns, lines = _columns(everyone), []
    if "L" in columns:
        lines.append("L: lower bounds.")
    if "pl" in columns:
        unsolved = max(row["pl_residual"] for row in everyone)
        lines.append(f"μ: upper bounds; the natural residual of y*(x) is at most {unsolved:.1g}.")
    if "tail" in columns:
        lines.append(
            f"Tail index: Hill's estimator with 95 % intervals, from the largest {estimates['top']} of "
            f"{estimates['samples']} noise norms per client and the largest {estimates['top_of_all']} of all "
            "clients."
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


def write(estimates: dict[str, Any], folder: Path) -> list[Path]:
    """Write the files and return their paths.

    Raises:
        ConfigError: a file cannot be written.
    """
    paths = [folder / name for name in ASSUMPTION_FILES]
    for path, writer in zip(paths, (_write_csv, _write_json, _draw)):
        with writing(path) as temporary:
            writer(estimates, temporary)
    return paths


def _write_csv(estimates: dict[str, Any], path: Path) -> None:
    names = list(dict.fromkeys(name for row in estimates["rows"] for name in row))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(estimates["rows"])


def _write_json(estimates: dict[str, Any], path: Path) -> None:
    """Write the results as JSON, with null for NaN and infinity, which strict parsers reject."""
    rows = [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }
        for row in estimates["rows"]
    ]
    path.write_text(json.dumps(estimates | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


def _draw(estimates: dict[str, Any], path: Path) -> None:
    """Draw one panel per column against the rounds.

    Clients are grey, the row "all" is black, and the confidence interval of the tail index is shaded.
    """
    columns, rows = _columns(estimates["rows"]), estimates["rows"]
    across = min(PANELS, len(columns))
    down = -(-len(columns) // across)
    figure = Figure(figsize=(3 * across, 2.8 * down), dpi=150, layout="constrained", facecolor="white")
    grid = figure.subplots(down, across, squeeze=False).flat
    for axes in grid[len(columns) :]:
        axes.set_axis_off()
    for axes, name in zip(grid, columns):
        for client in ("all", *range(estimates["clients"])):
            client_rows = [row for row in rows if row["client"] == client]
            rounds, values = (_values(client_rows, key) for key in ("round", name))
            is_all = client == "all"
            style = {"color": "black", "zorder": 3} if is_all else {"color": "0.75", "linewidth": 0.8}
            axes.plot(rounds, values, marker=".", **style)
            if is_all and name == "tail":
                low, high = (_values(client_rows, key) for key in ("tail_low", "tail_high"))
                axes.fill_between(rounds, low, high, color="black", alpha=0.12, linewidth=0)
        finish_panel(axes, name, _values(rows, name))
    figure.suptitle(escape_mathtext(estimates["mpifed estimate"]), fontsize=10)
    figure.savefig(path, format="png", metadata=PNG_METADATA)


def finish_panel(axes, name: str, values: list[float]) -> None:
    """Set scale, labels and grid of a panel; the scale is logarithmic for values of several magnitudes."""
    positive = [value for value in values if value > 0] or [1.0]
    least, most = np.min(positive), np.max(positive)
    if most > 10 * least:
        axes.set_yscale("log")
    elif most < 1.01 * least:  # constant up to rounding: do not magnify the rounding errors
        axes.set_ylim(0, 2 * most)
    axes.set(xlabel="round", title=NAMES[name])
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="0.9")
