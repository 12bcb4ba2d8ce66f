"""The computations of a search: the preview, which measures the cost of a method, and the trial runs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mpifed.base.errors import ConfigError
from mpifed.base.settings import suggest
from mpifed.config.grids import settings_name
from mpifed.config.job import Config
from mpifed.config.tuning import Study
from mpifed.core.metrics import PERSONAL, VALIDATION, Column, validation_column
from mpifed.parallel.comm import SerialComm
from mpifed.running.resume import has_ended, has_same_data, results_of
from mpifed.running.run import run
from mpifed.simulation.data_agreement import digests
from mpifed.simulation.simulation import NonFiniteError, Simulation
from mpifed.storage.files import TRIALS, is_own, parts_of_checkpoints
from mpifed.storage.folder import Folder
from mpifed.storage.results import RunData, load

__all__ = [
    "IndependentComm", "TrialOutcome", "Preview", "Request", "delete_checkpoints", "preview", "run_trial",
    "trial_folder",
]  # fmt: skip


class IndependentComm(SerialComm):
    """A rank that computes independently of the others, on its share of the node's devices and cores."""

    def __init__(self, comm: SerialComm):
        self.local_rank, self.local_size = comm.local_rank, comm.local_size


class Request(NamedTuple):
    """A run that a search requests.

    Attributes:
        settings: values of the open settings by dotted name.
        seed, rounds: seed and number of rounds.
        is_new: whether no earlier rung has run these settings with this seed.
    """

    settings: dict[str, Any]
    seed: int
    rounds: int
    is_new: bool


class TrialOutcome(NamedTuple):
    """The outcome of a run: the selection metric and its oracle calls.

    The metric is NaN if the run has diverged or has left the problem's sets: an infeasible point may have a
    better value than every solution.
    """

    value: float
    calls: int


@dataclass(frozen=True)
class Preview:
    """Costs and metrics of a method for a task, measured in two rounds.

    Attributes:
        first_calls: oracle calls of the start and round 1, with the largest integer settings.
        later_calls: oracle calls of every later round.
        columns: columns of the history by name.
        start: values of the metrics at the starting point of the first seed.
        data: digests of the data files by name.
    """

    first_calls: int
    later_calls: int
    columns: dict[str, Column]
    start: dict[str, float] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Preview:
        """Read a preview from the JSON text of its fields."""
        return cls(**table | {"columns": {name: Column(*parts) for name, parts in table["columns"].items()}})

    def calls(self, rounds: int) -> int:
        """Return the estimated oracle calls of a run; an upper bound if every round costs the same."""
        return self.first_calls + (rounds - 1) * self.later_calls

    def selection_metric(self, metric: str | None) -> str:
        """Return the name of the metric that selects settings, on the validation split if there is one.

        Raises:
            ConfigError: there is no such metric, or it is one of the test data.
        """
        if not self.columns:
            raise ConfigError("the problem has no metrics, so settings cannot be selected")
        metric = metric or next(iter(self.columns))
        if metric not in self.columns:
            raise ConfigError(f"tune.metric: no metric {metric!r}: {suggest(metric, self.columns)}")
        validated = any(column.split == VALIDATION for column in self.columns.values())
        if self.columns[metric].split in ("test", PERSONAL) and not validated:
            raise ConfigError(
                f"{metric} is a metric of the test data, which must not select settings: set "
                "problem.validation, e.g. to 0.2, to hold out a fraction of the training data; a "
                "user-defined problem defines tested_on, or lists metrics without test data in of_training"
            )
        # A metric without a validation version uses no held-out samples.
        return validation_column(metric, self.columns) or metric


def preview(study: Study, comm: SerialComm) -> Preview:
    """Start the method, evaluate the metrics and compute two rounds, without writing files.

    Raises:
        CollectiveError: the job cannot be set up.
        NonFiniteError: the method diverges within two rounds with all settings that are tried.
    """
    *first, last = study.space.costly_candidates()
    for settings in first:
        with contextlib.suppress(NonFiniteError):
            return _preview(study, settings, comm)
    return _preview(study, last, comm)


