"""Methods with control variates, stages and servers against plain loops: cohorts, weights, sets, resumed.

Tolerance 1e-10 in float64 for the reason given in ``test_references``.
"""

import numpy as np
import pytest
import torch
from baselines import FIXED, Half, gradient_at
from bounded import Bounded
from games import Game, configuration, sizes, start_of, trace
from reference import variates as plain
from reference.fedopt import fedopt
from resumed import assert_goes_on, assert_path

from mpifed.algorithms import CODASCA, SAGDA, SCAFFOLD, CODAPlus, FedAvg
from mpifed.core.noise import Gaussian
from mpifed.core.sets import Ball, Box, Sets
from mpifed.parallel.placement import Cohort
from mpifed.simulation.setup import default_dtype

pytestmark = pytest.mark.mpi

#: Stages of 1, 2 and then 4 rounds; clients come back in the midst of a stage after missing its start.
SEED, BATCH, NOISE, ROUNDS, CLIENTS = 1, 2, Gaussian(scale=0.3), 5, 5
GLOBAL = dict(K=3, eta_xl=0.05, eta_yl=0.04, eta_xg=1.2, eta_yg=0.9)
STAGES = dict(K=3, eta=0.06, T=1, growth=2, decay=1.5, prox=1.3)
LOCAL = dict(K=3, eta={"name": "power", "scale": 0.1})
CASES = {
    "SAGDA, fresh": (SAGDA, Game, GLOBAL),
    "SAGDA, stored": (SAGDA, Game, GLOBAL | dict(variates="stored")),
    **{
        f"SCAFFOLD, {option}, {problem.__name__}": (
            SCAFFOLD,
            problem,
            dict(K=3, eta_l=0.05, eta_g=0.9, option=option),
        )
        for option in ("II", "I", "I_sample")
        for problem in (Half, Game)
    },
    "CODA+, last": (CODAPlus, Game, STAGES),
    "CODA+, average": (CODAPlus, Game, STAGES | dict(reference="average")),
    "CODA+, a ratio": (CODAPlus, Game, STAGES | dict(growth=1.6)),
    "CODA+, one stage": (CODAPlus, Game, dict(K=3, eta=0.05, T=9)),
    "CODASCA, last": (CODASCA, Game, STAGES | dict(eta_g=1.1)),
    "CODASCA, average": (CODASCA, Game, STAGES | dict(eta_g=0.9, reference="average")),
    "CODASCA, kept variates": (CODASCA, Game, STAGES | dict(keep_variates=True)),
    "FedAvg": (FedAvg, Half, LOCAL | dict(eta_g=1.3)),
    "FedAvg, momentum": (FedAvg, Half, LOCAL | dict(server={"name": "momentum", "beta": 0.7})),
    "FedAvg, adagrad": (FedAvg, Half, LOCAL | dict(eta_g=0.1, server="adagrad")),
    "FedAvg, adagrad with momentum": (
        FedAvg,
        Half,
        LOCAL | dict(eta_g=0.1, server={"name": "adagrad", "beta_1": 0.6, "tau": 0.2}),
    ),
    "FedAvg, adam": (FedAvg, Half, LOCAL | dict(eta_g=0.1, server="adam")),
    "FedAvg, yogi": (
        FedAvg,
        Half,
        LOCAL | dict(eta_g=0.1, server={"name": "yogi", "beta_1": 0.6, "beta_2": 0.8, "tau": 0.2}),
    ),
}
#: Cohort and weights.
SAMPLING = [(None, "uniform"), (2, "uniform"), (3, "samples")]
GROUPS = [1, 2, "all"]
#: One of each kind of record.
RESUMED = [
    "SAGDA, fresh",
    "SAGDA, stored",
    "SCAFFOLD, II, Half",
    "CODA+, average",
    "CODASCA, average",
    "CODASCA, kept variates",
    "FedAvg, yogi",
]


def job(name, out, problem=None, **changes):
    cls, kind, settings = CASES[name]
    changes = {"reduction": "exact", "watchdog": 0, "eval_every": 10**6} | changes
    config = configuration(
        cls(**settings),
        problem or kind(clients=CLIENTS),
        out,
        seed=SEED,
        rounds=ROUNDS,
        batch_size=BATCH,
        **changes,
    )
    return config.model_copy(update={"record": ("x",) if kind is Half else ("x", "y")})


