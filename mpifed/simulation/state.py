"""The memory of a run on one rank: a method's records laid out for a problem."""

from __future__ import annotations

import torch

from mpifed.base.errors import ContractError
from mpifed.base.settings import title
from mpifed.core.algorithm import Algorithm
from mpifed.core.problem import Problem
from mpifed.core.records import Adaptive, Layout, Observed, Record, State, WithinRound, not_sent
from mpifed.simulation.regularization import Regularize, with_centres

__all__ = ["Allocation", "layout_of"]


def layout_of(record: Record, method: Algorithm, problem: Problem) -> Layout:
    """The layout of a record; a minimax method's y is empty where the problem has none."""
    blocks = problem.variables()
    empty = {"y": 0} if problem.family == "minimax" and "y" not in blocks else {}
    return record.layout(blocks, empty | problem.kinds(), getattr(method, "matrix", None))


class Allocation:
    """The states of a method on a problem.

    Args:
        problem: prepared, of the method's family.
        clients: how many clients this rank hosts.
        regularize: the job's, whose centres ``shared`` then holds.

    Attributes:
        shared, clients, output: the records; ``clients`` has one row for each client of this rank, ``output``
            the blocks.
        between: the layout of the clients' fields that live within a round.
        moments: what rank 0 makes the adaptive matrices from.
        own: the blocks that every client has its own of.

    Raises:
        ContractError: the records do not fit the problem.
    """

    def __init__(
        self,
        method: Algorithm,
        problem: Problem,
        clients: int,
        dtype,
        device: torch.device,
        regularize: Regularize | None = None,
    ):
        self._method, self._problem, self._dtype, self._device = method, problem, dtype, device
        self.blocks = problem.variables()
        self._check_blocks()
        shared = self.state(with_centres(method.shared, problem, regularize))
        self.shared = Observed(shared.layout, shared.buffer)
        between = Record(**method.client.of(WithinRound))
        lasting = {name: kind for name, kind in method.client.fields.items() if name not in between.fields}
        self.clients, self.between = self.state(Record(**lasting), clients), self.layout(between)
        self.output = self.state(Record(**{block: block for block in self.blocks}))
        adaptive = method.shared.of(Adaptive)
        self.moments = self.state(
            Record(**{name: method.matrix.fields(one.block) for name, one in adaptive.items()})
        )
        self.own = Record(**{block: block for block in self.blocks if block not in self.shared})

    def layout(self, record: Record) -> Layout:
        """The layout of a record."""
        return layout_of(record, self._method, self._problem)

    def state(self, record: Record, *lead: int) -> State:
        """A state of zeros."""
        return self.layout(record).state(lead, self._dtype, self._device)

    def _check_blocks(self) -> None:
        fields = self._method.client.fields | self._method.shared.fields
        missing = [block for block in self.blocks if block not in fields]
        if missing:
            raise ContractError(
                f"{title(self._method)} has no field {missing[0]!r} in `shared` or `client`, but "
                f"{type(self._problem).__name__} has the blocks {', '.join(self.blocks)}"
            )
        for block in self.blocks:
            kind = fields[block]
            if kind not in (block, not_sent(block)):
                raise ContractError(
                    f"{type(self._method).__name__}: the field {block!r} holds a block of "
                    f"{type(self._problem).__name__}, so it must be of kind {block!r}, got {kind!r}"
                )
