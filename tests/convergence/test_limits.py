"""Limits of methods without noise, and exact distributions with noise.

A step on the saddle problem of Huang et al. 2024, section 6.1, takes 5 % off the errors of x and of y, and a
round of Q = 10 steps 40 %, so 100 rounds leave rounding only unless something is slower. Local-GDA ends at
``local_gda_limit``, about 5e-4 s away from the saddle point.
"""

import numpy as np
import pytest
import torch
from baselines import Monotone
from games import configuration, trace
from saddle_job import local_gda_limit

from mpifed.algorithms import FGDA, AdaFGDA, FedNormSGDA, LocalSGDA
from mpifed.core.adaptive import MATRICES
from mpifed.problems import Saddle

Q, ETA_X, ETA_Y = 10, 0.005, 0.05
LOCAL = LocalSGDA(q=Q, eta_x=ETA_X, eta_y=ETA_Y)
#: Rounding of steps on numbers of about 1, summed over the ten steps or so for which an error persists.
ROUNDING = 1e-13


class Unequal(Saddle):
    """The saddle problem in which client k has k + 1 samples."""

    def client_size(self, client):
        return client + 1


def path(method, problem, rounds=100, noise=None, batch_size=0, **settings) -> np.ndarray:
    """Return the averaged iterate of every round, ``[rounds, d]``."""
    settings |= dict(rounds=rounds, noise=noise, batch_size=batch_size, group="all")
    return trace(configuration(method, problem, "unused", **settings))[0]


def fgda(sync, weight):
    """Return FGDA with α = β = ``weight``."""
    return FGDA(q=Q, gamma=ETA_X, lam=ETA_Y, alpha=weight, beta=weight, sync_estimator=sync)


def weighted_saddle(problem, n) -> np.ndarray:
    """Return the saddle of Σ n_k f^k / Σ n_k: (τ + t̄²) x = t̄ b̄, y = b̄ - t̄ x with weighted means."""
    data = [problem.client_data(k) for k in range(problem.clients)]
    t = np.average([float(t[0]) for t, _ in data], weights=n)
    b = np.average([b[0].numpy() for _, b in data], axis=0, weights=n)
    x = t * b / (problem.tau + t**2)
    return np.concatenate([x, b - t * x])


@pytest.mark.parametrize("centred, start", [(True, "normal"), (True, "zero"), (False, "normal")])
@pytest.mark.parametrize("s", [1.0, 10.0])
def test_local_gda_and_the_local_reading_end_at_the_limit_of_local_gda(s, centred, start):
    """Also from the saddle point itself (centred, "zero")."""
    problem = Saddle(s=s, centred=centred, start=start)
    ends = [path(method, problem)[-1] for method in (LOCAL, fgda("local", 0.3))]
    limit = torch.cat(local_gda_limit(problem, ETA_X, ETA_Y, Q)).numpy()
    assert max(np.linalg.norm(end - limit) for end in ends) < ROUNDING * s  # all values are of size s
    solution = torch.cat(problem.solution()).numpy()
    assert 1e-4 * s < np.linalg.norm(limit - solution) < 1e-3 * s
    assert np.allclose(solution, weighted_saddle(problem, np.ones(20)), rtol=0, atol=1e-14 * s)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("sync", ["stem", "mean_after"])
def test_without_forgetting_fgda_ends_at_the_saddle_of_the_weighted_clients(sync, weights):
    """With α = β = 0 the mean estimator sums exact increments, and the clients' drift leaves no bias."""
    problem, counts = Unequal(centred=False), {"uniform": np.ones(20), "samples": np.arange(1, 21)}
    end = path(fgda(sync, 0.0), problem, weights=weights)[-1]
    for name, n in counts.items():
        gap = np.linalg.norm(end - weighted_saddle(problem, n))
        assert gap < 10 * ROUNDING if name == weights else gap > 0.1  # rounding is not forgotten either


@pytest.mark.parametrize("matrix", MATRICES)
def test_adafgda_ends_at_the_saddle_with_all_matrices(matrix):
    """Its steps vanish where the mean field does. Matrices that do not shrink with the estimators need
    larger steps."""
    scale = {"adagrad_norm": 20.0, "barzilai_borwein": 4.0, "amsgrad": 3.0}.get(matrix, 1.0)
    options = {"name": matrix, **({} if matrix == "identity" else {"rho": 1.0})}
    rates = dict(gamma=scale * ETA_X, lam=scale * ETA_Y, alpha=0.0, beta=0.0)
    errors = np.linalg.norm(path(AdaFGDA(q=Q, matrix=options, **rates), Saddle(), 200), axis=1)
    assert errors[0] > 0.1
    assert errors[-1] < 1e-10


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_fed_norm_sgda_weighs_clients_independently_of_their_numbers_of_steps(weights):
    clients, tau = 6, (1, 8, 2, 5, 1, 3)
    problem = Monotone(clients)
    problem.prepare(1)
    given = np.array(problem.sizes() if weights == "samples" else [1] * clients)
    settings = dict(tau=tau, eta_x=1e-7, eta_y=1e-7, gamma_x=0.03, gamma_y=0.03)
    wanted, by_steps = (problem.solution(w).numpy() for w in (given, given * tau))
    end = path(FedNormSGDA(**settings), Monotone(clients), 200, batch_size=1, weights=weights)[-1]
    assert np.linalg.norm(end - wanted) < 1e-6  # the drift is some times the local step size
    assert np.linalg.norm(end - by_steps) > 0.05


@pytest.mark.parametrize("clients", [1, 8])
def test_the_variance_of_local_sgda_falls_with_the_number_of_clients(clients):
    """With t_k = b_k = 0 each coordinate moves alone, with curvature h = τ in x and 1 in y and a step's
    noise of variance σ² / N: E x² follows x ← (1 - ηh) x + η ξ. A mean of d squares has a relative error of
    (2 / d)^(1/2)."""
    d, sigma, rounds = 1000, 0.1, 8
    problem = Saddle(d=d, clients=clients, s=0.0, t_max=0.0, start="zero")
    squares = path(LOCAL, problem, rounds, noise=sigma) ** 2
    for found, h, eta in ((squares[:, :d], problem.tau, ETA_X), (squares[:, d:], 1.0, ETA_Y)):
        moments = [0.0]
        for _ in range(Q * rounds):
            moments.append((1 - eta * h) ** 2 * moments[-1] + eta**2 * sigma**2 / clients)
        np.testing.assert_allclose(found.mean(1), moments[Q::Q], rtol=5 * (2 / d) ** 0.5)
