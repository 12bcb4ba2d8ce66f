"""Checkpoints: HDF5 files with a header, the shared records and one row per client.

If the rows of all clients change between two checkpoints and all ranks are on one node, a checkpoint is one
file, ``checkpoint-ROUND.h5``, written by rank 0. Otherwise the client rows are in the files of its parts,
``checkpoint-ROUND-part-NUMBER.h5``. A part contains rows of clients of one node, and is written by the first
rank of the node. The file of the checkpoint lists its parts with their sizes and digests: parts with the rows
of all clients, then parts with the rows that have changed since, in the order in which they were written. A
later part replaces rows of earlier ones. All rows are written again when the parts with changed rows would
have more rows than there are clients, or after :data:`MAX_INCREMENTS` checkpoints. A part is removed when no
checkpoint lists it. With K checkpoints kept, the parts have at most K + 1 rows per client, and one more while
a checkpoint is written.

A file is written under a temporary name, completed with a digest of its bytes (:mod:`mpifed.storage.hdf5`),
synced and renamed. The names of parts are not used twice, and they are written before the checkpoint that
lists them, so a process that is killed leaves the previous checkpoints intact. :func:`newest` returns the
newest checkpoint of which all digests are valid. Weights are not compressed, because compression does not
make them smaller. No state of random number generators is stored, because a random number depends only on
its address (seed, purpose, client, round).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import h5py
import numpy as np

from mpifed.parallel.comm import CollectiveError, SerialComm, collective_errors, gather_rows
from mpifed.parallel.nodes import Nodes
from mpifed.parallel.placement import Placement
from mpifed.storage.client_rows import Gathering, Rows, distribute, row_bytes
from mpifed.storage.files import (
    CHECKPOINT_MAGIC,
    PART_MAGIC,
    checkpoints,
    is_own,
    is_part,
    parts_of_checkpoints,
    replacing,
)
from mpifed.storage.hdf5 import BlockDigests, create, digest_line, expect_digest, open_untrusted

__all__ = ["Parts", "load", "newest", "read_clients", "write", "FORMAT"]

#: Format number. The header and the arrays of a format never change.
FORMAT = 6
#: Bytes that must remain free in addition to a checkpoint's data, for HDF5's metadata.
MARGIN = 4 * 2**20
#: Maximum number of successive checkpoints that write only changed rows.
MAX_INCREMENTS = 100
#: Data sets of a checkpoint that are not whole arrays.
_ROWS, _PARTS = "clients", "parts"
#: Errors of a rank that writes a file. HDF5 raises an OSError or a RuntimeError.
_ERRORS = (OSError, RuntimeError, MemoryError)
#: Function that validates the header, the whole arrays, and the shape and dtype of the client rows.
Validator = Callable[[dict, dict[str, np.ndarray], tuple | None], None]


class Part(NamedTuple):
    """A file with the rows of some clients, as a checkpoint lists it.

    Attributes:
        size: in bytes.
        digest: the line of the file with its digest.
    """

    name: str
    size: int
    digest: str


class Parts:
    """The parts of the newest checkpoint of a run, of which the next checkpoint may list some again.

    Args:
        comm: all ranks. The constructor is collective.
        folder: of the run.

    Attributes:
        comm: the ranks whose rows are written by the first of them: those of a node, or all ranks if the
            nodes do not have the same folder.
        ranks: their numbers among all ranks.
        index: number of the node.
        newest: on rank 0, the parts of the newest checkpoint, in the order in which they were written.
        increments, rows: on rank 0, the number of successive checkpoints that have written only changed rows,
            and the number of these rows.
        listed: on rank 0, the names of the parts that a checkpoint lists, by the name of the checkpoint.
    """

    def __init__(self, comm: SerialComm, folder: Path):
        node = Nodes.from_comm(comm).node
        nodes = gather_rows(comm, np.array([[comm.node, _identity(folder) if node.rank == 0 else -1]]))
        is_shared = len({*nodes[:, 1].tolist()} - {-1}) == 1
        self.comm = node if is_shared else comm
        self.ranks = gather_rows(self.comm, np.array([[comm.rank]]))[:, 0].tolist()
        self.index = int(np.searchsorted(np.unique(nodes[:, 0]), comm.node)) if is_shared else 0
        self.newest: list[Part] = []
        self.increments = self.rows = 0
        self.listed: dict[str, set[str]] = {}

    def may_grow(self, folder: Path, changed: int, clients: int) -> bool:
        """Return whether the next checkpoint writes only the ``changed`` of all rows. Rank 0."""
        is_small = changed < clients and self.rows + changed <= clients
        if not self.newest or not is_small or self.increments == MAX_INCREMENTS:
            return False
        return all(_has_size(folder / part.name, part.size) for part in self.newest)

    def add(self, new: list[Part], rows: int, grows: bool) -> None:
        """Record that the next checkpoint has written ``rows`` changed rows, or all rows. Rank 0."""
        self.newest = [*self.newest, *new] if grows else new
        self.increments, self.rows = (self.increments + bool(new), self.rows + rows) if grows else (0, 0)


def _identity(folder: Path) -> int:
    """Return a number that all nodes see if a folder is on a shared file system; -2 if there is no folder."""
    try:
        return os.stat(folder).st_ino
    except OSError:
        return -2


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def write(
    folder: Path,
    keep: int,
    header: dict,
    arrays: dict[str, np.ndarray],
    rows: Rows,
    comm: SerialComm,
    placement: Placement,
    parts: Parts | None = None,
    changed: np.ndarray | None = None,
) -> None:
    """Write the checkpoint of round ``header["round"]`` and remove all but the ``keep`` newest. Collective.

    If the disk is full, the older checkpoints remain. A rank that writes a file receives all of its rows even
    if it cannot write them, so no rank is left waiting.

    Args:
        header: JSON-able values (those of rank 0 are written).
        arrays: whole arrays with at least one axis (those of rank 0 are written).
        rows: the client rows of this rank.
        parts: the parts of the previous checkpoint, replaced by those of this one; ``None`` to write the rows
            into the file of the checkpoint.
        changed: whether the row of each client may have changed since the previous checkpoint, ``[N]``, equal
            on all ranks. Default: all may.

    Raises:
        OSError, RuntimeError: on rank 0: the file of the checkpoint cannot be written or read.
        CollectiveError: on all ranks: a part cannot be written, or a rank has no memory for a block.
    """
    final = Path(folder) / f"checkpoint-{header['round']:08d}.h5"
    if parts is not None:
        _write_with_parts(final, header, arrays, rows, comm, placement, parts, changed)
    else:
        _write_one_file(final, header, arrays, Gathering(rows, comm, placement, comm, range(comm.size)))
    if comm.rank == 0:
        _remove_old(final, keep, {final.name: set()} if parts is None else parts.listed)


def _write_one_file(final: Path, header: dict, arrays: dict[str, np.ndarray], gathering: Gathering) -> None:
    with _gathered(gathering) as blocks:
        if blocks is not None:
            _expect_space(final.parent, _size(arrays) + gathering.count * row_bytes(gathering.rows))
            with _new_file(final, CHECKPOINT_MAGIC) as file:
                _write_head(file, header, arrays)
                _write_rows(file, blocks, gathering)


def _write_with_parts(
    final: Path,
    header: dict,
    arrays: dict[str, np.ndarray],
    rows: Rows,
    comm: SerialComm,
    placement: Placement,
    parts: Parts,
    changed: np.ndarray | None,
) -> None:
    """Write parts with the changed rows, or with all rows, and then the checkpoint. Collective.

    Raises:
        CollectiveError: on all ranks: a file cannot be written, or a rank has no memory for a block.
    """
    plan = np.zeros(2, dtype=np.int64)
    with collective_errors(comm, OSError):
        if comm.rank == 0:
            if not parts.newest:  # a process that was killed may have left parts
                _remove_unlisted(final, parts.listed)
            clients = placement.clients
            count = clients if changed is None else np.count_nonzero(changed)
            grows = parts.may_grow(final.parent, count, clients)
            plan[:] = grows, _first_unused(final)
            size_of_row = row_bytes(rows) + np.dtype(np.int64).itemsize
            _expect_space(final.parent, _size(arrays) + (count if grows else clients) * size_of_row)
    comm.bcast_(plan)
    grows, first = plan.tolist()
    gathering = Gathering(rows, comm, placement, parts.comm, parts.ranks, changed if grows else None)
    path = _part(final, first + parts.index)
    try:
        with collective_errors(comm, *_ERRORS):
            entry = _write_part(path, gathering)
        entries = gather_rows(comm, np.array([[parts.index, *entry]]))
        with collective_errors(comm, *_ERRORS):
            if comm.rank == 0:
                new = [
                    Part(_part(final, first + index).name, size, _digest_text(*digest))
                    for index, size, *digest in entries.tolist()
                    if size
                ]
                _expect_visible(final.parent, new)
                listed = [*parts.newest, *new] if grows else new
                with _new_file(final, CHECKPOINT_MAGIC) as file:
                    _write_head(file, header, arrays)
                    text = json.dumps({"clients": placement.clients, "files": listed})
                    file[_PARTS] = np.frombuffer(text.encode(), dtype=np.uint8)
                parts.add(new, count, bool(grows))
                parts.listed[final.name] = {part.name for part in listed}
    except CollectiveError:
        if parts.comm.rank == 0:  # no checkpoint lists the part
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise


def _part(checkpoint: Path, number: int) -> Path:
    return checkpoint.with_name(f"{checkpoint.stem}-part-{number}.h5")


def _first_unused(checkpoint: Path) -> int:
    """Return a number such that this and larger numbers are not used by parts of a checkpoint's round."""
    own = [path for path in parts_of_checkpoints(checkpoint.parent) if path.name.startswith(checkpoint.stem)]
    return 1 + max((int(path.stem.rpartition("-")[2]) for path in own), default=-1)


