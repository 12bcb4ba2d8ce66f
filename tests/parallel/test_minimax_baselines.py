"""Local-SGDA+, Momentum-Local-SGDA, FedSGDA+, FedSGDA-M and Fed-Norm-SGDA against plain loops: every option,
with noise, sets, cohorts and sample weights, and resumed.

Tolerance 1e-10 in float64 for the reason given in ``test_references``.
"""

import numpy as np
import pytest
import torch
from baselines import gradient_at
from games import Game, configuration, sizes, start_of, trace
from reference import minimax_baselines as plain
from resumed import assert_goes_on, assert_path

from mpifed.algorithms import (
    FedNormSGDA,
    FedNormSGDAPlus,
    FedSGDAM,
    FedSGDAPlus,
    LocalSGDAPlus,
    MomentumLocalSGDA,
    MomentumLocalSGDAPlus,
)
from mpifed.core.noise import Gaussian
from mpifed.core.sets import Ball
from mpifed.parallel.placement import Cohort
from mpifed.simulation.setup import default_dtype

pytestmark = pytest.mark.mpi

SEED, BATCH, NOISE, ROUNDS, CLIENTS = 1, 2, Gaussian(scale=0.3), 4, 5
RATES = dict(eta_x=0.05, eta_y=0.04)
GLOBAL = dict(gamma_x=0.06, gamma_y=0.03)
POWER = {"name": "power", "scale": 0.9, "offset": 1.0, "exponent": 0.5}
TAU = (1, 4, 2, 3, 1)


def constant(value):
    return lambda t: value


def power(scale):
    return lambda t: scale / (1 + t) ** 0.5


LOCAL = {name: constant(rate) for name, rate in RATES.items()}
MOMENTUM = dict(q=3, **RATES, beta_x=0.7, beta_y=0.4)
STORM = dict(alpha=0.3, beta=0.5)
WEIGHTS = {name: constant(weight) for name, weight in STORM.items()}
#: Method, then the reference and its settings.
CASES = {
    "Local-SGDA+": (
        LocalSGDAPlus(q=3, S=6, **RATES),
        (plain.local_sgda_plus, dict(q=3, S=6, **LOCAL)),
    ),
    "Local-SGDA+, schedules": (
        LocalSGDAPlus(q=3, S=9, eta_x=POWER | {"scale": 0.1}, eta_y=0.04),
        (plain.local_sgda_plus, dict(q=3, S=9, eta_x=power(0.1), eta_y=constant(0.04))),
    ),
    **{
        f"Momentum-Local-SGDA, {start} start": (
            MomentumLocalSGDA(**MOMENTUM, average_start=start == "averaged"),
            (
                plain.momentum_local_sgda,
                dict(**MOMENTUM, alpha=constant(1.0), average_start=start == "averaged"),
            ),
        )
        for start in ("local", "averaged")
    },
    "Momentum-Local-SGDA, schedule": (
        MomentumLocalSGDA(**MOMENTUM, alpha=POWER),
        (plain.momentum_local_sgda, dict(**MOMENTUM, alpha=power(0.9), average_start=False)),
    ),
    "Momentum-Local-SGDA+": (
        MomentumLocalSGDAPlus(S=6, **MOMENTUM, alpha=0.8),
        (plain.momentum_local_sgda, dict(S=6, **MOMENTUM, alpha=constant(0.8), average_start=False)),
    ),
    "FedSGDA+": (
        FedSGDAPlus(K=3, S=2, **RATES, gamma_x=1.3, gamma_y=0.9),
        (plain.fed_sgda_plus, dict(K=3, S=2, **RATES, gamma_x=1.3, gamma_y=0.9)),
    ),
    **{
        f"FedSGDA-M, {order}, {start} start": (
            FedSGDAM(Q=3, **RATES, **STORM, order=order, average_start=start == "averaged"),
            (
                plain.fed_sgda_m,
                dict(Q=3, **LOCAL, **WEIGHTS, order=order, average_start=start == "averaged"),
            ),
        )
        for order in ("stem", "after")
        for start in ("averaged", "local")
    },
    "FedSGDA-M, schedules": (
        FedSGDAM(
            Q=2, eta_x=POWER | {"scale": 0.1}, eta_y=0.04, alpha={"name": "squared", "c": 50}, beta=POWER
        ),
        (
            plain.fed_sgda_m,
            dict(
                Q=2, eta_x=power(0.1), eta_y=constant(0.04), alpha=lambda t: 50 * power(0.1)(t) ** 2,
                beta=power(0.9), order="stem",
            ),
        ),
    ),
    "Fed-Norm-SGDA": (
        FedNormSGDA(tau=TAU, **RATES, **GLOBAL, a=0.8),
        (plain.fed_norm_sgda, dict(tau=TAU, **RATES, **GLOBAL, a=lambda j: 0.8**j)),
    ),
    "Fed-Norm-SGDA, equal steps": (
        FedNormSGDA(tau=3, **RATES, **GLOBAL, a=(0.5, 2.0, 1.0), tau_eff=2.5),
        (
            plain.fed_norm_sgda,
            dict(tau=[3] * CLIENTS, **RATES, **GLOBAL, a=(0.5, 2.0, 1.0).__getitem__, tau_eff=2.5),
        ),
    ),
    "Fed-Norm-SGDA+": (
        FedNormSGDAPlus(tau=TAU, S=2, **RATES, **GLOBAL),
        (plain.fed_norm_sgda, dict(tau=TAU, S=2, **RATES, **GLOBAL, a=constant(1.0))),
    ),
}  # fmt: skip
#: Those that a sampled cohort may run.
SAMPLED = [name for name, (method, _) in CASES.items() if method.partial_participation]
#: One of a kind for the dearer tests.
RESUMED = [name for name in CASES if "start" not in name and "schedule" not in name] + [
    "Momentum-Local-SGDA, local start",
    "FedSGDA-M, stem, averaged start",
    "FedSGDA-M, after, local start",
]
#: Case, cohort, weights, clients that are stepped together.
SAMPLING = [
    *((name, None, "uniform", 1) for name in CASES),
    *((name, None, "samples", "all") for name in CASES),
    *((name, 2, "uniform", 2) for name in SAMPLED),
    *((name, 3, "samples", "all") for name in SAMPLED),
]


