"""Affine variational inequalities: monotone games, bilinear games, and the ℓ1-regularised bilinear game on a
box.

Every operator is affine, V(z) = Jz + c with J = (1/N) Σ_n J_n, so the errors of a point are exact: err_D by
the trust-region problem, the composite gap of the ℓ1 game in closed form. Constants are built without BLAS,
whose bits may depend on the number of threads of a rank.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from mpifed.core.problem import Named, Operator
from mpifed.core.proximal import L1Box, Proximal, Zero
from mpifed.core.records import Blocks
from mpifed.core.settings import problem_settings
from mpifed.core.streams import BYTES_A_DRAW, Stream, generator
from mpifed.problems.constants import affine_constants, around, rotation
from mpifed.problems.trust_region import maximize_on_ball

__all__ = ["AffineGame", "Bilinear", "L1BoxBilinear"]


def _apply(J: np.ndarray, z: np.ndarray) -> np.ndarray:
    return (J * z).sum(axis=-1)


class _Affine(Operator):
    """Exact figures of a point from the mean operator; all vectors are float64 ``[d]``."""

    monotone = True
    constants = affine_constants

    def _fix(self, J: np.ndarray, c: np.ndarray, start: np.ndarray) -> None:
        self._J, self._c, self._start = J, c, start

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """z_0, which the seed fixes in :meth:`prepare`: it is the centre of the ball of err_D."""
        return {"z": torch.from_numpy(self._start)}

    def client_size(self, client: int) -> int:
        return 1

    def mean_operator(self, z: np.ndarray) -> np.ndarray:
        """V(z) = Jz + c, without φ."""
        return self._J @ z + self._c

    def residual(self, z: np.ndarray) -> float:
        """‖z - prox_φ(z - V(z))‖, which is ‖V(z)‖ for φ = 0; it vanishes at solutions only."""
        V = self.mean_operator(z)
        if isinstance(self.phi, Zero):
            return float(np.linalg.norm(V))
        return float(np.linalg.norm(z - self.phi(torch.from_numpy(z - V), 1.0).numpy()))

    def err_D(self, z: np.ndarray) -> float:
        """max over ‖w - z_0‖ ≤ D of ⟨V(w), z - w⟩ (Wang & Kale n.d., section 3, on a ball), exact; negative
        for some z off the ball.

        With w = z_0 + v and u = z - z_0 it is ⟨V(z_0), u⟩ plus the maximum of ⟨Jᵀu - V(z_0), v⟩ - vᵀJv.
        """
        u, V = z - self._start, self.mean_operator(self._start)
        return float(V @ u) + maximize_on_ball(-(self._J + self._J.T), self._J.T @ u - V, self.radius)[0]

    def _know(self, solution: np.ndarray) -> None:
        """Note a solution, and for φ = 0 the directions in which it is the only one."""
        self._solution = solution
        _, s, rows = np.linalg.svd(self._J)
        self._unique = (
            rows[s > 1e-12 * s.max(initial=0.0)] if isinstance(self.phi, Zero) else np.eye(len(solution))
        )

    def solution(self) -> torch.Tensor:
        """A solution z*, ``[d]`` float64."""
        return torch.from_numpy(self._solution)

    def distance(self, z: np.ndarray) -> float:
        """Distance to the set of solutions for φ = 0, to z* otherwise."""
        return float(np.linalg.norm(self._unique @ (z - self._solution)))

    def metrics(self, z: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        point = _flat(z)
        figures = {"err_D": self.err_D(point)} if isinstance(self.phi, Zero) else {}
        return figures | {"distance": self.distance(point), "residual": self.residual(point)}


def _flat(z: Named) -> np.ndarray:
    return torch.cat([part.reshape(-1) for part in z.values()]).cpu().double().numpy()


@problem_settings
class AffineGame(_Affine):
    """V_n(z) = A_n z + b_n, monotone: A_n is positive semidefinite plus antisymmetric, with a known solution.

    The mean of the symmetric parts has eigenvalues evenly spaced from ``strong`` to ``smooth``, that of the
    antisymmetric parts the norm ``skew``. With heterogeneity h client n has the eigenvalues scaled by factors
    exp(h ν), ν normal, over their mean, an antisymmetric deviation of norm about h ``skew``, and V_n(z*)
    normal with standard deviation h; all of these average out.
    """

    d: int = Field(default=10, ge=1, description="dimension of z")
    clients: int = Field(default=10, ge=1, description="number of clients")
    strong: float = Field(
        default=0.0, ge=0, description="strong monotonicity: least eigenvalue of the symmetric part"
    )
    smooth: float = Field(
        default=1.0, ge=0, description="largest eigenvalue of the symmetric part of the mean"
    )
    skew: float = Field(default=1.0, ge=0, description="norm of the antisymmetric part of the mean")
    heterogeneity: float = Field(default=0.0, ge=0, description="how far the clients differ, h")
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
        return ((BYTES_A_DRAW if spread else 24) * self.clients + 24) * self.d**2

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        rng, stream = generator(seed, "affine game"), Stream(seed, "affine game", np.arange(self.clients))
        solution, start = rng.standard_normal((2, self.d))
        vectors = around(np.zeros(self.d), self.heterogeneity, stream)
        scale = 0.0 if self.shared_jacobian else self.heterogeneity
        self._A = self._symmetric(rng, scale, stream) + self._antisymmetric(rng, scale, stream)
        self._b = vectors - _apply(self._A, solution)
        self._fix(self._A.mean(axis=0), self._b.mean(axis=0), start * (self.start == "normal"))
        self._know(solution)

    def _symmetric(self, rng: np.random.Generator, scale: float, stream: Stream) -> np.ndarray:
        Q, values = rotation(rng, self.d), np.linspace(self.strong, self.smooth, self.d)
        factors = np.exp(scale * stream.normal(self.d)[:, 0])
        return np.einsum("ij,nj,kj->nik", Q, factors / factors.mean(axis=0) * values, Q)

    def _antisymmetric(self, rng: np.random.Generator, scale: float, stream: Stream) -> np.ndarray:
        """Planes that turn at speeds up to ``skew``, and for each client a normal antisymmetric matrix
        more."""
        Q, planes = rotation(rng, self.d), self.d // 2
        first, second = Q[:, :planes] * np.linspace(1, 0, planes, endpoint=False), Q[:, planes : 2 * planes]
        turn = np.einsum("ij,kj->ik", first, second)
        # G - Gᵀ has norm about √(8d).
        own = around(np.zeros((self.d, self.d)), scale, stream) / np.sqrt(8 * self.d)
        return self.skew * (turn - turn.T + own - own.swapaxes(1, 2))

    @property
    def L(self) -> float:
        """Largest Lipschitz constant of a V_n."""
        return float(np.linalg.norm(self._A, 2, axis=(1, 2)).max())

    def variables(self) -> Blocks:
        return Blocks(z={"z": (self.d,)})

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        """One row: A_n ``[1, d, d]`` and b_n ``[1, d]``."""
        return torch.from_numpy(self._A[client][None]), torch.from_numpy(self._b[client][None])

    def operator(self, z: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        A, b = batch[0][:, 0], batch[1][:, 0]  # all rows of a batch are the client's only one
        return (A @ z.unsqueeze(-1)).squeeze(-1) + b


class _Coupled(_Affine):
    """z = (x, y), V_n = (C_n y, -C_nᵀ x) + offset_n: what bilinear games share."""

    def _couple(self, C: np.ndarray, offsets: np.ndarray, start: np.ndarray) -> None:
        self._C, self._offsets, mean = C, offsets, C.mean(axis=0)
        J = np.block([[np.zeros((self.dx, self.dx)), mean], [-mean.T, np.zeros((self.dy, self.dy))]])
        self._fix(J, offsets.mean(axis=0), start)

    @property
    def L(self) -> float:
        """Largest Lipschitz constant of a V_n: the largest singular value of a coupling."""
        return float(max(np.linalg.norm(C, 2) for C in self._C))

    def variables(self) -> Blocks:
        return Blocks(z={"x": (self.dx,), "y": (self.dy,)})

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        """One row: C_n ``[1, dx, dy]`` and the constant part of V_n ``[1, dx + dy]``."""
        return torch.from_numpy(self._C[client][None].copy()), torch.from_numpy(
            self._offsets[client][None].copy()
        )

    def operator(self, z: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        C, offset = batch[0][:, 0], batch[1][:, 0]  # all rows of a batch are the client's only one
        x, y = z.unsqueeze(-1).split((self.dx, self.dy), dim=-2)
        return torch.cat([C @ y, -(C.mT @ x)], dim=-2).squeeze(-1) + offset


@problem_settings
class Bilinear(_Coupled):
    """f_n(x, y) = xᵀA_n y + a_nᵀx + b_nᵀy, a pure rotation, with an optional φ of z = (x, y) and a known
    solution.

    The singular values of the mean of the A_n fall evenly from ``coupling`` to ``coupling`` / min(dx, dy).
    With u normal of standard deviation 2, the solution is z* = prox_φ(u), and the mean vectors make -V(z*)
    the subgradient u - z* of φ.
    """

    dx: int = Field(default=5, ge=1, description="dimension of x")
    dy: int = Field(default=5, ge=1, description="dimension of y")
    clients: int = Field(default=10, ge=1, description="number of clients")
    coupling: float = Field(default=1.0, gt=0, description="norm of the mean of the A_n")
    phi: Proximal = Field(
        default=Zero(), description="convex function φ of z = (x, y), through its proximal map"
    )
    heterogeneity: float = Field(default=0.0, ge=0, description="how far the clients differ")
    shared_jacobian: bool = Field(default=False, description="all A_n are equal, only a_n and b_n differ")
    radius: float = Field(default=10.0, ge=1e-12, le=1e12, description="radius D of err_D")
    start: Literal["normal", "zero"] = Field(
        default="normal", description="starting point z_0: standard normal, or 0"
    )

    source = "Wang & Kale n.d., sections 3 and 5"
    cites = ("wang_nd_slippax",)

    def footprint(self) -> int:
        spread = self.heterogeneity and not self.shared_jacobian
        own = (BYTES_A_DRAW if spread else 8) * self.dx * self.dy
        return own * self.clients + 32 * (self.dx + self.dy) ** 2

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
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
        self._couple(C, vectors - np.concatenate([_apply(C, y), -_apply(C.swapaxes(1, 2), x)], axis=1), start)
        self._know(solution)


@problem_settings
class L1BoxBilinear(_Coupled):
    """min_x max_y of the mean of ⟨A_n x - b_n, y⟩ + λ‖x‖₁ - λ‖y‖₁ over the box ‖x‖∞, ‖y‖∞ ≤ D.

    Bai & Bullins (2024), appendix A.1: entries of A and b uniform in (-1, 1) and equal for all clients, start
    uniform in the box, noise of the oracle N(0, 0.1²), 100 clients, dx = 600, dy = 300.
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

    @property
    def phi(self) -> L1Box:
        """λ‖z‖₁ on the box."""
        return L1Box(self.lam, self.bound)

    def footprint(self) -> int:
        own = 16 * (self.dx + self.dy) + (BYTES_A_DRAW if self.heterogeneity else 0) * self.dx * self.dy
        return self.clients * own + 16 * (self.dx + self.dy) ** 2

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        rng, stream = generator(seed, "l1 box"), Stream(seed, "l1 box", np.arange(self.clients))
        A, b = rng.uniform(-1, 1, (self.dy, self.dx)), rng.uniform(-1, 1, self.dy)
        start = rng.uniform(-self.bound, self.bound, self.dx + self.dy)
        own = around(b, self.heterogeneity, stream)
        offsets = np.concatenate([np.zeros((self.clients, self.dx)), own], axis=1)
        self._couple(around(A.T, self.heterogeneity, stream), offsets, start)

    def err_c(self, z: np.ndarray) -> float:
        """Composite gap of a point of the box, which is the duality gap max_y' F(x, y') - min_x' F(x', y):

        D‖(|Ax - b| - λ)₊‖₁ + λ‖x‖₁ + D‖(|Aᵀy| - λ)₊‖₁ + ⟨b, y⟩ + λ‖y‖₁.
        """
        V = self.mean_operator(z)  # (Aᵀy, b - Ax)
        linear = self._c @ z  # ⟨b, y⟩: the constant part of V is (0, b)
        return float(self.bound * (abs(V) - self.lam).clip(min=0).sum() + self.lam * abs(z).sum() + linear)

    def metrics(self, z: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """``err_c``, ``residual``, and ``nonzero``, the share of entries of at least 1e-5 in absolute
        value."""
        point = _flat(z)
        nonzero = float((abs(point) >= 1e-5).mean())
        return {"err_c": self.err_c(point), "residual": self.residual(point), "nonzero": nonzero}
