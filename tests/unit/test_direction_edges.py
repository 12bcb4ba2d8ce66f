"""Directions where ordinary matrices cannot tell: very small, nearly singular, and kernels of many axes."""

import pytest
import torch

from mpifed.core.directions import Orthogonalize
from mpifed.core.streams import generator


@pytest.mark.parametrize(
    "method, step",
    [
        ("newton_schulz_cubic", lambda s: 1.5 * s - 0.5 * s**3),
        ("newton_schulz", lambda s: 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5),
    ],
)
def test_a_matrix_as_small_as_the_guard_starts_at_one_half(method, step):
    """U / (‖U‖ + 1e-7) with ‖U‖ = 1e-7; the powers of the matrix are those of its one singular value."""
    U = torch.zeros(1, 6, dtype=torch.float64)
    U[0, 4] = -1e-7
    expected = torch.zeros_like(U)
    expected[0, 4] = -step(step(0.5))
    torch.testing.assert_close(Orthogonalize(method, steps=2)(U, {"W": (2, 3)}), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("method", ["svd", "newton_schulz", "newton_schulz_cubic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_axes_are_a_matrix_of_the_first_by_the_others(method, dtype):
    """As the kernels of a convolution; bit for bit, for the numbers lie in memory as the matrix does."""
    u = torch.from_numpy(generator(0, "axes").standard_normal((3, 24))).to(dtype)
    direction = Orthogonalize(method)
    assert torch.equal(direction(u, {"W": (2, 3, 2, 2)}), direction(u, {"W": (2, 12)}))
    assert (direction(u, {"W": (2, 3, 2, 2)}) - direction(u, {"W": (6, 4)})).abs().max() > 1e-2


@pytest.mark.parametrize("dtype, small, lost", [(torch.float32, 1e-5, 1e-8), (torch.float64, 1e-12, 1e-18)])
def test_small_singular_values_count_above_rounding(dtype, small, lost):
    """diag(1, s): the polar factor is I for s above 2 eps, and loses its second direction below."""
    for s, kept in ((small, 1.0), (lost, 0.0)):
        factor = Orthogonalize()(torch.tensor([[1.0, 0.0, 0.0, s]], dtype=dtype), {"W": (2, 2)})
        expected = torch.tensor([[1.0, 0.0, 0.0, kept]], dtype=dtype)
        torch.testing.assert_close(factor, expected, rtol=0, atol=10 * torch.finfo(dtype).eps)
