"""Regularised problems, f + a‖x - x̃‖² - b‖y - y_0‖², for any f ([regularize] of a job).

The gradients of the terms are added to the oracle's gradients; metrics remain those of f. The centres are
fields of ``shared``, so checkpoints contain them. x̃ starts at x_0 and is set to the current x at the end of
every stage, which runs the stages of a proximal-point method one after another (Shen et al. 2024,
Proposition 3.1).
"""

from __future__ import annotations

import torch

from mpifed.base.errors import ContractError
from mpifed.core.oracle import MinimaxOracle, OperatorOracle, ProximalTerm
from mpifed.core.problem import Problem
from mpifed.core.records import Record, State, not_sent
from mpifed.simulation.options import Regularize

__all__ = ["Regularizer", "with_centres"]


def _names(problem: Problem) -> dict[str, str]:
    """Return block → name of the field with its centre."""
    return {block: f"centre_{block}" for block in problem.variables()}


def with_centres(shared: Record, problem: Problem, regularize: Regularize | None) -> Record:
    """Return a method's ``shared``, with a centre for each block if the job regularises.

    Raises:
        ContractError: the method has a field of that name.
    """
    if regularize is None:
        return shared
    names = _names(problem)
    for name in names.values():
        if name in shared.fields:
            raise ContractError(
                f"[regularize] needs the field name {name!r}: rename the method's field of this name"
            )
    return Record(**shared.fields, **{name: not_sent(block) for block, name in names.items()})


class Regularizer:
    """Adds the terms of a job to the gradients of its oracle.

    Args:
        shared: the state with the centres; reads and writes here do not count as communication.

    Raises:
        ContractError: there is a term in y, but the problem has no block y.
    """

    def __init__(
        self, regularize: Regularize, problem: Problem, shared: State, oracle: MinimaxOracle | OperatorOracle
    ):
        self._stage, self._names = regularize.stage, _names(problem)
        self._state = State(shared.layout, shared.buffer)
        centres = {block: getattr(self._state, name) for block, name in self._names.items()}
        if "z" in centres:  # a game, whose z is x and y concatenated
            split = centres["z"].split(problem.split)  # type: ignore[attr-defined]
            centres = dict(zip("xy", split))
        self._x = centres["x"]
        if regularize.y and not centres.get("y", torch.empty(0)).numel():
            raise ContractError("[regularize] y is the weight of a term in y, but the problem has no block y")
        terms = [ProximalTerm(0, 2 * regularize.x, self._x)] if regularize.x else []
        oracle.add_terms(terms + ([ProximalTerm(1, 2 * regularize.y, centres["y"])] if regularize.y else []))

    def start(self, block: str, value: torch.Tensor) -> None:
        """Set the centre of a block to its starting point."""
        setattr(self._state, self._names[block], value)

    def ends_stage(self, round: int) -> bool:
        return bool(self._stage) and round % self._stage == 0

    def recentre(self, point: torch.Tensor) -> None:
        """Set x̃ to the x of ``point``, all blocks concatenated."""
        self._x.copy_(point[: len(self._x)])
