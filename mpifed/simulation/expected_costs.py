"""Memory, communication and checkpoints of a job, estimated before it runs.

One client executes the first rounds: a simulation with one rank per client, of which this process is rank 0
(:class:`~mpifed.parallel.one_rank.OneRankOf`). Bytes up and down are measured as in a run; they do not depend
on the client. The messages of these rounds, without their values, are then reduced over the job's ranks by
one of the ranks, with the job's cohorts, which counts the bytes that the rank sends and receives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mpifed.core.algorithm import local_steps
from mpifed.core.epochs import Epochs
from mpifed.core.participation import Available, Participation, Uniform
from mpifed.core.problem import Problem, sizes_of
from mpifed.core.records import Record, State
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.exchange import Exchange, MessageExchange, bytes_in_memory, padded
from mpifed.parallel.one_rank import OneRankOf
from mpifed.parallel.placement import Placement
from mpifed.parallel.reduction import REDUCTIONS
from mpifed.parallel.transport import SHORT, Host, Shm, SingleRank, Transport
from mpifed.simulation.client_batching import choose_group
from mpifed.simulation.client_store import choose_store, clients_move
from mpifed.simulation.coordinator import Coordinator, Participants
from mpifed.simulation.executor import Observer, Stage
from mpifed.simulation.settings import SimulationSettings
from mpifed.simulation.setup import place_clients, resolve_reduction
from mpifed.simulation.simulation import Simulation
from mpifed.simulation.state import memory_needs

__all__ = ["ExpectedCosts", "RoundCosts", "expected_costs"]

#: Maximum number of ranks of the simulation of one client: with more clients, the rank has several.
RANKS = 2**20
#: Rounds that are executed after the start phases. In most methods, all rounds from the second on are equal.
ROUNDS = 3
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class RoundCosts:
    """Communication in a round; round 0 has the start phases.

    Attributes:
        up, down: bytes that one participating client uploads and downloads.
        wire: bytes that rank 0 sends and receives, by reduction.
    """

    round: int
    up: int
    down: int
    wire: dict[str, int]


@dataclass(frozen=True)
class ExpectedCosts:
    """What a job needs and sends.

    Attributes:
        clients: largest number of clients on a rank; ``members``: expected number of members of a cohort;
            ``group``: number of clients that are stepped at a time.
        memory: bytes of the records, messages, samples and data of the rank with most clients, by purpose;
            without temporary tensors, and without the program and the constants of the problem.
        server: bytes of the state of the server; ``client_row``: bytes of the state of a client between
            rounds. A checkpoint contains the server's state and a row per client.
        reduction: the reduction that the job uses on CPUs.
        rounds: the start phases and the first rounds.
    """

    clients: int
    members: int
    group: int
    memory: dict[str, int]
    server: int
    client_row: int
    reduction: str
    rounds: list[RoundCosts]


class _FirstClient(Uniform):
    """The availability model in which client 0 is available in every round, and no other client."""

    def start(self, seed, clients):
        return lambda r, number: Available(range(1))


class _Phases(Observer):
    """Records the phases that take place in each round."""

    def __init__(self):
        self.rounds: list[list[Stage]] = []

    def after_mean(self, stage, cohort):
        self.rounds[-1].append(stage)


def expected_costs(config: SimulationSettings, ranks: int = 1, nodes: int = 1) -> ExpectedCosts:
    """Return the expected costs of a job on ``ranks`` CPU ranks, divided equally among ``nodes`` nodes.

    The problem is prepared, and its gradient is evaluated for the local steps of a few rounds of one client,
    with minibatches of one row.

    Args:
        ranks: at least ``nodes``.

    Raises:
        CollectiveError: the problem violates its contract, its data cannot be read, or a function of the
            problem fails.
        ContractError, PluginError: a function of the method or the problem fails.
    """
    config = _on_cpu(config)
    phases, one = _Phases(), OneRankOf(min(config.problem.clients, RANKS))
    simulation = Simulation.from_settings(_of_one_client(config), one, [phases])
    partial, volumes = bool(config.participation.partial_setting(config.problem.clients)), []
    for r in range(min(ROUNDS, config.rounds) + 1):
        phases.rounds.append([])
        before = simulation.costs.bytes_up, simulation.costs.bytes_down
        simulation.step() if r else simulation.start()
        members = 1 if partial and r else len(simulation.hosted)
        now = simulation.costs.bytes_up, simulation.costs.bytes_down
        volumes.append(tuple((total - earlier) // members for total, earlier in zip(now, before)))
    comm, problem = OneRankOf(ranks), simulation.problem
    placement, rows = place_clients(config, problem, comm), simulation.client_rows()
    row_bytes = rows.shape[1] * rows.dtype.itemsize
    store = choose_store(config, row_bytes, -(-problem.clients // nodes), max(placement.counts), 0)
    if clients_move(config, store) and nodes < ranks:
        placement = placement.in_groups(_first_ranks(ranks, nodes))
    wire = {
        kind: _wire_bytes(config, simulation, phases.rounds, _transport(config, comm, nodes), placement, kind)
        for kind in REDUCTIONS
    }
    sampler, members = simulation.rounds.executor.sampler, config.participation.expected_reports
    with_group = _with_group(config, simulation, placement)
    clients, reports = max(placement.counts), members(problem.clients)
    needs = memory_needs(with_group, problem, clients, min(clients, -(-reports // ranks)))
    row = sum(column.nbytes for column in sampler.data) // max(1, int(sampler.sizes[sampler.loaded()].sum()))
    needs["the clients' data"] = row * _most_rows(problem, placement) if row else 0
    return ExpectedCosts(
        clients,
        reports,
        with_group.run.group,
        needs,
        sum(vector.nbytes for vector in simulation.arrays().values()),
        row_bytes,
        config.run.reduction,
        [RoundCosts(r, *volume, {kind: wire[kind][r] for kind in wire}) for r, volume in enumerate(volumes)],
    )


def _on_cpu(config: SimulationSettings) -> SimulationSettings:
    """Return the job on CPUs, with its reduction."""
    run = config.run.model_copy(update={"device": "cpu"})
    return resolve_reduction(config.model_copy(update={"run": run}), SerialComm())


def _of_one_client(config: SimulationSettings) -> SimulationSettings:
    """Return the job with client 0 as the only member of a cohort, unless all clients participate."""
    clients = config.problem.clients
    partial = bool(config.participation.partial_setting(clients)) and clients > 1
    alone = Participation.model_construct(availability=_FirstClient())
    method = config.algorithm
    # One local step instead of epochs, which changes no volume.
    epochs = {name: 1 for name, value in vars(method).items() if isinstance(value, Epochs)}
    run = {"reduction": "fused", "transport": "host", "placement": "even", "group": 1, "compile": "none"}
    return config.model_copy(
        update={
            "algorithm": dataclasses.replace(method, **epochs) if epochs else method,
            "participation": alone if partial else Participation(),
            "oracle": config.oracle.model_copy(
                update={"batch_size": min(1, config.oracle.batch_size), "sampling": "with_replacement"}
            ),
            "run": config.run.model_copy(update={**run, "evaluate_on": ()}),
            "metrics": (),
            **dict.fromkeys(("clock", "measures", "personalize")),
        }
    )


def _with_group(
    config: SimulationSettings, simulation: Simulation, placement: Placement
) -> SimulationSettings:
    """Return the job with the number of clients that are stepped at a time."""
    sampler = simulation.rounds.executor.sampler.copy()
    group = choose_group(config, sampler, placement, SerialComm(), None).group
    return config.model_copy(update={"run": config.run.model_copy(update={"group": group})})


def _most_rows(problem: Problem, placement: Placement) -> int:
    """Return the largest number of rows on a rank."""
    ends = np.append(0, np.cumsum(sizes_of(problem, placement.numbers)))[placement.edges]
    return int(np.diff(ends).max())


class _SharedMemory(Shm):
    """The transport of rank 0 of several nodes, whose exchanges in shared memory only count bytes.

    Args:
        firsts: the first rank of each node, then the number of ranks.
    """

    def __init__(self, comm: SerialComm, firsts: tuple[int, ...]):
        Host.__init__(self, comm, _CPU)
        self.nodes = firsts

    def _shared(self, size, dtype, slots, of_node):
        return None if size * dtype.itemsize < SHORT else _CountedExchange(self, size, dtype, slots, of_node)


class _CountedExchange(Exchange):
    """Counts the bytes of :class:`~mpifed.parallel.exchange.SharedExchange` on rank 0."""

    def __init__(self, transport: Transport, size: int, dtype: torch.dtype, slots: int, of_node: int):
        self._transport, self._nodes = transport, transport.nodes
        self.result = np.zeros(size, torch.empty(0, dtype=dtype).numpy().dtype)
        self.slots = np.zeros((slots, size), self.result.dtype)
        rows = np.zeros((of_node, padded(size)), self.result.dtype)
        leaders = OneRankOf(len(self._nodes) - 1)
        self._leaders = MessageExchange(leaders, rows, self.result, transport.count)

    def finish(self, sums, total, control):
        node = range(*self._nodes[:2])
        self._transport.wire_bytes += bytes_in_memory(sums, node, 0, self.result)
        return self._leaders.finish(sums.between(self._nodes), total, control)


def _transport(config: SimulationSettings, comm: SerialComm, nodes: int) -> Transport:
    """Return the transport of rank 0, as :func:`~mpifed.parallel.transport.choose_transport` on CPUs."""
    if comm.size == 1:
        return SingleRank(comm, _CPU)
    if config.run.transport == "host" or nodes == comm.size:
        return Host(comm, _CPU)
    return _SharedMemory(comm, _first_ranks(comm.size, nodes))


def _first_ranks(ranks: int, nodes: int) -> tuple[int, ...]:
    """Return the first rank of each node, then the number of ranks."""
    return tuple(-(-node * ranks // nodes) for node in range(nodes + 1))


def _wire_bytes(
    config: SimulationSettings,
    simulation: Simulation,
    rounds: Sequence[Sequence[Stage]],
    transport: Transport,
    placement: Placement,
    kind: str,
) -> list[int]:
    """Return the bytes that rank 0 sends and receives in each round with a reduction.

    Args:
        rounds: the phases that take place in each round, the start phases first.
    """
    method, memory = config.algorithm, simulation.rounds.memory
    coordinator = Coordinator(config, transport, placement, memory, Participants.of_settings(config))
    reductions = {}

    def reduce(record: Record, cohort) -> State:
        layout = memory.layout(record)
        if layout.size not in reductions:
            reductions[layout.size] = REDUCTIONS[kind](transport, 1, placement, layout.size, simulation.dtype)
        reduction = reductions[layout.size]
        reduction.begin(cohort)
        reduction.finish()
        return State(layout, reduction.mean)

    totals = [0]
    for r, stages in enumerate(rounds):
        cohort = None
        for stage in stages:
            if cohort is None or stage.phase.new_cohort:
                cohort = coordinator.cohort(r, stage.cohort)
            cohort = coordinator.participating(r, stage.number, cohort)
            if not len(cohort.members):
                break
            mean = reduce(stage.phase.message, cohort)
            coordinator.refresh(r, mean, stage.updated_matrices, r * local_steps(method))
        if memory.client_blocks.fields:
            reduce(memory.client_blocks, coordinator.cohort(0))
        totals.append(transport.wire_bytes)
    return np.diff(totals).tolist()
