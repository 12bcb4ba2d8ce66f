"""Random problems are of the stated laws, and axes of figures have the stated units."""

import numpy as np
import pytest
from oracles import prepared

from mpifed.core.streams import generator
from mpifed.problems.games import AffineGame, Bilinear, L1BoxBilinear
from mpifed.report.figures import AXES


def uniform(values, low, high):
    """Within five standard errors of the mean and of the mean square, and near both ends."""
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
def test_starts_and_solutions_are_normal(kind, deviation):
    problem = prepared(kind)
    normal(problem.initial(generator(0, "initial"))["z"].numpy(), 1)
    normal(problem.solution().numpy(), deviation)


def test_units_of_axes():
    seconds = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600}
    counts = {"": 1, "thousands": 1e3, "millions": 1e6, "billions": 1e9}
    bytes_ = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    units = [{name: size for size, name in axis.units} for axis in AXES]
    assert units == [{"": 1}, counts, bytes_, seconds, seconds]
    assert [list(one.values()) == sorted(one.values()) for one in units] == [True] * 5
