"""The methods compared with the boxes as printed: every option, looped and vectorised, on any number of
ranks.

Tolerance 1e-10 in float64: both sides do the same few hundred operations on numbers of about 1 in another
order, which differ by some 1e-15, and the game amplifies a difference by less than 1e3 over these rounds. For
Newton-Schulz 1e-7: its quintic multiplies a rounding error by up to 3.4 a step, and its result feeds the next
local step.
"""

from functools import partial

import drawn
import numpy as np
import pytest
from bounded import Bounded
from fields import Chain, reference_chain
from games import Game, configuration, reference_gradient, sizes, start_of
from reference import matrices as plain
from reference.fess_gda import fess_gda, fsgda, smoothed_gda
from reference.fgda import fgda
from reference.heavy_tailed import fed_nsgda_m
from reference.local_sgda import local_sgda
from reference.mfcgd import mfcgd
from reference.smoothed_alternating import smoothed_alternating_gda
from resumed import assert_path, flat

from mpifed import Blocks
from mpifed.algorithms import (
    FESSGDA,
    FGDA,
    FSGDA,
    MFCGD,
    AdaFGDA,
    AdaMFCGD,
    FedMuonDA,
    FedNSGDAM,
    FedSGDAClip,
    LocalSGDA,
    SmoothedGDA,
)
from mpifed.core.adaptive import MATRICES
from mpifed.core.noise import Gaussian
from mpifed.core.sets import Ball, Box
from mpifed.core.streams import generator

pytestmark = pytest.mark.mpi

SEED, BATCH, NOISE, ROUNDS = 1, 2, Gaussian(scale=0.3), 3
EXECUTIONS = [dict(group=group, reduction=one) for group in (1, "all") for one in ("fused", "exact")]
executions = pytest.mark.parametrize(
    "execution", EXECUTIONS, ids=lambda one: "-".join(map(str, one.values()))
)
SYNC = ["stem", "local", "mean_after", "box"]
FIRST = ["rule", "identity", "rho"]
#: Name of a matrix generator → its settings and its reference.
GENERATORS = {
    "identity": ({}, plain.Identity),
    "adam": ({"varrho": 0.8, "rho": 0.3}, lambda: plain.Adam(0.3, 0.8)),
    "adam corrected": (
        {"varrho": 0.8, "rho": 0.3, "bias_correction": True},
        lambda: plain.Adam(0.3, 0.8, True),
    ),
    "adabelief": ({"varrho": 0.8, "rho": 0.3}, lambda: plain.AdaBelief(0.3, 0.8)),
    "adabelief initial": (
        {"varrho": 0.8, "rho": 0.3, "belief_reference": "initial"},
        lambda: plain.AdaBelief(0.3, 0.8, "initial"),
    ),
    "amsgrad": ({"varrho": 0.8, "rho": 0.3}, lambda: plain.AMSGrad(0.3, 0.8)),
    "norm": ({"vartheta": 0.7, "rho": 0.3}, lambda: plain.Norm(0.3, 0.7)),
    "norm root": ({"vartheta": 0.7, "rho": 0.3, "root": True}, lambda: plain.Norm(0.3, 0.7, True)),
    "adagrad_norm": ({"rho": 0.3}, lambda: plain.AdaGradNorm(0.3)),
    "barzilai_borwein": ({"rho": 0.3}, lambda: plain.BarzilaiBorwein(0.3)),
}


def job(method, problem, out, **settings):
    settings = dict(rounds=ROUNDS, batch_size=BATCH, noise=NOISE) | settings
    return configuration(method, problem, out, seed=SEED, **settings)


def gradient_of(game, steps):
    return reference_gradient(game, SEED, steps, BATCH, NOISE)


def cohorts_of(clients, size):
    return [drawn.cohort(SEED, r, clients, size or clients).tolist() for r in range(1, ROUNDS + 1)]


def assert_binding(expected, **sets):
    """Return the path ``expected(**sets)``, from which the path without any one of the sets differs."""
    path = expected(**sets)
    for name, own in sets.items():
        assert own is None or np.abs(path[-1] - expected(**sets | {name: None})[-1]).max() > 1e-3, name
    return path


def constant(value):
    return lambda t: value


FGDA_SCHEDULES = {"eta": 0.9, "alpha": {"name": "power", "scale": 0.7}, "beta": 0.4}
FGDA_FUNCTIONS = dict(eta=constant(0.9), alpha=lambda t: 0.7 / t ** (1 / 3), beta=constant(0.4))


