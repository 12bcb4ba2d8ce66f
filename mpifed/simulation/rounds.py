"""The phases of a round: clients, average, matrices, server, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from mpifed.base.errors import user_code_errors
from mpifed.base.log import info
from mpifed.core.algorithm import Now, Phase, local_steps, refreshed
from mpifed.core.autodiff import PLAIN
from mpifed.core.oracle import ORACLES
from mpifed.core.problem import Problem
from mpifed.core.records import State
from mpifed.core.sampling import Sampler
from mpifed.core.validation import called, expect_nothing, expect_unchanged
from mpifed.parallel.comm import collective_errors
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.reduction import REDUCTIONS
from mpifed.parallel.transport import Transport
from mpifed.simulation.client_batching import Group, choose_group, expect_evaluated
from mpifed.simulation.communication_cost import Costs, Sent, Traffic
from mpifed.simulation.compression import MessageCompressor
from mpifed.simulation.coordinator import Coordinator, Participants
from mpifed.simulation.executor import Executor, Observer, Stage, capacity
from mpifed.simulation.federated_clock import FederatedClock
from mpifed.simulation.finite import Bad, check_mean, check_shared, first_bad
from mpifed.simulation.settings import SimulationSettings
from mpifed.simulation.state import Allocation

__all__ = ["Rounds"]


class Rounds:
    """Carries out rounds on a rank's memory. All collectives of a round are called here.

    Args:
        problem: prepared, of the method's family.
        observers: called at every stage.
        group: clients stepped at a time as a run that continues has chosen it; ``None`` to choose.

    Attributes:
        choice: how many clients are stepped at a time.
        coordinator: decides who takes part and makes the matrices.
        executor: steps the clients.
        compressor: compresses and scales the messages.
        traffic, clock: what travels, and how long federated clients would take.
        costs: running totals of this rank.
    """

    _told = False  # that nobody answers

    def __init__(
        self,
        config: SimulationSettings,
        problem: Problem,
        placement: Placement,
        memory: Allocation,
        transport: Transport,
        participants: Participants,
        observers: Sequence[Observer],
        group: Group | None,
    ):
        self.config, self.problem, self.memory = config, problem, memory
        self.transport, self.placement, self.observers = transport, placement, observers
        self.mine, self.costs = placement.of(transport.comm.rank), Costs()
        self.clock = FederatedClock(config.clock, config.seed, self.mine)
        self.traffic = Traffic(memory.shared.layout, memory.shared.buffer.element_size())
        self.coordinator = Coordinator(
            config.algorithm,
            transport,
            placement,
            memory.moments,
            memory.shared,
            participants=participants,
            replicated=config.run.matrices == "replicated",
        )
        # A rank alone reads the data of its clients.
        with collective_errors(transport.comm, ValueError, OSError), user_code_errors(type(problem).__name__):
            sampler = self._sampler()
        self.choice = choose_group(config, problem, sampler, placement, transport.comm, group)
        members = min(len(self.mine), config.participation.cohort or problem.clients)
        size = capacity(self.choice.group, members)
        oracle = ORACLES[problem.family](problem, sampler, size > 1, config.run.evaluation)
        if config.run.evaluation != PLAIN:
            expect_evaluated(oracle, size, transport.comm)
        self.executor = Executor(oracle, memory.clients, memory.between, size)
        self._average = self._stage(Phase(_nothing, memory.own)) if memory.own.fields else None
        self._stages = self._stages_of(config.algorithm.phases)
        self._start = self._stages_of(config.algorithm.start)
        layouts = [stage.messages.layout for stage in self._stages]
        self.compressor = MessageCompressor(config, self.mine, layouts, memory.shared)

    def _sampler(self) -> Sampler:
        config, width = self.config, ORACLES[self.problem.family].noise_width(self.problem)
        oracle = config.oracle
        return Sampler(
            self.problem,
            self.mine,
            config.seed,
            oracle.batch_size,
            oracle.noise,
            width,
            self.memory.shared.buffer.dtype,
            self.memory.shared.buffer.device,
        )

    def _stage(self, phase: Phase, names: tuple[str, ...] = (), number: int = 0, cohort: int = 0) -> Stage:
        layout = self.memory.layout(phase.message)
        reduction = REDUCTIONS[self.config.run.reduction](
            self.transport,
            self.executor.capacity,
            self.placement,
            layout.size,
            self.memory.shared.buffer.dtype,
        )
        return Stage(
            phase,
            State(layout, reduction.rows),
            State(layout, reduction.mean),
            reduction,
            names,
            number,
            cohort,
        )

    def _stages_of(self, phases: Sequence[Phase]) -> list[Stage]:
        cohorts = np.cumsum([phase.new_cohort for phase in phases], dtype=int).tolist()
        names, numbers = refreshed(self.config.algorithm, phases), range(len(phases))
        return [self._stage(phase, *rest) for phase, *rest in zip(phases, names, numbers, cohorts)]

    def run(self, r: int, control: float = 0.0) -> float:
        """Carry out round ``r``; round 0 is the method's start.

        Args:
            control: a value of this rank that rides on the first Allreduce.

        Returns:
            The sum of the ranks' control values.
        """
        began, communicated, controls = time.perf_counter(), self.transport.seconds, 0.0
        self.clock.begin_round()
        self.executor.begin(r)
        cohort = number = None
        for stage in self._stages if r else self._start:
            if stage.cohort != number:
                number, cohort = stage.cohort, self.coordinator.cohort(r, stage.cohort)
            cohort = self.coordinator.answering(r, stage.number, cohort)
            if not len(cohort.members):
                controls += self._without_answers(r, cohort, control)
                break
            controls += self._phase(r, stage, cohort, control)
            control = 0.0  # it rides once
        self.average_clients()
        seconds, communication = time.perf_counter() - began, self.transport.seconds - communicated
        self.costs.seconds += seconds
        self.costs.communication_seconds += communication
        self.costs.compute_seconds += seconds - communication
        self.costs.wire_bytes = self.transport.wire_bytes
        return controls

    def _without_answers(self, r: int, cohort: Cohort, control: float) -> float:
        """The rest of a round in which nobody has answered: nothing moves.

        Returns:
            The sum of the ranks' control values.
        """
        if not self._told and self.transport.comm.rank == 0:
            info(
                f"in round {r} no client answers: the rest of such a round is left out, and nothing "
                "moves in it (said once)"
            )
        self._told = True
        if cohort.asked:
            self.costs.phases += 1
            self.clock.phase(r, cohort.local, cohort.local, Sent(0, 0), waits=True)
        controls = np.array([control])
        self.transport.comm.allreduce_(controls)
        return float(controls[0])

    def _now(self, r: int, cohort: Cohort) -> Now:
        return Now(
            r, local_steps(self.config.algorithm), self.problem.clients, len(cohort.members),
            self.coordinator.cohort_weight(cohort), self.coordinator.participants.unbiased,
            self.problem.sets, self.executor.oracle.blocks,
            getattr(self.problem, "phi", None),
        )  # fmt: skip

    def _phase(self, r: int, stage: Stage, cohort: Cohort, control: float) -> float:
        """Clients, average, matrices, server."""
        now, shared = self._now(r, cohort), self.memory.shared
        shared.pop_accesses()
        bad = self._step_clients(stage, now, cohort)
        reads, _ = shared.pop_accesses()
        controls = stage.reduction.finish(control)
        check_mean(self.transport.comm, r, stage, bad)
        for observer in self.observers:
            observer.after_mean(stage, cohort)
        made = self.coordinator.refresh(r, stage.mean, stage.refreshed)
        self._serve(stage, now)
        check_shared(r, stage, shared)
        self._count(r, stage, cohort, reads, [*made, *shared.pop_accesses()[1]])
        return controls

    def _serve(self, stage: Stage, now: Now) -> None:
        """The server function; without one, the averages replace the fields of ``shared`` of their names.

        Blocks are projected: with compression or unbiased weights an average of points may leave their set.

        The average may lie where other ranks read it, too.
        """
        shared, mean = self.memory.shared, stage.mean
        if stage.phase.server is None:
            for name in mean.layout.record.fields:
                if name in shared:
                    setattr(shared, name, getattr(now.sets, name)(getattr(mean, name)))
            return
        name, before = called(stage.phase.server), mean.buffer.clone() if now.round < 2 else None
        with user_code_errors(name, now.round, stage.phase.name):
            expect_nothing(stage.phase.server(now, shared, mean), name, "writes to `shared`")
        if before is not None:
            expect_unchanged(mean, before, "mean", stage.phase.server, "server")

    def _step_clients(self, stage: Stage, now: Now, cohort: Cohort) -> Bad | None:
        """Steps this rank's members and adds up their messages, group by group while they are in cache.

        Returns:
            The first message that is not finite.
        """
        bad, scales = None, self.coordinator.scales(cohort)
        changes = now.round and (self.config.message.compression is not None or scales is not None)
        stage.reduction.begin(cohort)
        for members in self.executor.groups(stage, cohort):
            for observer in self.observers:
                observer.before_clients(stage, cohort, members)
            self.executor.run(stage, now, members, self.memory.shared)
            found = first_bad(stage, cohort, members, self.mine)
            bad = bad or found
            if changes and not found:
                rows = stage.messages.buffer[: members.stop - members.start]
                own = scales and (scales[0], scales[1][members])
                self.compressor.send(now.round, stage.number, rows, cohort.local[members], own)
            for observer in self.observers:
                observer.after_clients(stage, cohort, members)
            stage.reduction.add(members)
        return bad

    def _count(self, r: int, stage: Stage, cohort: Cohort, reads: set[str], writes: list[str]) -> None:
        members, everyone = len(cohort.local), len(cohort.members) == self.problem.clients
        compressed = self.compressor.bytes(stage.number) if r else None
        if compressed is not None and members:
            reads = reads | self.compressor.reads(stage.number)
        sent = self.traffic.phase(reads, stage.messages.layout, everyone)
        if compressed is not None:
            sent = sent._replace(up=compressed)
        self.traffic.wrote(writes)
        self.costs.phases += 1
        self.costs.oracle_calls += int(self.executor.calls.sum())
        self.costs.bytes_up += sent.up * members
        self.costs.bytes_down += sent.down * (members + cohort.silent)
        self.clock.phase(r, cohort.local, self.executor.calls, sent, self.coordinator.waits(cohort))

    def unsent(self) -> list[str]:
        """The fields of ``shared`` that clients have not been sent since they were written. Collective.

        A rank without clients has seen no client read; what it believes unsent does not count.
        """
        names = list(self.memory.shared.layout.slots)
        mask = np.array([name in self.traffic.unsent for name in names], dtype=np.int64)
        self.transport.comm.allreduce_(mask, "min")
        return [name for name, one in zip(names, mask) if one]

    def average_clients(self) -> None:
        """Average the blocks that every client has its own of. Collective where there are some."""
        if self._average is None:
            return
        everyone = self.coordinator.cohort(0)
        messages, reduction, count = self._average.messages, self._average.reduction, len(self.mine)
        reduction.begin(everyone)
        for start in range(0, count, self.executor.capacity):
            stop = min(start + self.executor.capacity, count)
            rows = messages.rows(0, stop - start)
            for block in self.memory.own.fields:
                setattr(rows, block, getattr(self.memory.clients, block)[start:stop])
            reduction.add(slice(start, stop))
        reduction.finish()

    def block(self, name: str) -> torch.Tensor:
        """The current iterate of a block, ``[d]``; the clients' average where every client has its own."""
        shared = self.memory.shared
        return getattr(shared if name in shared or self._average is None else self._average.mean, name)


def _nothing(now, shared, client, message, oracle) -> None:
    """The client function of a stage that only averages."""
