"""Sums of the ranks' partial sums by Allreduce, by messages, or in shared memory of a node.

Every rank writes its partial sums to :attr:`Exchange.slots`; :meth:`Exchange.finish` adds those of all ranks.
Messages and shared memory give bitwise identical results, because both add in a prescribed order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mpifed.parallel.comm import SerialComm, gather_rows
from mpifed.parallel.nodes import Nodes
from mpifed.parallel.shared_memory import share_memory
from mpifed.parallel.tree import PartialSums

__all__ = ["Exchange", "AllreduceExchange", "MessageExchange", "SharedExchange", "bytes_in_memory", "padded"]

#: Approximate maximum number of elements that a rank sends, and that it receives, per chunk of columns.
CHUNK = 2**24
#: Maximum size of all partial sums, in bytes, that every rank adds itself: one message is faster than two.
SMALL = 2**15
#: Bytes of each partial sum that are added at a time, so that intermediate values stay in the cache.
BLOCK = 2**17
#: Bytes before the partial sums in a rank's shared memory: its control value and, on the first rank of a node
#: of several, the sum of all control values.
HEAD = 64

#: Arrays of equal length, or a two-dimensional array.
Rows = Sequence[np.ndarray] | np.ndarray
#: Called with the start time of a transfer (``time.perf_counter``) and the bytes sent and received.
Count = Callable[[float, int], None]


def padded(size: int) -> int:
    """Return the length of a row with a control value, such that each row starts at a cache line."""
    return (size // 16 + 1) * 16


def add_up(sums: tuple, parts: Rows, outs: Rows, total: float = 1.0) -> None:
    """Add ``parts``, ``[width]`` each, in the order of a plan, and divide by ``total``.

    Works on one block of columns at a time, so that intermediate values stay in the cache.

    Args:
        sums: the plan, see ``tree.plan_one_by_one``.
        outs: arrays for the final values of the plan, ``[width]`` each.
    """
    adds, left = sums
    width, dtype = len(outs[0]), outs[0].dtype
    step, places = max(1, BLOCK // dtype.itemsize), -min((out for out, _, _ in adds), default=0)
    scratch = np.empty((places, min(step, width)), dtype)
    for start in range(0, width, step):
        columns = slice(start, min(start + step, width))
        values = [part[columns] for part in parts] + list(scratch[:, : columns.stop - start])
        for value, out in zip(left, outs):
            if value < 0:
                values[value] = out[columns]
        for out, first, second in adds:
            np.add(values[first], values[second], out=values[out])
        for value, out in zip(left, outs):
            if value >= 0 or total != 1.0:
                np.divide(values[value], dtype.type(total), out=out[columns])


def bytes_in_memory(sums: PartialSums, node: range, rank: int, result: np.ndarray) -> int:
    """Return the bytes that a rank reads in the shared memory of its node: its columns of the node's partial
    sums, and the whole sum.

    Args:
        node: the ranks of the node; ``rank``: position of this rank among them.
        result: the sum.
    """
    left, right = (edge * len(result) // len(node) for edge in (rank, rank + 1))
    parts = sum(sums.counts[node.start : node.stop])
    return ((right - left) * parts + len(result)) * result.itemsize


class Exchange:
    """Memory for the partial sums of this rank and for the sum over all ranks.

    Attributes:
        slots: ``[maximum number of partial sums of this rank, size]``, an array in host memory or a tensor.
        rows: the memory of ``slots``, whose rows may be longer; for messages.
        result: the sum, ``[size]``. Read-only, because it may be shared with other ranks.
        checksum: a number that is finite only if all elements of ``result`` are, if it is known without
            another wait for the device, otherwise ``None``.
    """

    slots: Any
    rows: Any
    result: Any
    checksum: float | None = None

    def finish(self, sums: PartialSums, total: float, control: float) -> float:
        """Compute ``result``, the sum of all partial sums divided by ``total``. Collective.

        Args:
            sums: the order of additions; this rank's partial sums are the first ``sums.counts[rank]`` rows
                of ``slots``.
            control: a value of this rank.

        Returns:
            The sum of the ranks' control values.
        """
        raise NotImplementedError


class AllreduceExchange(Exchange):
    """Sums one partial sum per rank in place on the device.

    Args:
        transport: the :class:`mpifed.parallel.transport.Transport`.
    """

    def __init__(self, transport, size: int, dtype: torch.dtype):
        self._transport = transport
        self._buffer = torch.zeros(size + 1, dtype=dtype, device=transport.device)  # and the control value
        self.result = self._buffer[:size]
        self.slots = self.result[None]

    def finish(self, sums, total, control):
        controls = self._transport.sum_(self._buffer, control)
        self.checksum = self._transport.checksum
        self.result /= total
        return controls


class MessageExchange(Exchange):
    """Sums partial sums by messages between ranks.

    A few or small partial sums are sent to all ranks, and every rank adds all of them. Otherwise each rank
    receives one slice of all partial sums, adds these, and sends the result to all ranks. Columns are
    processed in chunks, which bounds the memory.

    Args:
        rows: memory of the partial sums, ``[maximum number, padded(size)]``; the last column is for control
            values.
        result: memory of the sum, ``[size]``.
        count: called for every message.
    """

    def __init__(self, comm: SerialComm, rows: np.ndarray, result: np.ndarray, count: Count):
        self.comm, self.rows, self.result, self._count = comm, rows, result, count
        self.slots = rows[:, : len(result)]
        self._buffers: dict[str, np.ndarray] = {}

    def finish(self, sums, total, control):
        result, controls, parts = self.result, 0.0, sum(sums.counts)
        size = len(result)
        if self.comm.size == 1:
            start = time.perf_counter()
            add_up(sums.all, self.slots[:parts], [result], total)
            self._count(start, 0)
            return control
        small = self.comm.size <= 2 or parts * size * result.itemsize <= SMALL
        # Slices: a rank holds its own partial sums of a chunk, and its share of the columns of all.
        step = max(1, CHUNK // (parts if small else max(1, *sums.counts)))
        for start in range(0, max(size, 1), step):
            columns = slice(start, min(start + step, size))
            add = self._add_all if small else self._add_slices
            controls += add(sums, total, result[columns], columns, control if start == 0 else 0.0)
        return controls

    def _buffer(self, name: str, length: int) -> np.ndarray:
        """Return memory that is reused in all rounds, because page faults cost as much as the sums."""
        if name not in self._buffers or len(self._buffers[name]) < length:
            self._buffers[name] = np.empty(length, self.slots.dtype)
        return self._buffers[name][:length]

    def _add_all(self, sums, total, result, columns, control) -> float:
        rows = [max(1, count) for count in sums.counts]  # at least the control value
        last = columns.stop == self.slots.shape[1]
        own = self.rows[: rows[self.comm.rank], columns.start : None if last else columns.stop + 1]
        if not last:
            own = own.copy()
        own[0, -1], width = control, own.shape[1]
        received = self._buffer("received", sum(rows) * width)
        start = time.perf_counter()
        self.comm.allgatherv(np.ascontiguousarray(own), received, [count * width for count in rows])
        self._count(start, own.nbytes + received.nbytes)
        received, firsts = received.reshape(-1, width), np.cumsum([0, *rows[:-1]])
        parts = [
            received[first + row, : len(result)]
            for first, count in zip(firsts, sums.counts)
            for row in range(count)
        ]
        add_up(sums.all, parts, [result], total)
        return sum(received[firsts, -1].tolist())

    def _add_slices(self, sums, total, result, columns, control) -> float:
        ranks, rank, own = self.comm.size, self.comm.rank, sums.counts[self.comm.rank]
        edges = np.linspace(0, len(result), ranks + 1).astype(int)
        widths, parts = np.diff(edges), sum(sums.counts)
        rows = self.slots[:own, columns]
        send = rows[0] if own == 1 else self._buffer("sent", own * len(result))
        for left, right in zip(edges, edges[1:]) if own > 1 else ():
            send[own * left : own * right].reshape(own, right - left)[...] = rows[:, left:right]
        received = self._buffer("received", parts * widths[rank]).reshape(parts, widths[rank])
        start = time.perf_counter()
        self.comm.alltoallv(send, (own * widths).tolist(), received, [n * widths[rank] for n in sums.counts])
        self._count(start, send.nbytes + received.nbytes)
        piece = self._buffer("piece", widths[rank] + 1)
        add_up(sums.all, received, [piece[:-1]])
        piece[-1] = control
        gathered = self._buffer("gathered", len(result) + ranks)
        start = time.perf_counter()
        self.comm.allgatherv(piece, gathered, (widths + 1).tolist())
        self._count(start, piece.nbytes + gathered.nbytes)
        controls = 0.0
        for number, (left, right) in enumerate(zip(edges, edges[1:])):
            np.divide(
                gathered[left + number : right + number], result.dtype.type(total), out=result[left:right]
            )
            controls += float(gathered[right + number])
        return controls


class SharedExchange(Exchange):
    """Sums partial sums in memory shared by the ranks of a node.

    Every rank adds one slice of the columns in place, and all ranks read the sum. It remains valid until all
    ranks of the node have called :meth:`finish` again. With several nodes, their first ranks exchange the
    nodes' sums by messages.

    Args:
        nodes: the ranks grouped by node.
        slots, of_node: maximum number of partial sums of this rank and of its node.
        count: see :class:`MessageExchange`.

    Raises:
        CollectiveError: on all ranks: memory of this size cannot be shared on some node.
    """

    def __init__(self, nodes: Nodes, slots: int, of_node: int, size: int, dtype: np.dtype, count: Count):
        self._nodes, self._node, self._count = nodes, nodes.node, count
        numbers, width = gather_rows(self._node, np.array([[slots]]))[:, 0].tolist(), padded(size)
        several, first = len(nodes.firsts) > 2, self._node.rank == 0
        rows = slots + first * (1 + several * of_node)
        memory = share_memory(nodes.comm, self._node, HEAD + dtype.itemsize * int(rows * width))
        self._controls = [part[:HEAD].view(np.float64) for part in memory]
        arrays = [part[HEAD:].view(dtype).reshape(-1, width) for part in memory]
        self._slots = [part[:number, :size] for part, number in zip(arrays, numbers)]
        self.slots, lead = self._slots[self._node.rank], arrays[0][numbers[0] :]
        self.result, self._rows = lead[0, :size], lead[1:]
        leaders = nodes.leaders
        self._leaders = leaders and MessageExchange(leaders, self._rows, self.result, self._count_bytes)

    def _count_bytes(self, start: float, nbytes: int) -> None:
        self._count(time.perf_counter(), nbytes)  # `finish` counts the time

    def finish(self, sums, total, control):
        start, controls = time.perf_counter(), self._controls
        controls[self._node.rank][0] = control
        self._barrier()
        common = sum(float(of_rank[0]) for of_rank in controls)
        several = len(self._nodes.firsts) > 2
        self._add(sums, 1.0 if several else total, several)
        self._barrier()
        if several:
            if self._leaders:
                controls[0][1] = self._leaders.finish(sums.between(self._nodes.firsts), total, common)
            self._barrier()
            common = float(controls[0][1])
        self._count(start, self._bytes(sums) if self._nodes.comm.size > 1 else 0)
        return common

    def _barrier(self) -> None:
        """Wait for the ranks of the node, so that they have completed all reads and writes."""
        self._nodes.comm.calling = "Barrier of the node"
        self._node.barrier()
        self._nodes.comm.calling = ""

    def _bytes(self, sums: PartialSums) -> int:
        node, first = self._node, self._nodes.comm.rank - self._node.rank
        return bytes_in_memory(sums, range(first, first + node.size), node.rank, self.result)

    def _add(self, sums: PartialSums, total: float, several: bool) -> None:
        """Add this rank's columns of the node's partial sums."""
        node, size = self._node, len(self.result)
        columns = slice(node.rank * size // node.size, (node.rank + 1) * size // node.size)
        first = self._nodes.comm.rank - node.rank
        parts = [
            row[columns]
            for slots, count in zip(self._slots, sums.counts[first : first + node.size])
            for row in slots[:count]
        ]
        adds = sums.within(first, first + node.size)
        outs = self._rows[: len(adds[1]), columns] if several else [self.result[columns]]
        if parts and columns.stop > columns.start:
            add_up(adds, parts, outs, total)
