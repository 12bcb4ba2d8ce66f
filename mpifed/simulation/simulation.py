"""One federated run as a state machine: start, one round after another, a point to look at.

:class:`Simulation` owns the records and what a round needs; it writes no files and decides nothing about
stopping. All collectives are called here and in the objects it owns, by every rank in the same order. While a
user's code runs, torch's default dtype is the run's, so that ``torch.as_tensor(0.05)`` has the digits of the
rest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from mpifed.config.job import Config
from mpifed.core.algorithm import Now, Phase, local_steps, refreshed
from mpifed.core.errors import blaming
from mpifed.core.method_checks import called, expect_nothing
from mpifed.core.oracle import ORACLES
from mpifed.core.records import State
from mpifed.core.sampling import Sampler
from mpifed.core.streams import Stream, generator
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.devices import choose_device
from mpifed.parallel.placement import Cohort
from mpifed.parallel.reduction import REDUCTIONS
from mpifed.parallel.transport import choose_transport
from mpifed.simulation.allocation import Allocation
from mpifed.simulation.coordinator import Coordinator
from mpifed.simulation.evaluation import evaluate
from mpifed.simulation.executor import EXECUTORS, Observer, Stage
from mpifed.simulation.federated_clock import FederatedClock
from mpifed.simulation.finite import NonFiniteError, check_mean, check_shared, first_bad
from mpifed.simulation.preparation import default_dtype, place, prepare
from mpifed.simulation.traffic import Costs, Traffic

__all__ = ["NonFiniteError", "Observer", "Simulation"]


class Simulation:
    """The state of a run on this rank.

    Args:
        costs: each client's nanoseconds ``[N]``, as a run that continues has measured them.
        observers: are told of every stage.

    Attributes:
        round: rounds done so far.
        shared, clients, output: the records; ``clients`` has one row for each client of this rank.
        costs: running totals.
        client_costs: each client's nanoseconds ``[N]``: the ``costs`` passed, or measured where a balanced
            placement needs them.
    """

    def __init__(
        self, config: Config, comm: SerialComm, costs: Sequence[int] = (), observers: Sequence[Observer] = ()
    ):
        self.config, self.comm, self.observers = config, comm, observers
        self.algorithm, run = config.algorithm, config.run
        self.device = choose_device(comm, run.device, run.gpus)
        self.dtype = getattr(torch, run.dtype)
        self.problem = prepare(config, comm, self.dtype, self.device)
        known = np.array(costs, dtype=np.int64)
        self.placement, self.client_costs = place(config, self.problem, comm, known, self.dtype, self.device)
        self.mine = self.placement.of(comm.rank)
        self.round, self.costs = 0, Costs()
        way = run.transport if run.on_rank_failure == "abort" else "host"
        self.transport = choose_transport(comm, self.device, way, run.reduction == "exact")
        self.clock = FederatedClock(config.clock, config.seed, self.mine)
        self._allocate()
        self._stages, self._start = (
            self._stages_of(self.algorithm.phases),
            self._stages_of(self.algorithm.start),
        )

    def _allocate(self) -> None:
        config, method, exact = self.config, self.algorithm, self.config.run.reduction == "exact"
        self.memory = Allocation(method, self.problem, len(self.mine), self.dtype, self.device)
        self.blocks, self.shared, self.clients = self.memory.blocks, self.memory.shared, self.memory.clients
        self.output, weights = self.memory.output, None
        if config.participation.weights == "samples":
            sizes = [self.problem.client_size(k) for k in range(self.problem.clients)]
            weights = np.array(sizes, dtype=np.float64)
        self.coordinator = Coordinator(
            method,
            self.transport,
            self.placement,
            self.memory.moments,
            self.shared,
            seed=config.seed,
            cohort=config.participation.cohort or self.problem.clients,
            weights=weights,
            replicated=config.run.matrices == "replicated",
        )
        self.traffic = Traffic(self.shared.layout, self.shared.buffer.element_size())
        with blaming(type(self.problem).__name__):
            sampler = self._sampler()
        self.executor = EXECUTORS[config.run.executor](
            self.problem, sampler, self.clients, self.memory.between, exact
        )
        own = self.memory.own
        self._average = self._stage(Phase(_nothing, own)) if own.fields else None

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
            self.dtype,
            self.device,
        )

    def _stage(self, phase: Phase, names: tuple[str, ...] = (), cohort: int = 0) -> Stage:
        layout = self.memory.layout(phase.message)
        reduction = REDUCTIONS[self.config.run.reduction](
            self.transport, len(self.mine), layout.size, self.dtype
        )
        return Stage(
            phase, State(layout, reduction.rows), State(layout, reduction.mean), reduction, names, cohort
        )

    def _stages_of(self, phases: Sequence[Phase]) -> list[Stage]:
        numbers = np.cumsum([phase.fresh for phase in phases], dtype=int)
        names = refreshed(self.algorithm, phases)
        return [self._stage(phase, *rest) for phase, *rest in zip(phases, names, numbers.tolist())]

    @torch.no_grad()
    def start(self) -> None:
        """Set the starting point and run the method's start phases (round 0)."""
        with default_dtype(self.dtype):
            with blaming(f"{type(self.problem).__name__}.initial", 0):
                point = self.problem.initial(generator(self.config.seed, "initial"))
                for block in self.blocks:
                    if block in point:
                        value = torch.as_tensor(point[block]).reshape(-1).to(self.dtype)
                        setattr(self.shared if block in self.shared else self.clients, block, value)
            with blaming(called(self.algorithm.initialize), 0):
                self.algorithm.initialize(self.shared)
        self.traffic.wrote([*self.blocks, *self.shared.take_notes()[1]])
        self._run(self._start, 0.0)
        self.output.buffer.copy_(self.point())

    @torch.no_grad()
    def step(self, control: float = 0.0) -> float:
        """Run one round.

        Args:
            control: a value of this rank that rides on the first Allreduce.

        Returns:
            The sum of the ranks' control values.

        Raises:
            NonFiniteError: on all ranks together.
            ContractError, PluginError: on a rank whose clients' function fails.
        """
        self.round += 1
        controls = self._run(self._stages, control)
        self._update_output()
        return controls

    def _now(self, cohort: Cohort) -> Now:
        return Now(
            self.round, local_steps(self.algorithm), self.placement.clients, len(cohort.members),
            self.coordinator.share(cohort), self.problem.sets, self.executor.oracle.blocks,
        )  # fmt: skip

    def _run(self, stages: list[Stage], control: float) -> float:
        """The phases of one round."""
        began, communicated, controls = time.perf_counter(), self.transport.seconds, 0.0
        self.clock.begin_round()
        self.executor.begin(self.round)
        cohort = number = None
        with default_dtype(self.dtype):
            for stage in stages:
                if stage.cohort != number:
                    number, cohort = stage.cohort, self.coordinator.cohort(self.round, stage.cohort)
                controls += self._phase(stage, cohort, control)
                control = 0.0  # it rides once
            if self._average:
                self._average_clients()
        seconds, communication = time.perf_counter() - began, self.transport.seconds - communicated
        self.costs.seconds += seconds
        self.costs.communication_seconds += communication
        self.costs.compute_seconds += seconds - communication
        self.costs.wire_bytes = self.transport.wire_bytes
        return controls

    def _phase(self, stage: Stage, cohort: Cohort, control: float) -> float:
        """Clients, average, matrices, server."""
        now, shared = self._now(cohort), self.shared
        for observer in self.observers:
            observer.before_clients(stage, cohort)
        shared.take_notes()
        self.executor.run(stage, now, cohort, shared)
        reads, _ = shared.take_notes()
        for observer in self.observers:
            observer.after_clients(stage, cohort)
        culprit = first_bad(stage, cohort, self.mine)
        controls = stage.reduction(cohort, control)
        check_mean(self.comm, self.round, stage, culprit)
        for observer in self.observers:
            observer.after_mean(stage, cohort)
        made = self.coordinator.refresh(self.round, stage.mean, stage.refreshed)
        if stage.phase.server is not None:
            name = called(stage.phase.server)
            with blaming(name, self.round, stage.phase.name):
                expect_nothing(stage.phase.server(now, shared, stage.mean), name, "writes to `shared`")
        else:
            for name in stage.mean.layout.record.fields:
                if name in shared:
                    setattr(shared, name, getattr(stage.mean, name))
        check_shared(self.round, shared)
        self._count(stage, cohort, reads, [*made, *shared.take_notes()[1]])
        return controls

    def _count(self, stage: Stage, cohort: Cohort, reads: set[str], writes: list[str]) -> None:
        members, everyone = len(cohort.local), len(cohort.members) == self.placement.clients
        sent = self.traffic.phase(reads, stage.messages.layout, everyone)
        self.traffic.wrote(writes)
        self.costs.phases += 1
        self.costs.oracle_calls += int(self.executor.calls.sum())
        self.costs.bytes_up += sent.up * members
        self.costs.bytes_down += sent.down * members
        self.clock.phase(self.round, cohort.local, self.executor.calls, sent)

    def unsent(self) -> list[str]:
        """The fields of ``shared`` that clients have not been sent since they were written. Collective.

        A rank without clients has seen no client read; what it believes unsent does not count.
        """
        names = list(self.shared.layout.slots)
        mask = np.array([name in self.traffic.unsent for name in names], dtype=np.int64)
        self.comm.allreduce_(mask, "min")
        return [name for name, one in zip(names, mask) if one]

    def take_up(self, round: int, unsent: list[str]) -> None:
        """Go on after ``round``, with the records of then in place. Collective."""
        self.round, self.traffic.unsent = round, set(unsent)
        if self._average:
            self._average_clients()

    def _average_clients(self) -> None:
        """The clients' average of the blocks that every client has its own of."""
        everyone = self.coordinator.cohort(0)
        rows = self._average.messages.rows(0, len(self.mine))
        for block in self.memory.own.fields:
            setattr(rows, block, getattr(self.clients, block))
        self._average.reduction(everyone)

    def block(self, name: str) -> torch.Tensor:
        """The current iterate of a block, ``[d]``; the clients' average where every client has its own."""
        return getattr(self.shared if name in self.shared else self._average.mean, name)

    def point(self) -> torch.Tensor:
        """The current iterate, all blocks end to end."""
        return torch.cat([self.block(name) for name in self.blocks])

    def _update_output(self) -> None:
        rule, r = self.config.output_rule, self.round
        if rule == "average" and self.algorithm.averages:
            for block in self.blocks:
                setattr(self.output, block, getattr(self.shared, self.algorithm.averages[block]))
        elif rule == "average":
            self.output.buffer.add_(self.point() - self.output.buffer, alpha=1 / r)
        elif rule == "last" or Stream(self.config.seed, "output", round=r).uniform(1)[0, 0, 0] < 1 / r:
            self.output.buffer.copy_(self.point())

    def evaluate(self, state: State) -> dict[str, float]:
        """The problem's metrics at ``shared``'s point or at ``output``. Collective.

        They are complete on rank 0 and empty elsewhere.
        """
        of = self.block if state is self.shared else lambda name: getattr(state, name)
        with default_dtype(self.dtype):
            return evaluate(self.problem, self.comm, [of(name) for name in self.blocks])


def _nothing(now, shared, client, message, oracle) -> None:
    """The client function of a stage that only averages."""
