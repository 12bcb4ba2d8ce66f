"""Identities of FESS-GDA, FSGDA and Smoothed-GDA: labels A... and D... as in the other files of this folder.

All runs are the package against itself, in float64 and one process, with minibatches and noise unless said
otherwise; equal numbers of local steps give the runs that are compared the same samples.
"""

import itertools

import numpy as np
import pytest
import torch
from games import DX, Game, configuration
from identity_games import BINDING, ROUNDING, VISIBLE, Exchanged, Rearranged, Renamed, Swapped, distance, path

from mpifed.algorithms import FESSGDA, FSGDA, LocalSGDA, SmoothedGDA
from mpifed.core.noise import Gaussian
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.simulation import Simulation

NOISE = Gaussian(scale=0.3)
SAMPLED = {"batch_size": 2, "noise": NOISE}
RATES = dict(K=3, eta_xl=0.03, eta_yl=0.02, eta_xg=1.3, eta_yg=0.9)
ROLES = dict(K=3, eta_xl=0.02, eta_yl=0.03, eta_xg=0.9, eta_yg=1.3)
PLAIN = dict(K=3, eta_xl=0.03, eta_yl=0.02, eta_xg=1.0, eta_yg=1.0)


def states(method, problem, out, rounds=5, **settings):
    """x, z and y after the start and after every round."""
    simulation = Simulation.from_settings(
        configuration(method, problem, out, rounds=rounds, **settings), SerialComm()
    )
    simulation.start()
    yield simulation.shared.x.clone(), simulation.shared.z.clone(), simulation.shared.y.clone()
    for _ in range(rounds):
        simulation.step()
        yield simulation.shared.x.clone(), simulation.shared.z.clone(), simulation.shared.y.clone()


@pytest.mark.parametrize("ball", [None, BINDING])
@pytest.mark.parametrize("cohort, weights", [(None, "samples"), (2, "uniform")])
@pytest.mark.parametrize("beta", [0.0, 0.4])
def test_a1_no_smoothing_makes_fsgda(tmp_path, beta, cohort, weights, ball):
    settings = SAMPLED | {"cohort": cohort, "weights": weights}
    right = path(FSGDA(**RATES), Game(ball=ball), tmp_path, **settings)
    assert (
        distance(path(FESSGDA(**RATES, p=0.0, beta=beta), Game(ball=ball), tmp_path, **settings), right)
        < ROUNDING
    )
    smoothed = path(FESSGDA(**RATES, p=2.0, beta=beta), Game(ball=ball), tmp_path, **settings)
    assert distance(smoothed, right) > VISIBLE
    assert distance(smoothed[:1], right[:1]) < ROUNDING  # z_0 = x_0: the first round has nothing to pull


@pytest.mark.parametrize("ball", [None, BINDING])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_a2_unit_global_rates_make_local_sgda(tmp_path, weights, ball):
    """A mean of points of the ball lies in it, so the server's projection adds nothing."""
    settings = SAMPLED | {"weights": weights}
    right = path(LocalSGDA(q=3, eta_x=0.03, eta_y=0.02), Game(ball=ball), tmp_path, **settings)
    for method in (FESSGDA(**PLAIN, p=0.0), FSGDA(**PLAIN)):
        assert distance(path(method, Game(ball=ball), tmp_path, **settings), right) < ROUNDING
    for rate in ("eta_xg", "eta_yg"):
        other = FESSGDA(**PLAIN | {rate: 0.7}, p=0.0)
        assert distance(path(other, Game(ball=ball), tmp_path, **settings), right) > VISIBLE


def gap_to_smoothed_gda(out, ball=None, eta_yg=1.0, clients=1, K=1, settings=SAMPLED):
    """FESS-GDA with two rates a block against Smoothed-GDA with their products."""
    rates = dict(K=K, eta_xl=0.05, eta_yl=0.08, eta_xg=1.3, eta_yg=eta_yg)
    game, smoothing = Game(clients=clients, ball=ball), dict(p=2.0, beta=0.3)
    left = path(FESSGDA(**rates, **smoothing), game, out, rounds=6, **settings)
    right = SmoothedGDA(eta_x=K * 0.05 * 1.3, eta_y=K * 0.08 * eta_yg, **smoothing)
    return distance(left, path(right, game, out, rounds=6, **settings))


@pytest.mark.parametrize("eta_yg", [1.0, 0.9])
def test_a3_one_client_and_one_step_are_smoothed_gda(tmp_path, eta_yg):
    """With several clients too, where nothing is projected: the mean of single steps is the step of the
    mean."""
    assert gap_to_smoothed_gda(tmp_path, eta_yg=eta_yg) < ROUNDING
    assert gap_to_smoothed_gda(tmp_path, eta_yg=eta_yg, clients=3) < ROUNDING
    assert gap_to_smoothed_gda(tmp_path, eta_yg=eta_yg, settings={}) < ROUNDING
    assert gap_to_smoothed_gda(tmp_path, eta_yg=eta_yg, K=2, settings={}) > VISIBLE


