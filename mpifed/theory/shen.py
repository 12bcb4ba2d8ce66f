"""Shen et al. 2024: Theorems 3.1 to 3.5 and E.1 on FESS-GDA, Corollaries 3.2, 3.3 and E.1 on Smoothed-GDA.

Constants:

* ``l``: smoothness of the clients' functions; ``mu``: PL or strong-concavity constant in y; ``D``: diameter
  of the set of y; ``G_y``: Lipschitz constant of f in y.
* ``sigma``: standard deviation of the noise; ``sigma_G``: bound of the distance between a client's gradient
  and the mean gradient.
* ``K`` local steps, ``T`` rounds, ``m`` of ``M`` clients per round.
* ``Delta`` = V_0 - min Φ with the paper's potential V = f̂ - 2Ψ + 2P, where f̂ = f + l‖x - z‖², Ψ = min_x f̂
  and P = min_x max_y f̂.

η_x and η_y are products of local and global step sizes, as in the paper. Local step sizes are the largest
that satisfy the conditions with explicit constants. The condition with O(ε) is left out, because the bounds
here, which are those of the proofs before constants are collected, include the client drift.
"""

from __future__ import annotations

from mpifed.theory.prescription import over, theorem

_METHOD = dict(
    letters={"l": "L", "K": "local_steps", "T": "rounds", "M": "clients", "m": "cohort"},
    without=("alternating",),
)
_STATIONARY = dict(of="mean over the rounds of E‖∇_x f‖² + κ E‖l (P_Y(y + ∇_y f / l) - y)‖²", **_METHOD)
_PLAIN = dict(of="mean over the rounds of E‖∇_x f‖² + κ E‖∇_y f‖²", **_METHOD)


@theorem("shen-3.1", "FESSGDA", **_PLAIN)
def theorem_3_1(
    l: float, mu: float, sigma: float, sigma_G: float, K: float, T: float, M: float, m: float, Delta: float
):
    """FESS-GDA, PL in y without a set (Theorem 3.1, appendix D); the bound is the first in (13)."""
    sampled = m < M and sigma_G > 0
    limit = over((m * Delta) ** 0.5, sigma * (T * l) ** 0.5 * (K if sampled else K**0.5))
    eta_x = min(1 / (1000 * K * l), limit)
    steps = _smoothed(l, K, eta_x, K * mu / 80000)
    eta_y = eta_x / 256
    factor = max(128 * l / mu / (eta_x * K), 64 * l / mu / (eta_y * K), 64 * l / steps["beta"])
    spread = 25 * l * (eta_x * K * sigma_G) ** 2 * (M - m) / (m * M) + 15 * l * eta_x**2 * K * sigma**2 / m
    return steps, factor * (Delta / T + spread + _drift(l, K, eta_x, steps, sigma, sigma_G**2))


@theorem("shen-E.1", "FESSGDA", **_STATIONARY)
def theorem_E_1(
    l: float, mu: float, sigma: float, sigma_G: float, G_y: float, K: float, T: float, M: float, m: float,
    Delta: float,
):  # fmt: skip
    """FESS-GDA, strongly concave in y on a compact set (Theorem E.1); the bound is (23), summed
    over the rounds."""
    _expect_full_participation(sigma_G, M, m)
    eta_x = min(1 / (1000 * K * l), over((m * Delta) ** 0.5, sigma * (K * T * l) ** 0.5))
    steps = _smoothed(l, K, eta_x, K * mu / 80000)
    eta_y = eta_x / 256
    factor = max(128 / (eta_x * K), 32 * l / mu / (eta_y * K), 64 * l / steps["beta"])
    spread = 15 * l * eta_x**2 * K * sigma**2 / m + 4 * eta_y * sigma**2 / m
    return steps, factor * (Delta / T + spread + _drift(l, K, eta_x, steps, sigma, sigma_G**2 + G_y**2))


