"""A problem's metrics at a point, off the clock, with the scoring of held-out rows spread over the ranks.

A history is a table, so its columns are fixed by the first evaluation of a run: a metric that a later one
lacks is NaN there, and one that only a later one has is left out, with a word.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from mpifed.config.job import Config
from mpifed.core.algorithm import local_steps
from mpifed.core.errors import ContractError, blaming, shown
from mpifed.core.problem import Problem
from mpifed.core.splits import VALIDATION, of_split
from mpifed.parallel.comm import SerialComm, together

__all__ = ["Evaluator", "evaluation_interval", "expect_metrics"]

#: Held-out rows that are scored in one call, the same blocks for every number of ranks.
SCORE_ROWS = 250
#: Characters of the longest name of a metric.
LONGEST = 100
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


def expect_metrics(values) -> dict[str, float]:
    """What a problem's ``metrics`` has returned, as numbers by name.

    Raises:
        ContractError: it is no table, a name cannot stand in a results file, or a value is no number; one
            sentence, to be preceded by the function's name.
    """
    if not isinstance(values, Mapping):
        raise ContractError(f"expected a dictionary name → number, got {shown(values)}")
    for name in values:
        _expect_name(name)
    return {name: _number(name, value) for name, value in values.items()}


def _expect_name(name) -> None:
    if not isinstance(name, str):
        raise ContractError(f"expected names of metrics that are text, got {shown(name)}")
    wrong = {
        "is empty or has blanks at an end": name != name.strip() or not name,
        f"has {len(name)} characters, more than {LONGEST}": len(name) > LONGEST,
        "is the column of the rounds": name == "round",
        "is a place in the results file": "/" in name or name in (".", ".."),
        "has characters that cannot be printed": not name.isprintable(),
    }
    reason = next((reason for reason, holds in wrong.items() if holds), None)
    if reason:
        raise ContractError(f"the metric {name[:LONGEST]!r} {reason}: expected another name")


def _number(name: str, value) -> float:
    try:
        if isinstance(value, str | bytes):  # of which Python would read some as numbers
            raise TypeError
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # torch's are RuntimeErrors
        raise ContractError(f"the metric {name!r} is {shown(value)}, expected a number") from None


class Evaluator:
    """Evaluates a problem on the ranks of a run, on all splits of its data.

    Args:
        train: also on the training samples of all clients.

    Attributes:
        splits: the problem by split, whose held-out rows are those of the split; "test" is the problem
            itself.
        names: of the metrics, as the first evaluation or an earlier process of the run has fixed them (rank
            0); ``None`` before.
    """

    def __init__(self, problem: Problem, comm: SerialComm, train: bool = False):
        self.problem, self.comm = problem, comm
        self.names: Sequence[str] | None = None
        self._warned: set[str] = set()
        with together(comm, ValueError), blaming(f"{type(problem).__name__}.tested_on"):
            others = {name: problem.tested_on(name) for name in (VALIDATION, *(["train"] if train else []))}
        self.splits = {"test": problem} | {name: one for name, one in others.items() if one}

    @property
    def maximised(self) -> frozenset[str]:
        """The metrics of which more is better."""
        return frozenset(_title(split, name) for split in self.splits for name in self.problem.maximised)

    @property
    def rows(self) -> dict[str, int]:
        """Numbers of samples that are scored, by split."""
        return {split: problem.test_rows for split, problem in self.splits.items() if problem.test_rows}

    def __call__(
        self, point: list[torch.Tensor], r: int, measured: dict[str, float] | None = None
    ) -> dict[str, float]:
        """The metrics after round ``r``, complete on rank 0 and empty elsewhere. Collective.

        Args:
            point: one flat vector a block.
            measured: figures that go with the problem's own.

        Raises:
            CollectiveError: ``metrics`` has failed, or returned what is no table of numbers.
        """
        blocks = self.problem.variables()
        named = [blocks.unflatten(block, flat) for block, flat in zip(blocks, point)]
        values: dict[str, float] = {}
        for split, problem in self.splits.items():
            predictions = _predict(problem, self.comm, named) if problem.test_rows else None
            with together(self.comm, ValueError):
                own = self._values(problem, named, predictions, r) if self.comm.rank == 0 else {}
            values |= {_title(split, name): value for name, value in own.items()}
        with together(self.comm, ValueError):
            return self._columns(values, r, measured or {}) if self.comm.rank == 0 else {}

    def _values(self, problem: Problem, point, predictions: torch.Tensor | None, r: int) -> dict[str, float]:
        """What the problem's function returns, as numbers."""
        function = f"{type(problem).__name__}.metrics"
        with blaming(function):
            values = problem.metrics(*point, predictions)
        try:
            return expect_metrics(values)
        except ContractError as fault:
            raise ContractError(f"{function} after round {r}: {fault}") from None

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
def _predict(problem: Problem, comm: SerialComm, point) -> torch.Tensor:
    """Scores of all held-out rows, computed in blocks spread over the ranks."""
    total = problem.test_rows
    blocks = -(-total // SCORE_ROWS)
    edges = [min(total, rank * blocks // comm.size * SCORE_ROWS) for rank in range(comm.size + 1)]
    first, last = edges[comm.rank], edges[comm.rank + 1]
    with together(comm, ValueError), blaming(f"{type(problem).__name__}.predict"):
        parts = [
            problem.predict(*point, slice(start, min(start + SCORE_ROWS, last)))
            for start in range(first, last, SCORE_ROWS)
        ]
        mine = torch.cat(parts).cpu().double() if parts else torch.empty(0, dtype=torch.float64)
    width = np.array([mine[0].numel() if len(mine) else 0], dtype=np.int64)
    comm.allreduce_(width, "max")
    gathered = np.empty(total * int(width[0]))
    counts = [(right - left) * int(width[0]) for left, right in zip(edges, edges[1:])]
    comm.allgatherv(np.ascontiguousarray(mine.numpy()).reshape(-1), gathered, counts)
    scores = torch.from_numpy(gathered).reshape(total, -1)
    return scores[:, 0] if width[0] == 1 else scores
