"""The softplus game: gradients of its formula, saddle point, constants, clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import oracle_of

from mpifed.core.streams import generator
from mpifed.problems import SoftplusSaddle

GAMES = [
    SoftplusSaddle(dx=3, dy=2, clients=3, samples=4),
    SoftplusSaddle(dx=2, dy=4, clients=1, samples=7, coupling=5.0, mu=1e-3, heterogeneity=2.0),
    SoftplusSaddle(dx=3, dy=3, clients=4, samples=1, coupling=0.0, heterogeneity=0.0),
]
for _game in GAMES:
    _game.prepare(1)


def mean_gradients(game, x, y):
    oracle = oracle_of(game, 0, batched=True)
    return [gradient.mean(0).numpy() for gradient in oracle.grad(x, y, oracle.sample(number=0))]


def loss(game, x, y, rows):
    """The formula of the class, row by row."""
    a, b, C, u, v = rows
    value = u[0] @ x + v[0] @ y + x @ C[0] @ y + game.mu / 2 * (x @ x - y @ y)
    for a_j, b_j in zip(a, b):
        value = value + (torch.log1p(torch.exp(a_j @ x)) - torch.log1p(torch.exp(b_j @ y))) / len(a)
    return value


@pytest.mark.parametrize("game", GAMES)
def test_gradients_of_a_client_are_those_of_the_formula(game):
    x, y = (torch.from_numpy(generator(0, block).standard_normal(d)).requires_grad_() for block, d in
            (("x", game.dx), ("y", game.dy)))  # fmt: skip
    rows = game.client_data(0)
    expected = torch.autograd.grad(loss(game, x, y, rows), (x, y))
    found = game.gradients(x.detach()[None], y.detach()[None], tuple(column[None] for column in rows))
    for one, other in zip(found, expected):
        torch.testing.assert_close(one[0], other, rtol=0, atol=1e-14)  # sums of ten terms of about 1


@pytest.mark.parametrize("game", GAMES)
def test_the_mean_operator_vanishes_at_the_solution_and_is_that_of_the_gradients(game):
    largest = 1 + max(float(block.abs().max()) for block in game.solution())
    for gradient in mean_gradients(game, *game.solution()):
        np.testing.assert_allclose(gradient, 0, atol=1e-14 * largest)  # a few roundings of the terms
    z = generator(0, "z").standard_normal(game.dx + game.dy)
    value, jacobian = game.mean_operator(z)
    gx, gy = mean_gradients(game, *torch.from_numpy(z).split((game.dx, game.dy)))
    np.testing.assert_allclose(value, np.concatenate([gx, -gy]), atol=1e-13)
    for i, step in enumerate(1e-5 * np.eye(len(z))):
        slope = (game.mean_operator(z + step)[0] - game.mean_operator(z - step)[0]) / 2e-5
        np.testing.assert_allclose(slope, jacobian[:, i], atol=1e-9)  # the square of the step


@pytest.mark.parametrize("game", GAMES)
def test_constants_bound_the_hessians_of_minibatches(game):
    constants = game.constants()
    for seed in range(20):
        rng = generator(seed, "point")
        x, y = torch.from_numpy(rng.standard_normal(game.dx)), torch.from_numpy(rng.standard_normal(game.dy))
        client, row = int(rng.integers(game.clients)), int(rng.integers(game.samples))
        batch = tuple(column[row : row + 1] for column in game.client_data(client))
        H = torch.autograd.functional.hessian(lambda x, y: loss(game, x, y, batch), (x, y))
        H = torch.cat([torch.cat(part, 1) for part in H])
        assert torch.linalg.matrix_norm(H, 2) <= constants["L"] * (1 + 1e-12)
        xx, yy = H[: game.dx, : game.dx], -H[game.dx :, game.dx :]
        lowest = min(float(torch.linalg.eigvalsh(one)[0]) for one in (xx, yy))
        assert lowest >= constants["mu"] - 1e-12  # eigenvalues of symmetric matrices of norm about 1


def test_clients_differ_with_heterogeneity_around_a_mean_that_does_not():
    alike, apart = (SoftplusSaddle(clients=5, heterogeneity=h) for h in (0.0, 0.5))
    for game in (alike, apart):
        game.prepare(0)
    assert all(torch.equal(alike.client_data(0)[k], alike.client_data(3)[k]) for k in (2, 3, 4))
    assert not any(torch.equal(apart.client_data(0)[k], apart.client_data(3)[k]) for k in range(5))
    for k in (2, 3, 4):
        means = [torch.stack([g.client_data(n)[k][0] for n in range(5)]).mean(0) for g in (alike, apart)]
        torch.testing.assert_close(*means, rtol=0, atol=1e-13)


def test_metrics():
    game = GAMES[0]
    x, y = game.solution()
    at = game.metrics({"x": x}, {"y": y}, None)
    assert at["error"] == 0 and at["operator_norm"] < 1e-13
    moved = game.metrics({"x": x + 3.0}, {"y": y}, None)
    assert moved["error"] == pytest.approx(3 * 3**0.5)
