"""The progress of the runs in a folder, read from their files without writing or delaying a run."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mpifed.base.data_files import walk
from mpifed.core.metrics import validation_column
from mpifed.storage.checkpoint import newest
from mpifed.storage.files import (
    LOCK_FILE,
    RUN_FILE,
    SCRIPT,
    SEARCH_RESULT,
    TRIALS,
    TRIED,
    assigned_runs,
    checkpoints,
    is_script,
    open_file,
    parts_of_checkpoints,
    round_of,
)
from mpifed.storage.folder import Holder, holder
from mpifed.storage.results import RunData, class_name, expect, load

__all__ = ["Status", "is_run", "status", "find_statuses", "with_searches"]

#: Maximum size in bytes of a checkpoint and all parts that is read. Larger ones are identified by name only.
MAX_READ = 16 * 2**20
#: Why a run without results and checkpoints cannot be continued.
_NO_CHECKPOINT = "it ended before its first checkpoint, or had run.checkpoint_every = 0"
#: Number of rounds at the end of a history that determine the speed of a run.
RECENT = 100


@dataclass(frozen=True)
class Status:
    """The progress of the run in a folder.

    Attributes:
        state: "finished"; "running"; "running?" (it runs on another host, or was killed there); "stopped" (it
            can be resumed); "failed" (it cannot be resumed with the same settings); "damaged"; "unreadable";
            "not begun".
        reason: explanation of the state, or the next step.
        metric, validation: name and latest value of the problem's first metric, on the test and on the
            validation split.
        best: round and value of this metric's best evaluation, see :meth:`RunData.best_evaluation`.
        age: seconds since a checkpoint or the results were written; without these, since the run started.
        pace: rounds per second of a running run.
        left: estimated seconds until a running run ends.
        trials: number of runs of a search.
        script, element: the batch script, and the element of its job array that executes the run.
    """

    folder: Path
    state: str
    reason: str = ""
    method: str = ""
    problem: str = ""
    round: int | None = None
    rounds: int | None = None
    metric: tuple[str, float] | None = None
    age: float | None = None
    pace: float | None = None
    left: float | None = None
    validation: tuple[str, float] | None = None
    best: tuple[int, float] | None = None
    script: Path | None = None
    element: int | None = None
    trials: int = 0


def find_statuses(places: Iterable[str | Path]) -> list[Status]:
    """Return the status of each run in some folders.

    Unreadable folders and runs of job arrays that have not begun are included.

    Args:
        places: folders of runs, or folders that contain runs at any depth.

    Raises:
        ValueError: a path is not a folder, or the folder contains no run.
    """
    by_folder: dict[Path, Status] = {}
    for place in map(Path, places):
        expect(place.is_dir(), f"a folder {place}", "a file" if place.exists() else "none")
        runs = list(_statuses_below(place))
        expect(runs, f"a run in {place} or below", "none")
        for run in runs:
            by_folder.setdefault(run.folder.resolve(), run)
    return list(by_folder.values())


def _statuses_below(place: Path) -> Iterator[Status]:
    unreadable: list[Path] = []

    def note(error: OSError) -> None:
        if error.errno != errno.ELOOP:  # the runs are found without the link, too
            unreadable.append(Path(error.filename))

    visited = [(folder, SCRIPT in files) for folder, _, files in walk(place, note)]
    planned = {
        run.resolve(): Status(run, "not begun", script=folder / SCRIPT, element=element)
        for folder, launched in visited
        if launched
        for element, run in assigned_runs(folder / SCRIPT)
    }
    present = sorted([*(folder for folder, _ in visited if is_run(folder)), *unreadable])
    for folder in present:
        plan, run = planned.pop(folder.resolve(), None), status(folder)
        yield replace(run, script=plan.script, element=plan.element) if plan else run
    yield from planned.values()
    for folder in (folder for folder, launched in visited if launched):  # a single run, or a search
        unnamed = is_script(folder / SCRIPT) and not assigned_runs(folder / SCRIPT)
        if unnamed and not any(run.is_relative_to(folder) for run in present):
            yield Status(folder, "not begun", f"{folder / SCRIPT} has not written anything yet")


def with_searches(runs: Iterable[Status]) -> list[Status]:
    """Return the runs with the trials of each search of `mpifed tune` as one entry."""
    searches: dict[Path, list[Status]] = {}
    for run in runs:
        searches.setdefault(run.folder.parents[1] if _is_trial(run.folder) else run.folder, []).append(run)
    return [own[0] if own[0].folder == folder else _search(folder, own) for folder, own in searches.items()]


def _is_trial(run: Path) -> bool:
    return any(folder.name == TRIALS and (folder.parent / TRIED).is_file() for folder in run.parents)


def _search(folder: Path, trials: list[Status]) -> Status:
    """Return the status of the search for one method: the value of its best settings, and its trials."""
    counts = Counter(trial.state for trial in trials)
    active = next((state for state in ("running", "running?") if counts[state]), "")
    metric = None
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        with open_file(folder / SEARCH_RESULT) as file:
            result = json.load(file)
        metric = str(result["metric"]), float(result["value"])
    return Status(
        folder,
        active or ("finished" if metric else "stopped"),
        f"{len(trials)} trials: {', '.join(f'{count} {state}' for state, count in counts.items())}",
        method=trials[0].method,
        problem=trials[0].problem,
        metric=metric,
        age=min((trial.age for trial in trials if trial.age is not None), default=None),
        trials=len(trials),
    )


def is_run(folder: Path) -> bool:
    """Whether a folder contains files of a run, or a run is starting in it."""
    return bool(os.path.exists(folder / RUN_FILE) or checkpoints(folder) or holder(folder).text)


def status(folder: Path) -> Status:
    """Return the status of the run in a folder. Damaged files are reported in it; no error is raised."""
    try:
        os.listdir(folder)
        return _status(folder)
    except OSError as error:
        return Status(folder, "unreadable", error.strerror or str(error))


def _status(folder: Path) -> Status:
    lock_holder, files, (run, error) = holder(folder), checkpoints(folder), _results(folder)
    lock, results = folder / LOCK_FILE, folder / RUN_FILE
    state, reason, config = _state(folder, lock_holder, files, run, error)
    reason = "; infeasible: ".join(filter(None, [reason.partition("\n")[0], run and run.infeasible]))
    config = run.config if run else config
    rounds, running = config.get("rounds"), run is not None and state.startswith("running")
    metric = next(iter(run.metrics), "") if run else ""
    done, pace = [_round(files), run.last_round if run else None], _pace(run) if running else None
    return Status(
        folder,
        state,
        reason,
        method=class_name(config, "algorithm"),
        problem=class_name(config, "problem"),
        round=max((number for number in done if number is not None), default=None),
        rounds=rounds if isinstance(rounds, int) else None,
        metric=_latest(run, metric),
        validation=_latest(run, validation_column(metric, run.columns) if run else None),
        best=_best(run, metric),
        age=_age([results, *files] if run or error or files else [lock]),
        pace=pace,
        left=_left(run, pace, _age([results, lock])) if running else None,
    )


def _state(
    folder: Path, lock_holder: Holder, files: list[Path], run: RunData | None, error: str
) -> tuple[str, str, dict]:
    """Return the state of a run, the reason, and the settings in its checkpoint if that is read.

    Args:
        files: checkpoints of the run.
        run, error: content of the results file, or why it cannot be read.
    """
    if lock_holder.holds:
        unknown = "" if run or files else "; its round is unknown before a checkpoint"
        return "running", lock_holder.text + unknown, {}
    if lock_holder.holds is None:
        return "running?", f"{lock_holder.text}, unless it was killed", {}
    if run and run.end and (not files or _round(files) <= run.last_round):
        return "failed" if run.diverged else "finished", run.stopped, {}
    readable = all(os.access(path, os.R_OK) for path in (folder / RUN_FILE, *files) if path.exists())
    invalid = "damaged" if readable else "unreadable"
    if not files:
        return (invalid, error, {}) if error else ("failed", _NO_CHECKPOINT, {})
    round, config, complaints = _resumable(files)
    if round is None:
        return invalid, complaints[0], {}
    hint = f"`mpifed resume {shlex.quote(str(folder))}` continues from round {round}"
    return "stopped", "; ".join([hint, *complaints, *([error] if error else [])]), config


def _resumable(files: list[Path]) -> tuple[int | None, dict, list[str]]:
    """Return the round from which a run can be resumed, its settings, and errors of newer checkpoints."""
    if sum(path.stat().st_size for path in [files[-1], *parts_of_checkpoints(files[-1].parent)]) > MAX_READ:
        return _round(files), {}, []
    path, header, _, complaints = newest(files[-1].parent, _expect_settings)
    return _round([path] if path else []), header.get("config", {}), complaints


def _expect_settings(header, *_) -> None:
    settings = isinstance(header, dict) and header.get("config")
    expect(isinstance(settings, dict), "settings in its header", header)


def _results(folder: Path) -> tuple[RunData | None, str]:
    """Return the content of the results file, or why it cannot be read; ``None, ""`` if there is none."""
    if not os.path.lexists(folder / RUN_FILE):
        return None, ""
    try:
        return load(folder), ""
    except ValueError as error:
        return None, f"{RUN_FILE} cannot be read: {error.__cause__ or error}"


def _round(files: list[Path]) -> int | None:
    return round_of(files[-1]) if files else None


def _latest(run: RunData | None, metric: str | None) -> tuple[str, float] | None:
    values = run.metrics[metric] if run and metric else ()
    return (metric, float(values[-1])) if metric and len(values) else None


def _best(run: RunData | None, metric: str) -> tuple[int, float] | None:
    index = run.best_evaluation(metric) if run and metric else None
    return None if index is None else (int(run.metric_rounds[index]), float(run.metrics[metric][index]))


def _pace(run: RunData) -> float | None:
    """Return the rounds per second of the last rounds."""
    rounds, seconds = (run.costs[name][-RECENT - 1 :] for name in ("round", "seconds"))
    done, took = rounds[-1] - rounds[0], seconds[-1] - seconds[0]
    return float(done / took) if done > 0 and took > 0 else None


def _left(run: RunData, pace: float | None, since: float | None) -> float | None:
    """Estimate the seconds until a run ends, ``since`` seconds after it started or last wrote results."""
    budget = (run.config.get("stop") or {}).get("seconds")
    ends = [(run.config["rounds"] - run.last_round) / pace] if pace else []
    ends += [budget - float(run.costs["seconds"][-1])] if isinstance(budget, int | float) else []
    return max(0.0, min(ends) - (since or 0.0)) if ends else None


def _age(files: Iterable[Path]) -> float | None:
    """Return the seconds since the latest of the files was written; ``None`` if there is none."""
    times = []
    for file in files:
        with contextlib.suppress(OSError):  # a running run removes its oldest checkpoint
            times.append(os.path.getmtime(file))
    return max(0.0, time.time() - max(times)) if times else None
