"""Convex sets, convex functions φ and mirror maps.

All maps act on the last axis and broadcast over the client axis: ``[..., d]`` → ``[..., d]``.

* A *set* is represented by its Euclidean projection. A block without a set is unconstrained.
* A *convex function* φ is its proximal map, prox_{wφ}(v) = argmin_u ½‖u - v‖² + w φ(u); ``value`` is φ itself
  (0 on the set for an indicator). With h = ½‖·‖² the mirror map of dual extrapolation (Wang & Kale, eq. 13)
  is ∇(h + wφ)*(v) = prox_{wφ}(v).
* A *mirror map* of a dual method is ∇(h + wφ)* for a distance-generating function h. Wang & Kale (section 5)
  require h to be 1-strongly convex in some norm ‖·‖; their constants L, σ and G are then in the dual norm.
  If φ is :class:`Separable`, h is also a sum over the parts, 1-strongly convex in (Σ ‖u_i‖_i²)^(1/2). The
  methods of a mirror map are

  * ``mirror(dual, weight, phi)``: the primal point argmin_u h(u) + weight φ(u) - ⟨dual, u⟩;
  * ``mirror.dual(point, phi)``: ∇h(point), up to constants to which the map is invariant;
  * ``mirror.errors(phi, point)``: error messages if it does not support this φ or starting point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field

from mpifed.base.settings import choice, hyperparameters
from mpifed.core.numerics import scaled_norm, where_finite

__all__ = [
    "Ball", "BlockMirror", "Blockwise", "Box", "Entropy", "Euclidean", "Indicator", "IndicatorOf",
    "L1", "L1Ball", "L1Box", "Mirror", "MIRRORS", "Nuclear", "Proximal", "PROXIMALS", "Separable",
    "Set", "SETS", "Sets", "Simplex", "Space", "Zero",
]  # fmt: skip


@hyperparameters
class Space:
    """The whole space."""

    def __call__(self, point: torch.Tensor) -> torch.Tensor:
        return point


@hyperparameters
class Ball:
    """{v : ‖v - center‖ ≤ radius}, where all coordinates of the centre are ``center``."""

    radius: float = Field(default=1.0, gt=0, description="radius")
    center: float = Field(default=0.0, description="value of each coordinate of the centre")

    def __call__(self, point: torch.Tensor) -> torch.Tensor:
        offset, norm, scale = scaled_norm(point - self.center)
        return torch.where(norm > self.radius * scale, self.center + offset * (self.radius / norm), point)


@hyperparameters
class Box:
    """{v : low ≤ v_j ≤ high}."""

    low: float = Field(
        default=-1.0, allow_inf_nan=True, description="lower bound of every coordinate, or -inf"
    )
    high: float = Field(
        default=1.0, allow_inf_nan=True, description="upper bound of every coordinate, or inf"
    )

    def __post_init__(self):
        if not self.low < self.high:
            raise ValueError(f"a box needs low < high, got low = {self.low}, high = {self.high}")

    def __call__(self, point: torch.Tensor) -> torch.Tensor:
        return point.clamp(self.low, self.high)


@hyperparameters
class Simplex:
    """{v ≥ 0 : Σ v_j = total}, by sorting (Held, Wolfe & Crowder 1974).

    The projection of v + c is that of v for every number c. The largest coordinate is subtracted first,
    because sums of large coordinates would lose ``total`` to rounding. Coordinates that are smaller by
    ``total`` or more are projected to 0, so they are clamped, and the sums cannot overflow.
    """

    total: float = Field(default=1.0, gt=0, description="sum of the coordinates")

    def __call__(self, point: torch.Tensor) -> torch.Tensor:
        point = (point - point.amax(dim=-1, keepdim=True)).clamp(min=-self.total)
        ordered = point.sort(dim=-1, descending=True).values
        excess = _prefix_sums(ordered) - self.total
        count = torch.arange(1, point.shape[-1] + 1, dtype=point.dtype, device=point.device)
        # Without the clamp the index would be -1 if values are not finite; the result is NaN then.
        kept = (ordered - excess / count > 0).sum(-1, keepdim=True).clamp(min=1)
        return (point - excess.gather(-1, kept - 1) / kept).clamp(min=0)


def _prefix_sums(values: torch.Tensor) -> torch.Tensor:
    """Compute cumulative sums along the last axis, deterministically on every device.

    On a GPU, where ``torch.cumsum`` is not deterministic, log2(d) additions double the length of the sums.
    """
    if values.device.type == "cpu":
        return values.cumsum(-1)
    length = 1
    while length < values.shape[-1]:
        values = torch.cat([values[..., :length], values[..., length:] + values[..., :-length]], dim=-1)
        length *= 2
    return values


@hyperparameters
class L1Ball:
    """{v : Σ |v_j| ≤ radius}: the absolute values are projected onto the simplex (Duchi et al. 2008)."""

    radius: float = Field(default=1.0, gt=0, description="radius in the ℓ1 norm")

    def __call__(self, point: torch.Tensor) -> torch.Tensor:
        size = point.abs()
        outside = size.sum(-1, keepdim=True) > self.radius
        return torch.where(outside, point.sign() * Simplex(self.radius)(size), point)


SETS = {"space": Space, "ball": Ball, "l1_ball": L1Ball, "box": Box, "simplex": Simplex}

#: A set by name, table or instance.
Set: Any = choice("set", SETS)


_UNCONSTRAINED = Space()


class Sets:
    """The sets of a problem's blocks: ``sets.y(v)`` projects; a block without a set is unconstrained."""

    def __init__(self, **sets):
        self._sets = sets
        vars(self).update(
            dict.fromkeys("xyz", _UNCONSTRAINED)
            | {name: projection or _UNCONSTRAINED for name, projection in sets.items()}
        )

    def __iter__(self):
        """Iterate over the names of the blocks that have a set."""
        return iter(self._sets)

    def __getattr__(self, block: str):
        if block.startswith("_"):  # copy and pickle look up such methods
            raise AttributeError(block)
        return _UNCONSTRAINED


