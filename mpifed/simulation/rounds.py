"""The phases of a round: client functions, the average, adaptive matrices, the server function, and costs.

A value that is not finite ends the run on all ranks together, with an error that names the round, the client
and the fields.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from mpifed.base.errors import user_code_errors
from mpifed.base.log import info
from mpifed.core.algorithm import Now, Phase, local_steps, updated_matrices
from mpifed.core.autodiff import PLAIN
from mpifed.core.numerics import all_finite
from mpifed.core.oracle import ORACLES
from mpifed.core.problem import Problem
from mpifed.core.records import Layout, State
from mpifed.core.sampling import Sampler
from mpifed.core.validation import called, expect_nothing, expect_unchanged
from mpifed.parallel.comm import CollectiveError, broadcast_text, collective_errors
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.reduction import REDUCTIONS
from mpifed.parallel.transport import Transport
from mpifed.simulation.client_batching import Group, choose_group, expect_evaluated
from mpifed.simulation.compression import MessageCompressor
from mpifed.simulation.coordinator import Coordinator, Participants
from mpifed.simulation.costs import Costs, FederatedClock, Traffic, Volume
from mpifed.simulation.executor import Executor, Observer, Stage, capacity, message_rows
from mpifed.simulation.settings import SimulationSettings
from mpifed.simulation.start_point import expect_gradient, non_finite_row
from mpifed.simulation.state import Allocation

__all__ = ["NonFiniteError", "Rounds"]

#: Represents no client in a minimum over ranks.
_NO_CLIENT = np.iinfo(np.int64).max
#: If averages are at least this large, a non-finite value is attributed to divergence.
_LARGE = 1e3


class NonFiniteError(CollectiveError):
    """A value is infinite or NaN; raised on all ranks together."""


class _NonFiniteMessage(NamedTuple):
    """A client's message that is not finite: the client number and a copy ``[size]``."""

    client: int
    message: torch.Tensor