def check_fgda(
    comm,
    out,
    q,
    matrix,
    sync,
    first="rule",
    *,
    project="mixed",
    estimators="local",
    ball=None,
    weights="uniform",
    clients=3,
    **execution,
):
    """Compare AdaFGDA, or FGDA if the matrix is ``None``."""
    settings, counterpart = GENERATORS[matrix or "identity"]
    options = dict(q=q, gamma=0.05, lam=0.04, sync_estimator=sync, first_estimators=estimators)
    method = FGDA(**options, **FGDA_SCHEDULES)
    if matrix:
        own = dict(matrix=MATRICES[matrix.split()[0]](**settings), first_matrix=first, project_y=project)
        method = AdaFGDA(**options, **FGDA_SCHEDULES, **own)
    game = Game(clients=clients, ball=ball)

    def expected(projection):
        own = sizes(game).tolist() if weights == "samples" else None
        theirs = dict(matrix=counterpart, first_matrix=first, project=projection, project_where=project)
        start = start_of(game, SEED)
        return flat(
            fgda(
                gradient_of(game, q), clients, *start, rounds=ROUNDS, weights=own, **options, **theirs,
                **FGDA_FUNCTIONS,
            )
        )  # fmt: skip

    config = job(method, game, out, weights=weights, **execution)
    path = partial(assert_binding, expected, projection=ball and Ball(ball))
    assert_path(comm, config, path, moves=1e-6)  # steps with some matrices are short


@pytest.mark.dealt
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("sync", SYNC)
@pytest.mark.parametrize("matrix", GENERATORS)
def test_every_matrix_and_reading(comm, out, matrix, sync, first):
    check_fgda(comm, out, 3, matrix, sync, first)


@pytest.mark.dealt
@executions
@pytest.mark.parametrize("matrix", ["adabelief initial", None])
@pytest.mark.parametrize("sync", SYNC)
def test_fgda_executions(comm, out, sync, matrix, execution):
    check_fgda(comm, out, 3, matrix, sync, clients=5, **execution)


@pytest.mark.dealt
@pytest.mark.filterwarnings("ignore:sync_estimator = 'box' with q = 1")
@pytest.mark.parametrize("matrix", GENERATORS)
@pytest.mark.parametrize(
    "sync, first", [("stem", "rule"), ("stem", "identity"), ("box", "rule"), ("mean_after", "rho")]
)
def test_one_step_rounds(comm, out, matrix, sync, first):
    check_fgda(comm, out, 1, matrix, sync, first)


@pytest.mark.dealt
@pytest.mark.parametrize(
    "options",
    [
        dict(weights="samples"),
        dict(weights="samples", estimators="average"),
        dict(project="mixed", ball=0.15),
        dict(project="step", ball=0.15),
    ],
    ids=str,
)
@pytest.mark.parametrize("sync", SYNC)
def test_weights_first_estimators_and_projections(comm, out, sync, options):
    check_fgda(comm, out, 3, "adam", sync, **options)


@pytest.mark.dealt
@executions
@pytest.mark.parametrize(
    "cohort, weights, ball, clients",
    [
        (None, "uniform", None, 3),
        (2, "uniform", None, 5),
        (3, "samples", 0.15, 5),
        (None, "samples", 0.15, 2),
        (1, "samples", None, 5),
    ],
)
def test_local_sgda(comm, out, execution, cohort, weights, ball, clients):
    method = LocalSGDA(
        q=3, eta_x={"name": "steps", "value": 0.05, "boundaries": [4], "factor": 0.5}, eta_y=0.04
    )
    game, steps = Game(clients=clients, ball=ball), dict(eta_x=lambda t: 0.05 if t <= 4 else 0.025)

    def expected(project):
        own = sizes(game).tolist() if weights == "samples" else None
        options = dict(project=project, weights=own, cohorts=cohorts_of(clients, cohort), **steps)
        start = start_of(game, SEED)
        return flat(
            local_sgda(gradient_of(game, 3), clients, *start, q=3, rounds=3, eta_y=constant(0.04), **options)
        )

    config = job(method, game, out, cohort=cohort, weights=weights, **execution)
    assert_path(comm, config, lambda: assert_binding(expected, project=ball and Ball(ball)))


