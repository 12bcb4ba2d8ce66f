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

__all__ = ["OPENERS", "folder_chunks", "digest", "digest_of_path", "relative_names"]

#: Suffix of compressed files → function that opens them.
OPENERS = {".gz": gzip.open, ".xz": lzma.open}
#: Bytes per read.
_CHUNK = 2**20
#: Folders in the root folder that contain no data.
_SYSTEM = ("dev", "proc", "sys")
#: Size of a file that is always read, and the maximum ratio of a larger file's size to its space on the disk,
#: which is large on file systems that compress.
_SPARSE_BYTES, _SPARSE_RATIO = 2**30, 100
#: Path, inode, size, mtime and ctime of each hashed file. Unlike mtime, programs cannot set the ctime.
_Signature = tuple[tuple[str, int, int, int, int], ...]


def digest(chunks: Iterable) -> str:
    """Return the SHA-256 (hexadecimal) of the concatenation of ``chunks``."""
    total = hashlib.sha256()
    for chunk in chunks:
        total.update(chunk)
    return total.hexdigest()


def relative_names(folder: Path) -> list[str]:
    """Return the relative names of all files below a folder, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def folder_chunks(folder: Path, names: Iterable[str]) -> Iterator[bytes]:
    """Yield the bytes from which the digest of a folder is computed: the name and content of each file."""
    for name in names:
        yield os.fsencode(name) + b"\0"
        yield from _chunks(folder / name, open)


def digest_of_path(path_text: str) -> str | None:
    """Return the current digest of the file or folder at a path; ``None`` if it cannot be read.

    A file is read again only if its size, times or inode have changed.
    """
    path = Path(path_text)
    try:
        if not _has_data(path.resolve()):
            return None
        files = [path / name for name in relative_names(path)] if path.is_dir() else [path]
        return _digest(path_text, tuple(map(_file_state, files)))
    except (OSError, EOFError, ValueError, lzma.LZMAError):  # missing, damaged, or not a path
        return None


def _has_data(path: Path) -> bool:
    """Whether a resolved path is a file or a folder of data.

    Paths that the files of a run contain may be anything: reading a device or a pipe, a sparse file whose
    size is fictitious, or a whole file system would take for ever.
    """
    if path.is_dir():
        return path != path.parent and path.parts[1] not in _SYSTEM
    stored = path.stat().st_blocks * 512
    return path.is_file() and path.stat().st_size <= max(_SPARSE_BYTES, _SPARSE_RATIO * stored)


@functools.lru_cache(maxsize=1024)
def _digest(path_text: str, state: _Signature) -> str:
    path = Path(path_text)
    if path.is_dir():
        return digest(folder_chunks(path, relative_names(path)))
    return digest(_chunks(path, OPENERS.get(path.suffix, open)))


def _file_state(path: Path) -> tuple[str, int, int, int, int]:
    stat = path.stat()
    return str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _chunks(path: Path, open_file) -> Iterator[bytes]:
    with open_file(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
