"""Directions of steps, computed from an estimator: normalised, clipped or orthogonalised (Zhang & Gao).

A direction maps ``[C, d]`` or ``[d]`` to the same shape, separately for each client. ``shapes`` contains the
names and shapes of the block's parameters, on which ``norm_over = "tensor"`` and orthogonalisation act
separately. 0/0 is 0.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field

from mpifed.base.settings import choice, hyperparameters
from mpifed.core.numerics import scaled_norm, where_finite

__all__ = ["Plain", "Normalize", "Clip", "Orthogonalize", "DIRECTIONS", "Direction", "clip"]

Shapes = dict[str, tuple[int, ...]]
NormOver = Literal["block", "tensor"]
#: Coefficients (a, b, c) of X ← aX + b(XXᵀ)X + c(XXᵀ)²X.
QUINTIC, CUBIC = (3.4445, -4.7750, 2.0315), (1.5, -0.5, 0.0)


def _map_parameters(u: torch.Tensor, shapes: Shapes, function) -> torch.Tensor:
    """Apply ``function(part, shape)`` to the flat part of each parameter and concatenate the results."""
    if not shapes:
        return u
    parts = u.split([math.prod(shape) for shape in shapes.values()], dim=-1)
    return torch.cat([function(part, shape) for part, shape in zip(parts, shapes.values())], dim=-1)


def _over(u: torch.Tensor, shapes: Shapes, over: str, function) -> torch.Tensor:
    """Apply ``function(vector)`` to the whole block, or to each parameter tensor."""
    return function(u) if over == "block" else _map_parameters(u, shapes, lambda part, _: function(part))


def clip(u: torch.Tensor, tau: float, dim: int | tuple[int, ...] = -1) -> torch.Tensor:
    """Return min(1, τ / ‖u‖) u, with the norm over the axes ``dim``."""
    u, norm, scale = scaled_norm(u, dim)
    return u * torch.where(norm > tau * scale, tau / norm, 1 / scale)


def _unit(u: torch.Tensor) -> torch.Tensor:
    """Return u / ‖u‖."""
    u, norm, _ = scaled_norm(u)
    return u / torch.where(norm > 0, norm, 1.0)


@hyperparameters
class Plain:
    """The estimator itself: u."""

    def __call__(self, u: torch.Tensor, shapes: Shapes) -> torch.Tensor:
        return u


@hyperparameters
class Normalize:
    """The normalised estimator: u / ‖u‖ (Zhang & Gao, Algorithm 1, line 6)."""

    norm_over: NormOver = Field(
        default="block", description="norm over the whole block, or per parameter tensor"
    )

    def __call__(self, u: torch.Tensor, shapes: Shapes) -> torch.Tensor:
        return _over(u, shapes, self.norm_over, _unit)


@hyperparameters
class Clip:
    """The clipped estimator: min(1, τ / ‖u‖) u (Zhang & Gao, eq. 21)."""

    tau: float = Field(
        default=0.1, gt=0, allow_inf_nan=True, description="largest norm τ that is not clipped"
    )
    norm_over: NormOver = Field(
        default="block", description="norm over the whole block, or per parameter tensor"
    )

    def __call__(self, u: torch.Tensor, shapes: Shapes) -> torch.Tensor:
        return _over(u, shapes, self.norm_over, lambda vector: clip(vector, self.tau))


@hyperparameters
class Orthogonalize:
    """The polar factor PQᵀ of every matrix-shaped parameter U = PΣQᵀ; vectors are normalised (Zhang & Gao,
    Algorithm 3).

    ``svd`` drops singular directions below rounding error, so a zero matrix gives 0. ``newton_schulz`` is
    Jordan's quintic iteration, whose singular values are only near 1; those of ``newton_schulz_cubic``
    converge to 1. A parameter with more than two axes is a matrix of the first axis by all others.
    """

    method: Literal["auto", "svd", "newton_schulz", "newton_schulz_cubic"] = Field(
        default="auto",
        description="algorithm that computes the polar factor; auto: svd on CPUs, newton_schulz on GPUs",
    )
    steps: int = Field(default=5, ge=1, description="iterations of a Newton-Schulz method")

    needs = {"steps": ("a Newton-Schulz method", lambda direction: direction.method != "svd")}

    def __call__(self, u: torch.Tensor, shapes: Shapes) -> torch.Tensor:
        return _map_parameters(u, shapes, self._parameter)

    def _parameter(self, part: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) < 2:
            return _unit(part)
        U = part.reshape(-1, shape[0], math.prod(shape[1:]))
        tall = U.shape[-2] > U.shape[-1]
        X = self._factor(U.mT if tall else U)
        return (X.mT if tall else X).reshape(part.shape)

    def _factor(self, U: torch.Tensor) -> torch.Tensor:
        """Return the polar factors of matrices ``[C, m, n]``, m ≤ n."""
        if self.method.startswith("newton_schulz") or (self.method == "auto" and U.is_cuda):
            return self._newton_schulz(U)
        return where_finite(_polar if U.dtype == torch.float64 else _polar_of_gram, U)

    def _newton_schulz(self, U: torch.Tensor) -> torch.Tensor:
        a, b, c = CUBIC if self.method == "newton_schulz_cubic" else QUINTIC
        U, norm, scale = scaled_norm(U, dim=(-2, -1))
        X = U / (norm + 1e-7 * scale)
        for _ in range(self.steps):
            G = X @ X.mT
            X = torch.baddbmm(X, torch.baddbmm(G, G, G, beta=b, alpha=c), X, beta=a)
        return X


def _polar(U: torch.Tensor) -> torch.Tensor:
    """Return PQᵀ over the singular directions above rounding error."""
    P, s, Qt = torch.linalg.svd(U, full_matrices=False)
    return (P * (s > _rounding(U) * s[..., :1]).to(U.dtype).unsqueeze(-2)) @ Qt


def _polar_of_gram(U: torch.Tensor) -> torch.Tensor:
    """Return PQᵀ of single-precision matrices, m ≤ n, as (UUᵀ)^(-1/2) U in double precision.

    This takes less than half the time. The squares of singular values above the rounding error of single
    precision are far above that of double precision.
    """
    X = U.double()
    squares, P = torch.linalg.eigh(X @ X.mT)
    inverse = torch.where(squares > _rounding(U) ** 2 * squares[..., -1:], squares.rsqrt(), 0.0)
    return ((P * inverse.unsqueeze(-2)) @ (P.mT @ X)).to(U.dtype)


def _rounding(U: torch.Tensor) -> float:
    """Return the threshold of singular values relative to the largest."""
    return max(U.shape[-2:]) * torch.finfo(U.dtype).eps


DIRECTIONS = {"identity": Plain, "normalize": Normalize, "clip": Clip, "orthogonalize": Orthogonalize}

#: A direction by name, table or instance.
Direction = choice("direction", DIRECTIONS)
