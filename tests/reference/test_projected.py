"""Methods on problems with sets: the places of the projections in the boxes.

A feasible point can still be wrong, so every point is compared. Tolerance 1e-10 in float64: the same few
hundred operations of size 1 in another order.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bounded import Bounded
from games import DX, configuration, reference_gradient, simulated, start_of

from mpifed.algorithms import FESSGDA, FSGDA, LESGD, LIPPAX, LSGD, FedNSGDAM, LocalDualExtrapolation
from mpifed.core.noise import Gaussian
from mpifed.core.sets import Ball, Box

from .fess_gda import fess_gda, fsgda

SEED, BATCH, NOISE, ROUNDS, CLIENTS = 1, 2, Gaussian(scale=0.3), 4, 3
SET_X, SET_Y = Box(-0.45, 0.3), Ball(0.1)
SERVER = dict(K=3, eta_xl=0.2, eta_yl=0.08, eta_xg=2.5, eta_yg=2.0)
K = 3


def free(point):
    return point


def run(method, game, out, *fields):
    """The fields of ``shared`` after every round, and the output after the last."""
    config = configuration(
        method, game, out, seed=SEED, rounds=ROUNDS, batch_size=BATCH, noise=NOISE, sections={"record": ()}
    )
    path = []
    for simulation in simulated(config):
        path.append(torch.cat([getattr(simulation.shared, name) for name in fields]).numpy().copy())
    return np.array(path[1:]), simulation.output.buffer.numpy()


def assert_projected(path, expected):
    """``expected(P_X, P_Y)`` returns a list of points; without one of the sets the points must differ."""
    points = {
        sets: np.array([torch.cat(tuple(point)).numpy() for point in expected(*sets)])
        for sets in ((SET_X, SET_Y), (free, SET_Y), (SET_X, free))
    }
    np.testing.assert_allclose(path, points.pop((SET_X, SET_Y)), rtol=1e-10, atol=1e-10)
    assert all(np.abs(path - other).max() > 1e-3 for other in points.values())


@pytest.mark.parametrize("p, beta", [(None, None), (0.7, 0.4), (0.7, 0.05)])
def test_global_rates(tmp_path, p, beta):
    """FSGDA, and FESS-GDA with its smoothing point, which follows the projected x."""
    game = Bounded(clients=CLIENTS, set_x=SET_X, set_y=SET_Y)
    smoothing = {} if p is None else dict(p=p, beta=beta)
    method = (FESSGDA if smoothing else FSGDA)(**SERVER, **smoothing)
    path, _ = run(method, game, tmp_path, *("xyz" if smoothing else "xy"))

    def expected(project_x, project_y):
        gradient = reference_gradient(game, SEED, SERVER["K"], BATCH, NOISE)
        options = dict(rounds=ROUNDS, project_x=project_x, project_y=project_y) | SERVER | smoothing
        return (fess_gda if smoothing else fsgda)(gradient, CLIENTS, *start_of(game, SEED), **options)

    assert_projected(path, expected)


def test_normalised_steps(tmp_path):
    """Algorithm 1 with projections in lines 6 and 11; the momentum is not projected."""
    rates = dict(p=K, eta_x=0.2, eta_y=0.15, gamma_x=0.8, gamma_y=0.6, beta_x=0.7, beta_y=0.4)
    game = Bounded(clients=CLIENTS, set_x=SET_X, set_y=SET_Y)
    path, _ = run(FedNSGDAM(**rates), game, tmp_path, "x", "y")

    def expected(project_x, project_y):
        gradient = reference_gradient(game, SEED, K, BATCH, NOISE)
        (x, y), projects = start_of(game, SEED), (project_x, project_y)
        point, momentum, mean = [x, y], [0 * x, 0 * y], [0 * x, 0 * y]
        own = [[0 * x, 0 * y] for _ in range(CLIENTS)]
        for t in range(ROUNDS):
            beta = (1.0, 1.0) if t == 0 else (0.7, 0.4)
            last, fresh = [], []
            for n in range(CLIENTS):
                z, total = list(point), [0 * x, 0 * y]
                for i in range(K):
                    for b, g in enumerate(gradients := gradient(n, *z, t * K + i + 1)):
                        total[b] = total[b] + g / K
                    for b, (sign, eta) in enumerate(((-1, 0.2), (1, 0.15))):
                        u = beta[b] * (gradients[b] + mean[b] - own[n][b]) + (1 - beta[b]) * momentum[b]
                        z[b] = projects[b](z[b] + sign * eta * u / torch.linalg.vector_norm(u))
                last.append(z)
                fresh.append(total)
            for b, factor in enumerate((0.8 / (0.2 * K), 0.6 / (0.15 * K))):
                mean[b] = sum(g[b] for g in fresh) / CLIENTS
                move = sum(z[b] for z in last) / CLIENTS - point[b]
                point[b] = projects[b](point[b] + factor * move)
                momentum[b] = beta[b] * mean[b] + (1 - beta[b]) * momentum[b]
            own = fresh
            yield list(point)

    assert_projected(path, expected)


def steps(V, P, eta, H, gamma, sync):
    """Step t of each method from z of all clients: the new z, and the members of the output."""

    def lsgd(t, z):
        new = [P(z_n - eta * V(n, z_n, (t, 0))) for n, z_n in enumerate(z)]
        return new, new

    def lesgd(t, z):
        x = [P(z_n - eta * V(n, z_n, (t, 0))) for n, z_n in enumerate(z)]
        if sync and t % K == 0:
            x = [sum(x) / CLIENTS] * CLIENTS
        return [P(z_n - eta * V(n, x[n], (t, 1))) for n, z_n in enumerate(z)], x

    def lippax(t, z):
        x = list(z)
        for n, z_n in enumerate(z):
            for h in range(H):
                x[n] = P(x[n] - gamma * (V(n, x[n], (t, h)) + (x[n] - z_n) / eta))
        return [P(z_n - eta * V(n, x[n], (t, H))) for n, z_n in enumerate(z)], x

    def dual(t, z):
        x = [z_n - eta * V(n, P(z_n), (t, 0)) for n, z_n in enumerate(z)]
        if sync and t % K == 0:
            x = [sum(x) / CLIENTS] * CLIENTS
        return [z_n - eta * V(n, P(x[n]), (t, 1)) for n, z_n in enumerate(z)], [P(x_n) for x_n in x]

    calls = {"LSGD": (lsgd, 1), "LESGD": (lesgd, 2), "LIPPAX": (lippax, H + 1)}
    return calls | {"LocalDualExtrapolation": (dual, 2)}


@pytest.mark.parametrize(
    "method, sync",
    [
        (LSGD(K=K, eta=0.15), False),
        (LESGD(K=K, eta=0.15, sync_extrapolation=True), True),
        (LESGD(K=K, eta=0.15, sync_extrapolation=False), False),
        (LIPPAX(K=K, eta=0.15, H=2, gamma=0.07), False),
        (LocalDualExtrapolation(K=K, eta=0.15, sync_extrapolation=True), True),
        (LocalDualExtrapolation(K=K, eta=0.15, sync_extrapolation=False), False),
    ],
    ids=["lsgd", "lesgd", "lesgd late", "lippax", "dual", "dual late"],
)
def test_operators(tmp_path, method, sync):
    """Every new point of z = (x, y) is projected, block by block; the output averages projected points.

    Dual extrapolation does not project z. Its point is the last average of v, or the image of the averaged z.
    """
    game = Bounded(clients=CLIENTS, set_x=SET_X, set_y=SET_Y)
    path, output = run(method, game, tmp_path, "z", "average")
    np.testing.assert_array_equal(path[-1, len(output) :], output)

    def expected(project_x, project_y):
        def P(z):
            return torch.cat([project_x(z[:DX]), project_y(z[DX:])])

        def V(n, z, key):
            gx, gy = gradient(n, z[:DX], z[DX:], (key[0] - 1) * calls + key[1] + 1)
            return torch.cat([gx, -gy])

        step, calls = steps(V, P, 0.15, 2, 0.07, sync)[type(method).__name__]
        gradient = reference_gradient(game, SEED, K * calls, BATCH, NOISE)
        z, total = [torch.cat(start_of(game, SEED))] * CLIENTS, 0.0
        for t in range(1, ROUNDS * K + 1):
            z, members = step(t, z)
            total = total + sum(members) / CLIENTS
            if t % K == 0:
                z = [sum(z) / CLIENTS] * CLIENTS
                if isinstance(method, LocalDualExtrapolation):
                    yield members[0] if sync else P(z[0]), total / t
                else:
                    yield z[0], total / t

    assert_projected(path, expected)
