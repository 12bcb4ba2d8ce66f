"""Client rows on their way between the ranks that host the clients and a rank that writes or reads a file.

Rows are sent block by block, so the rank that writes or reads needs memory for two blocks. All ranks compute
which rows a block contains, so only rows are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.parallel.placement import Placement

__all__ = ["Gathering", "Rows", "distribute", "row_bytes"]

#: Maximum size of a block of client rows in bytes. It fits into the cache of a core.
MAX_BLOCK = 2**20
#: Errors of copies between the host and a device, which may have no memory for a block.
DEVICE_ERRORS = (RuntimeError, MemoryError)


class Rows(Protocol):
    """The client rows of a rank, wherever they are stored."""

    shape: tuple[int, int]
    dtype: np.dtype

    def read(self, first: int, rows: np.ndarray) -> None:
        """Copy the rows from ``first`` on into ``rows``."""

    def write(self, first: int, rows: np.ndarray) -> None:
        """Replace the rows from ``first`` on."""

    def read_at(self, positions: np.ndarray, rows: np.ndarray) -> None:
        """Copy the rows at ``positions`` into ``rows``."""

    def write_at(self, positions: np.ndarray, rows: np.ndarray) -> None:
        """Replace the rows at ``positions``."""


def row_bytes(rows: Rows) -> int:
    """Return the size of a client's row in bytes."""
    return rows.shape[1] * rows.dtype.itemsize


class Gathering:
    """The rows of some clients of some ranks, which rank 0 of a communicator receives.

    Args:
        rows: the client rows of this rank.
        everyone: all ranks. The constructor is collective.
        comm: the ranks whose rows are gathered; ``ranks``: their numbers among all ranks, ascending.
        changed: whether the row of each client is gathered, ``[N]``; ``None`` for all.

    Attributes:
        count: number of clients whose rows are gathered.
        receives: whether this rank receives them.

    Raises:
        CollectiveError: on all ranks: a rank has no memory for a block.
    """

    def __init__(
        self,
        rows: Rows,
        everyone: SerialComm,
        placement: Placement,
        comm: SerialComm,
        ranks: Sequence[int],
        changed: np.ndarray | None = None,
    ):
        self.rows, self.receives = rows, comm.rank == 0
        self._comm, self._ranks, self._changed = comm, ranks, changed
        self._edges = placement.edges.tolist()
        self._failure: Exception | None = None
        counts = [len(self._numbers(index)) for index in range(comm.size)]
        self.count, self._step = sum(counts), max(1, MAX_BLOCK // max(1, row_bytes(rows)))
        # Allocated before any rank sends or receives a block, so that nothing fails between two blocks.
        with collective_errors(everyone, MemoryError):
            largest = max(counts) if self.receives else counts[comm.rank]
            self._buffer = np.empty((min(largest, self._step), rows.shape[1]), rows.dtype)

    def _numbers(self, index: int) -> range | np.ndarray:
        """Return the numbers of a rank's clients whose rows are gathered, ascending."""
        first, last = self._edges[self._ranks[index]], self._edges[self._ranks[index] + 1]
        if self._changed is None:
            return range(first, last)
        return first + np.flatnonzero(self._changed[first:last])

    def numbers(self) -> np.ndarray:
        """Return the numbers of the clients in the order of their rows, ``[count]``."""
        parts = [np.array(self._numbers(index), dtype=np.int64) for index in range(self._comm.size)]
        return np.concatenate(parts)

    def _blocks(self, index: int) -> Iterator[tuple[range | np.ndarray, np.ndarray]]:
        """Yield the client numbers of each block of a rank, and memory for its rows."""
        numbers = self._numbers(index)
        for start in range(0, len(numbers), self._step):
            block = numbers[start : start + self._step]
            yield block, self._buffer[: len(block)]

    def _read(self, numbers: range | np.ndarray, block: np.ndarray) -> None:
        """Copy rows of this rank into a block. An error is kept for :meth:`_raise`."""
        first = self._edges[self._ranks[self._comm.rank]]
        try:
            if isinstance(numbers, range):
                self.rows.read(numbers.start - first, block)
            else:
                self.rows.read_at(numbers - first, block)
        except DEVICE_ERRORS as error:
            self._failure = error

    def _raise(self) -> None:
        """Raise the error of the last block that could not be read."""
        if self._failure is not None:
            raise self._failure

    def send(self) -> None:
        """Send the rows of this rank to rank 0, all of them even if some cannot be read.

        Raises:
            RuntimeError, MemoryError: after the last block: rows could not be read.
        """
        for numbers, block in self._blocks(self._comm.rank):
            self._read(numbers, block)
            self._comm.send(block, 0)
        self._raise()

    def receive(self) -> Iterator[np.ndarray]:
        """Yield the rows of all ranks by blocks, on rank 0. A block is valid until the next is requested.

        All blocks must be requested, because the other ranks send their rows even if rank 0 cannot use them.

        Raises:
            RuntimeError, MemoryError: after the last block: rows of rank 0 could not be read.
        """
        for index in range(self._comm.size):
            for numbers, block in self._blocks(index):
                if index:
                    self._comm.receive(block, index)
                else:
                    self._read(numbers, block)
                yield block
        self._raise()


def distribute(
    count: int,
    numbers: np.ndarray | None,
    read: Callable[[int, np.ndarray], None],
    errors: tuple[type[Exception], ...],
    rows: Rows,
    comm: SerialComm,
    placement: Placement,
) -> None:
    """Read the rows of some clients on rank 0, and send them to the ranks that host the clients. Collective.

    Args:
        count: number of clients; ``numbers``: their numbers, ``[count]`` on all ranks; ``None`` for 0 to
            ``count - 1``.
        read: copies the rows from a position on into an array; called on rank 0.
        errors: types of the errors of ``read``, and of a device that has no memory for a block.
        rows: the client rows of this rank, which are replaced. After an error they are undefined.

    Raises:
        CollectiveError: on all ranks: the rows cannot be read, or a rank has no memory for a block.
    """
    step = min(count, max(1, MAX_BLOCK // max(1, row_bytes(rows))))
    failure: Exception | None = None  # after an error, a rank goes on, because others wait for its messages
    with collective_errors(comm, MemoryError):
        block = np.empty((step, rows.shape[1]), rows.dtype)
        part = np.empty_like(block)
    for start in range(0, count, max(1, step)):
        stop = min(start + step, count)
        clients = np.arange(start, stop) if numbers is None else numbers[start:stop]
        # A rank without clients has the edge of the next rank, which is the last one found.
        owners = np.searchsorted(placement.edges, clients, side="right") - 1
        if comm.rank == 0 and failure is None:
            try:
                read(start, block[: stop - start])
            except errors as error:
                failure = error
        for rank in np.unique(owners).tolist() if comm.rank == 0 else [comm.rank]:
            own = owners == rank
            some = part[: np.count_nonzero(own)]
            if comm.rank == 0:
                np.compress(own, block[: stop - start], axis=0, out=some)
            elif len(some):
                comm.receive(some, 0)
            if rank != comm.rank:
                comm.send(some, rank)
            elif len(some):
                try:
                    rows.write_at(clients[own] - placement.edges[rank], some)
                except errors as error:
                    failure = error
    with collective_errors(comm, *errors):
        if failure:
            raise failure
