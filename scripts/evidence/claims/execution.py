"""Commands of mpifed that run an experiment; they skip complete runs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

from claims.entries import Book
from claims.panels import SECOND_SEED, output_folder, without
from mpifed.cli.selftest import as_root
from mpifed.config.tables import read_table
from mpifed.tuning.results import BEST


def commands(book: Book, name: str, changes: Sequence[str], full: bool = False) -> list[list[str]]:
    """Return the commands of an experiment.

    These are the searches and the runs with their best settings (or the runs of a job without a search), and
    the runs with the stated settings; with ``full``, the runs in the paper's size.

    Args:
        changes: KEY=VALUE. Changes of [tune] apply to the search, changes of [sweep] to the other job files.
    """
    sweeps = without(changes, "tune")
    if full:
        return [["sweep", str(book.full(name)), *sweeps]]
    job = book.job(name)
    table = read_table(job)
    if "tune" in table:
        made = []
        for second in (False, True)[: book.experiments[name].searches]:
            out = output_folder(table, second)
            other = [f"seed={SECOND_SEED}", f"run.out={out}"] if second else []
            if second and (fresh := book.experiments[name].second_fresh):
                other.append(f"tune.fresh={fresh}")
            made += [
                ["tune", str(job), *without(changes, "sweep"), *other],
                ["sweep", str(out / BEST), *without(sweeps, "sweep")],
            ]
    else:
        made = [["sweep", str(job), *sweeps]]
    return made + ([["sweep", str(book.stated(name)), *sweeps]] if book.stated(name).is_file() else [])


def execute(command: Sequence[str], processes: int, quiet: bool = False) -> int:
    """Run a command, ``processes`` of its runs at a time; return the first exit code that is not 0.

    mpirun distributes the runs of a search over ranks, but the clients of each run of a sweep. Therefore
    independent processes execute parts of a sweep.
    """
    mpifed = [sys.executable, "-m", "mpifed", *command, *(["--quiet"] if quiet else [])]
    if processes == 1:
        lines = [mpifed]
    elif command[0] == "tune":
        lines = [["mpirun", "-n", str(processes), *mpifed]]
    else:
        lines = [
            [*mpifed, "--part", f"{part}/{processes}", *(["--quiet"] if part else [])]
            for part in range(processes)
        ]
    started = [subprocess.Popen(one, env=os.environ | as_root()) for one in lines]
    return next(filter(None, [process.wait() for process in started]), 0)


def launch(book: Book, name: str, changes: Sequence[str], full: bool, options: str) -> int:
    """Submit a Slurm job array per job file of an experiment; return the first exit code that is not 0."""
    files = [book.full(name)] if full else [book.job(name), book.stated(name)]
    for file in (one for one in files if one.is_file()):
        command = ["mpifed", "launch", *shlex.split(options), str(file), *changes]
        if code := subprocess.run(command).returncode:
            return code
    return 0
