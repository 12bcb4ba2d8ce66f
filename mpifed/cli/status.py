"""``mpifed status``: one line per run, once or until all runs have ended.

Nothing large is loaded, and plain text is fast to write.
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

from mpifed.base.log import visible
from mpifed.cli.output import echo

if TYPE_CHECKING:
    from mpifed.storage.status import Status

__all__ = ["follow", "row", "status", "table"]

#: Units of a time, in seconds.
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
#: State of an array element → states of its runs; the first entry that one run matches.
_ELEMENTS = {
    "running": ("running", "running?"),
    "failed": ("failed", "damaged", "unreadable"),
    "stopped": ("stopped",),
}
#: States that can still change.
GOING = ("running", "running?", "not begun")
#: Columns that always change.
CLOCKS = ("written", "rounds/s", "left")


@click.command()
@click.argument("places", nargs=-1, type=click.Path(), metavar="[FOLDER|JOB.toml]...")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.option("-f", "--follow", "following", is_flag=True, help="Repeat until all runs have ended.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Interval of --follow.",
)
def status(places, as_json, following, interval):
    """Show the progress of the runs in FOLDER... and below, by default in the current folder.

    One line per run: its round, its state (finished, running, stopped or failed), the latest value of its
    first metric, the time since it last wrote; for running ones also rounds per second and the time left, as
    of that moment. For a job file, its run, or the runs of its [sweep], including those not begun. For a job
    array that `mpifed launch` wrote here, also the states of its elements.

    With --follow the table is updated in place on a terminal; a file or a pipe gets a line for each change.

    Nothing is written, and no run is disturbed.
    """
    from mpifed.storage.status import is_run, survey
    from mpifed.storage.status import status as status_of

    jobs = [place for place in places if place.endswith(".toml")]
    folders = [place for place in places if place not in jobs] or ([] if jobs else ["."])
    planned = [run for job in jobs for run in _runs_of(job)]

    def look() -> list[Status]:
        return survey(folders) + [status_of(run.folder) if is_run(run.folder) else run for run in planned]

    if following and as_json:
        raise click.UsageError("--follow and --json cannot be combined: leave one out")
    try:
        if following:
            follow(look, interval)
        elif as_json:
            echo(json.dumps([_entry(run) for run in look()], indent=2))
        else:
            echo("\n".join(table(look())))
    except ValueError as fault:
        raise click.UsageError(str(fault)) from None


def _runs_of(job: str) -> Iterator[Status]:
    """The runs that a job file describes, as not begun; no code that it names is executed."""
    from mpifed.config.grids import tables
    from mpifed.config.outline import outline
    from mpifed.config.tables import read_table
    from mpifed.storage.status import Status

    table = read_table(job)
    if "tune" in table:
        raise click.UsageError(
            f"{job} has a [tune], whose runs are not known in advance: give its folder, run.out"
        )
    for one in tables(job).values() if "sweep" in table else [table]:
        found = outline(one)
        yield Status(Path(found.out), "not begun", "", found.method, found.problem, rounds=found.rounds)


def _entry(run: Status) -> dict:
    """A run for JSON."""
    name, value = _finite(run.metric)
    script = run.script and str(run.script)
    return vars(run) | {
        "folder": str(run.folder),
        "metric": name,
        "value": value,
        "validation": _finite(run.validation)[1],
        "script": script,
    }


def _finite(metric: tuple[str, float] | None) -> tuple[str | None, float | None]:
    """Name and value, ``None`` for a value that is not finite, which JSON cannot represent."""
    name, value = metric or (None, None)
    return name, value if value is not None and math.isfinite(value) else None


def table(runs: Sequence[Status], shown: Sequence[Status] | None = None) -> list[str]:
    """Lines: the non-empty columns of each run (of ``shown``, by default all), every job array, and the
    number of runs in each state."""
    rows = [row(run) for run in (runs if shown is None else shown)]
    names = [name for name in row(runs[0]) if any(one[name] for one in rows)]
    lines = [dict(zip(names, names)), *rows]
    width = {name: max(len(line[name]) for line in lines) for name in names}
    listed = ["  ".join(line[name].ljust(width[name]) for name in names).rstrip() for line in lines]
    counts = ", ".join(f"{count} {state}" for state, count in Counter(run.state for run in runs).items())
    return [*listed, *_arrays(runs), *([f"{len(runs)} runs: {counts}"] if len(runs) > 1 else [])]


def row(run: Status) -> dict[str, str]:
    """The cells of a run by column."""
    done, of = ("?" if number is None else f"{number:,}" for number in (run.round or 0, run.rounds))
    cells = {
        "run": str(run.folder),
        "method": run.method,
        "problem": run.problem,
        "round": f"{done} of {of}" if run.rounds is not None or run.state != "not begun" else "",
        "state": run.state,
        "metric": _value(run.metric),
        "validation": _value(run.validation),
        "written": f"{_time(run.age)} ago" if run.age is not None else "",
        "rounds/s": f"{run.pace:.3g}" if run.pace else "",
        "left": _time(run.left) if run.left is not None else "",
        "why": run.said,
    }
    return {name: visible(text, line=True) for name, text in cells.items()}


def _value(metric: tuple[str, float] | None) -> str:
    return f"{metric[0]} {metric[1]:.4g}" if metric else ""


def _arrays(runs: Sequence[Status]) -> list[str]:
    """A line for each job array with the states of its elements."""
    arrays: dict = {}
    for run in runs:
        if run.script is not None:
            arrays.setdefault(run.script, {}).setdefault(run.element, set()).add(run.state)
    lines = []
    for script, elements in arrays.items():
        states: dict[str, list[int]] = {}
        for number, found in sorted(elements.items()):
            states.setdefault(_element(found), []).append(number)
        text = ", ".join(f"{len(numbers)} {state} ({_ranges(numbers)})" for state, numbers in states.items())
        lines.append(visible(f"{script}, {len(elements)} element(s): {text}", line=True))
    return lines


def _element(states: set[str]) -> str:
    """The state of an element from those of its runs; an element that ended between two runs has stopped."""
    for name, some in _ELEMENTS.items():
        if states & {*some}:
            return name
    return {frozenset({"finished"}): "done", frozenset({"not begun"}): "waiting"}.get(
        frozenset(states), "stopped"
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as in Slurm: 0-3,7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _time(seconds: float) -> str:
    """A time in its largest unit."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{seconds / size:.{0 if size == 1 or seconds >= 10 * size else 1}f} {unit}"


