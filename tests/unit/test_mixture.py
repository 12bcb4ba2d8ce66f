"""Mixtures of the clients' losses: values, solutions, and methods that would solve another problem."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from everything import METHODS, method
from games import configuration, started
from mixtures import Undeclared
from oracles import oracle_of, prepared

from mpifed import Blocks, Sets
from mpifed.algorithms import AFL, ALGORITHMS, DRFA, FLRA, FSGDA, LSGD, LocalSGDA
from mpifed.base.errors import ConfigError
from mpifed.core.algorithm import Now
from mpifed.parallel.comm import CollectiveError
from mpifed.problems import ClientMixture, DistributionallyRobust, QuadraticMixture, Saddle

RATES = dict(eta_x=0.05, eta_y=0.05)
SQUARES, KL = {"rho": 0.7}, {"rho": 0.4, "divergence": "kl", "active": 5}


@pytest.mark.parametrize("settings", [{}, {"active": 5}, {"active": 1, "kappa": 1.0}, SQUARES, KL], ids=str)
def test_the_solution_of_the_quadratic_mixture(settings):
    """KKT: Σ λ*_n ∇ℓ_n(x*) = 0; the gradient in λ is equal where λ*_n > 0 and smaller elsewhere."""
    problem = prepared(QuadraticMixture(**settings))
    x, weights = problem.solution()
    oracle = oracle_of(problem)
    gx, gy = oracle.grad(x, weights, oracle.sample(number=0))
    active, slopes = weights > 0, gy.mean(0)
    assert int(active.sum()) == problem.active and float(weights.sum()) == pytest.approx(1)
    # Sums of some numbers of about 1.
    torch.testing.assert_close(gx.mean(0), torch.zeros(problem.d).double(), rtol=0, atol=1e-14)
    assert float(slopes[active].max() - slopes[active].min()) < 1e-14
    assert active.all() or slopes[~active].max() < slopes[active].min() - 0.5 + 1e-14


@pytest.mark.parametrize("settings", [{}, SQUARES, KL], ids=str)
def test_the_best_response_maximises(settings):
    problem = prepared(QuadraticMixture(**settings))
    x = {"x": problem.solution()[0] + 0.3}
    best, losses = problem.best_response(x), problem.client_losses(x)

    def value(weights):
        return float(weights @ losses - problem.regulariser(weights))

    rng = np.random.default_rng(0)
    assert float(best.sum()) == pytest.approx(1) and best.min() >= 0
    for size in (0.1, 1.0, 10.0):
        others = torch.from_numpy(rng.dirichlet(np.full(5, size), 100))
        assert all(value(best) >= value(other) - 1e-14 for other in others)
    if not settings:
        assert value(best) == problem.metrics(x, {"weights": best}, None)["worst_loss"]


@pytest.fixture
def images(patches):
    settings = dict(dataset="patches", clients=3, model={"name": "mlp", "hidden": [5], "activation": "tanh"})
    mixture = prepared(ClientMixture(**settings, rho=0.4, divergence="kl"))
    start = mixture.initial(np.random.default_rng(0))
    x = mixture.variables().unflatten("x", start["x"] + 0.3)
    return settings, mixture, x


def test_values_of_a_mixture_of_images(images):
    """Each client's cross-entropy sample by sample, the regulariser, and the metrics."""
    _, mixture, x = images
    weights, losses = torch.tensor([0.5, 0.3, 0.2]).double(), []
    for client in range(3):
        inputs, labels, number = mixture.client_data(client)
        log_shares = torch.log_softmax(mixture.model(x, inputs.double()), dim=1)
        losses.append(-float(log_shares[torch.arange(len(labels)), labels].mean()))
        kl = sum(w * math.log(3 * w) for w in weights.tolist())
        value = mixture.loss(x, {"weights": weights}, (inputs.double(), labels, number)).item()
        # Sums of 20 numbers of about one in another order.
        assert value == pytest.approx(3 * float(weights[client]) * losses[client] - 0.4 * kl, abs=1e-13)
    scores = torch.nn.functional.one_hot(torch.from_numpy(mixture.test_labels())).double()
    assert mixture.metrics(x, {"weights": weights}, scores) == pytest.approx(
        {
            "worst_loss": max(losses),
            "mean_loss": sum(losses) / 3,
            "loss_spread": max(losses) - min(losses),
            "accuracy": 1.0,
        },
        abs=1e-13,
    )
    assert mixture.initial(np.random.default_rng(0))["y"].tolist() == [1 / 3] * 3


def test_the_maximum_with_kl_is_the_robust_loss_of_the_composition(images):
    settings, mixture, x = images
    robust = prepared(DistributionallyRobust(**settings, lam=0.4))
    best = mixture.best_response(x)
    value = best @ mixture.client_losses(x) - mixture.regulariser(best)
    assert float(value) == pytest.approx(robust._training_metrics(x)["robust_loss"], abs=1e-13)
    torch.testing.assert_close(best, torch.softmax(mixture.client_losses(x) / 0.4, 0), rtol=0, atol=1e-13)


def limit(method, problem, rounds=1000) -> dict[str, float]:
    """Return the metrics after many noise-free rounds with constant step sizes."""
    config = configuration(method, problem, "unused", rounds=rounds, noise=None, batch_size=0, group="all")
    simulation = started(config, rounds)
    return simulation.evaluate()


