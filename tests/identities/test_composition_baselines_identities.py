"""Identities of ComFedL, LocalMOML, Local-SCGD(M) and compositional FedNest: labels C... and D... are those
of the lists of known identities.

All runs are the package against itself, in float64 and one process. Samples are full batches with a noise, so
that a law of the noise can bring together the samples that two methods number differently.
"""

from __future__ import annotations

import copy
from functools import partial

import compositions
import numpy as np
import pytest
from baselines import plugin
from compositions import Plain, PlainMinimisation, Rearranged
from fields import DX, Chain, Square
from games import configuration
from identity_games import ROUNDING, VISIBLE, Renamed, Timed, distance

from mpifed.algorithms import MFCGD, ComFedL, FedNestComposition, LocalMOML, LocalSCGD, LocalSCGDM
from mpifed.base.errors import ContractError
from mpifed.core.noise import Gaussian
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.simulation import Simulation

NOISE, ETA, Q, K_0 = Gaussian(scale=0.3), 0.06, 3, 2
POWER = {"name": "power", "scale": 0.1, "offset": 2.0}

path = partial(compositions.path, noise=NOISE, batch_size=0)
comfedl = ComFedL(q=Q, eta=POWER)


class Readdressed(Gaussian):
    """Sample j of round r has the noise of the sample that ``address(r, j)`` names."""

    def address(self, r, j):
        raise NotImplementedError

    def __call__(self, stream, size):
        parts = []
        for j in range(stream.first, stream.first + stream.count):
            one = copy.copy(stream)
            (one.round, one.first), one.count = self.address(stream.round, j), 1
            parts.append(Gaussian.__call__(self, one, size))
        return np.concatenate(parts, axis=1)


class StartInStepOne(Readdressed):
    """All samples of the start are those of step 1."""

    def address(self, r, j):
        return (r, j) if r else (1, j % 2)


class AfterFirst(Readdressed):
    """The K_0 first samples of a round come last."""

    def address(self, r, j):
        return r, (j - K_0 if j >= K_0 else 100 + j)


@pytest.mark.parametrize("q", [1, 3])
def test_c1_mfcgd_with_full_weights_is_comfedl_with_its_step(q):
    def mfcgd(*weights):
        return MFCGD(q=q, gamma=0.4, eta=POWER, **dict(zip(("alpha", "beta", "varrho"), weights)))

    right = path(ComFedL(q=q, eta=POWER | {"scale": 0.04}), Chain())
    left = partial(path, problem=Chain(), noise=StartInStepOne(scale=0.3))
    assert distance(left(mfcgd(1.0, 1.0, 1.0)), right) < ROUNDING
    for weights in [(0.3, 1.0, 1.0), (1.0, 0.3, 1.0), (1.0, 1.0, 0.3)]:
        assert distance(left(mfcgd(*weights)), right) > VISIBLE
    free = dict(noise=None, rounds=6)
    exact = path(ComFedL(q=q, eta=POWER | {"scale": 0.04}), Chain(), **free)
    assert distance(path(mfcgd(0.3, 0.0, 0.7), Chain(), **free), exact) < ROUNDING  # C2


@pytest.mark.parametrize("batch_size", [0, 2])
@pytest.mark.parametrize("average_inner", [True, False])
def test_c3_local_scgd_with_full_weights_is_comfedl(average_inner, batch_size):
    settings = dict(p=Q, eta=POWER, average_inner=average_inner)
    right = path(comfedl, Chain(), batch_size=batch_size)
    for method in (LocalSCGDM(**settings, alpha=1.0, beta=1.0), LocalSCGD(**settings, beta=1.0)):
        assert distance(path(method, Chain(), batch_size=batch_size), right) < ROUNDING
    for weights in (dict(alpha=0.5, beta=1.0), dict(alpha=1.0, beta=0.5)):
        other = path(LocalSCGDM(**settings, **weights), Chain(), batch_size=batch_size)
        assert distance(other, right) > VISIBLE


