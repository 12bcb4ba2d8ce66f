"""The guard against 0/0 in the Newton-Schulz iterations, which small matrices feel."""

import pytest
import torch

from mpifed.core.directions import Orthogonalize


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
