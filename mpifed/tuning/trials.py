"""What a search computes: two rounds of each method, to learn what it costs, then runs in folders."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpifed.base.errors import ConfigError
from mpifed.base.settings import suggest
from mpifed.config.grids import settings_name
from mpifed.config.job import Config
from mpifed.config.tuning import Cell
from mpifed.core.evaluation import VALIDATION, of_split
from mpifed.core.problem import Problem
from mpifed.parallel.comm import SerialComm
from mpifed.report.statistics import validation_metric
from mpifed.running.data_consistency import has_same_data
from mpifed.running.resume import has_ended, held
from mpifed.running.run import run
from mpifed.simulation.data_consistency import digests
from mpifed.simulation.simulation import NonFiniteError, Simulation
from mpifed.storage.folder import Folder
from mpifed.storage.ownership import is_own
from mpifed.storage.results import RunData, load

__all__ = ["Alone", "Asked", "Probe", "Seen", "carry_out", "discard", "place", "probe"]

#: Rounds between checkpoints of trials if the job sets none: the next rung continues from the last one.
CHECKPOINTS = 50


class Alone(SerialComm):
    """One rank of many, which computes by itself, on its own share of the node's devices and cores."""

    def __init__(self, comm: SerialComm):
        self.local_rank, self.local_size = comm.local_rank, comm.local_size


class Asked(NamedTuple):
    """A run that a search wants: values of the open settings by their dotted names, a seed, how many rounds.

    ``begins`` is false where an earlier rung has run it for fewer rounds.
    """

    settings: dict[str, Any]
    seed: int
    rounds: int
    begins: bool


class Seen(NamedTuple):
    """What a run has come to: the deciding metric, NaN where it has diverged, and its oracle calls."""

    value: float
    calls: int


@dataclass(frozen=True)
class Probe:
    """What the first rounds tell of a method under a task.

    Attributes:
        first, each: oracle calls of the start and round 1, and of a later round, with the largest whole
            numbers.
        metrics: the names, those that decide on a split of their own among them.
        maximised: those of which more is better.
        held_out: those of test samples, which must not choose.
        data: the digests of the data files, by name.
    """

    first: int
    each: int
    metrics: list[str]
    maximised: list[str]
    held_out: list[str]
    data: dict[str, str] = field(default_factory=dict)

    def calls(self, rounds: int) -> int:
        """Oracle calls of a run, about; as many at the most where every round costs the same."""
        return self.first + (rounds - 1) * self.each

    def deciding(self, metric: str | None) -> str:
        """The metric that decides.

        Raises:
            ConfigError: there is no such metric, or it is of the test data.
        """
        if not self.metrics:
            raise ConfigError("the problem has no metrics, by which settings could be chosen")
        metric = metric or self.metrics[0]
        if metric not in self.metrics:
            raise ConfigError(f"tune.metric: no metric {metric!r}: {suggest(metric, self.metrics)}")
        validated = any(name.startswith(of_split(VALIDATION, "")) for name in self.metrics)
        if metric in self.held_out and not validated:
            raise ConfigError(
                f"{metric} is a metric of the test data, which must not choose settings: set "
                "problem.validation, e.g. to 0.2, to hold out a share of the training data for that"
            )
        return validation_metric(metric, self.metrics)  # what has none is not of held-out samples


def probe(cell: Cell, comm: SerialComm) -> Probe:
    """Start the method, evaluate, and go two rounds, which end in finite values; no files are written.

    Raises:
        CollectiveError: the job cannot be set up, or all that is tried diverges at once.
    """
    *first, last = cell.space.costly()
    for settings in first:
        with contextlib.suppress(NonFiniteError):
            return _probe(cell, settings, comm)
    return _probe(cell, last, comm)


