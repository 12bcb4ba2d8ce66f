"""Solvers of inner problems to a known accuracy: the best response of y, and proximal points of x.

The solvers use gradients only, because problems with analytic gradients need not define a loss. They return
the best point found and its *natural residual*: the length of a projected gradient step of size 1 from that
point, which is the norm of the gradient if there is no set. The residual is zero exactly at stationary
points; these are solutions if the inner problem is concave (convex).

With few variables and no set, a solver starts with Newton's method, whose Jacobian is computed by
differences: its first step solves a quadratic problem. It continues with projected gradient ascent with
Nesterov's momentum, restarted when the momentum opposes the gradient (O'Donoghue & Candès 2015), or with the
extragradient method (Korpelevich 1976). The step sizes of both adapt to the observed gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

__all__ = ["Budget", "Field", "Solution", "difference", "maximise", "solve_saddle"]

#: Maximum number of variables for Newton's method.
NEWTON_VARIABLES = 32
#: A solver stops if the best residual has not decreased by the factor :data:`PROGRESS` in this number of
#: iterations.
PATIENCE, PROGRESS = 100, 0.99
#: Factors of the step size after an accepted and after a rejected step.
GROW, SHRINK = 1.4, 0.5

#: A vector field or a projection, ``[d]`` → ``[d]``.
Field = Callable[[torch.Tensor], torch.Tensor]


class Budget(NamedTuple):
    """Stopping rule of a solver: a natural residual, and a maximum number of gradient evaluations."""

    accuracy: float
    evaluations: int


class Solution(NamedTuple):
    """The result of a solver.

    Attributes:
        point: the best point found, ``[d]``.
        residual: its natural residual; NaN if the gradient is not finite.
    """

    point: torch.Tensor
    residual: float


class _Search:
    """The state of a solver: a field that counts its evaluations, and the best point found."""

    def __init__(self, field: Field, project: Field, budget: Budget):
        self._field, self._project, self._budget = field, project, budget
        self.left, self._idle = budget.evaluations, 0
        self.residual, self.point = math.nan, torch.empty(0)

    def __call__(self, point: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        return self._field(point)

    def record(self, point: torch.Tensor, value: torch.Tensor) -> float:
        """Return the residual of a point at which the field is ``value``, and keep the best point."""
        residual = float(torch.linalg.vector_norm(self._project(point + value) - point))
        first = math.isnan(self.residual)
        self._idle = 0 if first or residual < PROGRESS * self.residual else self._idle + 1
        if first or residual < self.residual:
            self.residual, self.point = residual, point
        return residual

    @property
    def done(self) -> bool:
        """Whether the best point is accurate or not finite, the budget is spent, or progress has stalled."""
        return not self.residual > self._budget.accuracy or self.left < 1 or self._idle > PATIENCE


def maximise(gradient: Field, start: torch.Tensor, budget: Budget, project: Field | None = None) -> Solution:
    """Maximise a concave function on a convex set.

    Args:
        gradient: gradient of the function, ``[d]`` → ``[d]``.
        start: a point of the set, ``[d]``.
        project: projection onto the set; ``None`` for the whole space.
    """
    inside = project or _unconstrained
    search = _Search(gradient, inside, budget)
    value = search(start)
    search.record(start, value)
    if project is None and len(start) <= NEWTON_VARIABLES:
        _newton(search, start, value, lambda H: _semidefinite(-H))
    if not search.done:
        _ascend(search, inside)
    return Solution(search.point, search.residual)


def solve_saddle(
    field: Field, start: torch.Tensor, split: int, budget: Budget, project: Field | None = None
) -> Solution:
    """Find a saddle point of a function f that is convex in x and concave in y, on a convex set.

    Args:
        field: (-∇_x f, ∇_y f), ``[d]`` → ``[d]``.
        start: a point of the set, ``[d]``.
        split: number of variables of x.
        project: projection onto the set; ``None`` for the whole space.
    """
    inside = project or _unconstrained
    search = _Search(field, inside, budget)
    value = search(start)
    search.record(start, value)
    if project is None and len(start) <= 2 * NEWTON_VARIABLES:
        _newton(
            search,
            start,
            value,
            lambda J: _semidefinite(-J[:split, :split]) and _semidefinite(-J[split:, split:]),
        )
    if not search.done:
        _extragradient(search, inside)
    return Solution(search.point, search.residual)


def difference(point: torch.Tensor) -> float:
    """Return the width of the differences by which a field is differentiated at a point."""
    return torch.finfo(point.dtype).eps ** (1 / 3) * max(1.0, float(point.abs().max()))


def _unconstrained(point: torch.Tensor) -> torch.Tensor:
    return point


def _semidefinite(H: torch.Tensor) -> bool:
    """Return whether the symmetric part is positive semidefinite up to the error of differences."""
    if not len(H):
        return True
    eigenvalues = torch.linalg.eigvalsh((H + H.mT) / 2)
    return bool(eigenvalues[0] >= -math.sqrt(torch.finfo(H.dtype).eps) * eigenvalues.abs().max())


def _newton(search: _Search, point: torch.Tensor, value: torch.Tensor, accept: Callable) -> None:
    """Run Newton's method as long as each step reduces the residual to a tenth.

    The pseudo-inverse gives the shortest step, which is 0 in directions that do not change the field.

    Args:
        accept: whether a Jacobian is that of a maximum or of a saddle point; the method stops if it is not.
    """
    while search.left > len(point) + 1 and not search.done:
        J = _jacobian(search, point, value)
        if not torch.isfinite(J).all() or not accept(J):
            return
        tolerance = math.sqrt(torch.finfo(J.dtype).eps)
        inverse, before = torch.linalg.pinv(J.double(), rtol=tolerance).to(J.dtype), search.residual
        while not search.done:  # reuse the Jacobian as long as it reduces the residual
            point = search.point - inverse @ value
            last, value = search.residual, search(point)
            if not search.record(point, value) <= last / 10:
                break
        if search.residual > before / 10:
            return
        if search.point is not point:
            point, value = search.point, search(search.point)


def _jacobian(field: Field, point: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the Jacobian by differences, ``[d, d]``; it is exact up to rounding for a linear field."""
    width = difference(point)
    columns = []
    for unit in torch.eye(len(point), dtype=point.dtype, device=point.device):
        columns.append((field(point + width * unit) - value) / width)
    return torch.stack(columns, dim=1)


