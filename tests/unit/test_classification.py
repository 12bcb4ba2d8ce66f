"""Plain classification: its loss, gradients and accuracies, and methods that minimise it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import prepared
from patches import patches_of

from mpifed.problems import Classification

#: A smooth network, so that differences meet no kink.
SMOOTH = {"name": "mlp", "hidden": [5], "activation": "tanh"}
decays = pytest.mark.parametrize("decay", [0.0, 0.3])


@pytest.fixture(autouse=True)
def patches(monkeypatch):
    return patches_of(monkeypatch, 3, 4)


def classification(decay=0.0, **settings):
    """The problem with a small network, and a point near its start."""
    settings = dict(dataset="patches", clients=3, model=SMOOTH, weight_decay=decay) | settings
    problem = prepared(Classification(**settings))
    rng = np.random.default_rng(0)
    return problem, problem.initial(rng)["x"] + 0.3 * torch.from_numpy(
        rng.standard_normal(problem.variables().sizes["x"])
    )


@decays
def test_the_loss_is_the_mean_cross_entropy_and_half_the_decay(decay):
    problem, x = classification(decay)
    net = problem.variables().unflatten("x", x)
    images, labels = problem.client_data(1)
    log_shares = torch.log_softmax(problem.model(net, images.double()), dim=1)
    expected = -log_shares[torch.arange(len(labels)), labels].mean() + decay / 2 * x @ x
    # Sums of 20 numbers of about one in another order.
    assert problem.loss(net, (images.double(), labels)).item() == pytest.approx(expected.item(), rel=1e-13)


def test_accuracy_and_worst_accuracy(patches):
    problem, _ = classification()
    guess = patches.test_labels.clone()
    guess[0], guess[1:10:4] = 1, 2  # one of 7 samples of class 0 wrong, and three of 6 of class 1
    metrics = problem.metrics({}, torch.nn.functional.one_hot(guess, 4).double())
    # A share of 25 samples, formed from shares of classes.
    assert metrics == pytest.approx({"accuracy": 21 / 25, "worst_accuracy": 3 / 6}, abs=1e-15)
    assert np.isnan(list(problem.metrics({}, torch.full((25, 4), torch.nan)).values())).all()