def _write_part(path: Path, gathering: Gathering) -> tuple[int, int, int]:
    """Write the gathered rows and client numbers to a file on rank 0 of ``gathering``, unless there are none.

    Returns:
        The size of the file, and its digest as two numbers; 0, 0, 0 on other ranks and without a file.
    """
    with _gathered(gathering) as blocks:
        if blocks is None or not gathering.count:
            return 0, 0, 0
        with _new_file(path, PART_MAGIC) as file:
            file["numbers"] = gathering.numbers()
            _write_rows(file, blocks, gathering)
    with open(path, "rb") as file:
        digest = bytes.fromhex(digest_line(file).rpartition(" ")[2])
    first, second = np.frombuffer(digest, dtype=np.int64).tolist()
    return path.stat().st_size, first, second


def _digest_text(first: int, second: int) -> str:
    return f"blocks {np.array([first, second]).tobytes().hex()}"


def _expect_visible(folder: Path, new: list[Part]) -> None:
    """Raise an :class:`OSError` if a part that another rank has written is not in this rank's folder."""
    for part in new:
        if not _has_size(folder / part.name, part.size):
            raise OSError(
                errno.ENOENT,
                f"expected {part.name} with {part.size:,} bytes in {folder}, which another node has written; "
                "choose a run.out that all nodes share",
            )


