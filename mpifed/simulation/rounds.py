"""The five steps of a round: cohort, client functions, average, adaptive matrices and server function.

:meth:`Rounds.run` is a round. A value that is not finite ends the run on all ranks together
(:mod:`mpifed.simulation.not_finite`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mpifed.base.errors import ContractError, user_code_errors
from mpifed.base.log import info
from mpifed.base.memory import host_memory
from mpifed.core.algorithm import Now, Phase, counts_epochs, local_steps, updated_matrices
from mpifed.core.autodiff import PLAIN
from mpifed.core.epochs import batches_per_epoch
from mpifed.core.oracle import ORACLES
from mpifed.core.problem import Problem, user_problem
from mpifed.core.records import State
from mpifed.core.sampling import Sampler
from mpifed.core.validation import before_call, called, expect_nothing, expect_unchanged
from mpifed.parallel.comm import SerialComm, collective_errors, reduce_number
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.reduction import REDUCTIONS
from mpifed.parallel.transport import Transport
from mpifed.simulation.client_batching import Group, choose_group, expect_evaluated
from mpifed.simulation.compression import MessageCompressor
from mpifed.simulation.coordinator import Coordinator, Participants
from mpifed.simulation.costs import Costs, FederatedClock, Traffic, Volume
from mpifed.simulation.executor import Executor, Observer, Stage, capacity, message_rows
from mpifed.simulation.not_finite import FiniteValues, expect_gradient
from mpifed.simulation.settings import SimulationSettings
from mpifed.simulation.state import Allocation

__all__ = ["Rounds"]

#: Fraction of the memory of a GPU or a node for data of clients that do not participate in the current round.
KEPT = 1 / 8


class Rounds:
    """Runs rounds on a rank's state. All collectives of a round are called here.

    Args:
        problem: prepared, of the method's family.
        observers: called in every phase.
        group: number of clients that the resumed run steps at a time; ``None`` to choose it.

    Attributes:
        choice: the number of clients stepped at a time, and why.
        clients: numbers of the clients that this rank may step.
        coordinator: determines cohorts and updates adaptive matrices.
        executor: steps the clients.
        compressor: compresses and scales messages.
        traffic, clock: communication volume, and simulated time of federated clients.
        costs: running totals of this rank.
        changed: whether each client may have been stepped since the array was last cleared, ``[N]``, the same
            on all ranks. All clients may have been in round 0, and when a state has been loaded.
        skipped: number of rounds in which no client participated. ``Now.round`` does not count them; random
            numbers have the addresses of all rounds.
        steps: number of local steps per round, the largest of all clients.
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
        reach = placement.reach(transport.comm.rank)
        self.clients, self.costs = placement.numbers[reach.start : reach.stop], Costs()
        self.skipped, self._reported_absence = 0, False
        self.changed = np.ones(problem.clients, dtype=bool)
        oracle_type, buffer = ORACLES[problem.family], memory.shared.buffer
        phases, start = config.algorithm.phases, config.algorithm.start
        average = Phase(_no_client_function, memory.client_blocks)
        with collective_errors(transport.comm, ValueError, OSError):
            self.clock = FederatedClock(config.clock, config.seed)
            self.traffic = Traffic(config.algorithm, memory.shared.layout, buffer.element_size())
            self.coordinator = Coordinator(config, transport, placement, memory, participants)
            layouts = [memory.layout(phase.message) for phase in (*phases, *start, average)]
            self.compressor = MessageCompressor(
                config, self.clients, layouts[: len(phases)], memory.shared, memory.residuals
            )
            first, last = (placement.edges[transport.comm.rank :][:2] - reach.start).tolist()
            partial = config.participation.partial_setting(problem.clients)
            with user_code_errors(type(problem).__name__):  # each rank reads the data of its own clients
                sampler = Sampler(
                    problem,
                    self.clients,
                    config.seed,
                    batch_size=config.oracle.batch_size,
                    noise=config.oracle.noise,
                    noise_width=oracle_type.noise_width(problem),
                    dtype=buffer.dtype,
                    device=buffer.device,
                    hosted=slice(first, last),
                    kept=_kept_bytes(transport.comm, buffer.device) if partial else None,
                    sampling=config.oracle.sampling,
                    drop_last=config.oracle.drop_last,
                )
        per_epoch = 1
        if sampler.permutes or counts_epochs(config.algorithm):
            per_epoch = _most_batches(config, sampler, transport.comm)
        self.steps = local_steps(config.algorithm, per_epoch)
        self.steps_done, self.previous_steps = 0, self.steps
        self.choice = choose_group(config, sampler, placement, transport.comm, group)
        self._members = placement.max_members(
            transport.comm.rank, config.participation.cohort or problem.clients
        )
        size = capacity(self.choice.group, self._members)
        oracle = oracle_type(problem, sampler, size > 1, config.run.evaluation)
        oracle.clip, oracle.clip_jointly = config.oracle.clip, config.oracle.clip_over == "all"
        if config.run.evaluation != PLAIN:
            expect_evaluated(oracle, size, transport.comm)
        else:
            expect_gradient(oracle, bool(config.algorithm.minibatch_alternative), transport.comm)
        self.executor = Executor(oracle, memory.clients, memory.within_round, size)
        # The weights of the setting `initial` are not known to the oracle.
        self._finite = FiniteValues(
            config.algorithm, oracle, self.clients, transport.comm, known_start=not config.initial
        )
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
        """Run round ``r``; round 0 runs the method's start phases. Collective.

        Args:
            control: a value of this rank that is added to the first Allreduce.

        Returns:
            The sum of the control values over all ranks.
        """
        started, communicated, controls = time.perf_counter(), self.transport.seconds, 0.0
        shared, selected, skips = self.memory.shared, None, False
        self.clock.begin_round()
        self.executor.begin_round(r)
        for stage in self._stages if r else self._start:
            # 1. The cohort is sampled. Each rank determines which members of the cohort it steps.
            if selected is None or stage.phase.new_cohort:
                selected = self.coordinator.cohort(r, stage.cohort)
                self.traffic.begin_cohort()
            if not self._takes_place(r, stage, selected):
                continue
            selected = cohort = self.coordinator.participating(r, stage.number, selected)
            if not len(cohort.members):
                controls += self._skip(r, cohort, control)
                skips = stage.number == 0
                break
            now, scales = self._now(r, cohort), self.coordinator.scales(cohort)
            # 2. Client functions fill messages, which are added up group by group while they are in cache.
            self.changed[cohort.members] = True
            shared.pop_accesses()
            stage.reduction.begin(cohort)
            self._finite.begin(cohort)
            for members in self.executor.groups(stage, cohort):
                for observer in self.observers:
                    observer.before_clients(stage, cohort, members)
                self.executor.run(stage, now, members, shared)
                if self._finite.check_messages(stage, members) and r:
                    self.compressor.send(r, stage, cohort, members, scales)
                    self._finite.mark_compressed(stage, members)
                for observer in self.observers:
                    observer.after_clients(stage, cohort, members)
                stage.reduction.add(members)
            reads, _ = shared.pop_accesses()
            # 3. One collective reduction averages the messages.
            controls += stage.reduction.finish(control)
            control = 0.0  # only the first Allreduce includes it
            with self._finite.around_server(r, stage, shared):
                for observer in self.observers:
                    observer.after_mean(stage, cohort)
                # 4. Rank 0 updates the adaptive matrices and broadcasts them.
                matrices = self.coordinator.refresh(
                    r, stage.mean, stage.updated_matrices, now.step(now.steps)
                )
                # 5. The server function updates `shared`, identically on every rank.
                self._run_server(stage, now)
            self._count_costs(r, stage, cohort, reads, [*matrices, *shared.pop_accesses()[1]])
        self.skipped += skips
        if r and not skips:
            self.previous_steps = self.steps
            self.steps_done += self.steps
        self.average_clients()
        self.costs.add_seconds(time.perf_counter() - started, self.transport.seconds - communicated)
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
            self.clock.record_phase(r, cohort.numbers, cohort.numbers, Volume(0, 0), waits=True)
        return reduce_number(self.transport.comm, float(control))

    def _now(self, r: int, cohort: Cohort) -> Now:
        return Now(
            round=r - self.skipped,
            steps=self.steps,
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
        name, before = called(stage.phase.server), before_call(mean) if now.round < 2 else None
        with user_code_errors(name, now.round, stage.phase.name):
            expect_nothing(stage.phase.server(now, shared, mean), name, "writes to `shared`")
        if before is not None:
            expect_unchanged(mean, before, "mean", stage.phase.server, "server")

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
        self.clock.record_phase(r, cohort.numbers, self.executor.calls, volume, waits)

    def state_dict(self) -> dict[str, Any]:
        """Return the state between two rounds, except records and residuals. Collective.

        A field of ``shared`` is unsent if it is unsent on every rank, because ranks without clients observe
        no downloads.
        """
        names = list(self.memory.shared.layout.slots)
        mask = np.array([name in self.traffic.unsent for name in names], dtype=np.int64)
        self.transport.comm.allreduce_(mask, "min")
        return {
            "skipped": self.skipped,
            "steps": [self.steps_done, self.previous_steps],
            "unsent": [name for name, unsent in zip(names, mask) if unsent],
            "group": self.choice.group,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; records and residuals must have been restored. Collective."""
        self.changed[:] = True
        self.steps_done, self.previous_steps = state["steps"]
        self.skipped, self.traffic.unsent = state["skipped"], set(state["unsent"])
        self.average_clients()

    def average_clients(self) -> None:
        """Average the blocks of which every client has its own copy. Collective if there are such blocks."""
        if self._average is None:
            return
        messages, reduction, cohort = (
            self._average.messages,
            self._average.reduction,
            self.coordinator.cohort(0),
        )
        size, count, clients = len(messages.buffer), len(cohort.local), self.memory.clients
        first = int(cohort.local[0]) if count else 0
        reduction.begin(cohort)
        for start in range(0, count, size):
            stop = min(start + size, count)
            rows = messages.rows(0, stop - start)
            for block in self.memory.client_blocks.fields:
                setattr(rows, block, getattr(clients, block)[first + start : first + stop])
            reduction.add(slice(start, stop))
        reduction.finish()

    def block(self, name: str) -> torch.Tensor:
        """Return the current iterate of a block, ``[d]``; the clients' average if each has its own copy."""
        shared = self.memory.shared
        return getattr(shared if name in shared or self._average is None else self._average.mean, name)


def _most_batches(config: SimulationSettings, sampler: Sampler, comm: SerialComm) -> int:
    """Return the largest number of minibatches per epoch among all clients. Collective.

    Raises:
        CollectiveError: on all ranks: the problem has no rows, or has strata.
    """
    name = config.algorithm.steps if counts_epochs(config.algorithm) else ""
    setting = f"algorithm.{name} in epochs" if name else "oracle.sampling = 'without_replacement'"
    with collective_errors(comm, ValueError, OSError), user_code_errors("client_size"):
        if len(sampler.clients) and not sampler.data or sampler.generates_samples:
            problem, fix = type(user_problem(sampler.problem)).__name__, "leave it out"
            raise ContractError(
                f"{setting} needs the rows of clients, but {problem} has no client_data: "
                f"{f'set algorithm.{name} to an integer' if name else fix}"
            )
        if sampler.permutes and (problem := user_problem(sampler.problem)).strata:
            raise ContractError(
                f"oracle.sampling = 'without_replacement': minibatches of {type(problem).__name__} have a "
                "fixed number of rows of each stratum, such as positive and negative samples, drawn with "
                "replacement: leave it out, or the setting of the strata (sampling_rate)"
            )
        rows = sampler.hosted_sizes()
    batches = batches_per_epoch(rows, sampler.batch_size, sampler.drop_last)
    return reduce_number(comm, int(batches.max(initial=1)), "max")


def _kept_bytes(comm: SerialComm, device: torch.device) -> int:
    """Return the size of the clients' data that a rank keeps on its device if not all clients participate."""
    if device.type == "cuda":
        return int(KEPT * torch.cuda.get_device_properties(device).total_memory)
    return int(KEPT * host_memory() / comm.local_size)


def _no_client_function(now, shared, client, message, oracle) -> None:
    """The client function of a stage that only averages."""
