"""Rank 0's duties: the cohort, the adaptive matrices, the checkpoint schedule.

The cohort comes from the coordinator's own random address, so every rank computes it without a message. The adaptive
matrices are made on rank 0 from moments that rank 0 alone holds and reach the others by one broadcast of a part of
``shared``; with ``matrices = "replicated"`` every rank holds the moments and makes the matrices from the same averages,
which gives the same bits without the broadcast.
"""

from __future__ import annotations

import numpy as np

from mpifed.core.algorithm import Algorithm
from mpifed.core.records import State
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.transport import Transport

__all__ = ["Coordinator"]


class Coordinator:
    """Decides who takes part, owns the moments, knows when a checkpoint is due.

    Args:
        moments: the algorithm's ``coordinator`` record.
        shared: the state whose ``coordinated`` fields are broadcast.
        weights: one weight a client or ``None`` for uniform.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        transport: Transport,
        placement: Placement,
        moments: State,
        shared: State,
        *,
        seed: int,
        cohort: int,
        weights: np.ndarray | None,
        replicated: bool,
    ):
        self.algorithm, self.comm, self.placement = algorithm, transport.comm, placement
        self.moments, self.shared = moments, shared
        self.seed, self.cohort_size, self.weights, self.replicated = seed, cohort, weights, replicated
        start, stop = shared.layout.span(algorithm.coordinated)
        self._channel = transport.channel(shared.buffer[start:stop])
        self._everyone = Cohort(np.arange(placement.clients), placement, self.comm.rank, weights)

    @property
    def owns_moments(self) -> bool:
        """Whether this rank holds the moments and makes the matrices."""
        return self.replicated or self.comm.rank == 0

    def cohort(self, r: int) -> Cohort:
        """The clients of round ``r``; everybody in round 0."""
        if r == 0 or self.cohort_size == self.placement.clients:
            return self._everyone
        members = Cohort.draw(self.seed, r, self.placement.clients, self.cohort_size)
        return Cohort(members, self.placement, self.comm.rank, self.weights)

    def refresh(self, r: int, mean: State) -> None:
        """Run the algorithm's ``coordinate`` and make its result known to all ranks."""
        if self.owns_moments:
            new = self.algorithm.coordinate(r, self.shared, self.moments, mean)
            for name, value in new.items():
                if name not in self.algorithm.coordinated:
                    raise ValueError(
                        f"coordinate() returned {name!r}; the coordinated fields are {', '.join(self.algorithm.coordinated)}"
                    )
                setattr(self.shared, name, value)
        if not self.replicated:
            self._channel.bcast_()