@contextlib.contextmanager
def _gathered(gathering: Gathering) -> Iterator[Iterator | None]:
    """Yield the gathered blocks on rank 0 of ``gathering``, which receives all of them in any case; send the
    rows of other ranks."""
    if not gathering.receives:
        gathering.send()
        yield None
        return
    blocks = gathering.receive()
    try:
        yield blocks
    finally:
        for _ in blocks:
            pass


@contextlib.contextmanager
def _new_file(path: Path, magic: bytes) -> Iterator[h5py.File]:
    """Yield an HDF5 file to fill, which replaces ``path`` when it is complete."""
    with replacing(path) as temporary, create(temporary, magic, FORMAT, BlockDigests()) as file:
        yield file


def _write_head(file: h5py.File, header: dict, arrays: dict[str, np.ndarray]) -> None:
    file.attrs["header"] = json.dumps(header)
    for name, array in arrays.items():
        file[name] = array


def _write_rows(file: h5py.File, blocks: Iterator, gathering: Gathering) -> None:
    rows, start = gathering.rows, 0
    target = file.create_dataset(_ROWS, (gathering.count, rows.shape[1]), rows.dtype)
    for block in blocks:
        target[start : start + len(block)] = block
        start += len(block)


def _remove_old(final: Path, keep: int, listed: dict[str, set[str]]) -> None:
    """Remove all but the ``keep`` newest checkpoints up to ``final``, and parts that none of them lists."""
    for old in _up_to(final)[:-keep]:
        old.unlink(missing_ok=True)
        listed.pop(old.name, None)
    _remove_unlisted(final, listed)


