"""Quadratic saddle problem with solutions in closed form (Huang et al. 2024, section 6.1)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Minimax, Named
from mpifed.core.records import Blocks
from mpifed.core.streams import BYTES_PER_DRAW, Stream

__all__ = ["Saddle"]

#: Number of random numbers that are drawn at once.
MAX_DRAWN = 2**18


@problem_settings
class Saddle(Minimax):
    """f^k(x, y) = (τ/2)‖x‖² - (‖y‖²/2 - b_kᵀy + yᵀA_k x) with A_k = t_k I.

    t_k ~ U(0, t_max) and b'_k ~ N(0, s² I) depend only on the seed and the client's number k. b_k is b'_k,
    minus the mean over the clients if ``centred``, so that the saddle point is 0. Gradients are exact; the
    setting ``oracle.noise`` adds noise.
    """

    d: int = Field(default=10, ge=1, description="dimension of x and of y")
    clients: int = Field(default=20, ge=1, description="number of clients")
    tau: float = Field(default=10.0, gt=0, description="strong convexity τ in x")
    s: float = Field(default=1.0, ge=0, description="heterogeneity: standard deviation of b'")
    t_max: float = Field(default=0.1, ge=0, description="maximum of the couplings t_k")
    centred: bool = Field(default=True, description="subtract the mean over the clients from b'")
    start: Literal["normal", "zero"] = Field(
        default="normal", description="starting point: standard normal, or 0"
    )

    source = "Huang et al. 2024, eq. 12"
    cites = ("huang2024adafgda",)
    single_row = True
    metric_names = ("error", "x_error", "y_error")

    @property
    def _block(self) -> int:
        """Number of clients that are drawn at once for the means over all clients."""
        # NumPy adds the rows of an array one after another, so that blocks do not change a bit of the sum. A
        # single column is added in pairs.
        return max(1, MAX_DRAWN // self.d) if self.d > 1 else self.clients

    def footprint(self) -> int:
        return 16 * self.clients + BYTES_PER_DRAW * min(self.clients, self._block) * (self.d + 1)

    def client_footprint(self) -> int:
        return 4 * (self.d + 1)

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Compute the t_k and the mean of the b'_k of all clients, in O(clients · d) time on every rank.

        Only the t_k are stored; the b_k of clients are drawn again when they are asked for.
        """
        self._seed, self._centre = seed, 0.0
        self._t, self._mean = self._all_clients()
        if self.centred:
            # Rounding makes the mean of the centred b_k differ from 0; best_response() computes it.
            self._centre, self._mean = self._mean, None
        self._solution = self.solution()

    def _drawn(self, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return t_k ``[C]`` and b_k ``[C, d]`` of clients."""
        stream = Stream(self._seed, "saddle", clients)
        t = self.t_max * stream.uniform()[:, 0]
        return t, self.s * stream.normal(self.d)[:, 0] - self._centre

    def _all_clients(self) -> tuple[np.ndarray, np.ndarray]:
        """Return t_k of all clients ``[N]``, and the mean of the b_k ``[d]``."""
        t, total = np.empty(self.clients), None
        for first in range(0, self.clients, self._block):
            clients = np.arange(first, min(first + self._block, self.clients))
            t[clients], b = self._drawn(clients)
            total = np.add.reduce(b if total is None else np.concatenate([total[None], b]))
        return t, total / self.clients

    def variables(self) -> Blocks:
        return Blocks(x={"x": (self.d,)}, y={"y": (self.d,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        if self.start == "zero":
            return {}
        return {block: torch.from_numpy(rng.standard_normal(self.d)) for block in "xy"}

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return a row per client: t_k ``[C]`` and b_k ``[C, d]``."""
        return tuple(map(torch.from_numpy, self._drawn(clients))), self.client_sizes(clients)

    def gradients(self, x: torch.Tensor, y: torch.Tensor, batch: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        """Return τx - t_k y and b_k - y - t_k x."""
        t, b = batch[0].narrow(1, 0, 1), batch[1].select(1, 0)
        return self.tau * x - t * y, b - y - t * x

    def constants(self) -> dict[str, float]:
        """Return ``L``, the largest norm of a Hessian ((τ, -t), (-t, -1)), ``mu`` = 1 and ``sigma`` = 0."""
        t, gap = self._t.max(), self.tau - 1
        return {"L": float((abs(gap) + np.hypot(self.tau + 1, 2 * t)) / 2), "mu": 1.0, "sigma": 0.0}

    def solution(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The saddle point (x*, y*), each ``[d]`` float64: (τ + t̄²) x* = t̄ b̄, y* = b̄ - t̄ x*."""
        t = self._t.mean()
        b = np.zeros(self.d) if self.centred else self._mean
        x = t / (self.tau + t**2) * b
        return torch.from_numpy(x), torch.from_numpy(b - t * x)

    def best_response(self, x: Named) -> torch.Tensor:
        """Return y*(x) = b̄ - t̄ x of the mean over the clients, ``[d]`` float64."""
        if self._mean is None:
            self._mean = self._all_clients()[1]
        return torch.from_numpy(self._mean - self._t.mean() * x["x"].cpu().double().numpy())

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return the distances to the saddle point: ``error``, ``x_error`` of x and ``y_error`` of y."""
        points, stars = (x["x"], y["y"]), self._solution
        x_error, y_error = (float(torch.dist(point.to(star), star)) for point, star in zip(points, stars))
        return {"error": float(np.hypot(x_error, y_error)), "x_error": x_error, "y_error": y_error}
