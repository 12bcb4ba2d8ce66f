"""The random lengths of the rounds of ProxSkip, and the random reference points of L-SVRGDA."""

import math

import drawn
import numpy as np
import pytest
from games import Game, configuration, started
from test_problems_without_y import Generated

from mpifed.algorithms import ProxSkipLSVRGDAFL, ProxSkipVIPFL
from mpifed.core.algorithm import Now
from mpifed.core.records import Blocks
from mpifed.core.sets import L1, Ball, Indicator, Sets
from mpifed.parallel.comm import CollectiveError
from mpifed.problems import AffineGame
from mpifed.simulation.simulation import Simulation

SEED, CLIENTS = 3, 4


def now(seed, r):
    return Now(r, 1, CLIENTS, CLIENTS, 1.0, False, Sets(), Blocks(), None, (seed, r))


@pytest.mark.parametrize("p", [0.9, 0.3, 0.02])
def test_lengths_of_rounds_are_geometric(p):
    method, count = ProxSkipVIPFL(gamma=0.1, p=p), 4000
    lengths = np.array([method.length(now(SEED, r)) for r in range(1, count + 1)])
    assert lengths.min() == 1
    # Four standard deviations of the mean, and of the share of rounds longer than L.
    assert abs(lengths.mean() - 1 / p) < 4 * math.sqrt((1 - p) / count) / p
    for L in (1, round(1 / p), round(2 / p)):
        share = (1 - p) ** L
        assert abs((lengths > L).mean() - share) < 4 * math.sqrt(share * (1 - share) / count)


def test_lengths_depend_on_the_seed_and_the_round():
    method = ProxSkipVIPFL(gamma=0.1, p=0.05)
    lengths = [[method.length(now(seed, r)) for r in range(1, 40)] for seed in (0, 0, 1)]
    assert lengths[0] == lengths[1] != lengths[2] and len(set(lengths[0])) > 10


def test_a_fixed_period_is_an_integer():
    assert ProxSkipVIPFL(gamma=0.1, p=1 / 49, period="fixed").length(now(0, 1)) == 49
    with pytest.raises(ValueError, match=r"expected 1/p to be an integer with period = 'fixed', got p = 0.3"):
        ProxSkipVIPFL(gamma=0.1, p=0.3, period="fixed")


@pytest.mark.parametrize("group", [1, 2, "all"])
def test_full_gradients_are_counted_for_the_clients_with_a_new_reference_point(tmp_path, group):
    q, p, rounds = 0.4, 0.3, 6
    method = ProxSkipLSVRGDAFL(gamma=0.01, p=p, q=q)
    config = configuration(method, Game(clients=CLIENTS), tmp_path, seed=SEED, group=group)
    simulation, expected = started(config), CLIENTS
    for r in range(1, rounds + 1):
        length = drawn.length(SEED, r, p)
        coins = [drawn.coin(SEED, k, r, j) < q for k in range(CLIENTS) for j in range(length)]
        expected += 2 * CLIENTS * length + sum(coins)
        simulation.step()
        assert simulation.rounds.costs.oracle_calls == expected


def test_generated_samples_need_a_probability_and_a_large_batch(tmp_path):
    def run(**more):
        method = ProxSkipLSVRGDAFL(gamma=0.01, p=0.5, **more)
        started(configuration(method, Generated(), tmp_path, noise=0), 1)

    with pytest.raises(CollectiveError, match="set algorithm.large_batch"):
        run(q=0.5)
    run(q=0.5, large_batch=4)


@pytest.mark.parametrize("phi", [L1(0.3), Indicator(Ball(0.4))], ids=["l1", "ball"])
def test_the_limit_solves_the_composite_inequality(phi):
    """The proximal map with another weight, or of the average without the mean of h, has another limit."""
    problem = AffineGame(clients=4, d=4, heterogeneity=0.5, phi=phi, start="zero")
    method = ProxSkipVIPFL(gamma=0.1, p=0.5)
    simulation = Simulation(problem, method, run={"dtype": "float64"})
    simulation.start()
    for _ in range(400):
        simulation.step()
    assert simulation.evaluate()["distance"] < 1e-8  # the slowest rounds contract by 0.95
