"""Plain classification: its loss, gradients and accuracies, and methods that minimise it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from games import configuration
from oracles import oracle_of, prepared
from patches import patches_of

from mpifed import ConfigError, run
from mpifed.algorithms import SCAFFOLD, FedAvg, LocalSGDA
from mpifed.base.settings import build
from mpifed.parallel.comm import SerialComm
from mpifed.problems import Classification, Saddle

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
def test_gradients_by_central_differences(decay):
    problem, x = classification(decay)
    oracle, h, blocks = oracle_of(problem, batch_size=4, batched=True), 1e-6, problem.variables()
    xi = oracle.sample(number=0)
    gradients = oracle.grad(x, xi)
    for k in range(problem.clients):
        batch = tuple(column[k] for column in xi.batch)
        for j in np.random.default_rng(k).permutation(len(x))[:12]:
            above, below = x.clone(), x.clone()
            above[j] += h
            below[j] -= h
            values = [problem.loss(blocks.unflatten("x", one), batch).item() for one in (above, below)]
            # Truncation is of order h² = 1e-12, rounding 1e-16 of values of about 10, over h.
            assert (values[0] - values[1]) / (2 * h) == pytest.approx(gradients[k, j].item(), abs=1e-8)
    assert gradients.abs().max() > 1e-3  # far above the tolerance


@decays
def test_gradients_mapped_over_clients_equal_one_by_one(decay):
    problem, x = classification(decay)
    oracle = oracle_of(problem, batch_size=4, batched=True)
    together = oracle.grad(x, oracle.sample(number=0))
    for k in range(problem.clients):
        one = oracle_of(problem, batch_size=4, clients=[k])
        # Batched kernels add in another order: some ulps of gradients of about one.
        torch.testing.assert_close(one.grad(x, one.sample(number=0))[0], together[k], rtol=0, atol=1e-12)


@decays
def test_the_loss_is_the_mean_cross_entropy_and_half_the_decay(decay):
    problem, x = classification(decay)
    net = problem.variables().unflatten("x", x)
    images, labels = problem.client_data(1)
    log_shares = torch.log_softmax(problem.model(net, images.double()), dim=1)
    expected = -log_shares[torch.arange(len(labels)), labels].mean() + decay / 2 * x @ x
    # Sums of 20 numbers of about one in another order.
    assert problem.loss(net, (images.double(), labels)).item() == pytest.approx(expected.item(), rel=1e-13)


def test_accuracies_of_all_and_of_the_worst_class(patches):
    problem, _ = classification()
    guess = patches.test_labels.clone()
    guess[0], guess[1:10:4] = 1, 2  # one of 7 samples of class 0 wrong, and three of 6 of class 1
    metrics = problem.metrics({}, torch.nn.functional.one_hot(guess, 4).double())
    # A share of 25 samples, formed from shares of classes.
    assert metrics == pytest.approx({"accuracy": 21 / 25, "worst_accuracy": 3 / 6}, abs=1e-15)
    assert np.isnan(list(problem.metrics({}, torch.full((25, 4), torch.nan)).values())).all()


METHODS = {
    "FedAvg": FedAvg(K=5, eta=0.2),
    "FedAvg, adam": FedAvg(K=5, eta=0.2, eta_g=0.02, server="adam"),
    "SCAFFOLD": SCAFFOLD(K=5, eta_l=0.2),
}


@pytest.mark.parametrize("name", METHODS)
def test_clients_with_few_classes_each_learn_the_digits(tmp_path, name):
    problem = Classification(
        dataset="digits", partition={"name": "dirichlet", "alpha": 0.3}, weight_decay=1e-4
    )
    config = configuration(
        METHODS[name], problem, tmp_path, noise=0, group="all", rounds=40, batch_size=10, cohort=5
    )
    result = run(config.model_copy(update={"record": ("x",)}), SerialComm())
    # Guessing gives 0.1, and 0 for the worst class.
    assert result.metrics["accuracy"] > 0.8 and result.metrics["worst_accuracy"] > 0.4


def test_a_method_that_minimises_takes_no_game():
    with pytest.raises(
        ConfigError, match="FedAvg solves minimisation problems, Saddle is a minimax problem"
    ) as no:
        configuration(FedAvg(K=1, eta=0.1), Saddle(), "x")
    offered = str(no.value).split("methods for it are ")[1].split(", ")
    assert {"FGDA", "LSGD"} <= set(offered) and "FedAvg" not in offered
    problem = Classification(dataset="patches")
    assert all(
        configuration(one, problem, "x") for one in (FedAvg(K=1, eta=0.1), LocalSGDA(q=1, eta_x=1, eta_y=1))
    )


@pytest.mark.parametrize(
    "cls, settings, message",
    [
        (Classification, {}, "dataset is missing"),
        (Classification, {"dataset": "digits", "weight_decay": -1}, "greater than or equal to 0"),
        (FedAvg, {"K": 1, "eta": 0.1, "server": "adm"}, "unknown server 'adm': did you mean 'adam'?"),
        (FedAvg, {"K": 1, "eta": 0.1, "server": {"name": "yogi", "tau": 0}}, "greater than 0"),
        (FedAvg, {"K": 1, "eta": 0.1, "server": {"name": "adagrad", "beta_2": 0.9}}, "no setting 'beta_2'"),
    ],
)
def test_settings_are_checked(cls, settings, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        build(cls, settings, "it")
