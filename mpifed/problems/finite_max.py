"""Minimising the maximum of finitely many functions, over the simplex (Shen et al. 2024, eq. 2 and 3)."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Minimax, Named
from mpifed.core.records import Blocks
from mpifed.core.sets import Sets, Simplex
from mpifed.core.streams import BYTES_PER_DRAW, Stream, generator
from mpifed.problems.constants import around

__all__ = ["FiniteMax"]


@problem_settings
class FiniteMax(Minimax):
    """min_x max_i F_i(x) = min over x, max over y in the simplex of F(x)ᵀy, with a known solution.

    F_i(x) = vᵀP_i v/2 + q_iᵀv + c_i with v = x - x* is nonconvex, because P_i is indefinite. There are
    weights y* > 0 of the first ``active`` functions with Σ y*_i P_i = ``convex`` I and Σ y*_i q_i = 0. The
    c_i of these functions are equal; those of the others are smaller by 0.5 to 1.5. Then x* is the only
    minimiser of max_i F_i ≥ Σ y*_i F_i, and stationarity holds there with strict complementarity (Assumption
    3.6). The q and c of the clients have normal deviations that average to 0.
    """

    d: int = Field(default=10, ge=1, description="dimension of x")
    functions: int = Field(default=8, ge=1, description="number of functions F_i")
    active: int = Field(default=3, ge=1, description="number of functions that are maximal at the solution")
    clients: int = Field(default=10, ge=1, description="number of clients")
    convex: float = Field(default=0.5, gt=0, description="curvature of Σ y*_i F_i")
    bend: float = Field(default=1.0, ge=0, description="approximate norm of the differences of the P_i")
    heterogeneity: float = Field(
        default=0.0, ge=0, description="standard deviation of the clients' q and c around their mean"
    )
    scale: float = Field(default=1.0, ge=0, description="standard deviation of the start x_0 around x*")

    source = "Shen et al. 2024, eq. 2 and Theorem 3.4"
    cites = ("shen2024fessgda",)
    single_row = True
    metric_names = ("phi_gap", "x_error", "y_error")
    sets = Sets(y=Simplex())

    def __post_init__(self):
        if self.active > self.functions:
            raise ValueError(f"expected active <= functions, got {self.active} > {self.functions}")

    def footprint(self) -> int:
        per_number = BYTES_PER_DRAW if self.heterogeneity else 16
        return self.functions * (per_number * self.clients * (self.d + 1) + 16 * self.d**2)

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Draw all N clients on every rank, as the solution needs: O(N · functions · d) memory."""
        rng, stream = generator(seed, "finite max"), Stream(seed, "finite max", np.arange(self.clients))
        n, d, k = self.functions, self.d, self.active
        weights = rng.uniform(0.5, 1.5, n) * (np.arange(n) < k)
        self._y = weights / weights.sum()
        bends = rng.standard_normal((n, d, d)) * (self.bend / np.sqrt(2 * d))
        bends = (bends + bends.swapaxes(1, 2)) / 2
        q, top = rng.standard_normal((n, d)), rng.standard_normal()
        levels = top - rng.uniform(0.5, 1.5, n)
        self._P = bends - (self._y[:, None, None] * bends).sum(axis=0) + self.convex * np.eye(d)
        q[:k] -= (self._y[:k, None] * q[:k]).sum(axis=0)
        levels[:k] = top
        self._x, self._level = rng.standard_normal(d), top
        linear = np.concatenate([q, levels[:, None]], axis=1)
        self._linear, self._mean = around(linear, self.heterogeneity, stream), linear

    def variables(self) -> Blocks:
        return Blocks(x={"x": (self.d,)}, y={"y": (self.functions,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return x_0, normal around x*, and uniform weights."""
        start = self._x + self.scale * rng.standard_normal(self.d)
        y = torch.full((self.functions,), 1 / self.functions, dtype=torch.float64)
        return {"x": torch.from_numpy(start), "y": y}

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return a row per client: P ``[C, n, d, d]``, its (q, c) ``[C, n, d + 1]`` and x* ``[C, d]``."""
        P, star = (torch.from_numpy(one).expand(len(clients), *one.shape) for one in (self._P, self._x))
        return (P, torch.from_numpy(self._linear[clients]), star), self.client_sizes(clients)

    def gradients(self, x: torch.Tensor, y: torch.Tensor, batch: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ∇F(x) y and F(x)."""
        P, linear, star = (column[:, 0] for column in batch)
        v = (x - star).unsqueeze(-2)  # [C, 1, d]
        q, c = linear.split((self.d, 1), dim=-1)
        Pv = (P * v.unsqueeze(-2)).sum(-1)  # [C, n, d]
        F = (v * (Pv / 2 + q)).sum(-1) + c.squeeze(-1)
        return (y.unsqueeze(-1) * (Pv + q)).sum(-2), F

    def values(self, x: np.ndarray) -> np.ndarray:
        """Return F(x) of the mean over the clients, ``[n]``."""
        v = x - self._x
        return self._P @ v @ v / 2 + self._mean[:, :-1] @ v + self._mean[:, -1]

    def solution(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the minimiser x* and the weights y*, ``[d]`` and ``[n]`` float64."""
        return torch.from_numpy(self._x), torch.from_numpy(self._y)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``phi_gap`` = max_i F_i(x) - max_i F_i(x*), and distances ``x_error`` and ``y_error``."""
        point = x["x"].cpu().double().numpy()
        return {
            "phi_gap": float(self.values(point).max() - self._level),
            "x_error": float(np.linalg.norm(point - self._x)),
            "y_error": float(torch.dist(y["y"].cpu().double(), self.solution()[1])),
        }