def _preview(study: Study, settings: dict[str, Any], comm: SerialComm) -> Preview:
    simulation = Simulation.from_settings(study.config(settings), comm)
    with simulation:
        simulation.start()
        start = simulation.evaluate()
        simulation.step()
        first_calls = simulation.costs.oracle_calls
        simulation.step()
    return Preview(
        first_calls,
        simulation.costs.oracle_calls - first_calls,
        simulation.columns,
        start,
        digests(simulation.files),
    )


def trial_folder(out: Path, study: Study, settings: dict[str, Any], seed: int) -> Path:
    """Return the folder of a run, named by its open settings."""
    name = settings_name(settings) if settings else "fixed"
    return out / TRIALS / study.task / study.method / name / f"seed={seed}"


def run_trial(folder: Path, study: Study, request: Request, metric: str, comm: SerialComm) -> TrialOutcome:
    """Run to the requested number of rounds, resuming an earlier rung or an interrupted run.

    Raises:
        Stopped, KeyboardInterrupt: a signal arrived.
        CollectiveError: the run cannot be executed.
    """
    config = _config(study.config(request.settings, request.seed), request, folder)
    stored = results_of(Folder(folder), config)
    if stored is None or not _has_outcome(stored, config):
        if stored and _cannot_be_resumed(stored, config):
            config = config.model_copy(update={"run": config.run.model_copy(update={"overwrite": True})})
        with contextlib.suppress(NonFiniteError):
            run(config, comm)
        stored = load(folder)
    return _outcome(stored, request.rounds, metric)


def _config(config: Config, request: Request, folder: Path) -> Config:
    """Return the configuration with the requested rounds; steps of theorems remain those of the full run."""
    changes = {
        "out": str(folder),
        "checkpoint_every": config.run.checkpoint_every or None,  # the next rung resumes from a checkpoint
        "keep": 1,
        "progress": False,
        "tensorboard": False,
        "overwrite": config.run.overwrite and request.is_new,
    }
    return config.model_copy(update={"rounds": request.rounds, "run": config.run.model_copy(update=changes)})


def _has_outcome(stored: RunData, config: Config) -> bool:
    """Return whether a run has ended or has been evaluated after the requested rounds, on the current data.

    Raises:
        ConfigError: it has, but on other data, and may not be replaced.
    """
    further = stored.last_round > config.rounds  # because of a later rung, which may be unfinished
    known = config.rounds in stored.metric_rounds if further else has_ended(stored, config)
    return known and has_same_data(stored, config)


def _cannot_be_resumed(stored: RunData, config: Config) -> bool:
    """Return whether a stored run, for example of a search with another budget, must be started over.

    It has passed the requested rounds, or has ended earlier and has no checkpoint.
    """
    ended = stored.end is not None and stored.config["rounds"] < config.rounds
    return stored.last_round > config.rounds or (ended and not Folder(stored.folder).checkpoints())


def _outcome(stored: RunData, rounds: int, metric: str) -> TrialOutcome:
    """Return the outcome of a run after ``rounds``; later rounds are ignored."""
    calls = int(stored.costs["oracle_calls"][stored.costs["round"] <= rounds][-1])
    values = stored.metrics[metric][stored.metric_rounds <= rounds]
    failed = (stored.diverged and stored.last_round <= rounds) or stored.infeasible_from <= rounds
    return TrialOutcome(float("nan") if failed or not len(values) else float(values[-1]), calls)


def delete_checkpoints(folder: Path) -> None:
    """Delete the checkpoints of a run that does not continue; its results remain."""
    for path in filter(is_own, [*Folder(folder).checkpoints(), *parts_of_checkpoints(folder)]):
        path.unlink(missing_ok=True)