def test_a3c_a3d_a_projection_wants_a_unit_global_rate_of_y(tmp_path):
    """FESS-GDA goes the part η_yg of the way to the projected point, Smoothed-GDA projects a step of that
    part."""
    assert gap_to_smoothed_gda(tmp_path, ball=BINDING, eta_yg=1.0) < ROUNDING
    assert gap_to_smoothed_gda(tmp_path, ball=BINDING, eta_yg=0.5) > VISIBLE
    assert gap_to_smoothed_gda(tmp_path, ball=100.0, eta_yg=0.5) < ROUNDING


@pytest.mark.parametrize("p", [0.5, 5.0])
@pytest.mark.parametrize("cohort", [None, 2])
def test_a4_a_smoothing_point_that_keeps_up_makes_fsgda(tmp_path, cohort, p):
    """β = 1: z_t = x_t pulls nowhere."""
    settings = SAMPLED | {"cohort": cohort}
    right = path(FSGDA(**RATES), Game(), tmp_path, **settings)
    assert distance(path(FESSGDA(**RATES, p=p, beta=1.0), Game(), tmp_path, **settings), right) < ROUNDING
    near = path(FESSGDA(**RATES, p=p, beta=0.9), Game(), tmp_path, **settings)
    assert distance(near, right) > VISIBLE / 10  # x - z is a tenth of a step


def test_a4_for_smoothed_gda(tmp_path):
    """β = 1 or p = 0 leave one step of gradient descent ascent a round."""
    right = path(LocalSGDA(q=1, eta_x=0.05, eta_y=0.04), Game(), tmp_path, **SAMPLED)
    for smoothing in (dict(p=2.0, beta=1.0), dict(p=0.0, beta=0.3)):
        method = SmoothedGDA(eta_x=0.05, eta_y=0.04, **smoothing)
        assert distance(path(method, Game(), tmp_path, **SAMPLED), right) < ROUNDING


@pytest.mark.parametrize(
    "method",
    [
        FESSGDA(**RATES, p=2.0, beta=0.3),
        SmoothedGDA(eta_x=0.05, eta_y=0.04, p=2.0, beta=0.3),
        SmoothedGDA(eta_x=0.05, eta_y=0.04, p=2.0, beta=0.3, alternating=True),
    ],
)
def test_the_smoothing_point_averages_the_iterates(tmp_path, method):
    """z_{t+1} = z_t + β (x_{t+1} - z_t), from z_0 = x_0."""
    path = list(states(method, Game(), tmp_path))
    assert torch.equal(path[0][0], path[0][1])
    for (x, z, _), (x_next, z_next, _) in zip(path, path[1:]):
        assert (z_next - (0.7 * z + 0.3 * x_next)).abs().max() < ROUNDING
        assert (z_next - (0.7 * z + 0.3 * x)).abs().max() > VISIBLE  # not of the old x


def test_d1_smoothing_tells_x_from_y(tmp_path):
    """min max of f in (x, y) is min max of -f in (y, x) for FSGDA; FESS-GDA smooths x alone."""

    def gap(cls, **options):
        left = path(cls(**RATES, **options), Game(), tmp_path, **SAMPLED)
        right = path(cls(**ROLES, **options), Swapped(), tmp_path, batch_size=2, noise=Exchanged(scale=0.3))
        return distance(left, np.roll(right, DX, axis=1))

    assert gap(FSGDA) < ROUNDING
    assert gap(FESSGDA, p=0.0) < ROUNDING
    assert gap(FESSGDA, p=2.0) > VISIBLE


@pytest.mark.parametrize(
    "method",
    [
        FSGDA(**RATES),
        FESSGDA(**RATES, p=2.0, beta=0.3),
        SmoothedGDA(eta_x=0.05, eta_y=0.04, p=2.0, beta=0.3),
    ],
)
def test_d2_d3_duplicated_and_permuted_clients(tmp_path, method):
    """Only means over the clients enter, and their weights go with them."""

    def run(*order, **settings):
        noise = Renamed(scale=0.3, order=order)
        return path(method, Rearranged(order=order), tmp_path, batch_size=2, noise=noise, **settings)

    assert distance(run(0, 1, 2), run(0, 1, 2, 0, 1, 2)) < ROUNDING
    assert distance(run(0, 1, 2), run(0, 1, 2, 0)) > VISIBLE
    assert distance(run(0, 1, 2, weights="samples"), run(2, 0, 1, weights="samples")) < ROUNDING


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("group, reduction", list(itertools.product([1, "all"], ["fused", "exact"])))
def test_d8_a_cohort_of_everybody_is_full_participation(tmp_path, group, reduction, weights):
    settings = SAMPLED | dict(weights=weights, group=group, reduction=reduction)
    method = FESSGDA(**RATES, p=2.0, beta=0.3)
    full, everybody, fewer = (
        path(method, Game(clients=5), tmp_path, cohort=c, **settings) for c in (None, 5, 4)
    )
    assert np.array_equal(full, everybody)
    assert distance(full, fewer) > VISIBLE
