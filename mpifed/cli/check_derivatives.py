"""Checks of derivatives by :func:`torch.autograd.gradcheck`, of the symmetry of second derivatives, and of
the monotonicity of an operator on pairs of points.

All numbers are float64. Central differences with a step h have errors of order h² from the function's third
derivatives and of order 1e-16 / h from rounding; with h = 1e-5 both are far below :data:`TOLERANCE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck

from mpifed.core.problem import Problem, starting_point
from mpifed.core.records import Blocks
from mpifed.core.streams import generator
from mpifed.core.validation import minibatch, samples_of

__all__ = [
    "Place",
    "compare_gradients",
    "compare_jacobian",
    "compare_outer",
    "compare_pairs",
    "compare_seconds",
    "near_start",
    "place",
]

#: Step of the differences, for points of size one.
STEP = 1e-5
#: Relative error of a derivative that is let pass.
TOLERANCE = 1e-5
#: Rows of a client's data, or of a drawn sample.
ROWS = 4
#: Coordinates and random directions along which derivatives are compared, and pairs of points.
COORDINATES, DIRECTIONS, PAIRS = 5, 3, 10

Vector = torch.Tensor


@dataclass(frozen=True)
class Place:
    """A point near the start and a minibatch of one client, where derivatives are compared.

    Attributes:
        point: a flat vector ``[d]`` per block.
        batches: kind of sample → tensors ``[1, rows, ...]``.
    """

    problem: Problem
    blocks: Blocks
    point: list[Vector]
    batches: dict[str, tuple[torch.Tensor, ...]]

    def call(self, function: Callable, point: list[Vector], of: str = "") -> torch.Tensor:
        """A function of one client's named parameters and batch, at flat vectors."""
        named = [self.blocks.unflatten(block, flat) for block, flat in zip(self.blocks, point)]
        return function(*named, tuple(column[0] for column in self.batches[of]))

    def fields(self, point: list[Vector]) -> list[Vector]:
        """The analytic gradients, one flat vector per block."""
        values = self.problem.gradients(*(flat.unsqueeze(0) for flat in point), self.batches[""])
        return [value[0] for value in (values if isinstance(values, tuple | list) else (values,))]


def near_start(problem: Problem, number: int = 0) -> list[Vector]:
    """A random point near the start, a flat float64 vector a block, inside the sets where the start is."""
    rng, point = generator(number, "check"), []
    for block, start in zip(problem.variables(), starting_point(problem, torch.float64)):
        moved = start + 0.2 * torch.from_numpy(rng.standard_normal(len(start)))
        point.append((start + getattr(problem.sets, block)(moved)) / 2)
    return point


def place(problem: Problem, client: int) -> Place:
    """A place for the functions of ``client``."""
    batches = {of: minibatch(problem, [client], ROWS, torch.float64, of=of) for of in samples_of(problem)}
    return Place(problem, problem.variables(), near_start(problem, client), batches)


def compare_gradients(at: Place) -> None:
    """Compare the gradients, analytic or of autograd, with finite differences of the loss.

    Raises:
        AssertionError: they differ.
    """
    analytic = None if at.problem.gradients is None else at.fields(at.point)
    for number, block in enumerate(at.blocks):

        def loss(flat: Vector, number: int = number) -> torch.Tensor:
            return at.call(at.problem.loss, [*at.point[:number], flat, *at.point[number + 1 :]])

        gradient = None if analytic is None else analytic[number].unsqueeze(0)
        _compare(loss, at.point[number], f"∂f/∂{block}", at.blocks[block], gradient)


def compare_jacobian(at: Place) -> None:
    """Compare the Jacobian of the inner map, analytic or of autograd, with finite differences of ``inner``.

    Raises:
        AssertionError: they differ, or the value that an analytic Jacobian returns is not that of ``inner``.
    """
    (x,), problem, J = at.point, at.problem, None

    def inner(flat: Vector) -> torch.Tensor:
        return at.call(problem.inner, [flat], "g")

    if problem.jacobian is not None:
        u, J = (value[0] for value in problem.jacobian(x.unsqueeze(0), at.batches["g"]))
        difference, size = float((u - inner(x)).abs().max()), float(inner(x).abs().max())
        if not difference <= 1e-9 * max(1.0, size):
            raise AssertionError(f"u of jacobian() differs from inner() by {difference:.3g}")
    _compare(inner, x, "∂g/∂x", at.blocks["x"], J)


def compare_outer(at: Place) -> None:
    """Compare ∇f of a composition, analytic or of autograd, with finite differences of ``outer`` at the
    value of ``inner``.

    Raises:
        AssertionError: they differ.
    """
    problem, u = at.problem, at.call(at.problem.inner, at.point, "g").detach()

    def outer(flat: Vector) -> torch.Tensor:
        return problem.outer(flat, tuple(column[0] for column in at.batches["f"]))

    analytic = problem.outer_gradient
    gradient = None if analytic is None else analytic(u.unsqueeze(0), at.batches["f"])[0].unsqueeze(0)
    _compare(outer, u, "∂f/∂u", {"u": tuple(u.shape)}, gradient)


