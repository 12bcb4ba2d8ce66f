"""Theorems 1 (AdaMFCGD) and 2 (MFCGD) of Huang n.d. on federated compositional problems.

Constants:

* ``L_f``, ``L_g``: Lipschitz constants of the outer gradients and inner Jacobians of samples; ``C_f``,
  ``C_g``: bounds of their norms.
* ``sigma``: standard deviation of inner values, Jacobians and outer gradients; ``delta_f``, ``delta_g``:
  bounds of the differences between two clients' f and g.
* ``q`` steps per round, ``T`` steps in total, ``gap`` = F(x_1) - inf F.

The conditions, G and δ̂ are those of the restatement with the proof, (75). The conditions allow an interval
of γ, which may be empty. γ is chosen to minimise the bound, with the smallest c_1, c_2, c_3 and n. ``k`` is a
free parameter.

Corrections, from the proof: B contains c_1² + c_3² (Lemma 12, (88)) where the statement has c_1² + c_2², and
γ² ≥ ρ² (c_1² + c_3²)^(1/2) / (24 √30 q L_fg² C_fg²), required by (87), is added. The lower bound of γ in the
statement follows from the condition on c_1² + c_2².
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mpifed.theory.prescription import theorem

_MEAN = dict(of="mean over the steps of E‖∇F(x)‖", letters={"q": "local_steps", "T": "steps"})
#: Number of candidates for γ, evenly spaced in log γ, and the number of powers of ten that they span.
_CANDIDATES, _POWERS = 2000, 8


class _Constants(NamedTuple):
    """The constants in the conditions of Theorem 1; A_t ⪰ ρI."""

    L_f: float
    L_g: float
    C_f: float
    C_g: float
    q: float
    rho: float

    @property
    def S(self) -> float:
        """The product L_fg C_fg."""
        L_fg = ((self.L_f * self.C_g) ** 2 + self.L_g**2) ** 0.5
        return L_fg * max(self.C_f, self.C_g)

    @property
    def W(self) -> float:
        """The sum C_g² + L_g² + 2 (L_f C_g)²."""
        return self.C_g**2 + self.L_g**2 + 2 * (self.L_f * self.C_g) ** 2


@theorem("huang-composition-1", "AdaMFCGD", **_MEAN)
def theorem_1(
    L_f: float, L_g: float, C_f: float, C_g: float, sigma: float, delta_f: float, delta_g: float, q: float,
    T: float, gap: float, A: float, rho: float = 1, k: float = 1,
):  # fmt: skip
    """AdaMFCGD (Theorem 1, (14)): A_t ⪰ ρI, and the root mean square of ‖A_t‖ is at most ``A``."""
    constants = _Constants(L_f, L_g, C_f, C_g, q, rho)
    gamma_max = 3 * rho * q * constants.S / (4 * constants.W)
    candidates = (gamma_max * 10 ** (-_POWERS * step / _CANDIDATES) for step in range(_CANDIDATES))
    weights = {gamma: c for gamma in candidates if (c := _weights(constants, gamma, k))}
    if not weights:
        raise ValueError(f"the conditions of the theorem allow no gamma for q = {q}: try a larger q")

    def least_n(gamma: float) -> float:
        # The paper's term 2 L γ / ρ is smaller than the last one, because its L is at most √2 S.
        terms = (1, *weights[gamma], 24 * gamma * q * constants.S / rho)
        return max(2, (k * max(terms)) ** 3)

    def bound(gamma: float) -> float:
        n, (c1, c2, c3) = least_n(gamma), weights[gamma]
        spread = (2 * (c1 * L_f) ** 2 + c2**2 + c3**2) * sigma**2
        spread += 4 * c3**2 * (delta_f**2 + (L_f * delta_g) ** 2) + 3 * (c2 * delta_g) ** 2
        L_fg = constants.S / max(C_f, C_g)
        noise = spread / (2 * gamma * L_fg) ** 2 + (c1**2 + c2**2 + c3**2) * sigma**2 / (
            3 * rho * gamma * q * constants.S
        )
        G = 4 * gap / (k * rho * gamma) + 12 * n ** (1 / 3) * sigma**2 / (q * (k * rho) ** 2)
        G += 4 * k**2 * noise * math.log(n + T)
        return A * (2 * G) ** 0.5 * (n ** (1 / 6) / T**0.5 + 1 / T ** (1 / 3))

    gamma = min(weights, key=bound)
    momenta = {
        name: {"name": "squared", "c": c} for name, c in zip(("alpha", "beta", "varrho"), weights[gamma])
    }
    eta = {"name": "power", "scale": k, "offset": least_n(gamma)}
    return {"gamma": gamma, "eta": eta, **momenta, "C_f": C_f, "C_g": C_g}, bound(gamma)


@theorem("huang-composition-2", "MFCGD", **_MEAN)
def theorem_2(
    L_f: float, L_g: float, C_f: float, C_g: float, sigma: float, delta_f: float, delta_g: float, q: float,
    T: float, gap: float, k: float = 1,
):  # fmt: skip
    """MFCGD (Theorem 2, (16)): Theorem 1 with A_t = I and ρ = 1."""
    return theorem_1.statement(L_f, L_g, C_f, C_g, sigma, delta_f, delta_g, q, T, gap, 1, k=k)


def _weights(constants: _Constants, gamma: float, k: float) -> tuple[float, float, float] | None:
    """Return the smallest (c_1, c_2, c_3) for a γ, ``None`` if its conditions cannot be satisfied.

    Since B contains c_1², the smallest c_1 = 2 / (3 k³) + B is the smaller root of a quadratic equation.
    """
    L_f, L_g, C_f, C_g, q, rho = constants
    S = constants.S
    c2, c3 = 2 / (3 * k**3) + 5 * C_f**2, 2 / (3 * k**3) + 5 * C_g**2
    common = (c2 * C_g * L_f) ** 2 / (q * gamma * S) ** 3
    Theta = (5 * (C_f * L_g) ** 2 + common / 864) * (rho / (24 * S)) ** 2
    Theta += gamma * rho * constants.W / (6 * q * S)
    a = Theta * rho**2 / (30 * (q * S * C_g) ** 2 * gamma**4)
    B0 = 20 * (C_g * L_f) ** 2 + common / 216 + a * c3**2
    discriminant = 1 - 4 * a * (2 / (3 * k**3) + B0)
    if discriminant < 0:
        return None
    c1 = (1 - discriminant**0.5) / (2 * a)
    B = B0 + a * c1**2
    holds = (
        c1**2 + c2**2 <= (24 * gamma * S / rho) ** 4 * q**2 / 9
        and math.hypot(c1, c3) <= 24 * 30**0.5 * q * (gamma * S / rho) ** 2
        and Theta + B * (C_g * rho / (24 * S)) ** 2 <= 5 * rho**2 / 48
    )
    return (c1, c2, c3) if holds else None
