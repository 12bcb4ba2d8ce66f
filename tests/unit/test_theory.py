"""The step sizes and bounds of the theorems, compared with their proofs and conditions and in other units."""

import math

import numpy as np
import pytest
from refusals import refusal

from mpifed.algorithms import ALGORITHMS
from mpifed.theory import THEOREMS, prescribe
from mpifed.theory.wang_kale import theorem_1, theorem_2, theorem_6

#: Of each theorem: the largest step size times L, the numbers below the root and the cube root of the other
#: two; the bound's factors of L D² / (R K^power), with the power, of σ D / √(MKR), and of the drift.
THREE = {
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
ROUNDING = 1 + 1e-12  # of a few sums and roots

GAME = dict(L=2.0, sigma=0.3, K=4, R=50, M=8, D=3.0)
PL = dict(L=2.0, mu=0.5, gap=3.0, inner=1.5)
SMOOTHED = dict(l=2.0, sigma=0.3, sigma_G=0.4, K=4, T=500, M=8, m=8)
INNER = dict(L_f=0.7, L_g=0.4, C_f=1.2, C_g=0.8, sigma=0.3, delta_f=0.2, delta_g=0.1, q=5, T=400, gap=2.0)
SPREAD = dict(sigma=0.3, delta_x=0.2, delta_y=0.1, K=8, q=5, T=400)
#: Constants for every theorem.
CONSTANTS = {
    "wang-kale-1": GAME,
    "wang-kale-corollary-1": GAME | {"sigma": 30.0},
    "wang-kale-2": GAME,
    "wang-kale-3": GAME | {"G": 5.0, "H": 6},
    "wang-kale-corollary-2": GAME | {"sigma": 0.01, "G": 5.0, "H": 6, "s": 0.5},
    "wang-kale-4": GAME | {"G": 5.0, "H": 6, "Lambda": 0.8},
    "wang-kale-5": GAME | {"d": 7},
    "wang-kale-6": GAME | {"beta": 1.5},
    "wang-kale-7": GAME | {"G": 5.0},
    "wang-kale-24": GAME | {"xi": 0.4},
    "huang-2024-1": PL | SPREAD | {"A": 2.0, "rho": 0.5, "rho_u": 1.5},
    "huang-2024-2": PL | SPREAD,
    "huang-composition-1": INNER | {"A": 2.0, "rho": 0.5},
    "huang-composition-2": INNER,
    "zhang-gao-1": dict(L=2.0, mu=0.5, N=8, p=4, T=900, unit=0.5),
    "zhang-gao-2": dict(L=2.0, mu=0.5, N=8, p=4, T=900, unit=0.5),
    "zhang-gao-58": PL | dict(sigma=0.3, s=1.5, N=8, p=4, T=900, unit=0.5),
    "zhang-gao-76": PL | dict(sigma=0.3, s=1.5, N=8, p=4, T=900, unit=0.5, n_y=3),
    "shen-corollary-E.1": dict(l=2.0, mu=0.5, T=500, Delta=3.0),
    "shen-corollary-3.2": dict(l=2.0, D=3.0, epsilon=0.1, T=500, Delta=3.0),
    "shen-corollary-3.3": dict(l=2.0, D=3.0, epsilon=0.1, T=500, Delta=3.0),
    "shen-3.1": SMOOTHED | {"mu": 0.5, "Delta": 3.0},
    "shen-E.1": SMOOTHED | {"mu": 0.5, "Delta": 3.0, "G_y": 1.0},
    "shen-3.2": SMOOTHED | {"D": 3.0, "epsilon": 0.1, "Delta": 3.0},
    "shen-3.3": SMOOTHED | {"D": 3.0, "epsilon": 0.1, "Delta": 3.0, "G_y": 1.0},
    "shen-3.4": SMOOTHED | {"Delta": 3.0},
    "shen-3.5": SMOOTHED | {"mu_x": 0.5, "mu_y": 0.7, "W": 3.0},
    "zhang-proxskip": dict(ell=9.0, mu_z=0.5, R=20, D_0=3.0, V_star=2.0),
    "mishchenko-scaffnew": dict(L=9.0, mu_x=0.5, R=20, D_0=3.0, grad_star=2.0),
    "sun-wei-linear": dict(L=9.0, mu_z=0.5, K=4, R=20, D_0=3.0),
}
#: Theorems for which the source states only an order.
ORDERS = {
    "wang-kale-5", "wang-kale-24", "zhang-gao-1", "zhang-gao-2", "shen-3.2", "shen-3.4",
    "shen-corollary-3.2",
}  # fmt: skip


def varied(name, seeds=20):
    """The constants of a theorem, those that are no counts multiplied by factors about 1."""
    for seed in range(seeds):
        factors = np.exp(0.3 * np.random.default_rng(seed).standard_normal(len(CONSTANTS[name])))
        pairs = zip(CONSTANTS[name].items(), factors.tolist())
        yield {
            key: value * factor if isinstance(value, float) and key != "s" else value
            for (key, value), factor in pairs
        }


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("theorem", THREE, ids=lambda theorem: theorem.name)
def test_step_size_and_bound(theorem, regime):
    largest, root, cube, smooth, power, noise, drift = THREE[theorem]
    L, sigma, K, R, M, D = REGIMES[regime]
    terms = {
        "smooth": largest(K) / L,
        "noisy": D * math.sqrt(M) / (sigma * math.sqrt(root * K * R)),
        "drifting": math.exp(math.log(D * D / (cube * K * K * R * sigma * sigma * L)) / 3),
    }
    assert min(terms, key=terms.get) == regime
    third = (D**4 * sigma**2 * L / (K * R**2)) ** (1 / 3)
    bound = smooth * L * D * D / (R * K**power) + noise * sigma * D / math.sqrt(M * K * R) + drift * third
    said = theorem(L, sigma, K, R, M, D)
    assert (said.steps["eta"], said.bound) == pytest.approx((terms[regime], bound), rel=1e-13)  # rounding


@pytest.mark.parametrize("theorem", THREE, ids=lambda theorem: theorem.name)
def test_without_noise_only_smoothness_matters(theorem):
    largest, _, _, smooth, power, *_ = THREE[theorem]
    said = theorem(2.0, 0.0, 4, 5, 6, 7.0)
    assert said.steps["eta"] == pytest.approx(largest(4) / 2)
    assert said.bound == pytest.approx(smooth * 2 * 49 / (5 * 4**power))


def test_constants_of_all_theorems_are_listed():
    assert set(CONSTANTS) == set(THEOREMS)


def test_full_participation_has_no_error_of_sampling():
    """Theorem 3.1 of Shen et al. without noise: M = m occurs in the error of sampled clients only."""
    exact = CONSTANTS["shen-3.1"] | {"sigma": 0.0}
    assert prescribe("shen-3.1", **exact).bound == prescribe("shen-3.1", **exact | {"M": 5, "m": 5}).bound


def test_the_local_step_of_the_faster_block():
    """Theorem 3.5 of Shen et al. with K = 1 and the largest step size 1 / (4 l K)."""
    said = prescribe("shen-3.5", **CONSTANTS["shen-3.5"] | {"K": 1})
    assert said.steps["eta_xl"] == pytest.approx(1 / (math.sqrt(1536) * 2.0))


@pytest.mark.parametrize("name", CONSTANTS)
def test_every_theorem_gives_steps_and_bound(name):
    said = prescribe(name, **CONSTANTS[name])
    assert (said.bound is None) == (name in ORDERS)
    assert said.bound is None or 0 < said.bound < math.inf
    steps = flat(said.steps)
    assert steps and all(steps[key] for key in steps if key != "p")  # Theorem 3.5 of Shen et al. has p = 0
    assert THEOREMS[name].methods and {*THEOREMS[name].methods} <= {*ALGORITHMS} and THEOREMS[name].__doc__


def flat(steps):
    """Numbers by name; those of a schedule as ``eta.scale``."""
    numbers = {}
    for name, value in steps.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        numbers |= {f"{name}.{key}" if key else name: part for key, part in parts if key != "name"}
    return numbers


#: Powers of (the unit of points, the unit of operator values) in each constant, in the steps, and in the
#: bound.
VI = dict(L=(-1, 1), sigma=(0, 1), D=(1, 0), G=(0, 1), xi=(0, 1), Lambda=(-2, 1), beta=(-1, 1), s=(0, 1))
VI_STEPS = dict(eta=(1, -1), gamma=(1, -1), delta=(1, 0))
#: The same for (the unit of points, the unit of f).
F = dict(
    L=(-2, 1), l=(-2, 1), mu=(-2, 1), mu_x=(-2, 1), mu_y=(-2, 1), sigma=(-1, 1), sigma_G=(-1, 1), G_y=(-1, 1),
    delta_x=(-1, 1), delta_y=(-1, 1), gap=(0, 1), inner=(0, 1), Delta=(0, 1), W=(0, 1), D=(1, 0), unit=(1, 0),
    epsilon=(-1, 1),
)  # fmt: skip
LOCAL = dict.fromkeys(("eta_xl", "eta_yl"), (2, -1)) | {"p": (-2, 1)}
PRODUCTS = dict.fromkeys(("eta_x", "eta_y"), (2, -1)) | {"p": (-2, 1)}
SKIPPED = dict(ell=(-1, 1), mu_z=(-1, 1), D_0=(1, 0), V_star=(0, 1))
UNITS = {
    **{name: (VI, VI_STEPS, (1, 1)) for name in CONSTANTS if name.startswith("wang-kale")},
    **{f"huang-2024-{n}": (F, dict(gamma=(2, -1), lam=(2, -1)), (-1, 1)) for n in (1, 2)},
    **{
        f"zhang-gao-{n}": (F, dict.fromkeys(("gamma_x", "gamma_y", "eta_x", "eta_y"), (1, 0)), (-1, 1))
        for n in (1, 2, 58, 76)
    },
    "shen-3.1": (F, LOCAL, (-2, 2)),
    "shen-E.1": (F, LOCAL, (-2, 2)),
    "shen-3.3": (F, LOCAL, (-2, 2)),
    "shen-3.4": (F, LOCAL, None),
    "shen-3.5": (F, LOCAL, (0, 1)),
    "zhang-proxskip": (SKIPPED, dict(gamma=(1, -1)), (1, 0)),
    "mishchenko-scaffnew": (F | dict(D_0=(1, 0), grad_star=(-1, 1)), dict(gamma=(2, -1)), (1, 0)),
    "sun-wei-linear": (SKIPPED | dict(L=(-1, 1)), dict(eta_xl=(1, -1), eta_yl=(1, -1)), (1, 0)),
    **{f"shen-corollary-{n}": (F, PRODUCTS, (-2, 2)) for n in ("E.1", "3.3")},
}


@pytest.mark.parametrize("units", [(7.0, 1.0), (1.0, 7.0), (0.3, 5.0)])
@pytest.mark.parametrize("name", UNITS)
def test_theorems_are_invariant_to_units(name, units):
    """All but huang-composition, which adds up different units, and shen-3.2, whose ε² has no unit."""
    powers, of_steps, of_bound = UNITS[name]

    def change(key, powers):
        of_points, of_values = powers.get(key, (0, 0))
        return units[0] ** of_points * units[1] ** of_values

    for constants in varied(name, 5):
        first = prescribe(name, **constants)
        second = prescribe(name, **{key: value * change(key, powers) for key, value in constants.items()})
        expected = {key: value * change(key, of_steps) for key, value in flat(first.steps).items()}
        assert flat(second.steps) == pytest.approx(expected, rel=1e-10)  # roots of products
        if first.bound is not None:
            assert second.bound == pytest.approx(first.bound * change("", {"": of_bound}), rel=1e-10)


@pytest.mark.parametrize("name", ["huang-composition-1", "huang-composition-2"])
def test_a_composition_bound_is_a_root_of_what_it_sums(name):
    """G is linear in the gap and in the squares of σ and δ, which no condition contains."""
    constants = CONSTANTS[name]
    more = {key: value * 9 for key, value in constants.items() if key == "gap"}
    more |= {key: value * 3 for key, value in constants.items() if key in ("sigma", "delta_f", "delta_g")}
    expected = 3 * prescribe(name, **constants).bound
    assert prescribe(name, **constants | more).bound == pytest.approx(expected, rel=1e-12)


def inequality_3(L, sigma, K, R, M, D, G, H, eta):
    """Wang & Kale, (39), with the units and the contraction that its lemmas have."""
    e = math.e
    tail = (60 * e * G**2 * K**2 * L**3 * eta**4 + 30 * eta * G**2) * 0.75**H
    noise = 2 * eta / M + 60 * e * K**2 * L**3 * eta**4 + 54 * e * K * L * eta**2 + 15 * eta
    return D**2 / (eta * K * R) + noise * sigma**2 + tail


def inequality_4(L, sigma, K, R, M, D, G, H, Lambda, eta):
    """The proof of Theorem 4 with each constant as small as it comes out."""
    e = math.e
    noise = 6 * eta / M + 5.5 * eta**3 * L**2 + L * (30 * e * K**2 * L**2 * eta**4 + 27 * e * K * eta**2)
    tail = (16 + 30 * e * K**2) * eta * G**2 + 10 * H**2 * Lambda**2 * eta**5 * G**4
    return D**2 / (eta * K * R) + noise * sigma**2 + 30 * Lambda**2 * eta**5 * sigma**4 + tail * 0.75**H


def inequality_7(L, sigma, K, R, M, D, G, eta):
    return D**2 / (eta * K * R) + 6 * sigma**2 * eta / M + 17 * L * G**2 * eta**2 * K**2


@pytest.mark.parametrize("name, inequality, slack", [
    ("wang-kale-3", inequality_3, 4),
    ("wang-kale-4", inequality_4, 1000),  # its constant is 240 for all terms
    ("wang-kale-7", inequality_7, 2),
])  # fmt: skip
def test_bound_agrees_with_the_proof_at_the_prescribed_step(name, inequality, slack):
    for constants in varied(name):
        said = prescribe(name, **constants)
        given = inequality(**constants, eta=said.steps["eta"])
        assert given <= said.bound * ROUNDING <= slack * given * ROUNDING**2


def test_the_rule_of_theorem_24_balances_its_order():
    """Each term of the proof's inequality is at most its term of the order, D²/(ηKR) at most their sum."""
    for c in varied("wang-kale-24"):
        L, sigma, K, R, M, D, xi = c.values()
        eta = prescribe("wang-kale-24", **c).steps["eta"]
        order = L * D**2 / (K**0.5 * R) + D * sigma / (M * K * R) ** 0.5
        order += (D**4 * sigma**2 * L / (K * R**2)) ** (1 / 3) + (D**4 * xi**2 * L / R**2) ** (1 / 3)
        order += D * (xi * sigma) ** 0.5 / (K**0.25 * R**0.5) + D * xi / R**0.5
        rest = sigma**2 * eta / M + L * eta**2 * (sigma**2 * K + xi**2 * K**2)
        rest += xi * eta * sigma * K**0.5 + xi**2 * eta * K
        assert D**2 / (eta * K * R) <= order * ROUNDING and rest <= order * ROUNDING


@pytest.mark.parametrize("name", ["wang-kale-5", "wang-kale-4", "wang-kale-3"])
def test_the_inner_step_of_lippax(name):
    steps = prescribe(name, **CONSTANTS[name]).steps
    eta, L = steps["eta"], CONSTANTS[name]["L"]
    assert steps["gamma"] == pytest.approx(eta / (eta * L + 1) ** 2)
    if name == "wang-kale-5":
        assert steps["delta"] == pytest.approx(eta * 0.3 / 7**0.25)


def test_corollaries_are_their_theorems_where_a_term_drops_out():
    much = CONSTANTS["wang-kale-corollary-1"]
    assert prescribe("wang-kale-corollary-1", **much).steps == theorem_1(**much).steps
    least = 14**0.75 * 6 / (6 * math.e * 26**0.5 * 50**0.5 * 4**0.25)
    with pytest.raises(ValueError, match="Corollary 1 needs sigma >= "):
        prescribe("wang-kale-corollary-1", **much | {"sigma": least * 0.999})
    limit = much | {"sigma": least}
    assert prescribe("wang-kale-corollary-1", **limit).bound < theorem_1(**limit).bound
    little = CONSTANTS["wang-kale-corollary-2"]
    third = prescribe("wang-kale-3", **{key: value for key, value in little.items() if key != "s"})
    corollary = prescribe("wang-kale-corollary-2", **little)
    assert corollary.steps == third.steps
    assert corollary.bound - third.bound == pytest.approx(4 * 3 * 0.5 / 200 - 4 * 0.01 * 3 / 200**0.5)
    with pytest.raises(ValueError, match="Corollary 2 needs sigma <= "):
        prescribe("wang-kale-corollary-2", **little | {"sigma": 0.5})


@pytest.mark.parametrize("name", ["huang-2024-1", "huang-2024-2"])
def test_the_conditions_of_huang_et_al_hold(name):
    for c in varied(name):
        L, mu, K, q, n = c["L"], c["mu"], c["K"], c["q"], 1
        rho, rho_u = (c["rho"], c["rho_u"]) if name.endswith("1") else (1, 1)
        if rho_u > 135 / (64 * rho**2) or rho > 1:
            continue
        steps = prescribe(name, **c).steps
        gamma, lam, m = steps["gamma"], steps["lam"], steps["eta"]["offset"]
        c1, c2 = steps["alpha"]["c"], steps["beta"]["c"]
        largest = steps["eta"]["scale"] / m ** (1 / 3)  # η_0
        smooth = L * (1 + L / mu / 2)
        assert largest <= ROUNDING and max(c1, c2) * largest <= ROUNDING
        assert 12 * 2**0.5 * lam * q * L * largest <= rho * ROUNDING
        assert c1**2 + c2**2 <= 12**4 * lam**4 * q**2 * L**4 / rho**4
        assert c1 == pytest.approx(2 / (3 * n**3 * K) + 9 * rho_u * L**2 / (2 * mu**2 * rho))
        assert c2 == pytest.approx(2 / (3 * n**3 * K) + 4.5)
        Lambda = 1 / 16 + L**2 * rho_u / (4 * mu**2) + 16 * lam**2 * L**2 / (K * rho**2)
        assert 8 * Lambda * (gamma / lam) ** 2 / 15 <= ROUNDING / 12  # (74)
        assert gamma <= lam * ROUNDING
        assert gamma <= rho / (4 * smooth * largest) * ROUNDING
        assert gamma <= min(lam * mu / smooth, rho * mu / L**2) / (16 * rho_u) * ROUNDING
        assert 9 * gamma * L**2 * rho_u / (8 * lam * mu**2 * rho) <= rho / 12 * ROUNDING  # above (74)
        assert gamma <= K**0.5 * rho / (8 * 3**0.5 * L) * ROUNDING
        assert lam <= min(1 / (4 * L * largest * rho_u), 3 * (5 * K) ** 0.5 / (32 * 2**0.5 * mu)) * ROUNDING


@pytest.mark.parametrize("name", ["huang-2024-1", "huang-2024-2"])
def test_the_bound_of_huang_et_al_follows_from_its_proof(name):
    """The sum of (76) over t, and Ω_1 of (78), with Σ η_t³ ≤ n³ K ln(m + T), times 4 / (T ρ γ η_T)."""
    for c in varied(name):
        L, mu, sigma, K, q, T, n = c["L"], c["mu"], c["sigma"], c["K"], c["q"], c["T"], 1
        A, rho, rho_u = (c["A"], c["rho"], c["rho_u"]) if name.endswith("1") else (1, 1, 1)
        if rho_u > 135 / (64 * rho**2) or rho > 1:
            continue
        result = prescribe(name, **c)
        gamma, lam, m = result.steps["gamma"], result.steps["lam"], result.steps["eta"]["offset"]
        squares = [result.steps[weight]["c"] ** 2 for weight in ("alpha", "beta")]
        first, last = (n * (K / (m + t)) ** (1 / 3) for t in (0, T))
        start = c["gap"] + 9 * rho_u * gamma * L**2 / (rho * lam * mu**2) * c["inner"]
        start += 2 * gamma * sigma**2 / (q * K * rho * first)
        Delta = sum(squares) * sigma**2
        Delta += 3 * squares[1] * c["delta_x"] ** 2 + 3 * squares[0] * c["delta_y"] ** 2
        drift = rho / 16 + L**2 * rho * rho_u / (4 * mu**2) + 16 * lam**2 * L**2 / (K * rho)
        each = 2 * sum(squares) * gamma * sigma**2 / (K * rho)
        each += drift * 2 * gamma * Delta / (15 * lam**2 * L**2)
        mean = 4 / (T * rho * gamma * last) * (start + each * n**3 * K * math.log(m + T))
        roots = (m ** (1 / 6) + T ** (1 / 6)) / (m + T) ** (1 / 6)  # the last step of the proof
        assert result.bound == pytest.approx(A * (3 * mean) ** 0.5 * roots, rel=1e-12)


@pytest.mark.parametrize("name", ["huang-composition-1", "huang-composition-2"])
def test_the_conditions_of_the_composition_theorems_hold(name):
    for c in varied(name):
        L_f, L_g, C_f, C_g, q = (c[key] for key in ("L_f", "L_g", "C_f", "C_g", "q"))
        rho = c["rho"] if name.endswith("1") else 1
        steps = prescribe(name, **c).steps
        gamma, n = steps["gamma"], steps["eta"]["offset"]
        c1, c2, c3 = (steps[key]["c"] for key in ("alpha", "beta", "varrho"))
        S = math.sqrt(L_f**2 * C_g**2 + L_g**2) * max(C_f, C_g)
        W = C_g**2 + L_g**2 + 2 * L_f**2 * C_g**2
        common = c2**2 * C_g**2 * L_f**2 / (q * gamma * S) ** 3
        Theta = (5 * C_f**2 * L_g**2 + common / 864) * rho**2 / (24 * S) ** 2 + gamma * rho * W / (6 * q * S)
        B = 20 * C_g**2 * L_f**2 + common / 216
        B += Theta * rho**2 * (c1**2 + c3**2) / (30 * q**2 * gamma**4 * S**2 * C_g**2)  # (88)
        assert c1 == pytest.approx(2 / 3 + B, rel=1e-9)  # a root of a quadratic
        assert Theta + B * C_g**2 * rho**2 / (24 * S) ** 2 <= 5 * rho**2 / 48
        assert c1**2 + c2**2 <= 24**4 * q**2 * gamma**4 * S**4 / (9 * rho**4)
        assert rho * (c1**2 + c2**2) ** 0.25 / (12 * 5**0.5 * q * S) <= gamma
        assert (rho / S) ** 4 * (c1**2 + c3**2) / (24**2 * 120 * q**2 * gamma**4) <= ROUNDING / 4  # (87)
        assert gamma <= 3 * rho * q * S / (4 * W) * ROUNDING
        smooth = math.sqrt(2 * C_f**2 * L_g**2 + 2 * C_g**4 * L_f**2)
        root = max(1, c1, c2, c3, 24 * gamma * q * S / rho, 2 * smooth * gamma / rho)
        assert n == pytest.approx(max(2, root**3), rel=1e-12), "the smallest offset that the conditions allow"


def test_the_steps_of_shen_et_al():
    steps = prescribe("shen-3.1", **CONSTANTS["shen-3.1"] | {"sigma": 0.0}).steps
    eta_x, eta_y = steps["eta_xl"] * steps["eta_xg"], steps["eta_yl"] * steps["eta_yg"]
    assert (eta_x, eta_y, steps["p"]) == pytest.approx((1 / 8000, 1 / 8000 / 256, 4.0))
    assert steps["beta"] == pytest.approx(eta_y * 4 * 0.5 / 80000)
    assert steps["eta_xl"] <= (steps["beta"] / (6144 * eta_x * 4 * 4 * 64)) ** 0.5 * ROUNDING
    assert max(steps["eta_xl"], steps["eta_yl"]) <= 1 / (4 * (2 * 7 * 3) ** 0.5)
    for name in ("3.1", "E.1", "3.2", "3.4"):
        noisy = prescribe(f"shen-{name}", **CONSTANTS[f"shen-{name}"] | {"sigma": 900.0}).steps
        expected = (8 * 3) ** 0.5 / (900 * (4 * 500 * 2) ** 0.5)
        assert noisy["eta_xl"] * noisy["eta_xg"] == pytest.approx(expected)
    two, swapped = (
        prescribe("shen-3.5", **CONSTANTS["shen-3.5"] | mus).steps
        for mus in (dict(mu_x=0.7, mu_y=0.5), dict(mu_x=0.5, mu_y=0.7))
    )
    assert two["eta_yl"] * two["eta_yg"] == pytest.approx(1 / 32)
    assert two["eta_xl"] * two["eta_xg"] == pytest.approx(0.25 / (64 * 4) / 32)
    for block, other in (("xl", "yl"), ("yl", "xl"), ("xg", "yg"), ("yg", "xg")):
        assert two[f"eta_{block}"] == swapped[f"eta_{other}"]


def test_the_ratio_of_zhang_and_gao():
    for name in ("zhang-gao-1", "zhang-gao-58", "zhang-gao-76"):
        steps = prescribe(name, **CONSTANTS[name]).steps
        assert steps["gamma_x"] == pytest.approx(0.5 * 32**0.25 / (4 * 900**0.75))
        assert steps["gamma_y"] == pytest.approx(40 * steps["gamma_x"])
        assert (steps["beta_x"], steps["eta_y"]) == pytest.approx(((32 / 900) ** 0.5, 0.5 / 120))


def test_muon_of_vectors_is_normalisation():
    """Then (76) is (58), with twice its consensus error because of another splitting in (64)."""
    vector = CONSTANTS["zhang-gao-76"] | {"n_y": 1}
    said, plain = prescribe("zhang-gao-76", **vector), prescribe("zhang-gao-58", **CONSTANTS["zhang-gao-58"])
    assert said.steps == plain.steps
    kappa, beta, (gamma_x, gamma_y) = 4, said.steps["beta_x"], (said.steps["gamma_x"], said.steps["gamma_y"])
    consensus = beta * (8 * 2**0.5 * 0.3 + 4 * 2 * said.steps["eta_x"] * 4 * 2 + 2 * (gamma_x + gamma_y) * 2)
    assert said.bound - plain.bound == pytest.approx((5 + 10 * kappa) / 3 * consensus)
    bounds = [prescribe("zhang-gao-76", **vector | {"n_y": n}).bound for n in (1, 2, 3)]
    assert bounds == sorted(bounds) and bounds[0] < bounds[2]


def test_smoothed_gda_is_fess_gda_of_one_client_with_one_exact_step():
    """One step from the mean point does not drift, whatever G_y is."""
    alone = dict(sigma=0.0, sigma_G=0.0, K=1, M=1, m=1)
    for name, no_drift in (("E.1", {"G_y": 0.0}), ("3.2", {}), ("3.3", {"G_y": 0.0})):
        corollary = prescribe(f"shen-corollary-{name}", **CONSTANTS[f"shen-corollary-{name}"])
        theorem = prescribe(f"shen-{name}", **CONSTANTS[f"shen-{name}"] | alone | no_drift)
        assert corollary.of == theorem.of
        # ε / 2 of Theorem 3.3 adds to G_y.
        assert corollary.bound == theorem.bound or corollary.bound == pytest.approx(theorem.bound, rel=1e-9)
        assert corollary.steps["eta_x"] == pytest.approx(1 / (1000 * (2 if name != "3.3" else 2 + 0.1 / 6)))
        assert corollary.steps["eta_y"] == pytest.approx(corollary.steps["eta_x"] / 256)
        assert all(corollary.steps[key] == theorem.steps[key] for key in ("p", "beta"))


@pytest.mark.parametrize("name, changes, words", [
    ("wang-kale-8", {}, "unknown theorem 'wang-kale-8': did you mean 'wang-kale-"),
    ("WANG-KALE-2", {}, "did you mean 'wang-kale-2'"),
    ("wang-kale-2", {"L": None}, "wang-kale-2 needs L, got sigma"),
    ("wang-kale-2", {"Sigma": 1.0}, "wang-kale-2 has no constant 'Sigma': did you mean 'sigma'"),
    ("wang-kale-2", {"L": -1.0}, "wang-kale-2: L: expected a finite number >= 0, got -1.0"),
    ("wang-kale-2", {"L": math.nan}, "L: expected a finite number"),
    ("wang-kale-2", {"L": "2"}, "L: expected a finite number >= 0, got '2'"),
    ("wang-kale-2", {"L": 0.0}, "wang-kale-2 does not apply to these constants: "),
    ("zhang-gao-58", {"s": 1.0}, "expected 1 < s <= 2, got s = 1.0"),
    ("zhang-gao-58", {"beta": 2.0}, "expected 0 < beta <= 1"),
    ("shen-3.2", {"epsilon": 9.0}, "expected epsilon^2 <= l D"),
    ("shen-3.3", {"epsilon": 90.0}, "expected epsilon <= 2 l D"),
    ("shen-E.1", {"m": 4}, "expected m = M or sigma_G = 0, got m = 4, M = 8"),
    ("shen-3.5", {"eta": 1.0}, "expected 0 < eta <= 1 / (4 l K)"),
    ("huang-2024-1", {"rho": 2.0}, "expected 0 < rho <= 1"),
    ("huang-2024-2", {"lam": 1e-3}, "try a larger q"),
    ("huang-2024-2", {"lam": 1e3}, "expected lam <= 3 sqrt"),
    ("huang-composition-2", {"k": 1e-9}, "allow no gamma for q = 5"),
])  # fmt: skip
def test_invalid_constants_are_refused(name, changes, words):
    constants = CONSTANTS.get(name, GAME) | changes
    given = {key: value for key, value in constants.items() if value is not None}
    assert words in refusal(lambda: prescribe(name, **given), ValueError)


def test_the_bounds_of_linear_rates():
    """One round with p = 1 is a step of gradient descent; R rounds multiply the bound."""
    descent = prescribe("zhang-proxskip", ell=4.0, mu_z=1.0, R=1, D_0=3.0, V_star=0.0, p=1.0)
    assert descent.bound == pytest.approx((1 - 0.25) ** 0.5 * 3)
    assert prescribe("zhang-proxskip", ell=4.0, mu_z=4.0, R=1, D_0=3.0, V_star=0.0, p=1.0).bound == 0
    said = CONSTANTS["zhang-proxskip"]
    steps = {"gamma": 1 / said["ell"], "p": (said["mu_z"] / said["ell"]) ** 0.5}
    assert prescribe("zhang-proxskip", **said).steps == pytest.approx(steps)
    scaffnew = dict(L=said["ell"], mu_x=said["mu_z"], R=said["R"], D_0=said["D_0"], grad_star=said["V_star"])
    assert prescribe("mishchenko-scaffnew", **scaffnew) == prescribe("zhang-proxskip", **said)
    tracked = CONSTANTS["sun-wei-linear"]
    once, twice = (prescribe("sun-wei-linear", **tracked | {"R": R}).bound / 3.0 for R in (1, 2))
    assert twice == pytest.approx(once**2) and 0.9 < once < 1
    for name in ("zhang-proxskip", "sun-wei-linear"):
        with pytest.raises(ValueError, match="at most 9|mu_z <= L"):
            prescribe(name, **CONSTANTS[name] | {"mu_z": 10.0})
