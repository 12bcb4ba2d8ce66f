"""Regularised problems, f + a‖x - x̃‖² - b‖y - y_0‖², whatever f is ([regularize] of a job).

The terms are added to the oracle's gradients; metrics stay those of f. Their centres are fields of
``shared``, so that a checkpoint has them. x̃ starts at x_0 and becomes the current x at the end of every
stage, which chains the stages of a proximal-point method in one run (Shen et al. 2024, Proposition 3.1).
"""

from __future__ import annotations

import torch
from pydantic import Field, model_validator

from mpifed.base.errors import ContractError
from mpifed.base.settings import Section
from mpifed.core.oracle import MinimaxOracle, OperatorOracle, Pull
from mpifed.core.problem import Problem
from mpifed.core.records import Record, State, not_sent

__all__ = ["Regularize", "Regularizer", "with_centres"]


class Regularize(Section):
    """[regularize]: adds a‖x - x̃‖² - b‖y - y_0‖² to f; the metrics remain those of f."""

    x: float = Field(0.0, ge=0, description="weight a of ‖x - x̃‖²; x̃ starts at x_0")
    y: float = Field(0.0, ge=0, description="weight b of ‖y - y_0‖²")
    stage: int | None = Field(
        None, ge=1, description="number of rounds after which x̃ is set to the current x; default: never"
    )

    @model_validator(mode="after")
    def _pulls(self):
        if not (self.x or self.y):
            raise ValueError("needs x or y, the weight of a term")
        if self.stage and not self.x:
            raise ValueError("stage renews the centre of x: it needs the weight x")
        return self


def _names(problem: Problem) -> dict[str, str]:
    """Block → the field of its centre."""
    return {block: f"centre_{block}" for block in problem.variables()}


def with_centres(shared: Record, problem: Problem, regularize: Regularize | None) -> Record:
    """A method's ``shared`` with a centre for each block, where the job regularises.

    Raises:
        ContractError: the method has a field of such a name.
    """
    if regularize is None:
        return shared
    names = _names(problem)
    for name in names.values():
        if name in shared.fields:
            raise ContractError(f"[regularize] needs the name {name!r}, which a field of the method has")
    return Record(**shared.fields, **{name: not_sent(block) for block, name in names.items()})


class Regularizer:
    """The pulls of a job on the gradients of its oracle.

    Args:
        shared: with the centres; seen without notes, since nothing here travels.

    Raises:
        ContractError: a term in y, and no block y.
    """

    def __init__(
        self,
        regularize: Regularize,
        problem: Problem,
        shared: State,
        oracle: MinimaxOracle | OperatorOracle,
    ):
        self._stage, self._names = regularize.stage, _names(problem)
        self._state = State(shared.layout, shared.buffer)
        centres = {block: getattr(self._state, name) for block, name in self._names.items()}
        if "z" in centres:  # a game: x and y end to end
            split = centres["z"].split(problem.split)  # type: ignore[attr-defined]
            centres = dict(zip("xy", split))
        self._x = centres["x"]
        if regularize.y and not centres.get("y", torch.empty(0)).numel():
            raise ContractError("[regularize] y is the weight of a term in y, and the problem has no block y")
        pulls = [Pull(0, 2 * regularize.x, self._x)] if regularize.x else []
        oracle.pull(pulls + ([Pull(1, 2 * regularize.y, centres["y"])] if regularize.y else []))

    def start(self, block: str, value: torch.Tensor) -> None:
        """Note the starting point of a block."""
        setattr(self._state, self._names[block], value)

    def ends_stage(self, round: int) -> bool:
        """Whether a round is the last of a stage."""
        return bool(self._stage) and round % self._stage == 0

    def renew(self, point: torch.Tensor) -> None:
        """Let x̃ be the x of the iterate, all blocks end to end."""
        self._x.copy_(point[: len(self._x)])
