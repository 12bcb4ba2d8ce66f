"""Checkpoints: {config, round, records, one row per client}, one HDF5 file each, written by rank 0.

Client rows are streamed to rank 0 block by block, so rank 0 needs the memory of one block, and stream back to whatever
ranks host the clients at resumption. No random state is stored: streams have addresses.

A file is written beside its final name, synced and renamed. Chunks carry HDF5's Fletcher32 sums, every dataset and the
header a BLAKE2 digest, and the attribute ``complete`` is written last; :func:`newest` takes the newest file that passes all of these
and says which it passed over. No compression: weights do not compress.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np

from mpifed.comm import SerialComm
from mpifed.files import replacing
from mpifed.placement import Placement

__all__ = ["write", "newest", "read_clients", "FORMAT"]

#: Version of the file layout.
FORMAT = 2
#: Bytes of client rows in flight.
BLOCK = 64 * 2**20
#: Bytes of a chunk.
CHUNK = 2**20
#: Bytes that must stay free beside a checkpoint's data: chunks are stored whole, and HDF5 keeps its own books.
MARGIN = 4 * 2**20


def _dataset(file: h5py.File, name: str, shape: tuple[int, ...], dtype) -> h5py.Dataset:
    """An empty dataset in chunks with Fletcher32 sums (neither where there are no elements)."""
    if 0 in shape or not shape:
        return file.create_dataset(name, shape, dtype)
    left = CHUNK // np.dtype(dtype).itemsize
    chunks = []
    for length in reversed(shape):
        chunks.insert(0, max(1, min(length, left)))
        left //= chunks[0]
    return file.create_dataset(name, shape, dtype, chunks=tuple(chunks), fletcher32=True)


def _spans(first: int, last: int, row_bytes: int):
    """``first:last`` in pieces of at most ``BLOCK`` bytes."""
    step = max(1, BLOCK // max(1, row_bytes))
    return ((start, min(start + step, last)) for start in range(first, last, step))


def _digest(dataset: h5py.Dataset) -> str:
    digest = hashlib.blake2b(digest_size=16)
    if dataset.ndim == 0 or not dataset.size:
        return digest.hexdigest()
    for start, stop in _spans(0, len(dataset), dataset.nbytes // len(dataset)):
        digest.update(dataset[start:stop].tobytes())
    return digest.hexdigest()


def _text_digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def write(folder: Path, keep: int, header: dict, arrays: dict[str, np.ndarray], rows: np.ndarray,
          comm: SerialComm, placement: Placement) -> None:
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
    for old in [path for path in sorted(final.parent.glob("checkpoint-*.h5")) if path <= final][:-keep]:
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
    free = shutil.disk_usage(folder).free
    if free < needed + MARGIN:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {needed:,} bytes needed, {free:,} free")


def _fill(path: Path, header: dict, arrays: dict[str, np.ndarray], blocks, shape: tuple[int, int], dtype) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            _dataset(file, name, array.shape, array.dtype)[...] = array
        clients = _dataset(file, "clients", shape, dtype)
        for start, block in blocks:
            clients[start : start + len(block)] = block
        for dataset in file.values():
            dataset.attrs["blake2b"] = _digest(dataset)
        file.attrs["format"] = FORMAT
        text = json.dumps(header)
        file.attrs["header"], file.attrs["blake2b"] = text, _text_digest(text)
        file.attrs["complete"] = True


def _load(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Header and whole arrays of a file; the client rows are only compared with their digest.

    Raises:
        ValueError: the file is truncated, altered, incomplete or of another format.
    """
    try:
        with h5py.File(path, "r") as file:
            if not file.attrs.get("complete", False):
                raise ValueError("it was never completed")
            if file.attrs["format"] != FORMAT:
                raise ValueError(f"its format is {file.attrs['format']}, expected {FORMAT}")
            for name, dataset in file.items():
                if _digest(dataset) != dataset.attrs["blake2b"]:
                    raise ValueError(f"dataset {name!r} does not match its digest")
            arrays = {name: dataset[...] for name, dataset in file.items() if name != "clients"}
            text = file.attrs["header"]
            if _text_digest(text) != file.attrs["blake2b"]:
                raise ValueError("its header does not match its digest")
            return json.loads(text), arrays
    except (OSError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None


def newest(folder: Path) -> tuple[Path | None, dict, dict[str, np.ndarray], list[str]]:
    """The newest sound checkpoint of a folder.

    Returns:
        Its path (``None``: there is none), header, whole arrays, and a line for each newer file that is damaged or foreign.
    """
    complaints = []
    for path in sorted(Path(folder).glob("checkpoint-*.h5"), reverse=True):
        try:
            return path, *_load(path), complaints
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
    with h5py.File(path, "r") as file:
        clients = file["clients"]
        rows[...] = clients[: len(rows)]
        for rank in range(1, comm.size):
            for start, stop in _spans(*placement.edges[rank : rank + 2], row_bytes):
                comm.send(np.ascontiguousarray(clients[start:stop]), rank)
