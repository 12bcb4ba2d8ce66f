"""Checkpoints: HDF5 files, written by rank 0, with a header, the shared records and one row per client.

Rank 0 receives the client rows block by block, so it needs memory for one block. When the run is resumed, it
sends them to the ranks that host the clients. No state of random number generators is stored, because a
random number depends only on its address (seed, purpose, client, round).

A file is written under a temporary name, completed with a digest of its bytes (:mod:`mpifed.storage.hdf5`),
synced and renamed. :func:`newest` returns the newest file with a valid digest. Weights are not compressed,
because compression does not make them smaller.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import h5py
import numpy as np

from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.parallel.placement import Placement
from mpifed.storage.files import CHECKPOINT_MAGIC, checkpoints, is_own, replacing
from mpifed.storage.hdf5 import create, expect_digest, open_untrusted

__all__ = ["load", "newest", "read_clients", "write", "FORMAT"]

#: Format number. The header and the arrays of a format never change.
FORMAT = 5
#: Maximum size of a block of client rows in bytes.
MAX_BLOCK = 64 * 2**20
#: Bytes that must remain free in addition to a checkpoint's data, for HDF5's metadata.
MARGIN = 4 * 2**20
#: Function that validates the header, the whole arrays, and the shape and dtype of the client rows.
Validator = Callable[[dict, dict[str, np.ndarray], tuple | None], None]


class Rows(Protocol):
    """The client rows of a rank, wherever they are stored."""

    shape: tuple[int, int]
    dtype: np.dtype

    def read(self, first: int, rows: np.ndarray) -> None:
        """Copy the rows from ``first`` on into ``rows``."""

    def write(self, first: int, rows: np.ndarray) -> None:
        """Replace the rows from ``first`` on."""


def _row_bytes(rows: Rows) -> int:
    return rows.shape[1] * rows.dtype.itemsize


def write(
    folder: Path,
    keep: int,
    header: dict,
    arrays: dict[str, np.ndarray],
    rows: Rows,
    comm: SerialComm,
    placement: Placement,
) -> None:
    """Write the checkpoint of round ``header["round"]`` and remove all but the ``keep`` newest. Collective.

    If the disk is full, the older checkpoints remain. Rank 0 receives all rows even if it cannot write them,
    so no rank is left waiting.

    Args:
        header: JSON-able values (those of rank 0 are written).
        arrays: whole arrays with at least one axis (those of rank 0 are written).
        rows: the client rows of this rank.

    Raises:
        OSError, RuntimeError: on rank 0: the file cannot be written.
        CollectiveError: on all ranks: rank 0 has no memory for a block.
    """
    buffer = _buffer(rows, comm, placement)
    if comm.rank != 0:
        for start, block in _blocks(comm.rank, rows, buffer, placement):
            rows.read(start - placement.edges[comm.rank], block)
            comm.send(block, 0)
        return
    final = Path(folder) / f"checkpoint-{header['round']:08d}.h5"
    blocks = _receive(rows, buffer, comm, placement)
    try:
        whole = sum(array.nbytes for array in arrays.values())
        _expect_space(final.parent, whole + placement.clients * _row_bytes(rows))
        with replacing(final) as temporary, create(temporary, CHECKPOINT_MAGIC, FORMAT) as file:
            for name, array in arrays.items():
                file[name] = array
            clients = file.create_dataset("clients", (placement.clients, rows.shape[1]), rows.dtype)
            for start, block in blocks:
                clients[start : start + len(block)] = block
            file.attrs["header"] = json.dumps(header)
    finally:
        for _ in blocks:  # the other ranks send their rows even if rank 0 fails
            pass
    # A checkpoint of a later round must be damaged, since the run did not continue from it: do not count it.
    previous = [path for path in checkpoints(final.parent) if path.name <= final.name and is_own(path)]
    for old in previous[:-keep]:
        old.unlink(missing_ok=True)


def _spans(rank: int, rows: Rows, placement: Placement) -> list[tuple[int, int]]:
    """Split the clients of a rank into ranges of at most :data:`MAX_BLOCK` bytes."""
    (first, last), step = placement.edges[rank : rank + 2], max(1, MAX_BLOCK // max(1, _row_bytes(rows)))
    return [(start, min(start + step, last)) for start in range(first, last, step)]


def _buffer(rows: Rows, comm: SerialComm, placement: Placement) -> np.ndarray:
    """Return memory for the largest block of rows that this rank sends or receives. Collective.

    It is allocated before any rank sends or receives a block, so that nothing fails between two blocks.
    """
    with collective_errors(comm, MemoryError):
        ranks = range(comm.size) if comm.rank == 0 else [comm.rank]
        spans = (span for rank in ranks for span in _spans(rank, rows, placement))
        largest = max((stop - start for start, stop in spans), default=0)
        return np.empty((largest, rows.shape[1]), rows.dtype)


def _blocks(rank: int, rows: Rows, buffer: np.ndarray, placement: Placement):
    """Yield the first client of each block of a rank, and memory for its rows."""
    return ((start, buffer[: stop - start]) for start, stop in _spans(rank, rows, placement))


def _receive(rows: Rows, buffer: np.ndarray, comm: SerialComm, placement: Placement):
    """Yield the client rows of all ranks on rank 0, as pairs of the first client number and a block.

    A block is valid until the next one is requested.
    """
    for rank in range(comm.size):
        for start, block in _blocks(rank, rows, buffer, placement):
            if rank == 0:
                rows.read(start, block)
            else:
                comm.receive(block, rank)
            yield start, block


def _deliver(rows: Rows, buffer: np.ndarray, comm: SerialComm, placement: Placement):
    """Yield the first client number of each block of all ranks and memory to fill, on rank 0.

    A block is stored or sent when the next one is requested.
    """
    for rank in range(comm.size):
        for start, block in _blocks(rank, rows, buffer, placement):
            yield start, block
            if rank == 0:
                rows.write(start, block)
            else:
                comm.send(block, rank)


def _expect_space(folder: Path, needed: int) -> None:
    """Raise an :class:`OSError` if a file of ``needed`` bytes does not fit on the disk."""
    free, needed = shutil.disk_usage(folder).free, needed + MARGIN
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)}: {needed:,} bytes needed, including a margin of {MARGIN:,}; "
            f"{free:,} free",
        )


def load(path: Path, validate: Validator | None) -> tuple[dict, dict[str, np.ndarray]]:
    """Return the header and the whole arrays of a file.

    Raises:
        ValueError: the file is damaged, cannot be read, or has unexpected content.
    """
    try:
        with open_untrusted(path, lambda file: expect_digest(file, CHECKPOINT_MAGIC, FORMAT)) as file:
            header = json.loads(file.attrs["header"])
            arrays = {name: dataset[...] for name, dataset in file.items() if name != "clients"}
            rows = file.get("clients")
            clients = (rows.shape, rows.dtype) if isinstance(rows, h5py.Dataset) else None
    except (AttributeError, IndexError, KeyError, TypeError) as error:  # no header, or a group for an array
        raise ValueError(f"unexpected content: {error}") from None
    except (OSError, RuntimeError) as error:
        raise ValueError(str(error)) from None
    if validate:
        validate(header, arrays, clients)
    return header, arrays


def newest(
    folder: Path, validate: Validator | None = None
) -> tuple[Path | None, dict, dict[str, np.ndarray], list[str]]:
    """Find the newest valid checkpoint of a folder.

    Args:
        validate: raises a ValueError unless the content is as expected.

    Returns:
        The path (``None`` if there is no valid checkpoint), the header, the whole arrays, and one line per
        newer file that is damaged or does not have the expected content.
    """
    errors = []
    for path in reversed(checkpoints(folder)):
        try:
            return path, *load(path, validate), errors
        except ValueError as error:
            errors.append(f"{path.name} cannot be used ({error}); trying the previous checkpoint")
    return None, {}, {}, errors


def read_clients(path: Path | None, rows: Rows, comm: SerialComm, placement: Placement) -> None:
    """Fill ``rows`` with the clients of this rank from a checkpoint that rank 0 reads. Collective.

    Rank 0 sends blocks to all ranks even if it cannot read them, so no rank is left waiting; the rows are
    then undefined.

    Raises:
        OSError, RuntimeError, ValueError, KeyError: on rank 0: the file cannot be read.
        CollectiveError: on all ranks: rank 0 has no memory for a block.
    """
    buffer = _buffer(rows, comm, placement)
    if comm.rank != 0:
        for start, block in _blocks(comm.rank, rows, buffer, placement):
            comm.receive(block, 0)
            rows.write(start - placement.edges[comm.rank], block)
        return
    blocks = _deliver(rows, buffer, comm, placement)
    try:
        with open_untrusted(path) as file:
            for start, block in blocks:
                block[...] = file["clients"][start : start + len(block)]
    finally:
        for _ in blocks:  # the other ranks receive their rows even if rank 0 fails
            pass
