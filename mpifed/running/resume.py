"""What a run finds in its output folder, and what follows: start, continue, be done, or refuse."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from mpifed.config.job import Config
from mpifed.config.plugins import changed_sources, expect_same_sources
from mpifed.config.tables import override
from mpifed.core.records import State
from mpifed.core.settings import flatten
from mpifed.parallel.comm import CollectiveError, SerialComm, agree, share
from mpifed.simulation.provenance import expect_same
from mpifed.simulation.simulation import NON_FINITE, Simulation
from mpifed.storage import checkpoint
from mpifed.storage.folder import Folder
from mpifed.storage.recorder import Recorder, ending

__all__ = [
    "Saved",
    "find_saved",
    "choose",
    "newest",
    "changed",
    "records",
    "sizes",
    "take_up",
    "complete",
    "is_done",
]

#: Sections that may change from one start of a job to the next: they say how and how long it runs, not what it computes.
_FREE = ("rounds", "stop", "run", "plugins")


@dataclass
class Saved:
    """A checkpoint to continue from: ``header`` is known on all ranks, ``path`` and ``arrays`` on rank 0."""

    header: dict
    path: Path | None = None
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def find_saved(comm: SerialComm, look: Callable[[], Saved | None]) -> Saved | None:
    """Let rank 0 look, and tell all ranks what it found. Collective.

    Raises:
        CollectiveError: with the text of rank 0's ValueError.
    """
    saved, error = None, None
    if comm.rank == 0:
        try:
            saved = look()
        except ValueError as fault:
            error = str(fault)
    agree(comm, error)
    header = json.loads(share(comm, json.dumps(saved.header if saved else None)))
    return saved if comm.rank == 0 or header is None else Saved(header)


def choose(folder: Folder, config: Config, resume: str) -> Saved | None:
    """Take the folder of a job that starts; what to continue from, ``None`` to start from the beginning. Rank 0.

    Raises:
        ValueError: the folder cannot be written to, is in use, or holds what this job neither continues nor may replace.
    """
    folder.open(create=True)
    path, overwrite = folder.path, config.run.overwrite
    if not folder.ours and (resume == "never" or (resume == "auto" and overwrite)):
        if folder.results() and not overwrite:
            raise ValueError(
                f"{path} holds a run already: continue it with --resume auto, choose another run.out, or set run.overwrite=true"
            )
        return None
    if not folder.checkpoints():
        if resume == "must":
            raise ValueError(f"there is no checkpoint in {path} to continue from (--resume must)")
        if folder.results():
            raise ValueError(
                f"{path} holds a run already, and no checkpoint to continue it from: choose another run.out, or set run.overwrite=true"
            )
        return None
    saved = _sound(folder)
    other = _differences(saved.header["config"], config.table())
    if other:
        raise ValueError(
            f"{path} holds a checkpoint of another job: {'; '.join(other)}. Choose another run.out, set run.overwrite=true to "
            f"start over, or change settings on the way with `mpifed resume {path} KEY=VALUE`"
        )
    _check_rounds(saved, config)
    return saved


def newest(folder: Folder) -> Saved:
    """Take the folder of a run to continue. Rank 0.

    Raises:
        ValueError: the folder cannot be written to, is in use, or holds no sound checkpoint.
    """
    if not folder.checkpoints():
        raise ValueError(f"there is no checkpoint in {folder.path}: start the job with `mpifed run`")
    folder.open(create=False)
    return _sound(folder)


def _sound(folder: Folder) -> Saved:
    path, header, arrays, complaints = checkpoint.newest(folder.path)
    if path is None:
        raise ValueError(
            f"none of the checkpoints in {folder.path} can be used; run.overwrite=true starts over:\n"
            + "\n".join(complaints)
        )
    for line in complaints:
        print(f"mpifed: warning: {line}", file=sys.stderr)
    return Saved(header, path, arrays)


def changed(comm: SerialComm, saved: Saved, folder: Folder, overrides: list[str]) -> Config:
    """The settings of a saved run with ``key=value`` changes. Collective.

    Raises:
        CollectiveError: a change asks for something that cannot be done.
    """
    config, error = None, None
    try:
        table = saved.header["config"]
        table["run"]["out"] = str(folder.path)
        for text in overrides:
            override(table, text)
        expect_same_sources(table)
        config = Config.from_table(table)
        _check_rounds(saved, config)
    except ValueError as fault:
        error = str(fault)
    agree(comm, error)
    return config


def is_done(folder: Folder, config: Config) -> bool:
    """Whether the folder holds this job's final state, or the news that it ended in non-finite values. Rank 0."""
    old, stopped = ending(folder.path)
    if stopped.startswith(NON_FINITE):
        return not _differences(old, config.table())
    path, header, _, _ = checkpoint.newest(folder.path)
    return bool(
        path and not _differences(header["config"], config.table()) and complete(Saved(header), config)
    )


def _check_rounds(saved: Saved, config: Config) -> None:
    """Raises:
    ValueError: the saved run is past the last round asked for.
    """
    if saved.header["round"] > config.rounds:
        raise ValueError(
            f"{config.run.out} is at round {saved.header['round']} already: rounds = {config.rounds} lies behind"
        )


def records(simulation: Simulation) -> dict[str, State]:
    """The records that a checkpoint holds as a whole; ``clients`` goes row by row."""
    return {
        "shared": simulation.shared,
        "coordinator": simulation.coordinator.moments,
        "output": simulation.output,
    }


def sizes(simulation: Simulation) -> dict:
    """What a checkpoint must agree on with the run that takes it up."""
    clients = [simulation.placement.clients, simulation.clients.buffer.shape[1]]
    whole = {name: state.buffer.numel() for name, state in records(simulation).items()}
    return {"dtype": simulation.config.run.dtype, **whole, "clients": clients}


def take_up(saved: Saved, simulation: Simulation, recorder: Recorder, comm: SerialComm) -> None:
    """Bring a simulation and its recorder into the state of a checkpoint that rank 0 has read. Collective.

    Raises:
        CollectiveError: the data are others, or the settings make a state of other sizes.
    """
    expect_same(saved.header["data"], simulation.problem.files)
    there, here = saved.header["sizes"], sizes(simulation)
    if there != here:
        raise CollectiveError(
            f"the checkpoint does not fit these settings: its state is {there}, theirs {here}"
        )
    dtype = np.dtype(simulation.config.run.dtype)
    for name, state in records(simulation).items():
        array = saved.arrays[name] if comm.rank == 0 else np.empty(state.buffer.numel(), dtype)
        comm.bcast_(array)
        state.buffer.copy_(torch.from_numpy(array))
    rows = np.empty(tuple(simulation.clients.buffer.shape), dtype)
    checkpoint.read_clients(saved.path, rows, comm, simulation.placement)
    simulation.clients.buffer.copy_(torch.from_numpy(rows))
    simulation.round = saved.header["round"]
    recorder.restore(saved.header, saved.arrays)


def complete(saved: Saved, config: Config) -> str:
    """Why the saved run has ended for good under ``config``, "" if it goes on.

    A run that has done all its rounds goes on when more are asked for; one that a stopping rule has ended, when the rule is
    another.
    """
    stopped, round = saved.header["stopped"], saved.header["round"]
    same_rule = saved.header["config"]["stop"] == config.table()["stop"]
    if round >= config.rounds or (same_rule and round < saved.header["config"]["rounds"]):
        return stopped
    return ""


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