def _up_to(final: Path) -> list[Path]:
    """Return the checkpoints up to ``final``.

    A checkpoint of a later round must be damaged, since the run did not continue from it.
    """
    return [path for path in checkpoints(final.parent) if path.name <= final.name and is_own(path)]


def _remove_unlisted(final: Path, listed: dict[str, set[str]]) -> None:
    """Remove the parts that no checkpoint up to ``final`` lists.

    Args:
        listed: the parts that checkpoints are known to list; those of other checkpoints are read and added.
    """
    if not (present := parts_of_checkpoints(final.parent)):
        return
    current = _up_to(final)
    for path in current:
        if path.name not in listed:
            listed[path.name] = _listed_by(path)
    needed = set().union(*(listed[path.name] for path in current))
    for part in present:
        if part.name not in needed and is_own(part):
            part.unlink(missing_ok=True)


def _listed_by(path: Path) -> set[str]:
    """Return the names of the parts of a checkpoint; none if it is damaged."""
    try:
        with _opened(path) as file:
            return {part.name for part in _parts_in(file)[1]}
    except ValueError:
        return set()


def _size(arrays: dict[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


def _expect_space(folder: Path, needed: int) -> None:
    """Raise an :class:`OSError` if a file of ``needed`` bytes does not fit on the disk."""
    free, needed = shutil.disk_usage(folder).free, needed + MARGIN
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)}: {needed:,} bytes needed, including a margin of {MARGIN:,}; "
            f"{free:,} free",
        )


@contextlib.contextmanager
def _opened(path: Path, magic: bytes = CHECKPOINT_MAGIC, part: Part | None = None) -> Iterator[h5py.File]:
    """Open a file whose digest is valid, as an HDF5 file.

    Args:
        part: how a checkpoint lists the file.

    Raises:
        ValueError: the file is damaged, cannot be read, or has unexpected content, also in the body of the
            context.
    """

    def check(file: BinaryIO) -> None:
        if part and (os.fstat(file.fileno()).st_size, digest_line(file)) != part[1:]:
            raise ValueError(f"expected {part.size} bytes with the digest {part.digest}, found another file")
        expect_digest(file, magic, FORMAT)

    where = f"{path.name}: " if part else ""
    try:
        with open_untrusted(path, check) as file:
            yield file
    except (AttributeError, IndexError, KeyError, TypeError) as error:  # no header, or a group for an array
        raise ValueError(f"{where}unexpected content: {error}") from None
    except OSError as error:
        raise ValueError(f"{where}{error.strerror or error}" if part else str(error)) from None
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{where}{error}") from None


def _parts_in(file: h5py.File) -> tuple[int, list[Part]]:
    """Return the number of clients and the parts that a checkpoint lists; no parts if it has all rows.

    Raises:
        ValueError, KeyError, TypeError: they are not as expected.
    """
    if _PARTS not in file:
        return 0, []
    table = json.loads(file[_PARTS][...].tobytes())
    listed = [Part(*entry) for entry in table["files"]]
    for name, size, digest in listed:
        if not (type(name) is type(digest) is str and type(size) is int and is_part(name)):
            raise ValueError(
                f"expected name, size and digest of a part, found {name!r}, {size!r}, {digest!r}"
            )
    if type(table["clients"]) is not int or table["clients"] < 1 or not listed:
        raise ValueError(f"expected parts of at least one client, found {len(listed)} parts")
    return table["clients"], listed


