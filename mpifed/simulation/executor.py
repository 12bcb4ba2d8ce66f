"""The executor: calls a phase's client function for the members of the cohort that a rank hosts, by groups.

With groups of one client, clients are *looped over*: C = 1. In groups of two or more, clients are
*vectorised*: ``torch.func.vmap`` maps the problem's functions over the client axis.

Results of one client differ in the last bits between the loop and vectorised clients, but do not depend on
the number of vectorised clients. Therefore, if clients are vectorised and a single client remains, it is
stepped together with a copy of itself. Then a client's results do not depend on the size of the groups, on
the other members of its group or on its rank. Groups have equal sizes where possible, so a single client
remains only if a rank has one member, or an odd number of members in groups of two.

Some violations of a method's contract are detected by running it: the first run of a stage detects message
fields that are not filled, rounds 0 and 1 detect client functions that write to ``shared``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mpifed.base.errors import ContractError, user_code_errors
from mpifed.core.algorithm import Now, Phase
from mpifed.core.device import to_device
from mpifed.core.oracle import Oracle
from mpifed.core.records import Layout, Observed, State
from mpifed.core.validation import before_call, called, expect_nothing, expect_unchanged
from mpifed.parallel.placement import Cohort
from mpifed.simulation.client_store import GroupRows

__all__ = ["Executor", "Observer", "Stage", "capacity", "message_rows"]

#: Bytes of messages that are filled before they are added up if clients are looped over.
MESSAGES = 2**17
#: Maximum number of cached views of clients' records; each takes several kB.
MAX_VIEWS = 4096


def capacity(group: int | str, members: int) -> int:
    """Return the maximum number of clients that a rank steps at a time, including copies; 1 is the loop.

    Args:
        group: number of clients stepped at a time, or "all".
        members: maximum number of members of a cohort on the rank.
    """
    if group == 1:
        return 1
    return max(2, members if group == "all" else min(int(group), members))


def message_rows(capacity: int, members: int, bytes: int) -> int:
    """Return the number of messages, of ``bytes`` each, that a rank fills before it adds them up.

    They are the messages of one group of vectorised clients, or of several clients of the loop.

    Args:
        members: maximum number of members of a cohort on the rank.
    """
    return capacity if capacity > 1 else max(1, min(members, MESSAGES // max(1, bytes)))


@dataclass
class Stage:
    """A phase at one position of a round, with views of the buffers of its reduction.

    Attributes:
        messages: the messages of a group in its first rows, ``[capacity, size]``.
        mean: the average message over the cohort, ``[size]``.
        updated_matrices: the adaptive fields of ``shared`` that are updated after the stage.
        number: position in the round, from 0.
        cohort: number of the cohort in the round.
        filled: whether the client function is known to fill all fields of the message.
        called: name of the client function in error messages.
    """

    phase: Phase
    messages: State
    mean: State
    reduction: Any
    updated_matrices: tuple[str, ...] = ()
    number: int = 0
    cohort: int = 0
    filled: bool = False
    called: str = field(init=False)

    def __post_init__(self):
        self.called, self._rows = called(self.phase.client), {}

    def rows(self, start: int, stop: int) -> State:
        """Return the messages in rows ``start:stop``, as views."""
        if (start, stop) not in self._rows:
            self._rows[start, stop] = self.messages.rows(start, stop)
        return self._rows[start, stop]


class Observer:
    """Base class of objects that are called in every phase. The methods do nothing by default."""

    def before_clients(self, stage: Stage, cohort: Cohort, members: slice) -> None:
        """Called before the group ``cohort.local[members]`` is stepped."""

    def after_clients(self, stage: Stage, cohort: Cohort, members: slice) -> None:
        """Called when the first rows of ``stage.messages`` contain the group's messages."""

    def after_mean(self, stage: Stage, cohort: Cohort) -> None:
        """Called when ``stage.mean`` contains the average, before the server function."""


