"""Estimates of constants from gradients: the tail index of a sample, a local Lipschitz constant.

The tail index is Hill's (1975): with the order statistics X_(1) ≥ X_(2) ≥ ... of n lengths of noise ::

    index = k / Σ_{i ≤ k} log(X_(i) / X_(k+1)),   k = ⌊√n⌋ unless given.

Where the tail is exactly Pareto's beyond X_(k+1), k index⁻¹ times the true index has the Gamma law of shape
k, which gives the interval. A few large values k keep the bias of other tails small and make the interval
wide; light tails have no index, and show as one that is large and grows with n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from mpifed.core.solvers import difference

__all__ = ["Tail", "hill", "lipschitz", "top_values"]

#: Probability with which the interval of the tail index covers it, where its assumptions hold.
COVERS = 0.95
#: Relative change of an estimate of a Lipschitz constant that ends its iteration.
SETTLED = 1e-6


class Tail(NamedTuple):
    """A tail index and its confidence interval; NaN if it cannot be estimated."""

    estimate: float
    low: float
    high: float


def top_values(count: int) -> int:
    """k, how many of the largest of ``count`` values Hill's estimate takes."""
    return math.isqrt(count)


def hill(lengths: np.ndarray, top: int | None = None) -> Tail:
    """The tail index of non-negative ``lengths`` ``[n]``.

    Args:
        top: how many of the largest values are taken, k < n.
    """
    from scipy.special import gammaincinv  # here: it takes a third of a second

    top = top or top_values(len(lengths))
    if len(lengths) <= top or not np.isfinite(lengths).all():
        return Tail(math.nan, math.nan, math.nan)
    largest = np.sort(lengths)[-top - 1 :]
    if largest[0] <= 0 or largest[-1] == largest[0]:
        return Tail(math.nan, math.nan, math.nan)
    index = top / float(np.log(largest[1:] / largest[0]).sum())
    outside = (1 - COVERS) / 2
    return Tail(index, *(index * float(gammaincinv(top, share)) / top for share in (outside, 1 - outside)))


def lipschitz(
    field: Callable[[torch.Tensor], torch.Tensor],
    point: torch.Tensor,
    direction: torch.Tensor,
    iterations: int,
) -> float:
    """The largest ‖F(z + hv) - F(z - hv)‖ / 2h that is met for unit vectors v, each the last difference.

    A lower bound of F's Lipschitz constant. Where F is a gradient this is the power iteration on its
    Hessian, so that it tends to the Hessian's norm at z.

    Args:
        field: F, ``[d]`` → ``[d]``.
        direction: the first v, of any length.
    """
    width = difference(point)
    largest, v = 0.0, direction if float(direction.norm()) > 0 else torch.ones_like(point)
    for _ in range(iterations):
        v = v / v.norm()
        v = (field(point + width * v) - field(point - width * v)) / (2 * width)
        steepness = float(v.norm())
        if not steepness > largest * (1 + SETTLED):
            return max(steepness, largest)
        largest = steepness
    return largest
