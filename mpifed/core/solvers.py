"""Inner problems, solved to a reported accuracy: the best response of y, and proximal points of x.

Only gradients are used, since problems with analytic gradients have no values. All vectors are flat
``[d]``. What is returned is the best point that was seen, with its *natural residual*: the length of the
step that a projected gradient step of size 1 takes from there, in a space without bounds the norm of the
gradient. It vanishes at solutions only where the inner problem is concave (convex); elsewhere it vanishes at
every stationary point.

Newton's method, with a Jacobian from differences, comes first where there are few variables and no bounds:
a quadratic problem is solved by its first step. Else: projected ascent with Nesterov's momentum, restarted
where it points back (O'Donoghue & Candès 2015), or the extragradient method (Korpelevich 1976), both with
steps from the gradients met on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

__all__ = ["Budget", "Solved", "difference", "maximise", "solve_saddle"]

#: Most variables whose Jacobian is taken by differences.
FEW = 32
#: Iterations in which a new best residual below :data:`BETTER` times the last one must come.
PATIENCE, BETTER = 100, 0.99
#: Factors by which steps grow when they have held, and shrink when they have not.
GROW, SHRINK = 1.4, 0.5

Field = Callable[[torch.Tensor], torch.Tensor]


class Budget(NamedTuple):
    """When to end: at a natural residual, or after so many evaluations of the gradient."""

    accuracy: float
    evaluations: int


class Solved(NamedTuple):
    """A point ``[d]``, and its natural residual, NaN where the gradient is not finite."""

    point: torch.Tensor
    residual: float


class _Best:
    """Counts evaluations of a field, and keeps the best point of a solver."""

    def __init__(self, field: Field, project: Field, budget: Budget):
        self._field, self._project, self._budget = field, project, budget
        self.left, self._idle = budget.evaluations, 0
        self.residual, self.point = math.nan, torch.empty(0)

    def __call__(self, point: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        return self._field(point)

    def note(self, point: torch.Tensor, value: torch.Tensor) -> float:
        """The residual of a point where the field has ``value``."""
        residual = float(torch.linalg.vector_norm(self._project(point + value) - point))
        first = math.isnan(self.residual)
        self._idle = 0 if first or residual < BETTER * self.residual else self._idle + 1
        if first or residual < self.residual:
            self.residual, self.point = residual, point
        return residual

    @property
    def done(self) -> bool:
        """Whether the best point is good enough, nothing is left to spend, or nothing becomes better."""
        return (
            not self.residual > self._budget.accuracy or self.left < 1 or self._idle > PATIENCE
        )  # NaN ends it, too


def maximise(gradient: Field, start: torch.Tensor, budget: Budget, project: Field | None = None) -> Solved:
    """A maximiser of a concave function on a convex set, from ``start`` in it.

    Args:
        gradient: of the function.
        project: onto the set; ``None`` for the whole space.
    """
    inside = project or _anywhere
    best = _Best(gradient, inside, budget)
    value = best(start)
    best.note(start, value)
    if project is None and len(start) <= FEW:
        _newton(best, start, value, lambda H: _definite(-H))
    if not best.done:
        _ascend(best, inside)
    return Solved(best.point, best.residual)


def solve_saddle(
    field: Field, start: torch.Tensor, split: int, budget: Budget, project: Field | None = None
) -> Solved:
    """A zero of (-∇_x f, ∇_y f), f convex in x and concave in y, on a convex set.

    Args:
        field: (-∇_x f, ∇_y f), the direction in which both players gain.
        split: the length of x in a point.
        project: onto the set; ``None`` for the whole space.
    """
    inside = project or _anywhere
    best = _Best(field, inside, budget)
    value = best(start)
    best.note(start, value)
    if project is None and len(start) <= 2 * FEW:
        _newton(
            best,
            start,
            value,
            lambda J: _definite(-J[:split, :split]) and _definite(-J[split:, split:]),
        )
    if not best.done:
        _extragradient(best, inside)
    return Solved(best.point, best.residual)


def difference(point: torch.Tensor) -> float:
    """The width of a difference about a point by which a field is differentiated."""
    return torch.finfo(point.dtype).eps ** (1 / 3) * max(1.0, float(point.abs().max()))


def _anywhere(point: torch.Tensor) -> torch.Tensor:
    return point


def _definite(H: torch.Tensor) -> bool:
    """Whether the symmetric part is positive semidefinite, up to the rounding of differences."""
    if not len(H):
        return True
    eigenvalues = torch.linalg.eigvalsh((H + H.mT) / 2)
    return bool(eigenvalues[0] >= -math.sqrt(torch.finfo(H.dtype).eps) * eigenvalues.abs().max())


def _newton(best: _Best, point: torch.Tensor, value: torch.Tensor, sound: Callable) -> None:
    """Newton's iteration to a zero of the field, as long as every step takes nine tenths of the residual.

    Directions in which the field does not change are left alone: the step is the shortest.

    Args:
        sound: whether a Jacobian is that of a maximum, or of a saddle; another one ends the iteration.
    """
    while best.left > len(point) + 1 and not best.done:
        J = _jacobian(best, point, value)
        if not torch.isfinite(J).all() or not sound(J):
            return
        tolerance = math.sqrt(torch.finfo(J.dtype).eps)
        inverse, before = torch.linalg.pinv(J.double(), rtol=tolerance).to(J.dtype), best.residual
        while not best.done:  # the same Jacobian again, while that is worth it
            point = best.point - inverse @ value
            last, value = best.residual, best(point)
            if not best.note(point, value) <= last / 10:
                break
        if best.residual > before / 10:
            return
        if best.point is not point:
            point, value = best.point, best(best.point)


def _jacobian(field: Field, point: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The field's Jacobian by differences ``[d, d]``, exact up to rounding where it is linear."""
    width = difference(point)
    columns = []
    for unit in torch.eye(len(point), dtype=point.dtype, device=point.device):
        columns.append((field(point + width * unit) - value) / width)
    return torch.stack(columns, dim=1)


def _ascend(best: _Best, project: Field) -> None:
    """Projected ascent with momentum; a step 1/L is halved where the gradient changes by more than L."""
    point = best.point
    ahead, slope, momentum = point, best(point), 1.0
    step = max(1.0, float(point.norm())) / max(float(slope.norm()), 1e-30)
    while not best.done:
        new = project(ahead + step * slope)
        moved = float((new - ahead).norm())
        if moved == 0:
            best.note(ahead, slope)
            return
        value = best(new)
        if not step * float((value - slope).norm()) <= moved:
            step *= SHRINK
            continue
        best.note(new, value)
        if float(slope @ (new - point)) < 0:
            momentum, ahead, slope = 1.0, new, value
        else:
            following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            ahead = project(new + (momentum - 1) / following * (new - point))
            slope, momentum = best(ahead), following
        point, step = new, step * GROW


def _extragradient(best: _Best, project: Field) -> None:
    """The extragradient method; a step is halved where the field changes by more than 0.9 of its inverse."""
    point = best.point
    value = best(point)
    step = max(1.0, float(point.norm())) / max(float(value.norm()), 1e-30)
    while not best.done:
        middle = project(point + step * value)
        moved = float((middle - point).norm())
        if moved == 0:
            return
        between = best(middle)
        if not step * float((between - value).norm()) <= 0.9 * moved:
            step *= SHRINK
            continue
        point = project(point + step * between)
        value = best(point)
        best.note(point, value)
        step *= GROW