def test_without_momentum_local_scgdm_is_local_scgd():
    momentum = LocalSCGDM(p=Q, eta=ETA, beta=0.4, alpha=1.0)
    left, right = path(momentum, Chain()), path(LocalSCGD(p=Q, eta=ETA, beta=0.4), Chain())
    assert np.array_equal(left, right)


def test_c4_local_moml_with_full_weight_is_comfedl_at_the_ends_of_rounds():
    right = path(comfedl, Square())

    def moml(problem=None, **settings):
        method = LocalMOML(**{"H": Q, "eta": POWER, "beta": 1.0, "K_0": K_0, **settings})
        return path(method, problem or Square(), noise=AfterFirst(scale=0.3))

    assert distance(moml(), right) < ROUNDING
    assert distance(moml(beta=0.5), right) > VISIBLE
    assert distance(moml(first_order=True), right) > VISIBLE
    assert distance(path(LocalMOML(H=Q, eta=POWER, beta=1.0), Square(), cohort=2), right) > VISIBLE


def test_first_order_needs_as_many_inner_values_as_variables():
    with pytest.raises(ContractError, match="expected as many inner values as variables, got 2 and 3"):
        path(LocalMOML(H=2, eta=ETA, first_order=True), Chain())


@pytest.mark.parametrize("first_y", ["zero", "mean"])
@pytest.mark.parametrize("T", [1, 3])
def test_c5_fednest_with_one_full_step_of_y_is_comfedl_on_equal_clients(T, first_y):
    """y = the mean inner value, which is every client's own: on different clients it is not (C5b)."""
    nest = FedNestComposition(T=T, tau=1, alpha=ETA, beta=1.0, first_y=first_y)
    right = ComFedL(q=1, eta=ETA)
    gaps = [
        distance(
            path(nest, Rearranged(order=order), noise=None), path(right, Rearranged(order=order), noise=None)
        )
        for order in ((1, 1, 1), (0, 1, 2))
    ]
    assert gaps[0] < ROUNDING and gaps[1] > VISIBLE