class _Claimed(torch.autograd.Function):
    """A function of one number whose derivative is claimed, not differentiated."""

    @staticmethod
    def forward(ctx, t, function, slope):
        ctx.slope = slope
        return function(t.item()).reshape(-1)

    @staticmethod
    def backward(ctx, gradient):
        return (gradient @ ctx.slope).reshape(1), None, None


def _compare(
    function: Callable, flat: Vector, what: str, shapes: dict, J: torch.Tensor | None = None
) -> None:
    """Compare the Jacobian ``J`` ``[p, d]`` of a function ``[d]`` → ``[p]`` or a scalar, by default the one
    of autograd, with :func:`torch.autograd.gradcheck` along some directions.

    Raises:
        AssertionError: they differ.
    """
    value = function(flat).detach()
    if not torch.isfinite(value).all():
        raise AssertionError(f"the function behind {what} is not finite near the start")
    if J is None:
        J = torch.autograd.functional.jacobian(function, flat).reshape(-1, len(flat))
    # A value of size |f| is rounded by 1e-16 |f|, which the difference divides by the step.
    allowed = TOLERANCE * float(J.abs().max()) + 1e-9 * float(value.abs().max())
    for direction, name in _directions(shapes, len(flat)):

        def along(t: float, direction: Vector = direction) -> torch.Tensor:
            return function(flat + t * direction).detach()

        try:
            gradcheck(
                partial(_Claimed.apply, function=along, slope=J.detach() @ direction),
                torch.zeros(1, dtype=torch.float64, requires_grad=True),
                eps=STEP,
                atol=allowed,
                rtol=TOLERANCE,
            )
        except GradcheckError as error:
            told = " ".join(str(error).split())
            raise AssertionError(
                f"{what} along {name}: expected the derivative of the function, by differences: {told}"
            ) from None


def _slope(function: Callable, flat: Vector, direction: Vector) -> torch.Tensor:
    return (function(flat + STEP * direction) - function(flat - STEP * direction)) / (2 * STEP)


def _directions(shapes: dict, size: int) -> Iterator[tuple[Vector, str]]:
    """Unit vectors ``[d]``, coordinates first, with their names."""
    rng = generator(0, "directions")
    names = [f"{name}[{j}]" for name, shape in shapes.items() for j in range(torch.Size(shape).numel())]
    for j in rng.permutation(size)[:COORDINATES]:
        direction = torch.zeros(size, dtype=torch.float64)
        direction[int(j)] = 1.0
        yield direction, names[j]
    for _ in range(DIRECTIONS):
        yield _unit(rng, size), "a random direction"


def _unit(rng: np.random.Generator, size: int) -> Vector:
    direction = torch.from_numpy(rng.standard_normal(size))
    return direction / direction.norm()


def _close(one: Vector, other: Vector, what: str, expected: str) -> None:
    difference = float((one - other).abs().max())
    if not difference <= 1e-9 * max(1.0, float(other.abs().max())):
        raise AssertionError(f"{what} differs from {expected} by {difference:.3g}")


@torch.no_grad()
def compare_seconds(at: Place) -> None:
    """Analytic gradients compared with each other: the second derivatives of a function are symmetric.

    Raises:
        AssertionError: they are the gradients of no function.
    """
    rng, count = generator(0, "pairs"), len(at.point)
    for first in range(count):
        for second in range(first, count):
            for _ in range(DIRECTIONS):
                u, v = (_unit(rng, len(at.point[k])) for k in (first, second))
                there, back = _second(at, first, second, u, v), _second(at, second, first, v, u)
                rounding = 1e-9 * max(float(one.norm()) for one in at.fields(at.point))
                if not abs(there - back) <= TOLERANCE * max(abs(there), abs(back)) + rounding:
                    a, b = (list(at.blocks)[k] for k in (first, second))
                    raise AssertionError(
                        f"they are the gradients of no function: ∂g{a}/∂{b} and the transpose of ∂g{b}/∂{a} "
                        f"differ ({there:.6g} and {back:.6g} along a pair of random directions)"
                    )


def _second(at: Place, row: int, column: int, u: Vector, v: Vector) -> float:
    """uᵀ (∂ of the gradient in block ``row`` by block ``column``) v."""

    def field(flat: Vector) -> torch.Tensor:
        return at.fields([*at.point[:column], flat, *at.point[column + 1 :]])[row]

    return float(u @ _slope(field, at.point[column], v))


@torch.no_grad()
def compare_pairs(problem: Problem) -> None:
    """⟨V(z) - V(z'), z - z'⟩ ≥ 0 on pairs of points near the start, V the mean over all clients' data.

    Raises:
        AssertionError: a pair where it is negative.
    """
    batches = [minibatch(problem, [client], 0, torch.float64) for client in range(problem.clients)]
    (start,), rng = starting_point(problem, torch.float64), generator(0, "pairs")

    def mean(z: Vector) -> Vector:
        return sum(problem.operator(z.unsqueeze(0), batch)[0] for batch in batches) / len(batches)

    for _ in range(PAIRS):
        z, other = (start + torch.from_numpy(rng.standard_normal(len(start))) for _ in range(2))
        change = mean(z) - mean(other)
        product = float(change @ (z - other))
        if not product >= -1e-9 * float(change.norm() * (z - other).norm()):
            raise AssertionError(
                f"⟨V(z) - V(z'), z - z'⟩ = {product:.6g} < 0 for a pair of points near the start"
            )
