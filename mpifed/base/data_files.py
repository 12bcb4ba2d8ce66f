"""Digests of data files and folders: when they are read, and when they may have changed since.

A digest is the SHA-256 of a file's unpacked bytes, so that a packed and a plain copy count as the same data,
or of the names and contents of all files in a folder.
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

#: How packed files are opened, by the ending of their names.
PACKED = {".gz": gzip.open, ".xz": lzma.open}
#: Bytes that are read at a time.
_CHUNK = 2**20
#: What tells that a file is still the one that was hashed in this process. No program can set the time of the
#: last change of an inode (``ctime``) back.
_Signature = tuple[tuple[str, int, int, int, int], ...]


def digest(parts: Iterable) -> str:
    """SHA-256 (hexadecimal) of parts of a content, in order."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


def names_in(folder: Path) -> list[str]:
    """The files below a folder, by their names from there on, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def contents(folder: Path, names: Iterable[str]) -> Iterator[bytes]:
    """What the digest of a folder is taken of: names and contents."""
    for name in names:
        yield os.fsencode(name) + b"\0"
        yield from _parts(folder / name, open)


def digest_at(place: str) -> str | None:
    """The digest of the file or folder that is at a place now; ``None`` where there is none that can be read.

    Read once in a process for each state of the file.
    """
    path = Path(place)
    try:
        if path.is_dir():
            return _digest(place, tuple(_state(path / name) for name in names_in(path)))
        return _digest(place, (_state(path),))
    except (OSError, EOFError, ValueError, lzma.LZMAError):  # gone, damaged, or a text that is no path
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
