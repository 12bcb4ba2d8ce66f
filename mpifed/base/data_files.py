"""Digests of data files and folders, which detect that data have changed since they were read.

The digest of a file is the SHA-256 of its uncompressed bytes, so that a compressed and a plain copy are the
same data. The digest of a folder is that of the names and contents of all files in it.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import lzma
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["PACKED", "contents", "digest", "digest_at", "names_in"]

#: Suffix of compressed files → function that opens them.
PACKED = {".gz": gzip.open, ".xz": lzma.open}
#: Bytes per read.
_CHUNK = 2**20
#: Path, inode, size, mtime and ctime of each hashed file. No program can set back the time of the last change
#: of an inode (ctime).
_Signature = tuple[tuple[str, int, int, int, int], ...]


def digest(parts: Iterable) -> str:
    """Return the SHA-256 (hexadecimal) of the concatenation of ``parts``."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


def names_in(folder: Path) -> list[str]:
    """Return the relative names of all files below a folder, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def contents(folder: Path, names: Iterable[str]) -> Iterator[bytes]:
    """Yield the names and contents of files in a folder, from which the folder's digest is computed."""
    for name in names:
        yield os.fsencode(name) + b"\0"
        yield from _parts(folder / name, open)


def digest_at(place: str) -> str | None:
    """Return the current digest of the file or folder at a path; ``None`` if it cannot be read.

    Each state of a file is read once per process.
    """
    path = Path(place)
    try:
        if path.is_dir():
            return _digest(place, tuple(_state(path / name) for name in names_in(path)))
        return _digest(place, (_state(path),))
    except (OSError, EOFError, ValueError, lzma.LZMAError):  # missing, damaged, or not a path
        return None


@functools.lru_cache(maxsize=1024)
def _digest(place: str, state: _Signature) -> str:
    path = Path(place)
    if path.is_dir():
        return digest(contents(path, names_in(path)))
    return digest(_parts(path, PACKED.get(path.suffix, open)))


def _state(path: Path) -> tuple[str, int, int, int, int]:
    known = path.stat()
    return str(path), known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns


def _parts(path: Path, opened) -> Iterator[bytes]:
    with opened(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
