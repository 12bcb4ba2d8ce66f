"""The methods that others compare with against plain loops, with cohorts, sample weights, sets, resumed.

Tolerance 1e-10 in float64 for the reason given in ``test_references``.
"""

import numpy as np
import pytest
import torch
from baselines import FIXED, LARGE, Half, baseline, gradient_at
from bounded import Bounded
from games import Game, configuration, sizes, start_of, trace, trace_file
from reference import baselines, cross_device
from resumed import assert_goes_on, assert_path

from mpifed import run
from mpifed.core.noise import Gaussian
from mpifed.core.participation import Participation
from mpifed.core.sets import Ball, Box
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.placement import Cohort
from mpifed.simulation.setup import default_dtype

pytestmark = pytest.mark.mpi

SEED, BATCH, NOISE, ROUNDS, CLIENTS = 1, 2, Gaussian(scale=0.3), 4, 5
CDMA, NEST = dict(K=3, eta_x=0.05, eta_y=0.04), dict(tau=2, alpha=0.04, beta=0.06)
#: Another cohort for the second phase of CDMA, or for every call of FedNest.
FRESH = dict(fresh_cohort=True)
#: Name → settings.
SETTINGS = {
    "fedavg": [dict(K=3, eta=0.05, eta_g=1.3)],
    "cdma_nc": [CDMA],
    "cdma_one": [CDMA | {"large_batch": LARGE}, CDMA | FRESH, CDMA],
    "cdma_ada": [
        CDMA | dict(alpha=0.95, a=0.2, b=0.9),
        CDMA | FRESH | dict(alpha=5.0, a=1 / 3),
        CDMA | FRESH | dict(alpha=0.95, a=1 / 3, large_batch=LARGE),
    ],
    "fednest": [
        *(NEST | dict(T=T) for T in (1, 3)),
        NEST | dict(T=2, tau_outer=4, inner="sgd"),
        NEST | FRESH | dict(T=2, tau_outer=1, outer="sgd"),
        NEST | FRESH | dict(T=2),
    ],
    "lfednest": [NEST | dict(T=1), NEST | FRESH | dict(T=2)],
    "flra": [dict(tau=3, eta_1=0.05, eta_2=0.04)],
    "local_amsgrad": [dict(K=3, eta_x=0.03, eta_y=0.02, beta_1=0.7, beta_2=0.8, epsilon=0.05)],
}
METHODS = [(name, settings) for name, cases in SETTINGS.items() for settings in cases]
#: Cohort and weights.
SAMPLING = [(None, "uniform"), (2, "uniform"), (3, "samples")]
WITHOUT_Y = ("fedavg",)

methods = pytest.mark.parametrize("name, settings", METHODS)
sampling = pytest.mark.parametrize("cohort, weights", SAMPLING, ids=lambda v: str(v))
groups = pytest.mark.parametrize("group", [1, 2, "all"])


def job(name, settings, out, problem=None, rounds=ROUNDS, **changes):
    problem = problem or (Half if name in WITHOUT_Y else Game)(clients=CLIENTS)
    changes = {"reduction": "exact", "watchdog": 0, "eval_every": 10**6} | changes
    method = baseline(name, **settings)
    config = configuration(method, problem, out, seed=SEED, rounds=rounds, batch_size=BATCH, **changes)
    return config.model_copy(update={"record": ("x",) if name in WITHOUT_Y else ("x", "y")})


def expected(name, settings, cohort, weights, cohorts=None, **options):
    """The points after every round, ``[rounds, d]``, by plain loops; ``cohorts`` in place of drawn ones."""
    game = Game(clients=CLIENTS)
    with default_dtype(torch.float64):  # as a float64 run prepares it
        game.prepare(SEED)
    x, y = start_of(game, SEED)
    settings = dict(settings)
    number = settings.get("T", 1) + 1 if settings.pop("fresh_cohort", False) else 1
    cohorts = cohorts or [
        [Cohort.draw(SEED, r, CLIENTS, cohort or CLIENTS, one).tolist() for one in range(number)]
        for r in range(1, ROUNDS + 1)
    ]
    path = getattr(cross_device if hasattr(cross_device, name) else baselines, name)(
        gradient_at(game, SEED, BATCH, NOISE),
        x,
        FIXED if name in WITHOUT_Y else y,
        cohorts,
        sizes(game).tolist() if weights == "samples" else [1.0] * CLIENTS,
        **settings,
        **options,
    )
    return np.array([torch.cat(point).numpy() for point in path])


