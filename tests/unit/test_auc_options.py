"""Margin, hinge and sampling rate of AUC problems."""

from __future__ import annotations

import itertools

import everything  # noqa: F401  (registers data sets)
import numpy as np
import pytest
import torch
from oracles import oracle_of, prepared

from mpifed import Simulation
from mpifed.algorithms import LocalSGDA
from mpifed.parallel.comm import SerialComm
from mpifed.problems import DeepAUC

SETTINGS = dict(dataset="patches", model="linear", clients=2, imbalance=0.3)


def point(problem):
    rng, sizes = np.random.default_rng(3), problem.variables().sizes
    blocks = problem.variables()
    return [blocks.unflatten(block, torch.from_numpy(rng.standard_normal(sizes[block]))) for block in "xy"]


def columns_of(problem, client):
    return [c.double() if c.is_floating_point() else c for c in problem.client_data(client)]


@pytest.mark.parametrize("margin", [0.2, 5.0], ids=["met", "violated"])
def test_the_maximum_over_alpha_is_the_squared_hinge_of_the_margin(patches, margin):
    """With p of the client: p(1-p) (var h⁺ + var h⁻ + (m - (E h⁺ - E h⁻))₊²) at the best a, b and α, up to
    p(1-p) m². The AUC margin loss of Yuan et al. 2021 has the variable α + m."""
    problem = prepared(DeepAUC(**SETTINGS, p="client", margin=margin, hinge=True))
    x, _ = point(problem)
    samples, positive, ratio = columns_of(problem, 0)
    h, is_positive, p = problem.outputs(x, samples), positive == 1, float(ratio[0])
    above, below = h[is_positive], h[~is_positive]
    if above.mean() < below.mean():  # an output whose order is right
        x = {name: -value for name, value in x.items()}
        above, below = -above, -below
    x |= {"a": above.mean().reshape(1), "b": below.mean().reshape(1)}
    gap = float(margin - (above.mean() - below.mean()))
    best = problem.sets.y(
        torch.tensor([gap - margin], dtype=torch.float64)
    )  # the maximiser of a concave quadratic, projected
    assert (gap > 0) == (margin == 5.0) and (best == -margin).all() == (gap < 0)
    value = float(problem.loss(x, {"alpha": best}, (samples, positive, ratio)))
    spread = float(above.var(correction=0) + below.var(correction=0))
    expected = p * (1 - p) * (spread + max(gap, 0) ** 2 - margin**2)
    # The squared margin is subtracted from sums of numbers of about one.
    assert value == pytest.approx(expected, abs=1e-12 * margin**2 + 1e-12)


def test_the_mean_over_all_balanced_minibatches_is_the_loss_of_all_samples(patches):
    plain, balanced = (prepared(DeepAUC(**SETTINGS, sampling_rate=rate)) for rate in (None, 0.5))
    x, y = point(plain)
    for client in range(2):
        columns = columns_of(balanced, client)
        count = int(columns[1].sum())
        assert 0 < count < len(columns[1]) / 2 and columns[1][:count].all()
        pairs = itertools.product(range(count), range(count, len(columns[1])))
        values = [balanced.loss(x, y, [column[[i, j]] for column in columns]) for i, j in pairs]
        expected = float(plain.loss(x, y, columns_of(plain, client)))
        # Sums of hundreds of numbers of about one in another order.
        assert float(torch.stack(values).mean()) == pytest.approx(expected, abs=1e-12)
        assert float(balanced.loss(x, y, columns)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("rate", "size", "count"), [(0.5, 7, 4), (0.3, 10, 3), (0.01, 6, 1), (0.99, 6, 5)])
def test_minibatches_have_a_fixed_number_of_positive_samples(patches, rate, size, count):
    oracle = oracle_of(prepared(DeepAUC(**SETTINGS, sampling_rate=rate)), size, batched=True)
    drawn = [oracle.sample() for _ in range(20)]
    for xi in drawn:
        assert xi.batch[1].shape == (2, size)
        assert (xi.batch[1][:, :count] == 1).all() and (xi.batch[1][:, count:] == 0).all()
    assert len({float(xi.batch[0][0, 0].sum()) for xi in drawn}) > 2  # other samples
    alone = oracle_of(prepared(DeepAUC(**SETTINGS, sampling_rate=rate)), size, clients=[1])
    for xi in drawn:
        assert torch.equal(alone.sample().batch[0][0], xi.batch[0][1])


def test_a_sampling_rate_needs_both_classes(patches):
    partition = {"name": "dirichlet", "alpha": 0.02}
    with pytest.raises(ValueError, match="sampling_rate: expected positive and negative samples of every cl"):
        prepared(
            DeepAUC(dataset="patches", model="linear", clients=4, partition=partition, sampling_rate=0.5)
        )
    with pytest.raises(ValueError, match="sampling_rate: expected minibatches of at least 2 rows, .* got 1"):
        prepared(DeepAUC(**SETTINGS, sampling_rate=0.5)).strata(np.arange(2), 1)
    with pytest.raises(RuntimeError, match="sampling_rate: expected minibatches of at least 2 rows"):
        Simulation(
            DeepAUC(**SETTINGS, sampling_rate=0.5), LocalSGDA(q=1, eta_x=0.1, eta_y=0.1),
            oracle={"batch_size": 1}, comm=SerialComm(),
        )  # fmt: skip
    with pytest.raises(RuntimeError, match="minibatches of DeepAUC have a fixed number of rows"):
        Simulation(
            DeepAUC(**SETTINGS, sampling_rate=0.5), LocalSGDA(q=1, eta_x=0.1, eta_y=0.1),
            oracle={"batch_size": 4, "sampling": "without_replacement"}, comm=SerialComm(),
        )  # fmt: skip
