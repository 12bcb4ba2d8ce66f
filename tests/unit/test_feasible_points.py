"""Points outside the problem's sets, up to rounding errors."""

import pytest
import torch
from bounded import Watched
from oracles import prepared

import mpifed
from mpifed.algorithms import LocalSGDA
from mpifed.core.problem import as_family
from mpifed.core.sets import Ball, Simplex
from mpifed.problems import AffineGame, MatrixGame, QuadraticNCPL
from mpifed.simulation.feasibility import infeasibility, projections


def outside(problem, *point) -> str:
    """Return the message about a point, given as flat blocks in the order of the problem."""
    blocks = problem.variables()
    named = [blocks.unflatten(block, flat) for block, flat in zip(blocks, point)]
    return infeasibility(problem, projections(problem), named)


@pytest.fixture
def game():
    problem = prepared(Watched(set_x=Ball(0.5), set_y=Simplex()))
    return problem


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rounding_errors_are_feasible(game, dtype):
    """The centre of the simplex off by a hundred ε; a thousandth beyond the ball."""
    x, y = torch.tensor([0.5, 0, 0], dtype=dtype), torch.full((2,), 0.5, dtype=dtype)
    assert outside(game, x, y + 100 * torch.finfo(dtype).eps) == ""
    assert outside(game, x + 1e-3, y) == "x is 0.001 away from its set"
    assert outside(game, x, y + 0.1) == "y is 0.141 away from its set"


def test_non_finite_values_are_not_infeasible(game):
    assert outside(game, torch.full((3,), torch.nan), torch.full((2,), torch.inf)) == ""


def test_a_game_has_the_blocks_of_its_problem(game):
    point = torch.tensor([0.0, 0, 0, 1, 1])
    assert outside(as_family(game, "operator"), point) == "y is 0.707 away from its set"


def test_the_domain_of_a_convex_part_is_a_set():
    problem = prepared(MatrixGame(clients=2, dx=2, dy=2))
    assert outside(problem, torch.full((4,), 0.5)) == ""
    assert outside(problem, torch.ones(4)) == "z is 1 away from its set"


@pytest.mark.parametrize("kind", [AffineGame, QuadraticNCPL])
def test_problem_without_sets_has_no_projections(kind):
    """The second one defines a function ``phi``."""
    problem = prepared(kind(clients=2))
    assert projections(problem) == []


class Outside(Watched):
    """A problem that starts outside its sets."""

    def initial(self, rng):
        return {"x": torch.ones(self.variables().sizes["x"])}


def test_an_infeasible_starting_point_is_the_error_of_the_problem(capsys):
    method = LocalSGDA(q=1, eta_x=0.0, eta_y=0.0)
    simulation = mpifed.Simulation(Outside(set_x=Ball(0.5), set_y=Simplex()), method)
    simulation.start()
    simulation.evaluate(simulation.output)
    assert "after round 0: initial() of Outside must return a point in the sets" in capsys.readouterr().err


def test_a_method_of_the_package_is_not_blamed(capsys):
    """It projects, so that only rounding errors can move an iterate out of a set."""
    method = LocalSGDA(q=1, eta_x=0.0, eta_y=0.0)
    simulation = mpifed.Simulation(Watched(set_x=Ball(0.5), set_y=Simplex()), method)
    simulation.start()
    simulation.step()
    simulation.shared.y = simulation.shared.y + 1e9
    simulation.evaluate()
    said = capsys.readouterr().err
    assert "coordinates up to 1e+09: reduce the step sizes" in said and "must project" not in said
