"""What a run finds in its output folder, and what follows: start, continue, be done, or refuse."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from mpifed.config.job import Config
from mpifed.config.plugins import changed_sources
from mpifed.core.errors import ConfigError
from mpifed.core.settings import flatten
from mpifed.parallel.comm import SerialComm, share, together
from mpifed.storage import checkpoint
from mpifed.storage.folder import Folder
from mpifed.storage.format import End
from mpifed.storage.recorder import ending
from mpifed.storage.snapshot import Snapshot

__all__ = ["find_saved", "choose", "newest", "check_rounds", "complete", "is_done"]

#: Sections that may change between starts of a job: how and how long it runs, not what it computes.
_FREE = ("rounds", "stop", "run", "plugins")


def find_saved(comm: SerialComm, look: Callable[[], Snapshot | None]) -> Snapshot | None:
    """Let rank 0 look, and tell all ranks what it found. Collective.

    Raises:
        CollectiveError: with the text of rank 0's ValueError.
    """
    saved = None
    with together(comm, ValueError):
        if comm.rank == 0:
            saved = look()
    header = json.loads(share(comm, json.dumps(saved.header if saved else None)))
    return saved if comm.rank == 0 or header is None else Snapshot(header)


def choose(folder: Folder, config: Config, resume: str) -> Snapshot | None:
    """Take the folder of a job that starts; what to continue from, ``None`` for a start. Rank 0.

    Raises:
        ValueError: the folder cannot be written to, is in use, or holds what this job neither continues nor
            may replace.
    """
    folder.open(create=True)
    path, overwrite = folder.path, config.run.overwrite
    if not folder.ours and (resume == "never" or (resume == "auto" and overwrite)):
        if folder.results() and not overwrite:
            raise ValueError(
                f"{path} holds a run already: continue it with --resume auto, choose another run.out, or set "
                "run.overwrite=true"
            )
        return None
    if not folder.checkpoints():
        if resume == "must":
            raise ValueError(f"there is no checkpoint in {path} to continue from (--resume must)")
        if folder.results():
            raise ValueError(
                f"{path} holds a run already, and no checkpoint to continue it from: choose another run.out, "
                "or set run.overwrite=true"
            )
        return None
    saved = _sound(folder)
    other = _differences(saved.header["config"], config.table())
    if other:
        raise ValueError(
            f"{path} holds a checkpoint of another job: {'; '.join(other)}. Choose another run.out, set "
            "run.overwrite=true to start over, or change settings on the way with "
            f"`mpifed resume {path} KEY=VALUE`"
        )
    check_rounds(saved, config)
    return saved


def newest(folder: Folder) -> Snapshot:
    """Take the folder of a run to continue. Rank 0.

    Raises:
        ValueError: the folder cannot be written to, is in use, or holds no sound checkpoint.
    """
    if not folder.checkpoints():
        raise ValueError(f"there is no checkpoint in {folder.path}: start the job with `mpifed run`")
    folder.open(create=False)
    return _sound(folder)


def _sound(folder: Folder) -> Snapshot:
    path, header, arrays, complaints = checkpoint.newest(folder.path)
    if path is None:
        raise ValueError(
            f"none of the checkpoints in {folder.path} can be used; run.overwrite=true starts over:\n"
            + "\n".join(complaints)
        )
    for line in complaints:
        print(f"mpifed: warning: {line}", file=sys.stderr)
    return Snapshot(header, arrays, path)


def is_done(folder: Folder, config: Config) -> bool:
    """Whether the folder holds this job's end, non-finite values among the reasons. Rank 0."""
    old, end = ending(folder.path)
    if end is not None and end.kind == "diverged":
        return not _differences(old, config.table())
    path, header, _, _ = checkpoint.newest(folder.path)
    return bool(
        path and not _differences(header["config"], config.table()) and complete(Snapshot(header), config)
    )


def check_rounds(saved: Snapshot, config: Config) -> None:
    """Raises:
    ConfigError: the saved run is past the last round asked for.
    """
    if saved.round > config.rounds:
        raise ConfigError(
            f"{config.run.out} is at round {saved.round} already: rounds = {config.rounds} lies behind"
        )


def complete(saved: Snapshot, config: Config) -> End | None:
    """Why the saved run has ended for good under ``config``, ``None`` if it goes on.

    A run that has done all its rounds goes on when more are asked for; one that a stopping rule has ended,
    when the rule is another.
    """
    old = saved.header["config"]
    same_rule = old["stop"] == config.table()["stop"]
    return saved.end if saved.round >= config.rounds or (same_rule and saved.round < old["rounds"]) else None


def _differences(old: dict, new: dict) -> list[str]:
    """What two jobs' settings disagree on, but for how and how long they run."""
    flat = [
        flatten(
            {key: value for key, value in table.items() if key not in _FREE}
            | {"run.dtype": table["run"]["dtype"]}
        )
        for table in (old, new)
    ]
    keys = dict.fromkeys([*flat[0], *flat[1]])
    return [
        f"{key} is {flat[0].get(key, 'not set')} there and {flat[1].get(key, 'not set')} here"
        for key in keys
        if flat[0].get(key) != flat[1].get(key)
    ] + changed_sources(old, new)
