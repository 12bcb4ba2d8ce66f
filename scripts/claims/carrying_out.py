"""What runs an experiment: commands of mpifed, which pass over what is done."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from claims.entries import Book
from claims.panels import without
from mpifed.config.tables import read_table
from mpifed.tuning.results import BEST


def commands(book: Book, name: str, changes: Sequence[str], full: bool = False) -> list[list[str]]:
    """Of one experiment: the search and the runs of what it has found, or the runs of a job without a search,
    then the runs at the stated settings; or those at the paper's size.

    Changes of [tune] are the search's, those of [sweep] the sweeps' that the job files have.
    """
    sweeps = without(changes, "tune")
    if full:
        return [["sweep", str(book.full(name)), *sweeps]]
    job = book.job(name)
    table = read_table(job)
    if "tune" in table:
        found = Path(table["run"]["out"]) / BEST
        made = [
            ["tune", str(job), *without(changes, "sweep")],
            ["sweep", str(found), *without(sweeps, "sweep")],
        ]
    else:
        made = [["sweep", str(job), *sweeps]]
    return made + ([["sweep", str(book.stated(name)), *sweeps]] if book.stated(name).is_file() else [])


def carry_out(command: Sequence[str], ranks: int) -> int:
    """Run one command on some ranks, one without mpirun; its exit code."""
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    return subprocess.run([*launcher, sys.executable, "-m", "mpifed", *command]).returncode


def launch(book: Book, name: str, changes: Sequence[str], full: bool, options: str) -> int:
    """A Slurm job array of each job file of an experiment; the exit code of the first that fails."""
    files = [book.full(name)] if full else [book.job(name), book.stated(name)]
    for file in (one for one in files if one.is_file()):
        command = ["mpifed", "launch", *shlex.split(options), str(file), *changes]
        if code := subprocess.run(command).returncode:
            return code
    return 0
