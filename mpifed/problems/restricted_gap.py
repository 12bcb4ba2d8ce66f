"""Certified bounds of the restricted gap of affine, monotone, composite variational inequalities.

The gap is the maximum over ‖w - z_0‖ ≤ D of ⟨V(w), z - w⟩ + φ(z) - φ(w) with V(w) = Jw + c. With S = (J +
Jᵀ)/2 ⪰ 0 and q = Jᵀz - c it is ⟨c, z⟩ + φ(z) plus the maximum of ⟨q, w⟩ - ⟨w, Sw⟩ - φ(w), which is concave.

* Lower bound: every w in the ball gives one.
* Upper bound: since -⟨w, Sw⟩ ≤ ⟨v, Sv⟩ - 2⟨Sv, w⟩ for every v, the maximum over w of ⟨v, Sv⟩ + ⟨q - 2Sv, w⟩ -
  φ(w) is an upper bound. It is at most its Lagrangian for any multiplier m > 0 of the ball, whose maximiser
  is the proximal point prox_{φ/m}(z_0 + (q - 2Sv)/m).

Accelerated proximal gradient steps (Beck & Teboulle 2009), restarted if the function decreases, update v
until the bounds agree. If S = 0, as in bilinear games, v has no effect and the gap is exact: up to rounding
if the ball constraint is active, otherwise up to about 1e-8 D‖q‖. Only the proximal map and the values of φ
are used.

For φ = 0 the gap is the maximum of a quadratic function on a ball, which is computed exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

__all__ = ["maximize_on_ball", "restricted_gap"]

#: Maximum number of Newton steps on the secular equation. Convergence is quadratic; usually a few suffice.
NEWTON_STEPS = 200
#: Maximum number of proximal steps.
STEPS = 2000
#: Number of steps between two evaluations of the upper bound.
INTERVAL = 20
#: Multiplier of an inactive ball constraint relative to ‖p‖/D. It increases the bound by this fraction of
#: D‖p‖; with a smaller multiplier, the rounding error of the proximal map would be larger.
INACTIVE = 1e-8
#: Maximum distance from the domain of φ, relative to the norm of a point, that rounding explains.
OUTSIDE = 1e-6


def restricted_gap(
    J: np.ndarray,
    c: np.ndarray,
    phi: Any,
    z: np.ndarray,
    centre: np.ndarray,
    radius: float,
    tolerance: float = 1e-6,
) -> tuple[float, float]:
    """Return a lower and an upper bound of the gap of ``z``.

    Args:
        J: a monotone matrix, ``[d, d]``.
        c: ``[d]``.
        phi: a convex function with the proximal map ``phi(v, weight)`` and ``phi.value(v)``, see
            :mod:`mpifed.core.sets`.
        z: ``[d]``.
        centre: z_0, ``[d]``.
        radius: D > 0.
        tolerance: difference of the bounds, relative to max(1, gap), at which the iteration stops.

    Returns:
        Both bounds are infinite if φ(z) is infinite.

    Raises:
        ValueError: φ is infinite on the whole ball.
    """
    ball = _Ball(phi, centre, radius)
    point = torch.from_numpy(z)
    distance = float(torch.linalg.vector_norm(phi(point, 0.0) - point))
    if distance > OUTSIDE * (1 + float(torch.linalg.vector_norm(point))):
        return np.inf, np.inf
    constant = float(c @ z) + float(phi.value(point))
    S, q = (J + J.T) / 2, J.T @ z - c

    def lower(w):
        return constant + q @ w - w @ S @ w - ball.phi_at(w)

    def upper(v):
        return constant + v @ S @ v + ball.maximum(q - 2 * S @ v)

    return _close(lower, upper, ball, S, q, tolerance)


def _close(lower: Callable, upper: Callable, ball: _Ball, S, q, tolerance: float) -> tuple[float, float]:
    """Return the bounds after as many proximal steps as necessary."""
    L = 2 * float(np.linalg.norm(S, 2))
    w = ball.nearest(q, 0.0, 1.0)[0] if L == 0 else ball.nearest(ball.centre, 1.0, 0.0)[0]
    low, high = lower(w), upper(w)
    v, momentum = w, 1.0
    for step in range(1, STEPS + 1 if L else 1):
        if high - low <= tolerance * max(1.0, abs(high)):
            break
        new = ball.nearest(L * v + q - 2 * S @ v, L, 1.0)[0]
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        v = new + (momentum - 1) / following * (new - w)
        value = lower(new)
        if value < low:  # the momentum overshoots
            v, following = new, 1.0
        w, momentum, low = new, following, max(low, value)
        if step % INTERVAL == 1:
            high = min(high, upper(w))
    return float(low), float(max(low, high))  # rounding errors may have swapped them


class _Ball:
    """{w : ‖w - centre‖ ≤ radius}, on which φ is finite somewhere."""

    def __init__(self, phi, centre: np.ndarray, radius: float):
        self.phi, self.centre, self.radius = phi, centre, radius
        nearest = self._prox(centre, 0.0)
        if not np.linalg.norm(nearest - centre) <= radius:
            raise ValueError(f"φ = {phi} is infinite on the ball of radius {radius:g} around the start")

    def _prox(self, v: np.ndarray, weight: float) -> np.ndarray:
        return self.phi(torch.from_numpy(v), weight).numpy()

    def phi_at(self, w: np.ndarray) -> float:
        return float(self.phi.value(torch.from_numpy(w)))

    def maximum(self, p: np.ndarray) -> float:
        """Return an upper bound of ⟨p, w⟩ - φ(w) on the ball: the Lagrangian at the best multiplier found."""
        w, m = self.nearest(p, 0.0, 1.0)
        return p @ w - self.phi_at(w) - m / 2 * (np.sum((w - self.centre) ** 2) - self.radius**2)

    def nearest(self, p: np.ndarray, a: float, weight: float) -> tuple[np.ndarray, float]:
        """Return the minimiser of a/2 ‖w‖² - ⟨p, w⟩ + weight φ(w) on the ball, and the multiplier m.

        m is found by bisection, since prox_{weight φ/(a + m)}((p + m centre)/(a + m)) approaches the centre
        as m increases.
        """

        def at(m):
            return self._prox((p + m * self.centre) / (a + m), weight / (a + m))

        def outside(w):
            return np.linalg.norm(w - self.centre) > self.radius

        if a > 0 and not outside(w := at(0.0)):
            return w, 0.0
        scale = (np.linalg.norm(p) + a * np.linalg.norm(self.centre) + 1) / self.radius
        low, high = INACTIVE * scale, scale
        while outside(at(high)):
            low, high = high, 16 * high
        if not outside(at(low)):
            return at(low), low
        while high > low * (1 + 4e-16):
            middle = np.sqrt(low * high)
            if middle in (low, high):
                break
            low, high = (middle, high) if outside(at(middle)) else (low, middle)
        return at(high), high


def maximize_on_ball(Q: np.ndarray, c: np.ndarray, radius: float) -> tuple[float, np.ndarray]:
    """Return the maximum of cᵀv + vᵀQv/2 over ‖v‖ ≤ radius, and a maximiser ``[d]``.

    v is a maximiser if and only if (mI - Q) v = c for some m ≥ 0 with mI - Q ⪰ 0, and m = 0 or ‖v‖ = radius
    (Moré & Sorensen 1983). The norm of v decreases in m, so Newton's method finds m in the eigenbasis of Q.
    In the hard case, where ‖v‖ < radius for the smallest m > 0, a multiple of the leading eigenvector is
    added.

    Args:
        Q: a symmetric matrix ``[d, d]``.
        c: ``[d]``.
        radius: a positive number.

    Raises:
        ValueError: inconsistent shapes, an asymmetric or non-finite Q, or a radius that is not positive.
    """
    Q, c = _checked(Q, c, radius)
    q, U = np.linalg.eigh(Q)
    beta = U.T @ c
    # Components below eps² are rounding errors; dropping them changes the value by less than its last bit.
    beta[np.abs(beta) <= np.finfo(float).eps ** 2 * np.abs(beta).max(initial=0.0)] = 0.0
    least = max(0.0, q[-1])
    gap, active = least - q, beta != 0  # the gap of a positive leading eigenvalue is exactly 0
    excess = _secular(beta[active], gap[active], radius)
    v = np.zeros_like(beta)
    v[active] = beta[active] / (gap[active] + excess)
    if least > 0 and excess == 0:
        v[-1] += np.sqrt(max(0.0, radius**2 - v @ v))  # the hard case, in which v[-1] is 0
    return float(beta @ v + v @ (q * v) / 2), U @ v


def _secular(beta: np.ndarray, gap: np.ndarray, radius: float) -> float:
    """Return the least s ≥ 0 with ‖β / (gap + s)‖ ≤ radius; all β are nonzero."""
    if not len(beta):
        return 0.0
    s = max(0.0, float((np.abs(beta) / radius - gap).max()))  # no component may exceed the radius
    for _ in range(NEWTON_STEPS):
        v = beta / (gap + s)
        norm = np.linalg.norm(v)
        # 1 / ‖v(s)‖ is concave in s, so a Newton step does not pass the root.
        step = (norm / radius - 1) * norm**2 / (v @ (v / (gap + s)))
        if step <= 2 * np.finfo(float).eps * s or step <= 0:
            return s
        s += step
    raise ArithmeticError(f"the secular equation did not converge in {NEWTON_STEPS} steps")


def _checked(Q, c, radius: float) -> tuple[np.ndarray, np.ndarray]:
    Q, c = np.asarray(Q, dtype=np.float64), np.asarray(c, dtype=np.float64)
    if c.ndim != 1 or Q.shape != (len(c), len(c)):
        raise ValueError(f"expected Q [d, d] and c [d], got {list(Q.shape)} and {list(c.shape)}")
    if not (np.isfinite(Q).all() and np.isfinite(c).all()):
        raise ValueError("expected finite Q and c, got NaN or infinity")
    if not radius > 0:
        raise ValueError(f"expected a radius > 0, got {radius}")
    skew = np.abs(Q - Q.T).max(initial=0.0)
    if skew > 1e-12 * np.abs(Q).max(initial=0.0):
        raise ValueError(
            f"expected a symmetric Q, got entries that differ from those of Qᵀ by up to {skew:g}"
        )
    return Q, c
