"""A federated simulation: the starting point, one round after another, and the current point.

:class:`Simulation` owns the records and the objects that compute a round. It writes no files and does not
decide when to stop. All collectives are called here and in its objects, by every rank in the same order. In
user code, torch's default dtype is ``run.dtype``: ``torch.as_tensor(0.05)`` has the precision of the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any

import numpy as np
import torch

from mpifed.base.errors import user_code_errors
from mpifed.core.algorithm import Algorithm
from mpifed.core.device import as_tensor
from mpifed.core.metrics import Column, Details
from mpifed.core.problem import Problem, initial_point
from mpifed.core.records import State
from mpifed.core.streams import Stream
from mpifed.core.validation import called
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.parallel.devices import choose_device
from mpifed.parallel.reproducibility import expect_reproducible_products
from mpifed.parallel.transport import choose_transport
from mpifed.parallel.world import world
from mpifed.simulation.client_batching import Group
from mpifed.simulation.client_store import client_store
from mpifed.simulation.clipped_share import ClippedShare
from mpifed.simulation.coordinator import Participants
from mpifed.simulation.costs import Costs
from mpifed.simulation.evaluation import EvaluatedPoint, Evaluation, Evaluations
from mpifed.simulation.executor import Observer
from mpifed.simulation.feasibility import Feasibility
from mpifed.simulation.full_data import FullData
from mpifed.simulation.initial_weights import InitialWeights
from mpifed.simulation.not_finite import NonFiniteError
from mpifed.simulation.problem_metrics import ClientMetrics, ScoredProblem, SplitMetrics
from mpifed.simulation.regularization import Regularizer
from mpifed.simulation.rounds import Rounds
from mpifed.simulation.settings import SimulationSettings
from mpifed.simulation.setup import default_dtype, place_clients, prepare, resolve_reduction
from mpifed.simulation.state import Allocation, ClientRows
from mpifed.simulation.stationarity import Stationarity

__all__ = ["NonFiniteError", "Observer", "Simulation"]


class Simulation:
    """A method on a problem, round by round; this rank's part of it. Collective.

    ::

        simulation = Simulation(problem, algorithm, seed=1, participation={"cohort": 4})
        simulation.start()
        for _ in range(100):
            simulation.step()
        values = simulation.evaluate(simulation.output)

    Args:
        comm: a communicator of mpi4py. Default: all ranks that the launcher has started, a single rank
            without a launcher.
        settings: the other fields of :class:`~mpifed.simulation.settings.SimulationSettings`, with the names
            and defaults of a job file. A section is a record or a dictionary.

    Raises:
        ConfigError: settings are invalid or inconsistent.
        CollectiveError: on all ranks: the problem violates its contract or its data cannot be read.

    Attributes:
        config: the validated settings.
        problem: the prepared problem, in the method's family; ``blocks``: its variables.
        round: number of completed rounds.
        shared, clients: the records; ``clients`` has one row per client of this rank.
        placement: of the clients on the ranks; ``hosted``: numbers of this rank's clients.
        files: the data files read, by name.
        note: why clients are looped over although they could be vectorised; "" if there is no reason to say.
    """

    def __init__(self, problem: Problem, algorithm: Algorithm, *, comm: Any = None, **settings: Any):
        self._set_up(SimulationSettings(problem=problem, algorithm=algorithm, **settings), world(comm))

    @classmethod
    def from_settings(
        cls,
        settings: SimulationSettings,
        comm: SerialComm,
        observers: Sequence[Observer] = (),
        group: Group | None = None,
    ) -> Simulation:
        """Construct a simulation from validated settings, such as a job. Collective.

        Args:
            observers: called in every phase.
            group: number of clients that the run to be resumed steps at a time.
        """
        simulation = cls.__new__(cls)
        simulation._set_up(settings, comm, observers, group)
        return simulation

    def _set_up(
        self,
        config: SimulationSettings,
        comm: SerialComm,
        observers: Sequence[Observer] = (),
        group: Group | None = None,
    ) -> None:
        self.config = config = resolve_reduction(config, comm)
        self.comm, self.round = comm, 0
        self.dtype = getattr(torch, config.run.dtype)
        self.device = choose_device(comm, config.run.device, config.run.gpus)
        exact = config.run.is_reproducible
        with collective_errors(comm, ValueError, OSError):  # a file may be missing on one rank only
            if exact and self.device.type == "cpu":
                expect_reproducible_products()
            participants = Participants.of_settings(config)
            self._weights = InitialWeights(config.initial)
        files = participants.files | self._weights.files
        self.problem = prepare(config, comm, self.dtype, self.device, files)
        # Each part that may fail on one rank is followed by an agreement, and none of them communicates:
        # otherwise a rank that fails would leave the others waiting.
        with collective_errors(comm, ValueError, OSError):
            self._weights.expect_fit(self.problem, config.problem)
            out = getattr(config.run, "out", "")  # "" without files
            self._feasibility = Feasibility(self.problem, config.algorithm, comm, out)
        self.files = files | self.problem.files
        placement = place_clients(config, self.problem, comm)
        transport = choose_transport(comm, self.device, config.run.transport, exact)
        with collective_errors(comm, ValueError, OSError):
            memory = Allocation(config, self.problem, self.dtype, self.device)
        self._store = client_store(config, memory.row_bytes, comm, placement, self.device)
        memory.allocate_clients(self._store)
        self.placement = self._store.placement
        self.hosted = self.placement.clients_of(comm.rank)
        self._own = slice(*(self.placement.edges[comm.rank :][:2] - self.placement.reach(comm.rank).start))
        self.blocks, self._output = memory.blocks, memory.output
        self.shared, self.clients = memory.shared, memory.clients.rows(self._own.start, self._own.stop)
        with default_dtype(self.dtype):
            self.rounds = Rounds(
                config,
                self.problem,
                placement=self.placement,
                memory=memory,
                transport=transport,
                participants=participants,
                observers=observers,
                group=group,
            )
            self._evaluations = self._evaluations_of(config)
        self.note = self.rounds.choice.note
        oracle, regularize = self.rounds.executor.oracle, config.regularize
        with collective_errors(comm, ValueError):
            self._regularizer = regularize and Regularizer(regularize, self.problem, self.shared, oracle)

    def _evaluations_of(self, config: SimulationSettings) -> Evaluations:
        """Return the evaluations that a job asks for, in the order of the history's columns. Collective."""
        comm = self.comm
        others: list[Evaluation] = []
        if config.measures:
            others.append(Stationarity(config.measures, config.algorithm, self.full_data()))
        if config.oracle.clip is not None:
            others.append(ClippedShare(self.rounds.executor, comm))
        reserved = {name: evaluation.owner for evaluation in others for name in evaluation.names}
        with collective_errors(comm, ValueError):
            scored = ScoredProblem(self.problem, config.metrics, reserved)
        metrics: list[Evaluation] = [SplitMetrics(scored, comm, config.run.evaluate_on)]
        if "clients" in config.run.evaluate_on:
            metrics.append(ClientMetrics(scored, comm, self.placement))
        if config.personalize:
            tuning = config.personalize, self.full_data()
            metrics.append(ClientMetrics(scored, comm, self.placement, tuning))
        return Evaluations([self._feasibility, *metrics, *others], comm, type(self.problem).__name__)

    def __enter__(self) -> Simulation:
        self.rounds.transport.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self.rounds.transport.__exit__(*error)

    @torch.no_grad()
    def start(self) -> None:
        """Set the starting point and run the method's start phases (round 0)."""
        method = self.config.algorithm
        with default_dtype(self.dtype):
            with user_code_errors(f"{type(self.problem).__name__}.initial", 0):
                point = initial_point(self.problem, self.config.seed)
                point = self._weights.start(self.problem, point)
                for block in self.blocks:
                    if block in point:
                        value = as_tensor(point[block]).reshape(-1).to(self.dtype)
                        setattr(self.shared if block in self.shared else self.clients, block, value)
                        if self._regularizer:
                            self._regularizer.start(block, value.to(self.device))
            with user_code_errors(called(method.initialize), 0):
                method.initialize(self.shared)
            self.rounds.traffic.record_writes([*self.blocks, *self.shared.pop_accesses()[1]])
            self._store.wait_for_ranks()
            self.rounds.run(0)
        self._output.buffer.copy_(self.point())

    @torch.no_grad()
    def step(self, control: float = 0.0) -> float:
        """Run one round.

        Args:
            control: a value of this rank that is summed by the first Allreduce of the round.

        Returns:
            The sum of the control values of all ranks.

        Raises:
            NonFiniteError: on all ranks.
            ContractError, PluginError: on the ranks where a function of the method or the problem fails.
        """
        self.round += 1
        self._store.wait_for_ranks()  # which may still read or write the state of clients
        with default_dtype(self.dtype):
            controls = self.rounds.run(self.round, control)
        if self._regularizer and self._regularizer.ends_stage(self.round):
            self._regularizer.recentre(self.point())
        self._update_output()
        return controls

    def block(self, name: str) -> torch.Tensor:
        """Return the current iterate of a block, ``[d]``; the clients' average if each has its own copy."""
        return self.rounds.block(name)

    def point(self, state: State | None = None) -> torch.Tensor:
        """Return the current iterate, all blocks concatenated.

        Args:
            state: return its blocks instead, e.g. those of :attr:`output`; not a copy.
        """
        return torch.cat([self.block(name) for name in self.blocks]) if state is None else state.buffer

    @property
    def output(self) -> State:
        """The point that the run would return now, by its output rule."""
        if self.config.output_rule == "last":  # updated on access, which is rarer than rounds
            self._output.buffer.copy_(self.point())
        return self._output

    def _update_output(self) -> None:
        rule, r, output = self.config.output_rule, self.round, self._output
        if self.rounds.skipped == r:  # no round has taken place, and averages of the method are still 0
            return
        if rule == "average" and self.config.algorithm.averages:
            for block in self.blocks:
                setattr(output, block, getattr(self.shared, self.config.algorithm.averages[block]))
        elif rule == "average":
            output.buffer.add_(self.point() - output.buffer, alpha=1 / r)
        elif rule == "uniform" and Stream(self.config.seed, "output", round=r).uniform(1)[0, 0, 0] < 1 / r:
            output.buffer.copy_(self.point())

    def evaluate(self, state: State | None = None) -> dict[str, float]:
        """Evaluate the metrics and stationarity measures at the current iterate. Collective.

        Args:
            state: evaluate at its blocks instead, e.g. at :attr:`output`.

        Returns:
            All values on rank 0, an empty dictionary on the other ranks.

        Raises:
            CollectiveError: a function of the problem fails, or returns something else than a dictionary of
                numbers.
        """
        block = self.block if state is None else lambda name: getattr(state, name)
        with default_dtype(self.dtype):
            z = self.shared.z if "z" in self.shared else None
            point = EvaluatedPoint(self.round, [block(name) for name in self.blocks], z)
            return self._evaluations.evaluate(point)

    @property
    def infeasible(self) -> str:
        """Description of the first evaluated point outside the problem's sets; "" if there is none."""
        return self._feasibility.infeasible

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of the history by name, on rank 0; empty before the first evaluation."""
        return {column.name: column for column in self._evaluations.columns or ()}

    @property
    def scored_rows(self) -> dict[str, int]:
        """Number of samples that an evaluation scores, by split."""
        return self._evaluations.rows

    @property
    def details(self) -> Details:
        """Further results of the last evaluation, on rank 0."""
        return self._evaluations.details

    @property
    def costs(self) -> Costs:
        """Running totals of this rank."""
        return self.rounds.costs

    def federated_seconds(self) -> np.ndarray:
        """Return the simulated seconds of each round since the last call, on all ranks. Collective."""
        return self.rounds.clock.collect(self.comm)

    def full_data(self) -> FullData:
        """Return the problem on all data of all clients. Collective.

        Raises:
            CollectiveError: the problem is a composition or bilevel, or generates its samples.
        """
        rounds = self.rounds
        return FullData(
            self.problem,
            rounds.executor.sampler,
            rounds.coordinator.cohort(0),
            rounds.coordinator.participants.base,
            rounds.transport,
            self.placement,
            self.config.run.reduction,
        )

    def describe(self) -> dict[str, Any]:
        """Return where and how the rounds are computed, for logs and files."""
        return {
            "ranks": self.comm.size,
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "placement": self.config.run.placement,
            "clients": self.placement.counts,
            "client_store": self._store.kind,
            "group": self.rounds.choice.group,
            "transport": self.rounds.transport.name,
        }

    def arrays(self) -> dict[str, torch.Tensor]:
        """Return the vectors of the state that are the same on all ranks, or valid on rank 0, by name."""
        moments = self.rounds.coordinator.moments.buffer
        return {"shared": self.shared.buffer, "coordinator": moments, "output": self.output.buffer}

    def client_rows(self) -> ClientRows:
        """Return the state of this rank's clients between rounds, one row per client."""
        return ClientRows([self.clients.buffer, self.rounds.memory.residuals[self._own]])

    @property
    def changed_clients(self) -> np.ndarray:
        """Whether the row of each client may have changed, ``[N]``, since the caller last cleared the array;
        the same on all ranks. All rows may have after a start and after :meth:`load_state_dict`."""
        return self.rounds.changed

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state between two rounds, without copies. Collective.

        The entries are JSON-able values, the vectors of :meth:`arrays` and the rows of :meth:`client_rows`
        as ``clients``. Random numbers have no state.
        """
        return self.rounds.state_dict() | {
            "round": self.round,
            "infeasible": self.infeasible,
            "columns": self._evaluations.columns,
            **self.arrays(),
            "clients": self.client_rows(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of :meth:`state_dict`. Collective."""
        for name, values in self.arrays().items():
            values.copy_(state[name])
        self.client_rows().copy_(state["clients"])
        self.round, self._feasibility.infeasible = state["round"], state["infeasible"]
        columns = state["columns"]
        self._evaluations.columns = None if columns is None else [*starmap(Column, columns)]
        self.rounds.load_state_dict(state)