HEAVY = dict(p=3, eta_x=0.03, eta_y=0.02, gamma_x=0.1, gamma_y=0.07, beta_x=0.7, beta_y=0.4)
#: Method, its settings, and those of the reference.
DIRECTIONS = {
    "normalize": (FedNSGDAM, {}, dict(direction="normalize")),
    "normalize tensors": (
        FedNSGDAM,
        {"norm_over": "tensor"},
        dict(direction="normalize", norm_over="tensor"),
    ),
    "clip": (FedSGDAClip, {"tau": 1.0}, dict(direction="clip", tau=1.0)),
    "clip tensors": (
        FedSGDAClip,
        {"tau": 0.8, "norm_over": "tensor"},
        dict(direction="clip", tau=0.8, norm_over="tensor"),
    ),
    "svd": (FedMuonDA, {}, dict(direction="orthogonalize", svd="svd")),
    **{
        name: (FedMuonDA, {"orthogonalize": name}, dict(direction="orthogonalize", svd=name))
        for name in ("newton_schulz", "newton_schulz_cubic")
    },
}


class MatrixGame(Game):
    """The game with matrix parameters, which orthogonalisation treats differently from vectors."""

    def variables(self):
        return Blocks(x={"u": (2, 1), "v": (1,)}, y={"y": (1, 2)})

    def loss(self, x, y, batch):
        return super().loss({"u": x["u"].reshape(-1), "v": x["v"]}, {"y": y["y"].reshape(-1)}, batch)

    def metrics(self, x, y, predictions):
        return {}


