"""A job's run, with what the theorems assume estimated at some of its points: ``mpifed measure``.

The job is executed again, which gives the points of its run under ``exact``. At each of them, with g_n
the gradient of client n on all its data (or V_n, of an operator):

=============  ==========================================================================================
``L``          lower bound of the Lipschitz constant of g_n: the largest difference quotient met, between this
               point and the one measured before, and in a power iteration at this point
``pl``         ‖∇_y f‖² / 2(Φ - f), where y has no set: an upper bound of the PL constant μ in y,
               also where the maximiser for Φ is not found
``sigma_x``    root of the mean of ‖g_n(ξ) - g_n‖² over samples of the job's batch size with its noise, its
               x part; ``sigma_y`` likewise. With a tail index of 2 or less it is meaningless: it grows with
               the samples
``delta_x``    ‖∇_x f_n - ∇_x f‖, ``delta_y`` likewise
``tail``       tail index of ‖g_n(ξ) - g_n‖, with ``tail_low`` and ``tail_high``
=============  ==========================================================================================

The row "all" is of the mean function: L and pl of f, sigma and delta the roots of the clients' weighted mean
squares, tail of all clients' lengths, each divided by its client's median.
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
from mpifed.core.estimators import hill, lipschitz, top_values
from mpifed.core.solvers import Budget
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.parallel.devices import deterministic, threads
from mpifed.simulation.full_data import FullData
from mpifed.simulation.gradient_noise import TAIL, gathered, noise, rounding, tail_of
from mpifed.simulation.setup import default_dtype, settled
from mpifed.simulation.simulation import Simulation
from mpifed.simulation.stationarity import Functions

__all__ = ["ALL", "Options", "measure"]

#: What can be measured: Lipschitz constants, PL constants, and the noise with its tails. The first two take
#: tens of gradients on all data at every point.
ALL = ("L", "pl", "noise")

#: How well a best response of y is sought, and at what price.
BEST_RESPONSE = Budget(accuracy=1e-8, evaluations=300)

Row = dict[str, float | int | str]


class Options(NamedTuple):
    """How much is measured: points of the run, samples of each client at each of them, the largest values
    that the tail index takes (``None``: by the number of samples), iterations for a Lipschitz constant; and
    what of :data:`ALL`, where the columns of the rest are NaN.
    """

    points: int = 5
    samples: int = 1000
    top: int | None = None
    iterations: int = 20
    of: tuple[str, ...] = ALL


def measure(comm: SerialComm, config: Config, options: Options) -> dict[str, Any]:
    """Carry out the job and measure. Collective.

    Returns:
        On rank 0 ``rows``, one a point and client and one a point for "all", and what they are of; elsewhere
        no rows.

    Raises:
        CollectiveError: on all ranks: the job cannot be run, or its problem has no gradients on all data.
    """
    config = settled(config.model_copy(update={"measures": None}), comm)
    rows: list[Row] = []
    exact = config.run.reduction == "exact"
    with deterministic(exact):
        torch.set_num_threads(threads(config.run.threads, exact, comm.local_size))
        with collective_errors(comm, ValueError, OSError):
            simulation = Simulation.from_settings(config, comm)
        with simulation.transport, default_dtype(simulation.dtype):
            meter = _Meter(simulation, options)
            simulation.start()
            for r in np.unique(np.linspace(0, config.rounds, options.points).round().astype(int)).tolist():
                while simulation.round < r:
                    simulation.step()
                rows += meter.at(r, simulation.point())
    return {
        "mpifed measure": title(config.algorithm) + " on " + title(config.problem),
        "clients": config.problem.clients,
        "samples": options.samples,
        "top": options.top or top_values(options.samples),
        "top_of_all": top_values(options.samples * config.problem.clients),
        "rows": rows,
    }


class _Meter:
    """Estimates at one point after another."""

    def __init__(self, simulation: Simulation, options: Options):
        self.full, self.options = FullData(simulation), options
        self.comm, self.counts = simulation.comm, simulation.placement.counts
        self.minimax = self.full.problem.family == "minimax"
        self.blocks = list(self.full.blocks)
        self._split = tuple(self.full.blocks.sizes.values())
        self._before: torch.Tensor | None = None

    @torch.no_grad()
    def at(self, r: int, point: torch.Tensor) -> list[Row]:
        """The rows of the point after round ``r``, on rank 0. Collective."""
        whole = self.full.gradient(point)
        mean: Row = {"L": self._steepness(self.full.gradient, point, whole)} | self._pl(point, whole)
        with collective_errors(self.comm, ValueError):
            own, own_lengths = self._own(r, point, whole)
        clients, lengths = (gathered(self.comm, self.counts, each) for each in (own, own_lengths))
        self._before = point
        if self.comm.rank:
            return []
        rows = [dict(zip(self._columns(), values)) for values in clients.tolist()]
        mean |= self._spread(clients) | dict(zip(TAIL, tail_of(lengths)))
        numbered = {"all": mean} | dict(enumerate(rows))
        return [{"round": r, "client": client} | row for client, row in numbered.items()]

    def _columns(self) -> list[str]:
        parts = [f"{what}_{block}" for what in ("sigma", "delta") for block in self.blocks]
        return ["L", *parts, *TAIL]

    def _own(self, r: int, point: torch.Tensor, whole: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """The columns of this rank's clients ``[C, columns]``; lengths of their noise ``[C, samples]``."""
        clients, samples = self.full.clients, self.options.samples
        figures, lengths = np.empty((len(clients), len(self._columns()))), np.empty((len(clients), samples))
        for place, client in enumerate(clients.tolist()):
            with user_code_errors(type(self.full.problem).__name__, None, "", [client]):
                local = self.full.local(place, point)
                squares = self._noise(place, r, point, local)
                steepness = self._steepness(partial(self.full.local, place), point, local)
            deltas = [float(part.norm()) for part in (local - whole).split(self._split)]
            lengths[place] = np.sqrt(squares.sum(axis=1))
            sigmas = np.sqrt(squares.mean(axis=0)).tolist()
            figures[place] = [steepness, *sigmas, *deltas, *hill(lengths[place], self.options.top)]
        return figures, lengths

    def _noise(self, place: int, r: int, point: torch.Tensor, local: torch.Tensor) -> np.ndarray:
        """Squared lengths of a client's gradient noise, by block ``[samples, blocks]``."""
        if "noise" not in self.options.of:
            return np.full((self.options.samples, len(self.blocks)), math.nan)
        return noise(self.full, place, r, self.options.samples, point, local)

    def _steepness(self, field, point: torch.Tensor, value: torch.Tensor) -> float:
        """The largest difference quotient of a field that is met."""
        if "L" not in self.options.of:
            return math.nan
        found, direction = 0.0, value
        if self._before is not None and float((way := point - self._before).norm()) > 0:
            found, direction = float((value - field(self._before)).norm() / way.norm()), way
        return max(found, lipschitz(field, point, direction, self.options.iterations))

    def _pl(self, point: torch.Tensor, whole: torch.Tensor) -> Row:
        """``pl``, and the residual of the best response that Φ is taken at; NaN where there is none."""
        has_pl = self.minimax and "y" in self.blocks and "y" not in self.full.problem.sets
        if "pl" not in self.options.of or not has_pl:
            return {"pl": math.nan, "pl_residual": math.nan}
        x, y = point.split(self._split)
        best = Functions(self.full, BEST_RESPONSE).best_response(x, y)
        gap = self.full.difference(point, torch.cat([x, best.point]))
        slope = float(whole.split(self._split)[1].double().norm())
        away = float((best.point - y).norm())
        told = gap > 0 and away > rounding(point, least=1.0)  # else y is best already, and the ratio 0 / 0
        return {"pl": slope**2 / (2 * gap) if told else math.nan, "pl_residual": best.residual}

    def _spread(self, clients: np.ndarray) -> Row:
        """Roots of the clients' weighted mean squares of sigma and delta."""
        names, weights = self._columns()[1:-3], self.full.weights
        means = np.sqrt(np.average(clients[:, 1:-3] ** 2, axis=0, weights=weights))
        return dict(zip(names, means.tolist()))
