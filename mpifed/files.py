"""Files: written so that they are either the old or the new version, and what is kept of a file that was read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["DataFile", "replacing", "sweep"]


class DataFile(NamedTuple):
    """A data file that has been read: where it lay, and a digest (hexadecimal SHA-256) of what it held."""

    path: str
    digest: str


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


def sweep(folder: Path) -> None:
    """Remove temporary files that a killed run has left behind in ``folder``."""
    for leftover in Path(folder).glob("*.tmp.*"):
        leftover.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
