"""A problem's metrics at a point, off the clock, with the scoring of held-out rows spread over the ranks.

A history is a table, so its columns are fixed by the first evaluation of a run: a metric that a later one
lacks is NaN there, and one that only a later one has is left out, with a word.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from mpifed.base.errors import ContractError, short_repr, user_code_errors
from mpifed.base.log import warning
from mpifed.core.algorithm import local_steps
from mpifed.core.metrics import QUANTILES, VALIDATION, Details, of_split
from mpifed.core.metrics import Metric
from mpifed.core.problem import Game, Operator, Problem
from mpifed.core.sets import Zero
from mpifed.parallel.comm import SerialComm, broadcast_text, collective_errors
from mpifed.parallel.placement import Placement
from mpifed.simulation.settings import SimulationSettings

__all__ = [
    "Evaluator",
    "client_table",
    "details_of",
    "evaluation_interval",
    "expect_metrics",
    "numbers",
    "outside",
    "projections",
    "scored",
    "summary",
    "summary_names",
    "user",
    "whole",
]

#: Held-out rows that are scored in one call, the same blocks for every number of ranks.
SCORE_ROWS = 250
#: Rounds between evaluations at least, the share of a run that they may take, and rows that are scored in the
#: time of one row's gradient (a pass forward and one back, which takes twice as long).
LEAST, SHARE, SCORED = 10, 0.1, 3


def evaluation_interval(config: SimulationSettings, scored: int) -> int:
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
        details: further results of the last evaluation (rank 0).

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
        with collective_errors(comm, ValueError):
            with user_code_errors(f"{type(problem).__name__}.tested_on"):
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
            with collective_errors(self.comm, ValueError):
                if self.comm.rank == 0:
                    own = self._values(problem, named, predictions, r, split)
                    values |= {_title(split, name): value for name, value in own.items()}
                    details = details if split != "test" else details_of(problem, predictions)
        if self.clients:
            table = client_table(self.problem, self.comm, self.placement, partial(self._of_client, named, r))
            values |= summary(table, self.maximised)
            details = details._replace(clients=table)
        with collective_errors(self.comm, ValueError):
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
        with user_code_errors(function, clients=clients):
            found = problem.metrics(*point, predictions)
        values = numbers(found, function, r)
        for metric in self.own:
            if not metric.of_scores and split != "test":
                continue
            arguments = scored(problem, predictions) if metric.of_scores else [whole(problem, point)]
            with user_code_errors(f"the metric {metric.title}", clients=clients):
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
            warning(
                f"{function} returns {', '.join(map(repr, new))} after round {r}, and did "
                f"not at first: only {', '.join(map(repr, self.names)) or 'no metric'} can be recorded"
            )
        return {name: values.get(name, float("nan")) for name in self.names}


def _title(split: str, metric: str) -> str:
    return metric if split == "test" else of_split(split, metric)


@torch.no_grad()
def _scores(problem: Problem, point, first: int, last: int) -> torch.Tensor:
    """Scores of the held-out rows from ``first`` to before ``last``, in blocks; ``[0]`` of none."""
    with user_code_errors(f"{type(problem).__name__}.predict"):
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
    with collective_errors(comm, ValueError):
        mine = _scores(problem, point, edges[comm.rank], edges[comm.rank + 1])
    width = np.array([mine[0].numel() if len(mine) else 0], dtype=np.int64)
    comm.allreduce_(width, "max")
    gathered = np.empty(total * int(width[0]))
    counts = [(right - left) * int(width[0]) for left, right in zip(edges, edges[1:])]
    comm.allgatherv(np.ascontiguousarray(mine.numpy()).reshape(-1), gathered, counts)
    scores = torch.from_numpy(gathered).reshape(total, -1)
    return scores[:, 0] if width[0] == 1 else scores


#: Characters of the longest name of a metric.
LONGEST = 100


def details_of(problem: Problem, predictions: torch.Tensor | None) -> Details:
    """The confusion of the problem's held-out samples."""
    labels = problem.test_labels()
    if labels is None or predictions is None:
        return Details()
    scores = problem.class_scores(predictions)
    if scores.dim() != 2 or not torch.isfinite(scores).all():
        return Details()
    kinds = scores.shape[1]
    found = np.bincount(labels * kinds + scores.argmax(dim=1).numpy(), minlength=kinds**2)
    names = user(problem).class_names()
    return Details(found.reshape(kinds, kinds), names if len(names) == kinds else [*map(str, range(kinds))])


def user(problem: Problem) -> Problem:
    """The problem as its user has written it."""
    return problem.problem if isinstance(problem, Game) else problem


def whole(problem: Problem, point) -> dict[str, dict[str, torch.Tensor]]:
    """A copy of the point by block and parameter's name, as the problem has them."""
    blocks = problem.blocks_of(*point) if isinstance(problem, Game) else dict(zip(problem.variables(), point))
    return {block: {name: value.clone() for name, value in named.items()} for block, named in blocks.items()}


