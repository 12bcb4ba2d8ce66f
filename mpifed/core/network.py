"""Positions of the parameters of a problem's network among its variables, and a start from given weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mpifed.core.problem import Game, Problem

__all__ = ["fixed", "places", "placed"]


def places(problem: Problem) -> dict[str, tuple[str, str]]:
    """Parameter of the network → its block and its name in the block; empty without a network.

    They are x's, and z's where a method sees the problem as a game.
    """
    block, prefix = ("z", "x.") if isinstance(problem, Game) else ("x", "")
    return {name: (block, prefix + name) for name in problem.network}


def fixed(problem: Problem) -> tuple[Mapping[str, torch.Tensor], Mapping[str, str]]:
    """The entries of the network's ``state_dict`` other than parameters: values by name, and further names of
    parameters → their names.

    Args:
        problem: the prepared problem as the job names it.
    """
    return problem.model.fixed() if problem.network else ({}, {})  # type: ignore[attr-defined]


def placed(
    problem: Problem, point: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """A starting point with ``weights`` in the place of the network's parameters, flat by block.

    Everything else stays as it is in ``point``. Float64, which holds every weight exactly.
    """
    blocks, where = problem.variables(), places(problem)
    (block,) = {block for block, _ in where.values()}
    flat = torch.as_tensor(point.get(block, torch.zeros(blocks.sizes[block]))).reshape(-1).double().clone()
    named = blocks.unflatten(block, flat)
    for name, values in weights.items():
        named[where[name][1]].copy_(values)
    return {**point, block: flat}
