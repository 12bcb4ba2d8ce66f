"""The heavy-tailed, variational, compositional and smoothed methods compared with the boxes as printed.

Every option, looped and vectorised, on any number of ranks.

Tolerance 1e-10 in float64 for the reason given in ``test_references``; 1e-7 for Newton-Schulz, whose quintic
multiplies a rounding error by up to 3.4 a step and whose result feeds the next local step.
"""

import itertools

import drawn
import numpy as np
import pytest
import torch
from fields import Chain, Field, reference_chain, reference_operator
from games import Game, configuration, reference_gradient, start_of, trace
from reference import matrices as plain
from reference import proximal
from reference.fess_gda import fess_gda, fsgda, smoothed_gda
from reference.heavy_tailed import fed_nsgda_m
from reference.mfcgd import mfcgd
from reference.vi import lesgd, lippax, local_dual_extrapolation, lsgd, slippax

from mpifed import Blocks
from mpifed.algorithms import (
    FESSGDA,
    FSGDA,
    LESGD,
    LIPPAX,
    LSGD,
    MFCGD,
    SLIPPAX,
    AdaMFCGD,
    FedMuonDA,
    FedNSGDAM,
    FedSGDAClip,
    LocalDualExtrapolation,
    SmoothedGDA,
)
from mpifed.core.adaptive import MATRICES
from mpifed.core.noise import Gaussian
from mpifed.core.sets import L1, Ball, Box, Indicator, Nuclear, Simplex, Zero
from mpifed.core.streams import Stream, generator

pytestmark = pytest.mark.mpi

SEED, BATCH, NOISE, ROUNDS = 1, 2, Gaussian(scale=0.3), 3
EXECUTIONS = list(itertools.product([1, "all"], ["fused", "exact"]))
SHAPES_X, SHAPES_Y = [(2,), (1,)], [(2,)]


def flat(points) -> list[np.ndarray]:
    return [torch.cat([torch.as_tensor(part).reshape(-1) for part in point]).numpy() for point in points]


def assert_path(config, comm, expected, tolerance=1e-10, ball=None):
    """Compare the rounds with the points ``expected(projection)`` on rank 0; a ball must bind."""
    path, _ = trace(config, comm)
    if comm.rank == 0:
        points = flat(expected(Ball(ball) if ball else None))
        np.testing.assert_allclose(path, points, rtol=tolerance, atol=tolerance)
        assert not ball or np.abs(points[-1] - flat(expected(None))[-1]).max() > 1e-3


def job(method, problem, out, execution, **changes):
    group, reduction = execution
    return configuration(
        method,
        problem,
        out,
        seed=SEED,
        rounds=ROUNDS,
        batch_size=BATCH,
        noise=0.3,
        group=group,
        reduction=reduction,
        **changes,
    )


HEAVY = dict(p=3, eta_x=0.03, eta_y=0.02, gamma_x=0.1, gamma_y=0.07, beta_x=0.7, beta_y=0.4)
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
    "newton_schulz": (
        FedMuonDA,
        {"orthogonalize": "newton_schulz"},
        dict(direction="orthogonalize", svd="newton_schulz"),
    ),
    "newton_schulz_cubic": (
        FedMuonDA,
        {"orthogonalize": "newton_schulz_cubic"},
        dict(direction="orthogonalize", svd="newton_schulz_cubic"),
    ),
}


class MatrixGame(Game):
    """The game with matrix parameters, which orthogonalisation treats differently from vectors."""

    def variables(self):
        return Blocks(x={"u": (2, 1), "v": (1,)}, y={"y": (1, 2)})

    def loss(self, x, y, batch):
        return super().loss({"u": x["u"].reshape(-1), "v": x["v"]}, {"y": y["y"].reshape(-1)}, batch)

    def metrics(self, x, y, predictions):
        return {}


