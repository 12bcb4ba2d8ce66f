"""Digests of data files and folders, which detect that data have changed since they were read.

The digest of a file is the SHA-256 of its uncompressed bytes, so that a compressed and a plain copy are the
same data. The digest of a folder is that of the names and contents of all files in it that are not hidden.
Links are followed.
"""

from __future__ import annotations

import errno
import functools
import gzip
import hashlib
import lzma
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

__all__ = [
    "OPENERS",
    "digest",
    "digest_of_path",
    "expect_regular",
    "folder_chunks",
    "is_hidden",
    "listing",
    "walk",
]

#: Suffix of compressed files → function that opens them.
OPENERS = {".gz": gzip.open, ".xz": lzma.open}
#: Bytes per read.
_CHUNK = 2**20
#: Names, in lower case, of files and folders that systems add to a folder, in addition to names with a
#: leading dot.
_SYSTEM = (
    "#recycle", "$recycle.bin", "@eadir", "@recycle", "__macosx", "__pycache__", "desktop.ini", "lost+found",
    "system volume information", "thumbs.db",
)  # fmt: skip
#: Folders in the root folder that contain no data.
_NO_DATA = ("dev", "proc", "sys")
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


def expect_regular(path: Path, limit: float = math.inf) -> None:
    """Check a path that a stranger may have chosen: reading a device or a pipe might never end.

    Args:
        limit: maximum size in bytes.

    Raises:
        OSError: there is no file, or another one than a regular file of at most this size.
    """
    state = path.stat()
    if not stat.S_ISREG(state.st_mode) or state.st_size > limit:
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def walk(folder: Path, onerror: Callable[[OSError], None]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Iterate over a folder and the folders below it, with the sorted names of their folders and other files.

    Links to folders are followed. Names that the caller removes from the list of folders are not visited.

    Args:
        onerror: called with the error of a folder that cannot be read, and with that of a link to a folder
            that contains the link, for which ``errno`` is ``ELOOP``.
    """
    pending: list[tuple[Path, frozenset]] = [(folder, frozenset())]
    while pending:
        path, above = pending.pop()
        try:
            state = path.stat()
            if (key := (state.st_dev, state.st_ino)) in above:
                raise OSError(errno.ELOOP, "a link to a folder that contains it", str(path))
            names = sorted(os.listdir(path))
        except OSError as error:
            onerror(error)
            continue
        folders = [name for name in names if os.path.isdir(path / name)]
        inside = {*folders}
        yield path, folders, [name for name in names if name not in inside]
        pending += [(path / name, above | {key}) for name in reversed(folders)]


def is_hidden(name: str) -> bool:
    """Whether a name is that of a hidden file or folder, or of one that a system adds to a folder."""
    return name.startswith(".") or name.lower() in _SYSTEM


def listing(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the relative names of the files, of the folders and of the hidden files and folders below a
    folder, each sorted. Hidden folders are not visited.

    Raises:
        OSError: a folder cannot be read, a link leads nowhere or to a folder that contains it, or there is
            neither a file nor a folder, such as a pipe.
    """

    def fail(error: OSError) -> None:
        raise error

    files, folders, hidden = [], [], []
    for path, below, others in walk(folder, fail):
        place = path.relative_to(folder)
        hidden += [place / name for name in (*below, *others) if is_hidden(name)]
        below[:] = [name for name in below if not is_hidden(name)]
        folders += [place / name for name in below]
        visible = [place / name for name in others if not is_hidden(name)]
        for name in visible:
            if not (folder / name).is_file():
                kind = "a link that leads nowhere" if (folder / name).is_symlink() else "not a regular file"
                raise OSError(errno.ENOENT, kind, str(folder / name))
        files += visible
    return _sorted(files), _sorted(folders), _sorted(hidden)


def _sorted(paths: Iterable[Path]) -> list[str]:
    return sorted(path.as_posix() for path in paths)


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
        files = [path / name for name in listing(path)[0]] if path.is_dir() else [path]
        return _digest(path_text, tuple(map(_file_state, files)))
    except (OSError, EOFError, ValueError, lzma.LZMAError):  # missing, damaged, or not a path
        return None


def _has_data(path: Path) -> bool:
    """Whether a resolved path is a file or a folder of data.

    Paths that the files of a run contain may be anything: reading a device or a pipe, a sparse file whose
    size is fictitious, or a whole file system would take for ever.
    """
    if path.is_dir():
        return path != path.parent and path.parts[1] not in _NO_DATA
    stored = path.stat().st_blocks * 512
    return path.is_file() and path.stat().st_size <= max(_SPARSE_BYTES, _SPARSE_RATIO * stored)


@functools.lru_cache(maxsize=1024)
def _digest(path_text: str, state: _Signature) -> str:
    path = Path(path_text)
    if path.is_dir():
        return digest(folder_chunks(path, listing(path)[0]))
    return digest(_chunks(path, OPENERS.get(path.suffix, open)))


def _file_state(path: Path) -> tuple[str, int, int, int, int]:
    state = path.stat()
    return str(path), state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _chunks(path: Path, open_file) -> Iterator[bytes]:
    with open_file(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
