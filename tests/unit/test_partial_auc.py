"""Partial AUC by the conditional value at risk: objectives by brute force over pairs."""

from __future__ import annotations

import math

import everything  # noqa: F401  (registers data sets)
import numpy as np
import pytest
import torch
from oracles import oracle_of, prepared

from mpifed.problems import OneWayPAUC, TwoWayPAUC

SETTINGS = dict(dataset="patches", model="linear", clients=2, imbalance=0.3, margin=0.7, s_speed=4.0)


def pair_losses(problem, x, client) -> np.ndarray:
    """Return max(0, c - (h_i - h_j))² for all pairs of the client's samples, ``[n_+, n_-]``."""
    rows, labels = problem._rows[client], problem._splits["train"].all_labels
    above = np.isin(labels[rows], problem._above)
    samples = problem._splits["train"].samples[torch.from_numpy(rows)].double()
    h = (samples.flatten(1) @ x["fc1.weight"].T + x["fc1.bias"])[:, 0].numpy()
    order = {row: h[k] for k, row in enumerate(rows)}
    sides = problem._above_rows[client], problem._below_rows[client]
    h_positive, h_negative = ([order[row] for row in side] for side in sides)
    assert len(h_positive) == above.sum() and len(h_negative) == (~above).sum()
    return np.maximum(0, problem.margin - np.subtract.outer(h_positive, h_negative)) ** 2


def point(problem, seed=3) -> dict[str, torch.Tensor]:
    """Return x at a random point, whose outputs are far from ties."""
    rng, size = np.random.default_rng(seed), problem.variables().sizes["x"]
    return problem.variables().unflatten("x", torch.from_numpy(rng.standard_normal(size)))


def own_loss(problem, client, *blocks) -> float:
    batch = [c.double() if c.is_floating_point() else c for c in problem.client_data(client)]
    return float(problem.loss(*blocks, batch))


def cvar(values: np.ndarray, theta: float) -> np.ndarray:
    """The mean of the largest θ n of n numbers, where θ n is whole, along the last axis."""
    return np.sort(values, axis=-1)[..., -round(theta * values.shape[-1]) :].mean(-1)


def minimised_s(problem, x) -> list[np.ndarray]:
    """Set s to minimisers, the quantiles of the losses; return the losses of the clients' pairs."""
    losses = [pair_losses(problem, x, client) for client in range(problem.clients)]
    quantile = [np.sort(one)[:, -round(problem.theta_1 * one.shape[1]) - 1] for one in losses]
    x["s"] = torch.from_numpy(np.concatenate(quantile)) / math.sqrt(problem.s_speed)
    return losses


def test_the_loss_is_the_mean_over_all_pairs(patches):
    """Samples of the smaller class are repeated in the rows, but not in the mean."""
    problem = prepared(OneWayPAUC(theta_1=0.4, **SETTINGS))
    x, first = point(problem), 0
    for client in range(problem.clients):
        losses = pair_losses(problem, x, client)
        n = len(losses)
        assert n < losses.shape[1] == problem.client_size(client) and losses.shape[1] % n
        s = 2 * x["s"][first : first + n].numpy()
        first += n
        expected = (s + np.maximum(losses - s[:, None], 0).mean(1) / 0.4).mean()
        assert own_loss(problem, client, x) == pytest.approx(expected, rel=1e-12)  # some ulps of sums
    assert first == len(x["s"])


def test_the_minimum_over_s_is_the_mean_of_the_largest_losses(patches):
    problem = prepared(OneWayPAUC(theta_1=1 / 3, **SETTINGS))
    x = point(problem)
    for client, losses in enumerate(minimised_s(problem, x)):
        assert losses.shape[1] % 3 == 0  # whole numbers of samples
        assert own_loss(problem, client, x) == pytest.approx(cvar(losses, 1 / 3).mean(), rel=1e-12)


def test_y_selects_the_positive_samples_with_the_largest_losses(patches):
    """min over s and s', max over y is the mean of the largest θ_1 of the negatives and θ_0 of the
    positives."""
    settings = SETTINGS | dict(imbalance=None, clients=1)
    problem = prepared(TwoWayPAUC(theta_0=0.5, theta_1=1 / 3, **settings))
    x = point(problem)
    (losses,) = minimised_s(problem, x)
    assert len(losses) % 2 == 0 == losses.shape[1] % 3
    worst = cvar(losses, 1 / 3)
    middle = np.sort(worst)[len(worst) // 2 - 1 : len(worst) // 2 + 1]
    x["threshold"] = torch.tensor([middle.mean()])
    y = problem.best_response(x)
    assert y.tolist() == (worst > np.median(worst)).tolist() and y.sum() == len(worst) / 2
    best = own_loss(problem, 0, x, {"y": y})
    assert best == pytest.approx(cvar(worst, 0.5), rel=1e-12)
    rng = np.random.default_rng(0)
    for _ in range(5):  # no other y, and no other s', is better
        other = torch.from_numpy(rng.uniform(size=len(y)))
        assert own_loss(problem, 0, x, {"y": other}) < best
        moved = x | {"threshold": x["threshold"] + float(rng.standard_normal())}
        assert own_loss(problem, 0, moved, {"y": problem.best_response(moved)}) >= best - 1e-12


def test_all_positive_samples_give_the_one_way_problem(patches):
    """With θ_0 = 1 and y = 1, s' vanishes."""
    one = prepared(OneWayPAUC(theta_1=0.4, **SETTINGS))
    two = prepared(TwoWayPAUC(theta_0=1.0, theta_1=0.4, **SETTINGS))
    x = point(two)
    y = {"y": torch.ones(len(x["s"]), dtype=torch.float64)}
    for client in range(2):
        single = own_loss(one, client, {name: x[name] for name in one.variables()["x"]})
        assert own_loss(two, client, x, y) == pytest.approx(single, rel=1e-12)
    assert (two.initial(np.random.default_rng(0))["y"] == 1).all()


def test_a_client_sees_its_own_positive_samples(patches):
    problem = prepared(TwoWayPAUC(**SETTINGS))
    oracle = oracle_of(problem)
    start = problem.initial(np.random.default_rng(0))
    y = start["y"].double() / 2  # at the start, the gradient in s' is 0
    gx, gy = oracle.grad(start["x"].double(), y, oracle.full_batch)
    seen = gy != 0
    assert seen.sum(1).tolist() == problem._above_rows.sizes.tolist() and not seen.all(0).any()
    assert (gx[0] != 0)[-1] and not (gx[0] != 0)[-2]  # s' is common, the last s is of the other client


def test_clients_lack_no_class(patches):
    partition = {"name": "dirichlet", "alpha": 0.02}
    with pytest.raises(ValueError, match="expected positive and negative samples of every client, found"):
        prepared(OneWayPAUC(dataset="patches", model="linear", clients=4, partition=partition))
