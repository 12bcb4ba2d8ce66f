"""Running a job from Python, as from the command line.

A run that finds a checkpoint of the same job in its output folder continues from it, so the same call can be
made again after any end: a signal, a crash, a full disk. What a checkpoint cannot be continued by is refused
with the reason; nothing is ever started over silently.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from mpifed.base.errors import ConfigError
from mpifed.config.job import Config
from mpifed.config.plugins import expect_same_sources
from mpifed.config.tables import override, read_table
from mpifed.parallel.comm import CollectiveError, SerialComm, collective_errors
from mpifed.parallel.world import world
from mpifed.running.callbacks import expect_callbacks
from mpifed.running.checkpointing import Snapshot, say
from mpifed.running.recorder import versions
from mpifed.running.result import Result
from mpifed.running.resume import Stored, choose, find_saved, find_settings, go_on
from mpifed.running.runner import Runner
from mpifed.running.signals import stopped_by
from mpifed.simulation.setup import settled
from mpifed.simulation.simulation import NonFiniteError
from mpifed.storage.folder import Folder
from mpifed.storage.rank_log import RankLog

__all__ = ["run", "resume"]

T = TypeVar("T")


def run(
    job: Config | dict | str | Path,
    comm: SerialComm | None = None,
    resume: str = "auto",
    overrides: Sequence[str] = (),
    callbacks: Sequence[object] = (),
) -> Result:
    """Run a job, or continue it where ``run.out`` holds a checkpoint of it. Collective.

    Args:
        job: a configuration, a table of the same form as a job file's, or the path of a job file.
        comm: the communicator, for example a part of ``COMM_WORLD`` that ``Split`` of mpi4py has made; by
            default that of all processes started together.
        resume: "auto" continues where there is a checkpoint, "must" insists on one, "never" starts from the
            beginning. ``run.overwrite = true`` makes "auto" start from the beginning, too, and replaces what
            is in ``run.out``.
        overrides: ``key=value`` changes as on the command line, e.g. ``["rounds=20", "algorithm.q=5"]``.
        callbacks: objects with any of the methods ``on_start``, ``on_round``, ``on_evaluation`` and
            ``on_end``, which are called with an :class:`~mpifed.Event`, on rank 0 alone, for what this call
            computes; one that raises an error ends all ranks.

    Raises:
        ConfigError: on all ranks: settings that are invalid independently of folders and data.
        CollectiveError: on all ranks together: what only shows when the job is set up or runs (missing data,
            an output folder in use or with another job's results, a device that is not there, non-finite
            values, a callback that fails).
        Stopped: on all ranks together, when the files are written: SIGTERM or SIGUSR1 has come. It is a
            SystemExit.
        KeyboardInterrupt: the same for Ctrl-C; its ``result``, too, is what would have been returned.
    """
    comm = world(comm)
    _alike(comm, lambda: expect_callbacks(callbacks))
    config = settled(_alike(comm, lambda: _read(job, overrides)), comm)
    folder = Folder(config.run.out)
    return _carry_out(config, comm, folder, lambda: choose(folder, config, resume), callbacks)


def resume(
    folder: str | Path,
    overrides: Sequence[str] = (),
    comm: SerialComm | None = None,
    callbacks: Sequence[object] = (),
) -> Result:
    """Continue a run from its newest sound checkpoint, on any number of ranks. Collective.

    Args:
        folder: the run's folder.
        overrides: ``key=value`` changes, e.g. more rounds.
        callbacks: as for :func:`run`.

    Raises:
        CollectiveError: there is no checkpoint to continue from, or as for :func:`run`.
        ConfigError, Stopped, KeyboardInterrupt: as for :func:`run`.
    """
    comm, folder = world(comm), Folder(folder)
    _alike(comm, lambda: expect_callbacks(callbacks))
    stored = find_settings(comm, folder)
    config = settled(_alike(comm, lambda: _changed(stored, folder.path, overrides)), comm)
    return _carry_out(config, comm, folder, lambda: go_on(folder, config), callbacks)


def _read(job: Config | dict | str | Path, overrides: Sequence[str]) -> Config:
    if isinstance(job, Config) and not overrides:
        return job
    if isinstance(job, Config):
        table = job.table()
    elif isinstance(job, dict):
        table = copy.deepcopy(job)
    elif isinstance(job, str | Path):
        table = read_table(job)
    else:
        raise ConfigError(f"expected a Config, a table or the path of a job file, got {job!r}")
    _override(table, overrides)
    return Config.from_table(table)


def _changed(stored: Stored, folder: Path, overrides: Sequence[str]) -> Config:
    """The settings of a stored run, which is now in ``folder``, with changes."""
    table = copy.deepcopy(stored.settings)
    table["run"]["out"] = str(folder)
    _override(table, overrides)
    out = table["run"].get("out") if isinstance(table["run"], dict) else None
    if isinstance(out, str) and Path(out).resolve() != folder.resolve():
        raise ConfigError(
            f"run.out = {out} is not the folder to go on in, {folder}: copy that to another place first, and "
            "name the copy"
        )
    expect_same_sources(table)
    try:
        return Config.from_table(table)
    except ConfigError:
        _expect_known(stored, folder)
        raise


def _expect_known(stored: Stored, folder: Path) -> None:
    """Raises:
    ConfigError: the stored settings are none of this version's, whatever is changed.
    """
    try:
        Config.from_table(stored.settings)
    except ConfigError as fault:
        raise ConfigError(
            f"the settings stored in {folder}, by {stored.writer}, do not fit mpifed "
            f"{versions()['mpifed']}: {fault}\nGo on with the version that has written them, or start over "
            "with `mpifed run` and run.overwrite=true"
        ) from None


def _override(table: dict, overrides: Sequence[str]) -> None:
    if isinstance(overrides, str):
        raise ConfigError(f"expected a list of changes, e.g. ['rounds=20'], got the text {overrides!r}")
    for text in overrides:
        override(table, text)


def _alike(comm: SerialComm, read: Callable[[], T]) -> T:
    """What every rank reads for itself. Collective.

    Raises:
        ConfigError: on all ranks together, with the first rank's fault.
    """
    try:
        with collective_errors(comm, ConfigError):
            return read()
    except CollectiveError as fault:
        raise ConfigError(str(fault)) from None


def _carry_out(
    config: Config,
    comm: SerialComm,
    folder: Folder,
    look: Callable[[], Snapshot | Result | None],
    callbacks: Sequence[object],
) -> Result:
    """Run from what rank 0 finds with ``look``. Collective."""

    with RankLog(comm, folder.path) as log:
        try:
            found = find_saved(comm, look)
            if isinstance(found, Result):
                return _complete(found.made_by(config), comm)
            log.open()
            runner = Runner(config, comm, folder, log, callbacks)
            result = runner.carry_out(found)
        finally:
            folder.close()
    if runner.signal:
        raise stopped_by(runner.signal, result)
    return result


def _complete(result: Result, comm: SerialComm) -> Result:
    """What was computed before.

    Raises:
        NonFiniteError: on all ranks together, as it was then.
    """
    if result.end.kind == "diverged":
        raise NonFiniteError(f"{result.path.parent} has ended before: {result.stopped}")
    say(comm, f"{result.path.parent} is complete: {result.stopped}")
    return result
