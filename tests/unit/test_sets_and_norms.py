"""Sets and proximal maps: the simplex compared with a plain loop, far points, the nuclear norm, non-finite
values."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from reference import proximal

from mpifed.core.sets import Ball, Box, Entropy, Indicator, L1Ball, L1Box, Nuclear, Separable, Sets, Simplex
from mpifed.core.streams import generator


@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0])
def test_simplex_agrees_with_a_plain_loop(scale):
    """Around the centre, where all coordinates stay or nearly; 1e-14: sums of six numbers of size 1."""
    points = torch.from_numpy(1 / 6 + scale * np.random.default_rng(3).standard_normal((200, 6)))
    expected = torch.stack([proximal.simplex(point, 0.0) for point in points])
    torch.testing.assert_close(Simplex()(points), expected, rtol=0, atol=1e-14 * (1 + scale))
    torch.testing.assert_close(
        Simplex(total=2.5)(2.5 * points), 2.5 * expected, rtol=0, atol=1e-13 * (1 + scale)
    )


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_l1_ball_agrees_with_a_plain_loop(scale):
    """Inside, where no point moves, near the border, and far outside; 1e-14: as for the simplex."""
    points = torch.from_numpy(scale * np.random.default_rng(5).standard_normal((20, 10, 6)))
    expected = torch.stack([proximal.l1_ball(point, 1.5) for point in points.reshape(-1, 6)])
    projected = L1Ball(1.5)(points)
    torch.testing.assert_close(projected.reshape(-1, 6), expected, rtol=0, atol=1e-14 * (1 + scale))
    inside = points.abs().sum(-1) <= 1.5
    assert torch.equal(projected[inside], points[inside])


def test_value_of_the_nuclear_norm():
    """diag(3, -4) has the singular values 4 and 3."""
    diagonal = torch.tensor([[3.0, 0.0, 0.0, -4.0]], dtype=torch.float64)
    assert Nuclear(shape=(2, 2), lam=0.1).value(diagonal).tolist() == pytest.approx([0.7], rel=1e-15)


def test_value_of_an_indicator_function():
    assert Indicator(Ball(2.0)).value(torch.ones(3, 4)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda sets: pickle.loads(pickle.dumps(sets))])
def test_sets_are_copied(copied):
    assert copied(Sets(y=Ball(2.0))).y == Ball(2.0)


def test_empty_box_is_refused():
    with pytest.raises(ValueError, match="low < high"):
        Box(low=0.5, high=0.5)


def test_a_box_may_have_one_bound():
    point = torch.tensor([-2.0, 3.0])
    assert Box(low=0.0, high=math.inf)(point).tolist() == [0.0, 3.0]
    assert Box(low=-math.inf, high=0.0)(point).tolist() == [-2.0, 0.0]
    with pytest.raises(ValueError, match="low < high, got low = nan"):
        Box(low=math.nan, high=math.inf)


DTYPES = [torch.float32, torch.float64]
#: Factors by which points are far outside, up to the largest number, and the smallest ones.
SIZES = [1e-38, 1e-19, 1e-3, 1.0, 1e4, 1e8, 1e18, 1e30, 3e38]
BALL, SIMPLEX, BOX = Ball(0.5, center=0.25), Simplex(total=2.0), Box(-0.5, 0.25)
PROJECTIONS = {
    "ball": BALL,
    "small ball": Ball(1e-12),
    "simplex": SIMPLEX,
    "box": BOX,
    "indicator": lambda v: Indicator(BALL)(v, 0.0),
    "l1_ball": L1Ball(0.5),
    "l1_box": lambda v: L1Box(bound=0.5)(v, 0.0),
    "separable": lambda v: Separable({"x": Indicator(SIMPLEX), "y": Indicator(BALL)}, (3, 17))(v, 0.0),
}


def far_points(size: float, dtype: torch.dtype) -> torch.Tensor:
    """Return points ``[8, 20]`` with coordinates of up to ``size``; finite, but not their norms for 3e38."""
    scale = size if dtype == torch.float32 or size < 1e38 else 1.7e308
    return torch.from_numpy(scale * generator(1, "far").uniform(-1, 1, (8, 20))).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PROJECTIONS)
def test_a_projection_of_a_far_point_is_in_the_set(name, size, dtype):
    """A projection moves a point of the set by rounding errors only: some ε times its coordinates."""
    project = PROJECTIONS[name]
    projected = project(far_points(size, dtype))
    bound = 0.5 if "simplex" not in name else 2.0
    torch.testing.assert_close(project(projected), projected, rtol=0, atol=8 * torch.finfo(dtype).eps * bound)
    if name == "simplex":
        torch.testing.assert_close(projected.double().sum(-1), torch.full((8,), 2.0).double(), rtol=0,
                                   atol=20 * torch.finfo(dtype).eps)  # fmt: skip
        assert projected.min() >= 0
    elif name == "ball":
        distance = (projected.double() - 0.25).norm(dim=-1)
        assert distance.max() <= 0.5 * (1 + 20 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("radius", [1e-12, 0.5])
def test_ball_of_far_points(size, radius, dtype):
    """Outside, r v / ‖v‖ with the norm of v/1024 by ``math.hypot``, which does not overflow."""
    points = far_points(size, dtype)
    expected = []
    for point in points.double().tolist():
        norm = math.hypot(*(value / 1024 for value in point))
        outside = norm > radius / 1024
        expected.append([radius * (value / 1024 / norm) if outside else value for value in point])
    # Some rounding errors in each coordinate, and of the subnormal numbers below 1e-38.
    torch.testing.assert_close(
        Ball(radius)(points).double(), torch.tensor(expected, dtype=torch.float64),
        rtol=8 * torch.finfo(dtype).eps, atol=1e-44,
    )  # fmt: skip


def test_ball_of_a_single_far_coordinate():
    """Its norm is finite, but the radius divided by the norm would be subnormal."""
    assert Ball(1e-6)(torch.tensor([-3e38])).tolist() == pytest.approx([-1e-6], rel=1e-6)


@pytest.mark.parametrize("size", [1e4, 1e7, 1e8, 1e16, 1e30, -1e30])
@pytest.mark.parametrize("dtype", DTYPES)
def test_simplex_of_far_points(size, dtype):
    """Differences of the rounded coordinates are exact in double precision, and the projection of v - max v
    is that of v. 1e-14 as above."""
    points = (size + torch.from_numpy(generator(2, "far").uniform(0, 0.4, (50, 6)))).to(dtype)
    shifted = points.double() - points.double().amax(-1, keepdim=True)
    expected = torch.stack([proximal.simplex(point, 0.0) for point in shifted])
    tolerance = 1e-14 if dtype == torch.float64 else 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(Simplex()(points).double(), expected, rtol=0, atol=tolerance)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Simplex()(points[:, order]), Simplex()(points)[:, order])


@pytest.mark.parametrize("dtype", DTYPES)
def test_simplex_of_points_that_differ_by_more_than_the_largest_number(dtype):
    largest = torch.finfo(dtype).max
    points = torch.tensor([[largest, -largest, -largest, 0], [0, -largest, -0.5, -torch.inf]], dtype=dtype)
    assert Simplex()(points).tolist() == [[1, 0, 0, 0], [0.75, 0, 0.25, 0]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_entropy_of_far_points(size, dtype):
    """The mirror map of the entropy does not depend on a number that is added to all coordinates."""
    dual = far_points(size, dtype)
    primal = Entropy()(dual, 1.0, Indicator(SIMPLEX))
    torch.testing.assert_close(primal.sum(-1), torch.full((8,), 2.0, dtype=dtype))
    assert primal.min() >= 0
    assert size < 1e-3 or torch.equal(primal.argmax(-1), dual.argmax(-1))


@pytest.mark.parametrize("name", PROJECTIONS)
def test_nan_is_not_projected_into_a_set(name):
    points = far_points(1.0, torch.float64)
    points[2, 1] = points[2, 4] = torch.nan
    projected = PROJECTIONS[name](points)
    assert projected[2].isnan().any() and projected[[0, 1, 3]].isfinite().all()


def test_infinite_points_have_no_nearest_point_of_a_ball():
    assert BALL(torch.tensor([1.0, -torch.inf, 2.0])).isnan().any()
    assert BOX(torch.tensor([torch.inf, -torch.inf])).tolist() == [0.25, -0.5]


def test_simplex_of_non_finite_points_is_nan():
    for value in (torch.nan, torch.inf):
        point = torch.tensor([0.2, value, 0.3])
        assert Simplex()(point).isnan().any()
        assert Simplex()(torch.stack([torch.full((3,), 1 / 3), point]))[0].sum() == pytest.approx(1)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nuclear_prox_of_non_finite_matrices_is_nan(value):
    v = torch.from_numpy(generator(0, "nuclear").standard_normal((3, 6)))
    prox = Nuclear(shape=(2, 3), lam=0.5)
    expected = prox(v, 1.0)
    v[1, 4] = value
    got = prox(v, 1.0)
    assert got[1].isnan().all()
    torch.testing.assert_close(got[[0, 2]], expected[[0, 2]])
