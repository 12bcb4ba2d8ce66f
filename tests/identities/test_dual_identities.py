"""Identities of the dual methods, with all mirror maps; labels B... are those of the lists of identities.

All runs are in float64 and one process, with minibatches and noise at the same addresses on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from fields import Field, reference_operator
from identity_games import ROUNDING, VISIBLE, distance
from test_variational_identities import ETA, NOISE, SEED, gap, simulate

from mpifed.algorithms import LESGD, LSGD, FedDualAvg, FeDualEx, LocalDualExtrapolation
from mpifed.core.sets import (
    L1,
    Ball,
    Blockwise,
    Box,
    Entropy,
    Euclidean,
    Indicator,
    Nuclear,
    Separable,
    Simplex,
    Zero,
)
from mpifed.core.streams import generator
from mpifed.problems import MatrixGame

Z_ONLY = dict(sync_extrapolation=False)


@dataclass
class Inside(Field):
    """The field, started inside a simplex of total 3."""

    def initial(self, rng):
        return {"z": torch.tensor([0.3, 0.7, 0.5, 1.5], dtype=torch.float64)}


TWO = Separable({"x": Indicator(Simplex(1.0)), "y": Indicator(Simplex(2.0))}, (2, 2))
#: φ and a mirror map that goes with it.
MIRRORS = {
    "zero": (Zero(), Euclidean()),
    "l1": (L1(lam=0.4), Euclidean()),
    "nuclear": (Nuclear(shape=(2, 2), lam=0.4), Euclidean()),
    "ball": (Indicator(set=Ball(0.7)), Euclidean()),
    "box": (Indicator(set=Box(-0.5, 0.4)), Euclidean()),
    "projected simplex": (Indicator(set=Simplex(3.0)), Euclidean()),
    "entropy": (Indicator(set=Simplex(3.0)), Entropy()),
    "entropy of two": (TWO, Entropy()),
    "entropy and projection": (TWO, Blockwise(x="entropy")),
}


@pytest.mark.parametrize("group", [1, "all"])
def test_b6_fedualex_without_phi_is_lesgd_that_averages_z_only(group):
    """At the ends of rounds, outputs too: without φ the image of a mean is the mean of the images."""
    right = simulate(LESGD(K=3, eta=ETA, **Z_ONLY), Field(), group=group)
    for shadow in (True, False):
        left = simulate(FeDualEx(K=3, eta_c=ETA, shadow=shadow), Field(), group=group)
        assert gap(left, right) < ROUNDING
    assert gap(simulate(FeDualEx(K=3, eta_c=ETA, eta_s=0.7), Field()), right) > VISIBLE
    assert gap(left, simulate(LESGD(K=3, eta=ETA), Field())) > VISIBLE


@pytest.mark.parametrize("name", MIRRORS)
def test_b7_fedualex_is_dual_extrapolation_that_averages_z_only(name):
    """The duals at the ends of rounds, and the outputs where both average the clients' points."""
    phi, mirror = MIRRORS[name]
    problem, eta = Inside(phi=phi), 0.2
    left = simulate(FeDualEx(K=3, eta_c=eta, shadow=False, mirror=mirror), problem, field="dual")
    both = [
        simulate(LocalDualExtrapolation(K=3, eta=eta, mirror=mirror, **options), problem, field="dual")
        for options in (Z_ONLY, {})
    ]
    assert gap(left, both[0]) < ROUNDING
    assert gap(left, both[1]) > VISIBLE
    _, shadows = simulate(FeDualEx(K=3, eta_c=eta, mirror=mirror), problem)
    moved = distance(shadows, left[1])
    assert moved < ROUNDING if name == "zero" else moved > 1e-5  # means of images are no images of means


def test_points_of_dual_extrapolation_have_the_sparsity_and_rank_that_phi_gives():
    """Averages of z alone. In the first rounds the clients' own points differ in their zeros and ranges."""
    l1, nuclear = L1(lam=0.9), Nuclear(shape=(2, 2), lam=0.9)

    def seen(phi, field):
        return simulate(LocalDualExtrapolation(K=3, eta=0.2, **Z_ONLY), Inside(phi=phi), field=field)[0]

    points, duals = (seen(l1, field) for field in ("z", "dual"))
    images = [l1(torch.tensor(dual), 0.2 * 3 * r).numpy() for r, dual in enumerate(duals, 1)]
    np.testing.assert_allclose(points, images, rtol=0, atol=ROUNDING)
    assert (points[:2] == 0).sum(axis=1).tolist() == [2, 4]
    assert np.linalg.matrix_rank(seen(nuclear, "z")[0].reshape(2, 2), tol=ROUNDING) == 1


