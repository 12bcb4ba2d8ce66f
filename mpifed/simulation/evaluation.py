"""Evaluations of a point, excluded from the costs of a run: a list of objects, one per kind of measure.

An evaluation returns numbers by :class:`~mpifed.core.metrics.Column`. To add a measure of the point for all
problems, derive a class from :class:`Evaluation` in a file of its own, and construct it in
:meth:`mpifed.simulation.simulation.Simulation._evaluations_of`.

The first evaluation of a run determines the columns of its history: a metric that a later evaluation lacks is
recorded as NaN, and a metric that only a later evaluation has is omitted with a warning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain
from typing import NamedTuple

import torch

from mpifed.base.errors import ContractError
from mpifed.base.log import warning
from mpifed.core.algorithm import counts_epochs, local_steps
from mpifed.core.metrics import Column, Details
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.simulation.settings import SimulationSettings

__all__ = ["EvaluatedPoint", "Evaluation", "Evaluations", "evaluation_interval"]

#: Number of rounds between evaluations, and minimum number of evaluations after the start in a shorter run.
INTERVAL, POINTS = 10, 20
#: Maximum share of a run's time for evaluations; number of rows that are scored in the time of one row's
#: gradient (a forward pass, and a backward pass of twice its time).
SHARE, ROWS_PER_GRADIENT = 0.1, 3
#: Maximum number of scored rows times parameters of a cheap evaluation, which takes well below a second on a
#: core if every parameter is used once per row.
CHEAP = 2e9


def evaluation_interval(config: SimulationSettings, rows: Mapping[str, int], size: int) -> int:
    """Return the number of rounds between evaluations: as set, or by the numbers of rounds and samples.

    A run has at least :data:`POINTS` evaluations, one every :data:`INTERVAL` rounds if it is long, as far as
    they take at most :data:`SHARE` of its time. Cheap evaluations, of which :data:`POINTS` take seconds, may
    take more, so that short runs have curves. The costs are counted from the job alone and not measured,
    because the evaluated rounds are part of the results. Full gradients use all training rows, compared with
    which the held-out rows are few. Stationarity measures cost more than a round: they are evaluated every
    :data:`INTERVAL` rounds.

    Args:
        rows: number of rows that an evaluation scores, by split.
        size: number of parameters of the problem.
    """
    if config.run.eval_every:
        return config.run.eval_every
    shortest = INTERVAL if config.measures else min(INTERVAL, max(1, config.rounds // POINTS))
    clients, method = config.problem.clients, config.algorithm
    drawn = 0 if counts_epochs(method) else config.oracle.batch_size  # an epoch evaluates all rows
    batch = drawn or max(rows.get("train", 0), rows.get("clients", 0)) / clients
    batch *= config.problem.gradients_per_call
    tuned = clients * config.personalize.steps * batch if config.personalize else 0
    scored = sum(rows.values()) + ROWS_PER_GRADIENT * tuned
    cohort = config.participation.expected_reports(clients)
    gradients = cohort * local_steps(method) * method.calls_per_step * batch
    costly = math.ceil(scored / (ROWS_PER_GRADIENT * SHARE * gradients)) if gradients else 1
    if scored * size <= CHEAP:
        costly = min(costly, config.rounds // POINTS)
    return max(shortest, costly)


class EvaluatedPoint(NamedTuple):
    """A point after a round.

    Attributes:
        round: number of completed rounds.
        blocks: one flat vector per block of the method's problem.
        z: the method's smoothing point, if it has one.
    """

    round: int
    blocks: Sequence[torch.Tensor]
    z: torch.Tensor | None = None


class Evaluation:
    """A kind of measure of the point. All ranks evaluate it together.

    Attributes:
        names: names that no metric of the problem or the user may have; empty if the names are theirs.
        owner: whose names they are, in error messages.
        rows: number of samples scored by an evaluation, by split.
        details: further results of the last evaluation, on rank 0.
    """

    names: tuple[str, ...] = ()
    owner = ""
    rows: Mapping[str, int] = {}
    details = Details()

    def evaluate(self, point: EvaluatedPoint) -> dict[Column, float]:
        """Return the measures; at least on rank 0 all of them. Collective.

        Raises:
            CollectiveError: on all ranks: a function of the problem or the user fails.
        """
        raise NotImplementedError


class Evaluations:
    """All evaluations of a run, in the order of the history's columns.

    Attributes:
        columns: columns of the history, on rank 0; ``None`` before the first evaluation.
        details: further results of the last evaluation, on rank 0.
    """

    def __init__(self, evaluations: Iterable[Evaluation], comm: SerialComm, problem: str):
        self._evaluations, self._comm, self._problem = [*evaluations], comm, problem
        self.columns: Sequence[Column] | None = None
        self.details = Details()
        self._warned: set[str] = set()

    @property
    def rows(self) -> dict[str, int]:
        """Number of samples scored by an evaluation, by split."""
        return dict(chain.from_iterable(evaluation.rows.items() for evaluation in self._evaluations))

    def evaluate(self, point: EvaluatedPoint) -> dict[str, float]:
        """Return all measures on rank 0, an empty dictionary on the other ranks. Collective.

        Raises:
            CollectiveError: on all ranks: a function of the problem or the user fails, or two metrics would
                have columns of the same name.
        """
        values: dict[Column, float] = {}
        for evaluation in self._evaluations:
            values |= evaluation.evaluate(point)
        with collective_errors(self._comm, ValueError):
            self.details = reduce(Details.joined, (evaluation.details for evaluation in self._evaluations))
            return self._recorded(values, point.round) if self._comm.rank == 0 else {}

    def _recorded(self, values: dict[Column, float], r: int) -> dict[str, float]:
        """Return the values of the history's columns by name."""
        by_name: dict[str, float] = {}
        for column, value in values.items():
            if column.name in by_name:
                raise ContractError(
                    f"{column.name!r} is the column of the metric {column.metric!r} on the {column.split} "
                    f"split: choose another name for the metric {column.name!r}"
                )
            by_name[column.name] = value
        self.columns = [*values] if self.columns is None else self.columns
        names = [column.name for column in self.columns]
        new = [name for name in by_name if name not in {*names, *self._warned}]
        if new:
            self._warned.update(new)
            warning(
                f"{self._problem}.metrics returns {', '.join(map(repr, new))} after round {r}, "
                "but not in the first evaluation: only "
                f"{', '.join(map(repr, names)) or 'no metric'} can be recorded"
            )
        return {name: by_name.get(name, math.nan) for name in names}
