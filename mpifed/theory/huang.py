"""Theorems 1 (AdaFGDA) and 2 (FGDA) of Huang et al. 2024 on federated minimax problems.

Constants:

* ``L``: smoothness L_f of the clients' functions; ``mu``: PL constant of the mean f in y.
* ``sigma``: standard deviation of the noise; ``delta_x``, ``delta_y``: bounds of the differences between two
  clients' gradients.
* ``K`` clients, ``q`` steps per round, ``T`` steps in total.
* ``gap`` = F(x_1) - inf F with F = max_y f, and ``inner`` = F(x_1) - f(x_1, y_1).

``n`` and ``lam`` (λ) are free parameters. λ is as large as the conditions allow by default, c_1, c_2 and m
are as small as possible, and γ as large. Lemma 11 averages the estimators after the step of a
synchronisation, which is ``sync_estimator = "mean_after"``.

Corrections: c_1² + c_2² ≤ 12⁴ λ⁴ q² L_f⁴ instead of L_f², because of the units. η_0 = n (K/m)^(1/3), so that
the conditions η_0 ≤ 1, γ ≤ 1 / (4 L η_0) and λ ≤ 1 / (4 L_f η_0) contain a factor K^(1/3) that is missing in
the paper. The logarithm in G is ln(m + T). The proof gives larger terms of G than the statement: (77) divides
the last term of (76) by K, which (76) does not allow, so the term with Λ has no 1/K; and 4 / (ργ) times the
last two terms of (78) contain ρ² instead of ρ. Likewise, (74) requires τ² ≤ 5 / (32 Λ) without K, and
γ ≤ 2λμ²ρ² / (27 L_f² ρ_u) with ρ².
"""

from __future__ import annotations

import math

from mpifed.theory.prescription import theorem

_MEAN = dict(
    of="mean over the steps of E‖∇F(x)‖",
    metric="grad_phi",
    letters={"K": "clients", "q": "local_steps", "T": "steps"},
)


@theorem("huang-2024-1", "AdaFGDA", **_MEAN)
def theorem_1(
    L: float, mu: float, sigma: float, delta_x: float, delta_y: float, K: float, q: float, T: float,
    gap: float, inner: float, A: float, rho: float = 1, rho_u: float = 1, n: float = 1,
    lam: float | None = None,
):  # fmt: skip
    """AdaFGDA (Theorem 1, (10)), the conditions as in its restatement, (58).

    The matrices satisfy A_t ⪰ ρI and ρ_u I ⪰ B_t ⪰ ρI, and the root mean square of ‖A_t‖ is at most ``A``,
    with ρ ≤ 1 and ρ_u ≤ 135 / (64 ρ²).
    """
    if not 0 < rho <= 1 or not 0 < rho_u <= 135 / (64 * rho**2):
        raise ValueError(
            f"expected 0 < rho <= 1 and 0 < rho_u <= 135 / (64 rho^2), got rho = {rho}, rho_u = {rho_u}"
        )
    most = 3 * (5 * K) ** 0.5 / (32 * 2**0.5 * mu)
    lam = most if lam is None else lam
    if lam > most:
        raise ValueError(f"expected lam <= 3 sqrt(5 K) / (32 sqrt(2) mu) = {most:.4g}, got lam = {lam}")
    c1, c2 = _weights(L, mu, K, q, rho, rho_u, n, lam)
    root = max(n, c1 * n, c2 * n, 12 * 2**0.5 * n * lam * q * L / rho, 4 * L * n * rho_u * lam)
    m = max(2, K * root**3)
    Lambda = 1 / 16 + rho_u * (L / mu) ** 2 / 4 + 16 * (lam * L / rho) ** 2 / K
    gamma = _step(L, mu, K, rho, rho_u, lam, Lambda, n * (K / m) ** (1 / 3))
    Delta = (c1**2 + c2**2) * sigma**2 + 3 * (c2 * delta_x) ** 2 + 3 * (c1 * delta_y) ** 2
    G = 4 * gap / (rho * gamma * n) + 36 * rho_u * (L / mu) ** 2 * inner / (rho**2 * lam * n)
    G += 8 * m ** (1 / 3) * sigma**2 / (q * K ** (4 / 3) * n**2 * rho**2)
    noise = (c1**2 + c2**2) * sigma**2 / (rho**2 * K) + Lambda * Delta / (15 * (lam * L) ** 2)
    G += 8 * K * n**2 * noise * math.log(m + T)
    eta = {"name": "power", "scale": n * K ** (1 / 3), "offset": m}
    momenta = {name: {"name": "squared", "c": c} for name, c in (("alpha", c1), ("beta", c2))}
    bound = A * (3 * G) ** 0.5 / K ** (1 / 6) * (m ** (1 / 6) / T**0.5 + 1 / T ** (1 / 3))
    return {"gamma": gamma, "lam": lam, "eta": eta, **momenta}, bound


def _weights(
    L: float, mu: float, K: float, q: float, rho: float, rho_u: float, n: float, lam: float
) -> tuple[float, float]:
    """Return the smallest c_1 and c_2."""
    least = 2 / (3 * n**3 * K)
    c1, c2 = least + 9 * rho_u * (L / mu) ** 2 / (2 * rho), least + 4.5
    most = (12 * lam * L / rho) ** 4 * q**2
    if c1**2 + c2**2 > most:
        raise ValueError(
            f"the conditions require c_1^2 + c_2^2 = {c1**2 + c2**2:.4g} <= (12 lam L / rho)^4 q^2 = "
            f"{most:.4g}: try a larger q"
        )
    return c1, c2


def _step(
    L: float, mu: float, K: float, rho: float, rho_u: float, lam: float, Lambda: float, eta_0: float
) -> float:
    """Return the largest γ. F is L (1 + κ/2)-smooth."""
    smooth = L * (1 + L / mu / 2)
    return min(
        lam * min((5 / (32 * Lambda)) ** 0.5, 1),
        rho / (4 * smooth * eta_0),
        lam * mu / (16 * rho_u * smooth),
        rho * mu / (16 * rho_u * L**2),
        2 * lam * (rho * mu) ** 2 / (27 * L**2 * rho_u),
        K**0.5 * rho / (8 * 3**0.5 * L),
    )


@theorem("huang-2024-2", "FGDA", **_MEAN)
def theorem_2(
    L: float, mu: float, sigma: float, delta_x: float, delta_y: float, K: float, q: float, T: float,
    gap: float, inner: float, n: float = 1, lam: float | None = None,
):  # fmt: skip
    """FGDA (Theorem 2, (11)): Theorem 1 with A_t = I, B_t = I, ρ = ρ_u = 1."""
    return theorem_1.statement(L, mu, sigma, delta_x, delta_y, K, q, T, gap, inner, 1, n=n, lam=lam)
