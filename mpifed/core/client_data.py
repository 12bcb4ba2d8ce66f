"""The clients' data on the device of a rank, and how they are loaded.

All rows are concatenated by column. If not all clients participate in a round, the data of a client are
loaded when it is first stepped, unless all of them are small.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from mpifed.base.errors import ContractError
from mpifed.core.device import as_tensor
from mpifed.core.numerics import first_non_finite
from mpifed.core.problem import Problem, has_sizes, rows_of, sizes_of

__all__ = ["ClientData", "Columns", "load_client_data"]

#: Maximum size in bytes of the data of a rank's clients that are loaded at the start, although not all
#: clients participate in a round.
AT_START = 2**28

#: Number of bytes of the clients' data that are copied at a time at the start of a run, at least one client.
BLOCK_BYTES = 2**23

#: The data of a client by column, ``[n, ...]``.
Columns = tuple[torch.Tensor, ...]


class ClientData:
    """The rows of clients on the device, concatenated by column. Missing rows are loaded when needed.

    If the data of all hosted clients take at most :data:`AT_START` bytes, they are loaded, and checked, at
    the start.

    Args:
        clients: numbers of the clients.
        load: moves a tensor to the device and dtype.
        hosted: positions of the clients whose data may be loaded at the start; without any, the first client.
        kept: maximum size in bytes of the data that are kept beyond those of the clients required last.
            ``None``: the data of all hosted clients are loaded at the start.

    Attributes:
        columns: the loaded rows; ``row_bytes``: size of a row in bytes.
        is_loaded: whether each client's data are loaded; ``sizes``, ``offsets``: its number of rows and the
            number of its first row, otherwise 0.
        version: is changed when rows are removed, which changes the offsets.
    """

    def __init__(
        self,
        problem: Problem,
        clients: np.ndarray,
        load: Callable[[torch.Tensor], torch.Tensor],
        hosted: slice,
        kept: int | None,
    ):
        self._problem, self._clients, self._to_device, self._kept = problem, clients, load, kept
        self.columns: Columns = ()
        self.is_loaded = np.zeros(len(clients), dtype=bool)
        # Takes no memory until it is written to; the numbers of a client are adjacent.
        self.sizes, self.offsets = np.zeros((len(clients), 2), dtype=np.int64).T
        self.version = self._rows = self._count = 0
        self._loaded: list[np.ndarray] = []
        start, stop, _ = hosted.indices(len(clients))
        first = np.arange(start, stop) if start < stop else np.arange(len(clients))[:1]
        self._load(first, math.inf if kept is None else AT_START)

    @property
    def row_bytes(self) -> int:
        return sum(column[:1].nbytes for column in self.columns)

    @property
    def is_complete(self) -> bool:
        """Whether the data of all clients are loaded."""
        return self._count == len(self._clients)

    def require(self, positions: np.ndarray) -> None:
        """Load the data of the clients at ``positions`` that are missing.

        If there is no space for them, the data of all other clients are removed.
        """
        missing = np.unique(positions[~self.is_loaded[positions]])
        if not len(missing):
            return
        mean = self._rows / max(1, self._count)
        if self._kept is not None and (self._rows + len(missing) * mean) * self.row_bytes > self._kept:
            self._remove()
            missing = np.unique(positions)
        self._load(missing)

    def _load(self, positions: np.ndarray, limit: float = math.inf) -> None:
        columns, sizes = load_client_data(self._problem, self._clients[positions], self._to_device, limit)
        if len(sizes) < len(positions):
            positions = positions[: len(sizes)].copy()  # no view, which would keep all positions
        shapes = [[list(column.shape[1:]) for column in group] for group in (columns, self.columns)]
        if self._rows and shapes[0] != shapes[1]:
            raise ContractError(
                f"{type(self._problem).__name__}: client_data({self._clients[positions[0]]}) has columns "
                f"with rows of shape {shapes[0]}: expected {shapes[1]}, as the clients before"
            )
        start, self._rows = self._rows, self._rows + int(sizes.sum())
        self.sizes[positions], self.offsets[positions] = sizes, start + np.cumsum(sizes) - sizes
        self.is_loaded[positions] = True
        self._loaded.append(positions)
        self._count += len(positions)
        if not start:
            self._columns = self.columns = columns
            return
        self._columns = tuple(
            _with_capacity(column, new, self._rows) for column, new in zip(self._columns, columns)
        )
        for column, new in zip(self._columns, columns):
            column[start : self._rows] = new
        self.columns = tuple(column[: self._rows] for column in self._columns)

    def _remove(self) -> None:
        for positions in self._loaded:
            self.is_loaded[positions] = False
            self.sizes[positions] = self.offsets[positions] = 0
        self._rows, self._count, self._loaded, self.columns = 0, 0, [], ()
        self.version += 1


def load_client_data(
    problem: Problem,
    clients: np.ndarray,
    load: Callable[[torch.Tensor], torch.Tensor],
    limit: float = math.inf,
) -> tuple[Columns, np.ndarray]:
    """Return the rows of all clients, concatenated by column, and the number of rows per client ``[C]``.

    The rows of many clients at a time are copied into preallocated columns, so that the peak memory is close
    to the size of the data. They come from ``client_rows``, or without it from ``client_data`` or
    ``full_batch`` of each client.

    Args:
        load: moves a tensor to the device and dtype.
        limit: maximum size in bytes of the data of all clients, estimated by the first client. If it is
            exceeded, only the first client is loaded.

    Raises:
        ContractError: the columns of the clients differ, or a value is not finite.
    """
    columns: Columns = ()
    sizes, end, stop = np.zeros(len(clients), dtype=np.int64), 0, 0
    told = functools.cache(lambda: sizes_of(problem, clients) if has_sizes(problem) else None)
    for rows, counts in _blocks(problem, clients, told):
        first, stop = stop, stop + len(counts)
        sizes[first:stop] = counts
        block = tuple(map(load, rows))
        _expect_finite(problem, block, clients[first:stop], counts)
        if not first and len(clients) * sum(column.nbytes for column in block) > limit:
            return tuple(column.clone() for column in block), sizes[:1]
        if block and not columns:
            # Without sizes, the total is estimated by the first client.
            expected = int(sizes[0]) * len(clients) if (of := told()) is None else int(of.sum())
            columns = tuple(column.new_empty((expected, *column.shape[1:])) for column in block)
        start, end = end, end + int(counts.sum())
        columns = tuple(_with_capacity(column, new, end) for column, new in zip(columns, block))
        for column, new in zip(columns, block):
            column[start:end] = new
    return tuple(column[:end] for column in columns), sizes


def _blocks(
    problem: Problem, clients: np.ndarray, told: Callable[[], np.ndarray | None]
) -> Iterator[tuple[Columns, np.ndarray]]:
    """Yield the data of the clients, or the full batches of a problem that generates samples, by blocks: the
    concatenated columns, and the number of rows of each client of the block.

    The first block is that of the first client, the others have about :data:`BLOCK_BYTES`.

    Args:
        told: returns the expected number of rows per client ``[C]``; ``None`` if unknown.

    Raises:
        ContractError: the columns of the clients differ.
    """
    if len(clients) and (rows := rows_of(problem, clients[:1])) is not None:
        yield from _blocks_of_several(problem, clients, told, rows)
        return
    for batches in _blocks_of_each(problem, clients):
        counts = [len(batch[0]) if batch else 0 for batch in batches]
        yield tuple(torch.cat(parts) for parts in zip(*batches)), np.array(counts, dtype=np.int64)


def _blocks_of_several(
    problem: Problem, clients: np.ndarray, told: Callable[[], np.ndarray | None], rows: Any
) -> Iterator[tuple[Columns, np.ndarray]]:
    """Yield blocks from ``client_rows``, the first of which are the ``rows`` of the first client."""
    shapes: list[Any] = []
    first, stop, loaded, nbytes = 0, 1, 0, 0
    ends = None
    while True:
        columns, counts = tuple(map(as_tensor, rows[0])), np.asarray(rows[1], dtype=np.int64)
        shapes = shapes or [column.shape[1:] for column in columns]
        expected = [[int(counts.sum()), *shape] for shape in shapes]
        if counts.shape != (stop - first,) or [[*column.shape] for column in columns] != expected:
            raise ContractError(
                f"{type(problem).__name__}: client_rows() of {stop - first} clients from {clients[first]} on "
                f"returned columns of shapes {[[*column.shape] for column in columns]} and sizes of shape "
                f"{[*counts.shape]}: expected {expected} and [{stop - first}]"
            )
        yield columns, counts
        if stop == len(clients):
            return
        loaded, nbytes = loaded + int(counts.sum()), nbytes + sum(column.nbytes for column in columns)
        share, first = BLOCK_BYTES / max(nbytes, 1), stop  # of the bytes so far
        if stop == 1 and (sizes := told()) is not None:
            ends = np.cumsum(sizes)
        if ends is None:
            stop += int(share * stop)
        else:
            stop = int(np.searchsorted(ends, ends[first - 1] + share * loaded, side="right"))
        stop = min(max(stop, first + 1), len(clients))
        rows = rows_of(problem, clients[first:stop])


def _blocks_of_each(problem: Problem, clients: np.ndarray) -> Iterator[list[Columns]]:
    """Yield the data of the clients of each block from ``client_data`` or ``full_batch``."""
    block: list[Columns] = []
    expected, size = None, 0
    for position, client in enumerate(clients.tolist()):
        batch = tuple(map(as_tensor, problem.client_data(client) or problem.full_batch(client) or ()))
        shapes = [column.shape[1:] for column in batch]
        expected = shapes if expected is None else expected
        if shapes != expected:
            raise ContractError(
                f"{type(problem).__name__}: client_data({client}) has columns with rows of shape "
                f"{list(map(list, shapes))}: expected {list(map(list, expected))}, as "
                f"client_data({clients[0]})"
            )
        size += sum(column.nbytes for column in batch)
        if position and size < BLOCK_BYTES:
            block.append(tuple(column.clone() for column in batch))  # a user may fill the arrays again
        else:
            yield [*block, batch]
            block, size = [], 0
    if block:
        yield block


def _expect_finite(problem: Problem, block: Columns, clients: np.ndarray, sizes: np.ndarray) -> None:
    """Check the rows of some clients.

    Raises:
        ContractError: a value is not finite; names the first one of the first client that has one.
    """
    places = [(index, number) for number, column in enumerate(block) if (index := first_non_finite(column))]
    if places:
        ends = np.cumsum(sizes)
        client, index, number = min(
            (int(np.searchsorted(ends, index[0], side="right")), index, number) for index, number in places
        )
        row = index[0] - int(ends[client] - sizes[client])
        raise ContractError(
            f"{type(problem).__name__}: client_data({clients[client]}) has {block[number][index].item()} in "
            f"row {row} of column {number}: expected finite numbers"
        )


def _with_capacity(column: torch.Tensor, new: torch.Tensor, rows: int) -> torch.Tensor:
    """Return ``column`` with space for ``rows`` rows and a dtype to which ``new`` can be cast."""
    missing = rows - len(column)
    if missing <= 0 and torch.promote_types(column.dtype, new.dtype) == column.dtype:
        return column
    more = max(missing, len(column) // 2) if missing > 0 else 0
    return torch.cat([column, new.new_empty((more, *new.shape[1:]))])
