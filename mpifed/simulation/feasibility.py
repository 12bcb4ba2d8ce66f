"""The distance of evaluated points from the problem's sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch

from mpifed.base.errors import user_code_errors
from mpifed.base.log import warning
from mpifed.base.plugins import plugin_of
from mpifed.base.settings import title
from mpifed.core.algorithm import Algorithm
from mpifed.core.metrics import Column
from mpifed.core.problem import Operator, Problem, named_point, user_problem
from mpifed.core.sets import Zero
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.simulation.evaluation import EvaluatedPoint, Evaluation
from mpifed.simulation.not_finite import smaller_steps

__all__ = ["Feasibility", "infeasibility", "projections"]


class Feasibility(Evaluation):
    """Warns about the first evaluated point outside the problem's sets. It has no column of the history.

    Args:
        out: folder of the run, for the warning.

    Attributes:
        infeasible: describes that point; "" if there is none.
    """

    def __init__(self, problem: Problem, method: Algorithm, comm: SerialComm, out: str):
        self._problem, self._method, self._comm, self._out = problem, method, comm, out
        self._sets = projections(problem)
        self.infeasible = ""

    def evaluate(self, point: EvaluatedPoint) -> dict[Column, float]:
        if self.infeasible or not self._sets:
            return {}
        problem, variables = self._problem, self._problem.variables()
        named = [variables.unflatten(block, flat) for block, flat in zip(variables, point.blocks)]
        with (
            collective_errors(self._comm, ValueError),
            user_code_errors(f"the sets of {title(problem)}", point.round),
        ):
            distance = infeasibility(problem, self._sets, named)
        if distance:
            self.infeasible = f"{distance} after round {point.round}"
            if self._comm.rank == 0:
                warning(
                    f"{self._out}: {self.infeasible}: {self._remedy(point)} (results and reports mark the "
                    "run as infeasible)"
                )
        return {}

    def _remedy(self, point: EvaluatedPoint) -> str:
        method = self._method
        if not (point.round or method.start):
            return f"initial() of {title(self._problem)} must return a point in the sets"
        if plugin_of(type(method)):
            return (
                f"{title(method)} must project new points by oracle.sets and now.sets, or reject problems "
                "with sets by constrained = False"
            )
        largest = max(float(block.abs().max()) for block in point.blocks)  # methods of the package project
        return (
            f"the run diverges, with coordinates up to {largest:.2g}: {smaller_steps(method)}, or "
            "set run.dtype = 'float64'"
        )


def projections(problem: Problem) -> list[tuple[str, Callable]]:
    """Return the blocks of the user's problem that have a set, with the projections onto the sets.

    The domain of φ is a set: the proximal map with weight 0 is the projection onto it.
    """
    source = user_problem(problem)
    sets = [(block, getattr(source.sets, block)) for block in source.sets]
    if isinstance(source, Operator) and not isinstance(source.phi, Zero):
        sets.append(("z", lambda z: source.phi(z, 0.0)))
    return sets


def infeasibility(problem: Problem, sets: Iterable[tuple[str, Callable]], point) -> str:
    """Describe the distance of the first block that is outside its set; "" if all blocks are inside.

    Rounding of projections and averages is of the order of ε times the norm of the block. The tolerance √ε is
    thousands of times larger, and smaller than a step out of a set. Non-finite points are reported elsewhere.

    Args:
        sets: from :func:`projections`.
        point: the blocks of ``variables()`` in order, by parameter.
    """
    blocks = named_point(problem, point)
    for block, project in sets:
        v = torch.cat([value.reshape(-1) for value in blocks[block].values()])
        distance = float((project(v) - v).double().norm())
        if distance > math.sqrt(torch.finfo(v.dtype).eps) * max(1.0, float(v.double().norm())):
            return f"{block} is {distance:.3g} away from its set"
    return ""
