"""Full gradients and values of a problem, and the noise of its stochastic gradients.

These evaluations are excluded from the costs of a run. Clients are evaluated one at a time, on chunks of
their rows; if a loss turns out not to be a mean over rows, all rows of a client are evaluated at once. The
mean over clients is reduced like the messages of the run, so under ``reduction = "exact"`` it is bitwise
identical for every number of ranks.

The noise at a point is ∇f_n(z; ξ) - ∇f_n(z), for samples ξ with the job's batch size and noise. Fine-tuned
points take steps with such samples. No run uses the addresses of these samples, so its results do not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from mpifed.base.errors import ContractError, user_code_errors
from mpifed.core.estimates import Tail, hill
from mpifed.core.oracle import ORACLES, MinimaxOracle
from mpifed.core.problem import Game, Problem, defines
from mpifed.core.sampling import Sample, Sampler
from mpifed.parallel.comm import collective_errors, gather_rows
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.reduction import REDUCTIONS
from mpifed.parallel.transport import Transport
from mpifed.simulation.options import Personalize

__all__ = ["TAIL", "FullData", "fine_tuned", "noise_squares", "noise_tail", "rounding", "tail_of"]

#: Maximum number of rows per evaluation, which bounds the memory of a network's activations.
ROWS = 1024
#: Relative difference, above all rounding errors, between the gradient on a chunk and the mean of the
#: gradients on its halves.
DIFFERENT = 1e-3
#: Nodes of the quadrature of the gradient along a segment.
NODES = 16
#: Names of the tail index and of the ends of its confidence interval.
TAIL = ("tail", "tail_low", "tail_high")
#: Offset of the rounds in the addresses of noise samples; no run has so many rounds.
ROUNDS = 2**31
#: Norms below this number of rounding errors of a vector count as 0.
ROUNDING = 100


class FullData:
    """The problem on all data of all clients.

    Points are flat, all blocks concatenated, ``[d]``; for a game, the blocks are x and y of its minimax
    problem.

    Args:
        sampler: the samples of the clients that this rank may step.
        clients: the cohort of all clients.
        reduction: name of the reduction of means over clients.

    Attributes:
        problem: the minimax problem of a game, otherwise the problem; ``blocks``: its variables.
        clients: client numbers on this rank; ``counts``: number of clients on each rank.
        weights: weights of all clients, ``[N]``; ``None`` if they are equal.

    Raises:
        CollectiveError: the problem is a composition or bilevel, or generates its samples.
    """

    def __init__(
        self,
        problem: Problem,
        sampler: Sampler,
        clients: Cohort,
        weights: np.ndarray | None,
        transport: Transport,
        placement: Placement,
        reduction: str,
    ):
        self.problem: Any = problem.problem if isinstance(problem, Game) else problem
        self.blocks, self.comm = self.problem.variables(), transport.comm
        self._sampler = sampler.copy()
        name = type(self.problem).__name__
        with collective_errors(self.comm, ValueError):
            if self.problem.family not in ("minimax", "operator"):
                family = self.problem.family
                raise ContractError(f"{name} has the family {family!r}: expected minimax or operator")
            if self._sampler.generates_samples:
                raise ContractError(f"{name} generates its samples: expected a problem with client_data")
        self.clients, self.counts, self.weights = clients.numbers, placement.counts, weights
        self._oracle = ORACLES[self.problem.family](self.problem, self._sampler, batched=False)
        self._all_clients, self._transport = clients, transport
        self._split = tuple(self.blocks.sizes.values())
        self._reduction = REDUCTIONS[reduction](
            self._transport, 1, placement, sum(self._split) + 1, sampler.dtype
        )
        self._separable: dict[int, bool] = {}

    @torch.no_grad()
    def gradient(self, point: torch.Tensor) -> torch.Tensor:
        """Return ∇f, or V: the weighted mean over clients, ``[d]``. Collective.

        Raises:
            CollectiveError: a client's function has failed.
        """
        return self._mean(lambda position, row: row[:-1].copy_(self.local(position, point)))[:-1]

    @torch.no_grad()
    def value(self, point: torch.Tensor) -> float:
        """Return f. Collective.

        Without a loss, f(0) is defined as 0 and the gradient is integrated by Gauss-Legendre quadrature,
        which is exact for polynomials.
        """
        if not defines(self.problem, "loss"):
            return self.difference(torch.zeros_like(point), point)
        return float(self._mean(lambda position, row: row[-1:].fill_(self._loss(position, point)))[-1])

    @torch.no_grad()
    def difference(self, start: torch.Tensor, end: torch.Tensor) -> float:
        """Return f(end) - f(start), the integral of the gradient along the segment. Collective."""
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        segment, total = end - start, 0.0
        for node, weight in zip(nodes.tolist(), weights.tolist()):
            slope = self.gradient(start + (1 + node) / 2 * segment)
            total += weight / 2 * float(slope.double() @ segment.double())
        return total

    @torch.no_grad()
    def local(self, position: int, point: torch.Tensor) -> torch.Tensor:
        """Return the full gradient of the client at ``position`` on this rank, ``[d]``."""
        return sum(
            (share * self._gradient(columns, point) for share, columns in self._chunks(position, point)),
            start=torch.zeros_like(point),
        )

    @torch.no_grad()
    def stochastic(self, position: int, number: int, round: int, point: torch.Tensor) -> torch.Tensor:
        """Return the client's gradient on sample ``number`` of ``round``, with the job's noise, ``[d]``."""
        self._select(position)
        return self._evaluate(point, self._oracle.sample(number=number, round=round))

    def _chunks(self, position: int, point: torch.Tensor) -> Iterator[tuple[float, tuple[torch.Tensor, ...]]]:
        """Yield the client's rows in chunks, with each chunk's share of the rows."""
        self._select(position)
        columns = next(self._sampler.client_batches(slice(0, 1)))
        rows = len(columns[0]) if columns else 0
        if rows <= ROWS or not self._is_separable(position, columns, point):
            yield 1.0, columns
            return
        for start in range(0, rows, ROWS):
            yield min(ROWS, rows - start) / rows, tuple(column[start : start + ROWS] for column in columns)

    def _select(self, position: int) -> None:
        """Select the client at ``position`` on this rank."""
        self._sampler.select_members(self._all_clients.local[position : position + 1])
        self._oracle.select_clients(slice(0, 1))

    def _gradient(self, columns: tuple[torch.Tensor, ...], point: torch.Tensor) -> torch.Tensor:
        return self._evaluate(point, Sample(single=_copied(columns)))

    def _evaluate(self, point: torch.Tensor, xi: Sample) -> torch.Tensor:
        if isinstance(self._oracle, MinimaxOracle):
            x_and_y = [*point.split(self._split), point[:0]][:2]  # y is empty if the problem has no y
            return torch.cat(self._oracle.grad(*x_and_y, xi), dim=-1)[0]
        return self._oracle.operator(point, xi)[0]

    def _is_separable(self, position: int, columns: tuple[torch.Tensor, ...], point: torch.Tensor) -> bool:
        """Return whether the client's function is a mean over rows, tested once on a chunk and its halves."""
        if position not in self._separable:
            parts = (slice(0, ROWS), slice(0, ROWS // 2), slice(ROWS // 2, ROWS))
            chunk, first, second = (
                self._gradient(tuple(column[part] for column in columns), point) for part in parts
            )
            tolerance = DIFFERENT * (first.norm() + second.norm())
            self._separable[position] = bool((chunk - (first + second) / 2).norm() <= tolerance)
        return self._separable[position]

    def _loss(self, position: int, point: torch.Tensor) -> float:
        named = [
            self.blocks.unflatten(name, part) for name, part in zip(self.blocks, point.split(self._split))
        ]
        chunks = self._chunks(position, point)
        return sum(share * float(self.problem.loss(*named, _copied(columns))) for share, columns in chunks)

    def _mean(self, fill) -> torch.Tensor:
        """Return the weighted mean of the clients' rows ``[d + 1]`` that ``fill`` writes."""
        transport, reduction = self._transport, self._reduction
        before = transport.seconds, transport.wire_bytes
        reduction.begin(self._all_clients)
        error = None
        try:
            for position, client in enumerate(self.clients.tolist()):
                reduction.rows.zero_()
                with user_code_errors(type(self.problem).__name__, None, "", [client]):
                    fill(position, reduction.rows[0])
                reduction.add(slice(position, position + 1))
        except ValueError as failure:
            error = failure
        if reduction.finish(float(error is not None)):  # the number of ranks with an error
            with collective_errors(self.comm, ValueError):
                if error:
                    raise error
        transport.seconds, transport.wire_bytes = before
        return reduction.mean.clone()


def _copied(columns: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Copy stored rows for functions that write to their batch in place.

    No check before the run calls functions on batches of these sizes, and a copy takes little time here.
    """
    return tuple(map(torch.clone, columns))


def fine_tuned(
    full: FullData, settings: Personalize, position: int, point: torch.Tensor, r: int
) -> torch.Tensor:
    """Return the point ``[d]`` after stochastic gradient steps of a client: descent in x and ascent in y.

    The steps use the job's batch size and noise, and the projections onto the problem's sets.

    Args:
        position: position of the client on this rank.
        r: number of completed rounds, for the addresses of the samples.
    """
    point, sets = point.clone(), full.problem.sets
    sizes = tuple(full.blocks.sizes.values())
    for number in range(settings.steps):
        gradient = full.stochastic(position, number, ROUNDS + r, point)
        for name, block, slope in zip(full.blocks, point.split(sizes), gradient.split(sizes)):
            block.add_(slope, alpha=-settings.step_size if name == "x" else settings.step_size)
            block.copy_(getattr(sets, name)(block))
    return point


def rounding(vector: torch.Tensor, least: float = 0.0) -> float:
    """Return a bound on the norm of rounding errors in a vector whose norm is taken as ``least`` or more."""
    return ROUNDING * torch.finfo(vector.dtype).eps * max(least, float(vector.norm()))


def noise_squares(
    full: FullData, position: int, r: int, samples: int, point: torch.Tensor, local: torch.Tensor
) -> np.ndarray:
    """Return squared norms of a client's noise after round ``r`` by block, ``[samples, blocks]``.

    Args:
        position: position of the client on this rank.
        local: the client's full gradient, ``[d]``.
    """
    sizes = tuple(full.blocks.sizes.values())
    squares = np.empty((samples, len(sizes)))
    for number in range(samples):
        noise = full.stochastic(position, number, ROUNDS + r, point) - local
        squares[number] = [float(part.double().square().sum()) for part in noise.split(sizes)]
    return np.where(squares.sum(axis=1, keepdims=True) > rounding(local) ** 2, squares, 0.0)


def noise_tail(full: FullData, r: int, samples: int, point: torch.Tensor) -> Tail:
    """Estimate the tail index of the noise of all clients. Collective.

    Raises:
        CollectiveError: a client's function has failed.
    """
    norms = np.empty((len(full.clients), samples))
    with collective_errors(full.comm, ValueError):
        for position, client in enumerate(full.clients.tolist()):
            with user_code_errors(type(full.problem).__name__, None, "", [client]):
                squares = noise_squares(full, position, r, samples, point, full.local(position, point))
            norms[position] = np.sqrt(squares.sum(axis=1))
    return tail_of(gather_rows(full.comm, norms, full.counts))


def tail_of(norms: np.ndarray) -> Tail:
    """Estimate the tail index of norms ``[clients, samples]``, each divided by its client's median."""
    medians = np.median(norms, axis=1, keepdims=True)
    return hill((norms / np.where(medians > 0, medians, 1.0)).reshape(-1))
