"""Checkpoints: {config, round, records, one row per client}, one HDF5 file each, written by rank 0.

Client rows are streamed to rank 0 block by block, so rank 0 needs the memory of one block, and stream back to
whatever ranks host the clients at resumption. No random state is stored: streams have addresses.

A file is written under a temporary name, sealed with a digest of its bytes (:mod:`mpifed.storage.sealed`),
synced and renamed; :func:`newest` takes the newest file whose digest holds and says which it passed over. No
compression: weights do not compress.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from mpifed.parallel.comm import SerialComm
from mpifed.parallel.placement import Placement
from mpifed.storage.atomic import replacing, shielded
from mpifed.storage.ownership import MAGIC, checkpoints, is_own
from mpifed.storage.sealed import SEAL, expect_seal, opened, seal

__all__ = ["write", "newest", "read_clients", "FORMAT"]

#: Version of the file layout.
FORMAT = 3
#: Bytes of client rows in flight.
BLOCK = 64 * 2**20
#: Bytes that must stay free in addition to a checkpoint's data, for HDF5's metadata.
MARGIN = 4 * 2**20
#: Validates the content of a file.
Expect = Callable[[dict, dict[str, np.ndarray], tuple | None], None]


def _spans(first: int, last: int, row_bytes: int):
    """``first:last`` in pieces of at most ``BLOCK`` bytes."""
    step = max(1, BLOCK // max(1, row_bytes))
    return ((start, min(start + step, last)) for start in range(first, last, step))


def write(
    folder: Path,
    keep: int,
    header: dict,
    arrays: dict[str, np.ndarray],
    rows: np.ndarray,
    comm: SerialComm,
    placement: Placement,
) -> None:
    """Write the checkpoint of round ``header["round"]`` and drop all but the ``keep`` newest. Collective.

    A disk that is full leaves the older checkpoints as they are, and no rank waiting.

    Args:
        header: JSON-able values (rank 0's are written).
        arrays: whole arrays, at least one axis each (rank 0's are written).
        rows: this rank's client rows ``[C, size]``.

    Raises:
        OSError, RuntimeError: on rank 0: the file cannot be written.
    """
    row_bytes = rows.shape[1] * rows.itemsize
    if comm.rank != 0:
        for start, stop in _spans(0, len(rows), row_bytes):
            comm.send(rows[start:stop], 0)
        return
    final = Path(folder) / f"checkpoint-{header['round']:08d}.h5"
    blocks = _arriving(rows, comm, placement)
    try:
        needed = sum(array.nbytes for array in arrays.values()) + placement.clients * row_bytes
        _room(final.parent, needed)
        with replacing(final) as temporary:
            _fill(temporary, header, arrays, blocks, (placement.clients, rows.shape[1]), rows.dtype)
    finally:
        for _ in blocks:  # the other ranks send whatever happens here
            pass
    # A file of a later round could not be continued from: it must not push out this one.
    done = [path for path in checkpoints(final.parent) if path.name <= final.name and is_own(path)]
    for old in done[:-keep]:
        old.unlink(missing_ok=True)


def _arriving(rows: np.ndarray, comm: SerialComm, placement: Placement):
    """Client rows as they come to rank 0: the number of the first one, and the rows."""
    yield 0, rows
    for rank in range(1, comm.size):
        for start, stop in _spans(*placement.edges[rank : rank + 2], rows.shape[1] * rows.itemsize):
            block = np.empty((stop - start, rows.shape[1]), rows.dtype)
            comm.receive(block, rank)
            yield start, block


def _room(folder: Path, needed: int) -> None:
    """Refuse a file that cannot fit before HDF5 meets the end of the disk half way."""
    free, needed = shutil.disk_usage(folder).free, needed + MARGIN
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)}: {needed:,} bytes needed, {MARGIN:,} of them to spare, {free:,} "
            "free",
        )


def _fill(
    path: Path, header: dict, arrays: dict[str, np.ndarray], blocks, shape: tuple[int, int], dtype
) -> None:
    with shielded(path) as target, h5py.File(target, "w", userblock_size=SEAL) as file:
        for name, array in arrays.items():
            file[name] = array
        clients = file.create_dataset("clients", shape, dtype)
        for start, block in blocks:
            clients[start : start + len(block)] = block
        file.attrs["header"] = json.dumps(header)
    seal(path, MAGIC, FORMAT)


def _load(path: Path, expect: Expect | None) -> tuple[dict, dict[str, np.ndarray]]:
    """Header and whole arrays of a file.

    Raises:
        ValueError: it is damaged, cannot be read, or is not as expected.
    """
    try:
        with opened(path, lambda file: expect_seal(file, MAGIC, FORMAT)) as file:
            header = json.loads(file.attrs["header"])
            arrays = {name: dataset[...] for name, dataset in file.items() if name != "clients"}
            rows = file.get("clients")
            clients = (rows.shape, rows.dtype) if isinstance(rows, h5py.Dataset) else None
    except (AttributeError, IndexError, KeyError, TypeError) as error:  # no header, a group for an array
        raise ValueError(f"unexpected content: {error}") from None
    except (OSError, RuntimeError) as error:
        raise ValueError(str(error)) from None
    if expect:
        expect(header, arrays, clients)
    return header, arrays


def newest(
    folder: Path, expect: Expect | None = None
) -> tuple[Path | None, dict, dict[str, np.ndarray], list[str]]:
    """The newest sound checkpoint of a folder.

    Args:
        expect: raises a ValueError unless header, whole arrays, and shape and type of the clients' rows are
            as they should be.

    Returns:
        Its path (``None``: there is none), header, whole arrays, and a line for each newer file that is
        damaged or foreign.
    """
    complaints = []
    for path in reversed(checkpoints(folder)):
        try:
            return path, *_load(path, expect), complaints
        except ValueError as error:
            complaints.append(f"{path.name} cannot be used ({error}); falling back to the one before it")
    return None, {}, {}, complaints


def read_clients(path: Path | None, rows: np.ndarray, comm: SerialComm, placement: Placement) -> None:
    """Fill ``rows`` with this rank's clients from a checkpoint that rank 0 reads. Collective."""
    row_bytes = rows.shape[1] * rows.itemsize
    if comm.rank != 0:
        for start, stop in _spans(0, len(rows), row_bytes):
            comm.receive(rows[start:stop], 0)
        return
    with opened(path) as file:
        clients = file["clients"]
        rows[...] = clients[: len(rows)]
        for rank in range(1, comm.size):
            for start, stop in _spans(*placement.edges[rank : rank + 2], row_bytes):
                comm.send(np.ascontiguousarray(clients[start:stop]), rank)
