"""HDF5 files with a checksum, read safely.

A file begins with a user block, which HDF5 skips: one line with the type and the format number, and one line
with the digest of all bytes after the block. The digest is compared before HDF5 reads anything, because HDF5
can crash on a damaged file. The digest is not a signature: anybody can create a file with a valid digest.
Therefore the structure of a file is validated before any value is read. HDF5 can be made to read other files
(links, external storage, virtual data sets), or to fill the memory from a small file (compression, sizes
without data). Files of this package contain none of these.

The digest of a large file is computed while the file is written. HDF5 writes data in order, but the structure
of the file between them and at the end. Therefore this digest is that of the CRC-32 checksums of the file's
blocks of 1 MiB: the checksum of a block whose bytes arrive in order is computed at once, and only the few
other blocks are read again. CRC-32 takes a fifth of the time of BLAKE2 and overlooks one in 4 · 10^9 random
changes of a block.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import h5py
from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t

from mpifed.storage.files import HDF5_MAGIC, open_file

__all__ = [
    "USER_BLOCK", "BlockDigests", "ErrorDeferringFile", "add_digest", "create", "digest_line",
    "expect_digest", "open_untrusted",
]  # fmt: skip

#: Size of the user block in bytes, and of the blocks with separate checksums.
USER_BLOCK, BLOCK = 512, 2**20
#: Precedes a digest of blocks.
_BLOCKS = b"blocks "
_NUMBERS = (h5t.INTEGER, h5t.FLOAT, h5t.ENUM)  # h5py stores booleans as an enumeration


class ErrorDeferringFile(io.FileIO):
    """A new file for h5py, as a context that raises the first write error, an :class:`OSError`, at the end,
    because HDF5 can crash on errors.

    Args:
        digests: receives the bytes that are written.
    """

    error: OSError | None = None

    def __init__(self, path: Path, digests: BlockDigests | None = None):
        super().__init__(path, "w+")
        self._digests = digests

    def write(self, data) -> int:
        rest = memoryview(data).cast("B")
        if self._digests and not self.error:
            self._digests.add(self.tell(), rest)
        try:
            while rest and not self.error:  # a nearly full disk accepts only a part
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = error
        return len(data)

    def truncate(self, size: int) -> None:
        try:
            if not self.error:
                super().truncate(size)
        except OSError as error:
            self.error = error

    def __exit__(self, kind, *_) -> None:
        self.close()
        if self.error and kind is None:
            raise self.error


class BlockDigests:
    """The checksums of a file's blocks after the user block, computed while the file is written."""

    def __init__(self):
        self._sums: dict[int, int] = {}
        self._sizes: dict[int, int] = {}  # number of bytes in the sum; -1 if they were not written in order

    def add(self, position: int, data: memoryview) -> None:
        """Add the bytes that are written at a position of the file."""
        position, data = position - USER_BLOCK, data[max(0, USER_BLOCK - position) :]
        position = max(0, position)
        while data:
            number, offset = divmod(position, BLOCK)
            piece = data[: BLOCK - offset]
            if self._sizes.setdefault(number, 0) == offset:
                self._sums[number] = zlib.crc32(piece, self._sums.get(number, 0))
                self._sizes[number] += len(piece)
            else:
                self._sizes[number] = -1
            position, data = position + len(piece), data[len(piece) :]

    def digest(self, file: BinaryIO) -> bytes:
        """Return the hexadecimal digest of the file, of which the blocks not written in order are read."""
        size, whole = os.fstat(file.fileno()).st_size - USER_BLOCK, _hash()
        for number, start in enumerate(range(0, size, BLOCK)):
            length = min(BLOCK, size - start)
            if self._sizes.get(number) == length:
                checksum = self._sums[number]
            else:
                file.seek(USER_BLOCK + start)
                checksum = zlib.crc32(file.read(length))
            whole.update(checksum.to_bytes(4, "little"))
        whole.update(size.to_bytes(8, "little", signed=True))
        return whole.hexdigest().encode()


@contextmanager
def create(path: Path, magic: bytes, format: int, digests: BlockDigests | None = None) -> Iterator[h5py.File]:
    """Yield an HDF5 file to fill, and add the digest at the end.

    Args:
        magic: the type of the file, its first bytes.
        format: the format number.
        digests: computes the digest of a large file while it is written. Default: all bytes are read and
            hashed at the end.

    Raises:
        OSError, RuntimeError: the file cannot be written.
    """
    with (
        ErrorDeferringFile(path, digests) as target,
        h5py.File(target, "w", userblock_size=USER_BLOCK) as file,
    ):
        target.seek(0)
        target.write(magic)  # so that the file of a killed process is recognised
        yield file
    add_digest(path, magic, format, digests)


