"""The step sizes and bounds of Wang & Kale's theorems, term by term."""

import math

import pytest

from mpifed.algorithms.theory import theorem_1, theorem_2, theorem_6

#: Of each theorem: the largest step size times L, the numbers below the root and the cube root of the other
#: two; the bound's factors of L D² / (R K^power), with the power, of σ D / √(MKR), and of the drift.
THEOREMS = {
    theorem_1: (lambda K: 1 / (14 * K) ** 0.5, 6, 936 * math.e**2, 12, 0.5, 6, 26),
    theorem_2: (lambda K: 1, 6, 180, 2, 1, math.sqrt(24), 20),
    theorem_6: (lambda K: 1, 1, math.sqrt(8), 4, 1, 4, 8),
}
#: L, σ, K, R, M, D under which each of the three terms is the smallest.
REGIMES = {
    "smooth": (4.0, 1e-3, 9, 16, 8, 3.0),
    "noisy": (1e-5, 40.0, 2, 9, 1, 3.0),
    "drifting": (30.0, 9.0, 25, 4, 64, 3.0),
}


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("theorem", THEOREMS, ids=lambda one: one.__name__)
def test_step_size_and_bound(theorem, regime):
    largest, root, cube, smooth, power, noise, drift = THEOREMS[theorem]
    L, sigma, K, R, M, D = REGIMES[regime]
    terms = {
        "smooth": largest(K) / L,
        "noisy": D * math.sqrt(M) / (sigma * math.sqrt(root * K * R)),
        "drifting": math.exp(math.log(D * D / (cube * K * K * R * sigma * sigma * L)) / 3),
    }
    assert min(terms, key=terms.get) == regime
    third = math.exp(
        (4 * math.log(D) + 2 * math.log(sigma) + math.log(L) - math.log(K) - 2 * math.log(R)) / 3
    )
    bound = smooth * L * D * D / (R * K**power) + noise * sigma * D / math.sqrt(M * K * R) + drift * third
    assert theorem(L, sigma, K, R, M, D) == pytest.approx((terms[regime], bound), rel=1e-13)  # rounding


@pytest.mark.parametrize("theorem", THEOREMS, ids=lambda one: one.__name__)
def test_without_noise_the_smoothness_alone_counts(theorem):
    largest, _, _, smooth, power, *_ = THEOREMS[theorem]
    assert theorem(2.0, 0.0, 4, 5, 6, 7.0) == pytest.approx(
        (largest(4) / 2, smooth * 2 * 49 / (5 * 4**power))
    )
