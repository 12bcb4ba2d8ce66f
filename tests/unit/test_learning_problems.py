"""Learning problems: plain and fair classification, and robust training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import prepared, random_point

from mpifed.core.sets import Ball, Simplex
from mpifed.problems import Classification
from mpifed.problems.fair import FairClassification
from mpifed.problems.robust import RobustRegression

#: A smooth network, so that differences meet no kink.
SMOOTH = {"name": "mlp", "hidden": [5], "activation": "tanh"}


pytestmark = pytest.mark.usefixtures("patches")


def named(problem, x, y):
    blocks = problem.variables()
    return blocks.unflatten("x", x), blocks.unflatten("y", y)


def test_fair_loss_of_all_clients_is_the_weighted_sum_of_class_losses(patches):
    problem = prepared(
        FairClassification(
            dataset="patches", clients=3, model=SMOOTH, partition={"name": "dirichlet", "alpha": 1.0}
        )
    )
    x, y = random_point(problem)
    net, weights = named(problem, x, y)
    total = 0.0
    for k in range(3):
        images, *rest = problem.client_data(k)
        total += problem.client_size(k) / 60 * problem.loss(net, weights, (images.double(), *rest))
    logits = torch.log_softmax(problem.model(net, patches.train.double()), dim=1)
    by_class = [-logits[patches.train_labels == c, c].mean() for c in range(4)]
    # Sums of 60 numbers of about one in another order.
    assert total.item() == pytest.approx(sum(a.item() * b.item() for a, b in zip(y, by_class)), abs=1e-13)
    assert len({problem.client_size(k) for k in range(3)}) > 1  # else the weights would show nothing


def test_sets_of_weights_and_perturbation():
    fair = prepared(FairClassification(dataset="patches", clients=3))
    assert fair.initial(np.random.default_rng(0))["y"].tolist() == [0.25] * 4 and fair.sets.y == Simplex()
    assert RobustRegression(dataset="patches", radius=2.5).sets.y == Ball(2.5)


def test_fair_and_plain_metrics_are_accuracies_of_samples_and_classes(patches):
    fair = prepared(FairClassification(dataset="patches", clients=3))
    plain = prepared(Classification(dataset="patches", clients=3))
    guess = patches.test_labels.clone()
    guess[0], guess[1:10:4] = 1, 2  # one of 7 samples of class 0 wrong, and three of 6 of class 1
    scores = torch.nn.functional.one_hot(guess, 4).double()
    # Means of ratios of small integers.
    expected = {"mean_accuracy": (6 / 7 + 3 / 6 + 1 + 1) / 4, "worst_accuracy": 3 / 6}
    assert fair.metrics({}, {}, scores) == pytest.approx(expected, abs=1e-15)
    expected = {"accuracy": 21 / 25, "worst_accuracy": 3 / 6}
    assert plain.metrics({}, scores) == pytest.approx(expected, abs=1e-15)
    scores[:] = torch.nan
    assert np.isnan([*fair.metrics({}, {}, scores).values(), *plain.metrics({}, scores).values()]).all()


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_loss_of_plain_classification_is_the_mean_cross_entropy_and_half_the_decay(decay):
    problem = prepared(Classification(dataset="patches", clients=3, model=SMOOTH, weight_decay=decay))
    x = problem.initial(np.random.default_rng(0))["x"]
    x = x + 0.3 * torch.from_numpy(np.random.default_rng(1).standard_normal(len(x)))
    net, (images, labels) = problem.variables().unflatten("x", x), problem.client_data(1)
    log_shares = torch.log_softmax(problem.model(net, images.double()), dim=1)
    expected = -log_shares[torch.arange(len(labels)), labels].mean() + decay / 2 * x @ x
    # Sums of 20 numbers of about one in another order.
    assert problem.loss(net, (images.double(), labels)).item() == pytest.approx(expected.item(), rel=1e-13)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weights", [None, "balanced", (4.0, 3.0, 2.0, 1.0)], ids=str)
def test_weighted_loss_of_all_samples_is_that_of_torch(weights, smoothing):
    """The mean over the clients, weighted by their samples, of which one class has fewer."""
    rng = np.random.default_rng(0)
    samples, labels = rng.standard_normal((40, 3)), np.repeat(np.arange(4), (2, 8, 13, 17))

    def data():
        return {"train": (samples, labels), "test": (samples, labels)}

    problem = prepared(
        Classification(
            dataset=data, clients=3, class_weights=weights, label_smoothing=smoothing,
            partition={"name": "dirichlet", "alpha": 1.0},
        )
    )  # fmt: skip
    x = problem.variables().unflatten("x", torch.from_numpy(rng.standard_normal(16)))
    total, given = 0.0, {None: None, "balanced": 1 / np.bincount(labels)}.get(weights, weights)
    for client in range(3):
        columns = [c.double() if c.is_floating_point() else c for c in problem.client_data(client)]
        total += problem.client_size(client) / 40 * float(problem.loss(x, columns))
    expected = torch.nn.functional.cross_entropy(
        problem.model(x, torch.from_numpy(samples.astype(np.float32)).double()),
        torch.from_numpy(labels),
        None if given is None else torch.as_tensor(given, dtype=torch.float64),
        label_smoothing=smoothing,
    )
    # Sums of 40 numbers of about one in another order.
    assert total == pytest.approx(float(expected), rel=1e-12)


def test_class_weights_fit_the_classes(patches):
    message = "class_weights: expected 4 weights, one for each of the classes 0, 1, 2, 3, got 2"
    with pytest.raises(ValueError, match=message):
        prepared(Classification(dataset="patches", class_weights=(1, 2)))
    with pytest.raises(ValueError, match="class_weights.1: Input should be greater than 0, got 0"):
        Classification(dataset="patches", class_weights=(1, 0, 1, 1))


def test_robust_loss_agrees_with_the_paper(patches):
    problem = prepared(RobustRegression(dataset="patches", clients=3, model=SMOOTH))
    x, y = random_point(problem)
    net, perturbation = named(problem, x, y)
    images, targets = map(torch.Tensor.double, problem.client_data(1))
    total = 0.0
    for image, label in zip(images, targets.argmax(dim=1).tolist()):
        for c, h in enumerate(problem.model(net, image[None] + y.reshape(1, 1, 3, 4))[0].tolist()):
            total += (h - (c == label)) ** 2
    # Sums of 80 numbers of about one in another order.
    loss = problem.loss(net, perturbation, (images, targets)).item()
    assert loss == pytest.approx(total / len(images), rel=1e-13)
    places = [(patches.train == image).flatten(1).all(dim=1).nonzero().item() for image in images]
    assert torch.equal(patches.train_labels[places], targets.argmax(dim=1))
    assert (targets.sum(1) == 1).all()


def test_robust_metrics_are_the_accuracies_without_and_with_the_perturbation(patches):
    problem = prepared(RobustRegression(dataset="patches", clients=3, model="linear"))
    x, y = random_point(problem, scale=2.0)
    point_named = named(problem, x, y)
    parts = [problem.predict(*point_named, rows) for rows in (slice(0, 10), slice(10, 25))]
    metrics = problem.metrics(*point_named, torch.cat(parts))
    images = patches.test.double()
    for name, moved in (("accuracy", images), ("perturbed_accuracy", images + y.reshape(1, 1, 3, 4))):
        guess = problem.model(point_named[0], moved).argmax(dim=1)
        # A share of 25 samples, formed from shares of classes.
        assert metrics[name] == pytest.approx(
            (guess == patches.test_labels).double().mean().item(), abs=1e-14
        )
    assert metrics["accuracy"] != metrics["perturbed_accuracy"]  # else the test could not tell them apart
