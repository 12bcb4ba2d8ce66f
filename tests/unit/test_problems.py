"""The saddle problem and deep AUC maximisation: gradients, closed forms, data and metrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import oracle_of, prepared, random_point
from patches import patches_of
from saddle_job import local_gda_limit

from mpifed.algorithms import ALGORITHMS
from mpifed.base.settings import build
from mpifed.data import DATASETS
from mpifed.problems import PROBLEMS, DeepAUC, Saddle


@pytest.mark.parametrize("centred", [True, False])
def test_saddle_solution_is_a_zero_of_the_mean_field(centred):
    problem = prepared(Saddle(d=5, clients=7, s=10.0, centred=centred, t_max=1.0))
    x, y = problem.solution()
    oracle = oracle_of(problem)
    gx, gy = oracle.grad(x, y, oracle.sample(number=0))
    # Cancellation of numbers of about 10: some ulps of it.
    assert gx.mean(0).abs().max() < 1e-13 and gy.mean(0).abs().max() < 1e-13
    assert bool((x == 0).all() and (y == 0).all()) == centred


def test_saddle_data_depend_only_on_the_client_number():
    few, many = (prepared(Saddle(clients=clients, centred=False)) for clients in (3, 50))
    for a, b in zip(few.client_data(2), many.client_data(2)):
        assert torch.equal(a, b)
    other = prepared(Saddle(clients=3, centred=False), seed=1)
    assert not torch.equal(few.client_data(2)[1], other.client_data(2)[1])


def test_saddle_constants_have_the_documented_distribution():
    problem = prepared(Saddle(d=100, clients=400, s=10.0))
    t, b = (torch.cat(column) for column in zip(*(problem.client_data(k) for k in range(400))))
    # Five standard errors of 400 uniform and of 40,000 normal numbers.
    assert t.min() > 0 and t.max() < 0.1 and abs(t.mean() - 0.05) < 5 * 0.1 / np.sqrt(12 * 400)
    assert abs(b.std() - 10) < 5 * 10 / np.sqrt(2 * 40_000)
    assert b.mean(0).abs().max() < 1e-13  # centred up to rounding


@pytest.mark.parametrize("centred, q, t_max", [(True, 10, 0.1), (False, 4, 1.0), (True, 1, 0.1)])
def test_local_gda_limit_equals_a_long_simulation(centred, q, t_max):
    problem = prepared(Saddle(clients=6, d=4, centred=centred, t_max=t_max))
    eta_x, eta_y = 0.005, 0.05
    oracle = oracle_of(problem)
    xi = oracle.sample(number=0)
    x, y = random_point(problem)
    for _ in range(1000 // q):
        xs, ys = x, y
        for _ in range(q):
            gx, gy = oracle.grad(xs, ys, xi)
            xs, ys = xs - eta_x * gx, ys + eta_y * gy
        x, y = xs.mean(0), ys.mean(0)
    expected = local_gda_limit(problem, eta_x, eta_y, q)
    # 1000 steps contract by 0.95 each, to 1e-22; rounding accumulates over 1 / 0.05 steps.
    torch.testing.assert_close((x, y), expected, rtol=0, atol=1e-13)
    drift = max(torch.dist(mine, star) for mine, star in zip(expected, problem.solution()))
    assert (drift > 1e-5) == (q > 1)  # one local step has no drift: the limit is the saddle


def test_saddle_start_and_metrics():
    problem = prepared(Saddle(d=2, centred=False))
    x, y = (star + torch.tensor([3.0, 4.0]) * scale for star, scale in zip(problem.solution(), (1, 2)))
    metrics = problem.metrics({"x": x}, {"y": y}, None)
    # 3, 4, 5 triangles in float64.
    assert metrics == pytest.approx({"x_error": 5.0, "y_error": 10.0, "error": 125**0.5}, abs=1e-14)
    assert Saddle(start="zero").initial(np.random.default_rng(0)) == {}
    normal = Saddle(d=1000).initial(np.random.default_rng(0))
    assert all(abs(normal[block].std() - 1) < 0.12 for block in "xy")  # five standard errors


@pytest.fixture
def patches(monkeypatch):
    return patches_of(monkeypatch, 28, 28)


def bracket(problem, x, y, images, positive, p) -> float:
    """The mean of the bracket of Huang et al. 2024, eq. 13, sample by sample with labels ±1."""
    named = problem.variables().unflatten("x", x)
    a, b, alpha, total = named["a"].item(), named["b"].item(), y.item(), 0.0
    for image, label in zip(images, (2 * positive - 1).tolist()):
        h = problem.model(named, image[None]).item()
        h = 1 / (1 + np.exp(-h)) if problem.score == "sigmoid" else h
        total += (1 - p) * (h - a) ** 2 * (label == 1) + p * (h - b) ** 2 * (label == -1)
        total += 2 * (1 + alpha) * (p * h * (label == -1) - (1 - p) * h * (label == 1))
        total -= p * (1 - p) * alpha**2
    return float(total / len(images))


AUC = [
    dict(model="linear"),
    dict(model="mlp", p="client", partition={"name": "dirichlet", "alpha": 1.0}),
    dict(model="lenet5", score="sigmoid", imbalance=0.3),
]


@pytest.mark.parametrize("options", AUC, ids=lambda options: options["model"])
def test_auc_loss_agrees_with_the_paper(patches, options):
    problem = prepared(DeepAUC(dataset="patches", clients=2, **options))
    x, y = random_point(problem)
    oracle = oracle_of(problem, batch_size=5, clients=[1])
    images, positive, *own = (column[0] for column in oracle.sample(number=0).batch)
    if problem.p == "client":
        ratio = problem.client_data(1)[1].mean().item()
    else:  # half of the images, or the ratio nearest to 0.3 with 30 negatives
        ratio = 13 / 43 if problem.imbalance else 0.5
    assert bool(own) == (problem.p == "client")
    expected = bracket(problem, x, y, images, positive, ratio)
    unflatten = problem.variables().unflatten
    loss = problem.loss(unflatten("x", x), unflatten("y", y), (images, positive, *own))
    # The same few operations in float64, in another order.
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_auc_predictions_in_parts():
    problem = prepared(DeepAUC(dataset="digits", model="linear", score="sigmoid"))
    x, y = random_point(problem)
    named = problem.variables().unflatten("x", x)
    whole = problem.predict(named, {}, slice(0, 359))
    assert whole.dtype == torch.float64 and not whole.requires_grad
    images = DATASETS["digits"]().test.double().flatten(1)
    # One matrix product of 64 columns of numbers of at most one.
    torch.testing.assert_close(whole, images @ named["fc1.weight"][0] + named["fc1.bias"], rtol=0, atol=1e-13)
    parts = [problem.predict(named, {}, slice(start, min(start + 100, 359))) for start in range(0, 359, 100)]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-13)


def test_auc_data_of_clients():
    problem = prepared(DeepAUC(dataset="digits", model="linear", partition="by_class", imbalance=0.05))
    labels = DATASETS["digits"]().train_labels
    sizes, positives = list(map(problem.client_size, range(10))), 0
    for (images, positive), size in zip(map(problem.client_data, range(10)), sizes):
        assert images.shape == (size, 1, 8, 8) and positive.shape == (size,)
        positives += int(positive.sum())
    assert sum(sizes) - positives == int((labels < 5).sum())
    # Rounded to the nearest number of positives among some 760 samples.
    assert positives / sum(sizes) == pytest.approx(0.05, abs=0.5 / sum(sizes))


def test_auc_starts_at_a_random_network_and_zeros():
    problem = prepared(DeepAUC(dataset="digits", model="mlp"))
    first = problem.initial(np.random.default_rng(0))
    named = problem.variables().unflatten("x", first["x"])
    assert list(first) == ["x"] and named["a"].item() == named["b"].item() == 0
    network = problem.model.initial(problem.model.shapes((1, 8, 8), 1), np.random.default_rng(0))
    assert all(torch.equal(named[name], value) for name, value in network.items())


def one_sided():
    samples = np.ones((4, 2))
    return {"train": (samples, [0, 1, 0, 1]), "test": (samples, [0] * 4)}


@pytest.mark.parametrize("options, message", [
    (dict(positive_classes=(1, 2), partition="by_class", model="linear"), "got 2 positive and 8 negative"),
    (dict(positive_classes=(1, 10), model="linear"), "the classes 0, 1, .*, 9 of digits, got positive 1, 10"),
    (dict(positive_classes=range(10), model="linear"), "some but not all"),
    (dict(positive_classes=(), model="linear"), "some but not all"),
    (dict(imbalance=0.9, model="linear"), "requires 6597 positives"),
    (dict(dataset=one_sided, model="linear"), "positive and negative test samples, found 0 positive"),
    (dict(model="lenet5"), "28 x 28 or 32 x 32, got 8 x 8"),
])  # fmt: skip
def test_auc_settings_inconsistent_with_the_data_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        prepared(DeepAUC(**{"dataset": "digits"} | options))


@pytest.mark.parametrize("name, settings, message", [

    ("DeepAUC", {}, "dataset is missing"),
    ("DeepAUC", {"dataset": "mnist", "imbalance": 1.0}, "less than 1"),

    ("Saddle", {"tau": 0}, "greater than 0"),
    ("WGAN", {"lam": 0}, "greater than 0"),

    ("RobustRegression", {"dataset": "digits", "radius": -1}, "greater than 0"),

    ("Classification", {"dataset": "digits", "weight_decay": -1}, "greater than or equal to 0"),
    ("TextAUC", {"dataset": "sst"}, "did you mean 'sst2'"),
    ("TextAUC", {"dataset": "sentences", "model": "lenet5"}, "unknown model 'lenet5'"),
    ("TextAUC", {"dataset": "sentences", "length": 0}, "greater than or equal to 1"),
    ("FedAvg", {"K": 1, "eta": 0.1, "server": "adm"}, "unknown server 'adm': did you mean 'adam'"),
    ("FedAvg", {"K": 1, "eta": 0.1, "server": {"name": "yogi", "tau": 0}}, "greater than 0"),

])  # fmt: skip
def test_settings_are_checked(name, settings, message):
    with pytest.raises(ValueError, match=message):
        build((PROBLEMS | ALGORITHMS)[name], settings, "problem")


@pytest.mark.parametrize("digits", [0, 1, 17])
def test_auc_agrees_with_scikit_learn_with_ties(digits):
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(digits)
    positive = rng.random(300) < 0.1
    scores = np.round(rng.standard_normal(300) + positive, digits)
    problem = prepared(DeepAUC(dataset="digits", clients=2, model="linear"))
    problem.test_labels = lambda: positive.astype(np.int64)
    found = problem.metrics({}, {}, torch.from_numpy(scores))["auc"]
    assert found == pytest.approx(roc_auc_score(positive, scores), abs=1e-15)  # their sum has another order


def test_auc_without_negative_samples_or_finite_scores_is_nan():
    problem = prepared(DeepAUC(dataset="digits", clients=2, model="linear"))
    assert np.isnan(problem.metrics({}, {}, torch.full((359,), torch.nan))["auc"])
    problem.test_labels = lambda: np.ones(4, dtype=np.int64)
    assert np.isnan(problem.metrics({}, {}, torch.zeros(4))["auc"])
