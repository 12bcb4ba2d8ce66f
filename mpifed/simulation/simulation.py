"""One federated run as a state machine: start, one round after another, a point to look at.

:class:`Simulation` owns the records and what a round needs; it writes no files and decides nothing about stopping. All
collectives are called here and in the objects it owns, by every rank in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mpifed.config.job import Config
from mpifed.core.algorithm import Phase
from mpifed.core.oracle import ORACLES
from mpifed.core.problem import as_family
from mpifed.core.records import Record, State
from mpifed.core.sampling import Sampler
from mpifed.core.streams import Stream, generator
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.parallel.devices import choose_device
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.reduction import REDUCTIONS
from mpifed.parallel.transport import choose_transport
from mpifed.simulation.client_costs import client_costs
from mpifed.simulation.coordinator import Coordinator
from mpifed.simulation.executor import EXECUTORS
from mpifed.simulation.federated_clock import FederatedClock
from mpifed.simulation.provenance import agree_on_data
from mpifed.simulation.traffic import Traffic, traffic

__all__ = ["Simulation", "Costs", "NonFiniteError", "NON_FINITE"]

#: Held-out rows that are scored in one call, the same blocks for every number of ranks.
SCORE_ROWS = 250
#: Bytes of client records that a rank allocates at most.
CLIENT_MEMORY = 16 * 2**30


#: How the message of a NonFiniteError begins.
NON_FINITE = "non-finite value"


class NonFiniteError(CollectiveError):
    """An infinite or undefined value; raised on all ranks together."""


@dataclass
class Costs:
    """Running totals. ``bytes_*`` is what federated clients would send and be sent, the same on every rank; the others are this
    rank's own."""

    oracle_calls: int = 0
    phases: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    wire_bytes: int = 0
    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    seconds: float = 0.0


@dataclass
class _Stage:
    """A phase with the buffers that it needs."""

    phase: Phase
    messages: State
    mean: State
    reduction: object
    traffic: Traffic


