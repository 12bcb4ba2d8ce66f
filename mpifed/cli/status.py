"""``mpifed status``: one line per run, once or until all runs have ended.

The command imports no large package, so it responds quickly.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpifed.base.errors import format_ranges
from mpifed.base.log import escape_control
from mpifed.cli.options import HomePath
from mpifed.cli.output import echo

if TYPE_CHECKING:
    from mpifed.storage.status import Status

__all__ = ["follow", "row", "status", "table"]

#: Units of a time, in seconds.
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
#: State of an array element → states of runs. An element has the first state that applies to one of its runs.
_ELEMENT_STATES = {
    "running": ("running", "running?"),
    "failed": ("failed", "damaged", "unreadable"),
    "stopped": ("stopped",),
}
#: States of runs that have not ended.
ACTIVE = ("running", "running?", "not begun")
#: Columns that are omitted on a narrow terminal, the first ones first.
OMITTED = ("why", "problem", "best", "validation", "written", "rounds/s", "method", "metric")
#: Columns that change even if the run does not.
TIME_COLUMNS = ("written", "rounds/s", "left")


@click.command()
@click.argument("places", nargs=-1, type=HomePath(), metavar="[FOLDER|JOB.toml]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--trials", is_flag=True, help="List each run of the searches of `mpifed tune`.")
@click.option("-f", "--follow", "following", is_flag=True, help="Repeat until all runs have ended.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=5.0,
    metavar="SECONDS",
    help="Interval of --follow.",
)
def status(places, as_json, trials, following, interval):
    """Show the progress of the runs in FOLDER... and below, by default in the current folder.

    One line per run: its round, its state (finished, running, stopped or failed), the latest and the best
    value of its first metric, and the time since it last wrote. Running runs also have the rounds per second
    and the estimated time left. A job file JOB.toml stands for its run, or for all runs of its [sweep],
    including runs that have not begun. For job arrays of `mpifed launch`, the states of the elements are
    added. The trials of a search of `mpifed tune` are one line per method, with the value of the best
    settings.

    With --follow, the table is updated in place on a terminal; a file or a pipe gets one line per change.

    The command writes nothing and does not affect running runs.
    """
    from mpifed.storage.status import find_statuses, is_run, with_searches
    from mpifed.storage.status import status as status_of

    jobs = [place for place in places if place.endswith(".toml")]
    folders = [place for place in places if place not in jobs] or ([] if jobs else ["."])
    planned = [run for job in jobs for run in _runs_of(job)]

    def look() -> list[Status]:
        listed = find_statuses(folders)
        runs = listed if trials else with_searches(listed)
        return runs + [status_of(run.folder) if is_run(run.folder) else run for run in planned]

    if following and as_json:
        raise click.UsageError("--follow and --json cannot be combined: leave one out")
    try:
        if following:
            follow(look, interval)
        elif as_json:
            echo(json.dumps([_entry(run) for run in look()], indent=2))
        else:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            echo("\n".join(table(look(), width=width)))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _runs_of(job: str) -> Iterator[Status]:
    """Yield the runs of a job file as not begun, without executing code that the file names."""
    from mpifed.config.grids import variant_tables
    from mpifed.config.job import summarise
    from mpifed.config.tables import read_table
    from mpifed.storage.status import Status

    table = read_table(job)
    if "tune" in table:
        raise click.UsageError(
            f"{job} has a [tune], whose runs are not known in advance: expected its folder, run.out"
        )
    for run_table in variant_tables(job).values() if "sweep" in table else [table]:
        summary = summarise(run_table)
        yield Status(
            Path(summary.out), "not begun", "", summary.method, summary.problem, rounds=summary.rounds
        )


def _entry(run: Status) -> dict:
    """Return a run as JSON-able values."""
    name, value = _finite(run.metric)
    return vars(run) | {
        "folder": str(run.folder),
        "metric": name,
        "value": value,
        "validation": _finite(run.validation)[1],
        "script": run.script and str(run.script),
    }


def _finite(metric: tuple[str, float] | None) -> tuple[str | None, float | None]:
    """Return name and value; ``None`` for a non-finite value, which JSON cannot represent."""
    name, value = metric or (None, None)
    return name, value if value is not None and math.isfinite(value) else None


def table(
    runs: Sequence[Status], shown: Sequence[Status] | None = None, width: int | None = None
) -> list[str]:
    """Return the lines of a table: the non-empty columns of each run, the job arrays, and a count of states.

    Args:
        shown: the runs that have a line; by default all runs.
        width: number of characters of the terminal. If the column "why" is omitted, the reasons of runs that
            were stopped or have failed follow the table.
    """
    rows = [row(run) for run in (runs if shown is None else shown)]
    names = [name for name in row(runs[0]) if any(cells[name] for cells in rows)]
    lines = [dict(zip(names, names)), *rows]
    widths = {name: max(len(line[name]) for line in lines) for name in names}
    if width and widths["run"] > width // 2:  # the end of a path distinguishes runs
        widths["run"] = half = width // 2
        for cells in rows:
            name = cells["run"]
            cells["run"] = name if len(name) <= half else f"...{name[3 - half :]}"
    for name in OMITTED:
        if width and sum(widths[name] + 2 for name in names) > width + 2:
            names = [other for other in names if other != name]
    run_lines = ["  ".join(line[name].ljust(widths[name]) for name in names).rstrip() for line in lines]
    if "why" not in names:
        ended = [cells for cells in rows if cells["why"] and cells["state"] not in ("finished", *ACTIVE)]
        run_lines += [f"{cells['run']}: {cells['why']}" for cells in ended]
    counts = ", ".join(f"{count} {state}" for state, count in Counter(run.state for run in runs).items())
    return [*run_lines, *_arrays(runs), *([f"{len(runs)} runs: {counts}"] if len(runs) > 1 else [])]


def row(run: Status) -> dict[str, str]:
    """Return the cells of a run by column."""
    completed, total = ("?" if number is None else f"{number:,}" for number in (run.round or 0, run.rounds))
    has_rounds = run.rounds is not None or (run.state != "not begun" and not run.trials)
    cells = {
        "run": str(run.folder),
        "method": run.method,
        "problem": run.problem,
        "round": f"{completed} of {total}" if has_rounds else "",
        "state": run.state,
        "metric": _value(run.metric),
        "validation": _value(run.validation),
        "best": f"{run.best[1]:.4g} (round {run.best[0]:,})" if run.best else "",
        "written": f"{_time(run.age)} ago" if run.age is not None else "",
        "rounds/s": f"{run.pace:.3g}" if run.pace else "",
        "left": _time(run.left) if run.left is not None else "",
        "why": run.reason,
    }
    return {name: escape_control(text, line=True) for name, text in cells.items()}


def _value(metric: tuple[str, float] | None) -> str:
    return f"{metric[0]} {metric[1]:.4g}" if metric else ""


def _arrays(runs: Sequence[Status]) -> list[str]:
    """Return one line per job array with the states of its elements."""
    arrays: dict = {}
    for run in runs:
        if run.script is not None:
            arrays.setdefault(run.script, {}).setdefault(run.element, set()).add(run.state)
    lines = []
    for script, elements in arrays.items():
        states: dict[str, list[int]] = {}
        for number, run_states in sorted(elements.items()):
            states.setdefault(_element_state(run_states), []).append(number)
        texts = [
            f"{len(numbers)} {state} ({format_ranges(numbers).replace(' ', '')})"  # as in Slurm
            for state, numbers in states.items()
        ]
        lines.append(escape_control(f"{script}, {len(elements)} element(s): {', '.join(texts)}", line=True))
    return lines


def _element_state(states: set[str]) -> str:
    """Return the state of an element of a job array from the states of its runs.

    An element whose runs are partly finished and partly not begun is stopped.
    """
    for name, run_states in _ELEMENT_STATES.items():
        if states & {*run_states}:
            return name
    if states == {"finished"}:
        return "done"
    return "waiting" if states == {"not begun"} else "stopped"


def _time(seconds: float) -> str:
    """Format a time in its largest unit."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{seconds / size:.{0 if size == 1 or seconds >= 10 * size else 1}f} {unit}"


