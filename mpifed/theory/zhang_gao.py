"""Zhang & Gao n.d., Theorems 1 and 2 and equations (58) and (76): minimax problems with heavy-tailed noise.

Constants:

* ``L``: smoothness L_f; ``mu``: PL constant in y; κ = L / μ.
* ``N`` clients, ``p`` local steps, ``T`` rounds.
* ``unit``: unit of length of the step sizes. Normalised steps have the unit of x, which the paper omits.

There is no constant for the heterogeneity of the clients, because control variates correct for it.
"""

from __future__ import annotations

from mpifed.theory.prescription import theorem

_MEAN = dict(
    of="mean over the rounds of E‖∇Φ(x)‖",
    metric="grad_phi",
    letters={"N": "clients", "p": "local_steps", "T": "rounds"},
)


@theorem("zhang-gao-1", "FedNSGDAM", **_MEAN)
def theorem_1(L: float, mu: float, N: float, p: float, T: float, unit: float = 1):
    """Fed-NSGDA-M (Theorem 1, (11)). The bound (12) is an order only.

    γ_y = 10κγ_x is the ratio in the proof. A remark in the paper has 1/κ² instead of the theorem's 1/κ.
    """
    return _steps(L / mu, N, p, T, unit), None


@theorem("zhang-gao-2", "FedMuonDA", **_MEAN)
def theorem_2(L: float, mu: float, N: float, p: float, T: float, unit: float = 1):
    """FedMuon-DA (Theorem 2, (17)): the steps of Theorem 1. The bound (18) is an order only."""
    return _steps(L / mu, N, p, T, unit), None


@theorem("zhang-gao-58", "FedNSGDAM", **_MEAN)
def equation_58(
    L: float, mu: float, sigma: float, s: float, N: float, p: float, T: float, gap: float, inner: float,
    unit: float = 1, gamma_x: float | None = None, beta: float | None = None, eta: float | None = None,
):  # fmt: skip
    """Fed-NSGDA-M with explicit constants ((58), appendix A.1), for given steps or those of Theorem 1.

    Args:
        sigma, s: E‖noise‖^s ≤ σ^s for an s in (1, 2].
        gap: Φ(x_0) - inf Φ.
        inner: Φ(x_0) - f(x_0, y_0).
        gamma_x: γ_x, from which γ_y = 10κγ_x.
        beta, eta: β and η of both blocks.
    """
    steps = _given(L / mu, N, p, T, s, unit, gamma_x, beta, eta)
    estimation, consensus = _errors(L, sigma, s, N, p, T, steps, 1.0)
    kappa, gamma = L / mu, steps["gamma_x"]
    bound = (gap + inner / 3) / (gamma * T) + 2 * (L + L * kappa) * gamma / 3
    bound += L * gamma * (1 + 10 * kappa) ** 2 / 6
    bound += (10 + 20 * kappa) / 3 * estimation + (5 + 10 * kappa) / 3 * consensus
    return steps, bound


@theorem("zhang-gao-76", "FedMuonDA", **_MEAN)
def equation_76(
    L: float, mu: float, sigma: float, s: float, N: float, p: float, T: float, gap: float, inner: float,
    n_y: float = 1, unit: float = 1, gamma_x: float | None = None, beta: float | None = None,
    eta: float | None = None,
):  # fmt: skip
    """FedMuon-DA with explicit constants ((76), appendix B.1), if the parameters of x are vectors.

    The constants are those of (58); ``n_y`` is the sum over the parameters of y of the smaller dimension of
    their matrices, 1 for a vector. Corrections:

    * For matrices in x, n_x > 1, (71) does not follow: with γ_y = 10κγ_x, the coefficient of ‖∇_y f‖ in its
      proof is at most 0 only for √n_x ≤ 10/9, and that of ‖∇Φ‖ is -γ_x only for n_x = 1.
    * The last term has the factor 20κ√n_y / 3 of (71) instead of 10κ / 3, and the mixed term of (70) is
      2√(n_x n_y) γ_x γ_y instead of 2n_x γ_x γ_y.
    """
    steps = _given(L / mu, N, p, T, s, unit, gamma_x, beta, eta)
    estimation, consensus = _errors(L, sigma, s, N, p, T, steps, n_y**0.5)
    kappa, gamma = L / mu, steps["gamma_x"]
    bound = (gap + inner / 3) / (gamma * T) + 2 * (L + L * kappa) * gamma / 3
    bound += L * gamma * (1 + 10 * kappa * n_y**0.5) ** 2 / 6
    bound += (10 + 20 * kappa * n_y**0.5) / 3 * (estimation + consensus)
    return steps, bound


def _given(kappa, N, p, T, s, unit, gamma_x, beta, eta) -> dict[str, float]:
    """Return the given steps, or else those of Theorem 1, with γ_y = 10κγ_x."""
    if not 1 < s <= 2:
        raise ValueError(f"expected 1 < s <= 2, got s = {s}")
    steps = _steps(kappa, N, p, T, unit)
    for name, value in (("gamma_x", gamma_x), ("beta_x", beta), ("eta_x", eta)):
        steps[name] = steps[name] if value is None else value
    if not 0 < steps["beta_x"] <= 1:
        raise ValueError(f"expected 0 < beta <= 1, got beta = {steps['beta_x']}")
    return steps | {
        "gamma_y": 10 * kappa * steps["gamma_x"],
        "beta_y": steps["beta_x"],
        "eta_y": steps["eta_x"],
    }


def _errors(L, sigma, s, N, p, T, steps: dict[str, float], root: float) -> tuple[float, float]:
    """Return the bounds of the gradient error, (72), and of the consensus error, (74), for √n_x = 1 and √n_y
    = ``root``; those of Lemmas A.6 and A.7 have ``root`` = 1."""
    gamma, beta, eta = steps["gamma_x"], steps["beta_x"], steps["eta_x"]
    local, moved = (1 + root) * eta * p * L, (gamma + root * steps["gamma_y"]) * L
    averaged = 8**0.5 * sigma / (N * p) ** (1 - 1 / s)
    estimation = local / (beta * T) + averaged / (beta * T) + moved / beta + local
    estimation += beta ** (1 - 1 / s) * averaged
    return estimation, 8 * 2**0.5 * beta * sigma + 4 * beta * local + 2 * beta * moved


def _steps(kappa: float, N: float, p: float, T: float, unit: float) -> dict[str, float]:
    """Return (11) with all constants equal to 1."""
    gamma = unit * (N * p) ** 0.25 / (kappa * T**0.75)
    beta, eta = min(1.0, (N * p / T) ** 0.5), unit / (p * T**0.5)
    return {
        "gamma_x": gamma,
        "gamma_y": 10 * kappa * gamma,
        "beta_x": beta,
        "beta_y": beta,
        "eta_x": eta,
        "eta_y": eta,
    }
