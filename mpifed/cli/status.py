"""``mpifed status``: one line a run. Nothing large is loaded, and plain text is quick to write."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mpifed.storage.status import Status

__all__ = ["status"]

#: Units of a time, in seconds.
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@click.command()
@click.argument("places", nargs=-1, type=click.Path(), metavar="[FOLDER|JOB.toml]...")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def status(places, as_json):
    """Show how far the runs in FOLDER... and below have come; by default those in the current folder.

    One line a run: its round, whether it has finished, runs, can be resumed or has failed, the latest value
    of its first metric, how long ago it has written; of running ones also rounds a second and the time left,
    as of that writing. For a job file, its run, or the runs of its [sweep], with those that have not begun.

    Nothing is written, and no run is disturbed.
    """
    from mpifed.storage.status import find_folders
    from mpifed.storage.status import status as status_of

    jobs = [place for place in places if place.endswith(".toml")]
    folders = [place for place in places if place not in jobs]
    try:
        found = find_folders(folders or ([] if jobs else ["."]))
    except ValueError as fault:
        raise click.UsageError(str(fault)) from None
    runs = [*map(status_of, found), *(run for job in jobs for run in _runs_of(job))]
    click.echo(json.dumps([_entry(run) for run in runs], indent=2) if as_json else _text(runs))


def _runs_of(job: str) -> Iterator[Status]:
    """The runs that a job file describes."""
    from mpifed.config.grids import variants
    from mpifed.config.job import Config
    from mpifed.config.plugins import title
    from mpifed.config.tables import read_table
    from mpifed.storage.status import Status, is_run
    from mpifed.storage.status import status as status_of

    many = "sweep" in read_table(job)
    for config in [run.config for run in variants(job)] if many else [Config.load(job)]:
        folder, method, problem = Path(config.run.out), title(config.algorithm), title(config.problem)
        if is_run(folder):
            yield status_of(folder)
        else:
            yield Status(folder, "not begun", method=method, problem=problem, rounds=config.rounds)


def _entry(run: Status) -> dict:
    """A run for a program to read."""
    name, value = run.metric or (None, None)
    finite = value is not None and math.isfinite(value)
    entry = vars(run) | {"folder": str(run.folder), "metric": name, "value": value if finite else None}
    return entry


def _text(runs: Sequence[Status]) -> str:
    """A table of the columns that some run fills, and how many runs there are of each state."""
    rows = [_row(run) for run in runs]
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    lines = [dict(zip(names, names)), *rows]
    width = {name: max(len(line[name]) for line in lines) for name in names}
    table = ["  ".join(line[name].ljust(width[name]) for name in names).rstrip() for line in lines]
    counts = ", ".join(f"{count} {state}" for state, count in Counter(run.state for run in runs).items())
    return "\n".join([*table, f"{len(runs)} runs: {counts}"] if len(runs) > 1 else table)


def _row(run: Status) -> dict[str, str]:
    """What is shown of a run, by the names of the columns."""
    done, of = ("?" if number is None else f"{number:,}" for number in (run.round or 0, run.rounds))
    return {
        "run": str(run.folder),
        "method": run.method,
        "problem": run.problem,
        "round": f"{done} of {of}",
        "state": run.state,
        "metric": f"{run.metric[0]} {run.metric[1]:.4g}" if run.metric else "",
        "written": f"{_time(run.age)} ago" if run.age is not None else "",
        "rounds/s": f"{run.pace:.3g}" if run.pace else "",
        "left": _time(run.left) if run.left is not None else "",
        "why": run.said,
    }


def _time(seconds: float) -> str:
    """A time in its largest unit."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{seconds / size:.{0 if size == 1 or seconds >= 10 * size else 1}f} {unit}"