def scored(problem: Problem, predictions: torch.Tensor) -> list[torch.Tensor]:
    """Scores, float64, and labels, int64, of the held-out samples."""
    return [problem.class_scores(predictions).clone(), torch.from_numpy(problem.test_labels().copy())]


def numbers(values, function: str, r: int, known: Collection[str] = ()) -> dict[str, float]:
    """What ``function`` has returned after round ``r``.

    Raises:
        ContractError: it is no table of numbers, or has a name that is ``known`` already.
    """
    try:
        found = expect_metrics(values)
        if twice := [name for name in found if name in known]:
            raise ContractError(f"there is a metric {twice[0]!r} already: expected another name")
    except ContractError as fault:
        raise ContractError(f"{function} after round {r}: {fault}") from None
    return found


def expect_metrics(values) -> dict[str, float]:
    """What a problem's ``metrics`` has returned, as numbers by name.

    Raises:
        ContractError: it is no table, a name cannot stand in a results file, or a value is no number; one
            sentence, to be preceded by the function's name.
    """
    if not isinstance(values, Mapping):
        raise ContractError(f"expected a dictionary name → number, got {short_repr(values)}")
    for name in values:
        _expect_name(name)
    return {name: _number(name, value) for name, value in values.items()}


def _expect_name(name) -> None:
    if not isinstance(name, str):
        raise ContractError(f"expected names of metrics that are text, got {short_repr(name)}")
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
        raise ContractError(f"the metric {name!r} is {short_repr(value)}, expected a number") from None


def client_table(
    problem: Problem,
    comm: SerialComm,
    placement: Placement,
    evaluate: Callable[[Problem, int], dict[str, float]],
) -> dict[str, np.ndarray]:
    """Every metric on the samples of each client, ``[N]``, on all ranks. Collective.

    A client is evaluated as a whole, by the rank that hosts it, so the figures do not depend on their number.

    Raises:
        CollectiveError: a client's evaluation has failed on some rank.
    """
    with collective_errors(comm, ValueError):
        hosted = placement.of(comm.rank).tolist()
        mine = {client: evaluate(problem.tested_on(client), client) for client in hosted}
    names = json.dumps([*mine[0]]) if 0 in mine else None
    columns = json.loads(broadcast_text(comm, names, int(placement.rank_of[0])))
    table = np.zeros((placement.clients, len(columns)))
    for client, values in mine.items():
        table[client] = [values.get(name, np.nan) for name in columns]
    comm.allreduce_(table)  # all other ranks add 0 to a client's row
    return dict(zip(columns, table.T))


def summary(table: dict[str, np.ndarray], maximised: Collection[str]) -> dict[str, float]:
    """Quantiles over the clients, by linear interpolation, and the worst; clients without a number, such as
    an AUC of one class, are left out."""
    figures = {}
    for name, values in table.items():
        known = values[~np.isnan(values)]
        known = known if len(known) else np.array([np.nan])
        worst = known.min() if name in maximised else known.max()
        found = [*np.quantile(known, np.array(QUANTILES) / 100), worst]
        figures |= dict(zip(summary_names(name), map(float, found)))
    return figures


def summary_names(metric: str) -> list[str]:
    """What the figures of a metric are called."""
    return [
        of_split("client", f"{metric}_{of}") for of in (*(f"q{per_cent}" for per_cent in QUANTILES), "worst")
    ]


def projections(problem: Problem) -> list[tuple[str, Callable]]:
    """The blocks that have a set, as their user has written them, and the projections onto the sets.

    The domain of φ is a set: its proximal map of weight 0 projects onto it.
    """
    own = user(problem)
    sets = [(block, getattr(own.sets, block)) for block in own.sets]
    if isinstance(own, Operator) and not isinstance(own.phi, Zero):
        sets.append(("z", lambda z: own.phi(z, 0.0)))
    return sets


def outside(problem: Problem, sets: Iterable[tuple[str, Callable]], point) -> str:
    """How far the first block that is not in its set lies outside, in words; "" where all are.

    What a run projects and averages is rounded, by some ε of the size of the block. The tolerance √ε is
    thousands of that, and less than a step out of a set. A point that is not finite is reported elsewhere.

    Args:
        sets: as of :func:`projections`.
        point: the blocks of ``variables()`` in order, by parameter's name.
    """
    blocks = whole(problem, point)
    for block, project in sets:
        v = torch.cat([value.reshape(-1) for value in blocks[block].values()])
        distance = float((project(v) - v).double().norm())
        if distance > math.sqrt(torch.finfo(v.dtype).eps) * max(1.0, float(v.double().norm())):
            return f"{block} is {distance:.3g} away from its set"
    return ""