class Rounds:
    """Runs rounds on a rank's state. All collectives of a round are called here.

    Args:
        problem: prepared, of the method's family.
        observers: called in every phase.
        group: number of clients that the resumed run steps at a time; ``None`` to choose it.

    Attributes:
        choice: the number of clients stepped at a time, and why.
        hosted: numbers of this rank's clients.
        coordinator: determines cohorts and updates adaptive matrices.
        executor: steps the clients.
        compressor: compresses and scales messages.
        traffic, clock: communication volume, and simulated time of federated clients.
        costs: running totals of this rank.
        skipped: number of rounds in which no client participated. ``Now.round`` does not count them; random
            numbers have the addresses of all rounds.
        steps_done: number of local steps per client in all completed rounds. It is stored in checkpoints,
            because a run may be resumed with another number of local steps per round.
        previous_steps: number of local steps in the last round that was not skipped.
    """

    def __init__(
        self,
        config: SimulationSettings,
        problem: Problem,
        *,
        placement: Placement,
        memory: Allocation,
        transport: Transport,
        participants: Participants,
        observers: Sequence[Observer],
        group: Group | None,
    ):
        self.config, self.problem, self.memory = config, problem, memory
        self.transport, self.placement, self.observers = transport, placement, observers
        self.hosted, self.costs = placement.clients_of(transport.comm.rank), Costs()
        self.skipped, self._reported_absence = 0, False
        self.steps_done, self.previous_steps = 0, local_steps(config.algorithm)
        oracle_type, buffer = ORACLES[problem.family], memory.shared.buffer
        phases, start = config.algorithm.phases, config.algorithm.start
        average = Phase(_no_client_function, memory.client_blocks)
        with collective_errors(transport.comm, ValueError, OSError):
            self.clock = FederatedClock(config.clock, config.seed, self.hosted)
            self.traffic = Traffic(config.algorithm, memory.shared.layout, buffer.element_size())
            self.coordinator = Coordinator(
                config.algorithm,
                transport,
                placement,
                memory.moments,
                memory.shared,
                participants=participants,
                replicated=config.run.matrices == "replicated",
            )
            layouts = [memory.layout(phase.message) for phase in (*phases, *start, average)]
            self.compressor = MessageCompressor(config, self.hosted, layouts[: len(phases)], memory.shared)
            with user_code_errors(type(problem).__name__):  # each rank reads the data of its own clients
                sampler = Sampler(
                    problem,
                    self.hosted,
                    config.seed,
                    batch_size=config.oracle.batch_size,
                    noise=config.oracle.noise,
                    noise_width=oracle_type.noise_width(problem),
                    dtype=buffer.dtype,
                    device=buffer.device,
                )
        self.choice = choose_group(config, sampler, placement, transport.comm, group)
        self._members = min(len(self.hosted), config.participation.cohort or problem.clients)
        size = capacity(self.choice.group, self._members)
        oracle = oracle_type(problem, sampler, size > 1, config.run.evaluation)
        oracle.clip, oracle.clip_jointly = config.oracle.clip, config.oracle.clip_over == "all"
        if config.run.evaluation != PLAIN:
            expect_evaluated(oracle, size, transport.comm)
        else:
            expect_gradient(oracle, bool(config.algorithm.minibatch_alternative), transport.comm)
        self.executor = Executor(oracle, memory.clients, memory.within_round, size)
        self._average = self._stage(average) if memory.client_blocks.fields else None
        self._stages, self._start = self._stages_of(phases), self._stages_of(start)

    def _stage(self, phase: Phase, names: tuple[str, ...] = (), number: int = 0, cohort: int = 0) -> Stage:
        layout, dtype = self.memory.layout(phase.message), self.memory.shared.buffer.dtype
        rows = message_rows(self.executor.capacity, self._members, layout.size * dtype.itemsize)
        reduction = REDUCTIONS[self.config.run.reduction](
            self.transport, rows, self.placement, layout.size, dtype
        )
        messages, mean = State(layout, reduction.rows), State(layout, reduction.mean)
        return Stage(phase, messages, mean, reduction, names, number, cohort)

    def _stages_of(self, phases: Sequence[Phase]) -> list[Stage]:
        cohorts = np.cumsum([phase.new_cohort for phase in phases], dtype=int).tolist()
        names, numbers = updated_matrices(self.config.algorithm, phases), range(len(phases))
        return [self._stage(phase, *rest) for phase, *rest in zip(phases, names, numbers, cohorts)]

    def run(self, r: int, control: float = 0.0) -> float:
        """Run round ``r``; round 0 runs the method's start phases.

        Args:
            control: a value of this rank that is added to the first Allreduce.

        Returns:
            The sum of the control values over all ranks.
        """
        started, communicated, controls = time.perf_counter(), self.transport.seconds, 0.0
        self.clock.begin_round()
        self.executor.begin_round(r)
        cohort, number, skipped = None, None, self.skipped
        for stage in self._stages if r else self._start:
            if stage.cohort != number:
                number, cohort = stage.cohort, self.coordinator.cohort(r, stage.cohort)
                self.traffic.begin_cohort()
            if not self._takes_place(r, stage, cohort):
                continue
            cohort = self.coordinator.participating(r, stage.number, cohort)
            if not len(cohort.members):
                controls += self._skip(r, cohort, control)
                self.skipped += stage.number == 0
                break
            controls += self._phase(r, stage, cohort, control)
            control = 0.0  # only the first Allreduce includes it
        if r and self.skipped == skipped:
            self.previous_steps = local_steps(self.config.algorithm)
            self.steps_done += self.previous_steps
        self.average_clients()
        seconds, communication = time.perf_counter() - started, self.transport.seconds - communicated
        self.costs.seconds += seconds
        self.costs.communication_seconds += communication
        self.costs.compute_seconds += seconds - communication
        self.costs.wire_bytes = self.transport.wire_bytes
        return controls

    def _takes_place(self, r: int, stage: Stage, cohort: Cohort) -> bool:
        """Return whether a phase takes place in round ``r``, by its condition if it has one."""
        if stage.phase.when is None:
            return True
        now = self._now(r, cohort)
        with user_code_errors(called(stage.phase.when), now.round, stage.phase.name):
            return bool(stage.phase.when(now))

    def _skip(self, r: int, cohort: Cohort, control: float) -> float:
        """Skip the rest of a round in which no client participates; return the sum of the control values."""
        if not self._reported_absence and self.transport.comm.rank == 0:
            info(
                f"no client participates in round {r}; the remaining phases of such rounds are skipped and "
                "change nothing (reported once)"
            )
        self._reported_absence = True
        if cohort.selected:
            self.costs.phases += 1
            self.clock.record_phase(r, cohort.local, cohort.local, Volume(0, 0), waits=True)
        controls = np.array([control])
        self.transport.comm.allreduce_(controls)
        return float(controls[0])

    def _now(self, r: int, cohort: Cohort) -> Now:
        return Now(
            round=r - self.skipped,
            steps=local_steps(self.config.algorithm),
            clients=self.problem.clients,
            cohort=len(cohort.members),
            cohort_weight=self.coordinator.cohort_weight(cohort),
            unbiased=self.coordinator.participants.unbiased,
            sets=self.problem.sets,
            blocks=self.executor.oracle.blocks,
            prox=getattr(self.problem, "phi", None),
            address=(self.config.seed, r),
            steps_before=self.steps_done if r else None,
            previous_steps=self.previous_steps,
        )

    def _phase(self, r: int, stage: Stage, cohort: Cohort, control: float) -> float:
        now, shared = self._now(r, cohort), self.memory.shared
        shared.pop_accesses()
        non_finite = self._step_clients(stage, now, cohort)
        reads, _ = shared.pop_accesses()
        controls = stage.reduction.finish(control)
        self._check_mean(r, stage, non_finite)
        for observer in self.observers:
            observer.after_mean(stage, cohort)
        matrices = self.coordinator.refresh(r, stage.mean, stage.updated_matrices, now.step(now.steps))
        self._run_server(stage, now)
        _check_shared(r, stage, shared)
        self._count_costs(r, stage, cohort, reads, [*matrices, *shared.pop_accesses()[1]])
        return controls

    def _check_mean(self, round: int, stage: Stage, found: _NonFiniteMessage | None) -> None:
        """Raise a NonFiniteError on all ranks if an average is not finite. Collective in that case.

        Args:
            found: the first message on this rank that is not finite.
        """
        if stage.reduction.mean_is_finite():
            return
        comm = self.transport.comm
        first = np.array([found.client if found else _NO_CLIENT], dtype=np.int64)
        comm.allreduce_(first, "min")
        if first[0] == _NO_CLIENT:
            raise NonFiniteError(
                f"non-finite value in round {round}: the sum of finite messages overflows in phase "
                f"{stage.phase.name!r}: reduce the step sizes"
            )
        hosts_client = found is not None and found.client == first[0]
        owner = np.array([comm.rank if hosts_client else comm.size], dtype=np.int64)
        comm.allreduce_(owner, "min")
        text = self._described(stage, found) if found and hosts_client else ""
        text = broadcast_text(comm, text, int(owner[0]))
        raise NonFiniteError(f"non-finite value in round {round}: client {first[0]}, {text}")

    def _described(self, stage: Stage, found: _NonFiniteMessage) -> str:
        """Describe a message that is not finite: its fields and the likely cause."""
        fields = _non_finite_fields(stage.mean.layout, found.message)
        position = int(np.flatnonzero(self.hosted == found.client)[0])
        # The weights of the setting `initial` are not known here.
        rows = "" if self.config.initial else non_finite_row(self.executor.oracle, position)
        cause = (
            f"its gradient on {rows} of its data is not finite at the starting point either, which no step "
            "size changes: check these data for values at which the problem's functions are undefined, such "
            "as a row of zeros that is divided by its norm"
            if rows
            else "reduce the step sizes, or check that the problem's functions are finite at every point"
        )
        return f"{fields} of `message` (phase {stage.phase.name!r}): {cause}"

    def _run_server(self, stage: Stage, now: Now) -> None:
        """Run the server function; without one, averages replace the fields of ``shared`` of the same names.

        Blocks are projected, because compression or unbiased weights may move an average out of its set.
        """
        shared, mean = self.memory.shared, stage.mean
        if stage.phase.server is None:
            for name in mean.layout.record.fields:
                if name in shared:
                    setattr(shared, name, getattr(now.sets, name)(getattr(mean, name)))
            return
        # Other ranks may read the same memory, so a server function must not write to the mean.
        name, before = called(stage.phase.server), mean.buffer.clone() if now.round < 2 else None
        with user_code_errors(name, now.round, stage.phase.name):
            expect_nothing(stage.phase.server(now, shared, mean), name, "writes to `shared`")
        if before is not None:
            expect_unchanged(mean, before, "mean", stage.phase.server, "server")

    def _step_clients(self, stage: Stage, now: Now, cohort: Cohort) -> _NonFiniteMessage | None:
        """Step this rank's members and add up their messages, group by group while they are in cache.

        Returns:
            The first message that is not finite, ``None`` if all are.
        """
        non_finite, scales = None, self.coordinator.scales(cohort)
        modifies = now.round and (self.config.message.compression is not None or scales is not None)
        stage.reduction.begin(cohort)
        for members in self.executor.groups(stage, cohort):
            for observer in self.observers:
                observer.before_clients(stage, cohort, members)
            self.executor.run(stage, now, members, self.memory.shared)
            found = _first_non_finite(stage, cohort, members, self.hosted)
            non_finite = non_finite or found
            if modifies and not found:
                rows = stage.messages.buffer[: members.stop - members.start]
                factors = scales and (scales[0], scales[1][members])
                r = now.round + self.skipped
                self.compressor.send(r, stage.number, rows, cohort.local[members], factors)
            for observer in self.observers:
                observer.after_clients(stage, cohort, members)
            stage.reduction.add(members)
        return non_finite

    def _count_costs(self, r: int, stage: Stage, cohort: Cohort, reads: set[str], writes: list[str]) -> None:
        members, full = len(cohort.local), len(cohort.members) == self.problem.clients
        compressed = self.compressor.bytes(stage.number) if r else None
        if compressed is not None and members:
            reads = reads | self.compressor.reads(stage.number)
        volume = self.traffic.volume(r, reads, stage.messages.layout, full)
        if compressed is not None:
            volume = volume._replace(up=compressed)
        self.traffic.record_writes(writes)
        self.costs.phases += 1
        self.costs.oracle_calls += int(self.executor.calls.sum())
        self.costs.bytes_up += volume.up * members
        self.costs.bytes_down += volume.down * (members + cohort.dropouts)
        waits = self.coordinator.server_waits(cohort)
        self.clock.record_phase(r, cohort.local, self.executor.calls, volume, waits)

    def unsent(self) -> list[str]:
        """Return the fields of ``shared`` written since clients last downloaded them. Collective.

        A field is unsent if it is on every rank, because ranks without clients observe no downloads.
        """
        names = list(self.memory.shared.layout.slots)
        mask = np.array([name in self.traffic.unsent for name in names], dtype=np.int64)
        self.transport.comm.allreduce_(mask, "min")
        return [name for name, unsent in zip(names, mask) if unsent]

    def clipped_share(self) -> float:
        """Return the fraction of clipped gradients among the oracle calls of the last round. Collective.

        NaN if there were no calls, e.g. before the first round and for a run that was complete.
        """
        counts = np.array([int(self.executor.clipped), self.executor.calls_in_round], dtype=np.int64)
        self.transport.comm.allreduce_(counts)
        return float(counts[0] / counts[1]) if counts[1] else math.nan

    def average_clients(self) -> None:
        """Average the blocks of which every client has its own copy. Collective if there are such blocks."""
        if self._average is None:
            return
        messages, reduction, count = self._average.messages, self._average.reduction, len(self.hosted)
        size = len(messages.buffer)
        reduction.begin(self.coordinator.cohort(0))
        for start in range(0, count, size):
            stop = min(start + size, count)
            rows = messages.rows(0, stop - start)
            for block in self.memory.client_blocks.fields:
                setattr(rows, block, getattr(self.memory.clients, block)[start:stop])
            reduction.add(slice(start, stop))
        reduction.finish()

    def block(self, name: str) -> torch.Tensor:
        """Return the current iterate of a block, ``[d]``; the clients' average if each has its own copy."""
        shared = self.memory.shared
        return getattr(shared if name in shared or self._average is None else self._average.mean, name)


