"""Files written so that they are either the old or the new version."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from mpifed.base.errors import ConfigError
from mpifed.base.log import warning
from mpifed.storage.ownership import is_leftover, is_marked, taken

__all__ = ["expect_place", "remove_leftovers", "replacing", "shielded", "sync", "writing"]


@contextlib.contextmanager
def replacing(path: Path):
    """Yield a new temporary file next to ``path``; on success it is synced to disk and replaces ``path``.

    On failure the temporary file is removed and ``path`` is unchanged. A link, folder or pipe at ``path`` is
    renamed.

    Raises:
        OSError: one of these steps fails.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    if temporary.is_file():  # of a killed process with the same number
        temporary.unlink()
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        yield temporary
        sync(temporary)
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            _rename(path)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _rename(path: Path) -> None:
    names = (path.with_name(f"{path.name}.kept{number}") for number in itertools.count(1))
    kept = next(name for name in names if not os.path.lexists(name))
    os.rename(path, kept)
    warning(f"{path} is not a regular file: renamed to {kept.name}")


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


def expect_place(path: str | Path, mark: Callable[[bytes], bool]) -> None:
    """Check before the work that a file can be written at its end.

    Args:
        mark: whether the beginning of a file is that of a file of this type, which may be replaced.

    Raises:
        ConfigError: the folder does not exist, or another file would be replaced.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
    if os.path.lexists(path) and not is_marked(path, mark):
        raise ConfigError(taken(path))


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary file that takes the place of ``path`` at the end.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        with replacing(Path(path)) as temporary:
            yield temporary
    except OSError as fault:
        raise ConfigError(f"cannot write {path}: {fault.strerror or fault}") from None
