"""Numerical checks of ``mpifed check``: derivatives and monotonicity.

``torch.autograd.gradcheck`` compares derivatives with central differences in float64. With a step h, these
have errors of order h² from the third derivatives and of order 1e-16 / h from rounding; with h = 1e-5 both
are far below :data:`TOLERANCE`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from mpifed.core.problem import Problem, defines, starting_point
from mpifed.core.streams import generator
from mpifed.core.validation import Probe

__all__ = [
    "NotChecked", "ascent", "compare_derivatives", "expect_equal", "expect_monotone", "expect_symmetric",
    "probe_of",
]  # fmt: skip

#: Step of the differences, for points of norm about 1, and accepted relative error of a derivative.
STEP, TOLERANCE = 1e-5, 1e-5
#: Accepted relative error of values that differ by rounding only.
ROUNDING = 1e-9
#: Rows of a minibatch.
ROWS = 4
#: Maximum number of coordinates of points and values that are compared, and number of pairs of points.
COORDINATES, PAIRS = 32, 10
#: Function of one client → its analytic derivative.
ANALYTIC = {"loss": "gradients", "inner": "jacobian", "outer": "outer_gradient", "upper": "", "lower": ""}

Vector = torch.Tensor


class NotChecked(Exception):
    """Raised by a check that does not apply; the message is the reason."""


def probe_of(problem: Problem, client: int, dtype: torch.dtype = torch.float64) -> Probe:
    """Return a probe of one client at a random feasible point near the start."""
    rng, point = generator(client, "check"), []
    for block, start in zip(problem.variables(), starting_point(problem, torch.float64)):
        moved = start + 0.2 * torch.from_numpy(rng.standard_normal(len(start)))
        point.append(((start + getattr(problem.sets, block)(moved)) / 2).to(dtype))
    return Probe(problem, [client], point, ROWS)


def compare_derivatives(name: str, probe: Probe) -> None:
    """Compare the derivatives of a function of one client, such as ``loss``, with finite differences.

    The derivatives are analytic if the problem defines them, otherwise computed by autograd. The value that
    an analytic Jacobian returns is compared with ``inner``, too.

    Raises:
        AssertionError: names the first derivative that is wrong.
    """
    point = [probe.u] if name == "outer" else probe.point
    blocks = {"u": {"u": probe.u.shape}} if name == "outer" else probe.blocks
    values: Any = [None] * len(point)
    if defines(probe.problem, ANALYTIC[name]):
        values = probe.several(ANALYTIC[name], *(flat[None] for flat in point))
        values = values if isinstance(values, tuple | list) else (values,)
        if name == "inner":
            u, *values = values
            expect_equal(u, probe.u, "the value u that jacobian() returns and the value of inner()", ROUNDING)
    for k, (block, flat) in enumerate(zip(blocks, point)):
        J = None if values[k] is None else values[k].reshape(-1, len(flat))
        if worst := _disagreement(_of_block(partial(probe.single, name), point, k), flat, J):
            row, column, expected, got = worst
            labels = [f"{one}[{j}]" for one, shape in blocks[block].items() for j in range(math.prod(shape))]
            along = labels[column] if column is not None else "a random direction"
            output = f"[{'random' if row is None else row}]" if name == "inner" else ""
            raise AssertionError(
                f"∂{name}{output}/∂{block} of client {probe.clients[0]} along {along}: expected "
                f"{expected:.6g} by finite differences, got {got:.6g}"
            )


def expect_equal(one: torch.Tensor, other: torch.Tensor, what: str, tolerance: float) -> None:
    """Raise an AssertionError if two tensors differ by more than ``tolerance`` times max(1, ‖other‖∞)."""
    difference = float((one - other).abs().max())
    if not difference <= tolerance * max(1.0, float(other.abs().max())):
        raise AssertionError(f"{what} differ by up to {difference:.3g}")


def ascent(probe: Probe) -> Vector:
    """Return the gradient in y of one client of a minimax problem with a block y, ``[dy]``."""
    if defines(probe.problem, "gradients"):
        return probe.several("gradients", *(flat[None] for flat in probe.point))[1][0]
    return torch.func.grad(lambda y: probe.single("loss", probe.point[0], y))(probe.point[1])


def _of_block(function: Callable, point: list[Vector], k: int) -> Callable[[Vector], Any]:
    """Return a function of a point as a function of block ``k``; the other blocks are fixed."""
    return lambda v: function(*point[:k], v, *point[k + 1 :])


def _disagreement(function: Callable, flat: Vector, J: torch.Tensor | None) -> tuple | None:
    """Compare a Jacobian ``[p, d]``, by default the result of autograd, with finite differences by gradcheck.

    Returns:
        ``None`` if they agree; otherwise row, column, expected value and value of the worst entry. A row or
        column ``None`` is a random combination.
    """
    value = function(flat).detach().reshape(-1)
    if not torch.isfinite(value).all():
        raise AssertionError(f"expected finite function values near the start, got {value.tolist()}")
    (rows, left), (columns, right) = _projection(len(value)), _projection(len(flat))
    zero, value = torch.zeros(len(columns), dtype=flat.dtype), value @ left

    def moved(steps: Vector) -> Vector:
        return function(flat + right @ steps).reshape(-1) @ left

    def supplied(steps: Vector) -> Vector:
        """Return the values of ``moved``, with the derivative J."""
        return moved(steps.detach()) + J @ (steps - steps.detach())

    checked = moved if J is None else supplied
    J = torch.autograd.functional.jacobian(moved, zero) if J is None else left.T @ J.detach() @ right
    # A value f is rounded by 1e-16 |f|, which the difference divides by the step.
    allowed = TOLERANCE * float(J.abs().max()) + ROUNDING * float(value.abs().max())
    steps, settings = zero.clone().requires_grad_(), dict(eps=STEP, atol=allowed, rtol=TOLERANCE)
    if torch.autograd.gradcheck(checked, steps, raise_exception=False, **settings):
        return None
    differences = [(moved(step) - moved(-step)).detach() for step in STEP * torch.eye(len(zero)).to(zero)]
    numerical = torch.stack(differences, dim=1) / (2 * STEP)
    errors = (numerical - J).abs()
    if not (errors <= allowed + TOLERANCE * numerical.abs())[:-1, :-1].all():
        errors = errors[:-1, :-1]  # rather than a random combination
    row, column = divmod(int(errors.argmax()), errors.shape[1])
    return rows[row], columns[column], float(numerical[row, column]), float(J[row, column])


def _projection(size: int) -> tuple[list[int | None], torch.Tensor]:
    """Return some coordinates and ``None``, and a matrix that selects them and a random unit vector."""
    rng = generator(0, "directions")
    entries, random = rng.permutation(size)[:COORDINATES].tolist(), rng.standard_normal(size)
    matrix = torch.zeros(size, len(entries) + 1, dtype=torch.float64)
    matrix[entries, range(len(entries))] = 1
    matrix[:, -1] = torch.from_numpy(random / np.linalg.norm(random))
    return [*entries, None], matrix


def expect_symmetric(probe: Probe) -> None:
    """Check that the derivatives of the analytic gradients are symmetric, as second derivatives are.

    Raises:
        AssertionError: they are not, so no function has these gradients.
    """
    point, names, rng = probe.point, list(probe.blocks), generator(0, "pairs")

    def gradient(a: int, b: int) -> Callable[[Vector], Vector]:
        """Return the gradient of block ``a`` as a function of block ``b``."""

        def of(*point: Vector) -> Vector:
            values = probe.several("gradients", *(flat[None] for flat in point))
            return (values if isinstance(values, tuple | list) else (values,))[a][0]

        return _of_block(of, point, b)

    for a, b in itertools.combinations_with_replacement(range(len(point)), 2):
        u = torch.from_numpy(rng.standard_normal(len(point[a])))
        u /= u.norm()
        ahead, back = (gradient(b, a)(point[a] + step * u) for step in (STEP, -STEP))
        # uᵀ (∂g_a/∂b) is the derivative of uᵀ g_a, and (∂g_b/∂a) u is a difference.
        if _disagreement(lambda v: u @ gradient(a, b)(v), point[b], ((ahead - back) / (2 * STEP))[None]):
            raise AssertionError(
                f"no function has these gradients: for client {probe.clients[0]}, expected "
                f"∂g{names[a]}/∂{names[b]} to be the transpose of ∂g{names[b]}/∂{names[a]}"
            )


@torch.no_grad()
def expect_monotone(problem: Any) -> None:
    """Check ⟨V(z) - V(z'), z - z'⟩ ≥ 0 on pairs of points near the start; V is the mean over all data.

    Raises:
        AssertionError: a pair violates it.
    """
    (start,), rng = starting_point(problem, torch.float64), generator(0, "pairs")
    probes = [Probe(problem, [client], [start], 0) for client in range(problem.clients)]
    for _ in range(PAIRS):
        z, other = (start + torch.from_numpy(rng.standard_normal(len(start))) for _ in range(2))
        changes = [
            probe.several("operator", z[None]) - probe.several("operator", other[None]) for probe in probes
        ]
        change = torch.cat(changes).mean(0)
        product = float(change @ (z - other))
        if not product >= -ROUNDING * float(change.norm() * (z - other).norm()):
            raise AssertionError(
                f"expected ⟨V(z) - V(z'), z - z'⟩ >= 0, got {product:.6g} for a pair of points near the start"
            )
