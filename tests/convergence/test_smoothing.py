"""Rounds of FESS-GDA with and without its smoothing point: κ instead of κ² (Shen et al. 2024, Table 1).

f = -(a/2) x_1² + b x_1 y - (μ/2) y² + (c/2) x_2² with 2a = 2c = ℓ = 1, μ = ℓ/κ and b² = 2aμ is nonconvex in
x_1 and strongly concave in y, with Φ = max_y f = (a/2) x_1² + (c/2) x_2². The linear terms of the two
clients cancel.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from games import configuration, simulated

from mpifed import Blocks, Minimax
from mpifed.algorithms import FESSGDA, FSGDA

A = C = 0.5
KAPPAS = np.array([4, 8, 16, 32])
ETA_Y = 0.5
#: Fraction of the first ‖∇Φ‖ that has to be reached.
TARGET = 0.1


@dataclass
class Nonconvex(Minimax):
    """The game above."""

    kappa: float
    clients: int = 2

    def prepare(self, seed, data_dir=None):
        self.mu = 1 / self.kappa
        self.b = (2 * A * self.mu) ** 0.5

    def variables(self):
        return Blocks(x={"x": (2,)}, y={"y": (1,)})

    def initial(self, rng):
        return {"x": torch.ones(2, dtype=torch.float64)}

    def client_data(self, k):
        return (torch.full((1, 1), (-1.0) ** k, dtype=torch.float64),)

    def gradients(self, x, y, batch):
        x1, x2, sign = x[..., :1], x[..., 1:], batch[0][:, 0]
        return torch.cat(
            [self.b * y - A * x1 + sign, C * x2 - sign], dim=-1
        ), self.b * x1 - self.mu * y + 0.1 * sign


def norms(method, kappa, limit):
    """Yield ‖x‖ = 2 ‖∇Φ(x)‖ at the start and after every round."""
    settings = dict(rounds=limit, batch_size=0, noise=0, group="all")
    config = configuration(method, Nonconvex(float(kappa)), "unused", **settings)
    return (float(simulation.shared.x.norm()) for simulation in simulated(config))


def rounds_to_target(method, kappa, limit=20_000):
    """Return the number of rounds until ‖∇Φ‖ is ``TARGET`` times its first value."""
    path = norms(method, kappa, limit)
    first = next(path)
    return next(r for r, norm in enumerate(path, start=1) if norm <= TARGET * first)


def fsgda(kappa):
    """Return FSGDA with the steps of Lin et al. 2020 and Shen et al. 2024, Theorem 3.5: η_y ∝ 1/ℓ, η_x /
    η_y ∝ 1/κ². This quadratic would allow η_x / η_y ∝ 1/κ, which no theory allows for all nonconvex
    games."""
    return FSGDA(K=1, eta_xl=ETA_Y / kappa**2, eta_yl=ETA_Y)


def fessgda(kappa, **changes):
    """Return FESS-GDA with p = 2ℓ, η_x and η_y ∝ 1/ℓ, β ∝ 1/κ as in Shen et al. 2024, Theorem 3.1, with
    larger constants."""
    return FESSGDA(**{"K": 1, "eta_xl": 0.25, "eta_yl": ETA_Y, "p": 2.0, "beta": 0.5 / kappa} | changes)


def slope(kappas, rounds):
    return np.polyfit(np.log(kappas), np.log(rounds), 1)[0]


def test_smoothing_saves_a_power_of_the_condition_number():
    """x_2 falls by c η_x per round, η_x ∝ κ^-2, and with smoothing z falls by β c / (c + p), β ∝ κ^-1:
    slopes 2 and 1, up to about κ first rounds until y follows. The tolerance 0.2 is a fifth of their
    difference."""
    plain = [rounds_to_target(fsgda(kappa), kappa) for kappa in KAPPAS[:3]]
    smoothed = [rounds_to_target(fessgda(kappa), kappa) for kappa in KAPPAS]
    assert abs(slope(KAPPAS[:3], plain) - 2) < 0.2, plain
    assert abs(slope(KAPPAS, smoothed) - 1) < 0.2, smoothed
    assert smoothed[2] < plain[2] / 4  # κ² against κ at κ = 16


@pytest.mark.parametrize("kappa", KAPPAS[1:])
def test_the_steps_that_smoothing_allows_are_too_long_without(kappa):
    """The trace η_x a - η_y μ of the linear map in (x_1, y) is positive for η_x / η_y > 2 / κ, and x grows
    by more than 3 % per round, 1e7 times in 600. The pull makes it η_x (a - p) - η_y μ < 0 as long as z is
    slower than y."""
    too_long = [fessgda(kappa, p=0.0), fessgda(kappa, beta=1.0), FSGDA(K=1, eta_xl=0.25, eta_yl=ETA_Y)]
    for method in too_long:
        path = list(norms(method, kappa, 600))
        assert max(path[-100:]) > 1e3 * path[0]
    path = list(norms(fessgda(kappa), kappa, 60 * int(kappa)))
    assert max(path[30 * kappa :]) < TARGET * path[0]
