"""Minimax problems that satisfy a Polyak-Łojasiewicz (PL) condition in y with known constants."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Minimax, Named
from mpifed.core.records import Blocks
from mpifed.core.streams import BYTES_PER_DRAW, Stream, generator
from mpifed.problems.constants import around, rotation

__all__ = ["QuadraticNCPL", "TwoSidedPL"]


@problem_settings
class QuadraticNCPL(Minimax):
    """f_n(x, y) = xᵀP_n x/2 + xᵀR_n y - yᵀS_n y/2 + p_nᵀx + s_nᵀy, whose mean is μ-PL in y and ℓ-smooth.

    In random orthonormal bases the mean decomposes into pairs of directions of x and y, and single
    directions. Pair i < min(dx, rank) has the Hessian ((-a_i, ρ_i), (ρ_i, -σ_i)), where σ_i increases
    geometrically from μ = ℓ/κ towards ℓ, a_i = (ℓ - σ_i)/2 and ρ_i² = (ℓ - a_i)(ℓ - σ_i). Its spectral norm
    is ℓ, it is nonconvex in x, and Φ = max_y f has the curvature (ℓ/2)(ℓ/σ_i - 1), so y must be updated
    faster than x. The other directions of x have curvatures from μ to ℓ, in which gradient descent ascent
    with step sizes for the pairs is slow. The other directions of y have the curvature -σ_i up to ``rank``,
    otherwise 0. Φ is strongly convex with a normal minimiser x*. With heterogeneity h, the Hessians of the
    clients differ by matrices of norm about h ℓ, and their gradients at (x*, y*) by vectors with standard
    deviation h.
    """

    dx: int = Field(default=10, ge=1, description="dimension of x")
    dy: int = Field(default=10, ge=1, description="dimension of y")
    rank: int = Field(
        default=5, ge=1, description="rank of the Hessian in y; for rank = dy, f is strongly concave in y"
    )
    clients: int = Field(default=10, ge=1, description="number of clients")
    ell: float = Field(default=1.0, gt=0, description="smoothness ℓ: spectral norm of the mean Hessian")
    kappa: float = Field(default=10.0, gt=1, description="condition number κ = ℓ/μ")
    heterogeneity: float = Field(default=0.0, ge=0, description="heterogeneity h of the clients")
    shared_hessian: bool = Field(
        default=False, description="only p_n and s_n differ (Shen et al. 2024, Assumption 2.3)"
    )
    scale: float = Field(
        default=1.0, ge=0, description="standard deviation of the coordinates of the starting point"
    )

    source = "Shen et al. 2024, Assumptions 2.1 to 2.4 and 3.1"
    cites = ("shen2024fessgda",)
    single_row = True
    metric_names = ("grad_phi", "phi_gap", "x_error")

    def __post_init__(self):
        if self.rank > self.dy:
            raise ValueError(f"expected rank ≤ dy, got rank = {self.rank}, dy = {self.dy}")

    @property
    def mu(self) -> float:
        """PL constant μ = ℓ/κ of -f(x, ·): ‖∇_y f‖² ≥ 2μ (Φ - f)."""
        return self.ell / self.kappa

    @property
    def ell_clients(self) -> float:
        """Largest smoothness constant of the f_n: the largest spectral norm of a client's Hessian."""
        return float(max(np.linalg.norm(H, 2) for H in self._H))

    def footprint(self) -> int:
        spread = self.heterogeneity and not self.shared_hessian
        per_entry = BYTES_PER_DRAW if spread else 16  # a client's Hessian, and its symmetric part
        return (per_entry * self.clients + 32) * (self.dx + self.dy) ** 2

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Draw all N clients on every rank, as the solution needs: O(N · (dx + dy)²) memory."""
        rng, stream = generator(seed, "quadratic"), Stream(seed, "quadratic", np.arange(self.clients))
        self._point = rng.standard_normal(self.dx + self.dy)
        vectors = around(np.zeros(self.dx + self.dy), self.heterogeneity, stream)
        # The symmetric part of a normal [D, D] matrix of standard deviation σ has norm about σ √(2D).
        scale = self.heterogeneity * self.ell / np.sqrt(2 * (self.dx + self.dy))
        scale = 0.0 if self.shared_hessian else scale
        deviations = around(np.zeros((self.dx + self.dy,) * 2), scale, stream)
        self._H = self._mean_hessian(rng) + (deviations + deviations.swapaxes(1, 2)) / 2
        self._g = vectors - (self._H * self._point).sum(axis=-1)
        self._mean = self._H.mean(axis=0), self._g.mean(axis=0)

    def _mean_hessian(self, rng: np.random.Generator) -> np.ndarray:
        """Return ((P, R), (Rᵀ, -S)), and store the pseudo-inverse S⁺ for Φ."""
        pairs, ell = min(self.dx, self.rank), self.ell
        sigma = self.mu * self.kappa ** (np.arange(self.rank) / self.rank)
        a = (ell - sigma[:pairs]) / 2
        convex = np.geomspace(self.mu, ell, self.dx - pairs)
        X, Y = rotation(rng, self.dx), rotation(rng, self.dy)[:, : self.rank]
        P = np.einsum("ij,j,kj->ik", X, np.concatenate([-a, convex]), X)
        R = np.einsum("ij,j,kj->ik", X[:, :pairs], np.sqrt((ell - a) * (ell - sigma[:pairs])), Y[:, :pairs])
        S = np.einsum("ij,j,kj->ik", Y, sigma, Y)
        self._pinv_S = np.einsum("ij,j,kj->ik", Y, 1 / sigma, Y)
        return np.block([[P, R], [R.T, -S]])

    def constants(self) -> dict[str, float]:
        """Return ``L``, the largest smoothness constant of a client, ``mu`` and ``sigma`` = 0."""
        return {"L": self.ell_clients, "mu": self.mu, "sigma": 0.0}

    def variables(self) -> Blocks:
        return Blocks(x={"x": (self.dx,)}, y={"y": (self.dy,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        sizes = {"x": self.dx, "y": self.dy}
        return {block: torch.from_numpy(self.scale * rng.standard_normal(d)) for block, d in sizes.items()}

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return a row per client: the Hessian ``[C, dx + dy, dx + dy]`` and (p_n, s_n) ``[C, dx + dy]``."""
        columns = torch.from_numpy(self._H[clients]), torch.from_numpy(self._g[clients])
        return columns, self.client_sizes(clients)

    def gradients(self, x: torch.Tensor, y: torch.Tensor, batch: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        """Return H(x, y) + (p_n, s_n)."""
        H, linear = batch[0][:, 0], batch[1][:, 0]
        gradient = (H @ torch.cat([x, y], dim=-1).unsqueeze(-1)).squeeze(-1) + linear
        return gradient.split((self.dx, self.dy), dim=-1)

    def solution(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the minimiser x* of Φ and a maximiser y* of f(x*, ·), ``[dx]`` and ``[dy]`` float64."""
        return torch.from_numpy(self._point).split((self.dx, self.dy))

    def y_star(self, x: np.ndarray) -> np.ndarray:
        """Return the maximiser of f(x, ·) of least norm, ``[dy]``: S⁺(Rᵀx + s)."""
        H, g = self._mean
        return self._pinv_S @ (H[self.dx :, : self.dx] @ x + g[self.dx :])

    def best_response(self, x: Named) -> torch.Tensor:
        """Return :meth:`y_star` for the stationarity measures, ``[dy]`` float64."""
        return torch.from_numpy(self.y_star(x["x"].cpu().double().numpy()))

    def grad_phi(self, x: np.ndarray) -> np.ndarray:
        """Return ∇Φ(x) = ∇_x f(x, y*(x)), ``[dx]``."""
        H, g = self._mean
        return H[: self.dx] @ np.concatenate([x, self.y_star(x)]) + g[: self.dx]

    def phi(self, x: np.ndarray) -> float:
        """Return Φ(x) = max_y f(x, y) of the mean f."""
        H, g = self._mean
        z = np.concatenate([x, self.y_star(x)])
        return float(z @ H @ z / 2 + g @ z)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``grad_phi`` = ‖∇Φ(x)‖, ``phi_gap`` = Φ(x) - min Φ, ``x_error`` = ‖x - x*‖."""
        point = x["x"].cpu().double().numpy()
        gradient, error = self.grad_phi(point), point - self._point[: self.dx]
        # Since Φ is quadratic with its minimum at x*, this is the gap, without cancellation.
        gap = float(gradient @ error) / 2
        return {
            "grad_phi": float(np.linalg.norm(gradient)),
            "phi_gap": gap,
            "x_error": float(np.linalg.norm(error)),
        }


@problem_settings
class TwoSidedPL(Minimax):
    """f(x, y) = Σ_j x_j² + 3 sin²x_j sin²y_j - 4y_j² - 10 sin²y_j, which is PL in x and in y.

    f is nonconvex-nonconcave with the saddle point 0, and the mean of f_n(x, y) = t_n f(x, y) + a_nᵀx +
    b_nᵀy. t_n is exp(``scaling`` · ν_n) with normal ν_n, divided by its mean over the clients. a_n and b_n
    are normal with standard deviation ``shift``, minus their mean over the clients.
    """

    d: int = Field(default=1, ge=1, description="dimension of x and of y")
    clients: int = Field(default=10, ge=1, description="number of clients")
    shift: float = Field(default=1.0, ge=0, description="standard deviation of a_n and b_n")
    scaling: float = Field(
        default=0.0, ge=0, description="standard deviation of log t_n before normalisation to mean 1"
    )
    scale: float = Field(
        default=3.0, ge=0, description="standard deviation of the coordinates of the starting point"
    )

    source = "Shen et al. 2024, section 3.2.5; Yang, Kiyavash & He 2020"
    cites = ("shen2024fessgda", "yang2020agda")
    single_row = True
    metric_names = ("x_error", "y_error", "error")

    #: Smoothness of f, attained at 0, and lower bounds of its PL constants in x and in y.
    ell, mu_x, mu_y = 28.0, 1 / 6, 5 / 4

    def footprint(self) -> int:
        return BYTES_PER_DRAW * self.clients * 2 * self.d

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Draw all N clients on every rank, as the solution needs: O(N · d) memory."""
        stream = Stream(seed, "two-sided", np.arange(self.clients))
        t = np.exp(self.scaling * stream.normal(1)[:, 0])
        self._t = t / t.mean()
        self._shifts = around(np.zeros(2 * self.d), self.shift, stream)

    def constants(self) -> dict[str, float]:
        """Return the largest ``L`` of a client, ``mu`` = ``mu_y`` and ``mu_x`` of the mean, ``sigma`` = 0."""
        ell = self.ell * float(self._t.max())
        return {"L": ell, "mu": self.mu_y, "mu_x": self.mu_x, "mu_y": self.mu_y, "sigma": 0.0}

    def variables(self) -> Blocks:
        return Blocks(x={"x": (self.d,)}, y={"y": (self.d,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        return {block: torch.from_numpy(self.scale * rng.standard_normal(self.d)) for block in "xy"}

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return a row per client: t_n ``[C, 1]`` and (a_n, b_n) ``[C, 2d]``."""
        columns = torch.from_numpy(self._t[clients]), torch.from_numpy(self._shifts[clients])
        return columns, self.client_sizes(clients)

    def gradients(self, x: torch.Tensor, y: torch.Tensor, batch: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        """Return t_n ∇f + (a_n, b_n)."""
        t, (a, b) = batch[0][:, 0], batch[1][:, 0].split(self.d, dim=-1)
        gx = 2 * x + 3 * torch.sin(2 * x) * torch.sin(y) ** 2
        gy = (3 * torch.sin(x) ** 2 - 10) * torch.sin(2 * y) - 8 * y
        return t * gx + a, t * gy + b

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return the distances to the saddle point: ``x_error``, ``y_error`` and ``error``."""
        x_error, y_error = float(x["x"].double().norm()), float(y["y"].double().norm())
        return {"x_error": x_error, "y_error": y_error, "error": float(np.hypot(x_error, y_error))}
