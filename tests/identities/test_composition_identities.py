"""Identities of MFCGD and AdaMFCGD: labels C... and D... are those of the lists of known identities.

All runs are in float64 and one process. ComFedL, the plug-in method that they are compared with, is written
out below; it asks for the samples that the package draws, through ``fields.reference_chain``.
"""

from __future__ import annotations

from functools import partial

import compositions
import numpy as np
import pytest
import torch
from compositions import Plain, PlainMinimisation, Rearranged
from fields import DX, Chain, reference_chain
from identity_games import ROUNDING, VISIBLE, Renamed, Timed, distance

from mpifed.algorithms import MFCGD, AdaMFCGD, LocalSGDA
from mpifed.core.noise import Gaussian
from mpifed.core.streams import Stream, generator

SEED, NOISE = 1, Gaussian(scale=0.3)
GAMMA, ETA, Q = 0.06, 0.9, 3
POWER = {"name": "power", "scale": 1.5, "offset": 2.0}
#: (α, β, ϱ); the last follow the step size.
MOMENTA = [
    (1.0, 1.0, 1.0),
    (0.3, 0.6, 0.45),
    (0.0, 0.0, 0.0),
    ({"name": "squared", "c": 0.4}, 0.2, POWER | {"scale": 0.5}),
]
GROUPS = [1, "all"]

path = partial(compositions.path, noise=NOISE)


def mfcgd(momenta=(0.3, 0.6, 0.45), cls=MFCGD, **settings):
    weights = dict(zip(["alpha", "beta", "varrho"], momenta))
    return cls(**{"q": Q, "gamma": GAMMA, "eta": ETA, **weights, **settings})


def comfedl(problem, *, noise=NOISE, rounds=4, batch_size=2, q=Q, gamma=GAMMA, eta=lambda t: ETA):
    """ComFedL: x ← x - γη_t J(x)ᵀ∇f(g(x)) with fresh samples at every client, averages every q steps; batch
    1, but the q samples of the start in the first step."""
    problem.prepare(SEED)
    inner, jacobian, outer_grad = reference_chain(problem, SEED, q, batch_size, noise)
    x0, points = problem.initial(generator(SEED, "initial"))["x"], []
    x = [x0] * problem.clients

    def mean(values):
        return sum(values) / len(values)

    for t in range(1, rounds * q + 1):
        keys = [("init", j) for j in range(q)] if t == 1 else [("step", t)]
        for k in range(problem.clients):
            g, J = (mean([part(k, x[k], key) for key in keys]) for part in (inner, jacobian))
            x[k] = x[k] - gamma * eta(t) * J.T @ mean([outer_grad(k, g, key) for key in keys])
        if t % q == 0:
            x = [mean(x)] * problem.clients
            points.append(x[0].numpy())
    return np.array(points)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.parametrize("eta, rate", [(ETA, lambda t: ETA), (POWER, lambda t: 1.5 / (2 + t) ** (1 / 3))])
def test_c1_full_weights_make_comfedl(q, eta, rate, group):
    left = path(mfcgd((1.0, 1.0, 1.0), eta=eta, q=q), Chain(), group=group)
    assert distance(left, comfedl(Chain(), q=q, eta=rate)) < ROUNDING


@pytest.mark.parametrize("momenta", [(0.3, 1.0, 1.0), (1.0, 0.3, 1.0), (1.0, 1.0, 0.3)])
def test_c1_needs_all_three_weights(momenta):
    assert distance(path(mfcgd(momenta), Chain()), comfedl(Chain())) > VISIBLE


@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.parametrize("momenta", MOMENTA)
def test_c2_without_noise_every_weight_makes_comfedl(momenta, q):
    settings = dict(noise=None, batch_size=0, rounds=6)
    left = path(mfcgd(momenta, q=q), Chain(clients=4), **settings)
    assert distance(left, comfedl(Chain(clients=4), q=q, **settings)) < ROUNDING


@pytest.mark.parametrize("first", ["rule", "identity", "rho"])
@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.parametrize("group", GROUPS)
def test_identity_matrices_make_mfcgd(group, q, first):
    options = dict(q=q, eta=POWER, C_g=0.8, C_f=0.5)
    left = path(mfcgd(cls=AdaMFCGD, matrix="identity", first_matrix=first, **options), Chain(), group=group)
    assert np.array_equal(
        left, path(mfcgd(**options), Chain(), group=group)
    )  # a division by 1 changes no bit


@pytest.mark.parametrize("matrix", ["adam", "adabelief", "norm"])
def test_large_offsets_make_mfcgd(matrix):
    """A = ρ (I + O(1 / ρ)) with γ / ρ fixed."""
    right = path(mfcgd(), Chain())
    gaps = [
        distance(
            right, path(mfcgd(cls=AdaMFCGD, gamma=GAMMA * rho, matrix={"name": matrix, "rho": rho}), Chain())
        )
        for rho in (1e3, 1e5)
    ]
    assert gaps[0] < 1e-2
    assert gaps[1] < gaps[0] / 50  # a factor 100, to first order in 1 / ρ


