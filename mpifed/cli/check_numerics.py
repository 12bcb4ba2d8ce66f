"""Numerical checks of ``mpifed check``: derivatives, monotonicity and the precision of user code.

Derivatives are compared with central differences in float64. With a step h, these have errors of order h²
from the third derivatives and of order 1e-16 / h from rounding; with h = 1e-5 both are far below
:data:`TOLERANCE`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from mpifed.core.problem import Problem, defines, starting_point
from mpifed.core.streams import generator
from mpifed.core.validation import minibatch, samples_of

__all__ = [
    "NotChecked",
    "Probe",
    "calls",
    "compare_gradients",
    "compare_jacobian",
    "compare_outer",
    "expect_float64",
    "expect_monotone",
    "expect_symmetric",
    "near_start",
]

#: Step of the differences, for points of norm about 1, and accepted relative error of a derivative.
STEP, TOLERANCE = 1e-5, 1e-5
#: Accepted relative error of values that differ by rounding only.
ROUNDING = 1e-9
#: Rows of a minibatch.
ROWS = 4
#: Coordinates and random directions along which derivatives are compared, and pairs of points.
COORDINATES, DIRECTIONS, PAIRS = 5, 3, 10

Vector = torch.Tensor


class NotChecked(Exception):
    """Raised by a check that does not apply; the message is the reason."""


def near_start(problem: Problem, number: int = 0) -> list[Vector]:
    """Return a random feasible point near the start, one flat float64 vector ``[d]`` per block."""
    rng, point = generator(number, "check"), []
    for block, start in zip(problem.variables(), starting_point(problem, torch.float64)):
        moved = start + 0.2 * torch.from_numpy(rng.standard_normal(len(start)))
        point.append((start + getattr(problem.sets, block)(moved)) / 2)
    return point


class Probe:
    """A point near the start and a minibatch of one client, to evaluate the functions of a problem."""

    def __init__(self, problem: Any, client: int):
        self.problem, self.blocks, self.point = problem, problem.variables(), near_start(problem, client)
        self.batches = {
            of: minibatch(problem, [client], ROWS, torch.float64, of=of) for of in samples_of(problem)
        }

    def call(self, name: str, point: list[Vector], of: str = "") -> torch.Tensor:
        """Call a function of one client, such as "loss", at flat vectors ``[d]``."""
        named = [self.blocks.unflatten(block, flat) for block, flat in zip(self.blocks, point)]
        return getattr(self.problem, name)(*named, tuple(column[0] for column in self.batches[of]))

    def outer(self, u: Vector) -> torch.Tensor:
        """Call ``outer`` at an inner value ``[p]``."""
        return self.problem.outer(u, tuple(column[0] for column in self.batches["f"]))

    def gradients(self, point: list[Vector]) -> list[Vector]:
        """Call the analytic gradients; the result is one flat vector ``[d]`` per block."""
        values = self.problem.gradients(*(flat.unsqueeze(0) for flat in point), self.batches[""])
        return [value[0] for value in (values if isinstance(values, tuple | list) else (values,))]

    def vary(self, function: Callable, number: int) -> Callable[[Vector], torch.Tensor]:
        """Return a function of the point as a function of block ``number``, with the other blocks fixed."""
        return lambda flat: function([*self.point[:number], flat, *self.point[number + 1 :]])


def calls(at: Probe) -> Iterator[Callable]:
    """Yield one call without arguments for each function that the problem defines."""
    problem = at.problem
    if problem.family == "minimax":
        if defines(problem, "loss"):
            yield lambda: at.call("loss", at.point)
        if problem.gradients is not None:
            yield lambda: at.gradients(at.point)
    elif problem.family == "operator":
        yield lambda: problem.operator(at.point[0].unsqueeze(0), at.batches[""])
    else:
        u = at.call("inner", at.point, "g").detach()
        yield lambda: at.call("inner", at.point, "g")
        if defines(problem, "outer"):
            yield lambda: at.outer(u)
        if problem.jacobian is not None:
            yield lambda: problem.jacobian(at.point[0].unsqueeze(0), at.batches["g"])
        if problem.outer_gradient is not None:
            yield lambda: problem.outer_gradient(u.unsqueeze(0), at.batches["f"])


def compare_gradients(at: Probe) -> None:
    """Compare the gradients, analytic or by autograd, with finite differences of the loss."""
    analytic = None if at.problem.gradients is None else at.gradients(at.point)
    for number, block in enumerate(at.blocks):
        loss = at.vary(lambda point: at.call("loss", point), number)
        J = None if analytic is None else analytic[number].unsqueeze(0)
        _compare(loss, at.point[number], f"∂f/∂{block}", at.blocks[block], J)


def compare_jacobian(at: Probe) -> None:
    """Compare the inner Jacobian, analytic or by autograd, with finite differences of ``inner``.

    The value that an analytic Jacobian returns is compared with ``inner``, too.
    """
    (x,), J = at.point, None
    inner = at.vary(lambda point: at.call("inner", point, "g"), 0)
    if at.problem.jacobian is not None:
        u, J = (value[0] for value in at.problem.jacobian(x.unsqueeze(0), at.batches["g"]))
        value = inner(x)
        difference = float((u - value).abs().max())
        if not difference <= ROUNDING * max(1.0, float(value.abs().max())):
            raise AssertionError(
                f"the value u returned by jacobian() differs from inner() by {difference:.3g}"
            )
    _compare(inner, x, "∂g/∂x", at.blocks["x"], J)


def compare_outer(at: Probe) -> None:
    """Compare ∇f of a composition, analytic or by autograd, with finite differences of ``outer``."""
    u, analytic = at.call("inner", at.point, "g").detach(), at.problem.outer_gradient
    J = None if analytic is None else analytic(u.unsqueeze(0), at.batches["f"])[0].unsqueeze(0)
    _compare(at.outer, u, "∂f/∂u", {"u": tuple(u.shape)}, J)


def _compare(function: Callable, flat: Vector, name: str, shapes: dict, J: torch.Tensor | None) -> None:
    """Compare a Jacobian ``[p, d]``, by default the result of autograd, with central differences.

    Raises:
        AssertionError: they differ along a direction.
    """
    value = function(flat).detach()
    if not torch.isfinite(value).all():
        raise AssertionError(f"{name}: expected finite function values near the start, got {value.tolist()}")
    if J is None:
        J = torch.autograd.functional.jacobian(function, flat).reshape(-1, len(flat))
    # A value f is rounded by 1e-16 |f|, which the difference divides by the step.
    allowed = TOLERANCE * float(J.abs().max()) + ROUNDING * float(value.abs().max())
    for direction, along in _directions(shapes, len(flat)):
        expected, found = _slope(function, flat, direction).detach().reshape(-1), J.detach() @ direction
        worst = int((expected - found).abs().argmax())
        if not torch.allclose(found, expected, rtol=TOLERANCE, atol=allowed):
            raise AssertionError(
                f"{name} along {along}: expected {expected[worst]:.6g} by finite differences, "
                f"got {found[worst]:.6g}"
            )


def _slope(function: Callable, flat: Vector, direction: Vector) -> torch.Tensor:
    return (function(flat + STEP * direction) - function(flat - STEP * direction)) / (2 * STEP)


def _directions(shapes: dict, size: int) -> Iterator[tuple[Vector, str]]:
    """Yield unit vectors ``[d]`` with their names: some coordinates, then random directions."""
    rng = generator(0, "directions")
    names = [f"{name}[{j}]" for name, shape in shapes.items() for j in range(torch.Size(shape).numel())]
    for j in rng.permutation(size)[:COORDINATES].tolist():
        direction = torch.zeros(size, dtype=torch.float64)
        direction[j] = 1.0
        yield direction, names[j]
    for _ in range(DIRECTIONS):
        yield _unit(rng, size), "a random direction"


def _unit(rng, size: int) -> Vector:
    direction = torch.from_numpy(rng.standard_normal(size))
    return direction / direction.norm()


@torch.no_grad()
def expect_symmetric(at: Probe) -> None:
    """Check that the derivatives of the analytic gradients are symmetric, as second derivatives are.

    Raises:
        AssertionError: they are not, so no function has these gradients.
    """
    rng, names = generator(0, "pairs"), list(at.blocks)

    def second(row: int, column: int, u: Vector, v: Vector) -> float:
        """uᵀ (∂g_row / ∂column) v."""
        return float(u @ _slope(at.vary(lambda point: at.gradients(point)[row], column), at.point[column], v))

    rounding = ROUNDING * max(float(one.norm()) for one in at.gradients(at.point))
    for first, a in enumerate(names):
        for other, b in enumerate(names[first:], first):
            for _ in range(DIRECTIONS):
                u, v = (_unit(rng, len(at.point[k])) for k in (first, other))
                there, back = second(first, other, u, v), second(other, first, v, u)
                if not abs(there - back) <= TOLERANCE * max(abs(there), abs(back)) + rounding:
                    raise AssertionError(
                        f"no function has these gradients: expected ∂g{a}/∂{b} to be the transpose of "
                        f"∂g{b}/∂{a}, got {there:.6g} and {back:.6g} along a pair of random directions"
                    )


@torch.no_grad()
def expect_monotone(problem: Any) -> None:
    """Check ⟨V(z) - V(z'), z - z'⟩ ≥ 0 on pairs of points near the start; V is the mean over all data.

    Raises:
        AssertionError: a pair violates it.
    """
    batches = [minibatch(problem, [client], 0, torch.float64) for client in range(problem.clients)]
    (start,), rng = starting_point(problem, torch.float64), generator(0, "pairs")

    def mean(z: Vector) -> Vector:
        return torch.stack([problem.operator(z.unsqueeze(0), batch)[0] for batch in batches]).mean(0)

    for _ in range(PAIRS):
        z, other = (start + torch.from_numpy(rng.standard_normal(len(start))) for _ in range(2))
        change = mean(z) - mean(other)
        product = float(change @ (z - other))
        if not product >= -ROUNDING * float(change.norm() * (z - other).norm()):
            raise AssertionError(
                f"expected ⟨V(z) - V(z'), z - z'⟩ >= 0, got {product:.6g} for a pair of points near the start"
            )


#: Functions that convert the precision of a tensor on purpose, or copy it into another tensor.
CASTS = {"to", "double", "type", "type_as", "copy_", "__get__", "__set__"}
#: Multiples of 1 / EXACT, such as masks, counts and halves, are assumed to be exact in every precision.
EXACT = 1024.0


def expect_float64(file: str | None, run: Callable[[], object], alone: bool = False) -> None:
    """Check that code in ``file`` does not mix float64 with less precise numbers, or round to them.

    Numbers that are exact in every precision are accepted, such as a mask of zeros and ones.

    Args:
        run: calls the code.
        alone: only check operations that the file calls itself, not operations of functions that it calls.

    Raises:
        NotChecked: there is no file.
        AssertionError: one line per operation, with its line number.
    """
    if file is None:
        raise NotChecked("the source code is not in a file")
    with _MixedPrecision(file, alone) as mixed:
        run()
    if mixed.found:
        raise AssertionError("\n".join(mixed.found))


class _MixedPrecision(TorchFunctionMode):
    """Collects descriptions of the operations of mixed precision in ``found``."""

    def __init__(self, file: str, alone: bool):
        super().__init__()
        self.file, self.alone = os.path.abspath(file), alone
        self.found: dict[str, None] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given, returned = _floats((args, kwargs)), _floats(result)
        if any(one.dtype == torch.float64 for one in given):
            low = [] if getattr(func, "__name__", "") in CASTS else _inexact(given)
            if low:
                self._note(f"computes with {_names(low)} numbers")
            elif low := _inexact(returned):
                self._note(f"rounds to {_names(low)}")
        return result

    def _note(self, what: str) -> None:
        if (line := self._line()) is not None:
            self.found[f"{os.path.basename(self.file)}, line {line}, {what}, expected float64"] = None

    def _line(self) -> int | None:
        """Return the line of the file that is executed; ``None`` if another file called torch."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if file == self.file:
                return frame.f_lineno
            ours = file == __file__ or os.sep + "torch" + os.sep in file or file.startswith("<")
            if self.alone and not ours:
                return None
            frame = frame.f_back
        return None


def _floats(values) -> list[torch.Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor) and one.is_floating_point()]


def _names(tensors: list[torch.Tensor]) -> str:
    return " and ".join(sorted({str(one.dtype).removeprefix("torch.") for one in tensors}))


def _inexact(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors below float64 with values that the lower precision may have rounded.

    Tensors whose values cannot be read, inside ``vmap``, are left out.
    """

    def exact(tensor: torch.Tensor) -> bool:
        try:
            return bool((tensor.detach().double() * EXACT % 1 == 0).all())
        except RuntimeError:
            return True

    return [one for one in tensors if one.dtype != torch.float64 and not exact(one)]
