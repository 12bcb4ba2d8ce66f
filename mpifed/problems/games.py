"""Affine variational inequalities: monotone games, bilinear games, and ℓ1-regularised bilinear games on a
box.

Since the operators are affine, the error metrics are exact: err_D is computed by the trust-region problem,
and the composite gap of the ℓ1 game in closed form. Constants are computed without BLAS, because its rounding
may depend on the number of threads of a rank.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Named
from mpifed.core.records import Blocks
from mpifed.core.sets import L1Box, Proximal, Zero
from mpifed.core.streams import BYTES_PER_DRAW, Stream, generator
from mpifed.problems.affine import Affine, Coupled, flat
from mpifed.problems.constants import around, rotation

__all__ = ["AffineGame", "Bilinear", "L1BoxBilinear"]


def _apply(J: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return the products J z for matrices ``[..., m, d]``, without BLAS."""
    return (J * z).sum(axis=-1)


@problem_settings
class AffineGame(Affine):
    """Monotone V_n(z) = A_n z + b_n, with A_n positive semidefinite plus antisymmetric, and a known solution.

    The mean of the symmetric parts has evenly spaced eigenvalues from ``strong`` to ``smooth``. The mean of
    the antisymmetric parts has the norm ``skew``. With heterogeneity h, each client's eigenvalues are scaled
    by factors exp(h ν), ν normal, divided by their mean over the clients. Its antisymmetric part has a
    deviation of norm about h ``skew``, and V_n(z*) a normal deviation with standard deviation h; these
    average to 0. The solution is z* = prox_φ(u) with u normal, since -V(z*) = u - z* is a subgradient of φ.
    """

    d: int = Field(default=10, ge=1, description="dimension of z")
    clients: int = Field(default=10, ge=1, description="number of clients")
    strong: float = Field(
        default=0.0, ge=0, description="strong monotonicity: smallest eigenvalue of the symmetric part"
    )
    smooth: float = Field(
        default=1.0, ge=0, description="largest eigenvalue of the symmetric part of the mean"
    )
    skew: float = Field(default=1.0, ge=0, description="norm of the antisymmetric part of the mean")
    phi: Proximal = Field(default=Zero(), description="convex function φ of z, through its proximal map")
    heterogeneity: float = Field(default=0.0, ge=0, description="heterogeneity h of the clients")
    shared_jacobian: bool = Field(default=False, description="all A_n are equal, only the b_n differ")
    radius: float = Field(default=10.0, ge=1e-12, le=1e12, description="radius D of err_D")
    start: Literal["normal", "zero"] = Field(
        default="normal", description="starting point z_0: standard normal, or 0"
    )

    source = "Wang & Kale n.d., section 3 and Theorem 2"
    cites = ("wang_nd_slippax",)

    def __post_init__(self):
        if self.smooth < self.strong:
            raise ValueError(f"expected strong ≤ smooth, got strong = {self.strong}, smooth = {self.smooth}")

    def footprint(self) -> int:
        spread = self.heterogeneity and not self.shared_jacobian
        return ((BYTES_PER_DRAW if spread else 24) * self.clients + 24) * self.d**2

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Draw all N clients on every rank, as the solution needs: O(N · d²) memory."""
        rng, stream = generator(seed, "affine game"), Stream(seed, "affine game", np.arange(self.clients))
        u, start = rng.standard_normal((2, self.d))
        solution = self.phi(torch.from_numpy(u), 1.0).numpy()
        vectors = around(solution - u, self.heterogeneity, stream)
        scale = 0.0 if self.shared_jacobian else self.heterogeneity
        self._A = self._symmetric(rng, scale, stream) + self._antisymmetric(rng, scale, stream)
        self._b = vectors - _apply(self._A, solution)
        self._set_mean_operator(self._A.mean(axis=0), self._b.mean(axis=0), start * (self.start == "normal"))
        self._set_solution(solution)

    def _symmetric(self, rng: np.random.Generator, scale: float, stream: Stream) -> np.ndarray:
        Q, values = rotation(rng, self.d), np.linspace(self.strong, self.smooth, self.d)
        factors = np.exp(scale * stream.normal(self.d)[:, 0])
        return np.einsum("ij,nj,kj->nik", Q, factors / factors.mean(axis=0) * values, Q)

    def _antisymmetric(self, rng: np.random.Generator, scale: float, stream: Stream) -> np.ndarray:
        """Return rotations at speeds up to ``skew``, plus a normal antisymmetric matrix per client."""
        Q, planes = rotation(rng, self.d), self.d // 2
        first, second = Q[:, :planes] * np.linspace(1, 0, planes, endpoint=False), Q[:, planes : 2 * planes]
        turn = np.einsum("ij,kj->ik", first, second)
        # For a standard normal matrix N, N - Nᵀ has norm about √(8d).
        G = around(np.zeros((self.d, self.d)), scale, stream) / np.sqrt(8 * self.d)
        return self.skew * (turn - turn.T + G - G.swapaxes(1, 2))

    @property
    def L(self) -> float:
        """Largest Lipschitz constant of a V_n."""
        return float(np.linalg.norm(self._A, 2, axis=(1, 2)).max())

    def variables(self) -> Blocks:
        return Blocks(z={"z": (self.d,)})

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return a row per client: A_n ``[C, d, d]`` and b_n ``[C, d]``."""
        columns = torch.from_numpy(self._A[clients]), torch.from_numpy(self._b[clients])
        return columns, self.client_sizes(clients)

    def operator(self, z: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        A, b = batch[0][:, 0], batch[1][:, 0]
        return (A @ z.unsqueeze(-1)).squeeze(-1) + b


@problem_settings
class Bilinear(Coupled):
    """f_n(x, y) = xᵀA_n y + a_nᵀx + b_nᵀy with an optional φ of z = (x, y) and a known solution.

    The singular values of the mean of the A_n decrease evenly from ``coupling`` to ``coupling`` / min(dx,
    dy). The solution is z* = prox_φ(u) with u normal of standard deviation 2, since -V(z*) = u - z* is a
    subgradient of φ.
    """

    dx: int = Field(default=5, ge=1, description="dimension of x")
    dy: int = Field(default=5, ge=1, description="dimension of y")
    clients: int = Field(default=10, ge=1, description="number of clients")
    coupling: float = Field(default=1.0, gt=0, description="norm of the mean of the A_n")
    phi: Proximal = Field(
        default=Zero(), description="convex function φ of z = (x, y), through its proximal map"
    )
    heterogeneity: float = Field(default=0.0, ge=0, description="heterogeneity of the clients")
    shared_jacobian: bool = Field(default=False, description="all A_n are equal, only a_n and b_n differ")
    radius: float = Field(default=10.0, ge=1e-12, le=1e12, description="radius D of err_D")
    start: Literal["normal", "zero"] = Field(
        default="normal", description="starting point z_0: standard normal, or 0"
    )

    source = "Wang & Kale n.d., sections 3 and 5"
    cites = ("wang_nd_slippax",)

    def footprint(self) -> int:
        spread = self.heterogeneity and not self.shared_jacobian
        per_client = (BYTES_PER_DRAW if spread else 8) * self.dx * self.dy
        return per_client * self.clients + 32 * (self.dx + self.dy) ** 2

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Draw all N clients on every rank, as the solution needs: O(N · dx dy) memory."""
        rng, stream = generator(seed, "bilinear"), Stream(seed, "bilinear", np.arange(self.clients))
        start, u = rng.standard_normal((2, self.dx + self.dy)) * [[float(self.start == "normal")], [2.0]]
        solution = self.phi(torch.from_numpy(u), 1.0).numpy()
        vectors = around(solution - u, self.heterogeneity, stream)
        k = min(self.dx, self.dy)
        columns = rotation(rng, self.dx)[:, :k] * np.linspace(self.coupling, 0, k, endpoint=False)
        mean = np.einsum("ij,kj->ik", columns, rotation(rng, self.dy)[:, :k])
        # A normal matrix of standard deviation σ has norm about σ (√dx + √dy).
        spread = self.heterogeneity * self.coupling / (np.sqrt(self.dx) + np.sqrt(self.dy))
        C = around(mean, 0.0 if self.shared_jacobian else spread, stream)
        x, y = solution[: self.dx], solution[self.dx :]
        values = np.concatenate([_apply(C, y), -_apply(C.swapaxes(1, 2), x)], axis=1)
        self._set_couplings(C, vectors - values, start)
        self._set_solution(solution)


@problem_settings
class L1BoxBilinear(Coupled):
    """min_x max_y of the mean of ⟨A_n x - b_n, y⟩ + λ‖x‖₁ - λ‖y‖₁ over the box ‖x‖∞, ‖y‖∞ ≤ D.

    Bai & Bullins (2024), appendix A.1: entries of A and b are uniform in (-1, 1) and equal for all clients,
    the starting point is uniform in the box, gradient noise is N(0, 0.1²), and there are 100 clients with dx
    = 600 and dy = 300.
    """

    dx: int = Field(default=60, ge=1, description="dimension of x")
    dy: int = Field(default=30, ge=1, description="dimension of y")
    clients: int = Field(default=10, ge=1, description="number of clients")
    lam: float = Field(default=0.1, ge=0, description="weight λ of the ℓ1 norms")
    bound: float = Field(default=0.05, gt=0, description="half-width D of the box")
    heterogeneity: float = Field(
        default=0.0, ge=0, description="standard deviation of the entries of A_n and b_n"
    )

    source = "Wang & Kale n.d., section 5; Bai & Bullins 2024"
    cites = ("wang_nd_slippax", "bai2024composite")
    metric_names = ("err_c", "residual", "nonzero")

    @property
    def phi(self) -> L1Box:
        """λ‖z‖₁ on the box."""
        return L1Box(self.lam, self.bound)

    def footprint(self) -> int:
        per_client = (
            16 * (self.dx + self.dy) + (BYTES_PER_DRAW if self.heterogeneity else 0) * self.dx * self.dy
        )
        return self.clients * per_client + 16 * (self.dx + self.dy) ** 2

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Draw all N clients on every rank, as the solution needs: O(N · dx dy) memory."""
        rng, stream = generator(seed, "l1 box"), Stream(seed, "l1 box", np.arange(self.clients))
        A, b = rng.uniform(-1, 1, (self.dy, self.dx)), rng.uniform(-1, 1, self.dy)
        start = rng.uniform(-self.bound, self.bound, self.dx + self.dy)
        client_b = around(b, self.heterogeneity, stream)
        offsets = np.concatenate([np.zeros((self.clients, self.dx)), client_b], axis=1)
        self._set_couplings(around(A.T, self.heterogeneity, stream), offsets, start)

    def err_c(self, z: np.ndarray) -> float:
        """Return the composite gap of a point of the box: the duality gap max_y' F(x, y') - min_x' F(x', y).

        D‖(|Ax - b| - λ)₊‖₁ + λ‖x‖₁ + D‖(|Aᵀy| - λ)₊‖₁ + ⟨b, y⟩ + λ‖y‖₁.
        """
        V = self.mean_operator(z)  # (Aᵀy, b - Ax)
        linear = self._c @ z  # ⟨b, y⟩: the constant part of V is (0, b)
        return float(self.bound * (abs(V) - self.lam).clip(min=0).sum() + self.lam * abs(z).sum() + linear)

    def metrics(self, z: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``err_c``, ``residual`` and ``nonzero``, the fraction of entries with |z_j| ≥ 1e-5."""
        point = flat(z)
        nonzero = float((abs(point) >= 1e-5).mean())
        return {"err_c": self.err_c(point), "residual": self.residual(point), "nonzero": nonzero}
