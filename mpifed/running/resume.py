"""What a run finds in its output folder, and what follows: start, continue, be done, or refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from mpifed.base.errors import ConfigError
from mpifed.base.log import warning
from mpifed.base.settings import flatten
from mpifed.config.job import Config
from mpifed.config.plugins import changed_sources
from mpifed.core.autodiff import PLAIN, Evaluation
from mpifed.parallel.comm import SerialComm, broadcast_text, collective_errors
from mpifed.running.checkpointing import Snapshot, expect_state, writer
from mpifed.running.data_consistency import expect_same_data, has_same_data
from mpifed.running.result import Result, everywhere, load
from mpifed.storage import checkpoint
from mpifed.storage.folder import Folder
from mpifed.storage.format import RUN_FILE, End
from mpifed.storage.results import RunData, sound

__all__ = [
    "Stored",
    "find_saved",
    "find_settings",
    "choose",
    "go_on",
    "check_rounds",
    "complete",
    "has_ended",
    "held",
    "is_done",
]

#: Sections that may change between starts of a job: how and how long it runs, not what it computes.
_FREE = ("rounds", "stop", "run", "plugins")


def find_saved(comm: SerialComm, look: Callable[[], Snapshot | Result | None]) -> Snapshot | Result | None:
    """Let rank 0 look, and tell all ranks what it found. Collective.

    Raises:
        CollectiveError: with the text of rank 0's ValueError.
    """
    found = None
    with collective_errors(comm, ValueError):
        if comm.rank == 0:
            found = look()
    if broadcast_text(comm, "complete" if isinstance(found, Result) else ""):
        return everywhere(found, comm)
    header = json.loads(broadcast_text(comm, json.dumps(found.header if found else None)))
    return found if comm.rank == 0 or header is None else Snapshot(header)


class Stored(NamedTuple):
    """The settings of a run as a file has them, and which version has written it."""

    settings: dict
    writer: str


def find_settings(comm: SerialComm, folder: Folder) -> Stored:
    """The settings of the run in a folder, which rank 0 reads. Collective.

    Those that it has ended with, else those of its newest checkpoint; after non-finite values the latter,
    from which other settings may lead elsewhere.

    Raises:
        CollectiveError: there is no run to continue.
    """
    found = None
    with collective_errors(comm, ValueError):
        if comm.rank == 0:
            found = _settings_in(folder)
    return Stored(*json.loads(broadcast_text(comm, json.dumps(found))))


def _settings_in(folder: Folder) -> Stored:
    run, names = sound(folder.path), [path.stem for path in folder.checkpoints()]
    ended = run.costs["round"][-1] if run and run.end and not run.diverged else -1
    if names and not names[-1] <= f"checkpoint-{ended:08d}":
        header = _sound(folder).header
        return Stored(header["config"], writer(header))
    if run and run.end:
        return Stored(run.config, writer({"versions": run.versions}))
    what = f", nor a sound {RUN_FILE} of a run that has ended" if folder.results() else ""
    raise ValueError(f"there is no checkpoint in {folder.path}{what}: start the job with `mpifed run`")


def choose(folder: Folder, config: Config, resume: str) -> Snapshot | Result | None:
    """Take the folder of a job that starts; what to continue from, the result of a job that is complete, or
    ``None`` for a start. Rank 0.

    Raises:
        ValueError: the folder cannot be written to, is in use, or holds what this job neither continues nor
            may replace.
    """
    folder.open(create=True)
    path, overwrite = folder.path, config.run.overwrite
    if resume == "never" or (resume == "auto" and overwrite):
        if folder.results() and not overwrite:
            raise ValueError(
                f"{path} holds a run already: continue it with --resume auto, choose another run.out, or set "
                "run.overwrite=true"
            )
        return None
    stored = _stored(folder, config)
    if stored:
        return stored
    if not folder.checkpoints():
        if folder.results():
            raise ValueError(_no_way_on(folder, config))
        if resume == "must":
            raise ValueError(f"there is no checkpoint in {path} to continue from (--resume must)")
        return None
    saved = _sound(folder)
    other = _differences(_chosen(saved.header), config.table())
    if other:
        raise ValueError(
            f"{path} holds a checkpoint of another job: {'; '.join(other)}. Choose another run.out, set "
            "run.overwrite=true to start over, or change settings on the way with "
            f"`mpifed resume {path} KEY=VALUE`"
        )
    check_rounds(saved.round, config)
    return saved


def go_on(folder: Folder, config: Config) -> Snapshot | Result:
    """Take the folder of a run to continue under ``config``. Rank 0.

    Raises:
        ValueError: the folder cannot be written to, is in use, or holds no sound checkpoint, or one that
            ``exact`` does not go on from.
    """
    folder.open(create=False)
    stored = _stored(folder, config)
    if stored:
        return stored
    if not folder.checkpoints():
        raise ValueError(_no_way_on(folder, config))
    saved = _sound(folder)
    check_rounds(saved.round, config)
    _expect_bits(_chosen(saved.header), config)
    return saved


def _stored(folder: Folder, config: Config) -> Result | None:
    """The result of this job, where the results file says that it is complete.

    Non-finite values end a run that has a checkpoint only until it is started again.
    """
    run = held(folder, config)
    if run is None or run.end is None:
        return None
    if run.diverged:
        done = not folder.checkpoints()
    else:
        round = int(run.costs["round"][-1])
        check_rounds(round, config)
        done = complete(run.end, round, run.config, config) is not None
    if not done:
        return None
    expect_same_data(run, config)
    return load(folder.path)


def _no_way_on(folder: Folder, config: Config) -> str:
    """Why a folder with results and without a checkpoint cannot be gone on with."""
    run, ways = sound(folder.path), "choose another run.out, or set run.overwrite=true to start over"
    if run is None:
        return f"{folder.path / RUN_FILE} cannot be read, and there is no checkpoint beside it: {ways}"
    other = _differences(_settings_of(run), config.table())
    if other:
        return f"{folder.path} holds a run of another job: {'; '.join(other)}: {ways}"
    how = f"has ended ({run.stopped}), and rounds = {config.rounds}" if run.end else "has not ended"
    return f"{folder.path} holds a run already, and no checkpoint to continue it from; it {how}: {ways}"


def _sound(folder: Folder) -> Snapshot:
    path, header, arrays, complaints = checkpoint.newest(folder.path, expect_state)
    if path is None:
        raise ValueError(
            f"none of the checkpoints in {folder.path} can be used; run.overwrite=true starts over:\n"
            + "\n".join(complaints)
        )
    for line in complaints:
        warning(line)
    return Snapshot(header, arrays, path)


def held(folder: Folder, config: Config) -> RunData | None:
    """The results of this job that the folder holds, after however many rounds. Rank 0."""
    run = sound(folder.path)
    return None if run is None or _differences(_settings_of(run), config.table()) else run


def is_done(folder: Folder, config: Config) -> bool:
    """Whether the folder holds this job's end, non-finite values among the reasons. Rank 0.

    Raises:
        ConfigError: it does, of data that have changed since, and the job does not replace it.
    """
    run = held(folder, config)
    return run is not None and has_ended(run, config) and has_same_data(run, config)


def has_ended(run: RunData, config: Config) -> bool:
    """Whether the results of this job are those of its end."""
    if run.end is None:
        return False
    return run.diverged or bool(complete(run.end, int(run.costs["round"][-1]), run.config, config))


def check_rounds(round: int, config: Config) -> None:
    """Raises:
    ConfigError: a run after ``round`` is past the last round asked for.
    """
    if round > config.rounds:
        raise ConfigError(
            f"{config.run.out} is at round {round} already: rounds = {config.rounds} lies behind"
        )


def complete(end: End | None, round: int, old: dict, config: Config) -> End | None:
    """``end`` where it ends the run for good under ``config``, else ``None``.

    A run that has completed its rounds is continued if more rounds are set; a run that a stopping rule has
    ended is continued if the rule has changed.

    Args:
        end: why a run of the settings ``old`` has ended after ``round``.
    """
    same_rule = old["stop"] == config.table()["stop"]
    return end if round >= config.rounds or (same_rule and round < old["rounds"]) else None


def _chosen(header: dict) -> dict:
    """The settings of a checkpoint, with the size of groups that the run has chosen."""
    return _with_group(header["config"], header.get("group"))


def _settings_of(run: RunData) -> dict:
    return _with_group(run.config, run.layout.get("group"))


def _with_group(settings: dict, group: int | str | None) -> dict:
    return settings | {"run": settings["run"] | ({"group": group} if group else {})}


def _differences(old: dict, new: dict) -> list[str]:
    """What two jobs' settings disagree on, but for how and how long they run."""
    flat = [
        flatten({key: value for key, value in table.items() if key not in _FREE}) | bits
        for table, bits in zip((old, new), _bits(old, new))
    ]
    keys = dict.fromkeys([*flat[0], *flat[1]])
    return [
        f"{key} is {flat[0].get(key, 'not set')} there and {flat[1].get(key, 'not set')} here"
        for key in keys
        if flat[0].get(key) != flat[1].get(key)
    ] + changed_sources(old, new)


