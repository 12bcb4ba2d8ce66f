"""Files written so that they are either the old or the new version."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["replacing", "shielded", "remove_leftovers"]


@contextlib.contextmanager
def replacing(path: Path):
    """Yield a temporary path beside ``path``; on success it is synced to disk and takes ``path``'s place.

    On failure the temporary file is removed and ``path`` stays as it was.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


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
    """Remove temporary files that a killed run has left behind in ``folder``."""
    for leftover in Path(folder).glob("*.tmp.*"):
        leftover.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
