"""Noise in MFCGD: the error of each estimator is that of its recursion, and the bias of the plug-in method goes with it.

Compositions with g = identity, so that h, u and v estimate x, I and ∇f(x) and everything is known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from games import configuration
from mpifed import Blocks
from mpifed.algorithms import MFCGD
from mpifed.comm import SerialComm
from mpifed.noise import Gaussian
from mpifed.problem import Composition
from mpifed.simulation import Simulation
from mpifed.streams import Stream, generator

DIM, CLIENTS, SIGMA = 24, 2, 0.2
WEIGHTS = ["alpha", "beta", "varrho"]


@dataclass
class Quadratic(Composition):
    """f_k(u) = ‖u - c_k‖²/2 with Σ c_k = 0 and g(x) = x: the solution is 0, where ∇f_k = -c_k of norm 1 are not."""

    clients: int = CLIENTS
    inner_size = DIM

    def variables(self):
        return Blocks(x={"x": (DIM,)})

    def client_data(self, k):
        c = generator(1, "centre").standard_normal(DIM)
        return (torch.from_numpy((-1) ** k * c / np.linalg.norm(c))[None],)

    def inner(self, x, batch):
        return x["x"]

    def outer(self, u, batch):
        return 0.5 * ((u - batch[0][0]) ** 2).sum()


class Part(Gaussian):
    """Noise of one kind of value only: of g (0), of its Jacobian (1), of ∇f (2)."""

    part = 0

    def __call__(self, stream, size):
        edges = np.cumsum([0, DIM, DIM * DIM, DIM])
        noise = np.zeros((len(stream.clients), stream.count, size))
        first, last = edges[self.part : self.part + 2]
        noise[..., first:last] = self.scale * stream.normal(int(last - first))
        return noise


class OfJacobian(Part):
    part = 1


class OfOuter(Part):
    part = 2


NOISES = [Part(scale=SIGMA), OfJacobian(scale=SIGMA), OfOuter(scale=SIGMA)]


def simulate(method, problem, rounds, noise=None):
    """The averaged iterate of every round, ``[rounds, d]``."""
    config = configuration(method, problem, "unused", rounds=rounds, noise=None, batch_size=0, executor="batched")
    config = config.model_copy(update={"oracle": config.oracle.model_copy(update={"noise": noise})})
    simulation = Simulation(config, SerialComm())
    simulation.start()
    points = []
    for _ in range(rounds):
        simulation.step()
        points.append(simulation.shared.x.numpy().copy())
    return np.array(points)


def stationary(step, weight):
    """E x² of x ← x - s (x + e), e ← (1 - a) e + a ξ with E ξ² = σ² / N, the noise of the mean of N clients."""
    M = np.array([[1 - step, -step], [0.0, 1 - weight]])
    noise = np.diag([0.0, weight**2 * SIGMA**2 / CLIENTS]).reshape(-1)
    return np.linalg.solve(np.eye(4) - np.kron(M, M), noise)[0]


@pytest.mark.parametrize("noise", range(3), ids=["g", "jacobian", "outer"])
@pytest.mark.parametrize("weight", range(3), ids=WEIGHTS)
def test_each_weight_filters_the_noise_of_its_own_estimator(noise, weight):
    """α filters g, β its Jacobian, ϱ ∇f; the others leave the noise as it is (up to products of small errors)."""
    step, q, rounds = 0.5, 3, 160
    a = 0.05 if noise == weight else 1.0
    weights = {name: 0.05 if j == weight else 1.0 for j, name in enumerate(WEIGHTS)}
    points = simulate(MFCGD(q=q, gamma=step, **weights), Quadratic(), rounds, NOISES[noise])[40:]  # 0.95^120 is forgotten
    measured, expected = (points**2).mean(), stationary(step, a)
    # 24 coordinates by 120 rounds of 3 steps; an error lives for 1 / a = 20 steps at most, so there are 24 · 18 = 400
    # independent squares, with a relative error of (2 / 400)^(1/2) = 0.07. Jacobian noise meets ∇f of norm 1 and of x's noise.
    assert measured == pytest.approx(expected, rel=0.25)
    assert stationary(step, 0.05) < stationary(step, 1.0) / 5


@pytest.mark.parametrize("weights", [(0.2, 0.02), (1.0, 0.1)])
def test_the_floor_falls_with_all_weights(weights):
    """With all three noises the floor falls in proportion to the weights, nearly."""
    floors = []
    for weight in weights:
        method = MFCGD(q=2, gamma=0.5, **dict.fromkeys(WEIGHTS, weight))
        floors.append((simulate(method, Quadratic(), 260, Gaussian(scale=SIGMA))[100:] ** 2).mean())
    assert floors[1] < floors[0] / 3


@dataclass
class Exponential(Composition):
    """f(u) = Σ e^(u_j) - u_j and g(x; n) = x + σn with n ~ N(0, I) drawn anew: the solution is 0.

    E ∇f(g(x; n)) = e^(x + σ²/2) - 1 vanishes at -σ²/2 instead: the bias of a gradient with a sample plugged in.
    """

    clients: int = 4
    inner_size = DIM
    sigma: float = 1.0

    def variables(self):
        return Blocks(x={"x": (DIM,)})

    def draw(self, stream: Stream):
        return (stream.normal(DIM),)

    def inner(self, x, batch):
        return x["x"] + self.sigma * batch[0]

    def outer(self, u, batch):
        return (torch.exp(u) - u).sum()


def comfedl(problem, step, q, rounds):
    """ComFedL with batch 1, where the Jacobian is I: the averages of all rounds."""
    rng, x, points = np.random.default_rng(1), np.zeros((problem.clients, DIM)), []
    for _ in range(rounds):
        for _ in range(q):
            x = x - step * (np.exp(x + problem.sigma * rng.standard_normal(x.shape)) - 1)
        x[:] = x.mean(axis=0)
        points.append(x[0].copy())
    return np.array(points)


def test_plugging_one_sample_in_is_biased_and_mfcgd_is_not():
    """ComFedL ends at -σ²/2 = -1/2. MFCGD's h has a variance of ασ²/(2 - α): less than a tenth of the bias for α = 0.05."""
    problem, step, q, rounds = Exponential(), 0.05, 4, 150
    plugged_in = comfedl(problem, step, q, rounds)[40:].mean()  # 0.95^160 of the start is left
    tracked = simulate(MFCGD(q=q, gamma=step, alpha=0.05, beta=0.05, varrho=0.05), problem, rounds)[40:].mean()
    full = simulate(MFCGD(q=q, gamma=step, alpha=1.0, beta=1.0, varrho=1.0), problem, rounds)[40:].mean()
    # The mean over 110 rounds and 24 coordinates of points that spread by 0.2 and live for 5 rounds: within 0.01. The
    # spread of x itself costs its variance / 2 more.
    assert plugged_in == pytest.approx(-0.5, abs=0.05)
    assert full == pytest.approx(-0.5, abs=0.05)
    assert abs(tracked) < 0.05


def test_the_bias_falls_with_alpha():
    problem, rounds = Exponential(), 150
    means = [simulate(MFCGD(q=4, gamma=0.05, alpha=alpha), problem, rounds)[40:].mean() for alpha in (1.0, 0.5, 0.1)]
    for alpha, mean in zip((1.0, 0.5, 0.1), means):
        print(alpha, mean, -alpha / (2 - alpha) / 2)
        assert mean == pytest.approx(-alpha / (2 - alpha) / 2, abs=0.05)
