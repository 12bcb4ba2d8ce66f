"""FedDualAvg, FeDualEx, dual extrapolation with mirror maps, ExtraSGD, extra-step Local SGD and LocalAdaSEG
compared with references.

Tolerance 1e-10 in float64 for the reason given in ``test_references``.
"""

from __future__ import annotations

from dataclasses import dataclass

import drawn
import numpy as np
import pytest
import torch
from fields import Field, reference_operator
from games import configuration, trace, trace_file
from reference import proximal
from reference.adaseg import local_adaseg
from reference.dual import fed_dual_avg, fedualex
from reference.extragradient import extra_sgd, extra_step_local_sgd
from reference.vi import local_dual_extrapolation

from mpifed.algorithms import (
    ExtraSGD,
    ExtraStepLocalSGD,
    FedDualAvg,
    FeDualEx,
    LocalAdaSEG,
    LocalDualExtrapolation,
)
from mpifed.core.noise import Gaussian
from mpifed.core.participation import Participation
from mpifed.core.sets import (
    L1,
    Ball,
    Blockwise,
    Entropy,
    Euclidean,
    Indicator,
    L1Box,
    Nuclear,
    Separable,
    Sets,
    Simplex,
    Zero,
)
from mpifed.parallel.comm import CollectiveError
from mpifed.simulation.simulation import Simulation

pytestmark = pytest.mark.mpi

SEED, BATCH, NOISE, ROUNDS, CLIENTS = 1, 2, Gaussian(scale=0.3), 3, 4
RATES = dict(K=3, eta_c=0.05, eta_s=0.7)
GROUPS = pytest.mark.parametrize("group", [1, 2, "all"])
START = torch.tensor([0.3, 0.7, 0.5, 1.5], dtype=torch.float64)


@dataclass
class Inside(Field):
    """The field started in the product of the simplexes below, with an optional ball."""

    ball: float | None = None

    def prepare(self, seed, data_dir=None):
        super().prepare(seed)
        self.sets = Sets(z=Ball(self.ball)) if self.ball else Sets()

    def initial(self, rng):
        return {"z": START}


def simplexes(second):
    return Separable({"x": Indicator(Simplex()), "y": second}, (2, 2))


def dual_of(*totals):
    """Return s log u for each of the two halves, or u for s = 0."""
    return torch.cat([s * u.log() if s else u for s, u in zip(totals, START.split(2))])


ENTROPY = proximal.entropy(1.0)
#: φ and the mirror map of the package, the map of the reference, and the dual of the start.
MIRRORS = {
    "zero": (Zero(), Euclidean(), proximal.zero, START),
    "l1": (L1(lam=0.4), Euclidean(), proximal.l1(0.4), START),
    "l1 box": (
        L1Box(lam=0.4, bound=0.6), Euclidean(),
        lambda v, w: proximal.box(-0.6, 0.6)(proximal.l1(0.4)(v, w), w), START,
    ),
    "nuclear": (Nuclear(shape=(2, 2), lam=0.4), Euclidean(), proximal.nuclear(0.4, (2, 2)), START),
    "euclidean simplexes": (
        simplexes(L1(lam=0.4)), Euclidean(), proximal.separate(2, proximal.simplex, proximal.l1(0.4)), START,
    ),
    "entropy": (
        simplexes(Indicator(Simplex(2.0))), Entropy(),
        proximal.separate(2, ENTROPY, proximal.entropy(2.0)), dual_of(1.0, 2.0),
    ),
    "entropy beside l1": (
        simplexes(L1(lam=0.4)), Blockwise(x="entropy"), proximal.separate(2, ENTROPY, proximal.l1(0.4)),
        dual_of(1.0, 0.0),
    ),
}  # fmt: skip


