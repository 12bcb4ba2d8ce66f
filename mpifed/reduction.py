"""Averages of messages over the cohort: two reductions with one interface.

``fused``: the rank's rows are summed, then one Allreduce in place on one persistent buffer. With one client a rank on the
CPU the client's row *is* that buffer, so nothing is packed. Bits depend on the number of ranks and on the MPI library.

``exact``: the sum runs over the clients one by one in the order of their numbers, whatever rank holds them: an Alltoallv
hands every rank a slice of all rows, it sums its slice, an Allgatherv distributes the results. The same bits for every
number of ranks and every placement. Columns go in chunks, which bounds the memory.

Both carry a control value next to the message, so that a decision of one rank (time is up) reaches all without another
collective. Device tensors are staged through one pinned host buffer; reductions of today's CUDA-aware MPI libraries do
the same inside. The copy to the host waits for the device, so MPI never reads a buffer that is still being written.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from mpifed.comm import SerialComm
from mpifed.placement import Cohort

__all__ = ["FusedReduction", "ExactReduction", "REDUCTIONS"]

#: Elements of the receive buffer of one chunk of ``exact``.
CHUNK = 2**24


class _Reduction:
    """Buffers for one phase's message; ``staged`` copies through the host buffer, as every device but the CPU needs.

    Attributes:
        rows: one row for each client that this rank may step, ``[capacity, size]``, filled before a call.
        mean: the averaged message ``[size]``, valid after a call.
        wire_bytes: bytes that this rank has sent and received so far.
        seconds: time spent in communication so far.
    """

    def __init__(self, comm: SerialComm, capacity: int, size: int, dtype, device, staged: bool | None = None):
        self.comm, self.size = comm, size
        self.wire_bytes, self.seconds = 0, 0.0
        self.device = torch.device(device)
        self.staged = self.device.type != "cpu" if staged is None else staged
        self._host = torch.zeros(size + 1, dtype=dtype, pin_memory=self.device.type == "cuda")
        self._array = self._host.numpy()  # the persistent view that MPI works on
        self._total = self._host[:size]
        self.mean = torch.zeros(size, dtype=dtype, device=self.device) if self.staged else self._total
        self.rows = self._allocate_rows(max(capacity, 1), dtype)

    def _allocate_rows(self, capacity: int, dtype) -> torch.Tensor:
        return torch.zeros(capacity, self.size, dtype=dtype, device=self.device)

    def _scale(self, rows: torch.Tensor, cohort: Cohort) -> None:
        if cohort.weights is not None:
            rows *= torch.as_tensor(cohort.local_weights, dtype=rows.dtype, device=rows.device)[:, None]


class FusedReduction(_Reduction):
    """One in-place Allreduce of a persistent buffer."""

    def _allocate_rows(self, capacity: int, dtype) -> torch.Tensor:
        if capacity == 1 and not self.staged:
            return self._total.view(1, -1)
        return super()._allocate_rows(capacity, dtype)

    def __call__(self, cohort: Cohort, control: float = 0.0) -> bool:
        """Average the rows of the cohort's members on this rank (the first ones of ``rows``) over the cohort.

        Returns:
            Whether any rank's ``control`` (>= 0) is positive.
        """
        rows, total = self.rows[: len(cohort.local)], self._total
        self._scale(rows, cohort)
        if not len(rows):
            total.zero_()
        elif len(rows) > 1 or rows.data_ptr() != total.data_ptr():
            total.copy_(rows.sum(0) if len(rows) > 1 else rows[0])  # waits for the device
        self._host[self.size] = control
        start = time.perf_counter()
        self.comm.allreduce_(self._array)
        self.seconds += time.perf_counter() - start
        if self.comm.size > 1:
            self.wire_bytes += 2 * self._array.nbytes
        if self.staged:
            self.mean.copy_(total, non_blocking=True)
        self.mean /= cohort.total
        return bool(self._array[self.size] > 0)


class ExactReduction(_Reduction):
    """A sum over the clients in the order of their numbers: the same bits on every layout."""

    def __call__(self, cohort: Cohort, control: float = 0.0) -> bool:
        """As :meth:`FusedReduction.__call__`."""
        rows = self.rows[: len(cohort.local)]
        self._scale(rows, cohort)
        rows = rows.cpu().numpy()
        result = self._array[: self.size]
        step = max(1, CHUNK // max(1, len(cohort.members)))
        positive = False
        for start in range(0, max(self.size, 1), step):
            stop = min(start + step, self.size)
            positive |= self._chunk(rows[:, start:stop], result[start:stop], cohort, control)
        result /= result.dtype.type(cohort.total)
        if self.staged:
            self.mean.copy_(self._total)
        return positive

    def _chunk(self, rows: np.ndarray, result: np.ndarray, cohort: Cohort, control: float) -> bool:
        ranks = self.comm.size
        edges = np.linspace(0, rows.shape[1], ranks + 1).astype(int)
        widths = np.diff(edges)
        packed = [np.ascontiguousarray(rows[:, left:right]).reshape(-1) for left, right in zip(edges, edges[1:])]
        send = np.concatenate(packed)
        width = widths[self.comm.rank]
        received = np.empty(len(cohort.members) * width, rows.dtype)
        piece = np.zeros(width + 1, rows.dtype)
        start = time.perf_counter()
        self.comm.alltoallv(send, (len(rows) * widths).tolist(), received, (cohort.counts * width).tolist())
        self.seconds += time.perf_counter() - start
        for row in received.reshape(-1, width)[cohort.order] if width else ():
            piece[:width] += row
        piece[width] = control
        gathered = np.empty(rows.shape[1] + ranks, rows.dtype)
        start = time.perf_counter()
        self.comm.allgatherv(piece, gathered, (widths + 1).tolist())
        self.seconds += time.perf_counter() - start
        positive = False
        for rank, (left, right) in enumerate(zip(edges, edges[1:])):
            result[left:right] = gathered[left + rank : right + rank]
            positive |= bool(gathered[right + rank] > 0)
        if ranks > 1:
            self.wire_bytes += send.nbytes + received.nbytes + piece.nbytes + gathered.nbytes
        return positive


REDUCTIONS = {"fused": FusedReduction, "exact": ExactReduction}
