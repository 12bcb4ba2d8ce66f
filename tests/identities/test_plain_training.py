"""FedProx, FedNova, FedDyn, FedExP, Mime and MimeLite: identities with other methods, and fixed points."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from baselines import Half, Quadratic
from games import completed, configuration, trace
from identity_games import ROUNDING, VISIBLE, distance, path

from mpifed.algorithms import CDMAONE, FedAvg, FedDyn, FedExP, FedNormSGDA, FedNova, FedProx, Mime, MimeLite
from mpifed.base.errors import ConfigError

K, ETA, CLIENTS, COHORT = 3, 0.05, 5, 2
LOCAL = dict(K=K, eta=ETA)
#: Local steps after which the displacements are nearly orthogonal, so that FedExP extrapolates.
FAST = dict(K=6, eta=0.2)
TAU = (1, 4, 2, 3, 1)
#: Rows of the clients of ``Half``, which are their weights.
ROWS = np.arange(5, 5 + CLIENTS)
EXACT = dict(noise=None, batch_size=0)
ALL, SAMPLED = {"weights": "samples"}, {"weights": "samples", "cohort": COHORT}
#: ‖a‖_1 of K steps with μ = 2: the sum of 1, .9, .81.
PROXIMAL = 1 + 0.9 + 0.81


def sgd(mix="ema"):
    return {"name": "momentum", "beta": 0.0, "mix": mix}


def momentum(beta=0.6, mix="ema"):
    return {"name": "momentum", "beta": beta, "mix": mix}


#: Name → methods with equal iterates, a method with others, settings of the runs.
IDENTITIES = {
    "FedProx without proximal term": (
        [FedProx(**LOCAL, mu=0.0), FedAvg(**LOCAL)], FedProx(**LOCAL, mu=1.0), (ALL, SAMPLED),
    ),
    "FedProx with one step": (
        [FedProx(K=1, eta=ETA, mu=9.0), FedAvg(K=1, eta=ETA)], FedProx(K=1, eta=ETA, eta_g=0.9),
        (ALL, SAMPLED),
    ),
    "FedNova with equal numbers of steps": (
        [FedNova(tau=K, eta=ETA), FedNova(tau=(K,) * CLIENTS, eta=ETA, rho=0.0, mu=0.0), FedAvg(**LOCAL)],
        FedNova(tau=TAU, eta=ETA), (ALL, SAMPLED),
    ),
    "FedNova with a proximal term": (
        [FedNova(tau=K, eta=ETA, mu=2.0), FedProx(**LOCAL, mu=2.0, eta_g=K / PROXIMAL)],
        FedProx(**LOCAL, mu=2.0), (ALL, SAMPLED),
    ),
    "FedNova is Fed-Norm-SGDA": (
        [
            FedNova(tau=TAU, eta=ETA),
            FedNormSGDA(
                tau=TAU, eta_x=ETA, eta_y=0.0, gamma_x=ETA, gamma_y=0.0, tau_eff=float(ROWS @ TAU / sum(ROWS))
            ),
        ],
        FedNormSGDA(tau=TAU, eta_x=ETA, eta_y=0.0, gamma_x=ETA, gamma_y=0.0), (ALL,),
    ),
    "MimeLite without momentum": (
        [MimeLite(**LOCAL, base=sgd()), MimeLite(**LOCAL, base=sgd("sum")), FedAvg(**LOCAL)],
        MimeLite(**LOCAL, base=momentum()), (ALL, SAMPLED),
    ),
    "Mime without momentum": (
        [Mime(**LOCAL, base=sgd()), CDMAONE(K=K, eta_x=ETA, eta_y=0.0)],
        Mime(**LOCAL, base=momentum()), (ALL, SAMPLED),
    ),
    "both mixes of the momentum": (
        [Mime(**LOCAL, base=momentum()), Mime(K=K, eta=0.4 * ETA, base=momentum(mix="sum"))],
        Mime(**LOCAL, base=momentum(mix="sum")), (ALL, SAMPLED),
    ),
    "FedExP with a large offset": (
        [FedExP(**FAST, epsilon=1e9), FedAvg(**FAST)], FedExP(**FAST, epsilon=1e-6), (ALL, SAMPLED),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IDENTITIES)
def test_methods_coincide(name):
    (first, *others), different, runs = IDENTITIES[name]
    for settings in runs:
        expected = path(first, Half(CLIENTS), **settings)
        for method in others:
            assert distance(path(method, Half(CLIENTS), **settings), expected) < ROUNDING, method
        assert distance(path(different, Half(CLIENTS), **settings), expected) > VISIBLE


@pytest.mark.parametrize("cohort", [None, COHORT])
def test_the_first_round_of_feddyn_is_fedprox_with_a_larger_server_step(cohort):
    settings = dict(rounds=1, cohort=cohort)
    left = path(FedDyn(**LOCAL, alpha=0.8), Half(CLIENTS), **settings)
    for eta_g, near in ((1 + (cohort or CLIENTS) / CLIENTS, True), (1.0, False)):
        gap = distance(left, path(FedProx(**LOCAL, mu=0.8, eta_g=eta_g), Half(CLIENTS), **settings))
        assert gap < ROUNDING if near else gap > VISIBLE


@dataclass
class Identical(Half):
    """The minimisation with the data of the first client at all clients."""

    def client_data(self, k):
        return super().client_data(0)


@dataclass
class Scaled(Half):
    """The minimisation with the loss multiplied by ``factor``."""

    factor: float = 1.0

    def loss(self, x, batch):
        return self.factor * super().loss(x, batch)


def test_fedexp_of_identical_clients_is_fedavg():
    """The ratio is 1/2 then, and the step size 1."""
    fedexp, fedavg = FedExP(**FAST, epsilon=1e-6), FedAvg(**FAST)
    assert distance(path(fedexp, Identical(CLIENTS), **EXACT), path(fedavg, Identical(CLIENTS), **EXACT)) == 0


def test_fedexp_does_not_depend_on_the_scale_of_f():
    """Displacements are the same if the step size is divided by the factor; a power of two changes no bit."""

    def scaled(eta):
        return path(FedExP(K=6, eta=eta), Scaled(CLIENTS, factor=4.0), noise=1.2)

    expected = path(FedExP(**FAST), Half(CLIENTS), noise=0.3)
    assert distance(scaled(0.2 / 4), expected) == 0
    assert distance(scaled(0.2 / 3), expected) > VISIBLE


def test_fedexp_returns_the_mean_of_the_last_two_points():
    config = configuration(FedExP(**LOCAL), Half(CLIENTS), "unused", rounds=4)
    points, output = trace(config)
    np.testing.assert_allclose(output, points[-2:].mean(0), rtol=1e-15)
    assert np.abs(output - points[-1]).max() > VISIBLE
    last = config.model_copy(update={"output": "last"})
    np.testing.assert_array_equal(trace(last)[1], points[-1])


def final(method, rounds, **participation):
    """Return a simulation on different quadratics, whose samples are exact, after a number of rounds."""
    settings = dict(rounds=rounds, batch_size=1, noise=None, group="all")
    settings["sections"] = {"participation": participation}
    return completed(configuration(method, Quadratic(CLIENTS), "unused", **settings))


def error(method, rounds) -> float:
    """Return the distance of the last point from the minimiser of the mean."""
    simulation = final(method, rounds)
    return float((simulation.point() - simulation.problem.solution([1 / CLIENTS] * CLIENTS)).norm())


#: Distance from the start after 300 rounds that contract by 0.9 or less; the rest is rounding.
FORGOTTEN = 1e-10
MEMBERS = {
    "all": {},
    "cohort": {"cohort": COHORT},
    "bernoulli": {
        "availability": {"name": "bernoulli", "probability": [0.3, 0.9, 0.5, 0.7, 0.4], "unbiased": True}
    },
}


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("members", MEMBERS)
def test_feddyn_converges_to_the_minimiser_and_to_the_clients_gradients(members, weights):
    """For every cohort that reaches all clients, also with unequal probabilities."""
    simulation = final(FedDyn(K=5, eta=ETA, alpha=10.0), 300, **MEMBERS[members], weights=weights)
    problem = simulation.problem
    n = np.array(problem.sizes() if weights == "samples" else [1] * CLIENTS)
    x = problem.solution(n / n.sum())
    gradients = torch.stack([A @ x - b for A, b in zip(problem.A, problem.b)])
    assert (simulation.point() - x).norm() < FORGOTTEN
    torch.testing.assert_close(simulation.clients.g, gradients, rtol=0, atol=FORGOTTEN)
    assert simulation.shared.h.norm() < FORGOTTEN and gradients.norm(dim=1).min() > VISIBLE


@pytest.mark.parametrize("beta, mix", [(0.0, "ema"), (0.6, "sum"), (0.8, "sum")])
def test_mime_converges_to_the_minimiser(beta, mix):
    assert error(Mime(**LOCAL, base=momentum(beta, mix)), 300) < FORGOTTEN


def test_clients_drift_without_corrections():
    """MimeLite's momentum does not drift, so its floor is smaller."""
    fedavg, fedprox, lite = (
        error(one, 300)
        for one in (FedAvg(**LOCAL), FedProx(**LOCAL, mu=1.0), MimeLite(**LOCAL, base=momentum()))
    )
    assert fedavg > 1e-2 and fedprox > 1e-2 and 1e-4 < lite < fedavg / 2


