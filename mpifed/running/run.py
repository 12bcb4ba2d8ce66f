"""Running jobs and sweeps from Python, as from the command line.

A run whose output folder has a checkpoint of the same job continues from it, so the same call can be repeated
after any end: a signal, a crash, a full disk. If a checkpoint cannot be continued, the reason is reported;
nothing is silently started over.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mpifed.base.errors import ConfigError
from mpifed.base.log import info
from mpifed.base.paths import expand_home
from mpifed.base.versions import versions
from mpifed.config.grids import Variant
from mpifed.config.job import Config
from mpifed.config.plugins import expect_same_sources
from mpifed.config.tables import apply_overrides, read_table
from mpifed.parallel.comm import CollectiveError, SerialComm, broadcast_text, collective_errors
from mpifed.parallel.world import world
from mpifed.running.callbacks import expect_callbacks
from mpifed.running.loop import execute
from mpifed.running.result import Result
from mpifed.running.resume import (
    StoredSettings,
    final_results,
    find_settings,
    open_for_resume,
    open_for_run,
)
from mpifed.simulation.setup import resolve_reduction
from mpifed.simulation.simulation import NonFiniteError
from mpifed.storage.folder import Folder

__all__ = ["SweepOutcome", "resume", "run", "sweep"]

T = TypeVar("T")


def run(
    job: Config | dict | str | Path,
    comm: SerialComm | None = None,
    resume: str = "auto",
    overrides: Sequence[str] = (),
    callbacks: Sequence[object] = (),
) -> Result:
    """Run a job, or continue it if ``run.out`` contains a checkpoint of it. Collective.

    Args:
        job: a configuration, a table of the same form as a job file, or the path of a job file.
        comm: the communicator, for example a part of ``COMM_WORLD`` from mpi4py's ``Split``; by default that
            of all processes started together.
        resume: "auto" continues from a checkpoint if there is one, "must" requires one, "never" starts from
            the beginning. With ``run.overwrite = true``, "auto" also starts from the beginning and replaces
            the run in ``run.out``.
        overrides: ``key=value`` changes as on the command line, e.g. ``["rounds=20", "algorithm.q=5"]``.
        callbacks: objects with any of the methods ``on_start``, ``on_round``, ``on_evaluation`` and
            ``on_end``, which are called with an :class:`~mpifed.Event` on rank 0 for the rounds of this call.
            ``event.stop(reason)`` ends the run. An error in a callback ends all ranks.

    Raises:
        ConfigError: on all ranks: the settings are invalid independently of folders and data.
        CollectiveError: on all ranks together: an error during set-up or the run (missing data, an output
            folder in use or with another job's results, a missing device, non-finite values, an error in a
            callback).
        Stopped: on all ranks together, after the files are written: SIGTERM or SIGUSR1 was received. It is a
            SystemExit.
        KeyboardInterrupt: likewise for Ctrl-C. Its attribute ``result`` is the result of the run so far.
    """
    comm = world(comm)
    _collective(comm, lambda: expect_callbacks(callbacks))
    config = resolve_reduction(_collective(comm, lambda: _read(job, overrides)), comm)
    folder = Folder(config.run.out)
    return execute(config, comm, folder, lambda: open_for_run(folder, config, resume), callbacks)


def resume(
    folder: str | Path,
    overrides: Sequence[str] = (),
    comm: SerialComm | None = None,
    callbacks: Sequence[object] = (),
) -> Result:
    """Continue a run from its newest valid checkpoint, on any number of ranks. Collective.

    Args:
        folder: the run's folder.
        overrides: ``key=value`` changes, e.g. more rounds.
        callbacks: as for :func:`run`.

    Raises:
        CollectiveError: there is no checkpoint to continue from, or as for :func:`run`.
        ConfigError, Stopped, KeyboardInterrupt: as for :func:`run`.
    """
    comm, folder = world(comm), Folder(expand_home(folder))
    _collective(comm, lambda: expect_callbacks(callbacks))
    stored = find_settings(comm, folder)
    config = _collective(comm, lambda: _config_of_stored(stored, folder.path, overrides))
    config = resolve_reduction(config, comm)
    return execute(config, comm, folder, lambda: open_for_resume(folder, config), callbacks)


@dataclass
class SweepOutcome:
    """Counts of a sweep: runs that are done, that were done before, and that ended in non-finite values."""

    done: int = 0
    before: int = 0
    diverged: int = 0


def sweep(runs: Sequence[Variant], comm: SerialComm, others: Sequence[Variant] = ()) -> SweepOutcome:
    """Execute the runs of a grid (:mod:`mpifed.config.grids`) one after another. Collective.

    Runs that are done are skipped, so an interrupted or extended sweep executes only the missing runs. A run
    that ended in non-finite values counts as done: a step size was too large.

    Args:
        others: runs of the same grid that are not executed here.

    Raises:
        Stopped, KeyboardInterrupt: a signal was received during a run.
        CollectiveError: the data of a run that is done, including ``others``, have changed since, in which
            case nothing is executed; or a run cannot be executed, and the runs before it are done.
    """
    names: list[str] = []
    with collective_errors(comm, ValueError):
        if comm.rank == 0:
            names = [
                variant.name
                for variant in (*runs, *others)
                if final_results(Folder(variant.config.run.out), variant.config)
            ]
    outcome, done = SweepOutcome(), json.loads(broadcast_text(comm, json.dumps(names)))
    for number, variant in enumerate(runs, 1):
        outcome.done += 1
        if variant.name in done:
            outcome.before += 1
            continue
        if comm.rank == 0:
            info(f"run {number} of {len(runs)}: {variant.name}")
        try:
            run(variant.config, comm)
        except NonFiniteError as error:
            outcome.diverged += 1
            if comm.rank == 0:
                info(f"{variant.name}: {error}")
    return outcome


def _read(job: Config | dict | str | Path, overrides: Sequence[str]) -> Config:
    if isinstance(job, Config) and not overrides:
        return job
    if isinstance(job, Config):
        table = job.table()
    elif isinstance(job, dict):
        table = _copied(job)
    elif isinstance(job, str | Path):
        table = read_table(job)
    else:
        raise ConfigError(f"expected a Config, a table or the path of a job file, got {job!r}")
    _override(table, overrides)
    return Config.from_table(table)


def _copied(table: dict) -> dict:
    """Return a copy of a table and its sections, with the same values: objects may not support copies."""
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in table.items()}


def _config_of_stored(stored: StoredSettings, folder: Path, overrides: Sequence[str]) -> Config:
    """Return the configuration that resumes a stored run in ``folder`` with changed settings."""
    table = copy.deepcopy(stored.settings)
    table["run"]["out"] = str(folder)
    _override(table, overrides)
    out = table["run"].get("out") if isinstance(table["run"], dict) else None
    if isinstance(out, str) and Path(out).resolve() != folder.resolve():
        raise ConfigError(
            f"run.out = {out} is not the folder of the resumed run, {folder}: copy the folder first, and "
            "resume the copy"
        )
    expect_same_sources(table)
    try:
        return Config.from_table(table)
    except ConfigError:
        _expect_valid(stored, folder)
        raise


def _expect_valid(stored: StoredSettings, folder: Path) -> None:
    """Raise a :class:`ConfigError` if stored settings without changes are invalid in this version."""
    try:
        Config.from_table(stored.settings)
    except ConfigError as error:
        raise ConfigError(
            f"the settings stored in {folder}, by {stored.writer_version}, are invalid in mpifed "
            f"{versions()['mpifed']}: {error}\nContinue with the version that has written them, or start "
            "over with `mpifed run` and run.overwrite=true"
        ) from None


def _override(table: dict, overrides: Sequence[str]) -> None:
    if isinstance(overrides, str):
        raise ConfigError(f"expected a list of changes, e.g. ['rounds=20'], got the text {overrides!r}")
    apply_overrides(table, overrides)


def _collective(comm: SerialComm, function: Callable[[], T]) -> T:
    """Call a function on all ranks; raise a rank's :class:`ConfigError` on all ranks. Collective."""
    try:
        with collective_errors(comm, ConfigError):
            return function()
    except CollectiveError as error:
        raise ConfigError(str(error)) from None