def compare(comm, out, method, problem, group, expected, *, cohort=None, weights="uniform"):
    """Compare the points of all rounds and the output with ``expected``."""
    config = configuration(
        method, problem, out, seed=SEED, rounds=ROUNDS, batch_size=BATCH, noise=NOISE, group=group,
        cohort=cohort, weights=weights,
    )  # fmt: skip
    path, output = trace(config, comm)
    if comm.rank == 0:
        problem.prepare(SEED)
        own = [len(rows) for rows in problem.rows] if weights == "samples" else None
        points, last = expected(own)
        np.testing.assert_allclose(path, torch.stack(points).numpy(), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(output, last.numpy(), rtol=1e-10, atol=1e-10)


def cohorts(size):
    return None if size is None else [drawn.cohort(SEED, r, CLIENTS, size).tolist() for r in (1, 2, 3)]


@pytest.mark.dealt
@GROUPS
@pytest.mark.parametrize("cohort, weights", [(None, "uniform"), (2, "uniform"), (3, "samples")])
@pytest.mark.parametrize("mirror", MIRRORS)
def test_fed_dual_avg(comm, out, mirror, cohort, weights, group):
    phi, ours, theirs, dual0 = MIRRORS[mirror]
    problem = Inside(clients=CLIENTS, phi=phi)
    operator = reference_operator(problem, SEED, 3, 1, BATCH, NOISE)

    def expected(own):
        points = fed_dual_avg(
            operator, CLIENTS, dual0, rounds=ROUNDS, mirror=theirs, weights=own, cohorts=cohorts(cohort),
            **RATES,
        )  # fmt: skip
        return points, points[-1]

    method = FedDualAvg(**RATES, mirror=ours)
    compare(comm, out, method, problem, group, expected, cohort=cohort, weights=weights)


@pytest.mark.dealt
@GROUPS
@pytest.mark.parametrize("shadow, weights", [(True, "samples"), (False, "uniform")])
@pytest.mark.parametrize("cohort", [None, 3])
@pytest.mark.parametrize("mirror", MIRRORS)
def test_fedualex(comm, out, mirror, cohort, shadow, weights, group):
    phi, ours, theirs, dual0 = MIRRORS[mirror]
    problem = Inside(clients=CLIENTS, phi=phi)
    operator = reference_operator(problem, SEED, 3, 2, BATCH, NOISE)

    def expected(own):
        pairs = fedualex(
            operator, CLIENTS, dual0, rounds=ROUNDS, mirror=theirs, weights=own, shadow=shadow,
            cohorts=cohorts(cohort), **RATES,
        )  # fmt: skip
        return [point for point, _ in pairs], pairs[-1][1]

    method = FeDualEx(**RATES, mirror=ours, shadow=shadow)
    compare(comm, out, method, problem, group, expected, cohort=cohort, weights=weights)


@pytest.mark.dealt
@GROUPS
@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("first", ["prox", "identity"])
@pytest.mark.parametrize("mirror", ["euclidean simplexes", "entropy", "entropy beside l1"])
def test_dual_extrapolation(comm, out, mirror, first, sync, group):
    """Compares the outputs and, if only z is averaged, the points: images of the reference's duals."""
    phi, ours, theirs, dual0 = MIRRORS[mirror]
    problem = Inside(clients=CLIENTS, phi=phi)
    operator = reference_operator(problem, SEED, 3, 2, BATCH, NOISE)
    options = dict(sync_extrapolation=sync, t0_mirror=first)
    method = LocalDualExtrapolation(K=3, eta=0.05, mirror=ours, **options)
    config = configuration(
        method, problem, out, seed=SEED, rounds=ROUNDS, batch_size=BATCH, noise=NOISE, group=group
    )
    path, output = trace(config, comm)
    if comm.rank == 0:
        pairs = local_dual_extrapolation(
            operator, CLIENTS, dual0, K=3, rounds=ROUNDS, eta=0.05, prox=theirs, point=START, **options
        )
        np.testing.assert_allclose(output, pairs[-1][1].numpy(), rtol=1e-10, atol=1e-10)
        if not sync:
            points = [theirs(dual, 3 * r * 0.05).numpy() for r, (dual, _) in enumerate(pairs, 1)]
            np.testing.assert_allclose(path, points, rtol=1e-10, atol=1e-10)


@pytest.mark.dealt
@GROUPS
@pytest.mark.parametrize("b", [1, 3])
@pytest.mark.parametrize(
    "cohort, weights, ball", [(None, "uniform", 1.0), (2, "uniform", None), (3, "samples", None)]
)
def test_extra_sgd(comm, out, b, cohort, weights, ball, group):
    problem = Inside(clients=CLIENTS, ball=ball)
    operator = reference_operator(problem, SEED, 1, 2 * b, BATCH, NOISE)

    def expected(own, ball=ball):
        pairs = extra_sgd(
            operator, CLIENTS, START, b=b, rounds=ROUNDS, eta=0.2, weights=own, cohorts=cohorts(cohort),
            **(dict(project=proximal_ball(ball)) if ball else {}),
        )  # fmt: skip
        return [z for z, _ in pairs], pairs[-1][1]

    compare(comm, out, ExtraSGD(eta=0.2, b=b), problem, group, expected, cohort=cohort, weights=weights)
    assert not ball or (expected(None)[1] - expected(None, None)[1]).abs().max() > 1e-3  # the ball binds


@pytest.mark.parametrize("method", [FedDualAvg(K=1, eta_c=0.1, mirror="entropy")])
def test_an_incompatible_mirror_map_is_refused_on_all_ranks(comm, out, method):
    with pytest.raises(CollectiveError, match="mirror = 'entropy' is for simplexes, and z has φ = Zero"):
        Simulation.from_settings(configuration(method, Inside(clients=CLIENTS), out), comm)


def proximal_ball(radius):
    return lambda z: proximal.ball(radius)(z, 0.0)


@pytest.mark.dealt
@GROUPS
@pytest.mark.parametrize("weights, ball", [("uniform", 1.0), ("samples", None)])
def test_extra_step_local_sgd(comm, out, weights, ball, group):
    problem = Inside(clients=CLIENTS, ball=ball)
    operator = reference_operator(problem, SEED, 3, 2, BATCH, NOISE)

    def expected(own):
        project = dict(project=proximal_ball(ball)) if ball else {}
        pairs = extra_step_local_sgd(
            operator, CLIENTS, START, K=3, rounds=ROUNDS, eta=0.05, weights=own, **project
        )
        return [z for z, _ in pairs], pairs[-1][1]

    compare(comm, out, ExtraStepLocalSGD(K=3, eta=0.05), problem, group, expected, weights=weights)


@pytest.mark.dealt
@GROUPS
@pytest.mark.parametrize("weights, ball, alpha", [("uniform", 1.0, 1.0), ("samples", None, 0.7)])
def test_local_adaseg(comm, out, weights, ball, alpha, group):
    problem, settings = Inside(clients=CLIENTS, ball=ball), dict(K=3, G_0=2.0, D=0.5, alpha=alpha)
    operator = reference_operator(problem, SEED, 3, 2, BATCH, NOISE)

    def expected(own, ball=ball):
        project = dict(project=proximal_ball(ball)) if ball else {}
        pairs = local_adaseg(operator, CLIENTS, START, rounds=ROUNDS, weights=own, **settings, **project)
        return [z for z, _ in pairs], pairs[-1][1]

    compare(comm, out, LocalAdaSEG(**settings), problem, group, expected, weights=weights)
    assert not ball or (expected(None)[1] - expected(None, None)[1]).abs().max() > 1e-3  # the ball binds


@pytest.mark.dealt
@pytest.mark.parametrize("mirror", ["l1", "entropy beside l1"])
@pytest.mark.parametrize("cls, reference", [(FedDualAvg, fed_dual_avg), (FeDualEx, fedualex)])
def test_dual_methods_in_rounds_without_clients(comm, out, cls, reference, mirror):
    """Rounds 1 and 3 have no clients: the first dual is that of the start, and the weight of φ and the
    output depend on the other rounds only."""
    phi, ours, theirs, dual0 = MIRRORS[mirror]
    problem, there = Inside(clients=CLIENTS, phi=phi), [[], [0, 2], [], [1, 2, 3]]
    path, output = traced(comm, out, cls(**RATES, mirror=ours), problem, there)
    calls = 1 if cls is FedDualAvg else 2
    operator = reference_operator(problem, SEED, 3, calls, BATCH, NOISE)
    points = reference(operator, CLIENTS, dual0, rounds=4, mirror=theirs, cohorts=there, **RATES)
    wanted = [one if torch.is_tensor(one) else one[0] for one in points[1:]]
    np.testing.assert_allclose(path[1:], torch.stack(wanted).numpy(), rtol=1e-10, atol=1e-10)
    last = points[-1] if torch.is_tensor(points[-1]) else points[-1][1]
    np.testing.assert_allclose(output, last.numpy(), rtol=1e-10, atol=1e-10)


def traced(comm, out, method, problem, there):
    """Return the path and the output of four rounds with the cohorts ``there``."""
    file = trace_file(out, comm, [(r, k) for r, one in enumerate(there, 1) for k in one])
    config = configuration(method, problem, f"{out}/run", seed=SEED, rounds=4, batch_size=BATCH, noise=NOISE)
    participation = Participation(availability={"name": "trace", "file": file})
    return trace(config.model_copy(update={"participation": participation}), comm)


def test_extra_sgd_in_rounds_without_clients(comm, out):
    """The output averages over the rounds with clients."""
    problem, there = Inside(clients=CLIENTS), [[], [0, 2], [], [1, 2, 3]]
    path, output = traced(comm, out, ExtraSGD(eta=0.2), problem, there)
    operator = reference_operator(problem, SEED, 1, 2, BATCH, NOISE)
    (last, average) = extra_sgd(operator, CLIENTS, START, b=1, rounds=4, eta=0.2, cohorts=there)[-1]
    np.testing.assert_allclose(path[-1], last.numpy(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(output, average.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", [FeDualEx(**RATES), ExtraSGD(eta=0.2)], ids=lambda m: type(m).__name__)
def test_the_output_before_the_first_round_with_clients_is_the_start(comm, out, method):
    path, output = traced(comm, out, method, Inside(clients=CLIENTS), [[], [], [], [], [0]])
    np.testing.assert_array_equal(path, START.expand(4, -1))
    np.testing.assert_array_equal(output, START)