class Simulation:
    """The state of a run on this rank.

    Attributes:
        round: rounds done so far.
        shared, clients, output: the records; ``clients`` has one row for each client of this rank.
        costs: running totals.
        client_costs: each client's nanoseconds ``[N]``: the ``costs`` passed, or measured where a balanced placement needs them.
    """

    def __init__(self, config: Config, comm: SerialComm, costs: Sequence[int] = ()):
        self.config, self.comm = config, comm
        self.algorithm = config.algorithm
        run = config.run
        self.device = choose_device(comm, run.device, run.gpus)
        self.dtype = getattr(torch, run.dtype)
        self.exact = run.reduction == "exact"
        self._prepare()
        self.problem = as_family(config.problem, self.algorithm.family)
        self.client_costs, balanced = np.array(costs, dtype=np.int64), run.placement == "balanced"
        if balanced and len(costs) != self.problem.clients:
            self.client_costs = client_costs(
                self.problem, comm, config.seed, config.oracle, self.dtype, self.device
            )
        self.placement = (
            Placement.balanced(self.client_costs, comm.size)
            if balanced
            else Placement(self.problem.clients, comm.size)
        )
        self.blocks, self.kinds = self.problem.variables(), self.problem.kinds()
        self.round, self.costs = 0, Costs()
        self.transport = choose_transport(
            comm, self.device, run.transport if run.on_rank_failure == "abort" else "host", self.exact
        )
        self.clock = FederatedClock(config.clock, config.seed, self.placement.of(comm.rank))
        self._allocate()

    def _prepare(self) -> None:
        """Prepare the problem and compare the data that the ranks have read. Collective, also where it fails."""
        error = None
        try:
            self.config.problem.prepare(self.config.seed, self.config.run.data_dir)
        except (ValueError, OSError) as fault:
            error = str(fault)
        agree_on_data(self.comm, self.config.problem.files, error)

    def _state(self, record: Record, *lead: int) -> State:
        return record.layout(self.blocks, self.kinds).state(lead, self.dtype, self.device)

    def _allocate(self) -> None:
        config, algorithm = self.config, self.algorithm
        mine = self.placement.of(self.comm.rank)
        self.shared = self._state(algorithm.shared)
        self._guard_memory(len(mine))
        self.clients = self._state(algorithm.client, len(mine))
        self.output = self._state(Record(**{block: block for block in self.blocks}))
        weights = None
        if config.participation.weights == "samples":
            weights = np.array(
                [self.problem.client_size(k) for k in range(self.problem.clients)], dtype=np.float64
            )
        self.coordinator = Coordinator(
            algorithm,
            self.transport,
            self.placement,
            self._state(algorithm.coordinator),
            self.shared,
            seed=config.seed,
            cohort=config.participation.cohort or self.problem.clients,
            weights=weights,
            replicated=config.run.matrices == "replicated",
        )
        width = ORACLES[self.problem.family].noise_width(self.problem)
        sampler = Sampler(
            self.problem,
            mine,
            config.seed,
            config.oracle.batch_size,
            config.oracle.noise,
            width,
            self.dtype,
            self.device,
        )
        self.executor = EXECUTORS[config.run.executor](
            algorithm, self.problem, sampler, self.clients, self.exact
        )
        self._start = [self._stage(phase, len(mine)) for phase in algorithm.start]
        self._stages = [self._stage(phase, len(mine)) for phase in algorithm.phases]

    def _guard_memory(self, clients: int) -> None:
        """Refuse client records that cannot fit, before they are allocated: a dense Jacobian grows as p · d."""
        size = self.algorithm.client.layout(self.blocks, self.kinds).size * self.shared.buffer.element_size()
        if size * clients > CLIENT_MEMORY:
            kinds = ", ".join(
                f"{name} {number:,}" for name, number in (self.blocks.sizes | self.kinds).items()
            )
            raise ValueError(
                f"the client records of {type(self.algorithm).__name__} need {size * clients / 2**30:.1f} GiB on one rank ({clients} "
                f"clients, {kinds} numbers), more than {CLIENT_MEMORY / 2**30:.0f} GiB: fewer clients a rank, or a smaller model"
            )

    def _stage(self, phase: Phase, capacity: int) -> _Stage:
        layout = phase.message.layout(self.blocks, self.kinds)
        reduction = REDUCTIONS[self.config.run.reduction](self.transport, capacity, layout.size, self.dtype)
        sent = traffic(self.algorithm, phase, self.blocks, self.kinds, self.shared.buffer.element_size())
        return _Stage(phase, State(layout, reduction.rows), State(layout, reduction.mean), reduction, sent)

    @torch.no_grad()
    def start(self) -> None:
        """Set the starting point and run the algorithm's start phases (round 0)."""
        point = self.problem.initial(generator(self.config.seed, "initial"))
        for block in self.blocks:
            if block in point and block in self.shared:
                setattr(self.shared, block, torch.as_tensor(point[block]).reshape(-1))
        self.algorithm.initialize(self.shared)
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
        """
        self.round += 1
        controls = self._run(self._stages, control)
        self._update_output()
        return controls

    def _run(self, stages: list[_Stage], control: float) -> float:
        """The phases of one round."""
        began, communicated = time.perf_counter(), self.transport.seconds
        r, cohort, controls = self.round, self.coordinator.cohort(self.round), 0.0
        calls = self.executor.oracle.calls
        self.clock.begin_round()
        for stage in stages:
            phase = stage.phase
            self.executor.run(phase, r, cohort, self.shared, stage.messages)
            culprit = self._first_bad_row(stage, cohort)
            controls += stage.reduction(cohort, control)
            control = 0.0  # it rides once
            self._check(stage.mean.buffer, stage, culprit)
            if phase.coordinate:
                self.coordinator.refresh(r, stage.mean)
            getattr(self.algorithm, f"server_{phase.name}")(r, self.shared, stage.mean, self.problem.sets)
            self._check(self.shared.buffer, None, -1)
            self.costs.phases += 1
            self.costs.bytes_up += stage.traffic.up * len(cohort.members)
            self.costs.bytes_down += stage.traffic.down * len(cohort.members)
            self.clock.phase(r, cohort.local, self.executor.calls, stage.traffic)
        seconds, communication = time.perf_counter() - began, self.transport.seconds - communicated
        self.costs.oracle_calls += self.executor.oracle.calls - calls
        self.costs.seconds += seconds
        self.costs.communication_seconds += communication
        self.costs.compute_seconds += seconds - communication
        self.costs.wire_bytes = self.transport.wire_bytes
        return controls

    def _first_bad_row(self, stage: _Stage, cohort: Cohort) -> int:
        """``client * size + element`` of this rank's first non-finite message value, -1 for none.

        The rows may be overwritten by the reduction, so they are looked at before it: one sum, which is finite unless
        a value is not (or the sum overflows, which the second look sorts out).
        """
        rows = stage.messages.buffer[: len(cohort.local)]
        if not rows.numel() or bool(torch.isfinite(rows.sum())):
            return -1
        bad = (~torch.isfinite(rows)).nonzero()
        if not len(bad):
            return -1
        row, element = bad[0].tolist()
        client = self.placement.of(self.comm.rank)[cohort.local[row]]
        return int(client) * rows.shape[1] + element

    def _check(self, buffer: torch.Tensor, stage: _Stage | None, culprit: int) -> None:
        """Stop all ranks together if a value that is the same on all of them is not finite."""
        if not buffer.numel() or bool(torch.isfinite(buffer.sum())) or bool(torch.isfinite(buffer).all()):
            return
        if stage is None:
            element = int((~torch.isfinite(buffer)).nonzero()[0])
            raise NonFiniteError(
                f"{NON_FINITE} in round {self.round}: field {self.shared.layout.field_at(element)!r} of `shared`, made by "
                "the server step from finite averages: smaller step sizes?"
            )
        none = np.iinfo(np.int64).max
        first = np.array([culprit if culprit >= 0 else none], dtype=np.int64)
        self.comm.allreduce_(first, "min")
        if first[0] == none:
            raise NonFiniteError(
                f"{NON_FINITE} in round {self.round}: the sum of finite messages overflows, phase {stage.phase.name!r}"
            )
        client, element = divmod(int(first[0]), stage.mean.layout.size)
        raise NonFiniteError(
            f"{NON_FINITE} in round {self.round}: client {client}, field {stage.mean.layout.field_at(element)!r} of "
            f"`message` (phase {stage.phase.name!r}): smaller step sizes?"
        )

    def point(self) -> torch.Tensor:
        """The current iterate, all blocks end to end."""
        return torch.cat([getattr(self.shared, block) for block in self.blocks])

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
        """The problem's metrics at a point, complete on rank 0 and empty elsewhere. Collective, off the clock.

        Args:
            state: a state with the problem's blocks, ``shared`` or ``output``.
        """
        point = [self.blocks.unflatten(block, getattr(state, block)) for block in self.blocks]
        predictions = self._predict(point) if self.problem.test_rows else None
        if self.comm.rank != 0:
            return {}
        return {name: float(value) for name, value in self.problem.metrics(*point, predictions).items()}

    @torch.no_grad()
    def _predict(self, point) -> torch.Tensor:
        """Scores of all held-out rows, computed in blocks spread over the ranks."""
        total = self.problem.test_rows
        blocks = -(-total // SCORE_ROWS)
        edges = [
            min(total, rank * blocks // self.comm.size * SCORE_ROWS) for rank in range(self.comm.size + 1)
        ]
        first, last = edges[self.comm.rank], edges[self.comm.rank + 1]
        parts = [
            self.problem.predict(*point, slice(start, min(start + SCORE_ROWS, last)))
            for start in range(first, last, SCORE_ROWS)
        ]
        mine = torch.cat(parts).cpu().double() if parts else torch.empty(0, dtype=torch.float64)
        width = np.array([mine[0].numel() if len(mine) else 0], dtype=np.int64)
        self.comm.allreduce_(width, "max")
        gathered = np.empty(total * int(width[0]))
        counts = [(right - left) * int(width[0]) for left, right in zip(edges, edges[1:])]
        self.comm.allgatherv(np.ascontiguousarray(mine.numpy()).reshape(-1), gathered, counts)
        scores = torch.from_numpy(gathered).reshape(total, -1)
        return scores[:, 0] if width[0] == 1 else scores