@pytest.mark.parametrize("bounds", [{"C_g": 0.5}, {"C_f": 0.3}])
def test_bounds_bind_only_where_they_are_small(bounds):
    free = path(mfcgd(), Chain())
    assert distance(free, path(mfcgd(**bounds), Chain())) > VISIBLE
    large = dict.fromkeys(bounds, 1000.0)
    assert distance(free, path(mfcgd(**large), Chain())) == 0


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("momenta", MOMENTA)
def test_with_the_identity_inside_it_is_fedavg(momenta, group):
    """Local-SGDA without y, and the plain loop; without noise, for their samples have other addresses."""
    problem, settings = Plain(), dict(noise=None, batch_size=0, group=group)
    left = path(mfcgd(momenta), problem, **settings)
    local = LocalSGDA(q=Q, eta_x=GAMMA * ETA, eta_y=0.0)
    assert distance(left, path(local, PlainMinimisation(Plain()), **settings)) < ROUNDING
    x, points = problem.initial(generator(SEED, "initial"))["x"], []
    for _ in range(len(left)):
        ends = []
        for rows in problem.rows:
            z = x
            for _ in range(Q):
                z = z - GAMMA * ETA * (rows * torch.tanh(rows @ z - 1)[:, None]).mean(0)
            ends.append(z)
        x = sum(ends) / len(ends)
        points.append(x.numpy())
    assert distance(left, np.array(points)) < ROUNDING


class Summed(Gaussian):
    """Noise of ∇f alone, a function of the sample."""

    def __call__(self, stream, size):
        noise = super().__call__(stream, size)
        noise[..., : size - DX] = 0.0
        return noise


def test_with_the_identity_inside_full_weights_make_fedavg_on_the_samples_of_f():
    """Step t > 1 of MFCGD takes ξ number 2((t - 1) mod q) + 1 of its round, step 1 averages those of round
    0."""
    problem, rounds, noise = Plain(), 4, Summed(scale=0.3)
    left = path(mfcgd((1.0, 0.3, 1.0)), problem, noise=noise, batch_size=0, rounds=rounds)
    x = [problem.initial(generator(SEED, "initial"))["x"]] * problem.clients
    points, size = [], 2 * DX + DX * DX
    for t in range(1, rounds * Q + 1):
        r, j = (t - 1) // Q + 1, (t - 1) % Q
        for k, rows in enumerate(problem.rows):
            draws = noise(Stream(SEED, "noise", [k], 0 if t == 1 else r, 2 * Q), size)[0, 1::2, -DX:]
            xi = torch.from_numpy(draws.mean(0) if t == 1 else draws[j])
            x[k] = x[k] - GAMMA * ETA * ((rows * torch.tanh(rows @ x[k] - 1)[:, None]).mean(0) + xi)
        if t % Q == 0:
            x = [sum(x) / len(x)] * len(x)
            points.append(x[0].numpy())
    assert distance(left, np.array(points)) < ROUNDING


def methods():
    matrices = ["adam", "adabelief", "amsgrad", "norm", "adagrad_norm", "barzilai_borwein"]
    options = {name: {"name": name, "rho": 0.3} for name in matrices}
    return {
        "MFCGD": mfcgd(),
        "bounds": mfcgd(C_g=0.8, C_f=0.5),
        **{name: mfcgd(cls=AdaMFCGD, matrix=matrix) for name, matrix in options.items()},
    }


def rearranged(name, order, **settings):
    """Full batches, and noise that goes with the clients."""
    settings = {"batch_size": 0, "rounds": 3, "noise": Renamed(scale=0.3, order=order), **settings}
    return path(methods()[name], Rearranged(order=order), **settings)


@pytest.mark.parametrize("name", methods())
def test_d2_duplicated_clients(name):
    left = rearranged(name, (0, 1, 2))
    assert distance(left, rearranged(name, (0, 1, 2, 0, 1, 2))) < ROUNDING
    assert distance(left, rearranged(name, (0, 1, 2, 0))) > VISIBLE


@pytest.mark.parametrize("name", methods())
def test_d3_permuted_clients(name):
    settings = dict(weights="samples")
    left = rearranged(name, (0, 1, 2), **settings)
    assert distance(left, rearranged(name, (2, 0, 1), **settings)) < ROUNDING
    assert distance(left, rearranged(name, (0, 1, 2))) > VISIBLE


@pytest.mark.parametrize("momenta", MOMENTA)
def test_d6_the_period_is_nothing_to_one_client(momenta):
    """12 steps in rounds of 1 to 12, with a noise that belongs to the step: 2 samples each, 0 at the
    start."""

    def end(q, **options):
        method = mfcgd(momenta, q=q, eta=POWER, C_g=0.8, C_f=0.5, **options)
        return path(method, Chain(clients=1), noise=Timed(scale=0.3, q=2 * q), rounds=12 // q, batch_size=0)[
            -1:
        ]

    assert max(distance(end(12), end(q)) for q in (1, 2, 4)) < ROUNDING
    adaptive = dict(cls=AdaMFCGD, matrix="adam")
    assert (
        distance(end(12, **adaptive), end(4, **adaptive)) > VISIBLE
    )  # its matrix is refreshed at synchronisations
