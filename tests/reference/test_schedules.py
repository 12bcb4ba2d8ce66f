"""Step sizes and weights that change at every step, against the boxes: an index that is off by one must show.

Each setting has its own schedule that decreases fast, so that no two values of a setting, and no two settings,
are interchangeable. Tolerance 1e-10 in float64: the same few hundred operations in another order.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from baselines import gradient_at
from fields import Chain, reference_chain
from games import Game, configuration, reference_gradient, start_of, trace
from resumed import flat

from mpifed.algorithms import (
    FESSGDA,
    FGDA,
    LIPPAX,
    MFCGD,
    SCAFFOLD,
    AdaFGDA,
    AdaMFCGD,
    FedNSGDAM,
    LocalSGDA,
)
from mpifed.core.adaptive import AdaBelief, Adam, AMSGrad, BarzilaiBorwein, Norm
from mpifed.core.noise import Gaussian
from mpifed.core.streams import generator

from . import matrices as plain
from .fess_gda import fess_gda
from .fgda import fgda
from .heavy_tailed import fed_nsgda_m
from .local_sgda import local_sgda
from .mfcgd import mfcgd
from .variates import scaffold_minimax
from .vi import lippax

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


def assert_path(method, problem, out, expected, record=("x", "y")):
    settings = dict(seed=SEED, rounds=ROUNDS, batch_size=BATCH, noise=NOISE, sections={"record": record})
    path, _ = trace(configuration(method, problem, out, **settings))
    np.testing.assert_allclose(path, flat(expected()), rtol=1e-10, atol=1e-10)


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

    def expected():
        gradient, start = reference_gradient(game, SEED, q, BATCH, NOISE), start_of(game, SEED)
        return fgda(gradient, CLIENTS, *start, rounds=ROUNDS, matrix=theirs, **common, **functions)

    assert_path(method, game, tmp_path, expected)


def chain_path(problem, q, **settings):
    """Return the points of MFCGD after every round."""
    values = reference_chain(problem, SEED, q, BATCH, NOISE)
    start = problem.initial(generator(SEED, "initial"))
    return [(x,) for x in mfcgd(*values, CLIENTS, start["x"], q=q, rounds=ROUNDS, **settings)]


@pytest.mark.parametrize("matrix", MATRICES | REFERRING)
@pytest.mark.parametrize("schedules", SCHEDULES)
@pytest.mark.parametrize("q", [1, 3])
def test_mfcgd(tmp_path, q, schedules, matrix):
    given, functions = settings_and_functions(SCHEDULES[schedules], ("eta", "alpha", "beta", "varrho"))
    ours, theirs = (MATRICES | REFERRING)[matrix]
    method = AdaMFCGD(q=q, gamma=0.1, **given, matrix=ours) if ours else MFCGD(q=q, gamma=0.1, **given)
    problem = Chain(clients=CLIENTS)
    assert_path(
        method, problem, tmp_path, lambda: chain_path(problem, q, gamma=0.1, matrix=theirs, **functions)
    )


@pytest.mark.parametrize("matrix", DECAYING)
@pytest.mark.parametrize("first", ["rule", "rho"])
@pytest.mark.parametrize("q", [1, 3])
def test_decays_at_the_step_of_the_synchronisation(tmp_path, q, first, matrix):
    ours, theirs = DECAYING[matrix]
    weights = {name: lambda t: 0.4 for name in ("alpha", "beta", "varrho")}
    options = dict(gamma=0.07, eta=lambda t: 1.0, matrix=theirs, first_matrix=first)
    common = dict(q=q, gamma=0.07, alpha=0.4, beta=0.4, matrix=ours, first_matrix=first)
    game, chain = Game(clients=CLIENTS), Chain(clients=CLIENTS)

    def expected():
        gradient, start = reference_gradient(game, SEED, q, BATCH, NOISE), start_of(game, SEED)
        alpha, beta = weights["alpha"], weights["beta"]
        return fgda(
            gradient, CLIENTS, *start, q=q, rounds=ROUNDS, lam=0.05, alpha=alpha, beta=beta, **options
        )

    assert_path(AdaFGDA(**common, lam=0.05), game, tmp_path, expected)
    method = AdaMFCGD(**common, varrho=0.4)
    assert_path(method, chain, tmp_path, lambda: chain_path(chain, q, **options, **weights))


@pytest.mark.parametrize("q", [1, 3])
def test_local_sgda(tmp_path, q):
    """Two schedules of different forms, neither of which is a shift of the other."""
    eta_x = {"name": "power", "scale": 0.1, "offset": 1, "exponent": 0.8}
    eta_y = {"name": "steps", "value": 0.08, "boundaries": [*range(1, 9)], "factor": 0.7}
    game = Game(clients=CLIENTS)
    theirs = dict(eta_x=lambda t: 0.1 / (1 + t) ** 0.8, eta_y=lambda t: 0.08 * 0.7 ** (t - 1))

    def expected():
        gradient, start = reference_gradient(game, SEED, q, BATCH, NOISE), start_of(game, SEED)
        return local_sgda(gradient, CLIENTS, *start, q=q, rounds=ROUNDS, **theirs)

    assert_path(LocalSGDA(q=q, eta_x=eta_x, eta_y=eta_y), game, tmp_path, expected)


#: Schedules of local step sizes, server step sizes and weights, as in a job file and as functions of t.
LOCAL = ({"name": "power", "scale": 0.1, "offset": 1, "exponent": 0.8}, lambda t: 0.1 / (1 + t) ** 0.8)
OTHER = (
    {"name": "cosine", "value": 0.08, "length": 6, "final": 0.02, "warmup": 2},
    lambda t: {1: 0.04, 2: 0.08, 3: 0.08, 4: 0.065, 5: 0.035}.get(t, 0.02),
)
SERVER = ({"name": "steps", "value": 1.2, "boundaries": [1, 2], "factor": 0.6}, lambda r: 1.2 * 0.6 ** (r - 1))
SECOND = ({"name": "power", "scale": 0.9, "exponent": 1.0}, lambda r: 0.9 / r)


def of_job(**settings):
    return {name: value[0] if isinstance(value, tuple) else value for name, value in settings.items()}


def of_reference(**settings):
    return {name: value[1] if isinstance(value, tuple) else value for name, value in settings.items()}


def test_scaffold_divides_by_the_sum_of_the_rounds_steps(tmp_path):
    settings, game = dict(K=3, eta_l=LOCAL, eta_g=SERVER), Game(clients=CLIENTS)
    assert_path(SCAFFOLD(**of_job(**settings)), game, tmp_path, lambda: scaffold_minimax(
        gradient_at(game, SEED, BATCH, NOISE), *start_of(game, SEED), [[range(CLIENTS)]] * ROUNDS,
        [1.0] * CLIENTS, **of_reference(**settings),
    ))  # fmt: skip


def test_global_steps_of_heavy_tailed_methods(tmp_path):
    settings = dict(p=3, eta_x=LOCAL, eta_y=OTHER, gamma_x=SERVER, gamma_y=SECOND, beta_x=SECOND, beta_y=0.7)
    game = Game(clients=CLIENTS)
    assert_path(FedNSGDAM(**of_job(**settings)), game, tmp_path, lambda: [
        (point["x"], point["y"]) for point in fed_nsgda_m(
            reference_gradient(game, SEED, 3, BATCH, NOISE), CLIENTS, *start_of(game, SEED), rounds=ROUNDS,
            **of_reference(**settings),
        )
    ])  # fmt: skip


def test_fess_gda(tmp_path):
    settings = dict(K=2, eta_xl=LOCAL, eta_yl=OTHER, eta_xg=SERVER, eta_yg=SECOND, p=0.7, beta=SECOND)
    game = Game(clients=CLIENTS)
    assert_path(FESSGDA(**of_job(**settings)), game, tmp_path, lambda: [
        point[:2] for point in fess_gda(
            reference_gradient(game, SEED, 2, BATCH, NOISE), CLIENTS, *start_of(game, SEED), rounds=ROUNDS,
            **of_reference(**settings),
        )
    ])  # fmt: skip


@pytest.mark.parametrize("inner", [dict(L=2.0), dict(gamma=OTHER)], ids=["L", "gamma"])
def test_lippax(tmp_path, inner):
    settings = dict(K=2, eta=LOCAL, H=2) | inner
    game = Game(clients=CLIENTS)

    def path():
        grad, (x, y) = reference_gradient(game, SEED, 6, BATCH, NOISE), start_of(game, SEED)

        def operator(m, z, key):
            t, j = key
            r, k = (t - 1) // 2, (t - 1) % 2
            gx, gy = grad(m, *z.split((len(x), len(y))), 6 * r + 3 * k + j + 1)
            return torch.cat([gx, -gy])

        options = of_reference(**settings)
        return [(z,) for z, _ in lippax(operator, CLIENTS, torch.cat([x, y]), rounds=ROUNDS, **options)]

    assert_path(LIPPAX(**of_job(**settings)), game, tmp_path, path, record=())
