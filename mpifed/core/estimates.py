"""Estimates from gradients: a local Lipschitz constant, and the tail index of noise.

Hill's estimate (1975) of the tail index from the order statistics X_(1) ≥ X_(2) ≥ ... of n noise norms is ::

    index = k / Σ_{i ≤ k} log(X_(i) / X_(k+1)),   k = ⌊√n⌋ by default.

If the tail beyond X_(k+1) is exactly Pareto, k times the true index divided by the estimate has the Gamma
distribution with shape k, which gives the confidence interval. A small k keeps the bias of other tails small,
but makes the interval wide. The estimate for light tails, which have no index, is large and grows with n.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from mpifed.core.solvers import Field, difference

__all__ = ["Tail", "hill", "lipschitz", "top_values"]

#: Coverage of the confidence interval of the tail index.
COVERAGE = 0.95
#: Relative change of an estimated Lipschitz constant at which its iteration stops.
CONVERGED = 1e-6


def lipschitz(field: Field, point: torch.Tensor, direction: torch.Tensor, iterations: int) -> float:
    """Estimate a lower bound of the Lipschitz constant of a field F near a point.

    The bound is the largest ‖F(z + hv) - F(z - hv)‖ / 2h over unit vectors v, each of which is the previous
    difference. If F is a gradient, this is the power iteration on its Hessian at z.

    Args:
        field: F, ``[d]`` → ``[d]``.
        point: z, ``[d]``.
        direction: the first v, of any length.
        iterations: maximum number of vectors v.
    """
    width = difference(point)
    largest, v = 0.0, direction if float(direction.norm()) > 0 else torch.ones_like(point)
    for _ in range(iterations):
        v = v / v.norm()
        v = (field(point + width * v) - field(point - width * v)) / (2 * width)
        steepness = float(v.norm())
        if not steepness > largest * (1 + CONVERGED):
            return max(steepness, largest)
        largest = steepness
    return largest


class Tail(NamedTuple):
    """A tail index and its confidence interval; NaN if it cannot be estimated."""

    estimate: float
    low: float
    high: float


def top_values(count: int) -> int:
    """Return k, the default number of the largest of ``count`` values that Hill's estimate uses."""
    return math.isqrt(count)


def hill(lengths: np.ndarray, top: int | None = None) -> Tail:
    """Estimate the tail index of non-negative ``lengths``, ``[n]``.

    Args:
        top: the number k < n of largest values that are used.
    """
    from scipy.special import gammaincinv  # imported late, because it takes a third of a second

    top = top or top_values(len(lengths))
    if len(lengths) <= top or not np.isfinite(lengths).all():
        return Tail(math.nan, math.nan, math.nan)
    largest = np.sort(lengths)[-top - 1 :]
    if largest[0] <= 0 or largest[-1] == largest[0]:
        return Tail(math.nan, math.nan, math.nan)
    index = top / float(np.log(largest[1:] / largest[0]).sum())
    outside = (1 - COVERAGE) / 2
    return Tail(index, *(index * float(gammaincinv(top, share)) / top for share in (outside, 1 - outside)))
