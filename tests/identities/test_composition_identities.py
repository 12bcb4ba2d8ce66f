"""Compositional methods that coincide by theory, compared with each other.

These tests find errors that a method shares with its reference. Full batches with noise are used, so that a
noise distribution can give equal samples to two methods that number theirs differently.
"""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fields import DX, Chain, Square
from games import configuration, started
from identity_games import NOISE, ROUNDING, VISIBLE, Plain, PlainMinimisation, RearrangedChain, distance, path

from mpifed.algorithms import (
    ComFedL,
    FedAvg,
    FedNestComposition,
    LocalMOML,
    LocalSCGD,
    LocalSCGDM,
)
from mpifed.base.errors import ContractError
from mpifed.core.noise import Gaussian

ETA, Q, K_0 = 0.06, 3, 2
POWER = {"name": "power", "scale": 0.1, "offset": 2.0}

run = partial(path, batch_size=0)


class Readdressed(Gaussian):
    """Noise that gives sample j of round r the noise of the sample ``address(r, j)``."""

    def address(self, r, j):
        raise NotImplementedError

    def __call__(self, stream, size):
        parts = []
        for j in range(stream.first, stream.first + stream.count):
            one = copy.copy(stream)
            (one.round, one.first), one.count = self.address(stream.round, j), 1
            parts.append(Gaussian.__call__(self, one, size))
        return np.concatenate(parts, axis=1)


class AfterFirst(Readdressed):
    """Moves the first K_0 samples of a round to its end."""

    def address(self, r, j):
        return r, (j - K_0 if j >= K_0 else 100 + j)


class OfOuterStep(Gaussian):
    """Noise of ∇f only, a function of the step; ξ has the samples ``first``, ``first`` + ``every``, ... of
    a round."""

    first, every = 0, 1

    def __call__(self, stream, size):
        numbers = stream.first + np.arange(stream.count)
        t = (stream.round - 1) * Q + (numbers - self.first) // self.every
        angles = 0.7 * t[:, None] * (1 + stream.clients)[:, None, None] * np.arange(1, DX + 1)
        noise = np.zeros((len(stream.clients), stream.count, size))
        noise[..., size - DX :] = self.scale * np.sin(angles)
        return noise * (numbers % self.every == self.first)[:, None]


class EverySecond(OfOuterStep):
    first, every = 1, 2


def scgdm(**settings):
    return LocalSCGDM(**dict(p=Q, eta=POWER, alpha=1.0, beta=1.0) | settings)


def moml(**settings):
    return LocalMOML(**dict(H=Q, eta=POWER, beta=1.0, K_0=K_0) | settings)


def nest(**settings):
    return FedNestComposition(**dict(T=2, tau=1, alpha=0.2, beta=0.4) | settings)


COMFEDL = ComFedL(q=Q, eta=POWER)


@dataclass
class Identity:
    """``equal`` methods have the iterates of ``method``, ``unequal`` ones do not; ``left`` are their
    settings."""

    equal: list
    method: Any
    unequal: list
    left: dict
    right: dict
    problem: Any = None


IDENTITIES = {
    "Local-SCGD(M) with full weights": Identity(
        [scgdm(), scgdm(average_inner=False), LocalSCGD(p=Q, eta=POWER, beta=1.0)],
        COMFEDL,
        [scgdm(alpha=0.5), scgdm(beta=0.5)],
        {},
        {},
    ),
    "LocalMOML with full weight": Identity(
        [moml()],
        COMFEDL,
        [moml(beta=0.5), moml(first_order=True)],
        dict(noise=AfterFirst(scale=0.3)),
        {},
        Square(),
    ),
    "FedNest on equal clients": Identity(
        [nest(beta=1.0), nest(beta=1.0, first_y="mean")],
        ComFedL(q=1, eta=0.2),
        [nest(beta=0.5)],
        dict(noise=None),
        dict(noise=None),
        RearrangedChain(order=(1, 1, 1)),
    ),
    "FedNest with one variance-reduced step": Identity(
        [nest(recompute_jacobian=True)], nest(), [nest(recompute_jacobian=True, tau=3)], {}, {}
    ),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_methods_coincide(name):
    case = IDENTITIES[name]
    problem = case.problem or Chain()
    right = run(case.method, problem, **case.right)
    for methods, near in ((case.equal, True), (case.unequal, False)):
        for method in methods:
            gap = distance(run(method, problem, **case.left), right)
            assert gap < ROUNDING if near else gap > VISIBLE, (method, gap)


def test_fednest_on_different_clients_is_not_comfedl():
    """y is the mean inner value, which differs from each client's."""
    left = run(nest(beta=1.0), Chain(), noise=None)
    assert distance(left, run(ComFedL(q=1, eta=0.2), Chain(), noise=None)) > VISIBLE


def test_comfedl_with_the_identity_inside_is_fedavg():
    left = run(ComFedL(q=Q, eta=ETA), Plain(), noise=EverySecond(scale=0.3))
    right = run(FedAvg(K=Q, eta=ETA), PlainMinimisation(Plain()), noise=OfOuterStep(scale=0.3))
    assert distance(left, right) < ROUNDING


def test_first_order_needs_as_many_inner_values_as_variables():
    with pytest.raises(ContractError, match="expected as many inner values as variables, got 2 and 3"):
        run(moml(first_order=True), Chain())


@pytest.mark.parametrize("beta", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("tau", [1, 4])
def test_a_call_of_fednest_moves_y_by_a_known_share_of_the_residual(tau, beta):
    """y⁺ = y - (1 - (1 - β)^τ) q: the samples of the local steps cancel, those of q do not."""
    method = FedNestComposition(T=1, tau=tau, alpha=0.05, beta=beta)
    config = configuration(method, Chain(), "unused", batch_size=2, noise=NOISE)
    simulation = started(config)
    for _ in range(3):
        before = simulation.shared.y.clone()
        simulation.step()
        y, q = simulation.shared.y, simulation.shared.q
        torch.testing.assert_close(y, before - (1 - (1 - beta) ** tau) * q, rtol=0, atol=ROUNDING)
        assert float(q.abs().max()) > VISIBLE
