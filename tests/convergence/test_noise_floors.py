"""Noise on the saddle problem with one Jacobian, where the distribution of the averaged iterate is known
exactly.

With t_k = 0 and b_k = 0 every coordinate is alone, of curvature h = τ in x and 1 in y, and the mean of N
clients moves as one client with noise of variance σ² / N: the linear speed-up. The second moment of a
coordinate is a recursion of numbers; the mean over ``D`` coordinates has a relative error of (2 / D)^(1/2).
"""

import h5py
import numpy as np
import pytest
from games import configuration

from mpifed import run
from mpifed.algorithms import FGDA, LocalSGDA
from mpifed.parallel.comm import SerialComm
from mpifed.problems import Saddle

D, SIGMA, TAU = 1000, 0.1, 10.0
ETA_X, ETA_Y, Q = 0.005, 0.05, 10
#: Five standard errors of a mean of D squares of normal numbers.
SPREAD = 5 * (2 / D) ** 0.5


def path(method, problem, out, rounds, **settings):
    """The averaged iterates of x and of y after every round."""
    settings = {
        "batch_size": 0,
        "noise": None,
        "group": "all",
        "eval_every": 10**6,
        "watchdog": 0,
    } | settings
    with h5py.File(
        run(configuration(method, problem, out, rounds=rounds, **settings), SerialComm()).path
    ) as file:
        return file["iterates/x"][...], file["iterates/y"][...]


def sgda_moments(clients, h, step, steps):
    """E x_t² of x ← x - step (h x + ξ) after every step, from 0."""
    moments = [0.0]
    for _ in range(steps):
        moments.append((1 - step * h) ** 2 * moments[-1] + step**2 * SIGMA**2 / clients)
    return np.array(moments[1:])


def fgda_moments(clients, h, step, steps, eta, weight):
    """E x_{t+1}² of FGDA. The error e_t = w_t - h x_t starts as the mean of q noises; the STORM line takes it
    to (1 - a) e_t + a ξ, a = ``weight(η_t)``, as the noise of one sample is the same at both points; x moves
    to x - η_t step (h x + e_t)."""
    variance = SIGMA**2 / clients
    S, moments = np.diag([0.0, variance / Q]), []
    for t in range(1, steps + 1):
        a = weight(eta(t))
        M = np.array([[1 - eta(t) * step * h, -eta(t) * step], [0, 1 - a]])
        S = M @ S @ M.T + np.diag([0, a**2 * variance])
        moments.append(S[0, 0])
    return np.array(moments)


def check(iterates, moments):
    """Mean squares in all rounds of a block against its ``moments`` after all steps."""
    np.testing.assert_allclose((iterates**2).mean(1), moments[Q - 1 :: Q], rtol=SPREAD)


@pytest.mark.parametrize("clients", [1, 8])
def test_local_sgda_is_as_far_from_the_saddle_as_the_noise_of_all_clients(tmp_path, clients):
    problem = Saddle(d=D, clients=clients, s=0.0, t_max=0.0, start="zero")
    rounds = 8  # an error lives for two rounds
    x, y = path(LocalSGDA(q=Q, eta_x=ETA_X, eta_y=ETA_Y), problem, tmp_path, rounds, noise=SIGMA)
    check(x, sgda_moments(clients, TAU, ETA_X, Q * rounds))
    check(y, sgda_moments(clients, 1.0, ETA_Y, Q * rounds))


@pytest.mark.parametrize("sync", ["stem", "local", "mean_after"])
@pytest.mark.parametrize("clients", [1, 8])
def test_fgda_is_as_far_from_the_saddle_as_the_noise_of_all_clients(tmp_path, clients, sync):
    problem = Saddle(d=D, clients=clients, s=0.0, t_max=0.0, start="zero")
    method, rounds = FGDA(q=Q, gamma=ETA_X, lam=ETA_Y, alpha=0.3, beta=0.1, sync_estimator=sync), 8
    x, y = path(method, problem, tmp_path, rounds, noise=SIGMA)
    check(x, fgda_moments(clients, TAU, ETA_X, Q * rounds, lambda t: 1.0, lambda eta: 0.1))
    check(y, fgda_moments(clients, 1.0, ETA_Y, Q * rounds, lambda t: 1.0, lambda eta: 0.3))


def test_the_schedules_of_the_theorem_reduce_the_noise(tmp_path):
    """The second moment follows η_t, α_{t+1} (in y) and β_{t+1} (in x) step by step, and ends below half its
    peak."""
    problem = Saddle(d=D, clients=2, s=0.0, t_max=0.0, start="zero")
    rates = {"eta": {"name": "power", "scale": 2.0, "offset": 8.0}, "alpha": {"name": "squared", "c": 0.9}}
    method, rounds = FGDA(q=Q, gamma=ETA_X, lam=ETA_Y, beta={"name": "squared", "c": 0.5}, **rates), 60
    x, y = path(method, problem, tmp_path, rounds, noise=SIGMA)

    def eta(t):
        return 2 / (8 + t) ** (1 / 3)

    check(x, fgda_moments(2, TAU, ETA_X, Q * rounds, eta, lambda eta: 0.5 * eta**2))
    check(y, fgda_moments(2, 1.0, ETA_Y, Q * rounds, eta, lambda eta: 0.9 * eta**2))
    for iterates in (x, y):
        squares = (iterates**2).mean(1)
        assert squares[-1] < squares.max() / 2


def test_a_sampled_cohort_of_local_sgda_stays_around_the_solution(tmp_path):
    """One Jacobian: a round takes y to P y + (1 - P) b̄ with the cohort's mean b̄ and P = 0.95^q, so that y
    ends at the solution on average, spread by the variance of b̄."""
    clients, size, rounds, P = 6, 2, 400, 0.95**Q
    problem = Saddle(clients=clients, t_max=0.0, centred=False)
    x, y = path(LocalSGDA(q=Q, eta_x=ETA_X, eta_y=ETA_Y), problem, tmp_path, rounds, cohort=size)
    x, y = x[100:], y[100:] - problem.solution()[1].numpy()  # 0.6^100 forgets the start
    assert np.abs(x).max() < 1e-12
    b = (
        np.concatenate([problem.client_data(k)[1].numpy() for k in range(clients)])
        - problem.solution()[1].numpy()
    )
    spread = (
        b.var(axis=0, ddof=1) / size * (1 - size / clients)
    )  # of the mean of a sample without replacement
    assert (np.abs(y) <= np.abs(b).max(axis=0) + 1e-12).all()  # convex combinations
    # The sum of y - P y' = (1 - P) b̄ makes the mean over the rounds that of b̄, up to O(1 / rounds).
    assert (np.abs(y.mean(axis=0)) < 4 * np.sqrt(spread / len(y))).all()
    ratio = (y.var(axis=0) / (spread * (1 - P) / (1 + P))).mean()
    # 300 rounds count as 300 (1 - P²) / (1 + P²) = 140 independent ones: 0.12 a coordinate, 0.05 over the
    # five directions that six clients less their mean span.
    assert 0.75 < ratio < 1.25
