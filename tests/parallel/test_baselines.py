"""The methods of ``tests/plugins`` against plain loops, with cohorts and sample weights, and resumed.

Tolerance 1e-10 in float64 for the reason given in ``test_references``.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from baselines import FIXED, Half, gradient_at, plugin
from games import Game, configuration, sizes, start_of, trace
from reference import baselines as plain

from mpifed import resume, run
from mpifed.core.noise import Gaussian
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.placement import Cohort
from mpifed.simulation.preparation import default_dtype

pytestmark = pytest.mark.mpi

SEED, BATCH, NOISE, ROUNDS, CLIENTS = 1, 2, Gaussian(scale=0.3), 4, 5
#: File → settings.
SETTINGS = {
    "fedavg": [dict(K=3, eta=0.05, eta_g=1.3)],
    "scaffold": [dict(K=3, eta=0.05, eta_g=0.9)],
    "codasca": [dict(K=3, eta=0.05, pull=0.7, stage=2, eta_g=1.1)],
    "fednest": [dict(T=T, tau=2, alpha=0.04, beta=0.06) for T in (1, 2, 3)],
    "cdma_ada": [dict(K=3, eta=(0.05, 0.04), alpha=0.95, a=1 / 3)],
    "flra": [dict(K=3, eta_x=0.05, eta_y=0.04)],
}
METHODS = [(name, settings) for name, cases in SETTINGS.items() for settings in cases]
#: Cohort and weights.
SAMPLING = [(None, "uniform"), (2, "uniform"), (3, "samples")]
WITHOUT_Y = ("fedavg", "scaffold")

methods = pytest.mark.parametrize("name, settings", METHODS)
sampling = pytest.mark.parametrize("cohort, weights", SAMPLING, ids=lambda v: str(v))
groups = pytest.mark.parametrize("group", [1, 2, "all"])


def job(name, settings, out, rounds=ROUNDS, **changes):
    problem = Half(clients=CLIENTS) if name in WITHOUT_Y else Game(clients=CLIENTS)
    changes = {"reduction": "exact", "watchdog": 0, "eval_every": 10**6} | changes
    config = configuration(
        plugin(name, **settings), problem, out, seed=SEED, rounds=rounds, batch_size=BATCH, **changes
    )
    return config.model_copy(update={"record": ("x",) if name in WITHOUT_Y else ("x", "y")})


def expected(name, settings, cohort, weights):
    """The points after every round, ``[rounds, d]``, by plain loops."""
    game = Game(clients=CLIENTS)
    with default_dtype(torch.float64):  # as a float64 run prepares it
        game.prepare(SEED)
    x, y = start_of(game, SEED)
    phases = (0, 1) if name == "cdma_ada" else (0,)
    cohorts = [
        [Cohort.draw(SEED, r, CLIENTS, cohort or CLIENTS, number).tolist() for number in phases]
        for r in range(1, ROUNDS + 1)
    ]
    path = getattr(plain, name)(
        gradient_at(game, SEED, BATCH, NOISE),
        x,
        FIXED if name in WITHOUT_Y else y,
        cohorts,
        sizes(game).tolist() if weights == "samples" else [1.0] * CLIENTS,
        **settings,
    )
    return np.array([torch.cat(point).numpy() for point in path])


def iterates(result) -> np.ndarray:
    return np.concatenate(list(result.iterates.values()), axis=1)


@methods
@sampling
@groups
def test_plain_loops(comm, out, name, settings, cohort, weights, group):
    changes = dict(group=group, cohort=cohort, weights=weights, reduction="fused")
    path, _ = trace(job(name, settings, out, **changes), comm)
    if comm.rank == 0:
        wanted = expected(name, settings, cohort, weights)
        np.testing.assert_allclose(path, wanted, rtol=1e-10, atol=1e-10)
        assert (np.abs(np.diff(wanted, axis=0)).max(0) > 1e-3).all()  # every number moves


@pytest.mark.parametrize("name", SETTINGS)
@groups
def test_resumption(comm, out, name, group):
    """Resumed after round 2: the same bits, which are those of one process, and the plain loops' path."""
    settings = SETTINGS[name][-1]
    changes = dict(group=group, cohort=3, weights="samples", checkpoint_every=2, keep=9)
    whole = run(job(name, settings, out, **changes), comm)
    if comm.rank == 0:
        alone, _ = trace(job(name, settings, out, **changes), SerialComm())
        np.testing.assert_array_equal(iterates(whole), alone)
        np.testing.assert_allclose(alone, expected(name, settings, 3, "samples"), rtol=1e-10, atol=1e-10)
        Path(out, "part").mkdir()
        shutil.copy(f"{out}/checkpoint-00000002.h5", f"{out}/part")
    comm.barrier()
    part = resume(f"{out}/part", comm=comm)
    if comm.rank == 0:
        np.testing.assert_array_equal(iterates(part), iterates(whole))


@groups
def test_every_client_its_own_y(comm, out, group):
    """Starts at the problem's point; metrics see the clients' average; the bits are those of one process."""
    settings = SETTINGS["flra"][0]
    start = start_of(Game(clients=CLIENTS), SEED)
    still = run(job("flra", settings | {"eta_y": 0.0}, f"{out}/still", group=group), comm)
    # An average of five equal numbers may differ from them in the last bit.
    np.testing.assert_allclose(still.point["y"], start[1], rtol=1e-15)
    result = run(job("flra", settings, f"{out}/all", cohort=2, group=group), comm)
    if comm.rank == 0:
        last = expected("flra", settings, 2, "uniform")[-1]
        assert result.metrics["norm"] == pytest.approx(np.linalg.norm(last), rel=1e-10)
        alone = run(job("flra", settings, f"{out}/alone", cohort=2, group=group), SerialComm())
        for block in "xy":
            np.testing.assert_array_equal(alone.point[block], result.point[block])
