"""The restricted gap of an affine, monotone, composite variational inequality, between certified bounds, and
the exact maximum of a quadratic on a ball, which is the gap for φ = 0.

It is the max over ‖w - z_0‖ ≤ D of ⟨V(w), z - w⟩ + φ(z) - φ(w) with V(w) = Jw + c. With S = (J + Jᵀ)/2 ⪰ 0
and q = Jᵀz - c that is ⟨c, z⟩ + φ(z) plus the max of ⟨q, w⟩ - ⟨w, Sw⟩ - φ(w), a concave function.

* From below every w of the ball bounds it.
* From above, as -⟨w, Sw⟩ ≤ ⟨v, Sv⟩ - 2⟨Sv, w⟩ for every v, the max over w of ⟨v, Sv⟩ + ⟨q - 2Sv, w⟩ - φ(w)
  does, and that is at most its Lagrangian at any multiplier m > 0 of the ball, where the best w is a proximal
  point of φ: prox_{φ/m}(z_0 + (q - 2Sv)/m).

Accelerated proximal steps (Beck & Teboulle 2009), restarted where the function falls, move v until the two
bounds meet. Where S = 0, as in bilinear games, v plays no part and the gap is exact: to rounding where the
ball binds, to some 1e-8 of D‖q‖ where φ's set is inside it. Only the proximal map and the value of φ are
needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

__all__ = ["maximize_on_ball", "restricted_gap"]

#: Newton's iteration on the secular equation converges quadratically from its left; a handful of steps is
#: usual.
NEWTON_STEPS = 200
#: Most proximal steps.
STEPS = 2000
#: Number of steps between two evaluations of the bounds.
EVERY = 20
#: The least multiplier of a ball that does not bind, relative to ‖p‖/D: it adds as much of D‖p‖ to the bound,
#: and proximal maps of points farther out than 1/this lose as much to rounding.
INACTIVE = 1e-8
#: Greatest distance of a point from φ's set, relative to its norm: averages of points of the set are rounded.
OFF = 1e-6


def restricted_gap(
    J: np.ndarray,
    c: np.ndarray,
    phi: Any,
    z: np.ndarray,
    centre: np.ndarray,
    radius: float,
    tolerance: float = 1e-6,
) -> tuple[float, float]:
    """Bounds of the gap of ``z`` ``[d]``, from below and from above.

    Args:
        J: monotone, ``[d, d]``.
        phi: convex, with its proximal map ``phi(v, weight)`` and ``phi.value(v)``, as in ``core.sets``.
        centre: z_0 ``[d]``; ``radius``: D > 0.
        tolerance: the difference of the bounds, relative to the larger of 1 and the gap, that is enough.

    Returns:
        Twice ∞ where φ(z) is.

    Raises:
        ValueError: φ is infinite on the whole ball.
    """
    ball = _Ball(phi, centre, radius)
    at = torch.from_numpy(z)
    if float(torch.linalg.vector_norm(phi(at, 0.0) - at)) > OFF * (1 + float(torch.linalg.vector_norm(at))):
        return np.inf, np.inf
    constant = float(c @ z) + float(phi.value(at))
    S, q = (J + J.T) / 2, J.T @ z - c

    def lower(w):
        return constant + q @ w - w @ S @ w - ball.phi_at(w)

    def upper(v):
        return constant + v @ S @ v + ball.maximum(q - 2 * S @ v)

    return _close(lower, upper, ball, S, q, tolerance)


def _close(lower: Callable, upper: Callable, ball: _Ball, S, q, tolerance: float) -> tuple[float, float]:
    """The bounds after as many proximal steps as necessary."""
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
        if value < low:  # overshoot by the momentum
            v, following = new, 1.0
        w, momentum, low = new, following, max(low, value)
        if step % EVERY == 1:
            high = min(high, upper(w))
    return float(low), float(max(low, high))  # rounding may have swapped them


class _Ball:
    """{w : ‖w - centre‖ ≤ radius} where φ is finite."""

    def __init__(self, phi, centre: np.ndarray, radius: float):
        self.phi, self.centre, self.radius = phi, centre, radius
        nearest = self._prox(centre, 0.0)
        if not np.linalg.norm(nearest - centre) <= radius:
            raise ValueError(f"φ = {phi} is infinite on the ball of radius {radius:g} about the start")

    def _prox(self, v: np.ndarray, weight: float) -> np.ndarray:
        return self.phi(torch.from_numpy(v), weight).numpy()

    def phi_at(self, w: np.ndarray) -> float:
        return float(self.phi.value(torch.from_numpy(w)))

    def maximum(self, p: np.ndarray) -> float:
        """An upper bound of ⟨p, w⟩ - φ(w) on the ball: its Lagrangian at the best multiplier found."""
        w, m = self.nearest(p, 0.0, 1.0)
        return p @ w - self.phi_at(w) - m / 2 * (np.sum((w - self.centre) ** 2) - self.radius**2)

    def nearest(self, p: np.ndarray, a: float, weight: float) -> tuple[np.ndarray, float]:
        """The point of the ball that minimises a/2 ‖w‖² - ⟨p, w⟩ + weight φ(w), and the ball's multiplier m.

        The distance of prox_{weight φ/(a + m)}((p + m centre)/(a + m)) from the centre falls in m.
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
    """max of cᵀv + vᵀQv/2 over ‖v‖ ≤ radius, and a v ``[d]`` that attains it.

    v is a maximiser if and only if (mI - Q) v = c for some m ≥ 0 with mI - Q ⪰ 0, and m = 0 or ‖v‖ = radius
    (Moré & Sorensen 1983). In the eigenbasis of Q the norm of that v falls in m, which is found by Newton's
    method; where even the least m leaves ‖v‖ below the radius although it is not 0 (the hard case), the rest
    is filled up along the leading eigenvector.

    Args:
        Q: symmetric ``[d, d]``, of any signature.
        c: ``[d]``.
        radius: > 0.

    Raises:
        ValueError: shapes that do not fit, an asymmetric or non-finite Q, or a radius that is not positive.
    """
    Q, c = _checked(Q, c, radius)
    q, U = np.linalg.eigh(Q)
    beta = U.T @ c
    # Components below eps² are rounding of 0: dropped, they change the value by less than its last bit.
    beta[np.abs(beta) <= np.finfo(float).eps ** 2 * np.abs(beta).max(initial=0.0)] = 0.0
    least = max(0.0, q[-1])
    gap, active = least - q, beta != 0  # the gap of a positive leading eigenvalue is exactly 0
    excess = _secular(beta[active], gap[active], radius)
    v = np.zeros_like(beta)
    v[active] = beta[active] / (gap[active] + excess)
    if least > 0 and excess == 0:
        v[-1] += np.sqrt(max(0.0, radius**2 - v @ v))  # the hard case; v[-1] is 0 before
    return float(beta @ v + v @ (q * v) / 2), U @ v


def _secular(beta: np.ndarray, gap: np.ndarray, radius: float) -> float:
    """The least s ≥ 0 with ‖β / (gap + s)‖ ≤ radius; all β are nonzero."""
    if not len(beta):
        return 0.0
    s = max(0.0, float((np.abs(beta) / radius - gap).max()))  # no component may exceed the radius
    for _ in range(NEWTON_STEPS):
        v = beta / (gap + s)
        norm = np.linalg.norm(v)
        # 1 / ‖v(s)‖ is concave in s, so that its tangent never oversteps the root.
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
        raise ValueError("Q and c must be finite")
    if not radius > 0:
        raise ValueError(f"radius must be positive, got {radius}")
    skew = np.abs(Q - Q.T).max(initial=0.0)
    if skew > 1e-12 * np.abs(Q).max(initial=0.0):
        raise ValueError(
            f"Q must be symmetric, its entries differ from the transposed ones by up to {skew:g}"
        )
    return Q, c
