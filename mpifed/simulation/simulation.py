"""A federated simulation: the starting point, one round after another, and the current point.

:class:`Simulation` owns the records and the objects that compute a round. It writes no files and does not
decide when to stop. All collectives are called here and in its objects, by every rank in the same order. In
user code, torch's default dtype is ``run.dtype``: ``torch.as_tensor(0.05)`` has the precision of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mpifed.base.errors import user_code_errors
from mpifed.base.log import warning
from mpifed.base.plugins import plugin_of
from mpifed.base.settings import title
from mpifed.core.algorithm import Algorithm
from mpifed.core.problem import Problem
from mpifed.core.records import State
from mpifed.core.streams import Stream, generator
from mpifed.core.validation import called
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.parallel.devices import choose_device, expect_reproducible_products
from mpifed.parallel.transport import choose_transport
from mpifed.parallel.world import world
from mpifed.simulation.client_batching import Group
from mpifed.simulation.coordinator import Participants
from mpifed.simulation.evaluation import Evaluator, infeasibility, projections
from mpifed.simulation.executor import Observer
from mpifed.simulation.full_data import FullData
from mpifed.simulation.personalization import FineTuning
from mpifed.simulation.regularization import Regularizer
from mpifed.simulation.rounds import NonFiniteError, Rounds
from mpifed.simulation.settings import SimulationSettings
from mpifed.simulation.setup import InitialWeights, default_dtype, place_clients, prepare, resolve_reduction
from mpifed.simulation.state import Allocation
from mpifed.simulation.stationarity import StationarityEvaluator

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
        round: number of completed rounds.
        shared, clients, output: the records; ``clients`` has one row per client of this rank.
        rounds: runs rounds and counts their costs.
        files: the data files read, by name.
        metrics: evaluates the metrics; the names of the first evaluation are kept.
        stationarity: evaluates the stationarity measures, ``None`` if none are requested.
        infeasible: describes the first evaluated point outside the problem's sets; "" if there is none.
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
        self.comm, self.round, self.infeasible = comm, 0, ""
        self.dtype = getattr(torch, config.run.dtype)
        self.device = choose_device(comm, config.run.device, config.run.gpus)
        exact = config.run.reduction == "exact"
        with collective_errors(comm, ValueError, OSError):  # a file may be missing on one rank only
            if exact and self.device.type == "cpu":
                expect_reproducible_products()
            cohorts = 1 + sum(phase.new_cohort for phase in config.algorithm.phases)
            participants = Participants(config.participation, config.seed, config.problem, cohorts)
            self._weights = InitialWeights(config.initial)
        files = participants.files | self._weights.files
        self.problem = prepare(config, comm, self.dtype, self.device, files)
        # Each part that may fail on one rank is followed by an agreement, and none of them communicates:
        # otherwise a rank that fails would leave the others waiting.
        with collective_errors(comm, ValueError, OSError):
            self._weights.expect_fit(self.problem, config.problem)
            self._sets = projections(self.problem)
        self.files = files | self.problem.files
        self.placement = place_clients(config, self.problem, comm)
        self.metrics = Evaluator(self.problem, comm, config.run.evaluate_on, config.metrics, self.placement)
        self.transport = choose_transport(comm, self.device, config.run.transport, exact)
        clients = len(self.placement.clients_of(comm.rank))
        with collective_errors(comm, ValueError, OSError):
            memory = Allocation(
                config.algorithm, self.problem, clients, self.dtype, self.device, config.regularize
            )
        self.blocks, self._output = memory.blocks, memory.output
        self.shared, self.clients = memory.shared, memory.clients
        with default_dtype(self.dtype):
            self.rounds = Rounds(
                config,
                self.problem,
                placement=self.placement,
                memory=memory,
                transport=self.transport,
                participants=participants,
                observers=observers,
                group=group,
            )
            self.stationarity = StationarityEvaluator(self) if config.measures else None
            if config.personalize:
                self.metrics.personalize(FineTuning(config.personalize, FullData(self)))
        oracle, regularize = self.rounds.executor.oracle, config.regularize
        with collective_errors(comm, ValueError):
            self._regularizer = regularize and Regularizer(regularize, self.problem, self.shared, oracle)

    @torch.no_grad()
    def start(self) -> None:
        """Set the starting point and run the method's start phases (round 0)."""
        method = self.config.algorithm
        with default_dtype(self.dtype):
            with user_code_errors(f"{type(self.problem).__name__}.initial", 0):
                point = self.problem.initial(generator(self.config.seed, "initial"))
                point = self._weights.start(self.problem, point)
                for block in self.blocks:
                    if block in point:
                        value = torch.as_tensor(point[block]).reshape(-1).to(self.dtype)
                        setattr(self.shared if block in self.shared else self.clients, block, value)
                        if self._regularizer:
                            self._regularizer.start(block, value.to(self.device))
            with user_code_errors(called(method.initialize), 0):
                method.initialize(self.shared)
            self.rounds.traffic.record_writes([*self.blocks, *self.shared.pop_accesses()[1]])
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
        with default_dtype(self.dtype):
            controls = self.rounds.run(self.round, control)
        if self._regularizer and self._regularizer.ends_stage(self.round):
            self._regularizer.recentre(self.point())
        self._update_output()
        return controls

    def restore(self, round: int, skipped: int, unsent: list[str], steps: Sequence[int]) -> None:
        """Continue after ``round``; the records must have been restored before. Collective.

        Args:
            steps: ``steps_done`` and ``previous_steps`` of :class:`~mpifed.simulation.rounds.Rounds`.
        """
        self.rounds.steps_done, self.rounds.previous_steps = steps
        self.round, self.rounds.skipped, self.rounds.traffic.unsent = round, skipped, set(unsent)
        self.rounds.average_clients()

    @property
    def client_rows(self) -> torch.Tensor:
        """The state of the clients between rounds, one row per client: the record and the residuals of
        compression."""
        records, residuals = self.clients.buffer, self.rounds.compressor.residuals
        return torch.cat([records, residuals], dim=1) if residuals.shape[1] else records

    @property
    def row_size(self) -> int:
        """The length of a row of :attr:`client_rows`."""
        return self.clients.buffer.shape[1] + self.rounds.compressor.residuals.shape[1]

    def restore_client_rows(self, rows: torch.Tensor) -> None:
        """Restore the state of the clients from :attr:`client_rows`."""
        width = self.clients.buffer.shape[1]
        self.clients.buffer.copy_(rows[:, :width])
        self.rounds.compressor.residuals.copy_(rows[:, width:])

    def point(self) -> torch.Tensor:
        """Return the current iterate, all blocks concatenated."""
        return torch.cat([self.rounds.block(name) for name in self.blocks])

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

    def evaluate(self, state: State) -> dict[str, float]:
        """Evaluate the metrics and stationarity measures at the iterate of ``shared`` or at ``output``.
        Collective.

        Returns:
            All values on rank 0, an empty dictionary on the other ranks.

        Raises:
            CollectiveError: a function of the problem fails, or returns something else than a dictionary of
                numbers.
        """
        block = self.rounds.block if state is self.shared else lambda name: getattr(state, name)
        with default_dtype(self.dtype):
            point = [block(name) for name in self.blocks]
            self._expect_feasible(point)
            z = self.shared.z if "z" in self.shared else None
            stationarity = self.stationarity(point, z, self.round) if self.stationarity else {}
            if self.config.oracle.clip is not None:
                stationarity["clipped"] = self.rounds.clipped_share()
            return self.metrics(point, self.round, stationarity)

    def _expect_feasible(self, point: list[torch.Tensor]) -> None:
        """Warn about the first point outside the problem's sets. Collective if there are sets."""
        if self.infeasible or not self._sets:
            return
        named = [self.blocks.unflatten(block, flat) for block, flat in zip(self.blocks, point)]
        with (
            collective_errors(self.comm, ValueError),
            user_code_errors(f"the sets of {title(self.problem)}", self.round),
        ):
            found = infeasibility(self.problem, self._sets, named)
        if found:
            self.infeasible = f"{found} after round {self.round}"
            if self.comm.rank == 0:
                method, out = self.config.algorithm, getattr(self.config.run, "out", "")  # "" without files
                if not (self.round or method.start):
                    remedy = f"initial() of {title(self.problem)} must return a point in the sets"
                elif plugin_of(type(method)):
                    remedy = (
                        f"{title(method)} must project new points by oracle.sets and now.sets, or reject "
                        "problems with sets by constrained = False"
                    )
                else:  # methods of the package project
                    largest = max(float(block.abs().max()) for block in point)
                    remedy = (
                        f"the run diverges, with coordinates up to {largest:.2g}: reduce "
                        "the step sizes, or set run.dtype = 'float64'"
                    )
                warning(
                    f"{out}: {self.infeasible}: {remedy} (results and reports mark the run as infeasible)"
                )
