"""The methods for variational inequalities compared with references: the points of all rounds and the output.

Tolerance 1e-10 in float64 for the reason given in ``test_references``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

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
from reference.vi import lesgd, lippax, local_dual_extrapolation, lsgd, slippax

from mpifed.algorithms import (
    LESGD,
    LIPPAX,
    LSGD,
    SLIPPAX,
    ExtraSGD,
    ExtraStepLocalSGD,
    FedDualAvg,
    FeDualEx,
    LocalAdaSEG,
    LocalDualExtrapolation,
)
from mpifed.core.noise import Gaussian
from mpifed.core.sets import (
    L1,
    Ball,
    Blockwise,
    Box,
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
from mpifed.core.streams import Stream
from mpifed.parallel.comm import CollectiveError
from mpifed.simulation.simulation import Simulation

pytestmark = pytest.mark.mpi

SEED, BATCH, NOISE, ROUNDS, CLIENTS = 1, 2, Gaussian(scale=0.3), 3, 4
RATES, STEPS = dict(K=3, eta_c=0.05, eta_s=0.7), dict(K=3, eta=0.05)
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


#: Sets of the whole point, outside of which the start is.
OUTSIDE = {
    "ball": (Indicator(set=Ball(0.7)), Euclidean(), proximal.ball(0.7), START),
    "box": (Indicator(set=Box(-0.5, 0.4)), Euclidean(), proximal.box(-0.5, 0.4), START),
}


@dataclass
class Case:
    """A method, its reference, the calls of the operator per step, and common and separate settings."""

    cls: type
    reference: Callable
    calls: int
    settings: dict
    ours: dict = field(default_factory=dict)
    theirs: dict = field(default_factory=dict)
    steps: int = 3

    def method(self, **settings):
        return self.cls(**self.settings, **self.ours, **settings)

    def expected(self, problem, start, rounds=ROUNDS, **settings):
        """Return pairs of the point and the output after every round."""
        operator = reference_operator(problem, SEED, self.steps, self.calls, BATCH, NOISE)
        settings = self.settings | self.theirs | settings
        return self.reference(operator, CLIENTS, start, rounds=rounds, **settings)


def assert_same(run, pairs, points=True):
    """Compare the result of ``trace`` with pairs of the point and the output after every round."""
    path, output = run
    np.testing.assert_allclose(output, pairs[-1][1].numpy(), rtol=1e-10, atol=1e-10)
    if points:
        wanted = torch.stack([point for point, _ in pairs]).numpy()
        np.testing.assert_allclose(path, wanted, rtol=1e-10, atol=1e-10)


def job(method, problem, out, **settings):
    settings = dict(rounds=ROUNDS) | settings
    return configuration(method, problem, out, seed=SEED, batch_size=BATCH, noise=NOISE, **settings)


def of_members(problem, cohort, weights) -> dict:
    """Return the weights and the cohorts as settings of a reference; references without them take none."""
    problem.prepare(SEED)
    cohorts = [drawn.cohort(SEED, r, CLIENTS, cohort).tolist() for r in (1, 2, 3)] if cohort else None
    own = [len(rows) for rows in problem.rows] if weights == "samples" else None
    return {key: value for key, value in (("cohorts", cohorts), ("weights", own)) if value}


def smooth(k, t, j):
    return torch.from_numpy(
        Stream(SEED, "normal", [k], (t - 1) // 3 + 1, 1, ((t - 1) % 3) * 2 + j).normal(4)[0, 0]
    )


LATE = dict(sync_extrapolation=False)
CASES = {
    "LSGD": Case(LSGD, lsgd, 1, STEPS),
    "LESGD": Case(LESGD, lesgd, 2, STEPS),
    "LESGD late": Case(LESGD, lesgd, 2, STEPS | LATE),
    "LESGD gamma": Case(LESGD, lesgd, 2, STEPS | dict(gamma=0.11)),
    **{
        f"LIPPAX {H}": Case(LIPPAX, lippax, H + 1, STEPS | rate | dict(H=H))
        for H, rate in ((0, {"gamma": 0.1}), (2, {"L": 3.0}), (3, {"gamma": 0.02}))
    },
    **{
        f"SLIPPAX {delta}": Case(
            SLIPPAX, slippax, 3, STEPS | dict(H=2, L=3.0),
            dict(delta=delta) | ({"sigma": 2.0} if isinstance(delta, str) else {}),
            dict(delta=number, smooth=smooth),
        )
        for delta, number in (
            (0.2, 0.2), (0.0, 0.0), ("derived", 0.05 * 2 / 4**0.25), ("theorem", 0.05 * 2 / 4**0.5)
        )
    },
    **{f"ExtraSGD {b}": Case(ExtraSGD, extra_sgd, 2 * b, dict(eta=0.2, b=b), steps=1) for b in (1, 3)},
    "ExtraSGD gamma": Case(ExtraSGD, extra_sgd, 2, dict(eta=0.2, b=1, gamma=0.3), steps=1),
    "ExtraStepLocalSGD": Case(ExtraStepLocalSGD, extra_step_local_sgd, 2, STEPS),
    "ExtraStepLocalSGD gamma": Case(
        ExtraStepLocalSGD, extra_step_local_sgd, 2, STEPS | dict(gamma=0.11)
    ),
    **{
        f"LocalAdaSEG {alpha}": Case(LocalAdaSEG, local_adaseg, 2, dict(K=3, G_0=2.0, D=0.5, alpha=alpha))
        for alpha in (1.0, 0.7)
    },
}  # fmt: skip
#: Case, cohort, weights, and radius of a ball that binds.
RUNS = [(name, None, "uniform", None) for name in CASES if "Extra" not in name and "Ada" not in name]
RUNS += [(f"ExtraSGD {b}", *rest) for b in (1, 3)
         for rest in ((None, "uniform", 1.0), (2, "uniform", None), (3, "samples", None))]  # fmt: skip
RUNS += [("ExtraSGD gamma", 3, "samples", None), ("ExtraStepLocalSGD gamma", None, "uniform", 1.0)]
RUNS += [("ExtraStepLocalSGD", None, "uniform", 1.0), ("ExtraStepLocalSGD", None, "samples", None)]
RUNS += [("LocalAdaSEG 1.0", None, "uniform", 1.0), ("LocalAdaSEG 0.7", None, "samples", None)]


@pytest.mark.dealt
@GROUPS
@pytest.mark.parametrize("name, cohort, weights, ball", RUNS)
def test_euclidean_methods(comm, out, name, cohort, weights, ball, group):
    case, problem = CASES[name], Inside(clients=CLIENTS, ball=ball)
    run = trace(job(case.method(), problem, out, group=group, cohort=cohort, weights=weights), comm)
    if comm.rank:
        return
    members = of_members(problem, cohort, weights)
    free = case.expected(problem, START, **members)
    if ball is None:
        assert_same(run, free)
        return
    pairs = case.expected(problem, START, **members, project=lambda z: proximal.ball(ball)(z, 0.0))
    assert_same(run, pairs)
    assert (pairs[-1][1] - free[-1][1]).abs().max() > 1e-3  # the ball binds


def averaged(*arguments, **settings):
    """FedDualAvg, whose output is its point."""
    return [(point, point) for point in fed_dual_avg(*arguments, **settings)]


DUAL = {
    "FedDualAvg": Case(FedDualAvg, averaged, 1, RATES),
    "FeDualEx": Case(FeDualEx, fedualex, 2, RATES | dict(shadow=True)),
    "FeDualEx own": Case(FeDualEx, fedualex, 2, RATES | dict(shadow=False)),
}
MEMBERS = [(None, "uniform"), (2, "uniform"), (3, "samples")]
#: Each method with each mirror map and with each of ``MEMBERS``, cohort and weights.
DUAL_RUNS = [
    (name, mirror, *members)
    for (name, mirror), members in zip(itertools.product(DUAL, MIRRORS), itertools.cycle(MEMBERS))
]


@pytest.mark.dealt
@GROUPS
@pytest.mark.parametrize("name, mirror, cohort, weights", DUAL_RUNS)
def test_dual_methods(comm, out, name, mirror, cohort, weights, group):
    (phi, ours, theirs, dual0), case = MIRRORS[mirror], DUAL[name]
    problem, method = Inside(clients=CLIENTS, phi=phi), case.method(mirror=ours)
    run = trace(job(method, problem, out, group=group, cohort=cohort, weights=weights), comm)
    if comm.rank == 0:
        members = of_members(problem, cohort, weights)
        assert_same(run, case.expected(problem, dual0, mirror=theirs, **members))


@pytest.mark.dealt
@GROUPS
@pytest.mark.parametrize("first", ["prox", "identity"])
@pytest.mark.parametrize("mirror, sync", zip(MIRRORS | OUTSIDE, itertools.cycle([True, False])))
def test_dual_extrapolation(comm, out, mirror, first, sync, group):
    """Compares the outputs and, if only z is averaged, the points: images of the reference's duals."""
    phi, ours, theirs, dual0 = (MIRRORS | OUTSIDE)[mirror]
    settings = STEPS | dict(sync_extrapolation=sync, t0_mirror=first)
    case = Case(LocalDualExtrapolation, local_dual_extrapolation, 2, settings, theirs=dict(point=START))
    problem = Inside(clients=CLIENTS, phi=phi)
    run = trace(job(case.method(mirror=ours), problem, out, group=group), comm)
    if comm.rank == 0:
        pairs = case.expected(problem, dual0, prox=theirs)
        images = [(theirs(dual, 3 * r * 0.05), output) for r, (dual, output) in enumerate(pairs, 1)]
        assert_same(run, images, points=not sync)


