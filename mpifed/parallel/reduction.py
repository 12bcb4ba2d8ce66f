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

    Members of the cohort come in groups: :meth:`begin`, then :meth:`add` after each group that has filled
    its rows, then :meth:`finish`, which is collective.

    Args:
        capacity: rows that are filled at a time; ``hosted``: clients on this rank.

    Attributes:
        rows: the messages of a group, ``[capacity, size]``, filled before :meth:`add`.
        mean: the averaged message ``[size]``, valid after :meth:`finish`.
    """

    rows: torch.Tensor
    mean: torch.Tensor

    def begin(self, cohort: Cohort) -> None:
        """Begin a sum over ``cohort``."""
        self._cohort = cohort

    def _weighted(self, members: slice) -> torch.Tensor:
        """The rows of the group, times their weights."""
        rows, weights = self.rows[: members.stop - members.start], self._cohort.local_weights
        if weights is not None:
            rows *= torch.as_tensor(weights[members], dtype=rows.dtype, device=rows.device)[:, None]
        return rows


class FusedReduction(_Reduction):
    """One in-place Allreduce of a persistent buffer."""

    def __init__(self, transport: Transport, capacity: int, hosted: int, size: int, dtype):
        buffer = torch.zeros(size + 1, dtype=dtype, device=transport.device)  # and the control value
        self._channel, self.mean = transport.channel(buffer), buffer[:size]
        self._lone = hosted == capacity == 1
        self.rows = self.mean.view(1, -1) if self._lone else buffer.new_zeros(max(capacity, 1), size)

    def add(self, members: slice) -> None:
        """Add the messages of ``cohort.local[members]``, in the first rows of ``rows``, which may change."""
        rows = self._weighted(members)
        if members.start and len(rows) == 1:
            self.mean += rows[0]
        elif members.start:
            self.mean += rows.sum(0)
        elif not self._lone:
            torch.sum(rows, 0, out=self.mean)

    def finish(self, control: float = 0.0) -> float:
        """Average over the cohort. Collective.

        Args:
            control: a value of this rank.

        Returns:
            The sum of the ranks' control values, the same on all of them.
        """
        if not len(self._cohort.local):
            self.mean.zero_()
        controls = self._channel.sum_(control)
        self.mean /= self._cohort.total
        return controls


class ExactReduction(_Reduction):
    """A sum over the clients in the order of their numbers: the same bits on every layout."""

    def __init__(self, transport: Transport, capacity: int, hosted: int, size: int, dtype):
        self.transport, self.comm = transport, transport.comm
        self.rows = torch.zeros(max(capacity, 1), size, dtype=dtype, device=transport.device)
        self._held = torch.zeros(hosted, size, dtype=dtype)
        self._result = torch.zeros(size, dtype=dtype)
        self.mean = self._result.to(transport.device)

    def add(self, members: slice) -> None:
        """As :meth:`FusedReduction.add`."""
        self._held[members] = self._weighted(members).cpu()

    def finish(self, control: float = 0.0) -> float:
        """As :meth:`FusedReduction.finish`."""
        cohort = self._cohort
        rows, result = self._held[: len(cohort.local)].numpy(), self._result.numpy()
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
