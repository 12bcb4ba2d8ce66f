"""Executors: how a rank steps the members of the cohort that it hosts. Both run the same algorithm text.

``loop``: one client after another, C = 1 each. The reference for every other.

``batched``: all members at once, the loss mapped over the client axis. Where bits must not depend on the layout
(``exact``), a lone client is stepped beside a copy of itself: kernels for a batch of one differ from those for two or
more, and those for two or more give every client the same bits whatever the size of the batch.
"""

from __future__ import annotations

import numpy as np

from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.oracle import ORACLES
from mpifed.core.problem import Problem
from mpifed.core.records import State
from mpifed.core.sampling import Sampler
from mpifed.parallel.placement import Cohort

__all__ = ["EXECUTORS", "Loop", "Batched"]


class Loop:
    """Steps clients one after another.

    Args:
        sampler: the samples of this rank's clients.
        clients: the ``client`` record of this rank, one row a client ``[C, size]``.
        exact: results must not depend on how many clients the rank hosts (nothing to do here).

    Attributes:
        calls: oracle calls of each member on this rank in the last phase, ``[members]``.
    """

    batched = False

    def __init__(self, algorithm: Algorithm, problem: Problem, sampler: Sampler, clients: State, exact: bool):
        self.algorithm, self.sampler, self.clients, self.exact = algorithm, sampler, clients, exact
        self.oracle = ORACLES[problem.family](problem, sampler, self.batched)
        self._rows = [clients.rows(c, c + 1) for c in range(len(clients.buffer))]
        self._messages: dict[str, list[State]] = {}
        self.calls = np.zeros(0, dtype=np.int64)

    def run(self, phase: Phase, r: int, cohort: Cohort, shared: State, messages: State) -> None:
        """Run ``client_<phase>`` for the members on this rank and fill the first rows of ``messages``."""
        step = getattr(self.algorithm, f"client_{phase.name}")
        if phase.name not in self._messages:
            self._messages[phase.name] = [messages.rows(c, c + 1) for c in range(len(messages.buffer))]
        messages.buffer[: len(cohort.local)].zero_()
        self.sampler.begin(cohort.local, r)
        calls = [self.oracle.calls]
        for row, member in enumerate(cohort.local):
            self.oracle.at(slice(row, row + 1))
            step(r, shared, self._rows[member], self._messages[phase.name][row], self.oracle)
            calls.append(self.oracle.calls)
        self.calls = np.diff(calls)


class Batched(Loop):
    """Steps all members at once."""

    batched = True

    def __init__(self, algorithm: Algorithm, problem: Problem, sampler: Sampler, clients: State, exact: bool):
        super().__init__(algorithm, problem, sampler, clients, exact)
        sizes = sampler.sizes
        if not sampler.batch_size and len(set(sizes.tolist())) > 1:
            raise ValueError(
                f"full batches of clients stepped together need clients of one size, got {sizes.min()} to {sizes.max()} rows: "
                'set [oracle] batch_size, or [run] executor = "loop"'
            )

    def run(self, phase: Phase, r: int, cohort: Cohort, shared: State, messages: State) -> None:
        """Run ``client_<phase>`` for the members on this rank and fill the first rows of ``messages``."""
        count, before = len(cohort.local), self.oracle.calls
        self.calls = np.zeros(count, dtype=np.int64)
        if not count:
            return
        step = getattr(self.algorithm, f"client_{phase.name}")
        pad = self.exact and count == 1
        members = np.repeat(cohort.local, 2) if pad else cohort.local
        self.sampler.begin(members, r)
        self.oracle.at(slice(0, len(members)), counted=count)
        whole = not pad and count == len(self.clients.buffer)
        clients = self.clients if whole else State(self.clients.layout, self.clients.buffer[members])
        rows = messages.rows(0, count)
        if pad:
            rows = messages.layout.state((2,), messages.buffer.dtype, messages.buffer.device)
        rows.buffer.zero_()
        step(r, shared, clients, rows, self.oracle)
        self.calls += (self.oracle.calls - before) // count
        if pad:
            messages.buffer[0] = rows.buffer[0]
        if not whole:
            self.clients.buffer[members[:count]] = clients.buffer[:count]


EXECUTORS = {"loop": Loop, "batched": Batched}