def _probe(cell: Cell, settings: dict[str, Any], comm: SerialComm) -> Probe:
    simulation = Simulation.from_settings(cell.config(settings), comm)
    with simulation.transport:
        simulation.start()
        metrics = simulation.evaluate(simulation.shared)
        simulation.step()
        first = simulation.rounds.costs.oracle_calls
        simulation.step()
    each = simulation.rounds.costs.oracle_calls - first
    return Probe(
        first,
        each,
        [*metrics],
        sorted(simulation.metrics.maximised),
        _held_out(simulation.problem, metrics),
        digests(simulation.files),
    )


def _held_out(problem: Problem, metrics: Collection[str]) -> list[str]:
    """The metrics of a problem's test samples."""
    apart = tuple(of_split(split, "") for split in ("train", "client", VALIDATION))
    own = [name for name in metrics if not name.startswith(apart)]
    return [name for name in own if name not in problem.of_training] if problem.test_rows else []


def place(out: Path, cell: Cell, settings: dict[str, Any], seed: int) -> Path:
    """The folder of a run, named by its open settings."""
    name = settings_name(settings) if settings else "fixed"
    return out / "trials" / cell.task / cell.method / name / f"seed={seed}"


def carry_out(folder: Path, cell: Cell, asked: Asked, metric: str, comm: SerialComm) -> Seen:
    """Run to a number of rounds, from where an earlier rung or an interruption has left it.

    Raises:
        Stopped, KeyboardInterrupt: a signal came.
        CollectiveError: the run cannot be carried out.
    """
    config = _config(cell.config(asked.settings, asked.seed), asked, folder)
    found = held(Folder(folder), config)
    if found is None or not _tells(found, config):
        if found and _leads_nowhere(found, config):
            config = config.model_copy(update={"run": config.run.model_copy(update={"overwrite": True})})
        with contextlib.suppress(NonFiniteError):
            run(config, comm)
        found = load(folder)
    return _seen(found, asked.rounds, metric)


def _config(config: Config, asked: Asked, folder: Path) -> Config:
    """A run with fewer rounds; steps by theorems stay those of the whole run."""
    changes = {
        "out": str(folder),
        "checkpoint_every": config.run.checkpoint_every or CHECKPOINTS,
        "keep": 1,
        "progress": False,
        "tensorboard": False,
        "overwrite": config.run.overwrite and asked.begins,
    }
    return config.model_copy(update={"rounds": asked.rounds, "run": config.run.model_copy(update=changes)})


def _tells(found: RunData, config: Config) -> bool:
    """Whether a run has been evaluated after the rounds asked for, also where a later rung has taken it
    further, all the way or not; or has ended before them. On the data as they are now.

    Raises:
        ConfigError: it has, on other data, and is not to be replaced.
    """
    further = _reached(found) > config.rounds
    told = config.rounds in found.metric_rounds if further else has_ended(found, config)
    return told and has_same_data(found, config)


def _leads_nowhere(found: RunData, config: Config) -> bool:
    """Whether a run is of no use to go on from: a search with another budget has left it further on, or
    after fewer rounds and without a checkpoint."""
    ended = found.end is not None and found.config["rounds"] < config.rounds
    return _reached(found) > config.rounds or (ended and not Folder(found.folder).checkpoints())


def _reached(found: RunData) -> int:
    return int(found.costs["round"][-1])


def _seen(found: RunData, rounds: int, metric: str) -> Seen:
    """What a run had come to after ``rounds``, however far it has gone since."""
    calls = int(found.costs["oracle_calls"][found.costs["round"] <= rounds][-1])
    values = found.metrics[metric][found.metric_rounds <= rounds]
    diverged = found.diverged and found.costs["round"][-1] <= rounds
    return Seen(float("nan") if diverged or not len(values) else float(np.float64(values[-1])), calls)


def discard(folder: Path) -> None:
    """Drop the checkpoints of a run that does not go on; its results stay."""
    for path in filter(is_own, Folder(folder).checkpoints()):
        path.unlink(missing_ok=True)