@pytest.mark.dealt
@pytest.mark.parametrize("first_round", ["beta_one", "zero", "gradient"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_heavy_tailed(comm, out, direction, first_round, clients=3, **execution):
    cls, ours, theirs = DIRECTIONS[direction]
    game, shapes = Game(clients=clients), dict(shapes_x=[(2,), (1,)], shapes_y=[(2,)])
    if cls is FedMuonDA:
        game, shapes = MatrixGame(clients=clients), dict(shapes_x=[(2, 1), (1,)], shapes_y=[(1, 2)])

    def expected():
        options = dict(rounds=ROUNDS, first_round=first_round, **HEAVY, **shapes, **theirs)
        states = fed_nsgda_m(gradient_of(game, HEAVY["p"]), clients, *start_of(game, SEED), **options)
        return flat((state["x"], state["y"]) for state in states)

    config = job(cls(**HEAVY, first_round=first_round, **ours), game, out, **execution)
    assert_path(comm, config, expected, 1e-7 if "newton" in direction else 1e-10)


@pytest.mark.dealt
@executions
@pytest.mark.parametrize("direction", ["normalize tensors", "clip", "svd", "newton_schulz"])
def test_heavy_tailed_executions(comm, out, direction, execution):
    test_heavy_tailed(comm, out, direction, "gradient", clients=5, **execution)


@pytest.mark.dealt
@executions
@pytest.mark.parametrize(
    "smoothing, cohort, ball",
    [
        (dict(p=0.0, beta=0.4), None, None),
        (dict(p=0.7, beta=0.4), None, 0.15),
        (dict(p=0.7, beta=0.4), 2, 0.15),
        (dict(p=2.0, beta=0.4), 3, None),
        ({}, None, 0.15),
        ({}, 2, None),
        ({"alternating": True}, 2, 0.15),
        ({"p": 0.7, "beta": 0.4, "alternating": True}, None, 0.15),
    ],
)
def test_fess_gda_and_fsgda(comm, out, execution, smoothing, cohort, ball):
    rates = dict(K=3, eta_xl=0.03, eta_yl=0.02, eta_xg=1.3, eta_yg=0.9) | smoothing
    game, cls, reference = Game(clients=4, ball=ball), FSGDA, fsgda
    if "p" in smoothing:
        cls, reference = FESSGDA, fess_gda

    def expected(project_y):
        options = dict(rounds=ROUNDS, cohorts=cohorts_of(4, cohort), project_y=project_y)
        path = reference(gradient_of(game, 3), 4, *start_of(game, SEED), **options, **rates)
        return flat(point[:2] for point in path)

    config = job(cls(**rates), game, out, cohort=cohort, **execution)
    assert_path(comm, config, lambda: assert_binding(expected, project_y=ball and Ball(ball)))


@pytest.mark.parametrize("ball", [None, 0.15])
def test_smoothed_gda(comm, out, ball):
    """One step per round on the exact mean gradient."""
    game, rates = Game(clients=3, ball=ball), dict(eta_x=0.05, eta_y=0.04, p=0.6, beta=0.3)
    gradient = reference_gradient(game, SEED, 1, 0, None)

    def full(x, y):
        parts = [gradient(k, x, y, 1) for k in range(3)]
        return sum(gx for gx, _ in parts) / 3, sum(gy for _, gy in parts) / 3

    def expected(project_y):
        path = smoothed_gda(full, *start_of(game, SEED), rounds=ROUNDS, project_y=project_y, **rates)
        return flat(point[:2] for point in path)

    config = job(SmoothedGDA(**rates), game, out, batch_size=0, noise=0)
    assert_path(comm, config, lambda: assert_binding(expected, project_y=ball and Ball(ball)))


@pytest.mark.dealt
@executions
@pytest.mark.parametrize(
    "sets, p, beta, weights, oracle",
    [
        ("", 0.0, 0.5, "uniform", (BATCH, NOISE)),
        ("", 0.7, 0.3, "samples", (BATCH, NOISE)),
        ("xy", 0.7, 0.3, "uniform", (BATCH, NOISE)),
        ("x", 2.0, 0.9, "samples", (BATCH, NOISE)),
        ("y", 0.7, 0.3, "uniform", (0, None)),
    ],
    ids=["plain", "samples", "sets", "a set of x", "exact gradients"],
)
def test_alternating_smoothed_gda(comm, out, execution, sets, p, beta, weights, oracle):
    set_x, set_y = Box(-0.45, 0.3) if "x" in sets else None, Ball(0.1) if "y" in sets else None
    game = Bounded(clients=5, set_x=set_x, set_y=set_y)
    rates, (batch_size, noise) = dict(eta_x=0.15, eta_y=0.3, p=p, beta=beta), oracle

    def expected(**project):
        gradient = reference_gradient(game, SEED, 1, batch_size, noise)
        own = sizes(game).tolist() if weights == "samples" else None
        start = start_of(game, SEED)
        path = smoothed_alternating_gda(gradient, 5, *start, rounds=4, weights=own, **project, **rates)
        return flat(point[:2] for point in path)

    method = SmoothedGDA(**rates, alternating=True)
    execution = execution | dict(rounds=4, weights=weights, batch_size=batch_size, noise=noise)
    if not batch_size:  # clients have different numbers of rows
        execution["group"] = 1
    assert_path(
        comm,
        job(method, game, out, **execution),
        lambda: assert_binding(expected, project_x=set_x, project_y=set_y),
    )


WEIGHTS = dict(alpha=0.3, beta=0.6, varrho=0.45)


def check_chain(comm, out, method, q, execution, clients=3, weights="uniform", **options):
    problem = Chain(clients=clients)
    momenta = {name: constant(value) for name, value in WEIGHTS.items()}

    def expected():
        if weights == "samples":
            options["weights"] = [len(rows) for rows, _ in problem.rows]
        values = reference_chain(problem, SEED, q, BATCH, NOISE)
        x1, steps = problem.initial(generator(SEED, "initial"))["x"], dict(gamma=0.06, eta=constant(0.9))
        path = mfcgd(*values, clients, x1, q=q, rounds=ROUNDS, **steps, **momenta, **options)
        return flat((x,) for x in path)

    assert_path(comm, job(method, problem, out, weights=weights, **execution), expected)


@pytest.mark.dealt
@pytest.mark.parametrize("matrix", ["identity", "adam", "adabelief", "norm", "norm root"])
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("q", [1, 3])
def test_adamfcgd(comm, out, matrix, first, q):
    settings, counterpart = GENERATORS[matrix]
    own = MATRICES[matrix.split()[0]](**settings)
    method = AdaMFCGD(q=q, gamma=0.06, eta=0.9, first_matrix=first, matrix=own, **WEIGHTS)
    check_chain(comm, out, method, q, {}, matrix=counterpart, first_matrix=first)


@pytest.mark.dealt
@executions
@pytest.mark.parametrize("bounds, weights", [({}, "samples"), ({"C_g": 0.8, "C_f": 0.5}, "uniform")])
def test_mfcgd(comm, out, execution, bounds, weights):
    method = MFCGD(q=3, gamma=0.06, eta=0.9, **WEIGHTS, **bounds)
    check_chain(comm, out, method, 3, execution, clients=4, weights=weights, **bounds)
