"""Averages of messages over the cohort: two reductions with one interface.

``fused``: the rank's rows are summed, then one Allreduce in place on one persistent buffer. With one client a
rank the client's row *is* that buffer, so nothing is packed. Bits depend on the number of ranks and on the
transport.

``exact``: the sum runs over the clients one by one in the order of their numbers, whatever rank holds them:
an Alltoallv hands every rank a slice of all rows, it sums its slice, an Allgatherv distributes the results.
The same bits for every number of ranks and every placement. It works in host memory. Columns go in chunks,
which bounds the memory.

Both carry a control value next to the message, so that decisions of single ranks (time is up) reach all
without another collective.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from mpifed.parallel.placement import Cohort
from mpifed.parallel.transport import Transport

__all__ = ["FusedReduction", "ExactReduction", "REDUCTIONS"]

#: Elements of the receive buffer of one chunk of ``exact``.
CHUNK = 2**24


class _Reduction:
    """Buffers for one phase's message, on the transport's device.

    Attributes:
        rows: one row for each client that this rank may step, ``[capacity, size]``, filled before a call.
        mean: the averaged message ``[size]``, valid after a call.
    """

    rows: torch.Tensor
    mean: torch.Tensor

    def _scale(self, rows: torch.Tensor, cohort: Cohort) -> None:
        if cohort.weights is not None:
            rows *= torch.as_tensor(cohort.local_weights, dtype=rows.dtype, device=rows.device)[:, None]


class FusedReduction(_Reduction):
    """One in-place Allreduce of a persistent buffer."""

    def __init__(self, transport: Transport, capacity: int, size: int, dtype):
        buffer = torch.zeros(size + 1, dtype=dtype, device=transport.device)  # and the control value
        self._channel, self.mean = transport.channel(buffer), buffer[:size]
        self.rows = self.mean.view(1, -1) if capacity == 1 else buffer.new_zeros(max(capacity, 1), size)

    def __call__(self, cohort: Cohort, control: float = 0.0) -> float:
        """Average the rows of the cohort's members on this rank (the first ones of ``rows``) over the cohort.

        Returns:
            The sum of the ranks' control values, the same on all of them.
        """
        rows, total = self.rows[: len(cohort.local)], self.mean
        self._scale(rows, cohort)
        if len(rows) != 1:
            torch.sum(rows, 0, out=total)
        elif rows.data_ptr() != total.data_ptr():
            total.copy_(rows[0])
        controls = self._channel.sum_(control)
        total /= cohort.total
        return controls


class ExactReduction(_Reduction):
    """A sum over the clients in the order of their numbers: the same bits on every layout."""

    def __init__(self, transport: Transport, capacity: int, size: int, dtype):
        self.transport, self.comm = transport, transport.comm
        self.rows = torch.zeros(max(capacity, 1), size, dtype=dtype, device=transport.device)
        self._result = torch.zeros(size, dtype=dtype)
        self.mean = self._result.to(transport.device)

    def __call__(self, cohort: Cohort, control: float = 0.0) -> float:
        """As :meth:`FusedReduction.__call__`."""
        own = self.rows[: len(cohort.local)]
        self._scale(own, cohort)
        rows, result = own.cpu().numpy(), self._result.numpy()
        size, controls = len(result), 0.0
        step = max(1, CHUNK // max(1, len(cohort.members)))
        for start in range(0, max(size, 1), step):
            stop = min(start + step, size)
            controls += self._chunk(
                rows[:, start:stop], result[start:stop], cohort, control if start == 0 else 0.0
            )
        result /= result.dtype.type(cohort.total)
        if self.mean is not self._result:
            self.mean.copy_(self._result)
        return controls

    def _chunk(self, rows: np.ndarray, result: np.ndarray, cohort: Cohort, control: float) -> float:
        ranks = self.comm.size
        edges = np.linspace(0, rows.shape[1], ranks + 1).astype(int)
        widths = np.diff(edges)
        packed = [
            np.ascontiguousarray(rows[:, left:right]).reshape(-1) for left, right in zip(edges, edges[1:])
        ]
        send = np.concatenate(packed)
        width = widths[self.comm.rank]
        received = np.empty(len(cohort.members) * width, rows.dtype)
        piece = np.zeros(width + 1, rows.dtype)
        alone = ranks == 1
        start = time.perf_counter()
        self.comm.alltoallv(send, (len(rows) * widths).tolist(), received, (cohort.counts * width).tolist())
        self.transport.count(start, 0 if alone else send.nbytes + received.nbytes)
        for row in received.reshape(-1, width)[cohort.order] if width else ():
            piece[:width] += row
        piece[width] = control
        gathered = np.empty(rows.shape[1] + ranks, rows.dtype)
        start = time.perf_counter()
        self.comm.allgatherv(piece, gathered, (widths + 1).tolist())
        self.transport.count(start, 0 if alone else piece.nbytes + gathered.nbytes)
        controls = 0.0
        for rank, (left, right) in enumerate(zip(edges, edges[1:])):
            result[left:right] = gathered[left + rank : right + rank]
            controls += float(gathered[right + rank])
        return controls


REDUCTIONS = {"fused": FusedReduction, "exact": ExactReduction}
