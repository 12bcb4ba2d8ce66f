"""Directions on real matrices, many clients at once, against the plain references."""

import pytest
import torch
from reference.heavy_tailed import direction_of

from mpifed.core.directions import Clip, Normalize, Orthogonalize, Plain
from mpifed.core.streams import generator

SHAPES = {"tall": (4, 2), "bias": (3,), "wide": (2, 5), "square": (3, 3)}
SIZE = 8 + 3 + 10 + 9
CASES = {
    "normalize block": (Normalize(), dict(direction="normalize")),
    "normalize tensor": (Normalize("tensor"), dict(direction="normalize", norm_over="tensor")),
    "clip block": (Clip(2.0), dict(direction="clip", tau=2.0)),
    "clip tensor": (Clip(1.5, "tensor"), dict(direction="clip", tau=1.5, norm_over="tensor")),
    "svd": (Orthogonalize(), dict(direction="orthogonalize", svd="svd")),
    "newton_schulz": (Orthogonalize("newton_schulz"), dict(direction="orthogonalize", svd="newton_schulz")),
    "cubic": (Orthogonalize("newton_schulz_cubic"),
     dict(direction="orthogonalize", svd="newton_schulz_cubic")),
}  # fmt: skip


def clients() -> torch.Tensor:
    """Four clients: two at random, one all zero, one whose square matrix has rank one."""
    u = torch.from_numpy(generator(0, "directions").standard_normal((4, SIZE)))
    u[2] = 0
    u[3, -9:] = torch.outer(u[3, -9:-6], u[3, -6:-3]).reshape(-1)
    return u


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference(name):
    """1e-10 as for the methods, 1e-7 for Newton-Schulz."""
    direction, options = CASES[name]
    u = clients()
    expected = torch.stack([direction_of(row, list(SHAPES.values()), **options) for row in u])
    tolerance = 1e-7 if name in ("newton_schulz", "cubic") else 1e-10
    torch.testing.assert_close(direction(u, SHAPES), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(direction(u[0], SHAPES), expected[0], rtol=tolerance, atol=tolerance)
    assert (direction(u, SHAPES)[2] == 0).all()


@pytest.mark.parametrize("shape", [(4, 2), (2, 5), (6, 6)])
def test_single_precision_agrees_up_to_rounding(shape):
    """Condition numbers up to 1e3, a zero matrix and one of rank one, against the polar factor in double
    precision."""
    rng, small = generator(0, "single", *shape), min(shape)
    P, Q = (torch.linalg.qr(torch.from_numpy(rng.standard_normal((5, size, small))))[0] for size in shape)
    values = (
        torch.logspace(0, -3, small, dtype=torch.float64)
        * torch.tensor([1.0, 1e-6, 1e6, 0, 1]).double()[:, None]
    )
    values[4, 1:] = 0
    U = ((P * values.unsqueeze(1)) @ Q.mT).float()
    factor = Orthogonalize()(U.reshape(5, -1), {"U": shape}).reshape(U.shape)
    assert factor.dtype == torch.float32
    expected = (P @ Q.mT).index_copy(
        0, torch.tensor([3, 4]), torch.stack([0 * U[3].double(), torch.outer(P[4, :, 0], Q[4, :, 0])])
    )
    # rounding U moves the factor by 6e-8 times the condition number
    torch.testing.assert_close(factor.double(), expected, rtol=0, atol=2e-4)
    exact = Orthogonalize()(U[:3].double().reshape(3, -1), {"U": shape}).reshape(3, *shape)
    torch.testing.assert_close(factor[:3].double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["svd", "newton_schulz"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_non_finite_values_stay_in_their_client(method, dtype, value):
    u, direction = clients().to(dtype), Orthogonalize(method)
    expected = direction(u, SHAPES)
    u[1, 0] = value
    factors = direction(u, SHAPES)
    assert not torch.isfinite(factors[1, :8]).any() and torch.isfinite(factors[1, 8:]).all()
    torch.testing.assert_close(factors[[0, 2, 3]], expected[[0, 2, 3]])


@pytest.mark.parametrize("dtype, power", [(torch.float32, 80), (torch.float32, 126), (torch.float64, 600)])
@pytest.mark.parametrize("name", CASES)
def test_large_estimators_are_not_taken_for_zero(name, dtype, power):
    """The direction of a vector above the thresholds does not depend on its size, although its squares
    overflow. Powers of two leave norms and quotients their bits, except for the small offset in the norm of
    Newton-Schulz (1e-7 of the norm, which some steps increase)."""
    direction, u = CASES[name][0], 100 * clients().to(dtype)
    if "clip" in name:
        u = u[:2]  # the zero matrix, and the parts of a client that are not clipped
    large = direction(u * 2.0 ** (power - 10), SHAPES)
    torch.testing.assert_close(large, direction(u, SHAPES), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype, power", [(torch.float32, -100), (torch.float64, -700)])
def test_small_estimators_are_normalised(dtype, power):
    u = clients().to(dtype)
    assert torch.equal(Normalize()(u * 2.0**power, SHAPES), Normalize()(u, SHAPES))
    assert torch.equal(Clip(1e-3)(u * 2.0**power, SHAPES), u * 2.0**power)


def test_identity():
    assert torch.equal(Plain()(clients(), SHAPES), clients())


@pytest.mark.parametrize("method, step", [
    ("newton_schulz_cubic", lambda s: 1.5 * s - 0.5 * s**3),
    ("newton_schulz", lambda s: 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5),
])  # fmt: skip
def test_newton_schulz_of_a_tiny_matrix(method, step):
    """U / (‖U‖ + 1e-7) with ‖U‖ = 1e-7; the powers of the matrix are those of its one singular value."""
    U = torch.zeros(1, 6, dtype=torch.float64)
    U[0, 4] = -1e-7
    expected = torch.zeros_like(U)
    expected[0, 4] = -step(step(0.5))
    torch.testing.assert_close(Orthogonalize(method, steps=2)(U, {"W": (2, 3)}), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("method", ["svd", "newton_schulz", "newton_schulz_cubic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_are_matrices_of_the_first_axis_by_the_others(method, dtype):
    """Kernels of a convolution, bitwise identical to a matrix with the same memory layout."""
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