@theorem("shen-3.2", "FESSGDA", of="(ε, ε²)-stationarity of f", **_METHOD)
def theorem_3_2(
    l: float, D: float, epsilon: float, sigma: float, sigma_G: float, K: float, T: float, M: float, m: float,
    Delta: float,
):  # fmt: skip
    """FESS-GDA, one-point concave in y, ε² ≤ l D (Theorem 3.2, appendix F). The source states an order
    only."""
    _expect_full_participation(sigma_G, M, m)
    if epsilon**2 > l * D:
        raise ValueError(f"expected epsilon^2 <= l D, got {epsilon**2:.4g} > {l * D:.4g}")
    eta_x = min(1 / (1000 * K * l), over((m * Delta) ** 0.5, sigma * (K * T * l) ** 0.5))
    return _smoothed(l, K, eta_x, K * epsilon**2 / (80000 * D)), None


@theorem("shen-3.3", "FESSGDA", of=f"of f - ε/(4D)‖y - y_0‖²: {_STATIONARY['of']}", **_METHOD)
def theorem_3_3(
    l: float, D: float, epsilon: float, sigma: float, sigma_G: float, G_y: float, K: float, T: float,
    M: float, m: float, Delta: float,
):  # fmt: skip
    """FESS-GDA, concave in y with ε ≤ 2 l D (Theorem 3.3): Theorem E.1 for f̃ = f - ε/(4D)‖y - y_0‖².

    f̃ is (l + ε/(2D))-smooth, ε/(2D)-strongly concave and (G_y + ε/2)-Lipschitz in y. Δ refers to f̃. The
    gradients of f and f̃ differ by at most ε/2.
    """
    if epsilon > 2 * l * D:
        raise ValueError(f"expected epsilon <= 2 l D, got {epsilon:.4g} > {2 * l * D:.4g}")
    mu = epsilon / (2 * D)
    return theorem_E_1.statement(l + mu, mu, sigma, sigma_G, G_y + epsilon / 2, K, T, M, m, Delta)


@theorem("shen-corollary-E.1", "SmoothedGDA", **_STATIONARY)
def corollary_E_1(l: float, mu: float, T: float, Delta: float):
    """Smoothed-GDA, strongly concave in y on a compact set (Corollary E.1): Theorem E.1 with M = K = 1, exact
    gradients."""
    steps, bound = theorem_E_1.statement(l, mu, 0.0, 0.0, 0.0, 1, T, 1, 1, Delta)
    return _exact(steps), bound


@theorem("shen-corollary-3.2", "SmoothedGDA", of="(ε, ε²)-stationarity of f", **_METHOD)
def corollary_3_2(l: float, D: float, epsilon: float, T: float, Delta: float):
    """Smoothed-GDA, one-point concave in y, ε² ≤ l D, exact gradients (Corollary 3.2): Theorem 3.2 with
    M = K = 1."""
    steps, bound = theorem_3_2.statement(l, D, epsilon, 0.0, 0.0, 1, T, 1, 1, Delta)
    return _exact(steps), bound


@theorem("shen-corollary-3.3", "SmoothedGDA", of=theorem_3_3.of, **_METHOD)
def corollary_3_3(l: float, D: float, epsilon: float, T: float, Delta: float):
    """Smoothed-GDA, concave in y, ε ≤ 2 l D, exact gradients (Corollary 3.3): Theorem 3.3 with M = K = 1."""
    steps, bound = theorem_3_3.statement(l, D, epsilon, 0.0, 0.0, 0.0, 1, T, 1, 1, Delta)
    return _exact(steps), bound


@theorem("shen-3.4", "FESSGDA", of="ε-stationarity of f and of the Moreau envelope", **_METHOD)
def theorem_3_4(l: float, sigma: float, sigma_G: float, K: float, T: float, M: float, m: float, Delta: float):
    """FESS-GDA, maximum of finitely many functions (Theorem 3.4, appendix H). The source states an order
    only.

    β is the minimum of η_y K l / 80000, which is used here, and four terms whose constants the source does
    not give.
    """
    _expect_full_participation(sigma_G, M, m)
    eta_x = min(1 / (1000 * K * l), over((m * Delta) ** 0.5, sigma * (K * T * l) ** 0.5))
    return _smoothed(l, K, eta_x, K * l / 80000), None


