"""Where the methods end on the saddle problem of Huang et al. 2024, section 6.1, without noise.

A step takes 5 % off the errors of x and of y, a round of q = 10 steps 40 %, so 100 rounds leave rounding
alone where nothing slower is at work. Local-GDA ends at ``local_gda_limit``, some 5e-4 s away from the
saddle.
"""

import h5py
import numpy as np
import pytest
import torch
from games import configuration

from mpifed import run
from mpifed.algorithms import FGDA, AdaFGDA, LocalSGDA
from mpifed.core.adaptive import MATRICES
from mpifed.parallel.comm import SerialComm
from mpifed.problems import Saddle

Q, ETA_X, ETA_Y = 10, 0.005, 0.05
#: Rounding of steps on numbers of about 1, summed over the ten steps or so that an error lives.
ROUNDING = 1e-13


class Unequal(Saddle):
    """Client k counts k + 1 times under ``weights = "samples"``."""

    def client_size(self, client):
        return client + 1


def path(method, problem, out, rounds=100, **settings) -> np.ndarray:
    """The averaged iterate of every round without noise, ``[rounds, 2 d]``."""
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
        return np.concatenate([file["iterates/x"][...], file["iterates/y"][...]], axis=1)


def fgda(sync, weight, **settings):
    """FGDA with α = β = ``weight``."""
    return FGDA(q=Q, gamma=ETA_X, lam=ETA_Y, alpha=weight, beta=weight, sync_estimator=sync, **settings)


def floor(problem) -> np.ndarray:
    return torch.cat(problem.local_gda_limit(ETA_X, ETA_Y, Q)).numpy()


def weighted_saddle(problem, n) -> np.ndarray:
    """The saddle of Σ n_k f^k / Σ n_k: (τ + t̄²) x = t̄ b̄, y = b̄ - t̄ x with weighted means."""
    n = np.array(n) / np.sum(n)
    data = [problem.client_data(k) for k in range(problem.clients)]
    t, b = (
        sum(w * float(t[0]) for w, (t, _) in zip(n, data)),
        sum(w * b[0].numpy() for w, (_, b) in zip(n, data)),
    )
    x = t * b / (problem.tau + t**2)
    return np.concatenate([x, b - t * x])


@pytest.mark.parametrize("centred, start", [(True, "normal"), (True, "zero"), (False, "normal")])
@pytest.mark.parametrize("s", [1.0, 10.0])
def test_local_gda_and_the_local_reading_end_at_the_limit_of_local_gda(tmp_path, s, centred, start):
    """Even from the saddle itself ("zero", centred)."""
    problem = Saddle(s=s, centred=centred, start=start)
    for method in (LocalSGDA(q=Q, eta_x=ETA_X, eta_y=ETA_Y), fgda("local", 0.3)):
        gap = np.linalg.norm(path(method, problem, tmp_path)[-1] - floor(problem))
        assert gap < ROUNDING * s  # the clients' saddles, and with them all values, are of size s
    solution = torch.cat(problem.solution()).numpy()
    assert 1e-4 * s < np.linalg.norm(floor(problem) - solution) < 1e-3 * s
    assert np.allclose(solution, weighted_saddle(problem, np.ones(20)), rtol=0, atol=1e-14 * s)


@pytest.mark.parametrize("sync", ["stem", "mean_after"])
def test_the_final_error_is_proportional_to_the_weights(tmp_path, sync):
    """error = C α (1 - c α + ...): the slope of log error against log α leaves 1 by O(α); α = 1 is near the
    floor."""
    problem = Saddle(s=10.0)
    weights = [1.0, 1e-1, 1e-2, 1e-3, 1e-4]
    errors = [np.linalg.norm(path(fgda(sync, weight), problem, tmp_path, 120)[-1]) for weight in weights]
    assert errors[0] > 0.5 * np.linalg.norm(floor(problem))
    assert errors[-1] < 1e-3 * np.linalg.norm(floor(problem))
    slopes = np.diff(np.log10(errors[1:])) / np.diff(np.log10(weights[1:]))
    for weight, slope in zip(weights[1:], slopes):
        assert 0 < 1 - slope < 4 * weight, (slopes, errors)  # c is of the order of q, and a decade is log 10


