"""The report of finished runs, and of runs that stopped half way: curves, tables and a page to read in a
browser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mpifed.report.comparison import Rule, Setting, best, metrics_of, settings_of
from mpifed.report.figures import curves
from mpifed.report.names import setting_cells
from mpifed.report.page import page
from mpifed.report.tables import cost_rows, print_table, run_rows, setting_rows, to_csv
from mpifed.report.theory import theory_rows
from mpifed.storage.atomic import replacing
from mpifed.storage.ownership import REPORT_FILES, TEXT_MARK, expect_own
from mpifed.storage.results import find_runs, load

__all__ = ["report"]


def report(places: Iterable[str | Path], out: str | Path, rule: Rule = Rule()) -> list[Path]:
    """Compare runs; write and print what was found.

    Args:
        places: run files, or folders that hold some at any depth.
        out: folder for ``report.html``, ``curves.png`` (if there are any metrics), ``table.txt``,
            ``table.csv`` with a row a run, and with several runs ``settings.csv`` with a row for all those
            that differ only in the seed.

    Returns:
        The files written.

    Raises:
        ValueError: no runs, one that cannot be read, a rule with a metric that no run has, or a file in
            ``out`` that would be replaced and is no report's.
    """
    out, settings = Path(out), settings_of([load(path) for path in find_runs(places)])
    rule.check(settings)
    expect_own(out / name for name in REPORT_FILES)
    chosen, rows = best(settings, rule), run_rows(settings, rule)
    writers = {"report.html": lambda path: path.write_text(page(settings, chosen, rule), encoding="utf-8")}
    if metrics_of(settings):
        writers["curves.png"] = lambda path: curves(chosen, path)
    writers["table.txt"] = lambda path: _to_text(path, settings, chosen, rule, rows)
    writers["table.csv"] = lambda path: to_csv(rows, path)
    if len(rows) > 1:
        writers["settings.csv"] = lambda path: to_csv(
            setting_rows(settings, rule, setting_cells(settings, rule)), path
        )
    out.mkdir(parents=True, exist_ok=True)
    for name, write in writers.items():
        with replacing(out / name) as path:
            write(path)
    if len(chosen) == len(rows):
        print_table(rows)
    else:
        _print(Console(), settings, chosen, rule)
    _print_theory(Console(), chosen)
    return [out / name for name in writers]


def _to_text(
    path: Path, settings: Sequence[Setting], chosen: Sequence[Setting], rule: Rule, rows: list[dict]
) -> None:
    with open(path, "w", encoding="utf-8") as file:
        console = Console(file=file, width=100, color_system=None)
        console.print(TEXT_MARK)
        _print(console, settings, chosen, rule)
        print_table(rows, console)
        _print_theory(console, chosen)


def _print(console: Console, settings: Sequence[Setting], chosen: Sequence[Setting], rule: Rule) -> None:
    """The best settings and their costs, where there is something to choose from or to average."""
    runs = sum(len(one.runs) for one in settings)
    if len(chosen) < runs:
        console.print(Text(f"{runs} runs, {len(settings)} settings. {rule.describe(settings)}"))
        print_table(setting_rows(chosen, rule, setting_cells(settings, rule)), console)
        print_table(cost_rows(chosen), console)


def _print_theory(console: Console, chosen: Sequence[Setting]) -> None:
    """What the theorems say of the best settings, where a job names one."""
    if rows := theory_rows(chosen):
        print_table(rows, console)
