"""Step sizes and weights that change at every step, against the boxes: an index that is off by one must show.

Each setting has its own schedule that decreases fast, so that no two values of a setting, and no two settings,
are interchangeable. Tolerance 1e-10 in float64: the same few hundred operations in another order.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fields import Chain, reference_chain
from games import Game, configuration, reference_gradient, start_of, trace

from mpifed.algorithms import FGDA, MFCGD, AdaFGDA, AdaMFCGD, LocalSGDA
from mpifed.core.adaptive import AdaBelief, Adam, AMSGrad, BarzilaiBorwein, Norm
from mpifed.core.noise import Gaussian
from mpifed.core.streams import generator
from mpifed.parallel.comm import SerialComm

from . import matrices as plain
from .fgda import fgda
from .local_sgda import local_sgda
from .mfcgd import mfcgd

SYNC = ["stem", "local", "mean_after", "box"]
SEED, BATCH, NOISE, ROUNDS, CLIENTS = 1, 2, Gaussian(scale=0.3), 3, 3
#: What a job file says, and by hand the papers' η_t, α_{t+1}, β_{t+1}, ϱ_{t+1} as functions of t.
FALLING = {
    "eta": ({"name": "power", "scale": 1.6, "offset": 1, "exponent": 0.8}, lambda t: 1.6 / (1 + t) ** 0.8),
    "alpha": ({"name": "power", "scale": 0.9, "exponent": 0.7}, lambda t: 0.9 / t**0.7),
    "beta": (
        {"name": "steps", "value": 0.8, "boundaries": [*range(1, 9)], "factor": 0.7},
        lambda t: 0.8 * 0.7 ** (t - 1),
    ),
    "varrho": (
        {"name": "power", "scale": 0.95, "offset": 0.5, "exponent": 0.9},
        lambda t: 0.95 / (0.5 + t) ** 0.9,
    ),
}
#: Weights that follow η, as the theorems have them.
SQUARED = {
    name: ({"name": "squared", "c": c}, lambda t, c=c: min(1.0, c * (1.6 / (1 + t) ** 0.8) ** 2))
    for name, c in (("alpha", 0.9), ("beta", 2.5), ("varrho", 0.6))
}
SCHEDULES = {"falling": FALLING, "squared": FALLING | SQUARED}
MATRICES = {
    "identity": (None, plain.Identity),
    "adam": (Adam(varrho=0.8, rho=0.3), lambda: plain.Adam(0.3, 0.8)),
}
#: Those that keep a point or an estimator of the start.
REFERRING = {
    "amsgrad": (AMSGrad(varrho=0.8, rho=0.3), lambda: plain.AMSGrad(0.3, 0.8)),
    "adabelief initial": (
        AdaBelief(varrho=0.8, rho=0.3, belief_reference="initial"),
        lambda: plain.AdaBelief(0.3, 0.8, "initial"),
    ),
    "barzilai_borwein": (BarzilaiBorwein(rho=0.3), lambda: plain.BarzilaiBorwein(0.3)),
}
#: Decays that change with t: Huang's ϑ_t and ϱ_t, of every matrix that has one.
GROWING = {"name": "steps", "value": 0.2, "boundaries": [*range(1, 9)], "factor": 1.15}
SHRINKING = {"name": "power", "scale": 0.9, "exponent": 0.6}


def grown(t):
    return 0.2 * 1.15 ** (t - 1)


def shrunk(t):
    return 0.9 / t**0.6


DECAYING = {
    "adam": (Adam(varrho=GROWING, rho=0.3), lambda: plain.Adam(0.3, grown)),
    "adam shrinking": (Adam(varrho=SHRINKING, rho=0.3), lambda: plain.Adam(0.3, shrunk)),
    "adabelief": (AdaBelief(varrho=SHRINKING, rho=0.3), lambda: plain.AdaBelief(0.3, shrunk)),
    "amsgrad": (AMSGrad(varrho=GROWING, rho=0.3), lambda: plain.AMSGrad(0.3, grown)),
    "norm": (Norm(vartheta=SHRINKING, rho=0.3), lambda: plain.Norm(0.3, shrunk)),
    "norm root": (Norm(vartheta=GROWING, rho=0.3, root=True), lambda: plain.Norm(0.3, grown, True)),
}


def settings_and_functions(schedules, names):
    return ({name: schedules[name][k] for name in names} for k in (0, 1))


def assert_path(method, problem, out, expected):
    config = configuration(
        method, problem, out, seed=SEED, rounds=ROUNDS, batch_size=BATCH, noise=NOISE.scale
    )
    path, _ = trace(config, SerialComm())
    points = [torch.cat(tuple(point)).numpy() for point in expected()]
    np.testing.assert_allclose(path, points, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore:sync_estimator = 'box' with q = 1")
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("schedules", SCHEDULES)
@pytest.mark.parametrize("sync", SYNC)
@pytest.mark.parametrize("q", [1, 3])
def test_fgda(tmp_path, q, sync, schedules, matrix):
    given, functions = settings_and_functions(SCHEDULES[schedules], ("eta", "alpha", "beta"))
    common = dict(q=q, gamma=0.07, lam=0.05, sync_estimator=sync)
    ours, theirs = MATRICES[matrix]
    method = AdaFGDA(**common, **given, matrix=ours) if ours else FGDA(**common, **given)
    game = Game(clients=CLIENTS)
    assert_path(
        method,
        game,
        tmp_path,
        lambda: fgda(
            reference_gradient(game, SEED, q, BATCH, NOISE),
            CLIENTS,
            *start_of(game, SEED),
            rounds=ROUNDS,
            matrix=theirs,
            **common,
            **functions,
        ),
    )


@pytest.mark.parametrize("matrix", MATRICES | REFERRING)
@pytest.mark.parametrize("schedules", SCHEDULES)
@pytest.mark.parametrize("q", [1, 3])
def test_mfcgd(tmp_path, q, schedules, matrix):
    given, functions = settings_and_functions(SCHEDULES[schedules], ("eta", "alpha", "beta", "varrho"))
    ours, theirs = (MATRICES | REFERRING)[matrix]
    method = AdaMFCGD(q=q, gamma=0.1, **given, matrix=ours) if ours else MFCGD(q=q, gamma=0.1, **given)
    problem = Chain(clients=CLIENTS)
    assert_path(
        method,
        problem,
        tmp_path,
        lambda: (
            (x,)
            for x in mfcgd(
                *reference_chain(problem, SEED, q, BATCH, NOISE),
                CLIENTS,
                problem.initial(generator(SEED, "initial"))["x"],
                q=q,
                rounds=ROUNDS,
                gamma=0.1,
                matrix=theirs,
                **functions,
            )
        ),
    )


@pytest.mark.parametrize("matrix", DECAYING)
@pytest.mark.parametrize("first", ["rule", "rho"])
@pytest.mark.parametrize("q", [1, 3])
def test_decays_at_the_step_of_the_synchronisation(tmp_path, q, first, matrix):
    ours, theirs = DECAYING[matrix]
    game, chain, common = Game(clients=CLIENTS), Chain(clients=CLIENTS), dict(q=q, gamma=0.07)
    weights = {name: lambda t: 0.4 for name in ("alpha", "beta", "varrho")}
    options = dict(rounds=ROUNDS, eta=lambda t: 1.0, matrix=theirs, first_matrix=first, **common)
    assert_path(
        AdaFGDA(**common, lam=0.05, alpha=0.4, beta=0.4, matrix=ours, first_matrix=first),
        game,
        tmp_path,
        lambda: fgda(
            reference_gradient(game, SEED, q, BATCH, NOISE),
            CLIENTS,
            *start_of(game, SEED),
            **options,
            lam=0.05,
            alpha=weights["alpha"],
            beta=weights["beta"],
        ),
    )
    values = reference_chain(chain, SEED, q, BATCH, NOISE)
    assert_path(
        AdaMFCGD(**common, alpha=0.4, beta=0.4, varrho=0.4, matrix=ours, first_matrix=first),
        chain,
        tmp_path,
        lambda: (
            (x,)
            for x in mfcgd(
                *values, CLIENTS, chain.initial(generator(SEED, "initial"))["x"], **options, **weights
            )
        ),
    )


@pytest.mark.parametrize("q", [1, 3])
def test_local_sgda(tmp_path, q):
    """Two schedules of different forms, neither of which is a shift of the other."""
    eta_x = {"name": "power", "scale": 0.1, "offset": 1, "exponent": 0.8}
    eta_y = {"name": "steps", "value": 0.08, "boundaries": [*range(1, 9)], "factor": 0.7}
    game = Game(clients=CLIENTS)
    assert_path(
        LocalSGDA(q=q, eta_x=eta_x, eta_y=eta_y),
        game,
        tmp_path,
        lambda: local_sgda(
            reference_gradient(game, SEED, q, BATCH, NOISE),
            CLIENTS,
            *start_of(game, SEED),
            q=q,
            rounds=ROUNDS,
            eta_x=lambda t: 0.1 / (1 + t) ** 0.8,
            eta_y=lambda t: 0.08 * 0.7 ** (t - 1),
        ),
    )
