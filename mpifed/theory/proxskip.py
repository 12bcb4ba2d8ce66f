"""Linear rates of ProxSkip-VIP-FL (Zhang et al. 2024) and Scaffnew (Mishchenko et al. 2022) without noise.

With the coins of a random ``period``, all clients, exact operators and h_i = 0 at the start, the Lyapunov
function is

    Ψ = mean ‖z_i - z*‖² + (γ/p)² mean ‖h_i - V_i(z*)‖²,    E Ψ⁺ ≤ ρ Ψ per step,    ρ = 1 - min{γμ, p²}.

Proof. Let ẑ_i = w_i + γ h_i with w_i = z_i - γ V_i(z_i), and let w_i* = z* - γ V_i(z*). A synchronisation
splits ẑ_i - (γ/p) h_i into its mean over the clients, the new z, and the rest, -(γ/p) h_i⁺, which is
orthogonal to it; the same holds at the solution. Hence Ψ⁺ = mean ‖ẑ_i - z* - (γ/p)(h_i - V_i(z*))‖² with
probability p; otherwise h_i is unchanged. The expectation of both cases is

    E Ψ⁺ = mean ‖w_i - w_i*‖² + (1 - p²) (γ/p)² mean ‖h_i - V_i(z*)‖².

If V_i is μ-strongly monotone and ‖V_i(z) - V_i(z*)‖² ≤ ℓ ⟨V_i(z) - V_i(z*), z - z*⟩ with γ ≤ 1/ℓ, then
‖w_i - w_i*‖² ≤ (1 - γμ) ‖z_i - z*‖².

*Rounds.* After R rounds the number T of steps is random with mean R/p. Ψ_t ρ^(-t) is a supermartingale, so
E[Ψ_T ρ^(-T)] ≤ Ψ_0, and by Jensen's inequality E log Ψ_T ≤ log Ψ_0 + (R/p) log ρ. The theorems of the
sources are about a fixed number of steps; these bounds of the geometric mean after R rounds are proved here.
"""

from __future__ import annotations

import math

from mpifed.theory.prescription import theorem

_OF = dict(of="the geometric mean of the distance from the solution", letters={"R": "rounds"})


@theorem("zhang-proxskip", "ProxSkipVIPFL", metric="distance", **_OF)
def zhang_proxskip(ell: float, mu_z: float, R: float, D_0: float, V_star: float, p: float | None = None):
    """ProxSkip-VIP-FL with γ = 1/ℓ and, by default, p = √(γμ) (Zhang et al. 2024).

    Every V_i is ``mu_z``-strongly monotone and ``ell``-cocoercive; an L-Lipschitz V_i has ℓ = L²/μ. ``D_0``
    is the distance of the start from the solution z*, and ``V_star`` the root of the mean of ‖V_i(z*)‖².
    """
    return _steps_and_bound(ell, mu_z, R, D_0, V_star, p)


@theorem("mishchenko-scaffnew", "ProxSkipVIPFL", metric="", **_OF)
def scaffnew(L: float, mu_x: float, R: float, D_0: float, grad_star: float, p: float | None = None):
    """Scaffnew with γ = 1/L and, by default, p = 1/√κ, κ = L/μ (Mishchenko et al. 2022).

    Every f_i is L-smooth and ``mu_x``-strongly convex, so that ∇f_i is L-cocoercive. ``D_0`` is the distance
    of the start from the minimiser x*, and ``grad_star`` the root of the mean of ‖∇f_i(x*)‖².
    """
    return _steps_and_bound(L, mu_x, R, D_0, grad_star, p)


def _steps_and_bound(ell, mu, R, D_0, V_star, p):
    if mu > ell:
        raise ValueError(f"expected a modulus of monotonicity of at most {ell:g}, got {mu:g}")
    gamma = 1 / ell
    p = math.sqrt(gamma * mu) if p is None else p
    rho = 1 - min(gamma * mu, p**2)
    return {"gamma": gamma, "p": p}, rho ** (R / (2 * p)) * math.hypot(D_0, gamma / p * V_star)