@pytest.mark.parametrize("first_round", ["beta_one", "zero", "gradient"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_heavy_tailed(comm, out, direction, first_round, execution=(1, "fused"), clients=3):
    cls, options, counterpart = DIRECTIONS[direction]
    matrices = cls is FedMuonDA
    game = (MatrixGame if matrices else Game)(clients=clients)
    config = job(cls(**HEAVY, first_round=first_round, **options), game, out, execution)
    shapes = ([(2, 1), (1,)], [(1, 2)]) if matrices else (SHAPES_X, SHAPES_Y)
    gradient = reference_gradient(game, SEED, HEAVY["p"], BATCH, NOISE)
    assert_path(
        config,
        comm,
        lambda _: [
            (state["x"], state["y"])
            for state in fed_nsgda_m(
                gradient,
                clients,
                *start_of(game, SEED),
                rounds=ROUNDS,
                first_round=first_round,
                shapes_x=shapes[0],
                shapes_y=shapes[1],
                **HEAVY,
                **counterpart,
            )
        ],
        1e-7 if "newton" in direction else 1e-10,
    )


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("direction", ["normalize tensors", "clip", "svd", "newton_schulz"])
def test_heavy_tailed_executions(comm, out, direction, execution):
    test_heavy_tailed(comm, out, direction, "gradient", execution, clients=5)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(
    "cohort, ball, p", [(None, None, 0.0), (None, 0.15, 0.7), (2, 0.15, 0.7), (3, None, 2.0)]
)
def test_fess_gda(comm, out, execution, cohort, ball, p):
    rates = dict(K=3, eta_xl=0.03, eta_yl=0.02, eta_xg=1.3, eta_yg=0.9)
    game = Game(clients=4, ball=ball)
    config = job(FESSGDA(p=p, beta=0.4, **rates), game, out, execution, cohort=cohort)
    cohorts = [drawn.cohort(SEED, r, 4, cohort or 4).tolist() for r in (1, 2, 3)]
    gradient = reference_gradient(game, SEED, 3, BATCH, NOISE)
    assert_path(
        config,
        comm,
        lambda projection: [
            point[:2]
            for point in fess_gda(
                gradient,
                4,
                *start_of(game, SEED),
                rounds=ROUNDS,
                p=p,
                beta=0.4,
                cohorts=cohorts,
                project_y=projection,
                **rates,
            )
        ],
        ball=ball,
    )


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("cohort, ball", [(None, 0.15), (2, None)])
def test_fsgda(comm, out, execution, cohort, ball):
    rates = dict(K=3, eta_xl=0.03, eta_yl=0.02, eta_xg=1.3, eta_yg=0.9)
    game = Game(clients=4, ball=ball)
    config = job(FSGDA(**rates), game, out, execution, cohort=cohort)
    cohorts = [drawn.cohort(SEED, r, 4, cohort or 4).tolist() for r in (1, 2, 3)]
    gradient = reference_gradient(game, SEED, 3, BATCH, NOISE)
    assert_path(
        config,
        comm,
        lambda projection: fsgda(
            gradient, 4, *start_of(game, SEED), rounds=ROUNDS, cohorts=cohorts, project_y=projection, **rates
        ),
        ball=ball,
    )


@pytest.mark.parametrize("ball", [None, 0.15])
def test_smoothed_gda(comm, out, ball):
    """One step per round on the exact mean gradient."""
    game = Game(clients=3, ball=ball)
    method = SmoothedGDA(eta_x=0.05, eta_y=0.04, p=0.6, beta=0.3)
    config = configuration(method, game, out, seed=SEED, rounds=ROUNDS, batch_size=0, noise=0)
    gradient = reference_gradient(game, SEED, 1, 0, None)

    def full(x, y):
        parts = [gradient(k, x, y, 1) for k in range(3)]
        return sum(gx for gx, _ in parts) / 3, sum(gy for _, gy in parts) / 3

    assert_path(
        config,
        comm,
        lambda projection: [
            point[:2]
            for point in smoothed_gda(
                full,
                *start_of(game, SEED),
                rounds=ROUNDS,
                eta_x=0.05,
                eta_y=0.04,
                p=0.6,
                beta=0.3,
                project_y=projection,
            )
        ],
        ball=ball,
    )


def check_field(comm, out, method, execution, calls, expected, phi=Zero(), clients=4, primal=True):
    """Compare the points and the output, which is a running average."""
    problem = Field(clients=clients, phi=phi)
    config = job(method, problem, out, execution)
    operator = reference_operator(problem, SEED, 3, calls, BATCH, NOISE)
    z0 = problem.initial(generator(SEED, "initial"))["z"]
    path, output = trace(config, comm)
    if comm.rank == 0:
        reference = expected(operator, clients, z0)
        np.testing.assert_allclose(output, reference[-1][1].numpy(), rtol=1e-10, atol=1e-10)
        if primal:
            np.testing.assert_allclose(
                path, torch.stack([z for z, _ in reference]).numpy(), rtol=1e-10, atol=1e-10
            )


STEPS = dict(K=3, rounds=ROUNDS, eta=0.05)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_lsgd(comm, out, execution):
    check_field(comm, out, LSGD(K=3, eta=0.05), execution, 1, lambda V, n, z0: lsgd(V, n, z0, **STEPS))


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("sync", [True, False])
def test_lesgd(comm, out, execution, sync):
    check_field(
        comm,
        out,
        LESGD(K=3, eta=0.05, sync_extrapolation=sync),
        execution,
        2,
        lambda V, n, z0: lesgd(V, n, z0, sync_extrapolation=sync, **STEPS),
    )


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("H, rate", [(0, {"gamma": 0.1}), (2, {"L": 3.0}), (3, {"gamma": 0.02})])
def test_lippax(comm, out, execution, H, rate):
    check_field(
        comm,
        out,
        LIPPAX(K=3, eta=0.05, H=H, **rate),
        execution,
        H + 1,
        lambda V, n, z0: lippax(V, n, z0, H=H, **rate, **STEPS),
    )


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(
    "delta, number", [(0.2, 0.2), (0.0, 0.0), ("derived", 0.05 * 2 / 4**0.25), ("theorem", 0.05 * 2 / 4**0.5)]
)
def test_slippax(comm, out, execution, delta, number):
    def smooth(k, t, j):
        return torch.from_numpy(
            Stream(SEED, "normal", [k], (t - 1) // 3 + 1, 1, ((t - 1) % 3) * 2 + j).normal(4)[0, 0]
        )

    check_field(
        comm,
        out,
        SLIPPAX(K=3, eta=0.05, H=2, L=3.0, delta=delta, sigma=2.0),
        execution,
        3,
        lambda V, n, z0: slippax(V, n, z0, H=2, L=3.0, delta=number, smooth=smooth, **STEPS),
    )


PHIS = {
    "zero": (Zero(), proximal.zero),
    "l1": (L1(lam=0.4), proximal.l1(0.4)),
    "nuclear": (Nuclear(shape=(2, 2), lam=0.4), proximal.nuclear(0.4, (2, 2))),
    "ball": (Indicator(set=Ball(0.7)), proximal.ball(0.7)),
    "box": (Indicator(set=Box(-0.5, 0.4)), proximal.box(-0.5, 0.4)),
    "simplex": (Indicator(set=Simplex()), proximal.simplex),
}


@pytest.mark.parametrize("mirror", ["prox", "identity"])
@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("phi", PHIS)
def test_dual_extrapolation(comm, out, phi, sync, mirror, execution=(1, "fused")):
    """The recorded points are primal here and dual in the reference, so the outputs are compared."""
    ours, theirs = PHIS[phi]
    method = LocalDualExtrapolation(K=3, eta=0.05, sync_extrapolation=sync, t0_mirror=mirror)
    check_field(
        comm,
        out,
        method,
        execution,
        2,
        lambda V, n, z0: local_dual_extrapolation(
            V, n, z0, prox=theirs, sync_extrapolation=sync, t0_mirror=mirror, **STEPS
        ),
        phi=ours,
        primal=False,
    )


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("sync", [True, False])
def test_dual_extrapolation_executions(comm, out, sync, execution):
    test_dual_extrapolation(comm, out, "nuclear", sync, "prox", execution)


GENERATORS = {
    "identity": ({}, plain.Identity),
    "adam": ({"varrho": 0.8, "rho": 0.3}, lambda: plain.Adam(0.3, 0.8)),
    "adabelief": ({"varrho": 0.8, "rho": 0.3}, lambda: plain.AdaBelief(0.3, 0.8)),
    "norm": ({"vartheta": 0.7, "rho": 0.3}, lambda: plain.Norm(0.3, 0.7)),
    "norm root": ({"vartheta": 0.7, "rho": 0.3, "root": True}, lambda: plain.Norm(0.3, 0.7, True)),
}
WEIGHTS = dict(alpha=0.3, beta=0.6, varrho=0.45)


def check_chain(comm, out, method, execution, q, clients=3, **options):
    problem = Chain(clients=clients)
    config = job(method, problem, out, execution)
    x1 = problem.initial(generator(SEED, "initial"))["x"]
    weights = {name: (lambda t, value=value: value) for name, value in WEIGHTS.items()}
    assert_path(
        config,
        comm,
        lambda _: [
            (x,)
            for x in mfcgd(
                *reference_chain(problem, SEED, q, BATCH, NOISE),
                clients,
                x1,
                q=q,
                rounds=ROUNDS,
                gamma=0.06,
                eta=lambda t: 0.9,
                **weights,
                **options,
            )
        ],
    )


@pytest.mark.parametrize("generator_name", GENERATORS)
@pytest.mark.parametrize("first", ["rule", "identity", "rho"])
@pytest.mark.parametrize("q", [1, 3])
def test_adamfcgd(comm, out, generator_name, first, q, execution=(1, "fused")):
    options, counterpart = GENERATORS[generator_name]
    method = AdaMFCGD(
        q=q,
        gamma=0.06,
        eta=0.9,
        first_matrix=first,
        matrix=MATRICES[generator_name.split()[0]](**options),
        **WEIGHTS,
    )
    check_chain(comm, out, method, execution, q, matrix=counterpart, first_matrix=first)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("bounds", [{}, {"C_g": 0.8, "C_f": 0.5}])
def test_mfcgd(comm, out, execution, bounds):
    check_chain(
        comm, out, MFCGD(q=3, gamma=0.06, eta=0.9, **WEIGHTS, **bounds), execution, 3, clients=4, **bounds
    )