@theorem("shen-3.5", "FESSGDA", of="E 2Φ(x) - f(x, y) - min Φ after T rounds", **_METHOD)
def theorem_3_5(
    l: float, mu_x: float, mu_y: float, sigma: float, sigma_G: float, K: float, T: float, M: float, m: float,
    W: float, eta: float | None = None,
):  # fmt: skip
    """FESS-GDA, PL in x and in y with p = 0 (Theorem 3.5, appendix I); the bound is the unrolled
    recursion for W_t.

    For μ_x ≥ μ_y, W = 2Φ(x) - f(x, y) - min Φ with Φ = max_y f, and ``W`` is its value at the start. For μ_x
    < μ_y, x and y are exchanged and f is replaced by -f. ``eta`` is the larger of η_x and η_y, at most 1 / (4
    l K); under noise the theorem makes it small by K or ε. 128 (twice 64) replaces the printed 126.
    """
    largest = 1 / (4 * l * K)
    fast = largest if eta is None else eta
    if not 0 < fast <= largest:
        raise ValueError(f"expected 0 < eta <= 1 / (4 l K) = {largest:.4g}, got {fast:.4g}")
    strong, weak = max(mu_x, mu_y), min(mu_x, mu_y)
    slow = fast * weak**2 / (64 * l**2)
    most = over(1, 2 * l * (2 * (2 * K - 1) * (K - 1)) ** 0.5)
    slow_l = min(most, (slow / (1536 * fast)) ** 0.5 / (l * K), slow)
    fast_l = min(most, 1 / (1536**0.5 * l * K), fast)
    drift = 24 * (K * sigma_G) ** 2 * (slow_l**2 + fast_l**2) + 3 * K * sigma**2 * (
        slow_l**2 + 2 * K * fast_l**2
    )
    bound = (1 - slow * K * strong / 16) ** T * W + 64 * l * (fast * sigma) ** 2 / (slow * strong * m)
    bound += 128 * l * fast**2 * K * (M - m) * sigma_G**2 / (slow * strong * m * M)
    bound += 64 * fast * l**2 / (slow * strong) * drift
    x, y = ((slow, slow_l), (fast, fast_l)) if mu_x >= mu_y else ((fast, fast_l), (slow, slow_l))
    return {**_products(x, y), "p": 0.0}, bound


def _smoothed(l: float, K: float, eta_x: float, beta_over_eta_y: float) -> dict[str, float]:
    """Return p = 2l, β, and the local and global steps of η_x and η_y = η_x / 256."""
    eta_y, p = eta_x / 256, 2 * l
    beta, most = beta_over_eta_y * eta_y, over(1, 2 * l * (2 * (2 * K - 1) * (K - 1)) ** 0.5)
    eta_xl = min(most, (beta / (6144 * eta_x * p * l**2 * K**3)) ** 0.5, eta_x)
    eta_yl = min(most, (eta_y / (3072 * eta_x * (l * K) ** 2)) ** 0.5, eta_y)
    return {**_products((eta_x, eta_xl), (eta_y, eta_yl)), "p": p, "beta": beta}


def _exact(steps: dict[str, float]) -> dict[str, float]:
    """Return the steps of Smoothed-GDA: products of local and global step sizes, p and β."""
    products = {f"eta_{block}": steps[f"eta_{block}l"] * steps[f"eta_{block}g"] for block in "xy"}
    return {**products, "p": steps["p"], "beta": steps["beta"]}


def _products(x: tuple[float, float], y: tuple[float, float]) -> dict[str, float]:
    """Return local and global step sizes from pairs (product, local)."""
    return {"eta_xl": x[1], "eta_yl": y[1], "eta_xg": x[0] / x[1], "eta_yg": y[0] / y[1]}


def _drift(l: float, K: float, eta_x: float, steps: dict, sigma: float, spread: float) -> float:
    """Return 4 η_x K l² (24 K² (η_xl² + η_yl²) spread + 3 K (η_xl² + 2 K η_yl²) σ²)."""
    x, y = steps["eta_xl"] ** 2, steps["eta_yl"] ** 2
    inner = 24 * K**2 * (x + y) * spread + 3 * K * (x + 2 * K * y) * sigma**2
    return 4 * eta_x * K * l**2 * inner


def _expect_full_participation(sigma_G: float, M: float, m: float) -> None:
    if m < M and sigma_G > 0:
        raise ValueError(
            "the theorem needs full participation or equal clients: expected m = M or sigma_G = 0, got "
            f"m = {m}, M = {M}, sigma_G = {sigma_G}"
        )
