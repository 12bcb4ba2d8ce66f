"""A linear rate of FedGDA-GT (Sun & Wei 2022) without noise and sets.

Sun & Wei prove a linear rate for strongly convex-strongly concave functions and constant steps. The constants
of their theorem are not implemented; the step size and the rate here follow from this proof.

V is the operator (∂_x f, -∂_y f) of the mean, ``mu_z``-strongly monotone, and every V_i is L-Lipschitz. A
round from z takes K steps z_i ← z_i - η [V_i(z_i) - V_i(z) + V(z)]. Let a = η K L.

* The k-th point is within ((1 + ηL)^k - 1) ‖V(z)‖ / L of z, so the sum of the clients' corrections
  η [V_i(z_i) - V_i(z)] over K steps is at most (e^a - 1 - a) ‖V(z)‖ / L ≤ (e^a - 1 - a) ‖z - z*‖.
* Without corrections, the round is a step of size ηK along V, after which the distance from z* is at most
  √(1 - 2 a μ/L + a²) ‖z - z*‖.

Hence ‖z⁺ - z*‖ ≤ [√(1 - 2 a μ/L + a²) + e^a - 1 - a] ‖z - z*‖. Up to higher orders in a, the factor is
1 - a μ/L + a², which is smallest for a = μ/(2L).
"""

from __future__ import annotations

import math

from mpifed.theory.prescription import theorem


@theorem(
    "sun-wei-linear",
    "FedGDAGT",
    of="the distance from the saddle point",
    letters={"K": "local_steps", "R": "rounds"},
)
def fedgda_gt(L: float, mu_z: float, K: float, R: float, D_0: float):
    """FedGDA-GT with η = μ / (2 K L²) for both blocks, a linear rate proved here; K + 1 gradients per round.

    ``D_0`` is the distance of the start from the saddle point. The rounds are of order κ² log(1/ε).
    """
    if mu_z > L:
        raise ValueError(f"expected mu_z <= L, got mu_z = {mu_z:g} and L = {L:g}")
    a = mu_z / (2 * L)
    factor = math.sqrt(1 - 2 * a * mu_z / L + a**2) + math.expm1(a) - a
    eta = a / (K * L)
    return {"eta_xl": eta, "eta_yl": eta}, factor**R * D_0