def _bits(*tables: dict) -> list[dict]:
    """Of jobs' settings, what bits depend on of how they run; without ``exact`` in one how functions are
    evaluated alone.

    ``exact`` without a number of threads takes one. Clients one after another have other bits than clients
    together; "auto" is what it was before, and so is a reduction that is left out.
    """
    runs = [table.get("run", {}) for table in tables]
    known = next((run["reduction"] for run in runs if run.get("reduction")), None)
    runs = [run | {"reduction": run.get("reduction") or known} for run in runs]
    names = ["dtype", *Evaluation._fields]
    if any(run.get("reduction") == "exact" for run in runs):
        names += ["reduction", "threads"]
        groups = [run.get("group", "auto") for run in runs]
        names += ["group"] if "auto" not in groups and len({group == 1 for group in groups}) > 1 else []
    absent = {"threads": 1, **PLAIN._asdict()}
    return [{f"run.{name}": run.get(name) or absent.get(name) for name in names} for run in runs]


def _expect_bits(old: dict, config: Config) -> None:
    """Check that changed settings of a resumed run keep the guarantee of ``exact``.

    Raises:
        ConfigError: it is to end in bits that are not those of a run in one go.
    """
    new = config.table()
    before, now = _bits(old, new)
    changed = [f"{key} ({before[key]} there, {now[key]} here)" for key in now if before[key] != now[key]]
    if not changed or "run.reduction" not in now or before["run.dtype"] != now["run.dtype"]:
        return
    if now["run.reduction"] == "exact":
        way = "leave it as it was" if before["run.reduction"] == "exact" else "go on with run.reduction=fused"
        raise ConfigError(
            "run.reduction = 'exact' promises the bits of a run in one go, which depend on "
            f"{', '.join(changed)}: {way}, or start over with run.overwrite=true"
        )
    warning("run.reduction = 'fused' from here on: the bits are no longer those of every layout")
