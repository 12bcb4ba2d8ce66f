"""Derivatives against finite differences, second derivatives against each other, monotonicity on pairs of
points.

All is in float64. Central differences with a step h have errors of order h² from the function's third
derivatives and of order 1e-16 / h from rounding; with h = 1e-5 both lie far below :data:`TOLERANCE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from mpifed.core.problem import Problem
from mpifed.core.problem_values import minibatch, point_of, samples_of
from mpifed.core.records import Blocks
from mpifed.core.streams import generator

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
    """Where derivatives are compared: one client's minibatch and a point near the start.

    Attributes:
        point: a flat vector ``[d]`` a block.
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
        """The gradients by hand, one flat vector a block."""
        values = self.problem.gradients(*(flat.unsqueeze(0) for flat in point), self.batches[""])
        return [value[0] for value in (values if isinstance(values, tuple | list) else (values,))]


def near_start(problem: Problem, number: int = 0) -> list[Vector]:
    """A random point near the start, a flat float64 vector a block, inside the sets where the start is."""
    rng, point = generator(number, "check"), []
    for block, start in zip(problem.variables(), point_of(problem, torch.float64)):
        moved = start + 0.2 * torch.from_numpy(rng.standard_normal(len(start)))
        point.append((start + getattr(problem.sets, block)(moved)) / 2)
    return point


def place(problem: Problem, client: int) -> Place:
    """A place for the functions of ``client``."""
    batches = {of: minibatch(problem, [client], ROWS, torch.float64, of=of) for of in samples_of(problem)}
    return Place(problem, problem.variables(), near_start(problem, client), batches)


def compare_gradients(at: Place) -> None:
    """Gradients, by hand or of the loss, against differences of the loss.

    Raises:
        AssertionError: they differ.
    """
    gradients = at.fields(at.point) if at.problem.gradients is not None else _differentiated(at)
    for number, (block, gradient) in enumerate(zip(at.blocks, gradients)):

        def loss(flat: Vector, number: int = number) -> torch.Tensor:
            return at.call(at.problem.loss, [*at.point[:number], flat, *at.point[number + 1 :]])

        _compare(loss, at.point[number], gradient.unsqueeze(0), f"∂f/∂{block}", at.blocks[block])


def _differentiated(at: Place) -> list[Vector]:
    point = [flat.clone().requires_grad_() for flat in at.point]
    return list(torch.autograd.grad(at.call(at.problem.loss, point), point, materialize_grads=True))


def compare_jacobian(at: Place) -> None:
    """The Jacobian of the inner map, by hand or not, against differences of ``inner``.

    Raises:
        AssertionError: they differ, or the value that comes with a Jacobian by hand is not that of ``inner``.
    """
    (x,), problem = at.point, at.problem

    def inner(flat: Vector) -> torch.Tensor:
        return at.call(problem.inner, [flat], "g")

    if problem.jacobian is None:
        J = torch.func.jacrev(inner)(x)
    else:
        u, J = (value[0] for value in problem.jacobian(x.unsqueeze(0), at.batches["g"]))
        _close(u, inner(x), "u of jacobian()", "inner()")
    _compare(inner, x, J, "∂g/∂x", at.blocks["x"])


def compare_outer(at: Place) -> None:
    """∇f of a composition, by hand or not, against differences of ``outer`` at the value of ``inner``.

    Raises:
        AssertionError: they differ.
    """
    problem, u = at.problem, at.call(at.problem.inner, at.point, "g").detach()

    def outer(flat: Vector) -> torch.Tensor:
        return problem.outer(flat, tuple(column[0] for column in at.batches["f"]))

    if problem.outer_gradient is None:
        gradient = torch.func.grad(outer)(u)
    else:
        gradient = problem.outer_gradient(u.unsqueeze(0), at.batches["f"])[0]
    _compare(outer, u, gradient.unsqueeze(0), "∂f/∂u", {"u": tuple(u.shape)})


@torch.no_grad()
def _compare(function: Callable, flat: Vector, J: torch.Tensor, what: str, shapes: dict) -> None:
    """Slopes of a function ``[d]`` → ``[p]`` or a scalar along some directions, against its Jacobian ``[p,
    d]``."""
    value, scale = function(flat), float(J.abs().max())
    if not torch.isfinite(value).all():
        raise AssertionError(f"the function behind {what} is not finite near the start")
    for direction, name in _directions(shapes, len(flat)):
        measured = _slope(function, flat, direction).reshape(-1)
        claimed = J.detach() @ direction
        # A value of size |f| is rounded by 1e-16 |f|, which the difference divides by the step.
        allowed = TOLERANCE * max(scale, float(measured.abs().max())) + 1e-9 * float(value.abs().max())
        error = (measured - claimed).abs()
        if not error.max() <= allowed:
            row = int(error.nan_to_num(torch.inf).argmax())
            raise AssertionError(
                f"{what} along {name} is {float(measured[row]):.6g} by differences, "
                f"{float(claimed[row]):.6g} by the derivative"
            )


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
    """Gradients by hand against each other: the second derivatives of a function are symmetric.

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
    (start,), rng = point_of(problem, torch.float64), generator(0, "pairs")

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
