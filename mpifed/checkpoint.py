"""Checkpoints: {config, round, records, one row per client}, one HDF5 file each, written by rank 0.

Client rows are streamed to rank 0 block by block, so rank 0 needs the memory of one block, and stream back to whatever
ranks host the clients at resumption. No random state is stored: streams have addresses.

A file is written beside its final name, synced and renamed. Chunks carry HDF5's Fletcher32 sums, every dataset a BLAKE2
digest, and the attribute ``complete`` is written last; :func:`newest` takes the newest file that passes all of these
and says which it passed over. No compression: weights do not compress.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import h5py
import numpy as np

from mpifed.comm import SerialComm
from mpifed.files import replacing
from mpifed.placement import Placement

__all__ = ["write", "newest", "read_clients", "FORMAT"]

#: Version of the file layout.
FORMAT = 1
#: Bytes of client rows in flight.
BLOCK = 64 * 2**20
#: Bytes of a chunk.
CHUNK = 2**20


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


def write(folder: Path, keep: int, header: dict, arrays: dict[str, np.ndarray], rows: np.ndarray,
          comm: SerialComm, placement: Placement) -> None:
    """Write the checkpoint of round ``header["round"]`` and drop all but the ``keep`` newest. Collective.

    Args:
        header: JSON-able values (rank 0's are written).
        arrays: whole arrays, at least one axis each (rank 0's are written).
        rows: this rank's client rows ``[C, size]``.
    """
    row_bytes = rows.shape[1] * rows.itemsize
    if comm.rank != 0:
        for start, stop in _spans(0, len(rows), row_bytes):
            comm.send(rows[start:stop], 0)
        return
    folder = Path(folder)
    with replacing(folder / f"checkpoint-{header['round']:08d}.h5") as temporary:
        with h5py.File(temporary, "w") as file:
            for name, array in arrays.items():
                _dataset(file, name, array.shape, array.dtype)[...] = array
            clients = _dataset(file, "clients", (placement.clients, rows.shape[1]), rows.dtype)
            clients[: len(rows)] = rows
            for rank in range(1, comm.size):
                mine = placement.of(rank)
                for start, stop in _spans(0, len(mine), row_bytes):
                    block = np.empty((stop - start, rows.shape[1]), rows.dtype)
                    comm.receive(block, rank)
                    clients[mine[0] + start : mine[0] + stop] = block
            for dataset in file.values():
                dataset.attrs["blake2b"] = _digest(dataset)
            file.attrs["format"] = FORMAT
            file.attrs["header"] = json.dumps(header)
            file.attrs["complete"] = True
    for old in sorted(folder.glob("checkpoint-*.h5"))[:-keep]:
        old.unlink()


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
            return json.loads(file.attrs["header"]), arrays
    except (OSError, KeyError, RuntimeError, json.JSONDecodeError) as error:
        raise ValueError(str(error)) from None


def newest(folder: Path) -> tuple[Path | None, dict, dict[str, np.ndarray], list[str]]:
    """The newest sound checkpoint of a folder.

    Returns:
        Its path (``None``: there is none), header, whole arrays, and a line for each newer file that is damaged.
    """
    complaints = []
    for path in sorted(Path(folder).glob("checkpoint-*.h5"), reverse=True):
        try:
            return path, *_load(path), complaints
        except ValueError as error:
            complaints.append(f"{path.name} is damaged ({error}); falling back to the one before it")
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
            mine = placement.of(rank)
            for start, stop in _spans(0, len(mine), row_bytes):
                comm.send(np.ascontiguousarray(clients[mine[0] + start : mine[0] + stop]), rank)
