"""The executor: how a rank steps the members of the cohort that it hosts, in groups, by one method text.

Groups of one are the *loop*: one client at a time, C = 1. In groups of two or more, clients are *vectorised*:
the problem's functions are mapped over the client axis.

Kernels for one client give other bits than kernels for several, and kernels for several give every client the
same bits however many they are. So a single client that is left over is stepped with a copy of itself,
whatever the reduction: a client's bits do not depend on the size of the groups, on the other members of its
group, or on its rank. Members are cut into equal groups, which leaves a single client only where a rank has
one, or an odd number in groups of two.

Where a method breaks its contract, only running shows some of it. The first run of a stage looks for messages
that are not filled, rounds 0 and 1 for client functions that write to ``shared``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from mpifed.base.errors import ContractError, user_code_errors
from mpifed.core.algorithm import Now, Phase
from mpifed.core.oracle import Oracle
from mpifed.core.records import Layout, Observed, State
from mpifed.core.validation import called, expect_nothing, expect_unchanged
from mpifed.parallel.placement import Cohort

__all__ = ["Executor", "Observer", "Stage", "capacity"]


def capacity(group: int | str, members: int) -> int:
    """Rows that a rank with at most ``members`` of a cohort needs for a group: one that goes together with
    others has room for a copy.

    Args:
        group: 1, a number, "all".
    """
    if group == 1:
        return 1
    return max(2, members if group == "all" else min(int(group), members))


@dataclass
class Stage:
    """A phase of a round with the buffers that it needs. A phase that a round repeats has a stage each time.

    Attributes:
        messages: the messages of a group of this rank's members in its first rows, ``[capacity, size]``.
        mean: their average over the cohort, ``[size]``.
        reduction: what averages them.
        refreshed: the adaptive fields of ``shared`` that are updated after it.
        number: the phase's number in the round, from 0.
        cohort: the number of the round's cohort that takes part.
        called: the client function's name in sentences.
    """

    phase: Phase
    messages: State
    mean: State
    reduction: object
    refreshed: tuple[str, ...] = ()
    number: int = 0
    cohort: int = 0
    filled: bool = False
    called: str = field(init=False)

    def __post_init__(self):
        self.called = called(self.phase.client)


class Observer:
    """Called at every stage of a round, on every rank. Subclasses override the methods that they need."""

    def before_clients(self, stage: Stage, cohort: Cohort, members: slice) -> None:
        """The group ``cohort.local[members]`` is about to be stepped."""

    def after_clients(self, stage: Stage, cohort: Cohort, members: slice) -> None:
        """The group's messages are the first rows of ``stage.messages``."""

    def after_mean(self, stage: Stage, cohort: Cohort) -> None:
        """``stage.mean`` holds the average; the server function comes next."""


class Executor:
    """Steps the members of a cohort.

    Args:
        oracle: of this rank's clients, ``batched`` where several are stepped at a time.
        clients: the ``client`` record of this rank, one row a client ``[C, size]``.
        between: the layout of its fields that live within a round.
        capacity: the most clients that are stepped at a time, copies among them; 1 is the loop.

    Attributes:
        calls: oracle calls of each member on this rank in the last phase, ``[members]``.
    """

    def __init__(self, oracle: Oracle, clients: State, between: Layout, capacity: int):
        self.oracle, self.sampler = oracle, oracle.sampler
        self.clients, self.capacity = clients, capacity
        self._layout, self._views = between, {}
        self.calls = np.zeros(0, dtype=np.int64)

    def begin(self, r: int) -> None:
        """Begin round ``r``."""
        self.sampler.begin(r)
        self._between, self._cohort = None, None

    def groups(self, stage: Stage, cohort: Cohort) -> list[slice]:
        """Begin a phase: the members on this rank in the groups in which they are stepped, parts of
        ``cohort.local``.
        """
        count, members = len(cohort.local), cohort.local
        groups = _cut(count, self.capacity)
        if self.capacity > 1 and groups and groups[-1].start == count - 1:
            members = np.append(members, members[-1])  # the last one's copy
        if stage.cohort != self._cohort:  # with all clients, a fresh cohort is they again
            self._cohort = stage.cohort
            self._between = State(
                self._layout, self.clients.buffer.new_zeros(len(members), self._layout.size)
            )
        elif count < len(self._local):  # some have dropped out
            kept = np.searchsorted(self._local, members)
            self._between = State(self._layout, self._between.buffer[kept])
        self._local = cohort.local
        self.sampler.select_members(members)
        self.calls = np.zeros(count, dtype=np.int64)
        return groups

    def run(self, stage: Stage, now: Now, members: slice, shared: Observed) -> None:
        """Run the client function for a group and fill the first rows of the messages."""
        before = shared.buffer.clone() if now.round < 2 else None
        self._step(stage, now, members, shared)
        if before is not None:
            expect_unchanged(shared, before, "shared", stage.phase.client, "client")

    def _step(self, stage: Stage, now: Now, members: slice, shared: Observed) -> None:
        rows = self._with_copy(members)
        places = self.sampler.members[rows]
        self.oracle.at(rows)
        first, count = int(places[0]), len(places)
        neighbours = int(places[-1]) - first == count - 1
        clients = self._view(first, count) if neighbours else self._copied(places)
        record = clients.joined(self._between.rows(rows.start, rows.stop)) if self._layout.size else clients
        messages = stage.messages
        if len(messages.buffer) != count:
            messages = messages.rows(0, count)
        messages.buffer.zero_()
        self._call(stage, now, shared, record, messages)
        if not neighbours:
            self.clients.buffer[places] = clients.buffer
        calls = self.oracle.calls
        self.calls[members] = calls if isinstance(calls, int) else calls[: members.stop - members.start]

    def _with_copy(self, members: slice) -> slice:
        """The sampler's members that are stepped for a group: itself, or the last one and its copy."""
        return slice(members.start, max(members.stop, members.start + min(self.capacity, 2)))

    def _view(self, first: int, count: int) -> State:
        """The records of neighbours, as views."""
        if (first, count) not in self._views:
            self._views[first, count] = self.clients.rows(first, first + count)
        return self._views[first, count]

    def _copied(self, places: np.ndarray) -> State:
        return State(self.clients.layout, self.clients.buffer[places])

    def _call(self, stage: Stage, now: Now, shared: Observed, client: State, message: State) -> None:
        """The method's client function, with where it was when it failed."""
        name, clients = stage.called, self.oracle.client.tolist()
        if not stage.filled:
            message = Observed(message.layout, message.buffer)
        with user_code_errors(name, now.round, stage.phase.name, clients):
            returned = stage.phase.client(now, shared, client, message, self.oracle)
        if not stage.filled:
            expect_nothing(returned, name, "fills `message`")
            reads, writes = message.pop_accesses()
            empty = [field for field in message.layout.record.fields if field not in reads | writes]
            if empty:
                raise ContractError(f"{name} never fills message.{', message.'.join(empty)}")
            stage.filled = True


def _cut(count: int, size: int) -> list[slice]:
    """``count`` members in the fewest groups of at most ``size``, which differ by one, the larger first."""
    parts = -(-count // size)
    edges = [-(-part * count // parts) for part in range(parts + 1)] if parts else []
    return [slice(*edge) for edge in itertools.pairwise(edges)]