class IndicatorOf:
    """The indicator function of a set, whose proximal map is the projection."""

    def __init__(self, set):
        self.set = set

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        return self.set(v)


@hyperparameters
class Zero:
    """φ = 0."""

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        return v

    def value(self, v: torch.Tensor) -> torch.Tensor:
        """Return φ(v), ``[...]``."""
        return v.new_zeros(v.shape[:-1])


@hyperparameters
class L1:
    """φ = λ‖v‖₁: soft thresholding."""

    lam: float = Field(default=0.1, ge=0, description="weight λ")

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        return v.sign() * (v.abs() - weight * self.lam).clamp(min=0)

    def value(self, v: torch.Tensor) -> torch.Tensor:
        """Return φ(v), ``[...]``."""
        return self.lam * v.abs().sum(-1)


@hyperparameters
class L1Box:
    """φ = λ‖v‖₁ if all |v_j| ≤ D, otherwise ∞: soft thresholding, then clipping."""

    lam: float = Field(default=0.1, ge=0, description="weight λ")
    bound: float = Field(default=0.05, gt=0, description="half-width D of the box")

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        return L1(self.lam)(v, weight).clamp(-self.bound, self.bound)

    def value(self, v: torch.Tensor) -> torch.Tensor:
        """Return φ(v), ``[...]``, for points of the box."""
        return L1(self.lam).value(v)


@hyperparameters
class Nuclear:
    """φ = λ times the nuclear norm of v as a matrix: soft thresholding of the singular values."""

    shape: tuple[int, int] = Field(description="rows and columns of the matrix")
    lam: float = Field(default=0.1, ge=0, description="weight λ")

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        def soft(matrices):
            P, s, Q = torch.linalg.svd(matrices, full_matrices=False)
            return (P * (s - weight * self.lam).clamp(min=0).unsqueeze(-2)) @ Q

        return where_finite(soft, v.reshape(*v.shape[:-1], *self.shape)).reshape(v.shape)

    def value(self, v: torch.Tensor) -> torch.Tensor:
        """Return φ(v), ``[...]``."""
        return self.lam * torch.linalg.matrix_norm(v.reshape(*v.shape[:-1], *self.shape), "nuc")


@hyperparameters
class Indicator:
    """φ = 0 on a closed convex set, otherwise ∞: the projection, for every weight."""

    set: Set = Field(description="the set: ball, l1_ball, box, simplex")

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        return self.set(v)

    def value(self, v: torch.Tensor) -> torch.Tensor:
        """Return φ(v), ``[...]``, for points of the set."""
        return v.new_zeros(v.shape[:-1])


@dataclass(frozen=True)
class Separable:
    """φ(v) = Σ_i φ_i(v_i) over consecutive parts v_i of v, whose proximal maps act on the parts.

    Attributes:
        parts: name → φ_i, in the order of the parts.
        sizes: number of coordinates of each part.
    """

    parts: Mapping[str, Callable]
    sizes: tuple[int, ...]

    def split(self, v: torch.Tensor) -> Iterator[tuple[str, Callable, torch.Tensor]]:
        """Iterate over name, φ_i and v_i of each part."""
        return zip(self.parts, self.parts.values(), v.split(self.sizes, dim=-1))

    def each(self, function: Callable, v: torch.Tensor) -> torch.Tensor:
        """Apply ``function(φ_i, v_i)`` to each part and concatenate the results."""
        return torch.cat([function(phi, part) for _, phi, part in self.split(v)], dim=-1)

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        return self.each(lambda phi, part: phi(part, weight), v)


