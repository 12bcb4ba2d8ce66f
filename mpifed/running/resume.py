"""The decision, from the files in its folder, whether a run starts, continues, is complete or is refused."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from typing import NamedTuple

from mpifed.base.data_files import digest_of_path, walk
from mpifed.base.errors import ConfigError
from mpifed.base.log import warning
from mpifed.base.settings import affecting, flatten
from mpifed.config.job import Config, Run
from mpifed.config.plugins import changed_sources
from mpifed.core.autodiff import PLAIN
from mpifed.parallel.comm import SerialComm, broadcast_text, collective_errors
from mpifed.running.checkpointing import Snapshot, expect_state, writer_version
from mpifed.running.result import Result, broadcast, load
from mpifed.simulation.data_agreement import data_change, digests, files_from_table
from mpifed.simulation.setup import read_files
from mpifed.storage import checkpoint
from mpifed.storage.files import RUN_FILE, TRIED
from mpifed.storage.folder import Folder, NotWritable
from mpifed.storage.results import End, RunData, class_name, load_if_valid
from mpifed.storage.status import is_run

__all__ = [
    "StoredSettings", "complete", "expect_rounds", "final_end", "final_results", "find_saved",
    "find_settings", "has_ended", "has_same_data", "open_for_resume", "open_for_run", "results_of",
]  # fmt: skip

#: Sections that may differ when a job is continued, because they do not determine what it computes.
_IGNORED = (*affecting(Config, "length"), "run", "plugins")
#: Maximum number of differences between two jobs that a message lists.
MAX_DIFFERENCES = 3
_START_OVER = "choose another run.out, or set run.overwrite=true to start over"


def find_saved(comm: SerialComm, find: Callable[[], Snapshot | Result | None]) -> Snapshot | Result | None:
    """Call ``find`` on rank 0 and return its result on all ranks. Collective.

    On ranks other than 0, a snapshot has only its header, and a result has no history.

    Raises:
        CollectiveError: rank 0 has raised a ValueError.
    """
    saved = None
    with collective_errors(comm, ValueError):
        if comm.rank == 0:
            saved = find()
    if broadcast_text(comm, "complete" if isinstance(saved, Result) else ""):
        return broadcast(saved, comm)
    header = json.loads(broadcast_text(comm, json.dumps(saved.header if saved else None)))
    return saved if comm.rank == 0 or header is None else Snapshot(header)


class StoredSettings(NamedTuple):
    """Stored settings of a run, and the version of the package that wrote them."""

    settings: dict
    writer_version: str


def find_settings(comm: SerialComm, folder: Folder) -> StoredSettings:
    """Return the stored settings of the run in a folder, which rank 0 reads. Collective.

    If the run has ended, they are read from its results file, otherwise from its newest checkpoint. A run
    that ended with non-finite values is resumed from its checkpoint, possibly with changed settings.

    Raises:
        CollectiveError: there is no run to resume.
    """
    stored = None
    with collective_errors(comm, ValueError):
        if comm.rank == 0:
            stored = _settings_in(folder)
    return StoredSettings(*json.loads(broadcast_text(comm, json.dumps(stored))))


def _settings_in(folder: Folder) -> StoredSettings:
    if not folder.path.is_dir():
        reason = "is not a folder" if folder.path.exists() else "does not exist"
        raise ValueError(
            f"{folder.path} {reason}: expected the folder of a run; a job is started with `mpifed run`"
        )
    run, names = load_if_valid(folder.path), [path.stem for path in folder.checkpoints()]
    ended = run.last_round if run and run.end and not run.diverged else -1
    if names and not names[-1] <= f"checkpoint-{ended:08d}":
        header = _newest(folder).header
        return StoredSettings(header["config"], writer_version(header))
    if run and run.end:
        return StoredSettings(run.config, writer_version({"versions": run.versions}))
    if (folder.path / TRIED).is_file():
        raise ValueError(f"{folder.path} is the folder of a search: `mpifed tune JOB` continues it")
    if runs := sorted(
        path for path, _, _ in walk(folder.path, lambda error: None) if path != folder.path and is_run(path)
    ):
        raise ValueError(
            f"{folder.path} contains {len(runs)} runs, not one: resume a run, e.g. `mpifed resume "
            f"{shlex.quote(str(runs[0]))}`, or the whole sweep with `mpifed sweep JOB`"
        )
    results = f", nor a valid {RUN_FILE} of a run that has ended" if folder.results() else ""
    raise ValueError(f"there is no checkpoint in {folder.path}{results}: start the job with `mpifed run`")


def open_for_run(folder: Folder, config: Config, resume: str) -> Snapshot | Result | None:
    """Open the folder of a job that is started, on rank 0.

    Args:
        resume: as for :func:`mpifed.run`.

    Returns:
        The checkpoint to continue from, the result of a complete job, or ``None`` to start.

    Raises:
        ValueError: the folder cannot be written to, is in use, or contains a run that this job neither
            continues nor may replace.
    """
    path, overwrite = folder.path, config.run.overwrite
    if resume == "never" or (resume == "auto" and overwrite):
        folder.open(create=True)
        if folder.results() and not overwrite:
            raise ValueError(
                f"{path} already contains a run: continue it with --resume auto, choose another run.out, or "
                "set run.overwrite=true"
            )
        return None
    saved = _open(folder, config, create=True)
    if saved is None and folder.results():
        raise ValueError(_not_resumable(folder, config))
    if saved is None and resume == "must":
        raise ValueError(f"there is no checkpoint in {path} to continue from (--resume must)")
    if isinstance(saved, Snapshot):
        if other := _other_job(_settings_in_header(saved), config.table()):
            raise ValueError(
                f"{path} contains a checkpoint of {other}. Choose another run.out, set run.overwrite=true to "
                f"start over, or change settings during the run with `mpifed resume {path} KEY=VALUE`"
            )
        expect_rounds(saved.round, config)
    return saved


def open_for_resume(folder: Folder, config: Config) -> Snapshot | Result:
    """Open the folder of a run to continue under ``config``, on rank 0.

    Raises:
        ValueError: the folder cannot be written to, is in use, or contains no valid checkpoint, or a
            checkpoint that ``exact`` cannot continue.
    """
    saved = _open(folder, config, create=False)
    if saved is None:
        raise ValueError(_not_resumable(folder, config))
    if isinstance(saved, Result):
        return saved
    expect_rounds(saved.round, config)
    old, new = _settings_in_header(saved), config.table()
    _expect_reproducible(old, config)
    _expect_output(old["output"], config, saved.round)
    if changed := [key for key in ("seed", "problem") if old[key] != new[key]]:
        warning(
            f"{' and '.join(changed)} changed: rounds after {saved.round} may have other data and metrics"
        )
    return saved


def _open(folder: Folder, config: Config, create: bool) -> Snapshot | Result | None:
    """Open a folder; return the result of this job if it is complete, or else the newest checkpoint if there
    is one."""
    try:
        folder.open(create)
    except NotWritable:  # nothing is written for a job that is complete
        complete = _complete_result(folder, config) if os.path.isdir(folder.path) else None
        if complete is None:
            raise
        return complete
    return _complete_result(folder, config) or (_newest(folder) if folder.checkpoints() else None)


def _complete_result(folder: Folder, config: Config) -> Result | None:
    """Return the result of this job if the results file is complete.

    A run that ended with non-finite values and has a checkpoint is not complete: it continues from there.
    """
    run = results_of(folder, config)
    if run is None or run.end is None:
        return None
    if not run.diverged:
        expect_rounds(run.last_round, config)
    if not has_ended(run, config) or (run.diverged and folder.checkpoints()):
        return None
    _expect_same_data(run, config)
    return load(folder.path)


def _not_resumable(folder: Folder, config: Config) -> str:
    """Return the error for a folder with results and without a checkpoint."""
    run = load_if_valid(folder.path)
    if run is None:
        return (
            f"{folder.path / RUN_FILE} cannot be read, and there is no checkpoint next to it: {_START_OVER}"
        )
    if other := _other_job(_settings_of(run), config.table()):
        return f"{folder.path} contains a run of {other}: {_START_OVER}"
    state = f"has ended ({run.stopped}), and rounds = {config.rounds}" if run.end else "has not ended"
    return f"{folder.path} contains a run that {state}, and no checkpoint to continue from: {_START_OVER}"


def _newest(folder: Folder) -> Snapshot:
    path, header, arrays, errors = checkpoint.newest(folder.path, expect_state)
    if path is None:
        raise ValueError(
            f"none of the checkpoints in {folder.path} can be used; run.overwrite=true starts over:\n"
            + "\n".join(errors)
        )
    for line in errors:
        warning(line)
    return Snapshot(header, arrays, path)


def results_of(folder: Folder, config: Config) -> RunData | None:
    """Return the results of this job if the folder contains them, after any number of rounds. Rank 0."""
    run = load_if_valid(folder.path)
    return None if run is None or _differences(_settings_of(run), config.table()) else run


def final_results(folder: Folder, config: Config) -> RunData | None:
    """Return the results of this job if the folder contains its end, possibly with non-finite values. Rank 0.

    Raises:
        ConfigError: the data have changed since, and the job does not replace the run.
    """
    run = results_of(folder, config)
    return run if run is not None and has_ended(run, config) and has_same_data(run, config) else None


def has_ended(run: RunData, config: Config) -> bool:
    """Whether the results of this job are final."""
    return run.diverged or bool(final_end(run.end, run.last_round, run.config, config))


def expect_rounds(round: int, config: Config) -> None:
    """Check that a run that has completed ``round`` has not passed the last round of ``config``.

    Raises:
        ConfigError: it has.
    """
    if round > config.rounds:
        raise ConfigError(
            f"{config.run.out} has already completed round {round}: expected rounds of at least {round}, got "
            f"{config.rounds}"
        )


def final_end(end: End | None, round: int, old: dict, config: Config) -> End | None:
    """Return ``end`` if it is final under ``config``, else ``None``.

    A run that has completed its rounds, or that a callback has stopped, is continued if more rounds are set.
    A run that was ended by a stopping rule is continued if the rule has changed.

    Args:
        end: why a run with the settings ``old`` has ended after ``round``.
    """
    same_rule = old["stop"] == config.table()["stop"] and round < old["rounds"]
    if end is not None and end.kind == "callback":
        same_rule = same_rule and config.rounds <= old["rounds"]
    return end if round >= config.rounds or same_rule else None


def has_same_data(run: RunData, config: Config) -> bool:
    """Whether a run of ``config`` would read the data that ``run`` has read.

    Raises:
        ConfigError: the data differ, and ``config`` does not replace the run.
    """
    if not config.run.overwrite:
        _expect_same_data(run, config)
        return True
    return not _changed_data(run, config)


def _expect_same_data(run: RunData, config: Config) -> None:
    if change := _changed_data(run, config):
        raise ConfigError(
            f"{change}. Restore the file, choose another run.out, or start over with `mpifed run` and "
            "run.overwrite=true"
        )


def _changed_data(run: RunData, config: Config) -> str:
    """Return a sentence about the first data file that has changed since a run; "" if none has.

    The data are read as the job reads them only if the digests of the files at the stored paths do not
    suffice: a file is missing or differs, ``run.data_dir`` has changed, or a function returns the samples.
    """
    before = files_from_table(run.data)
    moved = run.config["run"].get("data_dir") != config.run.data_dir
    unchanged = (file.derived or digest_of_path(file.path) == file.digest for file in before.values())
    if not moved and all(unchanged):
        return ""
    try:
        now = read_files(config)
    except (ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]
        warning(f"cannot check whether the data of {run.folder} have changed: {reason}")
        return ""
    return data_change(digests(before), now, f"the run in {run.folder}")


def _settings_of(run: RunData) -> dict:
    return _with_group(run.config, run.layout.get("group"))


def _settings_in_header(saved: Snapshot) -> dict:
    return _with_group(saved.header["config"], saved.header.get("group"))


def _with_group(settings: dict, group: int | str | None) -> dict:
    """Replace ``group = "auto"`` in stored settings by the group size that the run has chosen."""
    automatic = settings["run"].get("group", "auto") == "auto"
    return settings | {"run": settings["run"] | ({"group": group} if group and automatic else {})}


def complete(folder: Folder, end: End) -> str:
    """Return the message that a run is complete."""
    more = "; a larger stop.seconds continues the run" if end.kind == "time" else ""
    return f"{folder.path} is complete: {end.sentence}{more}"


def _other_job(old: dict, new: dict) -> str:
    """Return the name of a stored job and the first differences to a new one; "" if they compute the same."""
    differences = _differences(old, new)
    if not differences:
        return ""
    names = [class_name(old, section) for section in ("algorithm", "problem")]
    more = len(differences) - MAX_DIFFERENCES
    listed = [*differences[:MAX_DIFFERENCES], *([f"{more} more differences"] if more > 0 else [])]
    return f"{' on '.join(names)}, another job: {'; '.join(listed)}"


def _differences(old: dict, new: dict) -> list[str]:
    """List the differences between the settings of two jobs that affect the computation, as sentences.

    Changed sources and other names come first, because they explain the differences of other settings.
    """
    before, now = (
        flatten({key: _with_numbers(part) for key, part in table.items() if key not in _IGNORED}) | numerical
        for table, numerical in zip((old, new), _numerical_settings(old, new))
    )
    different = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return changed_sources(old, new) + [
        f"{key} is {before.get(key, 'not set')} in the stored run and {now.get(key, 'not set')} in this job"
        for key in sorted(different, key=lambda key: key not in ("algorithm.name", "problem.name"))
    ]


def _with_numbers(table):
    """Replace constant schedules, as which earlier versions stored numbers, by their values."""
    if not isinstance(table, dict):
        return table
    if table.get("name") == "constant" and table.keys() == {"name", "value"}:
        return table["value"]
    return {key: _with_numbers(value) for key, value in table.items()}


def _numerical_settings(*tables: dict) -> list[dict]:
    """Select the settings in the section ``run`` that affect the numerical results, one dictionary per table.

    With the reduction ``exact`` in a table, these include the settings that affect the last digits: the
    number of threads is 1 unless set, and ``group`` only distinguishes vectorised from looped-over clients.
    An unset reduction and the group "auto" count as equal to the value in the other table.
    """
    runs = [table.get("run", {}) for table in tables]
    known = next((run["reduction"] for run in runs if run.get("reduction")), None)
    runs = [run | {"reduction": run.get("reduction") or known} for run in runs]
    names = affecting(Run, "results")
    if any(run.get("reduction") == "exact" for run in runs):
        names += affecting(Run, "digits")
        groups = [run.get("group", "auto") for run in runs]
        if "auto" in groups or len({group == 1 for group in groups}) == 1:
            names.remove("group")
    absent = {"threads": 1, **PLAIN._asdict()}
    return [{f"run.{name}": run.get(name) or absent.get(name) for name in names} for run in runs]


def _expect_output(old: str, config: Config, round: int) -> None:
    """Check that a changed output rule does not need the points of earlier rounds, which are not stored.

    Raises:
        ConfigError: it needs them.
    """
    rule = config.output_rule
    if rule not in (old, "last") and not (rule == "average" and config.algorithm.averages):
        raise ConfigError(
            f"output = {rule!r} needs the points of all rounds, but {round} rounds have been completed with "
            f"output = {old!r}, which does not store them: keep the stored value, or start over with "
            "run.overwrite=true"
        )


def _expect_reproducible(old: dict, config: Config) -> None:
    """Check that changed settings of a resumed run keep the reproducibility guarantee of ``exact``.

    Raises:
        ConfigError: the result would differ from that of an uninterrupted run.
    """
    before, now = _numerical_settings(old, config.table())
    changed = [f"{key} (stored {before[key]}, now {now[key]})" for key in now if before[key] != now[key]]
    if not changed or "run.reduction" not in now or before["run.dtype"] != now["run.dtype"]:
        return
    if now["run.reduction"] == "exact":
        was_exact = before["run.reduction"] == "exact"
        fix = "keep the stored value" if was_exact else "continue with run.reduction=fused"
        raise ConfigError(
            "run.reduction = 'exact' guarantees bitwise the result of an uninterrupted run, which depends on "
            f"{', '.join(changed)}: {fix}, or start over with run.overwrite=true"
        )
    warning("run.reduction = 'fused' from here on: the run continues without the reproducibility guarantee")