#: One step per round of every method that projects at the server, with the steps of RATES.
ONE_STEP = {
    "AFL": dict(gamma_x=0.05, gamma_y=0.05),
    "FedNormSGDA": dict(tau=1, gamma_x=0.05, gamma_y=0.05, **RATES),
    "FedNormSGDAPlus": dict(tau=1, S=1, gamma_x=0.05, gamma_y=0.05, **RATES),
    "SmoothedGDA": RATES,
    "ExtraSGD": dict(eta=0.05),
    "FedDualAvg": dict(K=1, eta_c=0.05),
    "MASHA1": dict(gamma=0.05, tau=0.5),
    "FedGDAGT": dict(K=1, eta_xl=0.05, eta_yl=0.05),
    "DRFA": dict(tau=1, eta=0.05, gamma=0.05),
    "ProxSkipVIPFL": dict(gamma=0.05, p=1.0),
    "ProxSkipLSVRGDAFL": dict(gamma=0.05, p=1.0),
}


@pytest.mark.parametrize(
    "name, settings", [*((name, SQUARES) for name in ONE_STEP), ("AFL", {}), ("AFL", KL)], ids=str
)
def test_methods_that_project_at_the_server_solve_the_mixture(name, settings):
    """With one exact step per round. Methods that project elsewhere end elsewhere, as in the next test."""
    found = limit(ALGORITHMS[name](**ONE_STEP[name]), QuadraticMixture(**settings))
    # The slowest of these rounds contract by 0.97.
    assert found["x_error"] < 1e-11 and found["y_error"] < 1e-11


def test_every_method_that_projects_at_the_server_is_tested():
    missing = {name for name in METHODS if method(name).projects == "server"} - {*ONE_STEP}
    assert not missing, f"tests/unit/test_mixture.py: add settings with one step to ONE_STEP for {missing}"


PROJECTING = [
    LocalSGDA(q=1, **RATES),
    FSGDA(K=1, eta_xl=0.05, eta_yl=0.05),
    LSGD(K=1, eta=0.05),
    FLRA(tau=1, eta_1=0.05, eta_2=0.05),
]


@pytest.mark.parametrize("one", PROJECTING, ids=lambda one: type(one).__name__)
def test_methods_that_project_at_the_clients_solve_another_problem(one):
    """With one local step, so without drift, and from the same start as AFL."""
    with pytest.raises(ConfigError, match="clients have projected.* server, expected one of .*ExtraSGD"):
        limit(one, QuadraticMixture(**SQUARES))
    assert limit(one, Undeclared(**SQUARES))["x_error"] > 0.02


def test_only_methods_that_project_at_the_server_are_listed(images):
    settings, *_ = images
    with pytest.raises(ConfigError) as raised:
        configuration(LocalSGDA(q=2, **RATES), ClientMixture(**settings), "unused")
    start, _, listed = str(raised.value).rpartition("one of ")
    assert start.startswith("LocalSGDA averages points that clients have projected, but the clients of")
    assert {"AFL", "FedNormSGDA", "SmoothedGDA"} <= {*listed.split(", ")} <= {*ONE_STEP}


def test_drfa_is_for_mixtures():
    method = DRFA(tau=2, eta=0.1, gamma=0.1)
    with pytest.raises(ConfigError, match="DRFA is defined for mixtures.*Saddle.*one of ClientMixture"):
        configuration(method, Saddle(), "unused")
    for settings, error in (
        (dict(tau=1, snapshot="client"), "draws a step from 1..tau-1: expected tau >= 2, got 1"),
        (dict(tau=2, snapshot=3), "snapshot: expected at most tau = 2 local steps, got 3"),
    ):
        with pytest.raises(ConfigError, match=error):
            DRFA(eta=0.1, gamma=0.1, **settings)


def test_the_steps_of_snapshots_cover_their_ranges():
    """t' from 1..τ, equal for the clients of a round; k - 1 from 0..τ-2, different for the clients."""
    common, client = [], []
    for r in range(1, 60):
        now = Now(r, 1, 4, 4, 1.0, False, Sets(), Blocks(), None, (0, r))
        oracle = SimpleNamespace(client=np.arange(4))
        common.append(DRFA(tau=3, eta=0.1, gamma=0.1).snapshot_steps(now, oracle))
        client.append(DRFA(tau=3, eta=0.1, gamma=0.1, snapshot="client").snapshot_steps(now, oracle))
    assert {*np.concatenate(common)} == {1, 2, 3} and all(len({*steps}) == 1 for steps in common)
    assert {*np.concatenate(client)} == {0, 1} and any(len({*steps}) == 2 for steps in client)


@pytest.mark.parametrize(
    "settings, error",
    [
        (dict(active=6), "expected active <= clients, got 6 > 5"),
        (dict(rho=1.0, divergence="kl"), "expected active = 5, the number of clients, got 3"),
    ],
)
def test_settings_of_the_quadratic_mixture(settings, error):
    with pytest.raises(ConfigError, match=error):
        QuadraticMixture(**settings)


def test_too_many_clients(monkeypatch, patches):
    monkeypatch.setattr("mpifed.problems.mixture.LARGEST", 3)
    for problem in (QuadraticMixture(), ClientMixture(dataset="patches", clients=4)):
        with pytest.raises(ValueError, match="problem.clients: expected at most 3, .* got [45]"):
            problem.prepare(0)


def test_exponentiated_gradients_are_for_a_simplex():
    method = AFL(gamma_x=0.05, gamma_y=0.05, mirror="entropy")
    with pytest.raises(CollectiveError, match="mirror = 'entropy' is for simplexes, and y has the set Space"):
        started(configuration(method, Saddle(clients=3), "unused"), 1)
    found = limit(AFL(gamma_x=0.05, gamma_y=0.2, mirror="entropy"), QuadraticMixture(**SQUARES))
    assert found["x_error"] < 1e-8 and found["y_error"] < 1e-8  # the slowest rounds contract by 0.98