def test_the_drift_of_fednova_is_proportional_to_the_step_size():
    """Its clients have unequal numbers of steps, but equal influence."""
    large, small = (error(FedNova(tau=TAU, eta=eta), 600) for eta in (ETA, ETA / 2))
    assert large > 1e-2 and large / small == pytest.approx(2, rel=0.05)  # up to terms of order η²


SETTINGS = [
    (FedNova, dict(tau=2, eta=ETA, rho=0.5, mu=0.5), "expected a local momentum or a proximal term, got rho"),
    (FedNova, dict(tau=2, eta=ETA, mu=21.0), "mu: expected eta . mu <= 1, got 1.05"),
    (FedNova, dict(tau=(2, 0), eta=ETA), "tau: expected at least 1 local step per client"),
    (FedProx, dict(K=1, eta=ETA, stragglers=0.5), "expected K >= 2, got 1"),
]


@pytest.mark.parametrize("cls, settings, message", SETTINGS)
def test_settings_that_do_not_fit_are_refused(cls, settings, message):
    with pytest.raises(ConfigError, match=message):
        cls(**settings)


def test_stragglers_take_fewer_steps():
    """About half of 200 clients are stragglers, which take 2 steps on average; the others take 4."""
    config = configuration(
        FedProx(K=4, eta=ETA, stragglers=0.5), Half(200), "unused", rounds=1, reduction="fused"
    )
    mean = completed(config).rounds.costs.oracle_calls / 200
    # The number of steps has mean (2 + 4) / 2 and variance (14 / 3 + 16) / 2 - 9 < 1.4: five deviations.
    assert mean == pytest.approx(3, abs=5 * (1.4 / 200) ** 0.5)
