"""Inner problems against their exact solutions, on the whole space and on sets."""

import math

import pytest
import torch

from mpifed.core.sets import Ball, Box, Simplex
from mpifed.core.solvers import NEWTON_VARIABLES, Budget, maximise, solve_saddle

EXACT = Budget(1e-10, 2000)


def quadratic(d: int, seed: int = 0):
    """H, b of bᵀy - yᵀHy/2 with eigenvalues from 1 to 100."""
    torch.manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))
    return Q @ torch.diag(torch.logspace(0, 2, d, dtype=torch.float64)) @ Q.mT, torch.randn(d).double()


class Counted:
    """A field that counts its evaluations."""

    def __init__(self, field):
        self.field, self.calls = field, 0

    def __call__(self, point):
        self.calls += 1
        return self.field(point)


@pytest.mark.parametrize("d", [1, 5, NEWTON_VARIABLES])
def test_quadratic_needs_one_jacobian(d):
    """d + 1 gradients for the Jacobian, and two or three steps against the rounding of its differences."""
    H, b = quadratic(d)
    field = Counted(lambda y: b - H @ y)
    solved = maximise(field, torch.zeros(d).double(), EXACT)
    torch.testing.assert_close(solved.point, torch.linalg.solve(H, b), rtol=1e-9, atol=1e-10)
    assert solved.residual <= 1e-10 and field.calls <= d + 5


def test_flat_directions_are_not_changed():
    """Where H is singular the maximiser nearest to the start is found."""
    solved = maximise(lambda y: torch.stack([1 - y[0], 0 * y[1]]), torch.tensor([3.0, 7.0]).double(), EXACT)
    torch.testing.assert_close(solved.point, torch.tensor([1.0, 7.0]).double(), rtol=0, atol=1e-9)


def test_many_variables_by_ascent():
    d = 2 * NEWTON_VARIABLES
    H, b = quadratic(d)
    solved = maximise(lambda y: b - H @ y, torch.zeros(d).double(), EXACT)
    torch.testing.assert_close(solved.point, torch.linalg.solve(H, b), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_linear_function_ends_in_a_vertex_of_the_simplex(seed):
    torch.manual_seed(seed)
    slope = torch.rand(10).double()
    solved = maximise(lambda y: slope, torch.full((10,), 0.1).double(), EXACT, Simplex())
    assert solved.point.argmax() == slope.argmax() and solved.residual <= 1e-10
    torch.testing.assert_close(solved.point.max(), torch.tensor(1.0).double())


@pytest.mark.parametrize("project", [Ball(0.3), Box(-0.2, 0.1), Simplex()], ids=["ball", "box", "simplex"])
def test_a_quadratic_on_a_set(project):
    """Against a long projected ascent with the step 1 / largest eigenvalue, which contracts by 0.99."""
    H, b = quadratic(6)
    y = torch.zeros(6).double()
    for _ in range(6000):
        y = project(y + (b - H @ y) / 100)
    solved = maximise(lambda y: b - H @ y, project(torch.ones(6).double()), EXACT, project)
    torch.testing.assert_close(solved.point, y, rtol=0, atol=1e-9)


def test_minimum_is_not_accepted_as_maximum():
    """sin from near its minimum: Newton's step would go there, ascent leaves."""
    solved = maximise(torch.cos, torch.tensor([-1.5]).double(), EXACT)
    assert math.sin(float(solved.point)) == pytest.approx(1)


def test_residual_is_returned_when_the_budget_is_spent():
    H, b = quadratic(2 * NEWTON_VARIABLES)
    field = Counted(lambda y: b - H @ y)
    solved = maximise(field, torch.zeros(2 * NEWTON_VARIABLES).double(), Budget(1e-10, 20))
    assert field.calls <= 20 and solved.residual > 1e-3
    assert solved.residual == pytest.approx(float((b - H @ solved.point).norm()))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_gradients_stop_the_solver(value):
    solved = maximise(lambda y: y * 0 + value, torch.ones(3).double(), EXACT)
    assert not math.isfinite(solved.residual)


def saddle(dx: int, dy: int):
    """Field (-∇_x f, ∇_y f) of ‖x‖²/2 + xᵀRy - ‖y‖²/2 + pᵀx + sᵀy, and its zero."""
    torch.manual_seed(1)
    R, p, s = (torch.randn(*shape).double() for shape in ((dx, dy), (dx,), (dy,)))
    J = torch.cat([torch.cat([-torch.eye(dx), -R], 1), torch.cat([R.mT, -torch.eye(dy)], 1)])
    shift = torch.cat([-p, s])
    return lambda z: J @ z + shift, torch.linalg.solve(J, -shift)


@pytest.mark.parametrize(
    "dx, dy", [(3, 2), (NEWTON_VARIABLES + 8, NEWTON_VARIABLES + 8)], ids=["newton", "extragradient"]
)
def test_a_saddle(dx, dy):
    field, zero = saddle(dx, dy)
    solved = solve_saddle(field, torch.ones(dx + dy).double(), dx, EXACT)
    torch.testing.assert_close(solved.point, zero, rtol=0, atol=1e-9)


def test_a_saddle_on_a_set():
    """A zero of the natural map, which is a solution as the field is strongly monotone."""
    field, _ = saddle(3, 2)

    def inside(z):
        return torch.cat([z[:3].clamp(-0.1, 0.1), Simplex()(z[3:])])

    solved = solve_saddle(field, inside(torch.zeros(5).double()), 3, EXACT, inside)
    z = solved.point
    assert float((inside(z + field(z)) - z).norm()) <= 1e-10
