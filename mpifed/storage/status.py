"""Where the runs in a folder stand, by their files alone: nothing is written, and no run is kept waiting."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mpifed.storage.checkpoint import newest
from mpifed.storage.folder import Holder, holder
from mpifed.storage.format import RUN_FILE
from mpifed.storage.ownership import LOCK_FILE, checkpoints, round_of
from mpifed.storage.results import Head, expect, head
from mpifed.storage.slurm_array import SCRIPT, elements, is_script

__all__ = ["Status", "is_run", "status", "survey"]

#: Bytes of a checkpoint up to which it is read, its digest compared; a larger one is known by its name alone.
READ = 16 * 2**20


@dataclass(frozen=True)
class Status:
    """How far the run in a folder has come.

    Attributes:
        state: "finished"; "running"; "running?" (it runs on another host, or has died there); "stopped" (it
            can be resumed); "failed" (it cannot, or not as it is); "damaged"; "unreadable"; "not begun".
        said: why, or what follows, in words.
        metric, validation: name and latest value of the problem's first metric, and of the same on the
            validation split.
        age: seconds since a checkpoint or the results were written; of a run that has none, since it began.
        pace: rounds per second of a running run.
        left: seconds that it takes to do all its rounds, or may still take.
        script, element: the batch script, and which element of its array is to carry the run out.
    """

    folder: Path
    state: str
    said: str = ""
    method: str = ""
    problem: str = ""
    round: int | None = None
    rounds: int | None = None
    metric: tuple[str, float] | None = None
    age: float | None = None
    pace: float | None = None
    left: float | None = None
    validation: tuple[str, float] | None = None
    script: Path | None = None
    element: int | None = None


def survey(places: Iterable[str | Path]) -> list[Status]:
    """Where the runs stand that the places are or hold, at any depth, each once; also those that have not
    begun of the job arrays there, and folders that cannot be looked into.

    Raises:
        ValueError: one of the places is no folder, or holds no run.
    """
    found: dict[Path, Status] = {}
    for place in map(Path, places):
        expect(place.is_dir(), f"a folder {place}", "a file" if place.exists() else "none")
        runs = list(_below(place))
        expect(runs, f"a run in {place} or below", "none")
        for run in runs:
            found.setdefault(run.folder.resolve(), run)
    return list(found.values())


def _below(place: Path) -> Iterator[Status]:
    closed: list[Path] = []
    walked = [
        (Path(folder), SCRIPT in files)
        for folder, _, files in os.walk(place, onerror=lambda fault: closed.append(Path(fault.filename)))
    ]
    planned = {
        run.resolve(): Status(run, "not begun", script=folder / SCRIPT, element=element)
        for folder, launched in walked
        if launched
        for element, run in elements(folder / SCRIPT)
    }
    found = sorted([*(folder for folder, _ in walked if is_run(folder)), *closed])
    for folder in found:
        plan, run = planned.pop(folder.resolve(), None), status(folder)
        yield replace(run, script=plan.script, element=plan.element) if plan else run
    yield from planned.values()
    for folder in (folder for folder, launched in walked if launched):  # a single run, or a search
        unnamed = is_script(folder / SCRIPT) and not elements(folder / SCRIPT)
        if unnamed and not any(run.is_relative_to(folder) for run in found):
            yield Status(folder, "not begun", f"{folder / SCRIPT} is launched, and has written nothing yet")


def is_run(folder: Path) -> bool:
    """Whether a run has left something in a folder, or has just taken it."""
    return bool(os.path.exists(folder / RUN_FILE) or checkpoints(folder) or holder(folder).text)


def status(folder: Path) -> Status:
    """How far the run in a folder has come. What is damaged is said, and raises nothing."""
    try:
        os.listdir(folder)
        return _status(folder)
    except OSError as fault:
        return Status(folder, "unreadable", fault.strerror or str(fault))


def _status(folder: Path) -> Status:
    held, files, (run, fault) = holder(folder), checkpoints(folder), _results(folder)
    saved, lock, results = _round(files), folder / LOCK_FILE, folder / RUN_FILE
    state, said, config = _state(folder, held, files, run, fault)
    said = "; infeasible: ".join(filter(None, [said.partition("\n")[0], run and run.infeasible]))
    config = run.config if run else config
    rounds, goes_on = config.get("rounds"), run is not None and state.startswith("running")
    return Status(
        folder,
        state,
        said,
        _name(config, "algorithm"),
        _name(config, "problem"),
        max((number for number in (saved, run and run.round) if number is not None), default=None),
        rounds if isinstance(rounds, int) else None,
        run and run.metric,
        _age([results, *files] if run or fault or files else [lock]),
        run.pace if goes_on else None,
        _left(run, _age([results, lock])) if goes_on else None,
        run and run.validation,
    )


def _state(
    folder: Path, held: Holder, files: list[Path], run: Head | None, fault: str
) -> tuple[str, str, dict]:
    """What has become of a run, why, and the settings that its checkpoint names where that is read.

    Args:
        files: its checkpoints.
        run, fault: what its results file says, or why it says nothing.
    """
    if held.holds:
        return "running", held.text, {}
    if held.holds is None:
        return "running?", f"{held.text}, unless it has died there", {}
    if run and run.end and (not files or _round(files) <= run.round):
        return "failed" if run.end.kind == "diverged" else "finished", run.end.sentence, {}
    if not files:
        return ("damaged", fault, {}) if fault else ("failed", "it ended before its first checkpoint", {})
    round, config, complaints = _resumable(files)
    if round is None:
        return "damaged", complaints[0], {}
    way = f"`mpifed resume {shlex.quote(str(folder))}` goes on from round {round}"
    return "stopped", "; ".join([way, *complaints, *([fault] if fault else [])]), config


def _resumable(files: list[Path]) -> tuple[int | None, dict, list[str]]:
    """The round from which a run is resumed, ``None`` for nowhere; its settings, where they are read; what is
    wrong with newer checkpoints.
    """
    if files[-1].stat().st_size > READ:
        return _round(files), {}, []
    path, header, _, complaints = newest(files[-1].parent, _expect_settings)
    return _round([path] if path else []), header.get("config", {}), complaints


def _expect_settings(header, *_) -> None:
    found = isinstance(header, dict) and header.get("config")
    expect(isinstance(found, dict), "settings in its header", header)


def _results(folder: Path) -> tuple[Head | None, str]:
    """What the results file says, or why it says nothing: "" where there is none."""
    if not os.path.lexists(folder / RUN_FILE):
        return None, ""
    try:
        return head(folder), ""
    except ValueError as fault:
        return None, f"{RUN_FILE} cannot be read: {fault.__cause__ or fault}"


def _round(files: list[Path]) -> int | None:
    """The round of the last of some checkpoints."""
    return round_of(files[-1]) if files else None


def _name(config: dict, section: str) -> str:
    """A method's or problem's name, of a plugin its class."""
    table = config.get(section)
    name = table.get("name") if isinstance(table, dict) else None
    return name.rpartition(":")[2] if isinstance(name, str) else ""


def _age(files: Iterable[Path]) -> float | None:
    """Seconds since the latest of some files was written, ``None`` where there is none."""
    times = []
    for file in files:
        with contextlib.suppress(OSError):  # a run that goes on drops its oldest checkpoint
            times.append(os.path.getmtime(file))
    return max(0.0, time.time() - max(times)) if times else None


def _left(run: Head, since: float | None) -> float | None:
    """Seconds to the end of a run, ``since`` seconds after it has begun or last written its results."""
    rounds, stop = run.config.get("rounds"), run.config.get("stop")
    budget = stop.get("seconds") if isinstance(stop, dict) else None
    ends = [(rounds - run.round) / run.pace] if run.pace and isinstance(rounds, int) else []
    ends += [budget - run.seconds] if isinstance(budget, int | float) else []
    return max(0.0, min(ends) - (since or 0.0)) if ends else None