def add_digest(path: Path, magic: bytes, format: int, digests: BlockDigests | None = None) -> None:
    """Write the two lines of the user block of an HDF5 file."""
    with open(path, "r+b") as file:
        digest = _BLOCKS + digests.digest(file) if digests else _digest(file)
        file.seek(0)
        file.write(b"%s%d\n%s\n" % (magic, format, digest))


def digest_line(file: BinaryIO) -> str:
    """Return the digest in the user block of an open file, which identifies its content."""
    file.seek(0)
    return file.read(USER_BLOCK).partition(b"\n")[2].partition(b"\n")[0].decode(errors="replace")


def expect_digest(file: BinaryIO, magic: bytes, format: int) -> None:
    """Compare the user block of an open file with its content.

    Raises:
        ValueError: the file has another type or format, or is incomplete, truncated or modified.
    """
    file.seek(0)
    first, _, rest = file.read(USER_BLOCK).partition(b"\n")
    if first != magic + b"%d" % format:
        if first.startswith(magic):
            kind = f"of format {first[len(magic) :].decode(errors='replace')}"
        elif first.startswith(HDF5_MAGIC[:4]):
            kind = "of format 1"  # of version 0.1
        else:
            kind = f"no {magic.removeprefix(b'mpifed ').strip().decode()}"
        raise ValueError(f"it is {kind}, expected format {format}")
    stored = rest.partition(b"\n")[0]
    if stored != (_BLOCKS + BlockDigests().digest(file) if stored.startswith(_BLOCKS) else _digest(file)):
        raise ValueError("its bytes do not match their digest")


def _hash():
    return hashlib.blake2b(digest_size=16)


def _digest(file: BinaryIO) -> bytes:
    """Return the hexadecimal BLAKE2 digest of the bytes after the user block."""
    digest = _hash()
    file.seek(USER_BLOCK)
    while block := file.read(2**20):
        digest.update(block)
    return digest.hexdigest().encode()


@contextmanager
def open_untrusted(path: Path, check: Callable[[BinaryIO], None] | None = None) -> Iterator[h5py.File]:
    """Open an HDF5 file from an untrusted source for reading.

    Args:
        check: called with the open file before HDF5 reads it.

    Raises:
        ValueError: the file contains anything but groups, data sets of numbers that are stored completely in
            this file, and attributes with one text or number.
    """
    with open_file(path) as file:
        if check:
            check(file)
        with h5py.File(file, "r") as source:
            _expect_harmless(source, os.fstat(file.fileno()).st_size)
            yield source


def _expect_harmless(source: h5py.File, size: int) -> None:
    """Visit all objects of a file of ``size`` bytes without following a link or reading a value."""
    places, seen, total = [("", h5g.open(source.id, b"/"))], set(), 0
    for place, node in places:
        _expect_attributes(place, node)
        if isinstance(node, h5d.DatasetID):
            total += _size_of(place, node)
            if total > size:
                raise ValueError(f"expected at most {size} bytes of data in a file of that size, found more")
            continue
        for name in node:
            child = f"{place}/{name.decode(errors='replace')}".lstrip("/")
            if node.links.get_info(name).type != h5l.TYPE_HARD:
                raise ValueError(f"expected no links to other places, found {child!r}")
            object_info = h5o.get_info(node, name)
            if object_info.type not in (h5o.TYPE_GROUP, h5o.TYPE_DATASET) or object_info.addr in seen:
                raise ValueError(f"expected a group or numbers in {child!r}, found something else")
            seen.add(object_info.addr)
            places.append((child, h5o.open(node, name)))


def _size_of(place: str, data: h5d.DatasetID) -> int:
    """Return the size of a data set in bytes, which must be stored in this file in one piece."""
    creation, dtype, space = data.get_create_plist(), data.get_type(), data.get_space()
    if dtype.get_class() not in _NUMBERS or space.get_simple_extent_type() == h5s.NULL:
        raise ValueError(f"expected numbers in {place!r}, found other data")
    contiguous = creation.get_layout() in (h5d.CONTIGUOUS, h5d.COMPACT) and not creation.get_external_count()
    declared = math.prod(data.shape) * dtype.get_size()
    if not contiguous or data.get_storage_size() != declared:
        raise ValueError(
            f"expected {declared} bytes of numbers in {place!r}, in one piece and not compressed, found "
            f"{data.get_storage_size() if contiguous else 'another layout'}"
        )
    return declared


def _expect_attributes(place: str, node: h5g.GroupID | h5d.DatasetID) -> None:
    for index in range(h5a.get_num_attrs(node)):
        attribute = h5a.open(node, index=index)
        single = attribute.get_space().get_simple_extent_type() == h5s.SCALAR
        if not single or attribute.get_type().get_class() not in (h5t.STRING, h5t.INTEGER, h5t.FLOAT):
            name = attribute.name.decode(errors="replace")
            raise ValueError(f"expected one text or number in the attribute {name!r} of '/{place}'")