@pytest.mark.parametrize("beta", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("tau", [1, 4])
def test_d11_a_call_of_fednest_moves_y_by_a_known_share_of_the_residual(tau, beta):
    """y⁺ = y - (1 - (1 - β)^τ) q: the local steps' samples cancel, q's own do not."""
    method = FedNestComposition(T=1, tau=tau, alpha=0.05, beta=beta)
    simulation = Simulation.from_settings(
        configuration(method, Chain(), "unused", batch_size=2, noise=NOISE), SerialComm()
    )
    simulation.start()
    residuals = []
    for _ in range(3):
        before = simulation.shared.y.clone()
        simulation.step()
        y, q = simulation.shared.y, simulation.shared.q
        assert float((y - (before - (1 - (1 - beta) ** tau) * q)).abs().max()) < ROUNDING
        residuals.append(float(q.abs().max()))
    assert min(residuals) > VISIBLE


def test_fednest_with_variance_reduced_steps_of_one_is_that_with_a_constant_gradient():
    """At the common point the correction is 0; from the second local step on it is not."""
    for tau, same in ((1, True), (3, False)):
        nest = partial(FedNestComposition, T=2, tau=tau, alpha=0.2, beta=0.4)
        gap = distance(path(nest(), Chain()), path(nest(recompute_jacobian=True), Chain()))
        assert gap < ROUNDING if same else gap > VISIBLE


class OfStep(Gaussian):
    """A noise of ∇f alone, a function of the step: of ``first``, ``first`` + ``every``, ... in a round."""

    first, every = 0, 1

    def __call__(self, stream, size):
        numbers = stream.first + np.arange(stream.count)
        t = (stream.round - 1) * Q + (numbers - self.first) // self.every
        angles = 0.7 * t[:, None] * (1 + stream.clients)[:, None, None] * np.arange(1, DX + 1)
        noise = np.zeros((len(stream.clients), stream.count, size))
        noise[..., size - DX :] = self.scale * np.sin(angles)
        return noise * (numbers % self.every == self.first)[:, None]


class OfOuter(OfStep):
    """ξ is every second sample."""

    first, every = 1, 2


@pytest.mark.parametrize("group", [1, "all"])
def test_comfedl_with_the_identity_inside_is_fedavg(group):
    left = path(ComFedL(q=Q, eta=ETA), Plain(), noise=OfOuter(scale=0.3), group=group)
    averaging = plugin("fedavg", K=Q, eta=ETA, eta_g=1.0)
    right = path(averaging, PlainMinimisation(Plain()), noise=OfStep(scale=0.3), group=group)
    assert distance(left, right) < ROUNDING
    assert distance(left, path(ComFedL(q=Q, eta=ETA), Plain(), noise=None)) > VISIBLE


METHODS = {
    "ComFedL": ComFedL(q=3, eta=ETA, B_g=2, B_f=3),
    "LocalMOML": LocalMOML(H=3, eta=ETA, beta=0.4, K_0=2),
    "LocalSCGDM": LocalSCGDM(p=3, eta=ETA, beta=0.4),
    "own u": LocalSCGDM(p=3, eta=ETA, beta=0.4, average_inner=False),
    "LocalSCGD": LocalSCGD(p=3, eta=ETA, beta=0.4),
    "FedNest": FedNestComposition(T=2, tau=2, alpha=ETA, beta=0.4, first_y="mean", recompute_jacobian=True),
}


def rearranged(name, order, **settings):
    """Noise that goes with the clients."""
    noise = Renamed(scale=0.3, order=order)
    return path(METHODS[name], Rearranged(order=order), noise=noise, rounds=3, **settings)


@pytest.mark.parametrize("name", METHODS)
def test_d2_duplicated_clients(name):
    left = rearranged(name, (0, 1, 2))
    assert distance(left, rearranged(name, (0, 1, 2, 0, 1, 2))) < ROUNDING
    assert distance(left, rearranged(name, (0, 1, 2, 0))) > VISIBLE


@pytest.mark.parametrize("name", METHODS)
def test_d3_permuted_clients(name):
    left = rearranged(name, (0, 1, 2), weights="samples")
    assert distance(left, rearranged(name, (2, 0, 1), weights="samples")) < ROUNDING
    assert distance(left, rearranged(name, (0, 1, 2))) > VISIBLE


PERIODIC = {
    "ComFedL": (lambda q: ComFedL(q=q, eta=POWER), True),
    "LocalSCGDM": (lambda q: LocalSCGDM(p=q, eta=POWER, beta=0.4), True),
    "own u": (lambda q: LocalSCGDM(p=q, eta=POWER, beta=0.4, average_inner=False), True),
    "LocalMOML": (lambda q: LocalMOML(H=q, eta=POWER, beta=0.4, K_0=2), False),  # u begins anew
}


@pytest.mark.parametrize("name", PERIODIC)
def test_d6_the_period_is_nothing_to_one_client_that_keeps_its_inner_value(name):
    """12 steps in rounds of 1 to 12, with a noise that belongs to the step, of two samples."""
    method, keeps = PERIODIC[name]
    ends = [
        path(method(q), Chain(clients=1), noise=Timed(scale=0.3, q=2 * q), rounds=12 // q)[-1:]
        for q in (12, 1, 4)
    ]
    gap = max(distance(ends[0], end) for end in ends[1:])
    assert gap < ROUNDING if keeps else gap > VISIBLE


@pytest.mark.parametrize("group, reduction", [(1, "fused"), ("all", "exact")])
@pytest.mark.parametrize("name", ["LocalMOML", "FedNest", "FedNest, fresh"])
def test_d8_a_cohort_of_everybody_is_full_participation(name, group, reduction):
    fresh = FedNestComposition(T=2, tau=2, alpha=ETA, beta=0.4, fresh_cohort=True)
    method = fresh if name == "FedNest, fresh" else METHODS[name]
    run = partial(
        path, method, Chain(clients=5), batch_size=2, group=group, reduction=reduction, weights="samples"
    )
    assert np.array_equal(run(cohort=None), run(cohort=5))
    assert distance(run(cohort=None), run(cohort=4)) > VISIBLE
