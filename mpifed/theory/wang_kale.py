"""Wang & Kale n.d. on variational inequalities: Theorems 1 to 7 and 24, Corollaries 1 and 2.

The constants:

* ``L``, the Lipschitz modulus of the operator, and ``sigma``, the noise's standard deviation (E‖noise‖² ≤
  σ²);
* ``K`` local steps, ``R`` rounds, ``M`` clients;
* ``D``, the radius of err_D's ball about the starting point, which is free;
* ``G``, a bound on ‖V‖; the proofs require it at the points z that the clients visit, and Theorem 7 on the
  domain of φ.

But for Theorem 24 all clients have the same monotone operator. Formulas are read with the units that a step
size (z / V) and an error (z V) have; where the print breaks them, or the proof supports another constant, the
docstring says so.
"""

from __future__ import annotations

import math

from mpifed.theory.prescription import over, theorem

__all__ = [
    "corollary_1",
    "corollary_2",
    "theorem_1",
    "theorem_2",
    "theorem_24",
    "theorem_3",
    "theorem_4",
    "theorem_5",
    "theorem_6",
    "theorem_7",
]

_LETTERS = {"K": "local_steps", "R": "rounds", "M": "clients"}
_GAP = dict(of="E err_D of the output", metric="err_D", letters=_LETTERS)
#: The squared error of an inner step of LIPPAX shrinks by 1 - 1/(ηL + 1)², which is at most this for ηL ≤ 1.
_INNER = 3 / 4


@theorem("wang-kale-1", "LESGD", **_GAP)
def theorem_1(L: float, sigma: float, K: float, R: float, M: float, D: float):
    """LESGD (Theorem 1, (5) and (6)).

    The first term of (5) is read as 1 / (√(14 K) L): with L under the root it would not have the unit of a
    step size.
    """
    eta = min(1 / (math.sqrt(14 * K) * L), *_noise(6, 936 * math.e**2, L, sigma, K, R, M, D))
    variance = 6 * D * sigma / (M * K * R) ** 0.5
    return {"eta": eta}, 12 * L * D**2 / (K**0.5 * R) + variance + 26 * _drift(L, sigma, K, R, D)


@theorem("wang-kale-corollary-1", "LESGD", **_GAP)
def corollary_1(L: float, sigma: float, K: float, R: float, M: float, D: float):
    """LESGD under much noise (Corollary 1): Theorem 1 without its first terms.

    Needs σ ≥ 14^(3/4) D L / (6e √26 R^(1/2) K^(1/4)), where the noise alone bounds the step.
    """
    least = 14**0.75 * D * L / (6 * math.e * 26**0.5 * R**0.5 * K**0.25)
    if sigma < least:
        raise ValueError(f"Corollary 1 is for sigma >= {least:.4g}, got sigma = {sigma:.4g}")
    eta = min(_noise(6, 936 * math.e**2, L, sigma, K, R, M, D))
    return {"eta": eta}, 6 * D * sigma / (M * K * R) ** 0.5 + 26 * _drift(L, sigma, K, R, D)


@theorem("wang-kale-2", "LESGD", **_GAP)
def theorem_2(L: float, sigma: float, K: float, R: float, M: float, D: float):
    """LESGD on an affine operator (Theorem 2, (7))."""
    eta = min(1 / L, *_noise(6, 180, L, sigma, K, R, M, D))
    variance = 24**0.5 * D * sigma / (M * K * R) ** 0.5
    return {"eta": eta}, 20 * _drift(L, sigma, K, R, D) + variance + 2 * L * D**2 / (K * R)


