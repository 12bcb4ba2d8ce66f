"""Rank 0's duties: the cohort, the adaptive matrices, the checkpoint schedule.

The cohort comes from the coordinator's own random address, so every rank computes it without a message. The adaptive
matrices are made on rank 0 from moments that rank 0 alone holds and reach the others by one broadcast of a part of
``shared``; with ``matrices = "replicated"`` every rank holds the moments and makes the matrices from the same averages,
which gives the same bits without the broadcast.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from mpifed.algorithm import Algorithm
from mpifed.comm import SerialComm
from mpifed.placement import Cohort, Placement
from mpifed.records import State

__all__ = ["Coordinator"]


class Coordinator:
    """Decides who takes part, owns the moments, knows when a checkpoint is due.

    Args:
        moments: the algorithm's ``coordinator`` record.
        shared: the state whose ``coordinated`` fields are broadcast.
        weights: one weight a client or ``None`` for uniform.
    """

    def __init__(self, algorithm: Algorithm, comm: SerialComm, placement: Placement, moments: State, shared: State, *,
                 seed: int, cohort: int, weights: np.ndarray | None, replicated: bool):
        self.algorithm, self.comm, self.placement = algorithm, comm, placement
        self.moments, self.shared = moments, shared
        self.seed, self.cohort_size, self.weights, self.replicated = seed, cohort, weights, replicated
        self.wire_bytes, self.seconds = 0, 0.0
        start, stop = shared.layout.span(algorithm.coordinated)
        self._part = shared.buffer[start:stop]
        on_cpu = shared.buffer.device.type == "cpu"
        self._host = self._part if on_cpu else torch.empty_like(self._part, device="cpu", pin_memory=True)
        self._array = self._host.numpy()
        self._everyone = Cohort(np.arange(placement.clients), placement, comm.rank, weights)

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
        if self.replicated or self.comm.size == 1:
            return
        staged = self._host is not self._part
        if staged and self.comm.rank == 0:
            self._host.copy_(self._part)
        start = time.perf_counter()
        self.comm.bcast_(self._array)
        self.seconds += time.perf_counter() - start
        self.wire_bytes += self._array.nbytes * (self.comm.size - 1 if self.comm.rank == 0 else 1)
        if staged and self.comm.rank != 0:
            self._part.copy_(self._host)
