"""Estimates of the constants in the assumptions of theorems at several points of a run: ``mpifed estimate``.

The job is executed again; with ``run.reduction = "exact"`` this reproduces the points of the original run. In
the table, g_n is the gradient of client n on all its data. For an operator, g_n is V_n.

=============  ==========================================================================================
``L``          lower bound of the Lipschitz constant of g_n: the largest difference quotient observed between
               this point and the previous one, or in a power iteration at this point
``pl``         ‖∇_y f‖² / 2(Φ - f), only if y is unconstrained: an upper bound of the PL constant μ in y. It
               is an upper bound even if the maximiser of f(x, ·) is not found
``sigma_x``    root of the mean of ‖g_n(ξ) - g_n‖² in the block x, over samples ξ with the batch size and the
               noise of the job; ``sigma_y`` likewise. If the tail index is 2 or less, the estimate is
               meaningless, because it grows with the number of samples
``delta_x``    ‖∇_x f_n - ∇_x f‖; ``delta_y`` likewise
``tail``       tail index of ‖g_n(ξ) - g_n‖ with the confidence interval ``tail_low``, ``tail_high``
=============  ==========================================================================================

The row "all" describes the mean function f. ``L`` and ``pl`` are those of f. ``sigma`` and ``delta`` are the
roots of the weighted mean squares over clients. ``tail`` is estimated from the noise norms of all clients,
each divided by the median of its client.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from mpifed.base.errors import user_code_errors
from mpifed.base.settings import title
from mpifed.config.job import Config
from mpifed.core.estimates import hill, lipschitz, top_values
from mpifed.core.solvers import Budget
from mpifed.parallel.comm import SerialComm, collective_errors, gather_rows
from mpifed.parallel.devices import threads
from mpifed.parallel.reproducibility import deterministic
from mpifed.simulation.full_data import TAIL, noise_squares, rounding, tail_of
from mpifed.simulation.setup import default_dtype, resolve_reduction
from mpifed.simulation.simulation import Simulation
from mpifed.simulation.stationarity import Functions

__all__ = ["ALL", "Options", "estimate"]

#: Available estimates: Lipschitz constants, PL constants, and the noise with its tail index. The first two
#: need tens of full gradients per point.
ALL = ("L", "pl", "noise")

#: Accuracy and evaluation limit of the best response of y.
BEST_RESPONSE = Budget(accuracy=1e-8, evaluations=300)

Row = dict[str, float | int | str]


class Options(NamedTuple):
    """Options of :func:`estimate`.

    Attributes:
        points: number of points of the run, evenly spaced from the first to the last round.
        samples: number of stochastic gradients per client and point.
        top: number of largest noise norms per client in the estimator of the tail index; ``None`` for
            floor(sqrt(samples)).
        iterations: maximum number of power iterations per Lipschitz constant.
        of: names from :data:`ALL` to estimate; the columns of the other estimates are NaN.
    """

    points: int = 5
    samples: int = 1000
    top: int | None = None
    iterations: int = 20
    of: tuple[str, ...] = ALL


def estimate(comm: SerialComm, config: Config, options: Options) -> dict[str, Any]:
    """Run the job and estimate the constants at ``options.points`` of its points. Collective.

    Returns:
        A title under "mpifed estimate", the numbers of clients and samples, and ``rows``: on rank 0 one row
        per point and client and one row "all" per point, on other ranks an empty list.

    Raises:
        CollectiveError: on all ranks, if the job cannot be run or its problem has no full gradients.
    """
    config = resolve_reduction(config.model_copy(update={"measures": None}), comm)
    rows: list[Row] = []
    exact = config.run.is_reproducible
    with deterministic(exact):
        torch.set_num_threads(threads(config.run.threads, exact, comm.local_size))
        simulation = Simulation.from_settings(config, comm)
        with simulation, default_dtype(simulation.dtype):
            estimator = _Estimator(simulation, options)
            simulation.start()
            for r in np.unique(np.linspace(0, config.rounds, options.points).round().astype(int)).tolist():
                while simulation.round < r:
                    simulation.step()
                rows += estimator.estimate(r, simulation.point())
    return {
        "mpifed estimate": title(config.algorithm) + " on " + title(config.problem),
        "clients": config.problem.clients,
        "samples": options.samples,
        "top": options.top or top_values(options.samples),
        "top_of_all": top_values(options.samples * config.problem.clients),
        "rows": rows,
    }


class _Estimator:
    """Estimates the constants at successive points of a run."""

    def __init__(self, simulation: Simulation, options: Options):
        self.full, self.options, self.comm = simulation.full_data(), options, simulation.comm
        self.minimax = self.full.problem.family == "minimax"
        self.blocks = list(self.full.blocks)
        self._split = tuple(self.full.blocks.sizes.values())
        self._before: torch.Tensor | None = None

    @torch.no_grad()
    def estimate(self, r: int, point: torch.Tensor) -> list[Row]:
        """Return the rows of the point after round ``r`` on rank 0, an empty list elsewhere. Collective."""
        mean_gradient = self.full.gradient(point)
        mean: Row = {"L": self._lipschitz(self.full.gradient, point, mean_gradient)} | self._pl(
            point, mean_gradient
        )
        with collective_errors(self.comm, ValueError):
            local, local_norms = self._local_clients(r, point, mean_gradient)
        clients, norms = (gather_rows(self.comm, table, self.full.counts) for table in (local, local_norms))
        self._before = point
        if self.comm.rank:
            return []
        rows = [dict(zip(self._columns(), values)) for values in clients.tolist()]
        mean |= self._spread(clients) | dict(zip(TAIL, tail_of(norms)))
        numbered = {"all": mean} | dict(enumerate(rows))
        return [{"round": r, "client": client} | row for client, row in numbered.items()]

    def _columns(self) -> list[str]:
        by_block = [f"{constant}_{block}" for constant in ("sigma", "delta") for block in self.blocks]
        return ["L", *by_block, *TAIL]

    def _local_clients(
        self, r: int, point: torch.Tensor, mean_gradient: torch.Tensor
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the columns of this rank's clients ``[C, columns]`` and noise norms ``[C, samples]``."""
        clients, samples = self.full.clients, self.options.samples
        values, norms = np.empty((len(clients), len(self._columns()))), np.empty((len(clients), samples))
        for position, client in enumerate(clients.tolist()):
            with user_code_errors(type(self.full.problem).__name__, None, "", [client]):
                local = self.full.local(position, point)
                squares = self._noise(position, r, point, local)
                L = self._lipschitz(partial(self.full.local, position), point, local)
            deltas = [float(part.norm()) for part in (local - mean_gradient).split(self._split)]
            norms[position] = np.sqrt(squares.sum(axis=1))
            sigmas = np.sqrt(squares.mean(axis=0)).tolist()
            values[position] = [L, *sigmas, *deltas, *hill(norms[position], self.options.top)]
        return values, norms

    def _noise(self, position: int, r: int, point: torch.Tensor, local: torch.Tensor) -> np.ndarray:
        """Return the squared noise norms of a client by block, ``[samples, blocks]``."""
        if "noise" not in self.options.of:
            return np.full((self.options.samples, len(self.blocks)), math.nan)
        return noise_squares(self.full, position, r, self.options.samples, point, local)

    def _lipschitz(self, field, point: torch.Tensor, value: torch.Tensor) -> float:
        """Return the largest observed difference quotient, a lower bound of the Lipschitz constant."""
        if "L" not in self.options.of:
            return math.nan
        largest, direction = 0.0, value
        if self._before is not None and float((step := point - self._before).norm()) > 0:
            largest, direction = float((value - field(self._before)).norm() / step.norm()), step
        return max(largest, lipschitz(field, point, direction, self.options.iterations))

    def _pl(self, point: torch.Tensor, mean_gradient: torch.Tensor) -> Row:
        """Return ``pl`` and the natural residual of the best response at which Φ is evaluated.

        Both are NaN if they are not requested, or if the problem has no unconstrained block y.
        """
        has_pl = self.minimax and "y" in self.blocks and "y" not in self.full.problem.sets
        if "pl" not in self.options.of or not has_pl:
            return {"pl": math.nan, "pl_residual": math.nan}
        x, y = point.split(self._split)
        best = Functions(self.full, BEST_RESPONSE).best_response(x, y)
        gap = self.full.difference(point, torch.cat([x, best.point]))
        slope = float(mean_gradient.split(self._split)[1].double().norm())
        distance = float((best.point - y).norm())
        # If y is already the best response up to rounding, the ratio is 0 / 0.
        defined = gap > 0 and distance > rounding(point, least=1.0)
        return {"pl": slope**2 / (2 * gap) if defined else math.nan, "pl_residual": best.residual}

    def _spread(self, clients: np.ndarray) -> Row:
        """Return the roots of the weighted mean squares of sigma and delta over clients."""
        names, weights = self._columns()[1:-3], self.full.weights
        means = np.sqrt(np.average(clients[:, 1:-3] ** 2, axis=0, weights=weights))
        return dict(zip(names, means.tolist()))
