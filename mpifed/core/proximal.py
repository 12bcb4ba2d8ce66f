"""Convex functions φ through their proximal maps, prox_{wφ}(v) = argmin_u ½‖u - v‖² + w φ(u).

With h = ½‖·‖² the mirror map of dual extrapolation (Wang & Kale, eq. 13) is ∇(h + wφ)*(v) = prox_{wφ}(v). All
maps act on the last axis and broadcast over the client axis; ``value`` is φ itself (0 on the set for an
indicator).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from pydantic import Field

from mpifed.core.linalg import where_finite
from mpifed.core.sets import Set
from mpifed.core.settings import choice, hyperparameters

__all__ = ["Zero", "L1", "L1Box", "Nuclear", "Indicator", "Separable", "PROXIMALS", "Proximal"]


@hyperparameters
class Zero:
    """φ = 0."""

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        return v

    def value(self, v: torch.Tensor) -> torch.Tensor:
        """φ(v), one value a row."""
        return v.new_zeros(v.shape[:-1])


@hyperparameters
class L1:
    """φ = λ‖v‖₁: soft thresholding."""

    lam: float = Field(default=0.1, ge=0, description="weight λ")

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        return v.sign() * (v.abs() - weight * self.lam).clamp(min=0)

    def value(self, v: torch.Tensor) -> torch.Tensor:
        """φ(v), one value a row."""
        return self.lam * v.abs().sum(-1)


@hyperparameters
class L1Box:
    """φ = λ‖v‖₁ where all |v_j| ≤ D, ∞ elsewhere: soft thresholding, then clipping."""

    lam: float = Field(default=0.1, ge=0, description="weight λ")
    bound: float = Field(default=0.05, gt=0, description="half-width D of the box")

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        return L1(self.lam)(v, weight).clamp(-self.bound, self.bound)

    def value(self, v: torch.Tensor) -> torch.Tensor:
        """φ(v) on the box, one value a row; points off the box are the caller's care."""
        return L1(self.lam).value(v)


@hyperparameters
class Nuclear:
    """φ = λ · sum of the singular values of v seen as a matrix: soft thresholding of the singular values."""

    shape: tuple[int, int] = Field(description="rows and columns of the matrix")
    lam: float = Field(default=0.1, ge=0, description="weight λ")

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        def soft(matrices):
            P, s, Q = torch.linalg.svd(matrices, full_matrices=False)
            return (P * (s - weight * self.lam).clamp(min=0).unsqueeze(-2)) @ Q

        return where_finite(soft, v.reshape(*v.shape[:-1], *self.shape)).reshape(v.shape)

    def value(self, v: torch.Tensor) -> torch.Tensor:
        """φ(v), one value a row."""
        return self.lam * torch.linalg.matrix_norm(v.reshape(*v.shape[:-1], *self.shape), "nuc")


@hyperparameters
class Indicator:
    """φ = 0 on a closed convex set, ∞ outside: the projection, whatever the weight."""

    set: Set = Field(description="the set: ball, box, simplex")

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        return self.set(v)

    def value(self, v: torch.Tensor) -> torch.Tensor:
        """φ(v) on the set, one value a row; points off the set are the caller's care."""
        return v.new_zeros(v.shape[:-1])


@dataclass(frozen=True)
class Separable:
    """φ(v) = Σ_i φ_i(v_i) over consecutive parts v_i of v: the proximal map goes part by part.

    Attributes:
        parts: name → φ_i, in the order of the parts.
        sizes: the parts' numbers of coordinates.
    """

    parts: Mapping[str, Callable]
    sizes: tuple[int, ...]

    def split(self, v: torch.Tensor) -> Iterator[tuple[str, Callable, torch.Tensor]]:
        """Each part's name, φ_i and v_i."""
        return zip(self.parts, self.parts.values(), v.split(self.sizes, dim=-1))

    def each(self, function: Callable, v: torch.Tensor) -> torch.Tensor:
        """``function(φ_i, v_i)`` of every part, put together again."""
        return torch.cat([function(phi, part) for _, phi, part in self.split(v)], dim=-1)

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        return self.each(lambda phi, part: phi(part, weight), v)


PROXIMALS = {"zero": Zero, "l1": L1, "l1_box": L1Box, "nuclear": Nuclear, "indicator": Indicator}

#: A convex function by name, table or instance.
Proximal = choice("convex function", PROXIMALS)