def follow(look: Callable[[], Sequence[Status]], seconds: float) -> None:
    """Show the runs that ``look`` returns, every few seconds until all runs have ended, or until Ctrl-C."""
    show = _Screen() if _is_terminal() else _Changes()
    try:
        while True:
            runs = look()
            show(runs)
            if not any(run.state in ACTIVE for run in runs):
                return
            time.sleep(seconds)
    except KeyboardInterrupt:
        return


def _is_terminal() -> bool:
    """Return whether lines can be overwritten, which dumb terminals do not support."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class _Screen:
    """Prints the table and updates it in place."""

    def __init__(self):
        self._lines = 0

    def __call__(self, runs: Sequence[Status]) -> None:
        width, height = shutil.get_terminal_size()
        lines = table(runs, width=width - 1)
        if len(lines) >= height:  # the last line still counts all runs
            lines = table(runs, [run for run in runs if run.state in ACTIVE], width - 1)
        if len(lines) >= height:
            lines = [*lines[: height - 3], "...", lines[-1]]
        up = f"\x1b[{self._lines}F" if self._lines else ""
        click.echo(up + "".join(f"{line[: width - 1]}\x1b[K\n" for line in lines) + "\x1b[J", nl=False)
        self._lines = len(lines)


class _Changes:
    """Prints one line per run that is new or has changed."""

    def __init__(self):
        self._known: dict = {}

    def __call__(self, runs: Sequence[Status]) -> None:
        for run in runs:
            texts = row(run)
            cells = [text for name, text in texts.items() if text and name not in TIME_COLUMNS]
            if self._known.get(run.folder) != cells:
                self._known[run.folder] = cells
                echo("  ".join([*cells, *([f"{texts['left']} left"] if texts["left"] else [])]))
