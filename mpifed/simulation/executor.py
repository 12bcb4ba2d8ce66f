"""Executors: how a rank steps the members of the cohort that it hosts. Both run the same method text.

``loop``: one client after another, C = 1 each. The reference for every other.

``batched``: all members at once, the loss mapped over the client axis. Where bits must not depend on the
layout (``exact``), a lone client is stepped beside a copy of itself: kernels for a batch of one differ from
those for two or more, and those for two or more give every client the same bits whatever the size of the
batch.

Where a method breaks its contract, only running shows some of it. The first run of a stage looks for messages
that are not filled, rounds 0 and 1 for client functions that write to ``shared``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mpifed.core.algorithm import Now, Phase
from mpifed.core.errors import ContractError, blaming
from mpifed.core.method_checks import called, expect_nothing
from mpifed.core.oracle import ORACLES
from mpifed.core.problem import Problem
from mpifed.core.records import Layout, Observed, State
from mpifed.core.sampling import Sampler
from mpifed.parallel.placement import Cohort

__all__ = ["EXECUTORS", "Batched", "Loop", "Observer", "Stage"]


@dataclass
class Stage:
    """A phase of a round with the buffers that it needs. A phase that a round repeats has a stage each time.

    Attributes:
        messages: the messages of a group of this rank's members in its first rows, ``[capacity, size]``.
        mean: their average over the cohort, ``[size]``.
        reduction: what averages them.
        refreshed: the adaptive fields of ``shared`` that are made anew after it.
        cohort: the number of the round's cohort that takes part.
    """

    phase: Phase
    messages: State
    mean: State
    reduction: object
    refreshed: tuple[str, ...] = ()
    cohort: int = 0
    filled: bool = False


class Observer:
    """What is told of every stage of a round, on every rank. Subclasses override what they need."""

    def before_clients(self, stage: Stage, cohort: Cohort, members: slice) -> None:
        """The group ``cohort.local[members]`` is about to be stepped."""

    def after_clients(self, stage: Stage, cohort: Cohort, members: slice) -> None:
        """The group's messages are the first rows of ``stage.messages``."""

    def after_mean(self, stage: Stage, cohort: Cohort) -> None:
        """``stage.mean`` holds the average; the server function comes next."""


