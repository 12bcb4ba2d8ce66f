"""What Wang & Kale prove of their methods: the step size that a theorem prescribes, and its bound on
E[err_D].

Every function takes numbers and returns ``(eta, bound)``:

* ``L``, the Lipschitz modulus of the operator, and ``sigma``, the noise's standard deviation (E‖noise‖² ≤
  σ²). Larger numbers than need be leave the statements true.
* ``K`` local steps, ``R`` rounds, ``M`` clients.
* ``D``, the radius of err_D's ball about the starting point, which is free.

The theorems are for clients that all have the same monotone operator.
"""

from __future__ import annotations

import math

__all__ = ["theorem_1", "theorem_2", "theorem_6"]


def theorem_1(L: float, sigma: float, K: int, R: int, M: int, D: float) -> tuple[float, float]:
    """LESGD (Wang & Kale, Theorem 1).

    The first term of (5) is read as 1 / (√(14 K) L): with L under the root it would not have the unit of a
    step size.
    """
    eta = _smallest(1 / (math.sqrt(14 * K) * L), 6**0.5, 936 * math.e**2, L, sigma, K, R, M, D)
    variance = 6 * D * sigma / (M * K * R) ** 0.5
    return eta, 12 * L * D**2 / (K**0.5 * R) + variance + 26 * _drift(L, sigma, K, R, D)


def theorem_2(L: float, sigma: float, K: int, R: int, M: int, D: float) -> tuple[float, float]:
    """LESGD on an affine operator (Wang & Kale, Theorem 2)."""
    eta = _smallest(1 / L, 6**0.5, 180, L, sigma, K, R, M, D)
    variance = 24**0.5 * D * sigma / (M * K * R) ** 0.5
    return eta, 20 * _drift(L, sigma, K, R, D) + variance + 2 * L * D**2 / (K * R)


def theorem_6(L: float, sigma: float, K: int, R: int, M: int, D: float) -> tuple[float, float]:
    """LSGD on a co-coercive operator (Wang & Kale, Theorem 6).

    With β = L, as an operator A z has it whose matrix A ⪰ 0 is symmetric with ‖A‖ = L.
    """
    eta = _smallest(1 / L, 1.0, 2**1.5, L, sigma, K, R, M, D)
    return eta, 4 * L * D**2 / (K * R) + 4 * sigma * D / (M * K * R) ** 0.5 + 8 * _drift(L, sigma, K, R, D)


def _smallest(
    bound: float, a: float, b: float, L: float, sigma: float, K: int, R: int, M: int, D: float
) -> float:
    """min(bound, D M^(1/2) / (a σ (K R)^(1/2)), (D² / (b K² R σ² L))^(1/3)); without noise, bound."""
    if not sigma:
        return bound
    averaged, drifting = D * (M / (K * R)) ** 0.5 / (a * sigma), D**2 / (b * K**2 * R * sigma**2 * L)
    return min(bound, averaged, drifting ** (1 / 3))


def _drift(L: float, sigma: float, K: int, R: int, D: float) -> float:
    """The clients' drift between averages, D^(4/3) σ^(2/3) L^(1/3) / (K^(1/3) R^(2/3))."""
    return (D**4 * sigma**2 * L / (K * R**2)) ** (1 / 3)
