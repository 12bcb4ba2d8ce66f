"""The distance of evaluated points from the problem's sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch

from mpifed.core.problem import Operator, Problem, named_point, user_problem
from mpifed.core.sets import Zero

__all__ = ["infeasibility", "projections"]


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
