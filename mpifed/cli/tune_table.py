"""What a search is asked for and what it has found, as tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.table import Table

from mpifed.base.console import Console
from mpifed.cli.output import echo
from mpifed.config.tuning import Tuning
from mpifed.tuning.found import BEST, Found
from mpifed.tuning.search import levels

__all__ = ["described", "results"]


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(table: Table) -> None:
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 110).print(table)


def described(tuning: Tuning) -> None:
    """Print what is open in every method."""
    tasks = list(dict.fromkeys(cell.task for cell in tuning.cells if cell.task))
    cells = [cell for cell in tuning.cells if cell.task == tuning.cells[0].task]
    table = _table("method", "setting", "searched")
    for cell in cells:
        for number, (key, one) in enumerate(cell.space.open.items()):
            table.add_row(cell.method if number == 0 else "", key, str(one))
        if not cell.space.open:
            table.add_row(cell.method, "", "nothing is open: it is run once with every seed")
        table.add_section()
    _print(table)
    tune, rounds = tuning.tune, cells[0].rounds
    echo(f"\nbudget of each method{' and task' if tasks else ''}: the oracle calls of {tune.runs} runs of ")
    echo(f"{rounds} rounds of the costliest method; {' / '.join(map(str, levels(rounds)))} rounds, ")
    echo(f"{tune.seeds} seed(s) in the end")
    if tasks:
        echo(f"tasks: {'; '.join(tasks)}")


def results(tuning: Tuning, found: Sequence[Found | None]) -> None:
    """Print the best settings of every method, and what they have cost."""
    tasks = any(cell.task for cell in tuning.cells)
    metrics = list(dict.fromkeys(one.metric for one in found if one))
    table = _table(
        *(["task"] if tasks else []), "method", "best settings", " / ".join(metrics), "tried", "calls"
    )
    for cell, one in zip(tuning.cells, found):
        cells = [cell.task] if tasks else []
        if one is None:
            table.add_row(*cells, cell.method, "not done yet", "", "", "")
            continue
        settings = ", ".join(f"{key} = {value}" for key, value in one.settings.items())
        table.add_row(
            *cells,
            cell.method,
            settings,
            f"{one.value:.5g}",
            str(len(one.tried)),
            f"{one.spent:,} of {one.budget:,}",
        )
    _print(table)
    for cell, one in zip(tuning.cells, found):
        for text in one.warnings if one else ():
            echo(f"mpifed: warning: {cell.title}: {text}", err=True)
    echo(tuning.out / BEST)
