"""When Barzilai-Borwein measures a step and when it takes it for rounding."""

import pytest
import torch

from mpifed.core.adaptive import BarzilaiBorwein


@pytest.mark.parametrize("dtype, small", [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_small_steps_are_used_and_rounding_errors_ignored(dtype, small):
    """w = 3 x: a relative step of ``small`` gives 3 to eps / ``small``; one of 4 eps the last quotient."""
    matrix, eps = BarzilaiBorwein(rho=0.5), torch.finfo(dtype).eps
    x = torch.tensor([1.0, 2.0], dtype=dtype)
    seven = torch.tensor([7.0], dtype=dtype)
    start = matrix.set_reference((0 * x, 0 * x, seven, torch.zeros_like(seven)), 3 * x, x)
    _, A = matrix(start, 3 * (x * (1 + small)), x * (1 + small), 1)
    assert A.item() == pytest.approx(3.5, rel=20 * eps / small)
    moved = x * (1 + 4 * eps)
    assert not torch.equal(moved, x)
    moments, A = matrix(start, 3 * moved, moved, 1)
    assert A.item() == 7.5
    assert torch.equal(moments[1], moved)  # the next step is measured from here
