"""Random games have the documented distributions."""

import numpy as np
import pytest
from oracles import prepared

from mpifed.core.streams import generator
from mpifed.problems.games import AffineGame, Bilinear, L1BoxBilinear


def uniform(values, low, high):
    """Mean and mean square are within five standard errors, and the extremes near both ends."""
    values = np.ravel(values)
    unit, five = (2 * values - low - high) / (high - low), 5 / np.sqrt(len(values))
    assert abs(unit).max() <= 1 and unit.max() > 1 - 2 * five and unit.min() < 2 * five - 1
    assert abs(unit.mean()) < five / np.sqrt(3) and abs((unit**2).mean() - 1 / 3) < five * np.sqrt(4 / 45)


def normal(values, deviation):
    values = np.ravel(values) / deviation
    five = 5 / np.sqrt(len(values))
    assert abs(values.mean()) < five and abs((values**2).mean() - 1) < five * np.sqrt(2)


def test_the_bilinear_game_on_a_box_is_uniform():
    problem = prepared(L1BoxBilinear(dx=400, dy=300, clients=1, bound=0.2))
    c = problem.mean_operator(np.zeros(700))
    assert not c[:400].any()
    uniform(c[400:], -1, 1)
    uniform([problem.mean_operator(row)[400:] - c[400:] for row in np.eye(700)[:400]], -1, 1)
    uniform(problem.initial(generator(0, "initial"))["z"].numpy(), -0.2, 0.2)
    assert problem.phi.lam == problem.lam and problem.phi.bound == 0.2


@pytest.mark.parametrize(
    "kind, deviation", [(Bilinear(dx=300, dy=200, clients=1), 2), (AffineGame(d=300, clients=1), 1)]
)
def test_starting_points_and_solutions_are_normal(kind, deviation):
    problem = prepared(kind)
    normal(problem.initial(generator(0, "initial"))["z"].numpy(), 1)
    normal(problem.solution().numpy(), deviation)
