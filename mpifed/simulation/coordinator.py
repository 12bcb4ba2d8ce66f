"""Sampling of cohorts, participation in each phase, and the adaptive matrices.

Random numbers have addresses, so every rank computes without communication: which clients are available, the
cohort (address: round, number of the cohort), dropouts (client, round, phase), and, if more clients are
selected than needed, the order in which messages arrive (client, round, phase). A client that drops out in a
phase is absent until the next cohort is sampled.

The adaptive matrices are computed on rank 0 from moments that only rank 0 stores, and one broadcast of part
of ``shared`` sends them to the other ranks. With ``matrices = "replicated"``, every rank stores the moments
and computes bitwise identical matrices from the same averages, without the broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch

from mpifed.base.errors import user_code_errors
from mpifed.core.adaptive import initial_diagonal, refresh, updates_matrix
from mpifed.core.algorithm import local_steps
from mpifed.core.participation import (
    Available,
    Participation,
    Trace,
    Uniform,
    Weighted,
    inclusion_probabilities,
    per_client,
    read_trace,
    systematic_sample,
)
from mpifed.core.problem import DataFile, Problem, sizes_of
from mpifed.core.records import Adaptive, State
from mpifed.core.streams import Stream
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.transport import Transport
from mpifed.simulation.settings import SimulationSettings
from mpifed.simulation.state import Allocation

__all__ = ["Coordinator", "Participants"]


class Coordinator:
    """Determines the cohorts of this rank's rounds and updates the adaptive matrices.

    Args:
        memory: the state, which contains the matrices and their statistics.
        participants: samples the cohorts.
    """

    def __init__(
        self,
        config: SimulationSettings,
        transport: Transport,
        placement: Placement,
        memory: Allocation,
        participants: Participants,
    ):
        self.algorithm, self.comm, self.placement = config.algorithm, transport.comm, placement
        self.moments, self.shared, self.transport = memory.moments, memory.shared, transport
        self.participants, self.replicated = participants, config.run.matrices == "replicated"
        self._fields = self.algorithm.shared.fields_of_type(Adaptive)
        self._all_clients = Cohort(placement.numbers, placement, self.comm.rank, participants.base)
        self._total = self._all_clients.total
        for name in self._fields:
            setattr(self.shared, name, initial_diagonal(self.algorithm))

    def cohort(self, r: int, number: int = 0) -> Cohort:
        """Return the ``number``-th cohort of round ``r``; all clients in round 0."""
        members = self.participants.selected(r, number) if r else None
        return self._all_clients if members is None else self._cohort(members)

    def participating(self, r: int, phase: int, selected: Cohort) -> Cohort:
        """Return the clients of a cohort that have not dropped out; all of them in round 0."""
        if not self.participants.drops_clients or not r:
            return selected
        count, members = len(selected.members), self.participants.participating(r, phase, selected.members)
        if len(members) == count:
            cohort = selected
        else:  # the remaining clients are stepped by the same ranks, which have their fields of this round
            weights = self.participants.weights
            cohort = Cohort(members, self.placement, self.comm.rank, weights, selected.bounds)
        cohort.selected = count
        return cohort

    def server_waits(self, cohort: Cohort) -> bool:
        """Return whether the server waits for clients that have dropped out."""
        count = len(cohort.members)
        return cohort.selected > count and self.participants.server_waits(cohort.selected, count)

    def _cohort(self, members: np.ndarray) -> Cohort:
        if len(members) == self.placement.clients and not self.participants.unbiased:
            return self._all_clients
        return Cohort(members, self.placement, self.comm.rank, self.participants.weights)

    def cohort_weight(self, cohort: Cohort) -> float:
        """Return the cohort's share of the weight of all clients."""
        base = self.participants.base
        return (len(cohort.members) if base is None else float(base[cohort.members].sum())) / self._total

    def scales(self, cohort: Cohort) -> tuple[float, np.ndarray] | None:
        """Return the factors that make averages unbiased; ``None`` if averages are not corrected.

        The average weights client n by w_n/π_n. Changes of fields that clients store must be averaged by w_n,
        so their factor includes π_n.

        Returns:
            The factor of changes, and the factors of changes of stored fields, one per member on this rank.
        """
        if not self.participants.unbiased or cohort is self._all_clients:
            return None
        scale = cohort.total / self._total
        return scale, self.participants.probabilities[cohort.numbers] * (scale / self.cohort_weight(cohort))

    def refresh(self, r: int, mean: State, names: tuple[str, ...], t: int) -> tuple[str, ...]:
        """Update the adaptive matrices ``names`` from the averages, on all ranks.

        Args:
            t: number of local steps of the run up to the end of round ``r``.

        Returns:
            The names of the updated matrices.
        """
        if not names:
            return ()
        steps = local_steps(self.algorithm)
        if self.replicated or self.comm.rank == 0:
            for name in names:
                block, of = self._fields[name].block, self._fields[name].of
                point = getattr(mean if block in mean else self.shared, block)
                moments = getattr(self.moments, name)
                with user_code_errors(f"the matrix of shared.{name}", r):
                    moments, matrix = refresh(
                        self.algorithm, steps, r, moments, getattr(mean, of), point, max(1, t)
                    )
                    setattr(self.moments, name, moments)
                    if matrix is not None:
                        setattr(self.shared, name, matrix)
        if not updates_matrix(self.algorithm, steps, r):
            return ()
        if not self.replicated:
            for part in self._parts(names):
                self.transport.bcast_(part)
        return names

    def _parts(self, names: tuple[str, ...]) -> list[torch.Tensor]:
        """Return the fields ``names`` of ``shared`` as one tensor if adjacent, else one per field."""
        spans = [self.shared.layout.span(name) for name in names]
        if all(left[1] == right[0] for left, right in zip(spans, spans[1:])):
            spans = [(spans[0][0], spans[-1][1])]
        return [self.shared.buffer[slice(*span)] for span in spans]


