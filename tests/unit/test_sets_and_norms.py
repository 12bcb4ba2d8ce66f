"""Sets and proximal maps: the simplex compared with a plain loop, the nuclear norm, non-finite values."""

import copy
import pickle

import numpy as np
import pytest
import torch
from reference import proximal

from mpifed.core.sets import Ball, Box, Indicator, Nuclear, Sets, Simplex
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
