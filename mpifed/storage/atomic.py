"""Files written so that they are either the old or the new version."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

from mpifed.core.telling import warn
from mpifed.storage.ownership import is_known, is_leftover, is_own

__all__ = ["replacing", "shielded", "remove_leftovers", "sync"]


@contextlib.contextmanager
def replacing(path: Path):
    """Yield a new temporary file beside ``path``; on success it is synced to disk and takes ``path``'s place.

    On failure the temporary file is removed and ``path`` stays as it was. What lies at ``path`` under a name
    of this package without being its own is kept under another name.

    Raises:
        OSError: one of these cannot be done.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    if is_leftover(temporary) or not is_known(path.name):  # of a process with the same number
        temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        yield temporary
        sync(temporary)
        _make_way(path)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _make_way(path: Path) -> None:
    """Give what is not this package's another name, a damaged checkpoint for instance."""
    if not is_known(path.name) or not os.path.lexists(path) or is_own(path):
        return
    names = (path.with_name(f"{path.name}.kept{number}") for number in itertools.count(1))
    kept = next(name for name in names if not os.path.lexists(name))
    os.rename(path, kept)
    warn(f"{path} is no file of mpifed: it is {kept.name} now")


class _Shield:
    """A raw file that keeps its first error to itself and pretends to go on."""

    def __init__(self, file):
        self.file, self.error = file, None
        self.read, self.readinto, self.seek, self.tell, self.flush = (
            file.read,
            file.readinto,
            file.seek,
            file.tell,
            file.flush,
        )

    def _try(self, action):
        if self.error is None:
            try:
                action()
            except OSError as error:
                self.error = error

    def write(self, data) -> int:
        self._try(lambda: self._write(memoryview(data).cast("B")))
        return len(data)

    def _write(self, data: memoryview) -> None:
        while data:  # the last piece that fits on a disk is written alone
            data = data[self.file.write(data) :]

    def truncate(self, size: int) -> None:
        self._try(lambda: self.file.truncate(size))


@contextlib.contextmanager
def shielded(path: Path):
    """Yield a file object for h5py to write ``path`` to. HDF5 can crash where a write fails; so it does not
    hear of it.

    Raises:
        OSError: at the end, with the first error that there was.
    """
    with open(path, "w+b", buffering=0) as file:
        shield = _Shield(file)
        yield shield
    if shield.error:
        raise shield.error


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of this package's that a killed run has left behind in ``folder``."""
    for path in Path(folder).glob("*.tmp.*"):
        if is_leftover(path):
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
