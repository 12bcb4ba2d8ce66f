"""A problem's metrics at a point, off the clock, with the scoring of held-out rows spread over the ranks.

A history is a table, so its columns are fixed by the first evaluation of a run: a metric that a later one
lacks is NaN there, and one that only a later one has is left out, with a word.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from mpifed.config.job import Config
from mpifed.config.metrics import Metric
from mpifed.core.algorithm import local_steps
from mpifed.core.details import Details
from mpifed.core.errors import ContractError, blaming
from mpifed.core.problem import Problem
from mpifed.core.splits import VALIDATION, of_split
from mpifed.parallel.comm import SerialComm, together
from mpifed.parallel.placement import Placement
from mpifed.simulation.client_metrics import client_table, summary, summary_names
from mpifed.simulation.figures import details_of, numbers, scored, user, whole

__all__ = ["Evaluator", "evaluation_interval"]

#: Held-out rows that are scored in one call, the same blocks for every number of ranks.
SCORE_ROWS = 250
#: Rounds between evaluations at least, the share of a run that they may take, and rows that are scored in the
#: time of one row's gradient (a pass forward and one back, which takes twice as long).
LEAST, SHARE, SCORED = 10, 0.1, 3


def evaluation_interval(config: Config, scored: int) -> int:
    """Rounds between evaluations: as set, else by a count of what a round and an evaluation compute.

    The count follows from the job alone, never from a clock, since the rounds that are evaluated are part of
    the results. Full local gradients go through all training rows, beside which the held-out ones are few.

    Args:
        scored: rows that an evaluation scores.
    """
    batch, method = config.oracle.batch_size, config.algorithm
    if config.run.eval_every or not batch:
        return config.run.eval_every or LEAST
    cohort = config.participation.members(config.problem.clients)
    rows = cohort * local_steps(method) * method.calls_per_step * batch
    return max(LEAST, math.ceil(scored / (SCORED * SHARE * rows)))


class Evaluator:
    """Evaluates a problem on the ranks of a run, on all splits of its data.

    Args:
        on: "train" for the training samples as well, "clients" for those of each client.
        own: the user's metrics.
        placement: which rank hosts which clients; needed with "clients".

    Attributes:
        splits: the problem by split, whose held-out rows are those of the split; "test" is the problem
            itself.
        names: of the metrics, as the first evaluation or an earlier process of the run has fixed them (rank
            0); ``None`` before.
        details: what the last evaluation has found beside its metrics (rank 0).

    Raises:
        CollectiveError: the problem has no such samples.
    """

    def __init__(
        self,
        problem: Problem,
        comm: SerialComm,
        on: Collection[str] = (),
        own: Sequence[Metric] = (),
        placement: Placement | None = None,
    ):
        self.problem, self.comm, self.own, self.placement = problem, comm, own, placement
        self.clients, self.details = "clients" in on, Details()
        self.names: Sequence[str] | None = None
        self._warned: set[str] = set()
        train = ["train"] if "train" in on else []
        with together(comm, ValueError):
            with blaming(f"{type(problem).__name__}.tested_on"):
                others = {name: problem.tested_on(name) for name in (VALIDATION, *train)}
                known = not on or problem.tested_on(0) is not None
            self._expect(known, on)
        self.splits = {"test": problem} | {name: one for name, one in others.items() if one}

    def _expect(self, known: bool, on: Collection[str]) -> None:
        kind, labelled = type(user(self.problem)).__name__, self.problem.test_labels() is not None
        if not known:
            raise ContractError(
                f"run.evaluate_on = {list(on)}: {kind} does not say what its metrics are of other samples "
                "(tested_on): expected []"
            )
        for metric in self.own:
            if metric.of_scores and not (labelled and self.problem.test_rows):
                raise ContractError(
                    f"the metric {metric.title} is a function of (scores, labels), and {kind} holds out no "
                    "labelled samples: expected one of (point)"
                )

    @property
    def maximised(self) -> frozenset[str]:
        """The metrics of which more is better."""
        of_rows = {*self.problem.maximised}.union(*(one.maximised for one in self.own if one.of_scores))
        of_point = {name for one in self.own if not one.of_scores for name in one.maximised}
        of_clients = {name for metric in of_rows if self.clients for name in summary_names(metric)}
        return frozenset(of_point | of_clients | {_title(s, name) for s in self.splits for name in of_rows})

    @property
    def rows(self) -> dict[str, int]:
        """Numbers of samples that are scored, by split."""
        rows = {split: problem.test_rows for split, problem in self.splits.items() if problem.test_rows}
        mine = self.problem.client_size if self.clients else lambda client: 0
        every = sum(map(mine, range(self.problem.clients)))
        return rows | ({"clients": every} if every else {})

    def __call__(
        self, point: list[torch.Tensor], r: int, measured: dict[str, float] | None = None
    ) -> dict[str, float]:
        """The metrics after round ``r``, complete on rank 0 and empty elsewhere. Collective.

        Args:
            point: one flat vector a block.
            measured: figures that go with the problem's own.

        Raises:
            CollectiveError: ``metrics`` or a user's metric has failed, or returned what is no number and no
                table of numbers.
        """
        blocks = self.problem.variables()
        named = [blocks.unflatten(block, flat) for block, flat in zip(blocks, point)]
        values: dict[str, float] = {}
        details = Details()
        for split, problem in self.splits.items():
            predictions = _predict(problem, self.comm, named) if problem.test_rows else None
            with together(self.comm, ValueError):
                if self.comm.rank == 0:
                    own = self._values(problem, named, predictions, r, split)
                    values |= {_title(split, name): value for name, value in own.items()}
                    details = details if split != "test" else details_of(problem, predictions)
        if self.clients:
            table = client_table(self.problem, self.comm, self.placement, partial(self._of_client, named, r))
            values |= summary(table, self.maximised)
            details = details._replace(clients=table)
        with together(self.comm, ValueError):
            self.details = details
            return self._columns(values, r, measured or {}) if self.comm.rank == 0 else {}

    def _of_client(self, point, r: int, problem: Problem, client: int) -> dict[str, float]:
        return self._values(problem, point, _scores(problem, point, 0, problem.test_rows), r, client)

    def _values(
        self, problem: Problem, point, predictions: torch.Tensor | None, r: int, split: str | int
    ) -> dict[str, float]:
        """What the problem's function and the user's metrics return, as numbers; those of the point alone go
        with the test split."""
        function, clients = f"{type(problem).__name__}.metrics", [split] if isinstance(split, int) else []
        with blaming(function, clients=clients):
            found = problem.metrics(*point, predictions)
        values = numbers(found, function, r)
        for metric in self.own:
            if not metric.of_scores and split != "test":
                continue
            arguments = scored(problem, predictions) if metric.of_scores else [whole(problem, point)]
            with blaming(f"the metric {metric.title}", clients=clients):
                found = metric.given(*arguments)
            found = found if isinstance(found, Mapping) else {metric.title: found}
            values |= numbers(found, f"the metric {metric.title}", r, values)
        return values

    def _columns(self, values: dict[str, float], r: int, measured: dict[str, float]) -> dict[str, float]:
        """The columns of the history."""
        function = f"{type(self.problem).__name__}.metrics"
        if twice := sorted(values.keys() & measured):
            raise ContractError(
                f"{function} after round {r}: the metric {twice[0]!r} is a measure, too: expected another "
                "name"
            )
        values |= measured
        self.names = list(values) if self.names is None else self.names
        new = [name for name in values if name not in {*self.names, *self._warned}]
        if new:
            self._warned.update(new)
            print(
                f"mpifed: warning: {function} returns {', '.join(map(repr, new))} after round {r}, and did "
                f"not at first: only {', '.join(map(repr, self.names)) or 'no metric'} can be recorded",
                file=sys.stderr,
            )
        return {name: values.get(name, float("nan")) for name in self.names}


def _title(split: str, metric: str) -> str:
    return metric if split == "test" else of_split(split, metric)


@torch.no_grad()
def _scores(problem: Problem, point, first: int, last: int) -> torch.Tensor:
    """Scores of the held-out rows from ``first`` to before ``last``, in blocks; ``[0]`` of none."""
    with blaming(f"{type(problem).__name__}.predict"):
        parts = [
            problem.predict(*point, slice(start, min(start + SCORE_ROWS, last)))
            for start in range(first, last, SCORE_ROWS)
        ]
        return torch.cat(parts).cpu().double() if parts else torch.empty(0, dtype=torch.float64)


def _predict(problem: Problem, comm: SerialComm, point) -> torch.Tensor:
    """Scores of all held-out rows, computed in blocks spread over the ranks."""
    total = problem.test_rows
    blocks = -(-total // SCORE_ROWS)
    edges = [min(total, rank * blocks // comm.size * SCORE_ROWS) for rank in range(comm.size + 1)]
    with together(comm, ValueError):
        mine = _scores(problem, point, edges[comm.rank], edges[comm.rank + 1])
    width = np.array([mine[0].numel() if len(mine) else 0], dtype=np.int64)
    comm.allreduce_(width, "max")
    gathered = np.empty(total * int(width[0]))
    counts = [(right - left) * int(width[0]) for left, right in zip(edges, edges[1:])]
    comm.allgatherv(np.ascontiguousarray(mine.numpy()).reshape(-1), gathered, counts)
    scores = torch.from_numpy(gathered).reshape(total, -1)
    return scores[:, 0] if width[0] == 1 else scores
