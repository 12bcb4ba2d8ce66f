"""Model-agnostic meta-learning of linear regressions as a composition (003, eq. 2): solution in closed form.

Readings. 003 leaves tasks and data open. A client has one task: the regression with its own weights w*_n, near a
common centre, on a fixed set of standard normal features. Inner and outer batches are drawn from the same set.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from mpifed.problem import Composition, Named
from mpifed.records import Blocks
from mpifed.streams import Stream, generator

__all__ = ["LinearMAML"]


@dataclass(config=ConfigDict(extra="forbid", arbitrary_types_allowed=True), kw_only=True)
class LinearMAML(Composition):
    """min over w of F(w) = (1/N) Σ_n L_n(w - η ∇L_n(w)) for least-squares losses L_n.

    L_n(w) is half the mean of (aᵀw - b)² over client n's rows (a, b), with a ~ N(0, I), b = aᵀw*_n + noise · N(0, 1),
    w*_n ~ N(w_0, s² I) and w_0 ~ N(0, I). The inner map is g_n(w) = w - η ∇L_n(w), p = d, the outer one L_n. A client's
    rows depend on the seed and its number alone.
    """

    d: int = Field(default=10, ge=1, description="dimension of w")
    clients: int = Field(default=10, ge=1, description="number of clients, each with a task of its own")
    samples: int = Field(default=50, ge=1, description="rows of a client")
    eta: float = Field(default=0.1, ge=0, description="step size η of the adaptation to a task")
    s: float = Field(default=1.0, ge=0, description="heterogeneity: standard deviation of the tasks' weights")
    noise: float = Field(default=0.1, ge=0, description="standard deviation of the noise of b")

    source = "003, eq. 2"

    @property
    def inner_size(self) -> int:
        """p = d."""
        return self.d

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        numbers = np.arange(self.clients)
        centre = generator(seed, "maml").standard_normal(self.d)
        tasks = centre + self.s * Stream(seed, "maml task", numbers).normal(self.d)
        rows = Stream(seed, "maml rows", numbers, count=self.samples)
        features = rows.normal(self.d)
        targets = (features * tasks).sum(-1) + self.noise * rows.normal()
        self._features, self._targets = torch.from_numpy(features), torch.from_numpy(targets)
        self._solution = self.solution()

    def variables(self) -> Blocks:
        return Blocks(x={"w": (self.d,)})

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        """Features ``[n, d]`` and targets ``[n]``."""
        return self._features[client], self._targets[client]

    def client_size(self, client: int) -> int:
        return self.samples

    def _loss(self, w: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        features, targets = batch
        return ((features @ w - targets) ** 2).mean() / 2

    def _adapted(self, w: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return w - self.eta * torch.func.grad(self._loss)(w, batch)

    def inner(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self._adapted(x["w"], batch)

    def outer(self, u: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self._loss(u, batch)

    def value(self, w: torch.Tensor) -> torch.Tensor:
        """F(w) on all data, for ``w`` of shape ``[d]``, float64 on the CPU."""
        one = torch.func.vmap(lambda *batch: self._loss(self._adapted(w, batch), batch))
        return one(self._features, self._targets).mean()

    def gradient(self, w: torch.Tensor) -> torch.Tensor:
        """∇F(w) ``[d]`` on all data, with ∇F_n = v - η ∇²L_n(w) v for v = ∇L_n at the adapted point."""

        def one(*batch):
            slope = torch.func.grad(lambda point: self._loss(point, batch))
            _, product = torch.func.vjp(slope, w)  # Hessians are symmetric, so the reverse mode serves
            v = slope(self._adapted(w, batch))
            return v - self.eta * product(v)[0]

        return torch.func.vmap(one)(self._features, self._targets).mean(0)

    def solution(self) -> torch.Tensor:
        """The minimiser ``[d]``, float64; the least-norm one of several.

        With L_n = ½ wᵀH_n w - c_nᵀw + const and P_n = I - ηH_n it solves Σ_n P_n H_n P_n w = Σ_n P_n² c_n.
        """
        features, targets = self._features.numpy(), self._targets.numpy()
        H = np.einsum("nmi,nmj->nij", features, features) / self.samples
        c = np.einsum("nmi,nm->ni", features, targets) / self.samples
        P = np.eye(self.d) - self.eta * H
        right = (P @ P @ c[..., None])[..., 0]
        return torch.from_numpy(np.linalg.lstsq((P @ H @ P).mean(0), right.mean(0))[0])

    def metrics(self, x: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """``error`` ‖w - w*‖, ``objective`` F, ``grad_norm`` ‖∇F‖, all on all data."""
        w = x["w"].detach().cpu().double()
        return {
            "error": float(torch.dist(w, self._solution)),
            "objective": float(self.value(w)),
            "grad_norm": float(self.gradient(w).norm()),
        }
