"""The cohort, i.e. who is selected and who participates in each phase, and the adaptive matrices.

Cohorts are drawn by address, so every rank computes them without a message: availability, a cohort of the
available clients (round, number), dropouts (client, round, phase), and the order in which messages arrive if
more clients are selected than are wanted (client, round, phase). A client that drops out in a phase is absent
until a new cohort is drawn.

The adaptive matrices are made on rank 0 from moments that rank 0 alone holds, and reach the other ranks by
one broadcast of a part of ``shared``. With ``matrices = "replicated"`` every rank holds the moments and makes
the matrices from the same averages, which gives the same bits without the broadcast.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from mpifed.base.errors import user_code_errors
from mpifed.core.adaptive import due, first, refresh
from mpifed.core.algorithm import Algorithm, local_steps
from mpifed.core.participation import (
    Available,
    Participation,
    Trace,
    Uniform,
    Weighted,
    inclusion,
    one_each,
    read_trace,
    systematic,
)
from mpifed.core.problem import DataFile, Problem
from mpifed.core.records import Adaptive, State
from mpifed.core.streams import Stream
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.transport import Transport

__all__ = ["Coordinator", "Participants"]


class Coordinator:
    """Says who takes part and owns the moments.

    Args:
        moments: what the matrices are made from.
        shared: the state whose adaptive fields are broadcast.
        participants: who is asked and who answers.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        transport: Transport,
        placement: Placement,
        moments: State,
        shared: State,
        *,
        participants: Participants,
        replicated: bool,
    ):
        self.algorithm, self.comm, self.placement = algorithm, transport.comm, placement
        self.moments, self.shared, self.transport = moments, shared, transport
        self.participants, self.replicated = participants, replicated
        self._fields = algorithm.shared.of(Adaptive)
        self._everyone = Cohort(np.arange(placement.clients), placement, self.comm.rank, participants.base)
        self._whole = self._everyone.total
        for name in self._fields:
            setattr(shared, name, first(algorithm))

    @property
    def owns_moments(self) -> bool:
        """Whether this rank holds the moments and makes the matrices."""
        return self.replicated or self.comm.rank == 0

    def cohort(self, r: int, number: int = 0) -> Cohort:
        """Whom a cohort of round ``r`` is asked of, the ``number``-th to be drawn; everybody in round 0."""
        members = self.participants.asked(r, number) if r else None
        return self._everyone if members is None else self._of(members)

    def answering(self, r: int, phase: int, asked: Cohort) -> Cohort:
        """Those of ``asked`` who answer in a phase of round ``r``; everybody in round 0."""
        if not self.participants.lossy or not r:
            return asked
        count, members = len(asked.members), self.participants.answering(r, phase, asked.members)
        cohort = asked if len(members) == count else self._of(members)
        cohort.asked = count
        return cohort

    def waits(self, cohort: Cohort) -> bool:
        """Whether the server waits for answers that do not come."""
        count = len(cohort.members)
        return cohort.asked > count and self.participants.waits(cohort.asked, count)

    def _of(self, members: np.ndarray) -> Cohort:
        if len(members) == self.placement.clients and not self.participants.unbiased:
            return self._everyone
        return Cohort(members, self.placement, self.comm.rank, self.participants.weights)

    def cohort_weight(self, cohort: Cohort) -> float:
        """The cohort's share of all clients' weight."""
        base = self.participants.base
        return (len(cohort.members) if base is None else float(base[cohort.members].sum())) / self._whole

    def scales(self, cohort: Cohort) -> tuple[float, np.ndarray] | None:
        """What changes are multiplied with for unbiased averages, and what changes of records that clients
        store are, one number per member on this rank; ``None`` where averages are not corrected.

        The average weighs client n by w_n/π_n. The second factor takes 1/π_n out again: a stored field has
        the average by w_n.
        """
        if not self.participants.unbiased or cohort is self._everyone:
            return None
        scale = cohort.total / self._whole
        mine = self.placement.of(self.comm.rank)[cohort.local]
        return scale, self.participants.chances[mine] * (scale / self.cohort_weight(cohort))

    def refresh(self, r: int, mean: State, names: tuple[str, ...]) -> tuple[str, ...]:
        """Make the adaptive matrices ``names`` from the averages and make them known to all ranks.

        Returns:
            Those that are new: the start may leave them as they are.
        """
        if not names:
            return ()
        if self.owns_moments:
            for name in names:
                block, of = self._fields[name].block, self._fields[name].of
                point = getattr(mean if block in mean else self.shared, block)
                steps, old = local_steps(self.algorithm), getattr(self.moments, name)
                with user_code_errors(f"the matrix of shared.{name}", r):
                    moments, matrix = refresh(self.algorithm, steps, r, old, getattr(mean, of), point)
                    setattr(self.moments, name, moments)
                    if matrix is not None:
                        setattr(self.shared, name, matrix)
        if not due(self.algorithm, local_steps(self.algorithm), r):
            return ()
        if not self.replicated:
            for part in self._parts(names):
                self.transport.bcast_(part)
        return names

    def _parts(self, names: tuple[str, ...]) -> list[torch.Tensor]:
        """The fields ``names`` of ``shared``: one tensor if they are neighbours, else one each."""
        spans = [self.shared.layout.span(name) for name in names]
        if all(left[1] == right[0] for left, right in zip(spans, spans[1:])):
            spans = [(spans[0][0], spans[-1][1])]
        return [self.shared.buffer[slice(*span)] for span in spans]


