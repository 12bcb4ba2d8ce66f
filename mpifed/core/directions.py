"""Directions: the step computed from an estimator (Zhang & Gao: normalised, clipped, orthogonalised).

A direction maps ``[C, d]`` (or ``[d]``) to the same shape, client by client; ``shapes`` gives the block's
named parameters, because ``norm_over = "tensor"`` and orthogonalisation act on every parameter by itself. 0/0
is 0.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field

from mpifed.base.settings import choice, hyperparameters
from mpifed.core.finite import where_finite

__all__ = ["Plain", "Normalize", "Clip", "Orthogonalize", "DIRECTIONS", "Direction"]

Shapes = dict[str, tuple[int, ...]]
NormOver = Literal["block", "tensor"]
#: Coefficients (a, b, c) of X ← aX + b(XXᵀ)X + c(XXᵀ)²X.
QUINTIC, CUBIC = (3.4445, -4.7750, 2.0315), (1.5, -0.5, 0.0)


def _each(u: torch.Tensor, shapes: Shapes, function) -> torch.Tensor:
    """``function(part, shape)`` of every parameter's flat part, put together again; without parts, u
    itself."""
    if not shapes:
        return u
    parts = u.split([math.prod(shape) for shape in shapes.values()], dim=-1)
    return torch.cat([function(part, shape) for part, shape in zip(parts, shapes.values())], dim=-1)


def _norms(u: torch.Tensor, shapes: Shapes, over: str) -> torch.Tensor:
    """The norm that each coordinate's block or tensor has, broadcastable against ``u``."""
    if over == "block":
        return torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    return _each(
        u, shapes, lambda part, _: torch.linalg.vector_norm(part, dim=-1, keepdim=True).expand_as(part)
    )


@hyperparameters
class Plain:
    """u itself."""

    def __call__(self, u: torch.Tensor, shapes: Shapes) -> torch.Tensor:
        return u


@hyperparameters
class Normalize:
    """u / ‖u‖ (Zhang & Gao, Algorithm 1, line 6)."""

    norm_over: NormOver = Field(
        default="block", description="norm over the whole block, or per parameter tensor"
    )

    def __call__(self, u: torch.Tensor, shapes: Shapes) -> torch.Tensor:
        norms = _norms(u, shapes, self.norm_over)
        return u / torch.where(norms > 0, norms, 1.0)


@hyperparameters
class Clip:
    """min(1, τ / ‖u‖) u (Zhang & Gao, eq. 21)."""

    tau: float = Field(default=0.1, gt=0, description="largest norm τ that is left alone")
    norm_over: NormOver = Field(
        default="block", description="norm over the whole block, or per parameter tensor"
    )

    def __call__(self, u: torch.Tensor, shapes: Shapes) -> torch.Tensor:
        norms = _norms(u, shapes, self.norm_over)
        return u * (self.tau / norms.clamp(min=self.tau))


@hyperparameters
class Orthogonalize:
    """The polar factor PQᵀ of every matrix-shaped parameter U = PΣQᵀ; vectors are normalised (Zhang & Gao,
    Algorithm 3).

    ``svd`` keeps the directions with singular value above rounding (rank-deficient U, zero matrix → 0).
    ``newton_schulz`` is Jordan's quintic iteration, whose singular values end near 1 only;
    ``newton_schulz_cubic`` converges to 1. Parameters with more than two axes are matrices of their first
    axis by the others.
    """

    method: Literal["svd", "newton_schulz", "newton_schulz_cubic"] = Field(
        default="svd", description="how it is computed"
    )
    steps: int = Field(default=5, ge=1, description="iterations of a Newton-Schulz method")

    def __call__(self, u: torch.Tensor, shapes: Shapes) -> torch.Tensor:
        return _each(u, shapes, self._parameter)

    def _parameter(self, part: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) < 2:
            return Normalize()(part, {"": shape})
        U = part.reshape(-1, shape[0], math.prod(shape[1:]))
        tall = U.shape[-2] > U.shape[-1]
        X = self._factor(U.mT if tall else U)
        return (X.mT if tall else X).reshape(part.shape)

    def _factor(self, U: torch.Tensor) -> torch.Tensor:
        """The factors of wide matrices ``[C, m, n]``, m ≤ n."""
        if self.method != "svd":
            return self._newton_schulz(U)
        return where_finite(_polar if U.dtype == torch.float64 else _polar_of_gram, U)

    def _newton_schulz(self, U: torch.Tensor) -> torch.Tensor:
        a, b, c = QUINTIC if self.method == "newton_schulz" else CUBIC
        X = U / (torch.linalg.matrix_norm(U, keepdim=True) + 1e-7)
        for _ in range(self.steps):
            G = X @ X.mT
            X = torch.baddbmm(X, torch.baddbmm(G, G, G, beta=b, alpha=c), X, beta=a)
        return X


def _polar(U: torch.Tensor) -> torch.Tensor:
    """PQᵀ over the singular directions above rounding."""
    P, s, Qt = torch.linalg.svd(U, full_matrices=False)
    return (P * (s > _rounding(U) * s[..., :1]).to(U.dtype).unsqueeze(-2)) @ Qt


def _polar_of_gram(U: torch.Tensor) -> torch.Tensor:
    """The same for wide matrices of lower precision, as (UUᵀ)^(-1/2) U in double precision, for less than
    half the time.

    The squares of all singular values above single precision's rounding are far above double precision's.
    """
    X = U.double()
    squares, P = torch.linalg.eigh(X @ X.mT)
    inverse = torch.where(squares > _rounding(U) ** 2 * squares[..., -1:], squares.rsqrt(), 0.0)
    return ((P * inverse.unsqueeze(-2)) @ (P.mT @ X)).to(U.dtype)


def _rounding(U: torch.Tensor) -> float:
    """The threshold of singular values, relative to the largest."""
    return max(U.shape[-2:]) * torch.finfo(U.dtype).eps


DIRECTIONS = {"identity": Plain, "normalize": Normalize, "clip": Clip, "orthogonalize": Orthogonalize}

#: A direction by name, table or instance.
Direction = choice("direction", DIRECTIONS)
