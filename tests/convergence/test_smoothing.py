"""What the smoothing point of FESS-GDA buys (Shen et al. 2024, Table 1: κ rounds against κ²), and its noise.

f = -(a/2) x_1² + b x_1 y - (μ/2) y² + (c/2) x_2² with 2a = 2c = ℓ = 1, μ = ℓ/κ and b² = 2aμ is nonconvex in
x_1 and strongly concave in y, with Φ = max_y f = (a/2) x_1² + (c/2) x_2²; both clients add linear terms,
which cancel.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from games import configuration

from mpifed import Blocks, Minimax
from mpifed.algorithms import FESSGDA, FSGDA, SmoothedGDA
from mpifed.parallel.comm import SerialComm
from mpifed.problems import Saddle
from mpifed.simulation.simulation import Simulation

A = C = 0.5
KAPPAS = np.array([4, 8, 16, 32])
ETA_Y = 0.5
#: ‖∇Φ‖ is to fall to this part of its first value.
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
    """‖x‖ = 2 ‖∇Φ(x)‖ at the start and after every round."""
    settings = dict(rounds=limit, batch_size=0, noise=0, group="all")
    config = configuration(method, Nonconvex(float(kappa)), "unused", **settings)
    simulation = Simulation.from_settings(config, SerialComm())
    simulation.start()
    yield float(simulation.shared.x.norm())
    for _ in range(limit):
        simulation.step()
        yield float(simulation.shared.x.norm())


def rounds_to_target(method, kappa, limit=20_000):
    """Rounds until ‖∇Φ‖ is ``TARGET`` of what it was."""
    path = norms(method, kappa, limit)
    first = next(path)
    return next(r for r, norm in enumerate(path, start=1) if norm <= TARGET * first)


def fsgda(kappa):
    """The steps of the theory (Lin et al. 2020; Shen et al. 2024, Theorem 3.5): η_y ∝ 1/ℓ, η_x / η_y ∝ 1/κ².
    This quadratic would bear η_x / η_y ∝ 1/κ, which no theory allows for all nonconvex games."""
    return FSGDA(K=1, eta_xl=ETA_Y / kappa**2, eta_yl=ETA_Y)


def fessgda(kappa, **changes):
    """The steps of the theory (Shen et al. 2024, Theorem 3.1): p = 2ℓ, η_x and η_y ∝ 1/ℓ, β ∝ 1/κ, with
    larger constants."""
    return FESSGDA(**{"K": 1, "eta_xl": 0.25, "eta_yl": ETA_Y, "p": 2.0, "beta": 0.5 / kappa} | changes)


def slope(kappas, rounds):
    return np.polyfit(np.log(kappas), np.log(rounds), 1)[0]


def test_smoothing_saves_a_power_of_the_condition_number():
    """x_2 falls by c η_x a round, η_x ∝ κ^-2, against β c / (c + p), β ∝ κ^-1, for z: slopes 2 and 1 up to
    the rounds that y takes to follow at first, some κ of them. 0.2 is a fifth of what is to be told apart."""
    plain = [rounds_to_target(fsgda(kappa), kappa) for kappa in KAPPAS[:3]]
    smoothed = [rounds_to_target(fessgda(kappa), kappa) for kappa in KAPPAS]
    assert abs(slope(KAPPAS[:3], plain) - 2) < 0.2, plain
    assert abs(slope(KAPPAS, smoothed) - 1) < 0.2, smoothed
    assert smoothed[2] < plain[2] / 4  # κ² against κ at κ = 16


@pytest.mark.parametrize("kappa", KAPPAS[1:])
def test_the_steps_that_smoothing_allows_are_too_long_without(kappa):
    """The trace η_x a - η_y μ of the linear map in (x_1, y) is positive for η_x / η_y > 2 / κ, and x grows by
    more than 3 % a round, 1e7 times in 600. The pull makes it η_x (a - p) - η_y μ < 0 as long as z is slower
    than y."""
    too_long = [fessgda(kappa, p=0.0), fessgda(kappa, beta=1.0), FSGDA(K=1, eta_xl=0.25, eta_yl=ETA_Y)]
    for method in too_long:
        path = list(norms(method, kappa, 600))
        assert max(path[-100:]) > 1e3 * path[0]
    path = list(norms(fessgda(kappa), kappa, 60 * int(kappa)))
    assert max(path[30 * kappa :]) < TARGET * path[0]


def test_smoothed_gda_needs_as_many_rounds():
    """One step a round on the mean gradient is the same method here."""
    for kappa in KAPPAS[:2]:
        central = SmoothedGDA(eta_x=0.25, eta_y=ETA_Y, p=2.0, beta=0.5 / kappa)
        assert rounds_to_target(central, kappa) == rounds_to_target(fessgda(kappa), kappa)


# Noise: every coordinate of the saddle problem with t_k = b_k = 0 is alone, of curvature 10 in x and 1 in y.
D, SIGMA = 1000, 0.1
RATES = dict(K=5, eta_xl=0.005, eta_yl=0.05, eta_xg=1.4, eta_yg=0.8)
SPREAD = 5 * (2 / D) ** 0.5  # five standard errors of a mean of D squares of normal numbers


def moments(clients, rounds, h, eta, eta_g, p, beta):
    """E x² after ``rounds`` rounds from 0. K local steps take x to ρ x + e with Var e = η²σ² Σ (1 - ηh)^2k;
    the server makes x⁺ = x + η_g ((ρ - 1) x + ē) - η η_g K p (x - z), then z moves to z + β (x⁺ - z)."""
    K, pull = RATES["K"], eta * eta_g * RATES["K"] * p
    rho, variance = (
        (1 - eta * h) ** K,
        eta**2 * SIGMA**2 * sum((1 - eta * h) ** (2 * k) for k in range(K)) / clients,
    )
    row = np.array([1 + eta_g * (rho - 1) - pull, pull])
    M = np.array([row, beta * row + [0, 1 - beta]])
    noise, S = eta_g * np.array([1, beta]), np.zeros((2, 2))
    for _ in range(rounds):
        S = M @ S @ M.T + variance * np.outer(noise, noise)
    return S[0, 0]


@pytest.mark.parametrize("clients", [1, 8])
@pytest.mark.parametrize("p, beta", [(0.0, 0.5), (20.0, 0.2)])
def test_the_noise_falls_with_the_number_of_clients(clients, p, beta):
    problem, rounds = Saddle(d=D, clients=clients, s=0.0, t_max=0.0, start="zero"), 25
    settings = dict(rounds=rounds, batch_size=0, noise=SIGMA, group="all")
    config = configuration(FESSGDA(**RATES, p=p, beta=beta), problem, "unused", **settings)
    simulation = Simulation.from_settings(config, SerialComm())
    simulation.start()
    for r in range(1, rounds + 1):
        simulation.step()
        x, y = (float(block.square().mean()) for block in (simulation.shared.x, simulation.shared.y))
        assert x == pytest.approx(moments(clients, r, 10.0, 0.005, 1.4, p, beta), rel=SPREAD)
        assert y == pytest.approx(moments(clients, r, 1.0, 0.05, 0.8, 0.0, 0.0), rel=SPREAD)
