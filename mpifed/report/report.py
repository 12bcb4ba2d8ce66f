"""Reports of runs: curves, tables, an HTML page, and a figure and a table for a paper."""

from __future__ import annotations

import contextlib
import functools
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.text import Text

from mpifed.base.console import Console
from mpifed.base.log import warning
from mpifed.base.paths import expect_output_folder
from mpifed.base.settings import suggest
from mpifed.core.metrics import VALIDATION
from mpifed.report.comparison import Rule, Setting, best, metrics_of, settings_of
from mpifed.report.figures import AXES, curves, paper_figure
from mpifed.report.labels import Labels, setting_cells, whole_setting_cells
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
from mpifed.storage.files import (
    REPORT_FILES,
    REPORT_MARK,
    SEARCH_RESULT,
    TRIALS,
    TRIED,
    expect_own,
    expect_writable,
    is_paper,
    open_file,
    replacing,
)
from mpifed.storage.results import find_runs, load

__all__ = ["Paper", "report"]

#: A curve with fewer evaluations causes a warning if it is drawn for a paper.
MIN_POINTS = 5


@dataclass(frozen=True)
class Paper:
    """A figure and a table for a paper, with the best setting of every method.

    Attributes:
        figure: file of the figure, ``None`` for none; its suffix determines the format.
        latex: file of the table, ``None`` for none.
        width: width of the figure with its unit.
        metrics: metrics of figure and table; by default the metric that determines the best setting.
        x: names of the figure's horizontal axes.
        labels: file with the user's names.
    """

    figure: Path | None = None
    latex: Path | None = None
    width: str = "3.25in"
    metrics: tuple[str, ...] = ()
    x: tuple[str, ...] = ("rounds",)
    labels: Path | None = None

    def writers(self, chosen: Sequence[Setting], rule: Rule) -> dict[Path, Callable[[Path], object]]:
        """Functions that write each file.

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
            raise ValueError("the runs have no metrics to draw or tabulate")
        metrics = self.metrics or tuple(dict.fromkeys(filter(None, map(rule.metric_of, chosen))))
        axes = [axis.name for axis in AXES]
        names = Labels.read(self.labels, chosen, known, axes) if self.labels else Labels()
        writers: dict[Path, Callable[[Path], object]] = {}
        if self.figure:
            _warn_of_short_curves(chosen, metrics)
            writers[self.figure] = paper_figure(chosen, self.figure, self.width, metrics, self.x, names)
        if self.latex:
            text = table(chosen, rule, metrics, names)
            writers[self.latex] = lambda path: path.write_text(
                text, encoding="utf-8", errors="backslashreplace"
            )
        for path in writers:
            expect_writable(path, is_paper)
        return writers


def _warn_of_short_curves(chosen: Sequence[Setting], metrics: Sequence[str]) -> None:
    counts = {
        setting.name: min(
            len(setting.curve(metric).rounds) for metric in metrics if metric in setting.metrics
        )
        for setting in chosen
        if {*metrics} & {*setting.metrics}
    }
    if short := {name: count for name, count in counts.items() if count < MIN_POINTS}:
        names = ", ".join(f"{name} ({count})" for name, count in short.items())
        warning(
            f"curves of fewer than {MIN_POINTS} evaluations: {names}; a smaller run.eval_every gives more"
        )


def report(
    places: Iterable[str | Path],
    out: str | Path,
    rule: Rule = Rule(),
    paper: Paper | None = None,
    console: Console | None = None,
) -> list[Path]:
    """Compare runs; write and print the report.

    Args:
        places: run files, or folders that contain runs at any depth.
        out: folder for ``report.html``, ``curves.png`` (if there are metrics), ``table.txt``, ``table.csv``
            with a row per run, and for several runs ``settings.csv`` with a row for all runs that differ only
            in the seed.
        rule: by default, the metric is that of the search by `mpifed tune` whose folder contains the runs.
        paper: figure and table for a paper.
        console: the console on which the report is printed; by default standard output.

    Returns:
        The files written.

    Raises:
        ValueError: there are no runs, a run cannot be read, no run has the rule's metric, or a file in
            ``out`` was not written by a report; or, after everything else is written and printed, some files
            could not be written.
    """
    out, settings = Path(expect_output_folder(out)), settings_of([load(path) for path in find_runs(places)])
    rule = replace(rule, metric=rule.metric or _tuned_metric(settings))
    rule.check(settings)
    expect_own(out / name for name in REPORT_FILES)
    chosen, rows = best(settings, rule), run_rows(settings, rule)
    wanted = paper.writers(chosen, rule) if paper else {}
    files = {out / name: write for name, write in _writers(settings, chosen, rule, rows).items()} | wanted
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {out}: {error.strerror}; --out names another folder") from None
    signatures = dict.fromkeys(wanted, is_paper)
    failed = [error for file, write in files.items() if (error := _write(file, write, signatures.get(file)))]
    console = console or Console()
    if len(chosen) == len(rows):
        print_table(rows, console)
    else:
        _print(console, settings, chosen, rule)
    _print_theory(console, chosen)
    if failed:
        others = len(files) - len(failed)
        raise ValueError(f"{'; '.join(failed)}; the other {others} files were written")
    return [*files]


def _tuned_metric(settings: Sequence[Setting]) -> str | None:
    """Return the metric by which a search has selected the settings of all runs, on the test split if it was
    one of validation data; ``None`` if there is none, or if there are several."""
    runs = [run for setting in settings for run in setting.runs]
    searches = [next((one for one in run.folder.parents if (one / TRIED).is_file()), None) for run in runs]
    tuned = {
        metric for search in {*searches} for metric in (_metrics_of_search(search) if search else {None})
    }
    metric = tuned.pop() if len(tuned) == 1 else None
    column = next((setting.metrics[metric] for setting in settings if metric in setting.metrics), None)
    return column.metric if column and column.split == VALIDATION else metric if column else None


def _metrics_of_search(folder: Path) -> set[str]:
    """Return the metrics by which the finished searches in a folder of `mpifed tune` have selected."""
    metrics = set()
    for levels in ("*", "*/*"):  # methods, or tasks and methods
        for path in (folder / TRIALS).glob(f"{levels}/{SEARCH_RESULT}"):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError), open_file(path) as file:
                metrics.add(str(json.load(file)["metric"]))
    return metrics


def _write(file: Path, write: Callable[[Path], object], signature: Callable[[bytes], bool] | None) -> str:
    """Write a file; return the error, or ""."""
    try:
        with replacing(file, signature) as path:
            write(path)
    except Exception as error:  # libraries can fail to draw the content of other users' files
        return f"{file}: {type(error).__name__}: {error}"
    return ""


def _writers(settings: Sequence[Setting], chosen: Sequence[Setting], rule: Rule, rows: list[dict]) -> dict:
    """Functions that write the files of a report, by name."""

    @functools.cache
    def figure() -> bytes:
        with io.BytesIO() as file:
            curves(chosen, file)
            return file.getvalue()

    def write_page(path: Path) -> None:
        image = b""
        with contextlib.suppress(Exception):  # reported for curves.png; the page does not depend on it
            image = figure()
        path.write_text(page(settings, chosen, rule, image), encoding="utf-8", errors="backslashreplace")

    writers: dict[str, Callable[[Path], object]] = {"report.html": write_page}
    if metrics_of(chosen):
        writers["curves.png"] = lambda path: path.write_bytes(figure())
    writers["table.txt"] = lambda path: _to_text(path, settings, chosen, rule, rows)
    writers["table.csv"] = lambda path: to_csv(rows, path)
    if len(rows) > 1:
        averaged = setting_rows(settings, rule, setting_cells(settings, rule))
        writers["settings.csv"] = lambda path: to_csv(averaged, path)
    return writers


def _to_text(
    path: Path, settings: Sequence[Setting], chosen: Sequence[Setting], rule: Rule, rows: list[dict]
) -> None:
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        console = Console(file=file, width=100, color_system=None)
        console.print(REPORT_MARK)
        _print(console, settings, chosen, rule)
        print_table(rows, console)
        _print_theory(console, chosen)


def _print(console: Console, settings: Sequence[Setting], chosen: Sequence[Setting], rule: Rule) -> None:
    """Print the best settings, their costs and the tests between them if there are several runs."""
    runs = sum(len(setting.runs) for setting in settings)
    if len(chosen) < runs:
        console.print(Text(f"{runs} runs, {len(settings)} settings. {rule.describe(settings)}"))
        print_table(setting_rows(chosen, rule, whole_setting_cells(settings, rule)), console)
        print_table(cost_rows(chosen), console)
    if rows := paired_rows(chosen, rule):
        console.print(Text(f"Comparison of each method with the best: {TEST}."))
        print_table(rows, console)


def _print_theory(console: Console, chosen: Sequence[Setting]) -> None:
    """Print step sizes and bounds of theorems for the best settings, if a job names a theorem."""
    if rows := theory_rows(chosen):
        print_table(rows, console)