PROXIMALS = {"zero": Zero, "l1": L1, "l1_box": L1Box, "nuclear": Nuclear, "indicator": Indicator}

#: A convex function by name, table or instance.
Proximal = choice("convex function", PROXIMALS)


Phi = Callable[[torch.Tensor, float], torch.Tensor]
#: Relative tolerance for the sum of a starting point on a simplex, which may be in single precision.
ROUNDING = 1e-5


@hyperparameters
class Euclidean:
    """h = ½‖·‖₂²: dual and primal points coincide, and the mirror map is the proximal map of φ."""

    def __call__(self, dual: torch.Tensor, weight: float, phi: Phi) -> torch.Tensor:
        return phi(dual, weight)

    def dual(self, point: torch.Tensor, phi: Phi) -> torch.Tensor:
        return point

    def errors(self, phi: Phi, point: torch.Tensor, block: str = "z") -> Iterator[str]:
        return iter(())


@hyperparameters
class Entropy:
    """h = s Σ_j u_j log u_j on the simplex {u ≥ 0 : Σ u_j = s}, the set of φ: multiplicative weights.

    1-strongly convex in ‖·‖₁ by Pinsker's inequality. The mirror map is s softmax(dual / s) for every weight,
    and ∇h(u) = s log u up to a constant, to which the softmax is invariant.
    """

    def __call__(self, dual: torch.Tensor, weight: float, phi: Phi) -> torch.Tensor:
        if isinstance(phi, Separable):
            return phi.each(lambda part, v: self(v, weight, part), dual)
        total = phi.set.total  # type: ignore[attr-defined]
        return total * torch.softmax(dual / total, dim=-1)

    def dual(self, point: torch.Tensor, phi: Phi) -> torch.Tensor:
        if isinstance(phi, Separable):
            return phi.each(lambda part, v: self.dual(v, part), point)
        return phi.set.total * point.log()  # type: ignore[attr-defined]

    def errors(self, phi: Phi, point: torch.Tensor, block: str = "z") -> Iterator[str]:
        if isinstance(phi, Separable):
            for name, part, v in phi.split(point):
                yield from self.errors(part, v, name)
            return
        simplex = getattr(phi, "set", None)
        if not isinstance(simplex, Simplex):
            what = f"has the set {simplex}" if simplex is not None else f"has φ = {phi}"
            yield (
                f"mirror = 'entropy' is for simplexes, and {block} {what}: expected mirror = 'euclidean', or "
                "{ name = 'blockwise', x = ..., y = ... } with the mirror map of each block"
            )
        elif not (point > 0).all() or abs(point.sum() - simplex.total) > ROUNDING * simplex.total:
            yield (
                f"mirror = 'entropy' needs a starting point inside the simplex: expected {block} with "
                f"positive coordinates that sum to {simplex.total:g}, got the smallest coordinate "
                f"{point.min():.3g} and the sum {point.sum():.6g}"
            )


_BLOCK_MIRRORS: dict[str, Euclidean | Entropy] = {"euclidean": Euclidean(), "entropy": Entropy()}
BlockMirror = Literal["euclidean", "entropy"]


@hyperparameters
class Blockwise:
    """Separate mirror maps for x and y, for a problem whose φ is separable in x and y."""

    x: BlockMirror = Field(default="euclidean", description="mirror map of x")
    y: BlockMirror = Field(default="euclidean", description="mirror map of y")

    def mirror_of(self, block: str) -> Euclidean | Entropy:
        """Return the mirror map of a block."""
        return _BLOCK_MIRRORS[getattr(self, block)]

    def __call__(self, dual: torch.Tensor, weight: float, phi: Separable) -> torch.Tensor:
        return torch.cat([self.mirror_of(name)(v, weight, part) for name, part, v in phi.split(dual)], dim=-1)

    def dual(self, point: torch.Tensor, phi: Separable) -> torch.Tensor:
        return torch.cat([self.mirror_of(name).dual(v, part) for name, part, v in phi.split(point)], dim=-1)

    def errors(self, phi: Phi, point: torch.Tensor, block: str = "z") -> Iterator[str]:
        if not isinstance(phi, Separable) or not set(phi.parts) <= {"x", "y"}:
            yield f"mirror = 'blockwise' needs a φ that is separable in x and y, got φ = {phi}"
            return
        for name, part, v in phi.split(point):
            yield from self.mirror_of(name).errors(part, v, name)


MIRRORS: dict[str, Any] = {"euclidean": Euclidean, "entropy": Entropy, "blockwise": Blockwise}

#: A mirror map by name, table or instance.
Mirror = choice("mirror map", MIRRORS)