class Participants:
    """Draws cohorts and dropouts.

    Args:
        problem: prepared before anything is asked that depends on its samples.
        cohorts: how many cohorts a round of the method has.

    Attributes:
        files: the data files read, by name.
        lossy: whether some who are asked may not be members.
        unbiased: whether averages estimate those over all clients without bias.

    Raises:
        ValueError, OSError: a trace cannot be read.
    """

    def __init__(self, settings: Participation, seed: int, problem: Problem, cohorts: int = 1):
        self._settings, self._seed, self._problem = settings, seed, problem
        self._availability, self._clients = settings.availability or Uniform(), problem.clients
        self._asked = settings.oversample or settings.cohort or problem.clients
        self._dropout = one_each(settings.dropout or 0.0, problem.clients, "participation.dropout")
        self.lossy = settings.oversample is not None or bool(self._dropout.any())
        self.unbiased = self._availability.unbiased
        self.files: dict[str, DataFile] = {}
        if isinstance(self._availability, Trace):
            self._traced, self.files["trace"] = read_trace(self._availability.file, problem.clients, cohorts)

    @cached_property
    def _available(self) -> Available:
        """Who is available; made when it is first asked, which is after the sum of memory."""
        if isinstance(self._availability, Trace):
            return self._traced
        return self._availability.start(self._seed, self._clients)

    @cached_property
    def _sizes(self) -> np.ndarray:
        """The clients' numbers of samples, ``[N]``."""
        sizes = [self._problem.client_size(client) for client in range(self._clients)]
        return np.array(sizes, dtype=np.float64)

    @cached_property
    def base(self) -> np.ndarray | None:
        """The clients' weights before any correction, ``[N]``, ``None`` where they are equal."""
        return self._sizes if self._settings.weights == "samples" else None

    @cached_property
    def chances(self) -> np.ndarray:
        """The probability that each client is selected, ``[N]``, for availability models that state it."""
        if not isinstance(self._availability, Weighted):
            return np.broadcast_to(self._availability.chances(self._clients), (self._clients,))
        given = self._availability.weights
        weights = self._sizes if given == "samples" else np.array(given)
        return inclusion(weights, self._asked)

    @cached_property
    def weights(self) -> np.ndarray | None:
        """The weights in averages over a cohort, ``[N]``, ``None`` where they are equal."""
        if not self.unbiased:
            return self.base
        with np.errstate(divide="ignore"):  # a client of probability 0 is never weighed
            return (1.0 if self.base is None else self.base) / self.chances

    def asked(self, r: int, number: int) -> np.ndarray | None:
        """Whom the ``number``-th cohort of round ``r`` is asked of, ascending; ``None`` for all."""
        available, clients = self._available(r, number), self._clients
        if self._asked >= (clients if available is None else len(available)):
            return available
        stream = Stream(self._seed, "cohort", round=r, first=number)
        order = stream.permutation(clients)[0, 0]
        if isinstance(self._availability, Weighted):
            return systematic(self.chances, order, stream.uniform()[0, 0])
        if available is not None:
            here = np.zeros(clients, dtype=bool)
            here[available] = True
            order = order[here[order]]
        return np.sort(order[: self._asked])

    def answering(self, r: int, phase: int, members: np.ndarray) -> np.ndarray:
        """Those of ``members`` whose answers count in the ``phase``-th phase of round ``r``, ascending."""
        draws = Stream(self._seed, "dropout", members, r, first=phase).uniform()[:, 0]
        members = members[draws >= (self._dropout[members] if self._dropout.ndim else self._dropout)]
        wanted = self._settings.cohort
        if self._settings.oversample and len(members) > wanted:
            arrival = Stream(self._seed, "arrival", members, r, first=phase).uniform()[:, 0]
            members = np.sort(members[np.argsort(arrival, kind="stable")[:wanted]])
        return members

    def waits(self, asked: int, answered: int) -> bool:
        """Whether the server waits for answers that do not come: it has not got as many as it wants."""
        wanted = self._settings.cohort if self._settings.oversample else asked
        return answered < min(asked, wanted)
