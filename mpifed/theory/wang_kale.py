"""Theorems 1 to 7 and 24, Corollaries 1 and 2 of Wang & Kale n.d. on variational inequalities.

Constants:

* ``L``: Lipschitz constant of the operator; ``sigma``: standard deviation of the noise (E‖noise‖² ≤ σ²).
* ``K`` local steps, ``R`` rounds, ``M`` clients.
* ``D``: a free parameter, the radius of the ball around the starting point z_0 in err_D(z) =
  max ⟨V(w), z - w⟩ over ‖w - z_0‖ ≤ D.
* ``G``: bound of ‖V‖ at the points z that the clients visit, and in Theorem 7 on the domain of φ.
* ``H``: inner steps of LIPPAX per local step.

Except in Theorem 24, all clients have the same monotone operator. Formulas are interpreted such that the
units of a step size (z / V) and an error (z V) are consistent. Docstrings list the corrections of the printed
formulas, and of constants that the proofs do not support.
"""

from __future__ import annotations

import math

from mpifed.theory.prescription import over, theorem

_LETTERS = {"K": "local_steps", "R": "rounds", "M": "clients"}
_GAP = dict(of="E err_D of the output", metric="err_D", letters=_LETTERS)
#: Factor of the squared error in an inner step of LIPPAX: 1 - 1/(ηL + 1)² is at most 3/4 for ηL ≤ 1.
_INNER = 3 / 4


@theorem("wang-kale-1", "LESGD", without=("gamma",), **_GAP)
def theorem_1(L: float, sigma: float, K: float, R: float, M: float, D: float):
    """LESGD (Theorem 1, (5) and (6)).

    The first term of (5) is interpreted as 1 / (√(14 K) L), which has the unit of a step size.
    """
    eta = min(1 / (math.sqrt(14 * K) * L), *_noise(6, 936 * math.e**2, L, sigma, K, R, M, D))
    variance = 6 * D * sigma / (M * K * R) ** 0.5
    return {"eta": eta}, 12 * L * D**2 / (K**0.5 * R) + variance + 26 * _drift(L, sigma, K, R, D)


@theorem("wang-kale-corollary-1", "LESGD", without=("gamma",), **_GAP)
def corollary_1(L: float, sigma: float, K: float, R: float, M: float, D: float):
    """LESGD with large noise (Corollary 1): Theorem 1 without its first terms.

    The condition σ ≥ 14^(3/4) D L / (6e √26 R^(1/2) K^(1/4)) implies that only noise limits the step size.
    """
    least = 14**0.75 * D * L / (6 * math.e * 26**0.5 * R**0.5 * K**0.25)
    if sigma < least:
        raise ValueError(f"Corollary 1 needs sigma >= {least:.4g}, got sigma = {sigma:.4g}")
    eta = min(_noise(6, 936 * math.e**2, L, sigma, K, R, M, D))
    return {"eta": eta}, 6 * D * sigma / (M * K * R) ** 0.5 + 26 * _drift(L, sigma, K, R, D)


@theorem("wang-kale-2", "LESGD", without=("gamma",), **_GAP)
def theorem_2(L: float, sigma: float, K: float, R: float, M: float, D: float):
    """LESGD for affine operators (Theorem 2, (7))."""
    eta = min(1 / L, *_noise(6, 180, L, sigma, K, R, M, D))
    variance = 24**0.5 * D * sigma / (M * K * R) ** 0.5
    return {"eta": eta}, 20 * _drift(L, sigma, K, R, D) + variance + 2 * L * D**2 / (K * R)