@pytest.mark.parametrize("group", [1, "all"])
def test_b8_dual_averaging_without_phi_is_lsgd(group):
    right, _ = simulate(LSGD(K=3, eta=ETA), Field(), group=group)
    for rate in (1.0, 0.7):
        left, _ = simulate(FedDualAvg(K=3, eta_c=ETA, eta_s=rate), Field(), group=group)
        assert distance(left, right) < ROUNDING if rate == 1 else distance(left, right) > VISIBLE


METHODS = {
    "LDE": lambda mirror: LocalDualExtrapolation(K=3, eta=0.2, mirror=mirror),
    "FedDualAvg": lambda mirror: FedDualAvg(K=3, eta_c=0.2, eta_s=0.7, mirror=mirror),
    "FeDualEx": lambda mirror: FeDualEx(K=3, eta_c=0.2, eta_s=0.7, mirror=mirror),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("whole", [Euclidean(), Entropy()], ids=["euclidean", "entropy"])
def test_one_mirror_map_in_both_blocks_is_that_map(method, whole):
    """To the last bit; another map in a block is another method."""
    left, right, other = (
        simulate(METHODS[method](mirror), Inside(phi=TWO), field="z")
        for mirror in (whole, Blockwise(x=whole.choice_name, y=whole.choice_name), Blockwise(y="entropy"))
    )
    assert gap(left, right) == 0 and gap(left, other) > VISIBLE


@pytest.mark.parametrize("method", METHODS)
def test_entropy_stays_inside_the_simplex_and_projections_do_not(method):
    for mirror in (Entropy(), Euclidean()):
        points, _ = simulate(METHODS[method](mirror), Inside(phi=TWO), rounds=8)
        np.testing.assert_allclose(points[:, :2].sum(1), 1.0, rtol=0, atol=ROUNDING)
        np.testing.assert_allclose(points[:, 2:].sum(1), 2.0, rtol=0, atol=ROUNDING)
        assert points.min() > 0 if isinstance(mirror, Entropy) else points.min() == 0


def test_entropy_with_one_client_and_step_is_multiplicative_weights():
    """Mirror-prox in closed form: x_i ∝ x_i exp(-η (Ay)_i), y_j ∝ y_j exp(η (Aᵀx)_j), first to a trial point,
    then from the same weights by the payoffs at the trial."""
    game, eta, rounds = MatrixGame(dx=4, dy=3, clients=1, start="random"), 0.3, 12
    methods = (
        LocalDualExtrapolation(K=1, eta=eta, mirror="entropy"),
        FeDualEx(K=1, eta_c=eta, mirror="entropy"),
    )
    runs = [simulate(one, game, noise=None, batch_size=0, rounds=rounds) for one in methods]
    A = game.client_data(0)[0][0].numpy()
    z, trials, ends = game.initial(generator(SEED, "initial"))["z"].numpy(), [], []

    def reweighted(z, at):
        x, y = at[:4], at[4:]
        x, y = z[:4] * np.exp(-eta * (A @ y)), z[4:] * np.exp(eta * (A.T @ x))
        return np.concatenate([x / x.sum(), y / y.sum()])

    for _ in range(rounds):
        trial = reweighted(z, z)
        z = reweighted(z, trial)
        trials.append(trial)
        ends.append(z)
    averages = np.cumsum(trials, axis=0) / np.arange(1, rounds + 1)[:, None]
    assert max(distance(outputs, averages) for _, outputs in runs) < ROUNDING
    assert distance(runs[1][0], np.array(ends)) < ROUNDING
    assert distance(runs[0][0], np.array(trials)) < ROUNDING  # its point of a round is v


def test_dual_averages_keep_zeros_that_primal_averages_lose():
    """Where a client's coordinate is 0 but not that of all, the average of the points is not 0. Averages of
    duals are cut to 0 afterwards."""
    problem, lam, eta, K, rounds = Field(phi=L1(lam=0.5)), 0.5, 0.1, 4, 6
    points, _ = simulate(FedDualAvg(K=K, eta_c=eta), problem, rounds=rounds)
    operator = reference_operator(problem, SEED, K, 1, 2, NOISE)
    w, means = problem.initial(generator(SEED, "initial"))["z"], []
    for r in range(rounds):  # federated mirror descent: the same steps and φ, averages of points
        ends = []
        for n in range(problem.clients):
            w_n = w
            for k in range(K):
                v = w_n - eta * operator(n, w_n, (r * K + k + 1, 0))
                w_n = v.sign() * (v.abs() - eta * lam).clamp(min=0)
            ends.append(w_n)
        w = sum(ends) / len(ends)
        means.append(w.numpy())
    own = [(end == 0).any() for end in ends]
    assert any(own) and (np.array(means) != 0).all()
    assert (points[1:] == 0).any(axis=1).all()