class Executor:
    """Runs client functions for the members of a cohort on this rank.

    Args:
        oracle: the oracle of the clients that this rank may step, ``batched`` if clients are vectorised.
        clients: their ``client`` record, one row per client, ``[C, size]``, on the device or in host memory.
        within_round: layout of the client fields that exist within a round.
        capacity: maximum number of clients stepped at a time, including copies; 1 is the loop.

    Attributes:
        calls: oracle calls of each member on this rank in the last phase, ``[members]``.
        calls_in_round, clipped: oracle calls, and those whose gradient was clipped, on this rank in the last
            round.
    """

    def __init__(self, oracle: Oracle, clients: State, within_round: Layout, capacity: int):
        self.oracle, self.sampler = oracle, oracle.sampler
        self.clients, self.capacity = clients, capacity
        self._layout, self._views, self._device = within_round, {}, oracle.sampler.device
        self._copied = GroupRows.if_needed(clients.buffer, self._device)
        self.calls_in_round, self.clipped = 0, 0  # the second becomes a tensor with `oracle.clip`
        self.calls = np.zeros(0, dtype=np.int64)

    def begin_round(self, r: int) -> None:
        """Start round ``r``."""
        self.sampler.begin_round(r)
        self._within_round, self._cohort = None, None
        self.calls_in_round, self.clipped = 0, 0

    def groups(self, stage: Stage, cohort: Cohort) -> list[slice]:
        """Start a phase and return the groups of this rank's members, as slices of ``cohort.local``."""
        count, members = len(cohort.local), cohort.local
        groups = _split(count, len(stage.messages.buffer))
        if self.capacity > 1 and groups and groups[-1].start == count - 1:
            members = np.append(members, members[-1])  # the copy of a single remaining client
        if stage.cohort != self._cohort:  # compared by number: a new cohort may have the same members
            self._cohort = stage.cohort
            zeros = torch.zeros(
                len(members), self._layout.size, dtype=self.clients.buffer.dtype, device=self._device
            )
            self._within_round = State(self._layout, zeros)
        elif count < len(self._local):  # clients have dropped out
            remaining = np.searchsorted(self._local, members)
            index = to_device(remaining, self._device)
            self._within_round = State(self._layout, self._within_round.buffer[index])
        self._local = cohort.local
        with user_code_errors(type(self.oracle.problem).__name__):  # reads data that are not loaded yet
            self.sampler.select_members(members)
        self.calls = np.zeros(count, dtype=np.int64)
        return groups

    def run(self, stage: Stage, now: Now, members: slice, shared: Observed) -> None:
        """Run the client function for a group, which fills the first rows of the messages."""
        before = before_call(shared) if now.round < 2 else None
        stage.messages.buffer.zero_()
        copies = None
        if self._copied:
            group = self.sampler.members[self._with_copy(members)]
            copies = State(self.clients.layout, self._copied.read(group))
        for row, step in self._steps(members):
            rows = self._with_copy(step)
            places = self.sampler.members[rows]
            self.oracle.select_clients(rows)
            if copies:
                client, index = copies.rows(row, row + len(places)), None
            else:
                client, index = self._records(places)
            message, numbers = stage.rows(row, row + len(places)), self.oracle.client.tolist()
            if not stage.filled:
                message = Observed(message.layout, message.buffer)
            record = client
            if self._layout.size:
                record = client.joined(self._within_round.rows(rows.start, rows.stop))
            with user_code_errors(stage.called, now.round, stage.phase.name, numbers):
                returned = stage.phase.client(now, shared, record, message, self.oracle)
            if not stage.filled:
                _expect_filled(stage, returned, message)
            if index is not None:
                self.clients.buffer[index] = client.buffer
            self._count_calls(step)
        if copies:
            self._copied.write(group, copies.buffer)
        if before is not None:
            expect_unchanged(shared, before, "shared", stage.phase.client, "client")

    def _with_copy(self, members: slice) -> slice:
        """Return the members of a group, with the copy of a single vectorised client, the next member of the
        sampler."""
        return slice(members.start, max(members.stop, members.start + min(self.capacity, 2)))

    def _steps(self, members: slice) -> Iterator[tuple[int, slice]]:
        """Yield the members that are stepped together, with the row of their first message."""
        if self.capacity > 1:
            return iter([(0, members)])
        return ((row, slice(n, n + 1)) for row, n in enumerate(range(members.start, members.stop)))

    def _records(self, places: np.ndarray) -> tuple[State, torch.Tensor | None]:
        """Return the records of the clients at ``places``, and their index if the records are a copy.

        Records of contiguous clients are views, which are cached.
        """
        first, count = int(places[0]), len(places)
        if int(places[-1]) - first != count - 1:
            index = to_device(places, self.clients.buffer.device)
            return State(self.clients.layout, self.clients.buffer[index]), index
        if (first, count) not in self._views:
            if len(self._views) == MAX_VIEWS:
                self._views.clear()
            self._views[first, count] = self.clients.rows(first, first + count)
        return self._views[first, count], None

    def _count_calls(self, members: slice) -> None:
        calls, number = self.oracle.calls, members.stop - members.start
        self.calls[members] = calls if isinstance(calls, int) else calls[:number]
        if self.oracle.clip is not None:
            self.calls_in_round += int(self.calls[members].sum())
            self.clipped = self.clipped + self.oracle.clipped[:number].sum()  # read once per evaluation
        self.calls[members] *= self.oracle.problem.gradients_per_call


def _expect_filled(stage: Stage, returned: object, message: Observed) -> None:
    """Check, after the first run of a stage, that the client function fills the message and returns nothing.

    Raises:
        ContractError: it does not.
    """
    expect_nothing(returned, stage.called, "fills `message`")
    reads, writes = message.pop_accesses()
    empty = [field for field in message.layout.record.fields if field not in reads | writes]
    if empty:
        raise ContractError(f"{stage.called} never fills message.{', message.'.join(empty)}")
    stage.filled = True


def _split(count: int, size: int) -> list[slice]:
    """Split ``count`` members into the fewest groups of at most ``size``, whose sizes differ by at most one,
    larger groups first."""
    parts = -(-count // size)
    edges = [-(-part * count // parts) for part in range(parts + 1)] if parts else []
    return [slice(*edge) for edge in itertools.pairwise(edges)]