@theorem("wang-kale-3", "LIPPAX", **_GAP)
def theorem_3(L: float, sigma: float, K: float, R: float, M: float, D: float, G: float, H: float):
    """LIPPAX with H inner steps for bounded operators (Theorem 3, (8)).

    Corrections: an inner step contracts by 3/4 instead of 1/4. The drift in the proof has L² instead of L, so
    the third terms of step size and bound have L^(3/5) instead of L^(2/5). The last term, in which η ≤ 1 was
    used, is (60e G² K² L³ η⁴ + 30 η G²) (3/4)^H.
    """
    e60, e54 = 60 * math.e, 54 * math.e
    eta = min(
        1 / L,
        *_noise(1, e54, L, sigma, K, R, M, D),
        over(D**2, e60 * K**3 * R * sigma**2 * L**3) ** 0.2,
        over(D, sigma * (15 * K * R) ** 0.5),
    )
    bound = L * D**2 / (K * R) + 4 * sigma * D / (K * R) ** 0.5 + 4 * D * sigma / (M * K * R) ** 0.5
    bound += 2 * (e60 * D**8 * sigma**2 * L**3 / (K**2 * R**4)) ** 0.2
    bound += 2 * e54 ** (1 / 3) * _drift(L, sigma, K, R, D)
    bound += (e60 * G**2 * K**2 * L**3 * eta**4 + 30 * eta * G**2) * _INNER**H
    return {"eta": eta, "gamma": _inner_step(eta, L)}, bound


@theorem("wang-kale-corollary-2", "LIPPAX", **_GAP)
def corollary_2(
    L: float, sigma: float, K: float, R: float, M: float, D: float, G: float, H: float, s: float = 1
):
    """LIPPAX with small noise, σ ≤ s / √(K R) (Corollary 2, (9)).

    The second term of Theorem 3 becomes 4 D s / (K R). The paper has s = 1, in units of V.
    """
    most = s / (K * R) ** 0.5
    if sigma > most:
        raise ValueError(f"Corollary 2 needs sigma <= {most:.4g}, got sigma = {sigma:.4g}")
    steps, bound = theorem_3.statement(L, sigma, K, R, M, D, G, H)
    return steps, bound + 4 * D * s / (K * R) - 4 * sigma * D / (K * R) ** 0.5


@theorem("wang-kale-4", "LIPPAX", **_GAP)
def theorem_4(
    L: float, sigma: float, K: float, R: float, M: float, D: float, G: float, H: float, Lambda: float
):
    """LIPPAX if ‖V(z') - V(z) - ∇V(z)(z' - z)‖ ≤ Λ ‖z' - z‖² (Theorem 4, (10)).

    Corrections as in Theorem 3: (3/4)^H, L^(3/5), and the last term with its η, (10 H² Λ² η⁵ G⁴ + 60 η G² +
    120 η K² G²) (3/4)^H. The factor d^(1/6) of one term, which is not in the proof, is left out.
    """
    eta = min(
        1 / L,
        *_noise(1, 1, L, sigma, K, R, M, D),
        over(D**2, K**3 * R * sigma**2 * L**3) ** 0.2,
        over(D**2, K * R * sigma**2 * L**2) ** 0.25,
        over(D**2, Lambda**2 * sigma**4 * R * K) ** (1 / 6),
    )
    terms = D**2 * L / (K * R) + _drift(L, sigma, K, R, D) + D * sigma / (M * K * R) ** 0.5
    terms += (D**8 * sigma**2 * L**3 / (K**2 * R**4)) ** 0.2
    terms += (D**6 * sigma**2 * L**2 / (K * R) ** 3) ** 0.25
    terms += (D**10 * Lambda**2 * sigma**4 / (K * R) ** 5) ** (1 / 6)
    last = 10 * H**2 * Lambda**2 * eta**5 * G**4 + (60 + 120 * K**2) * eta * G**2
    return {"eta": eta, "gamma": _inner_step(eta, L)}, 240 * terms + last * _INNER**H


@theorem("wang-kale-5", "SLIPPAX", **_GAP)
def theorem_5(L: float, sigma: float, K: float, R: float, M: float, D: float, d: float):
    """SLIPPAX for bounded operators in dimension d (Theorem 5). The source states an order only.

    δ = ησ / d^(1/4), as in the proof and the rate. Corrections because of units: L^(3/5) and L^(1/3) instead
    of L^(2/5) and L^(2/3), and the term D √M / (σ √(K R)), from which the stated rate follows.
    """
    eta = min(
        1 / L,
        *_noise(1, 1, L, sigma, K, R, M, D),
        over(D**2, K * R * L**2 * sigma**2 * d**0.5) ** 0.25,
        over(D**2, K**3 * R * sigma**2 * L**3 * d**0.5) ** 0.2,
    )
    return {"eta": eta, "gamma": _inner_step(eta, L), "delta": eta * sigma / d**0.25}, None


