"""Noise in MFCGD: each estimator has the error of its recursion, and the bias of the plug-in method falls
with it.

Compositions with g = identity, so that h, u and v estimate x, I and ∇f(x) and everything is known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from games import configuration, trace

from mpifed import Blocks
from mpifed.algorithms import MFCGD
from mpifed.core.noise import Gaussian
from mpifed.core.problem import Composition
from mpifed.core.streams import generator
from mpifed.parallel.comm import SerialComm

DIM, CLIENTS, SIGMA = 16, 2, 0.2
WEIGHTS = ["alpha", "beta", "varrho"]


@dataclass
class Quadratic(Composition):
    """f_k(u) = ‖u - c_k‖²/2 with Σ c_k = 0 and g(x) = x: the solution is 0, where ∇f_k = -c_k of norm 1 are
    not."""

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
    config = configuration(method, problem, "unused", rounds=rounds, noise=noise, batch_size=0, group="all")
    return trace(config, SerialComm())[0]


def stationary(step, weight):
    """E x² of x ← x - s (x + e), e ← (1 - a) e + a ξ with E ξ² = σ² / N, the noise of the mean of N
    clients."""
    M = np.array([[1 - step, -step], [0.0, 1 - weight]])
    noise = np.diag([0.0, weight**2 * SIGMA**2 / CLIENTS]).reshape(-1)
    return np.linalg.solve(np.eye(4) - np.kron(M, M), noise)[0]


@pytest.mark.parametrize("noise", range(3), ids=["g", "jacobian", "outer"])
@pytest.mark.parametrize("weight", range(3), ids=WEIGHTS)
def test_each_weight_filters_the_noise_of_its_own_estimator(noise, weight):
    """α filters g, β its Jacobian, ϱ ∇f; the others leave the noise as it is (up to products of small
    errors)."""
    step, rounds = 0.5, 300 if noise == weight else 140
    q = (
        1 if noise == 1 else 2
    )  # ∇f_k, which multiplies Jacobian noise, has norm 1 at 0, less after local steps
    a = 0.05 if noise == weight else 1.0
    weights = {name: 0.05 if j == weight else 1.0 for j, name in enumerate(WEIGHTS)}
    points = simulate(MFCGD(q=q, gamma=step, **weights), Quadratic(), rounds, NOISES[noise])
    measured, expected = (points[60:] ** 2).mean(), stationary(step, a)  # 0.95^60 of the start is left
    # An error lives for 20 steps in 240 or more, or for some steps in 80 or more: 16 · 12 independent squares
    # at least, with a relative error of (2 / 192)^(1/2) = 0.1.
    assert measured == pytest.approx(expected, rel=0.3)
    assert stationary(step, 0.05) < stationary(step, 1.0) / 5


def test_the_floor_falls_with_all_weights():
    """With all three noises at once."""
    floors = []
    for weight in (1.0, 0.3, 0.05):
        method = MFCGD(q=2, gamma=0.5, **dict.fromkeys(WEIGHTS, weight))
        floors.append((simulate(method, Quadratic(), 120, Gaussian(scale=SIGMA))[40:] ** 2).mean())
    assert floors[1] < floors[0] / 2
    assert floors[2] < floors[1] / 2


@dataclass
class Exponential(Composition):
    """f(u) = Σ e^(u_j) - u_j and g(x) = x: the solution is 0.

    A standard normal noise n on g makes E ∇f(g(x) + n) = e^(x + 1/2) - 1, which vanishes at -1/2 instead: the
    bias of a gradient with a sample plugged in.
    """

    clients: int = 4
    inner_size = DIM

    def variables(self):
        return Blocks(x={"x": (DIM,)})

    def client_data(self, k):
        return (torch.zeros(1, 1, dtype=torch.float64),)

    def inner(self, x, batch):
        return x["x"]

    def outer(self, u, batch):
        return (torch.exp(u) - u).sum()


def comfedl(clients, step, q, rounds):
    """ComFedL with batch 1, where the Jacobian is I: the averages of all rounds."""
    rng, x, points = np.random.default_rng(1), np.zeros((clients, DIM)), []
    for _ in range(rounds):
        for _ in range(q):
            x = x - step * (np.exp(x + rng.standard_normal(x.shape)) - 1)
        x[:] = x.mean(axis=0)
        points.append(x[0].copy())
    return np.array(points)


def test_plugging_one_sample_in_is_biased_and_mfcgd_is_not():
    """ComFedL ends at -1/2, as does MFCGD with α = 1; with a smaller α the noise of h has the variance α / (2
    - α), which takes the place of 1. (0.95^160 of the start is left.)"""
    problem, step, q, rounds = Exponential(), 0.05, 4, 100
    means = {"plugged in": comfedl(problem.clients, step, q, rounds)[40:].mean()}
    for alpha in (1.0, 0.5, 0.05):
        method = MFCGD(q=q, gamma=step, alpha=alpha, beta=0.1, varrho=0.1)
        means[alpha] = simulate(method, problem, rounds, Part(scale=1.0))[40:].mean()
    # The mean over 60 rounds and 16 coordinates of points that spread by 0.2 and live for 5 rounds: within
    # 0.02. The spread of x itself costs its variance / 2 more.
    for name, mean in means.items():
        alpha = 1.0 if name == "plugged in" else name
        assert mean == pytest.approx(-alpha / (2 - alpha) / 2, abs=0.05)
