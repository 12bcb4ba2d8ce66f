"""The methods compared with the boxes as printed: every option, looped and vectorised, on any number of
ranks.

Tolerance 1e-10 in float64: both sides do the same few hundred operations on numbers of about 1 in another
order, which differ by some 1e-15, and the game amplifies a difference by less than 1e3 over these rounds.
"""

import itertools

import drawn
import numpy as np
import pytest
import torch
from games import Game, configuration, reference_gradient, sizes, start_of, trace
from reference import matrices as plain
from reference.fgda import fgda
from reference.local_sgda import local_sgda

from mpifed.algorithms import FGDA, AdaFGDA, LocalSGDA
from mpifed.core.adaptive import MATRICES
from mpifed.core.noise import Gaussian
from mpifed.core.sets import Ball

pytestmark = pytest.mark.mpi

SEED, BATCH, NOISE = 1, 2, 0.3
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


def assert_same(config, comm, reference, ball=None):
    """Compare every round with ``reference(project)`` on rank 0; all ranks are bitwise identical.

    With a ball, the reference without its projection must differ, so that the set binds.
    """
    path, _ = trace(config, comm)
    first = path.copy()
    comm.bcast_(first)
    np.testing.assert_array_equal(path, first)
    if comm.rank == 0:
        expected = [torch.cat(point).numpy() for point in reference(Ball(ball) if ball else None)]
        np.testing.assert_allclose(path, expected, rtol=1e-10, atol=1e-10)
        assert not ball or np.abs(expected[-1] - torch.cat(reference(None)[-1]).numpy()).max() > 1e-3


def check_fgda(
    comm,
    out,
    q,
    generator,
    sync,
    first,
    *,
    group=1,
    reduction="fused",
    project="mixed",
    estimators="local",
    ball=None,
    weights="uniform",
    clients=3,
):
    settings, counterpart = GENERATORS[generator]
    rates = {"eta": 0.9, "alpha": {"name": "power", "scale": 0.7}, "beta": 0.4}
    common = dict(
        q=q,
        gamma=0.05,
        lam=0.04,
        sync_estimator=sync,
        project_y=project,
        first_estimators=estimators,
        **rates,
    )
    method = AdaFGDA(matrix=MATRICES[generator.split()[0]](**settings), first_matrix=first, **common)
    game = Game(clients=clients, ball=ball)
    config = configuration(
        method,
        game,
        out,
        seed=SEED,
        batch_size=BATCH,
        noise=NOISE,
        group=group,
        reduction=reduction,
        weights=weights,
    )
    assert_same(
        config,
        comm,
        lambda projection: fgda(
            reference_gradient(game, SEED, q, BATCH, Gaussian(scale=NOISE)),
            clients,
            *start_of(game, SEED),
            q=q,
            rounds=3,
            gamma=0.05,
            lam=0.04,
            eta=lambda t: 0.9,
            alpha=lambda t: 0.7 / t ** (1 / 3),
            beta=lambda t: 0.4,
            matrix=counterpart,
            sync_estimator=sync,
            first_matrix=first,
            first_estimators=estimators,
            project=projection,
            project_where=project,
            weights=sizes(game).tolist() if weights == "samples" else None,
        ),
        ball,
    )


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("sync, first", list(itertools.product(SYNC, FIRST)))
def test_every_matrix_and_reading(comm, out, generator, sync, first):
    """All combinations on one rank; on two, three and four ranks a third, with every pair of settings."""
    number = [*GENERATORS].index(generator) + SYNC.index(sync) + FIRST.index(first)
    if comm.size > 1 and (number - comm.size) % 3:
        pytest.skip("compared on another number of ranks")
    check_fgda(comm, out, 3, generator, sync, first)


@pytest.mark.parametrize("group, reduction", [("all", "fused"), ("all", "exact"), (1, "exact")])
@pytest.mark.parametrize("sync", SYNC)
def test_executors_and_reductions(comm, out, sync, group, reduction):
    check_fgda(comm, out, 3, "adabelief initial", sync, "rule", group=group, reduction=reduction, clients=5)


@pytest.mark.filterwarnings("ignore:sync_estimator = 'box' with q = 1")
@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(
    "sync, first", [("stem", "rule"), ("stem", "identity"), ("box", "rule"), ("mean_after", "rho")]
)
def test_one_step_rounds(comm, out, generator, sync, first):
    check_fgda(comm, out, 1, generator, sync, first)


@pytest.mark.parametrize("sync", SYNC)
def test_averaged_first_estimators(comm, out, sync):
    check_fgda(comm, out, 3, "adam", sync, "rule", estimators="average", weights="samples")


@pytest.mark.parametrize("project", ["mixed", "step"])
@pytest.mark.parametrize("sync", SYNC)
def test_projections(comm, out, sync, project):
    check_fgda(comm, out, 3, "adam", sync, "rule", project=project, ball=0.15)


def test_weights_by_samples(comm, out):
    check_fgda(comm, out, 3, "adam", "stem", "rule", weights="samples")


@pytest.mark.parametrize("group", [1, "all"])
@pytest.mark.parametrize("sync", SYNC)
def test_fgda(comm, out, sync, group):
    method = FGDA(q=3, gamma=0.05, lam=0.04, eta=0.9, alpha=0.2, beta=0.4, sync_estimator=sync)
    game = Game(clients=4)
    config = configuration(method, game, out, seed=SEED, group=group)
    gradient = reference_gradient(game, SEED, 3, BATCH, Gaussian(scale=NOISE))
    assert_same(
        config,
        comm,
        lambda _: fgda(
            gradient,
            4,
            *start_of(game, SEED),
            q=3,
            rounds=3,
            gamma=0.05,
            lam=0.04,
            eta=lambda t: 0.9,
            alpha=lambda t: 0.2,
            beta=lambda t: 0.4,
            sync_estimator=sync,
        ),
    )


@pytest.mark.parametrize("group, reduction", list(itertools.product([1, "all"], ["fused", "exact"])))
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
def test_local_sgda(comm, out, group, reduction, cohort, weights, ball, clients):
    method = LocalSGDA(
        q=3, eta_x={"name": "steps", "value": 0.05, "boundaries": [4], "factor": 0.5}, eta_y=0.04
    )
    game = Game(clients=clients, ball=ball)
    config = configuration(
        method, game, out, seed=SEED, group=group, reduction=reduction, cohort=cohort, weights=weights
    )
    assert_same(
        config,
        comm,
        lambda projection: local_sgda(
            reference_gradient(game, SEED, 3, BATCH, Gaussian(scale=NOISE)),
            clients,
            *start_of(game, SEED),
            q=3,
            rounds=3,
            eta_x=lambda t: 0.05 if t <= 4 else 0.025,
            eta_y=lambda t: 0.04,
            project=projection,
            weights=sizes(game).tolist() if weights == "samples" else None,
            cohorts=[drawn.cohort(SEED, r, clients, cohort or clients).tolist() for r in (1, 2, 3)],
        ),
        ball,
    )