@theorem("wang-kale-6", "LSGD", **_GAP)
def theorem_6(L: float, sigma: float, K: float, R: float, M: float, D: float, beta: float | None = None):
    """LSGD for β-co-coercive operators, ‖V(z) - V(z')‖² ≤ β ⟨V(z) - V(z'), z - z'⟩ (Theorem 6, (12)).

    The default of ``beta`` is L, which holds for operators A z with a symmetric matrix A ⪰ 0.
    """
    beta = L if beta is None else beta
    eta = min(1 / beta, *_noise(1, 2**1.5, L, sigma, K, R, M, D))
    bound = 4 * beta * D**2 / (K * R) + 4 * sigma * D / (M * K * R) ** 0.5 + 8 * _drift(L, sigma, K, R, D)
    return {"eta": eta}, bound


@theorem(
    "wang-kale-7", "LocalDualExtrapolation", **{**_GAP, "of": "E err_c of the output", "metric": "err_c"}
)
def theorem_7(L: float, sigma: float, K: float, R: float, M: float, D: float, G: float):
    """Local dual extrapolation for composite problems with h = ‖·‖²/2 (Theorem 7, (14)).

    D is the largest distance between the start and a point of φ's domain. Corrections: the last term in the
    proof is 17 L G² K² η². It is balanced by η = (D² / (17 K³ R L G²))^(1/3) and then counts twice.
    """
    drift = over(D**2, 17 * K**3 * R * L * G**2) ** (1 / 3)
    eta = min(1 / (10**0.5 * L), over(D * (M / (6 * K * R)) ** 0.5, sigma), drift)
    bound = 24**0.5 * D * sigma / (M * K * R) ** 0.5 + 10**0.5 * D**2 * L / (K * R)
    return {"eta": eta}, bound + 2 * (17 * L * D**4 * G**2 / R**2) ** (1 / 3)


@theorem("wang-kale-24", "LESGD", without=("gamma",), **_GAP)
def theorem_24(L: float, sigma: float, K: float, R: float, M: float, D: float, xi: float):
    """LESGD for heterogeneous clients, ‖V_m - V‖ ≤ ξ (Theorem 24). The source states an order only.

    The last term is D / (ξ K √R), as in the statement; the appendix has √ξ.
    """
    eta = min(
        1 / (K**0.5 * L),
        *_noise(1, 1, L, sigma, K, R, M, D),
        over(D**2, xi**2 * K**3 * R * L) ** (1 / 3),
        over(D, (xi * sigma) ** 0.5 * K**0.75 * R**0.5),
        over(D, xi * K * R**0.5),
    )
    return {"eta": eta}, None


def _noise(a: float, b: float, L: float, sigma: float, K: float, R: float, M: float, D: float):
    """Return D (M / (a K R))^(1/2) / σ and (D² / (b K² R σ² L))^(1/3); infinite without noise."""
    averaged = over(D * (M / (a * K * R)) ** 0.5, sigma)
    return averaged, over(D**2, b * K**2 * R * sigma**2 * L) ** (1 / 3)


def _drift(L: float, sigma: float, K: float, R: float, D: float) -> float:
    """Return the term of the client drift, D^(4/3) σ^(2/3) L^(1/3) / (K^(1/3) R^(2/3))."""
    return (D**4 * sigma**2 * L / (K * R**2)) ** (1 / 3)


def _inner_step(eta: float, L: float) -> float:
    """Return γ of LIPPAX, 1 / (η (L + 1/η)²)."""
    return 1 / (eta * (L + 1 / eta) ** 2)