class Participants:
    """Samples cohorts and dropouts.

    Args:
        problem: must be prepared before an attribute or method that depends on its samples is used.
        cohorts: number of cohorts per round of the method.

    Attributes:
        files: the data files read, by name.
        drops_clients: whether selected clients may not participate, by dropout or oversampling.
        unbiased: whether averages are unbiased estimates of averages over all clients.

    Raises:
        ValueError, OSError: a trace cannot be read.
    """

    def __init__(self, settings: Participation, seed: int, problem: Problem, cohorts: int = 1):
        self._settings, self._seed, self._problem = settings, seed, problem
        self._availability, self._clients = settings.availability or Uniform(), problem.clients
        self._size = settings.oversample or settings.cohort or problem.clients
        self._dropout = per_client(settings.dropout or 0.0, problem.clients, "participation.dropout")
        self.drops_clients = settings.oversample is not None or bool(self._dropout.any())
        self.unbiased = self._availability.unbiased
        self.files: dict[str, DataFile] = {}
        if isinstance(self._availability, Trace):
            self._trace, self.files["trace"] = read_trace(self._availability.file, problem.clients, cohorts)

    @classmethod
    def of_settings(cls, config: SimulationSettings) -> Participants:
        """Return the participants of a job, with the number of cohorts of its method."""
        cohorts = 1 + sum(phase.new_cohort for phase in config.algorithm.phases)
        return cls(config.participation, config.seed, config.problem, cohorts)

    @cached_property
    def _available(self) -> Callable[[int, int], Available]:
        """Returns the available clients of a round and a cohort; created after the check of memory."""
        if isinstance(self._availability, Trace):
            return self._trace
        return self._availability.start(self._seed, self._clients)

    @cached_property
    def _sizes(self) -> np.ndarray:
        return sizes_of(self._problem, np.arange(self._clients)).astype(np.float64)

    @cached_property
    def base(self) -> np.ndarray | None:
        """The clients' weights before any correction, ``[N]``; ``None`` if they are equal."""
        return self._sizes if self._settings.weights == "samples" else None

    @cached_property
    def probabilities(self) -> np.ndarray:
        """The probability that each client is selected, ``[N]``, for availability models that define it."""
        if not isinstance(self._availability, Weighted):
            return np.broadcast_to(self._availability.probabilities(self._clients), (self._clients,))
        given = self._availability.weights
        weights = self._sizes if given == "samples" else np.array(given)
        return inclusion_probabilities(weights, self._size)

    @cached_property
    def weights(self) -> np.ndarray | None:
        """The clients' weights in averages over a cohort, ``[N]``; ``None`` if they are equal."""
        if not self.unbiased:
            return self.base
        return (1.0 if self.base is None else self.base) / self.probabilities

    def selected(self, r: int, number: int) -> np.ndarray | None:
        """Return the clients of the ``number``-th cohort of round ``r``, ascending; ``None`` for all."""
        available = self._available(r, number)
        if self._size < self._clients:
            stream = Stream(self._seed, "cohort", round=r, first=number)
            if isinstance(self._availability, Weighted):
                order = stream.permutation(self._clients)[0, 0]
                return systematic_sample(self.probabilities, order, stream.uniform()[0, 0])
            return available.sample(self._size, stream)
        if available.are_available is None and len(available.candidates) == self._clients:
            return None
        return available.all()

    def participating(self, r: int, phase: int, members: np.ndarray) -> np.ndarray:
        """Return the ``members`` whose messages count in the ``phase``-th phase of round ``r``, ascending."""
        draws = Stream(self._seed, "dropout", members, r, first=phase).uniform()[:, 0]
        members = members[draws >= (self._dropout[members] if self._dropout.ndim else self._dropout)]
        needed = self._settings.cohort
        if self._settings.oversample and len(members) > needed:
            arrival = Stream(self._seed, "arrival", members, r, first=phase).uniform()[:, 0]
            members = np.sort(members[np.argsort(arrival, kind="stable")[:needed]])
        return members

    def server_waits(self, selected: int, participating: int) -> bool:
        """Return whether the server waits for clients that have dropped out: it has too few messages."""
        needed = self._settings.cohort if self._settings.oversample else selected
        return participating < min(selected, needed)