def follow(look: Callable[[], Sequence[Status]], seconds: float) -> None:
    """Show the runs that ``look`` returns every few seconds, until all have ended or Ctrl-C."""
    show = _Screen() if _is_terminal() else _Changes()
    try:
        while True:
            runs = look()
            show(runs)
            if not any(run.state in GOING for run in runs):
                return
            time.sleep(seconds)
    except KeyboardInterrupt:
        return


def _is_terminal() -> bool:
    """Whether lines can be overwritten, which a dumb terminal cannot."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class _Screen:
    """The table, updated in place; control characters only move the cursor."""

    def __init__(self):
        self._lines = 0

    def __call__(self, runs: Sequence[Status]) -> None:
        width, height = shutil.get_terminal_size()
        lines = table(runs)
        if len(lines) >= height:  # the last line counts the others
            lines = table(runs, [run for run in runs if run.state in GOING])
        if len(lines) >= height:
            lines = [*lines[: height - 3], "...", lines[-1]]
        up = f"\x1b[{self._lines}F" if self._lines else ""
        click.echo(up + "".join(f"{line[: width - 1]}\x1b[K\n" for line in lines) + "\x1b[J", nl=False)
        self._lines = len(lines)


class _Changes:
    """A line for each run that is new or has changed."""

    def __init__(self):
        self._known: dict = {}

    def __call__(self, runs: Sequence[Status]) -> None:
        for run in runs:
            cells = [text for name, text in row(run).items() if text and name not in CLOCKS]
            if self._known.get(run.folder) != cells:
                self._known[run.folder] = cells
                echo("  ".join(cells))