def _ascend(search: _Search, project: Field) -> None:
    """Run projected ascent with momentum. A step 1/L is halved if the gradient changes by more than L."""
    point = search.point
    extrapolated, slope, momentum = point, search(point), 1.0
    step = max(1.0, float(point.norm())) / max(float(slope.norm()), 1e-30)
    while not search.done:
        new = project(extrapolated + step * slope)
        moved = float((new - extrapolated).norm())
        if moved == 0:
            search.record(extrapolated, slope)
            return
        value = search(new)
        if not step * float((value - slope).norm()) <= moved:
            step *= SHRINK
            continue
        search.record(new, value)
        if float(slope @ (new - point)) < 0:
            momentum, extrapolated, slope = 1.0, new, value
        else:
            following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            extrapolated = project(new + (momentum - 1) / following * (new - point))
            slope, momentum = search(extrapolated), following
        point, step = new, step * GROW


def _extragradient(search: _Search, project: Field) -> None:
    """Run the extragradient method. A step is halved if the field changes by more than 0.9 / step."""
    point = search.point
    value = search(point)
    step = max(1.0, float(point.norm())) / max(float(value.norm()), 1e-30)
    while not search.done:
        middle = project(point + step * value)
        moved = float((middle - point).norm())
        if moved == 0:
            return
        between = search(middle)
        if not step * float((between - value).norm()) <= 0.9 * moved:
            step *= SHRINK
            continue
        point = project(point + step * between)
        value = search(point)
        search.record(point, value)
        step *= GROW
