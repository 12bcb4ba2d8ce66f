"""The largest value of a quadratic on a ball, exactly, whatever the signature of its matrix."""

from __future__ import annotations

import numpy as np

__all__ = ["maximize_on_ball"]

#: Newton's iteration on the secular equation converges quadratically from its left; a handful of steps is
#: usual.
STEPS = 200


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
    gap, active = (
        least - q,
        beta != 0,
    )  # gap of the leading eigenvalue is exactly 0 where Q has a positive one
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
    for _ in range(STEPS):
        v = beta / (gap + s)
        norm = np.linalg.norm(v)
        # 1 / ‖v(s)‖ is concave in s, so that its tangent never oversteps the root.
        step = (norm / radius - 1) * norm**2 / (v @ (v / (gap + s)))
        if step <= 2 * np.finfo(float).eps * s or step <= 0:
            return s
        s += step
    raise ArithmeticError(f"the secular equation did not converge in {STEPS} steps")


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