def job(name, out, ball=None, **changes):
    changes = {"reduction": "exact", "watchdog": 0, "eval_every": 10**6} | changes
    problem = Game(clients=CLIENTS, ball=ball)
    return configuration(
        CASES[name][0], problem, out, seed=SEED, rounds=ROUNDS, batch_size=BATCH, noise=NOISE, **changes
    )


def expected(name, cohort=None, weights="uniform", **options):
    """The points after every round, ``[rounds, d]``, by plain loops."""
    game, (reference, settings) = Game(clients=CLIENTS), CASES[name][1]
    with default_dtype(torch.float64):  # as a float64 run prepares it
        game.prepare(SEED)
    path = reference(
        gradient_at(game, SEED, BATCH, NOISE),
        *start_of(game, SEED),
        [Cohort.draw(SEED, r, CLIENTS, cohort or CLIENTS).tolist() for r in range(1, ROUNDS + 1)],
        sizes(game).tolist() if weights == "samples" else [1.0] * CLIENTS,
        **settings,
        **options,
    )
    return np.array([torch.cat(point).numpy() for point in path])


@pytest.mark.dealt
@pytest.mark.parametrize("name, cohort, weights, group", SAMPLING)
def test_plain_loops(comm, out, name, cohort, weights, group):
    config = job(name, out, group=group, cohort=cohort, weights=weights, reduction="fused")
    assert_path(comm, config, lambda: expected(name, cohort, weights))


@pytest.mark.dealt
@pytest.mark.parametrize("name", CASES)
def test_a_binding_set(comm, out, name):
    """y is projected in every local step, Fed-Norm-SGDA's at the server alone."""
    path, _ = trace(job(name, out, ball=0.15, group=2), comm)
    if comm.rank == 0:
        bound = expected(name, project=Ball(0.15))
        np.testing.assert_allclose(path, bound, rtol=1e-10, atol=1e-10)
        assert np.abs(bound - expected(name)).max() > 1e-3


@pytest.mark.dealt
@pytest.mark.parametrize("name", RESUMED)
def test_resumption(comm, out, name):
    """Resumed after round 2: the same bits, which are those of one process, and the plain loops' path."""
    changes = dict(group=1 + RESUMED.index(name) % 2, weights="samples", checkpoint_every=2, keep=9)
    changes["cohort"] = 3 if name in SAMPLED else None
    config = job(name, out, **changes)
    assert_goes_on(comm, out, config, lambda: expected(name, changes["cohort"], "samples"))