@theorem("wang-kale-3", "LIPPAX", **_GAP)
def theorem_3(L: float, sigma: float, K: float, R: float, M: float, D: float, G: float, H: float):
    """LIPPAX on a bounded operator with H inner steps (Theorem 3, (8)).

    Corrected: an inner step contracts by 3/4 and not by 1/4; L² where the proof's drift has L, so that the
    step's third term and the bound's third term have L^(3/5) for the printed L^(2/5), and the last term,
    where η ≤ 1 was left out, is (60e G² K² L³ η⁴ + 30 η G²) (3/4)^H.
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
    """LIPPAX under little noise, σ ≤ s / √(K R) (Corollary 2, (9)): Theorem 3 with 4 D s / (K R) for the
    second term.

    The print has s = 1, in the unit of V.
    """
    most = s / (K * R) ** 0.5
    if sigma > most:
        raise ValueError(f"Corollary 2 is for sigma <= {most:.4g}, got sigma = {sigma:.4g}")
    steps, bound = theorem_3.statement(L, sigma, K, R, M, D, G, H)
    return steps, bound + 4 * D * s / (K * R) - 4 * sigma * D / (K * R) ** 0.5


@theorem("wang-kale-4", "LIPPAX", **_GAP)
def theorem_4(
    L: float, sigma: float, K: float, R: float, M: float, D: float, G: float, H: float, Lambda: float
):
    """LIPPAX where ‖V(z') - V(z) - ∇V(z)(z' - z)‖ ≤ Λ ‖z' - z‖² (Theorem 4, (10)).

    Corrected as Theorem 3: (3/4)^H, L^(3/5), and the last term with its η, (10 H² Λ² η⁵ G⁴ + 60 η G² + 120 η
    K² G²) (3/4)^H. The factor d^(1/6) of one term, which the proof does not have, is left out.
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
    """SLIPPAX on a bounded operator in dimension d (Theorem 5): the rule; the bound is an order.

    δ = ησ / d^(1/4), as the proof and the rate have it. Corrected by units: L^(3/5) and L^(1/3) for L^(2/5)
    and L^(2/3), and the term D √M / (σ √(K R)) that the stated rate comes from.
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
    """LSGD on a β-co-coercive operator, ‖V(z) - V(z')‖² ≤ β ⟨V(z) - V(z'), z - z'⟩ (Theorem 6, (12)).

    Without ``beta`` it is L, as an operator A z has it whose matrix A ⪰ 0 is symmetric.
    """
    beta = L if beta is None else beta
    eta = min(1 / beta, *_noise(1, 2**1.5, L, sigma, K, R, M, D))
    bound = 4 * beta * D**2 / (K * R) + 4 * sigma * D / (M * K * R) ** 0.5 + 8 * _drift(L, sigma, K, R, D)
    return {"eta": eta}, bound


@theorem(
    "wang-kale-7", "LocalDualExtrapolation", **{**_GAP, "of": "E err_c of the output", "metric": "err_c"}
)
def theorem_7(L: float, sigma: float, K: float, R: float, M: float, D: float, G: float):
    """Local dual extrapolation on a composite problem, h = ‖·‖²/2 (Theorem 7, (14)).

    D is the largest distance of a point of φ's domain from the start. Corrected: the proof's last term is
    17 L G² K² η², which is balanced by η = (D² / (17 K³ R L G²))^(1/3), and comes in twice.
    """
    drift = over(D**2, 17 * K**3 * R * L * G**2) ** (1 / 3)
    eta = min(1 / (10**0.5 * L), over(D * (M / (6 * K * R)) ** 0.5, sigma), drift)
    bound = 24**0.5 * D * sigma / (M * K * R) ** 0.5 + 10**0.5 * D**2 * L / (K * R)
    return {"eta": eta}, bound + 2 * (17 * L * D**4 * G**2 / R**2) ** (1 / 3)


@theorem("wang-kale-24", "LESGD", **_GAP)
def theorem_24(L: float, sigma: float, K: float, R: float, M: float, D: float, xi: float):
    """LESGD on clients that differ, ‖V_m - V‖ ≤ ξ (Theorem 24): the rule; the bound is an order.

    The last term is D / (ξ K √R), as in the statement; the appendix prints √ξ.
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
    """D (M / (a K R))^(1/2) / σ and (D² / (b K² R σ² L))^(1/3); infinite without noise."""
    averaged = over(D * (M / (a * K * R)) ** 0.5, sigma)
    return averaged, over(D**2, b * K**2 * R * sigma**2 * L) ** (1 / 3)


def _drift(L: float, sigma: float, K: float, R: float, D: float) -> float:
    """The clients' drift between averages, D^(4/3) σ^(2/3) L^(1/3) / (K^(1/3) R^(2/3))."""
    return (D**4 * sigma**2 * L / (K * R**2)) ** (1 / 3)


def _inner_step(eta: float, L: float) -> float:
    """γ of LIPPAX, 1 / (η (L + 1/η)²)."""
    return 1 / (eta * (L + 1 / eta) ** 2)