class Loop:
    """Steps clients one after another.

    Args:
        sampler: the samples of this rank's clients.
        clients: the ``client`` record of this rank, one row a client ``[C, size]``.
        between: the layout of its fields that live within a round.
        exact: results must not depend on how many clients the rank hosts (nothing to do here).

    Attributes:
        calls: oracle calls of each member on this rank in the last phase, ``[members]``.
        capacity: the most clients that are stepped at a time.
    """

    batched = False

    def __init__(self, problem: Problem, sampler: Sampler, clients: State, between: Layout, exact: bool):
        self.sampler, self.clients, self.exact = sampler, clients, exact
        self.oracle = ORACLES[problem.family](problem, sampler, self.batched)
        self._rows = [clients.rows(c, c + 1) for c in range(len(clients.buffer))]
        self._layout = between
        self.calls, self.capacity = np.zeros(0, dtype=np.int64), 1

    def begin(self, r: int) -> None:
        """Begin round ``r``."""
        self.sampler.begin(r)
        self._between, self._cohort = None, None

    def groups(self, stage: Stage, cohort: Cohort) -> list[slice]:
        """Begin a phase: the members on this rank in the groups in which they are stepped, parts of
        ``cohort.local``.
        """
        count = len(cohort.local)
        if stage.cohort != self._cohort:  # with all clients, a fresh cohort is they again
            self._cohort = stage.cohort
            self._between = State(self._layout, self.clients.buffer.new_zeros(count, self._layout.size))
        self._dealt = self.sampler.numbers.copy(), self.sampler.normals.copy()
        self.calls = np.zeros(count, dtype=np.int64)
        return self._cut(count)

    def _cut(self, count: int) -> list[slice]:
        return [slice(row, row + 1) for row in range(count)]

    def run(self, stage: Stage, now: Now, cohort: Cohort, members: slice, shared: Observed) -> None:
        """Run the client function for a group and fill the first rows of the messages."""
        stage.messages.buffer[: members.stop - members.start].zero_()
        before = shared.buffer.clone() if now.round < 2 else None
        self._step(stage, now, cohort.local, members, shared)
        if before is not None and not torch.equal(before, shared.buffer):
            names = shared.layout.field_at(int((before != shared.buffer).nonzero()[0]))
            raise ContractError(
                f"{called(stage.phase.client)} changed shared.{names}: a client function reads `shared` and "
                "never writes to it, not in place either (x = shared.x; x -= ... does; x = x - ... does not)"
            )

    def _step(self, stage: Stage, now: Now, local: np.ndarray, members: slice, shared: Observed) -> None:
        self.sampler.turn_to(local)
        client = self._rows[local[members.start]]
        if self._layout.size:
            client = client.beside(self._between.rows(members.start, members.stop))
        self.oracle.at(members)
        self._call(stage, now, shared, client, stage.messages)
        self.calls[members] = self.oracle.calls

    def again(
        self, stage: Stage, now: Now, cohort: Cohort, shared: Observed, row: int, watching, noting
    ) -> tuple:
        """Repeat the phase that has just run for one member, and for those that are stepped together with it,
        to see more of it.

        Args:
            row: the member, as a row of the messages.
            watching: makes of the oracle, and of the member's row in what it returns, what the client
                function gets in its place.
            noting: makes of a copy of the members' record, as the phase has left it, what the client function
                gets in its place.

        Returns:
            The member's message ``[size]``, and what ``watching`` and ``noting`` made.
        """
        rows = self._beside(row, len(cohort.local))
        members, place = cohort.local[rows], rows.index(row)
        client = State(self.clients.layout, self.clients.buffer[members])
        between = State(self._layout, self._between.buffer[rows])
        self.sampler.numbers[:], self.sampler.normals[:] = self._dealt
        self.sampler.turn_to(members)
        self.oracle.at(slice(0, len(rows)))
        message = State(stage.messages.layout, client.buffer.new_zeros(len(rows), stage.messages.layout.size))
        watch, record = watching(self.oracle, place), noting(client.beside(between))
        stage.phase.client(now, shared, record, message, watch)
        return message.buffer[place], watch, record

    def _beside(self, row: int, count: int) -> list[int]:
        """The rows of ``count`` messages that are stepped together with ``row``."""
        return [row]

    def _call(self, stage: Stage, now: Now, shared: Observed, client: State, message: State) -> None:
        """The method's client function, with where it was when it failed."""
        name, clients = called(stage.phase.client), self.oracle.client.tolist()
        if not stage.filled:
            message = Observed(message.layout, message.buffer)
        with blaming(name, now.round, stage.phase.name, clients):
            returned = stage.phase.client(now, shared, client, message, self.oracle)
        if not stage.filled:
            expect_nothing(returned, name, "fills `message`")
            reads, writes = message.take_notes()
            empty = [field for field in message.layout.record.fields if field not in reads | writes]
            if empty:
                raise ContractError(f"{name} never fills message.{', message.'.join(empty)}")
            stage.filled = True


class Batched(Loop):
    """Steps all members at once."""

    batched = True

    def __init__(self, problem: Problem, sampler: Sampler, clients: State, between: Layout, exact: bool):
        super().__init__(problem, sampler, clients, between, exact)
        sizes, self.capacity = sampler.sizes, max(len(clients.buffer), 1)
        if not sampler.batch_size and len(set(sizes.tolist())) > 1:
            raise ValueError(
                "full batches of clients stepped together need clients of one size, got "
                f'{sizes.min()} to {sizes.max()} rows: set [oracle] batch_size, or [run] executor = "loop"'
            )

    def _beside(self, row: int, count: int) -> list[int]:
        return [row, row] if self.exact and count == 1 else list(range(count))

    def _cut(self, count: int) -> list[slice]:
        return [slice(0, count)] if count else []

    def _step(self, stage: Stage, now: Now, local: np.ndarray, members: slice, shared: Observed) -> None:
        count = len(local)
        pad = self.exact and count == 1
        padded = np.repeat(local, 2) if pad else local
        self.sampler.turn_to(padded)
        self.oracle.at(slice(0, len(padded)))
        whole = not pad and count == len(self.clients.buffer)
        clients = self.clients if whole else State(self.clients.layout, self.clients.buffer[padded])
        between, rows = self._between, stage.messages.rows(0, count)
        if pad:
            between = State(self._layout, self._between.buffer.repeat(2, 1))
            rows = State(rows.layout, rows.buffer.new_zeros(2, rows.layout.size))
        self._call(stage, now, shared, clients.beside(between) if self._layout.size else clients, rows)
        self.calls += self.oracle.calls[:count]
        if pad:
            stage.messages.buffer[0] = rows.buffer[0]
            self._between.buffer[0] = between.buffer[0]
        if not whole:
            self.clients.buffer[local] = clients.buffer[:count]


EXECUTORS = {"loop": Loop, "batched": Batched}
