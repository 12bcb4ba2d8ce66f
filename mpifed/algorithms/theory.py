"""What Wang & Kale n.d. proves of its methods: the step size that a theorem prescribes, and the bound on E[err_D] that it then gives.

Every function takes the modulus ``L`` of the operator, the noise's standard deviation ``sigma`` (E‖noise‖² ≤ σ²), local steps
``K``, rounds ``R``, clients ``M`` and the radius ``D`` of err_D's ball, which is free, and returns ``(eta, bound)``. All clients
have the same monotone operator. Numbers L and σ that are larger than need be leave the statements true.
"""

from __future__ import annotations

import math

__all__ = ["theorem_1", "theorem_2", "theorem_6"]


def theorem_1(L: float, sigma: float, K: int, R: int, M: int, D: float) -> tuple[float, float]:
    """LESGD (Wang & Kale n.d., Theorem 1), the first term of (5) read as 1 / (√(14 K) L): without L outside the root the units differ."""
    eta = _smallest(1 / (math.sqrt(14 * K) * L), 6**0.5, 936 * math.e**2, L, sigma, K, R, M, D)
    return eta, 12 * L * D**2 / (K**0.5 * R) + 6 * D * sigma / (M * K * R) ** 0.5 + 26 * _drift(L, sigma, K, R, D)


def theorem_2(L: float, sigma: float, K: int, R: int, M: int, D: float) -> tuple[float, float]:
    """LESGD on an affine operator (Wang & Kale n.d., Theorem 2)."""
    eta = _smallest(1 / L, 6**0.5, 180, L, sigma, K, R, M, D)
    return eta, 20 * _drift(L, sigma, K, R, D) + 24**0.5 * D * sigma / (M * K * R) ** 0.5 + 2 * L * D**2 / (K * R)


def theorem_6(L: float, sigma: float, K: int, R: int, M: int, D: float) -> tuple[float, float]:
    """LSGD on a co-coercive operator (Wang & Kale n.d., Theorem 6) with β = L, as a symmetric A ⪰ 0 with ‖A‖ = L has it."""
    eta = _smallest(1 / L, 1.0, 2**1.5, L, sigma, K, R, M, D)
    return eta, 4 * L * D**2 / (K * R) + 4 * sigma * D / (M * K * R) ** 0.5 + 8 * _drift(L, sigma, K, R, D)


def _smallest(bound: float, a: float, b: float, L: float, sigma: float, K: int, R: int, M: int, D: float) -> float:
    """min(bound, D M^(1/2) / (a σ (K R)^(1/2)), (D² / (b K² R σ² L))^(1/3)); the last two are ∞ without noise."""
    if not sigma:
        return bound
    return min(bound, D * (M / (K * R)) ** 0.5 / (a * sigma), (D**2 / (b * K**2 * R * sigma**2 * L)) ** (1 / 3))


def _drift(L: float, sigma: float, K: int, R: int, D: float) -> float:
    """The clients' drift between averages, D^(4/3) σ^(2/3) L^(1/3) / (K^(1/3) R^(2/3))."""
    return (D**4 * sigma**2 * L / (K * R**2)) ** (1 / 3)
