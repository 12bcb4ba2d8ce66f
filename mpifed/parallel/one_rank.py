"""One rank of many without the others, to count what many ranks would send."""

from __future__ import annotations

import numpy as np

from mpifed.parallel.comm import SerialComm

__all__ = ["OneRankOf"]


class OneRankOf(SerialComm):
    """Rank 0 of ``size`` ranks on separate nodes, in a single process: collectives return this rank's values.

    Sums and other results are therefore meaningless. The work of the rank, the collectives that it calls and
    the bytes in their buffers are those of ``size`` ranks.

    Attributes:
        calls, bytes: number of collectives so far, and the bytes in their buffers.
    """

    def __init__(self, size: int):
        self.size, self.calls, self.bytes = size, 0, 0

    def _count(self, array: np.ndarray) -> None:
        self.calls += 1
        self.bytes += array.nbytes

    def allreduce_(self, array, op="sum"):
        self._count(array)

    def bcast_(self, array, root=0):
        self._count(array)

    def alltoallv(self, send, counts, receive, from_counts):
        self._count(send)
        receive.reshape(-1)[...] = 0

    def allgatherv(self, send, receive, counts):
        self._count(receive)
        receive.reshape(-1)[...] = np.resize(send.reshape(-1), receive.size)

    def send(self, array, to):
        self._count(array)

    def receive(self, array, source):
        self._count(array)
        array[...] = 0

    def split(self, color):
        return None if color is None else OneRankOf(self.size)