def test_an_incompatible_mirror_map_is_refused_on_all_ranks(comm, out):
    method = FedDualAvg(K=1, eta_c=0.1, mirror="entropy")
    with pytest.raises(CollectiveError, match="mirror = 'entropy' is for simplexes, and z has φ = Zero"):
        Simulation.from_settings(configuration(method, Inside(clients=CLIENTS), out), comm)


#: Cohorts of four rounds.
THERE = [[], [0, 2], [], [1, 2, 3]]


@pytest.mark.dealt
@pytest.mark.parametrize("mirror", ["l1", "entropy beside l1"])
@pytest.mark.parametrize("name", ["FedDualAvg", "FeDualEx"])
def test_dual_methods_in_rounds_without_clients(comm, out, name, mirror):
    """Rounds 1 and 3 have no clients: the first dual is that of the start, and the weight of φ and the
    output depend on the other rounds only."""
    (phi, ours, theirs, dual0), case = MIRRORS[mirror], DUAL[name]
    problem = Inside(clients=CLIENTS, phi=phi)
    path, output = traced(comm, out, case.method(mirror=ours), problem, THERE)
    pairs = case.expected(problem, dual0, rounds=4, mirror=theirs, cohorts=THERE)
    assert_same((path[1:], output), pairs[1:])


def traced(comm, out, method, problem, there):
    """Return the path and the output of four rounds with the cohorts ``there``."""
    file = trace_file(out, comm, [(r, k) for r, one in enumerate(there, 1) for k in one])
    sections = {"participation": {"availability": {"name": "trace", "file": file}}}
    return trace(job(method, problem, f"{out}/run", rounds=4, sections=sections), comm)


def test_extra_sgd_in_rounds_without_clients(comm, out):
    """The output averages over the rounds with clients."""
    problem, case = Inside(clients=CLIENTS), CASES["ExtraSGD 1"]
    path, output = traced(comm, out, case.method(), problem, THERE)
    assert_same((path[-1:], output), case.expected(problem, START, rounds=4, cohorts=THERE)[-1:])


@pytest.mark.parametrize("method", [FeDualEx(**RATES), ExtraSGD(eta=0.2)], ids=lambda m: type(m).__name__)
def test_the_output_before_the_first_round_with_clients_is_the_start(comm, out, method):
    path, output = traced(comm, out, method, Inside(clients=CLIENTS), [[], [], [], [], [0]])
    np.testing.assert_array_equal(path, START.expand(4, -1))
    np.testing.assert_array_equal(output, START)
