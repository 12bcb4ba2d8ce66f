"""The report of runs: curves, tables, a page for a browser, and a figure and a table for a paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from mpifed.base.console import Console
from mpifed.base.settings import suggest
from mpifed.report.comparison import Rule, Setting, best, metrics_of, settings_of
from mpifed.report.figures import AXES, curves, paper_figure
from mpifed.report.labels import Labels, setting_cells
from mpifed.report.latex import table
from mpifed.report.page import page
from mpifed.report.tables import (
    TEST,
    cost_rows,
    paired_rows,
    print_table,
    run_rows,
    setting_rows,
    theory_rows,
    to_csv,
)
from mpifed.storage.atomic import expect_place, replacing
from mpifed.storage.ownership import REPORT_FILES, TEXT_MARK, claim, expect_own, is_paper
from mpifed.storage.results import find_runs, load

__all__ = ["Paper", "report"]


@dataclass(frozen=True)
class Paper:
    """A figure and a table for a paper, of the best setting of every method.

    Attributes:
        figure: the file of the figure, ``None`` for none; its suffix is the format.
        latex: the file of the table, ``None`` for none.
        width: of the figure, with its unit.
        metrics: of figure and table; by default the metric that decides which setting is best.
        x: names of the figure's axes.
        labels: a file with the user's names.
    """

    figure: Path | None = None
    latex: Path | None = None
    width: str = "3.25in"
    metrics: tuple[str, ...] = ()
    x: tuple[str, ...] = ("rounds",)
    labels: Path | None = None

    def writers(self, chosen: Sequence[Setting], rule: Rule) -> dict[Path, Callable[[Path], object]]:
        """The function that writes each file.

        Raises:
            ValueError: a metric or an axis does not exist, or a file cannot be written.
        """
        if not (self.figure or self.latex):
            return {}
        known = metrics_of(chosen)
        for metric in self.metrics:
            if metric not in known:
                raise ValueError(f"no run has the metric {metric!r}: {suggest(metric, known)}")
        if not known:
            raise ValueError("the runs have no metrics: there is nothing to draw, and no table")
        metrics = self.metrics or tuple(dict.fromkeys(filter(None, map(rule.metric_of, chosen))))
        axes = [axis.name for axis in AXES]
        names = Labels.read(self.labels, chosen, known, axes) if self.labels else Labels()
        found: dict[Path, Callable[[Path], object]] = {}
        if self.figure:
            found[self.figure] = paper_figure(chosen, self.figure, self.width, metrics, self.x, names)
        if self.latex:
            text = table(chosen, rule, metrics, names)
            found[self.latex] = lambda path: path.write_text(text, encoding="utf-8")
        for path in found:
            expect_place(path, is_paper)
        return found


def report(
    places: Iterable[str | Path], out: str | Path, rule: Rule = Rule(), paper: Paper | None = None
) -> list[Path]:
    """Compare runs; write and print the report.

    Args:
        places: run files, or folders that hold some at any depth.
        out: folder for ``report.html``, ``curves.png`` (if there are any metrics), ``table.txt``,
            ``table.csv`` with a row per run, and with several runs ``settings.csv`` with a row for all those
            that differ only in the seed.
        paper: a figure and a table for a paper.

    Returns:
        The files written.

    Raises:
        ValueError: no runs, one that cannot be read, a rule with a metric that no run has, or a file in
            ``out`` that would be replaced and is no report's; after everything else is written and printed,
            files that could not be made.
    """
    out, settings = Path(out), settings_of([load(path) for path in find_runs(places)])
    rule.check(settings)
    expect_own(out / name for name in REPORT_FILES)
    chosen, rows = best(settings, rule), run_rows(settings, rule)
    wanted = paper.writers(chosen, rule) if paper else {}
    files = {out / name: write for name, write in _writers(settings, chosen, rule, rows).items()} | wanted
    out.mkdir(parents=True, exist_ok=True)
    claim(out, REPORT_FILES)
    failed = [fault for file, write in files.items() if (fault := _failing(file, write))]
    if len(chosen) == len(rows):
        print_table(rows)
    else:
        _print(Console(), settings, chosen, rule)
    _print_theory(Console(), chosen)
    if failed:
        others = len(files) - len(failed)
        raise ValueError(f"{'; '.join(failed)}; the other {others} files were written")
    return [*files]


def _failing(file: Path, write: Callable[[Path], object]) -> str:
    """Write a file; return why that failed, or "". The files after it are written in either case."""
    try:
        with replacing(file) as path:
            write(path)
    except Exception as fault:  # of a library that draws or lays out what foreign files hold
        return f"{file}: {type(fault).__name__}: {fault}"
    return ""


def _writers(settings: Sequence[Setting], chosen: Sequence[Setting], rule: Rule, rows: list[dict]) -> dict:
    """The files of a report, and the functions that write them."""
    found: dict[str, Callable[[Path], object]] = {
        "report.html": lambda path: path.write_text(page(settings, chosen, rule), encoding="utf-8")
    }
    if metrics_of(settings):
        found["curves.png"] = lambda path: curves(chosen, path)
    found["table.txt"] = lambda path: _to_text(path, settings, chosen, rule, rows)
    found["table.csv"] = lambda path: to_csv(rows, path)
    if len(rows) > 1:
        averaged = setting_rows(settings, rule, setting_cells(settings, rule))
        found["settings.csv"] = lambda path: to_csv(averaged, path)
    return found


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
    """Print the best settings, their costs and the tests between them, where there are several runs."""
    runs = sum(len(one.runs) for one in settings)
    if len(chosen) < runs:
        console.print(Text(f"{runs} runs, {len(settings)} settings. {rule.describe(settings)}"))
        print_table(setting_rows(chosen, rule, setting_cells(settings, rule)), console)
        print_table(cost_rows(chosen), console)
    if rows := paired_rows(chosen, rule):
        console.print(Text(f"Every method against the best one: {TEST}."))
        print_table(rows, console)


def _print_theory(console: Console, chosen: Sequence[Setting]) -> None:
    """Print the steps and bounds of theorems for the best settings, where a job names one."""
    if rows := theory_rows(chosen):
        print_table(rows, console)