def expected(name, cohort, weights, **options):
    """The points after every round, ``[rounds, d]``, by plain loops."""
    cls, kind, settings = CASES[name]
    game = Game(clients=CLIENTS)
    with default_dtype(torch.float64):  # as a float64 run prepares it
        game.prepare(SEED)
    x, y = start_of(game, SEED)
    grad = gradient_at(game, SEED, BATCH, NOISE)
    drawn = [Cohort.draw(SEED, r, CLIENTS, cohort or CLIENTS).tolist() for r in range(1, ROUNDS + 1)]
    weights = sizes(game).tolist() if weights == "samples" else [1.0] * CLIENTS
    if cls is FedAvg:
        server = settings.get("server", "average")
        server = server if isinstance(server, dict) else {"name": server}
        options |= {"server" if key == "name" else key: value for key, value in server.items()}
        path = fedopt(
            lambda k, x, key: grad(k, x, FIXED, key)[0], x, drawn, weights, K=3,
            eta=lambda t: 0.1 / t ** (1 / 3), eta_g=settings.get("eta_g", 1.0), **options,
        )  # fmt: skip
        return torch.stack(path).numpy()
    functions = {
        (SAGDA, Game): plain.sagda,
        (SCAFFOLD, Half): plain.scaffold,
        (SCAFFOLD, Game): plain.scaffold_minimax,
        (CODAPlus, Game): plain.coda_plus,
        (CODASCA, Game): plain.codasca,
    }
    path = functions[cls, kind](
        grad, x, FIXED if kind is Half else y, [[one] for one in drawn], weights, **settings, **options
    )
    return np.array([torch.cat(point).numpy() for point in path])


@pytest.mark.dealt
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cohort, weights", SAMPLING, ids=lambda v: str(v))
@pytest.mark.parametrize("group", GROUPS)
def test_plain_loops(comm, out, name, cohort, weights, group):
    config = job(name, out, group=group, cohort=cohort, weights=weights, reduction="fused")
    assert_path(comm, config, lambda: expected(name, cohort, weights))


#: Sets that bind from the first round on.
SETS = Box(-0.45, 0.3), Ball(0.1)


@pytest.mark.dealt
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[1] is Game])
@pytest.mark.parametrize("group", GROUPS)
def test_binding_sets(comm, out, name, group):
    """Both blocks are projected at the clients and at the server; either set alone gives other points."""
    cohort = None if CASES[name][0] is CODAPlus else 3
    problem = Bounded(clients=CLIENTS, set_x=SETS[0], set_y=SETS[1])
    path, _ = trace(job(name, out, problem, group=group, cohort=cohort), comm)
    if comm.rank == 0:
        wanted = expected(name, cohort, "uniform", project=SETS)
        np.testing.assert_allclose(path, wanted, rtol=1e-10, atol=1e-10)
        for project in ((plain.free, SETS[1]), (SETS[0], plain.free)):
            assert np.abs(wanted - expected(name, cohort, "uniform", project=project)).max() > 1e-3


@pytest.mark.dealt
@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("group", [1, "all"])
def test_resumption(comm, out, name, group):
    """Resumed after round 2, in the midst of a stage: the same bits, which are those of one process."""
    changes = dict(group=group, cohort=3, weights="samples", checkpoint_every=2, keep=9)
    assert_goes_on(comm, out, job(name, out, **changes), lambda: expected(name, 3, "samples"))


#: The solution lies outside, near 0.
BOX = Box(0.05, 0.6)


class HalfInABox(Half):
    """The minimisation with a set that binds."""

    def prepare(self, seed, data_dir=None):
        super().prepare(seed)
        self.sets = Sets(x=BOX)


@pytest.mark.parametrize("group", [1, "all"])
def test_fedavg_stays_in_a_set(comm, out, group):
    """At the clients, and at the server, whose step goes beyond their mean."""
    path, _ = trace(job("FedAvg", out, HalfInABox(clients=CLIENTS), cohort=3, group=group), comm)
    if comm.rank == 0:
        wanted = expected("FedAvg", 3, "uniform", project=BOX)
        np.testing.assert_allclose(path, wanted, rtol=1e-10, atol=1e-10)