def _no_client_function(now, shared, client, message, oracle) -> None:
    """The client function of a stage that only averages."""


def _first_non_finite(
    stage: Stage, cohort: Cohort, members: slice, hosted: np.ndarray
) -> _NonFiniteMessage | None:
    """Return a group's first message that is not finite, before the reduction overwrites the messages.

    Args:
        members: the group, a part of ``cohort.local``.
        hosted: client numbers on this rank.
    """
    rows = stage.messages.buffer[: members.stop - members.start]
    if all_finite(rows):
        return None
    row = int((~torch.isfinite(rows)).any(dim=1).nonzero()[0])
    return _NonFiniteMessage(int(hosted[cohort.local[members.start + row]]), rows[row].clone())


def _check_shared(round: int, stage: Stage, shared: State) -> None:
    """Raise a NonFiniteError if the server function has written a value that is not finite.

    ``shared`` is the same on all ranks, so all ranks raise the error.
    """
    if all_finite(shared.buffer):
        return
    largest = float(stage.mean.buffer.abs().max()) if stage.mean.buffer.numel() else 0.0
    hint = "" if largest >= _LARGE else ", or check the server function for a division by 0"
    raise NonFiniteError(
        f"non-finite value in round {round}: {_non_finite_fields(shared.layout, shared.buffer)} of `shared`, "
        f"written by the server from finite averages of up to {largest:.2g}: reduce the step sizes{hint}"
    )


def _non_finite_fields(layout: Layout, row: torch.Tensor) -> str:
    """Return the fields of a row that are not finite: ``field 'x'`` or ``fields 'x' and 'y'``."""
    bad = ~torch.isfinite(row)
    names = [
        repr(name)
        for name, parts in layout.slots.items()
        if any(bad[start:stop].any() for start, stop in parts)
    ]
    return f"field {names[0]}" if len(names) == 1 else f"fields {', '.join(names[:-1])} and {names[-1]}"