@pytest.mark.dealt
@methods
@sampling
@groups
def test_plain_loops(comm, out, name, settings, cohort, weights, group):
    cohort = cohort if name != "local_amsgrad" else None  # which has all clients
    changes = dict(group=group, cohort=cohort, weights=weights, reduction="fused")
    config = job(name, settings, out, **changes)
    assert_path(comm, config, lambda: expected(name, settings, cohort, weights))


#: A cohort for each call of FedNest with two inner calls, and for both phases of CDMA, of each round.
PRESCRIBED = [[[0], [1, 4], [2, 3]], [[2, 1], [0], [3]], [[4, 3], [4], [0, 1, 2]], [[1], [2], [0, 4]]]


@pytest.mark.dealt
@groups
@pytest.mark.parametrize("name", ["fednest", "lfednest", "cdma_one"])
def test_prescribed_cohorts_of_fresh_phases(comm, out, name, group):
    settings = FRESH | (CDMA if name == "cdma_one" else NEST | dict(T=2))
    cohorts = [one[: 2 if name == "cdma_one" else 3] for one in PRESCRIBED]
    rows = [(r, j, k) for r, one in enumerate(cohorts, 1) for j, each in enumerate(one) for k in each]
    file = trace_file(out, comm, rows, "round,cohort,client")
    config = job(name, settings, f"{out}/run", group=group, weights="samples")
    law = {"availability": {"name": "trace", "file": file}, "weights": "samples"}
    config = config.model_copy(update={"participation": Participation(**law)})
    assert_path(comm, config, lambda: expected(name, settings, None, "samples", cohorts))


#: Sets that bind from the first round on.
SETS = Box(-0.45, 0.3), Ball(0.1)


@pytest.mark.dealt
@pytest.mark.parametrize("name, settings", [one for one in METHODS if "cdma" in one[0] or "nest" in one[0]])
@groups
def test_binding_sets(comm, out, name, settings, group):
    """Both blocks are projected in every local step; either set alone would give other points."""
    problem = Bounded(clients=CLIENTS, set_x=SETS[0], set_y=SETS[1])
    path, _ = trace(job(name, settings, out, problem, group=group, cohort=3, weights="samples"), comm)
    if comm.rank == 0:
        wanted = expected(name, settings, 3, "samples", project=SETS)
        np.testing.assert_allclose(path, wanted, rtol=1e-10, atol=1e-10)
        for project in ((cross_device.free, SETS[1]), (SETS[0], cross_device.free)):
            assert np.abs(wanted - expected(name, settings, 3, "samples", project=project)).max() > 1e-3


@pytest.mark.dealt
@pytest.mark.parametrize("name", SETTINGS)
@groups
def test_resumption(comm, out, name, group):
    """Resumed after round 2: the same bits, which are those of one process, and the plain loops' path."""
    settings, cohort = SETTINGS[name][-1], None if name == "local_amsgrad" else 3
    changes = dict(group=group, cohort=cohort, weights="samples", checkpoint_every=2, keep=9)
    config = job(name, settings, out, **changes)
    assert_goes_on(comm, out, config, lambda: expected(name, settings, cohort, "samples"))


@groups
def test_every_client_its_own_y(comm, out, group):
    """Starts at the problem's point; metrics see the clients' average; the bits are those of one process."""
    settings = SETTINGS["flra"][0]
    start = start_of(Game(clients=CLIENTS), SEED)
    still = run(job("flra", settings | {"eta_2": 0.0}, f"{out}/still", group=group), comm)
    # An average of five equal numbers may differ from them in the last bit.
    np.testing.assert_allclose(still.point["y"], start[1], rtol=1e-15)
    result = run(job("flra", settings, f"{out}/all", cohort=2, group=group), comm)
    if comm.rank == 0:
        last = expected("flra", settings, 2, "uniform")[-1]
        assert result.metrics["norm"] == pytest.approx(np.linalg.norm(last), rel=1e-10)
        alone = run(job("flra", settings, f"{out}/alone", cohort=2, group=group), SerialComm())
        for block in "xy":
            np.testing.assert_array_equal(alone.point[block], result.point[block])
