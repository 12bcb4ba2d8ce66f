"""The problem on all data of all clients: local gradients, their weighted mean, the value.

What an exact method would see, off the clock and off the counts. Clients are evaluated one at a time, each on
chunks of its rows; a loss that is no mean over rows is found by that, and then a client's rows go together.
The mean is summed as the run's messages are, so that it has the same bits on every layout under ``exact``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mpifed.base.errors import ContractError, user_code_errors
from mpifed.core.oracle import ORACLES, MinimaxOracle
from mpifed.core.problem import Game, defines
from mpifed.core.sampling import Sample
from mpifed.parallel.comm import collective_errors
from mpifed.parallel.reduction import REDUCTIONS

if TYPE_CHECKING:
    from mpifed.simulation.simulation import Simulation

__all__ = ["FullData"]

#: Rows of a client that are evaluated at once, which bounds the memory of a network's layers.
ROWS = 1024
#: Relative difference of the gradient of rows and of the mean of those of two halves, above all rounding.
DIFFERENT = 1e-3
#: Nodes of the integral that stands for a value.
NODES = 16


class FullData:
    """Evaluates a problem with data on a rank's clients.

    Points are flat, all blocks end to end ``[d]``; of a game these are x and y of its minimax problem.

    Attributes:
        problem: with the game taken off; ``blocks``: its blocks.
        clients: the numbers of this rank's clients; ``weights``: those of all clients ``[N]``, ``None`` where
            each counts the same.
        sampler: for samples that the run does not use.

    Raises:
        ContractError: the problem is a composition, or makes its own samples.
    """

    def __init__(self, simulation: Simulation):
        run, rounds, seen = simulation.config.run, simulation.rounds, simulation.problem
        self.problem: Any = seen.problem if isinstance(seen, Game) else seen
        self.blocks, self.comm = self.problem.variables(), simulation.comm
        self.sampler = rounds.executor.sampler.copy()
        self._expect_data()
        self.clients, self.weights = rounds.mine, rounds.coordinator.participants.base
        self._oracle = ORACLES[self.problem.family](self.problem, self.sampler, batched=False)
        self._everyone, self._transport = rounds.coordinator.cohort(0), simulation.transport
        self.size = sum(self.blocks.sizes.values())
        self._split = tuple(self.blocks.sizes.values())
        self._reduction = REDUCTIONS[run.reduction](
            self._transport, 1, simulation.placement, self.size + 1, simulation.dtype
        )
        self._apart: dict[int, bool] = {}

    def _expect_data(self) -> None:
        kind = type(self.problem).__name__
        with collective_errors(self.comm, ValueError):
            if self.problem.family == "composition":
                raise ContractError(f"{kind} is a composition: expected a minimax problem or an operator")
            if self.sampler.draws:
                raise ContractError(f"{kind} makes its own samples: expected a problem with all its data")

    @torch.no_grad()
    def gradient(self, point: torch.Tensor) -> torch.Tensor:
        """∇f, or V, on all data: the weighted mean over clients ``[d]``. Collective.

        Raises:
            CollectiveError: a client's function has failed.
        """
        return self._mean(lambda place, row: row[:-1].copy_(self.local(place, point)))[:-1]

    @torch.no_grad()
    def value(self, point: torch.Tensor) -> float:
        """f on all data. Collective.

        Without a loss it is the integral of the gradient along the way from 0 by Gauss and Legendre's rule,
        exact for polynomials: f(0) counts as 0.
        """
        if not defines(self.problem, "loss"):
            return self.difference(torch.zeros_like(point), point)
        return float(self._mean(lambda place, row: row[-1:].fill_(self._loss(place, point)))[-1])

    @torch.no_grad()
    def difference(self, start: torch.Tensor, end: torch.Tensor) -> float:
        """f(end) - f(start), by the integral of the gradient between them. Collective."""
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        way, total = end - start, 0.0
        for node, weight in zip(nodes.tolist(), weights.tolist()):
            slope = self.gradient(start + (1 + node) / 2 * way)
            total += weight / 2 * float(slope.double() @ way.double())
        return total

    @torch.no_grad()
    def local(self, place: int, point: torch.Tensor) -> torch.Tensor:
        """The gradient of this rank's client at ``place`` on all its data, ``[d]``."""
        return sum(
            (share * self._of(place, columns, point) for share, columns in self._chunks(place, point)),
            start=torch.zeros_like(point),
        )

    @torch.no_grad()
    def sample(self, place: int, number: int, round: int, point: torch.Tensor) -> torch.Tensor:
        """The gradient of the client at ``place`` on the job's sample ``number`` of ``round``, with the job's
        noise ``[d]``.
        """
        self._oracle.at(slice(place, place + 1))
        return self._evaluate(point, self._oracle.sample(number=number, round=round))

    def _chunks(self, place: int, point: torch.Tensor) -> Iterator[tuple[float, tuple[torch.Tensor, ...]]]:
        """The client's rows in parts, each with its share of them."""
        columns = next(self.sampler.each(slice(place, place + 1)))
        rows = len(columns[0]) if columns else 0
        if rows <= ROWS or not self._is_apart(place, columns, point):
            yield 1.0, columns
            return
        for start in range(0, rows, ROWS):
            yield min(ROWS, rows - start) / rows, tuple(column[start : start + ROWS] for column in columns)

    def _of(self, place: int, columns: tuple[torch.Tensor, ...], point: torch.Tensor) -> torch.Tensor:
        self._oracle.at(slice(place, place + 1))
        return self._evaluate(point, Sample(alone=columns))

    def _evaluate(self, point: torch.Tensor, xi: Sample) -> torch.Tensor:
        if isinstance(self._oracle, MinimaxOracle):
            return torch.cat(self._oracle.grad(*self._padded(point), xi), dim=-1)[0]
        return self._oracle.operator(point, xi)[0]

    def _padded(self, point: torch.Tensor) -> list[torch.Tensor]:
        """x and y, which is empty where the problem has none."""
        return [*point.split(self._split), point[:0]][:2]

    def _is_apart(self, place: int, columns: tuple[torch.Tensor, ...], point: torch.Tensor) -> bool:
        """Whether the client's function is a mean over its rows; seen once, on two halves of a chunk."""
        if place not in self._apart:
            parts = (slice(0, ROWS), slice(0, ROWS // 2), slice(ROWS // 2, ROWS))
            whole, one, other = (
                self._of(place, tuple(column[part] for column in columns), point) for part in parts
            )
            allowed = DIFFERENT * (one.norm() + other.norm())
            self._apart[place] = bool((whole - (one + other) / 2).norm() <= allowed)
        return self._apart[place]

    def _loss(self, place: int, point: torch.Tensor) -> float:
        named = [
            self.blocks.unflatten(name, part) for name, part in zip(self.blocks, point.split(self._split))
        ]
        parts = self._chunks(place, point)
        return sum(share * float(self.problem.loss(*named, columns)) for share, columns in parts)

    def _mean(self, fill) -> torch.Tensor:
        """The weighted mean of what ``fill`` makes of the clients' rows ``[d + 1]``, off the run's costs."""
        transport, reduction = self._transport, self._reduction
        before = transport.seconds, transport.wire_bytes
        reduction.begin(self._everyone)
        fault = None
        try:
            for place, client in enumerate(self.clients.tolist()):
                reduction.rows.zero_()
                with user_code_errors(type(self.problem).__name__, None, "", [client]):
                    fill(place, reduction.rows[0])
                reduction.add(slice(place, place + 1))
        except ValueError as error:
            fault = error
        if reduction.finish(float(fault is not None)):  # the number of ranks with a fault rides on the sum
            with collective_errors(self.comm, ValueError):
                if fault:
                    raise fault
        transport.seconds, transport.wire_bytes = before
        return reduction.mean.clone()