def load(path: Path, validate: Validator | None) -> tuple[dict, dict[str, np.ndarray]]:
    """Return the header and the whole arrays of a checkpoint, all files of which are valid.

    Raises:
        ValueError: a file is damaged, missing, cannot be read, or has unexpected content.
    """
    with _opened(path) as file:
        header = json.loads(file.attrs["header"])
        arrays = {name: data[...] for name, data in file.items() if name not in (_ROWS, _PARTS)}
        count, listed = _parts_in(file)
        rows = file.get(_ROWS)
        clients = (rows.shape, rows.dtype) if isinstance(rows, h5py.Dataset) else None
    if listed:
        clients = _expect_parts(path.parent, count, listed)
    if validate:
        validate(header, arrays, clients)
    return header, arrays


def _expect_parts(folder: Path, count: int, listed: list[Part]) -> tuple[tuple[int, int], np.dtype]:
    """Return the shape and the dtype of the rows of ``count`` clients in valid parts.

    Raises:
        ValueError: a part is damaged, missing or another file, or a client has no row.
    """
    types, numbers = set(), []
    for part in listed:
        with _opened(folder / part.name, PART_MAGIC, part) as file:
            rows, clients = file[_ROWS], file["numbers"]
            if clients.dtype != np.int64 or clients.shape != rows.shape[:1] or rows.ndim != 2:
                raise ValueError(f"expected rows and as many numbers, found {rows.shape}, {clients.shape}")
            numbers.append(clients[...])
            types.add((rows.shape[1], rows.dtype))
    every = np.concatenate(numbers)
    if len(types) != 1 or len(every) < count or every.min() < 0 or every.max() >= count:
        raise ValueError(f"expected rows of one type of {count} clients, found others in its parts")
    found = np.zeros(count, dtype=bool)
    found[every] = True
    if not found.all():
        raise ValueError(f"expected rows of {count} clients, found {np.count_nonzero(found)} in its parts")
    ((width, dtype),) = types
    return (count, width), dtype


def newest(
    folder: Path, validate: Validator | None = None
) -> tuple[Path | None, dict, dict[str, np.ndarray], list[str]]:
    """Find the newest valid checkpoint of a folder.

    Args:
        validate: raises a ValueError unless the content is as expected.

    Returns:
        The path (``None`` if there is no valid checkpoint), the header, the whole arrays, and one line per
        newer checkpoint that is damaged or does not have the expected content.
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

    Args:
        path: on rank 0, a checkpoint that :func:`load` has validated.

    Raises:
        CollectiveError: on all ranks: rank 0 cannot read a file, or a rank has no memory for a block.
    """
    errors = (*_ERRORS, ValueError, KeyError)
    files, size = [], np.zeros(1, dtype=np.int64)
    with collective_errors(comm, *errors):
        if comm.rank == 0:
            with open_untrusted(path) as file:
                files = [path.with_name(part.name) for part in _parts_in(file)[1]]
            size[0] = len(files)
    comm.bcast_(size)
    if not size[0]:
        with contextlib.ExitStack() as stack:
            with collective_errors(comm, *errors):
                source = stack.enter_context(open_untrusted(path))[_ROWS] if comm.rank == 0 else None
            distribute(placement.clients, None, _reader(source), errors, rows, comm, placement)
    for index in range(size[0]):
        with contextlib.ExitStack() as stack:
            source, numbers = None, np.zeros(0, dtype=np.int64)
            count = np.zeros(1, dtype=np.int64)
            with collective_errors(comm, *errors):
                if comm.rank == 0:
                    file = stack.enter_context(open_untrusted(files[index]))
                    source, numbers = file[_ROWS], file["numbers"][...]
                    count[0] = len(numbers)
            comm.bcast_(count)
            with collective_errors(comm, MemoryError):
                numbers = numbers if comm.rank == 0 else np.empty(count[0], dtype=np.int64)
            comm.bcast_(numbers)
            distribute(int(count[0]), numbers, _reader(source), errors, rows, comm, placement)


def _reader(source: h5py.Dataset | None) -> Callable[[int, np.ndarray], None]:
    def read(start: int, block: np.ndarray) -> None:
        block[...] = source[start : start + len(block)]

    return read