COUNTS = {"uniform": np.ones(20), "samples": np.arange(1, 21)}


@pytest.mark.parametrize("weights, other", [("uniform", "samples"), ("samples", "uniform")])
@pytest.mark.parametrize("sync", ["stem", "mean_after"])
def test_without_forgetting_fgda_ends_at_the_saddle(tmp_path, sync, weights, other):
    """α = β = 0 without noise: the mean estimator sums exact increments, and the clients' drift leaves no
    bias."""
    problem = Unequal(centred=False)
    end = path(fgda(sync, 0.0), problem, tmp_path, weights=weights)[-1]
    assert (
        np.linalg.norm(end - weighted_saddle(problem, COUNTS[weights])) < 10 * ROUNDING
    )  # nor is rounding forgotten
    assert np.linalg.norm(end - weighted_saddle(problem, COUNTS[other])) > 0.1


@pytest.mark.parametrize("weights, other", [("uniform", "samples"), ("samples", "uniform")])
def test_local_sgda_ends_at_the_saddle_of_the_weighted_clients(tmp_path, weights, other):
    """Without coupling all clients have one Jacobian, and local steps leave no bias."""
    problem = Unequal(centred=False, t_max=0.0)
    end = path(LocalSGDA(q=Q, eta_x=ETA_X, eta_y=ETA_Y), problem, tmp_path, weights=weights)[-1]
    assert np.linalg.norm(end - weighted_saddle(problem, COUNTS[weights])) < ROUNDING
    assert np.linalg.norm(end - weighted_saddle(problem, COUNTS[other])) > 0.1


@pytest.mark.parametrize("matrix", MATRICES)
def test_adafgda_ends_at_the_saddle(tmp_path, matrix):
    """With any matrices, for the steps vanish where the mean field does (α = β = 0, no noise). Matrices that
    do not shrink with the estimators want larger steps."""
    scale = {"adagrad_norm": 20.0, "barzilai_borwein": 4.0, "amsgrad": 3.0}.get(matrix, 1.0)
    method = AdaFGDA(
        q=Q,
        gamma=scale * ETA_X,
        lam=scale * ETA_Y,
        alpha=0.0,
        beta=0.0,
        matrix={"name": matrix, **({} if matrix == "identity" else {"rho": 1.0})},
    )
    errors = np.linalg.norm(path(method, Saddle(), tmp_path, 200), axis=1)
    assert errors[0] > 0.1
    assert errors[-1] < 1e-10


@pytest.mark.parametrize("matrix", ["adam", "adabelief", "norm"])
def test_adafgda_ends_where_fgda_does(tmp_path, matrix):
    """Matrices that forget come within 0.3 % of ρ I, as the averaged estimators tend to almost 0: the bias is
    that of FGDA with steps γ / ρ, λ / ρ but for a part of that size."""
    rates = dict(q=Q, alpha=0.01, beta=0.01)
    method = AdaFGDA(gamma=2 * ETA_X, lam=2 * ETA_Y, matrix={"name": matrix, "rho": 2.0}, **rates)
    left = path(method, Saddle(), tmp_path, 150)[-1]
    right = path(FGDA(gamma=ETA_X, lam=ETA_Y, **rates), Saddle(), tmp_path, 150)[-1]
    assert 1e-5 < np.linalg.norm(right) < 1e-4
    assert np.linalg.norm(left - right) < 3e-3 * np.linalg.norm(right)


def test_the_schedules_of_the_theorem_remove_the_bias(tmp_path):
    """η_t ∝ t^(-1/3), α and β ∝ η_t²: the bias, a drift ∝ η_t times α, falls as 1 / t."""
    method = fgda("stem", {"name": "squared", "c": 0.5}, eta={"name": "power", "scale": 2.0, "offset": 8.0})
    errors = np.linalg.norm(path(method, Saddle(), tmp_path, 450), axis=1)
    assert errors[0] > 1
    slope = np.log(errors[449] / errors[149]) / np.log(4508 / 1508)
    # α = 0.01 and the lag of a few 1 / α steps behind t correct by some per cent over this range.
    assert abs(slope + 1) < 0.1
