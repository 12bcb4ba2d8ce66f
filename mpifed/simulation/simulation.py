"""One federated run as a state machine: start, one round after another, a point to look at.

:class:`Simulation` owns the records and what a round needs; it writes no files and decides nothing about stopping. All
collectives are called here and in the objects it owns, by every rank in the same order. While a user's code runs, torch's
default dtype is the run's, so that ``torch.as_tensor(0.05)`` has the digits of the rest.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mpifed.config.job import Config
from mpifed.core.algorithm import Now, Phase, check_method, local_steps, refreshed
from mpifed.core.errors import ContractError
from mpifed.core.oracle import ORACLES
from mpifed.core.problem import as_family
from mpifed.core.records import Between, Blocks, Observed, Record, State
from mpifed.core.sampling import Sampler
from mpifed.core.streams import Stream, generator
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.devices import choose_device
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.reduction import REDUCTIONS
from mpifed.parallel.transport import choose_transport
from mpifed.simulation.client_costs import client_costs
from mpifed.simulation.coordinator import Coordinator, moments_of
from mpifed.simulation.evaluation import evaluate
from mpifed.simulation.executor import EXECUTORS, Stage
from mpifed.simulation.federated_clock import FederatedClock
from mpifed.simulation.finite import NON_FINITE, NonFiniteError, check_mean, check_shared, first_bad
from mpifed.simulation.provenance import agree_on_data
from mpifed.simulation.traffic import Traffic

__all__ = ["NON_FINITE", "Costs", "NonFiniteError", "Observer", "Simulation"]

#: Bytes of client records that a rank allocates at most.
CLIENT_MEMORY = 16 * 2**30


@dataclass
class Costs:
    """Running totals of this rank. ``bytes_*`` is what its federated clients would send and be sent."""

    oracle_calls: int = 0
    phases: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    wire_bytes: int = 0
    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    seconds: float = 0.0


class Observer:
    """What is told of every stage of a round, on every rank. Subclasses override what they need."""

    def before_clients(self, stage: Stage, cohort: Cohort) -> None:
        """The members are about to be stepped."""

    def after_clients(self, stage: Stage, cohort: Cohort) -> None:
        """The first rows of ``stage.messages`` are filled."""

    def after_mean(self, stage: Stage, cohort: Cohort) -> None:
        """``stage.mean`` holds the average; the server function comes next."""


class Simulation:
    """The state of a run on this rank.

    Args:
        costs: each client's nanoseconds ``[N]``, as a run that continues has measured them.
        observers: are told of every stage.

    Attributes:
        round: rounds done so far.
        shared, clients, output: the records; ``clients`` has one row for each client of this rank.
        costs: running totals.
        client_costs: each client's nanoseconds ``[N]``: the ``costs`` passed, or measured where a balanced placement needs
            them.
    """

    def __init__(
        self, config: Config, comm: SerialComm, costs: Sequence[int] = (), observers: Sequence[Observer] = ()
    ):
        self.config, self.comm, self.observers = config, comm, observers
        self.algorithm, run = config.algorithm, config.run
        check_method(self.algorithm)
        self.device = choose_device(comm, run.device, run.gpus)
        self.dtype = getattr(torch, run.dtype)
        self._prepare()
        self.problem = as_family(config.problem, self.algorithm.family)
        self.placement = self._place(np.array(costs, dtype=np.int64))
        self.mine = self.placement.of(comm.rank)
        self.blocks, self.kinds = self.problem.variables(), self.problem.kinds()
        self.round, self.costs = 0, Costs()
        way = run.transport if run.on_rank_failure == "abort" else "host"
        self.transport = choose_transport(comm, self.device, way, run.reduction == "exact")
        self.clock = FederatedClock(config.clock, config.seed, self.mine)
        self._allocate()
        self._stages, self._start = self._stages_of(self.algorithm.phases), self._stages_of(self.algorithm.start)

    @contextlib.contextmanager
    def _default_dtype(self) -> Iterator[None]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    def _prepare(self) -> None:
        """Prepare the problem and compare the data that the ranks have read. Collective, also where it fails."""
        error = None
        try:
            with self._default_dtype():
                self.config.problem.prepare(self.config.seed, self.config.run.data_dir)
        except (ValueError, OSError) as fault:
            error = str(fault)
        agree_on_data(self.comm, self.config.problem.files, error)

    def _place(self, costs: np.ndarray) -> Placement:
        config, comm, self.client_costs = self.config, self.comm, costs
        if config.run.placement != "balanced":
            return Placement(self.problem.clients, comm.size)
        if len(costs) != self.problem.clients:
            self.client_costs = client_costs(self.problem, comm, config.seed, config.oracle, self.dtype, self.device)
        return Placement.balanced(self.client_costs, comm.size)

    def _layout(self, record: Record):
        """The layout of a record; a minimax method's y is empty where the problem has none."""
        empty = {"y": 0} if self.problem.family == "minimax" and "y" not in self.blocks else {}
        return record.layout(self.blocks, empty | self.kinds, getattr(self.algorithm, "matrix", None))

    def _state(self, record: Record, *lead: int) -> State:
        return self._layout(record).state(lead, self.dtype, self.device)

    def _allocate(self) -> None:
        config, method, client = self.config, self.algorithm, self.algorithm.client
        self._check_blocks()
        shared = self._state(method.shared)
        self.shared = Observed(shared.layout, shared.buffer)
        between = Record(**client.of(Between))
        lasting = Record(**{name: kind for name, kind in client.fields.items() if name not in between.fields})
        self._guard_memory(self._layout(lasting).size)
        self.clients = self._state(lasting, len(self.mine))
        self.output = self._state(Record(**{block: block for block in self.blocks}))
        weights = None
        if config.participation.weights == "samples":
            weights = np.array(
                [self.problem.client_size(k) for k in range(self.problem.clients)], dtype=np.float64
            )
        self.coordinator = Coordinator(
            method,
            self.transport,
            self.placement,
            self._state(moments_of(method)),
            self.shared,
            seed=config.seed,
            cohort=config.participation.cohort or self.problem.clients,
            weights=weights,
            replicated=config.run.matrices == "replicated",
        )
        self.traffic = Traffic(self.shared.layout, self.shared.buffer.element_size())
        self.executor = EXECUTORS[config.run.executor](
            self.problem, self._sampler(), self.clients, self._layout(between), config.run.reduction == "exact"
        )
        self._own = Record(**{block: block for block in self.blocks if block not in self.shared})
        self._average = self._stage(Phase(_nothing, self._own)) if self._own.fields else None

    def _sampler(self) -> Sampler:
        config, width = self.config, ORACLES[self.problem.family].noise_width(self.problem)
        oracle = config.oracle
        return Sampler(
            self.problem, self.mine, config.seed, oracle.batch_size, oracle.noise, width, self.dtype, self.device
        )

    def _check_blocks(self) -> None:
        method = self.algorithm
        missing = [block for block in self.blocks if block not in {**method.shared.fields, **method.client.fields}]
        if missing:
            raise ContractError(
                f"{type(method).__name__} has no field {missing[0]!r} in `shared` or `client`, but "
                f"{type(self.config.problem).__name__} has the blocks {', '.join(self.blocks)}"
            )

    def _guard_memory(self, width: int) -> None:
        """Refuse client records that cannot fit, before they are allocated: a dense Jacobian grows as p · d."""
        size = width * self.shared.buffer.element_size() * len(self.mine)
        if size > CLIENT_MEMORY:
            kinds = ", ".join(f"{name} {number:,}" for name, number in (self.blocks.sizes | self.kinds).items())
            raise ValueError(
                f"the client records of {type(self.algorithm).__name__} need {size / 2**30:.1f} GiB on one rank "
                f"({len(self.mine)} clients, {kinds} numbers), more than {CLIENT_MEMORY / 2**30:.0f} GiB: fewer clients "
                "a rank, or a smaller model"
            )

    def _stage(self, phase: Phase, names: tuple[str, ...] = (), cohort: int = 0) -> Stage:
        layout = self._layout(phase.message)
        reduction = REDUCTIONS[self.config.run.reduction](self.transport, len(self.mine), layout.size, self.dtype)
        return Stage(phase, State(layout, reduction.rows), State(layout, reduction.mean), reduction, names, cohort)

    def _stages_of(self, phases: Sequence[Phase]) -> list[Stage]:
        numbers = np.cumsum([phase.fresh for phase in phases], dtype=int)
        names = refreshed(self.algorithm, phases)
        return [self._stage(phase, *rest) for phase, *rest in zip(phases, names, numbers.tolist())]

    @torch.no_grad()
    def start(self) -> None:
        """Set the starting point and run the method's start phases (round 0)."""
        with self._default_dtype():
            point = self.problem.initial(generator(self.config.seed, "initial"))
            for block in self.blocks:
                if block in point:
                    value = torch.as_tensor(point[block]).reshape(-1).to(self.dtype)
                    setattr(self.shared if block in self.shared else self.clients, block, value)
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
        with self._default_dtype():
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
            stage.phase.server(now, shared, stage.mean)
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
        for block in self._own.fields:
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
            for block, name in self.algorithm.averages.items():
                setattr(self.output, block, getattr(self.shared, name))
        elif rule == "average":
            self.output.buffer.add_(self.point() - self.output.buffer, alpha=1 / r)
        elif rule == "last" or Stream(self.config.seed, "output", round=r).uniform(1)[0, 0, 0] < 1 / r:
            self.output.buffer.copy_(self.point())

    def evaluate(self, state: State) -> dict[str, float]:
        """The problem's metrics at ``shared``'s point or at ``output``, complete on rank 0, empty elsewhere. Collective."""
        of = self.block if state is self.shared else lambda name: getattr(state, name)
        with self._default_dtype():
            return evaluate(self.problem, self.comm, [of(name) for name in self.blocks])


def _nothing(now, shared, client, message, oracle) -> None:
    """The client function of a stage that only averages."""
