"""Decompositions of matrices that are not finite."""

import pytest
import torch

from mpifed.core.sets import Nuclear
from mpifed.core.streams import generator


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_matrix_that_is_not_finite_is_nan_and_the_others_are_as_ever(value):
    v = torch.from_numpy(generator(0, "nuclear").standard_normal((3, 6)))
    prox = Nuclear(shape=(2, 3), lam=0.5)
    expected = prox(v, 1.0)
    v[1, 4] = value
    got = prox(v, 1.0)
    assert got[1].isnan().all()
    torch.testing.assert_close(got[[0, 2]], expected[[0, 2]])
