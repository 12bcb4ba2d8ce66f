"""The output folder of a run and its lock, used by rank 0: at most one run uses a folder at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

from mpifed.base.errors import ConfigError
from mpifed.base.log import warning
from mpifed.parallel.world import process_name
from mpifed.storage.files import (
    HISTORY_FILE,
    LOCK_FILE,
    LOG_FOLDER,
    RUN_FILE,
    checkpoints,
    expect_own,
    is_own,
    open_file,
    parts_of_checkpoints,
    remove_leftovers,
    run_files,
    sync,
)

__all__ = ["Folder", "Holder", "NotWritable", "holder"]

#: Seconds to wait for a lock: a requeued job may start while its predecessor is ending.
LOCK_TIMEOUT = 3.0
#: Maximum number of characters of the lock file's text that are printed.
MAX_CHARACTERS = 200


class NotWritable(ValueError):
    """A folder cannot be written to."""


class Folder:
    """A folder that one run writes to, locked between :meth:`open` and :meth:`close`.

    The kernel releases the lock (flock) when the process ends, even if it is killed. The text of the lock
    file names the process, which reveals a second run on file systems that have no locks or hide the locks of
    other hosts. The library filelock is not used, because without flock it leaves a lock file behind after a
    kill, and because ``mpifed status`` must test a lock without acquiring it.

    Raises:
        ConfigError: the path is blank.
    """

    def __init__(self, path: str | Path):
        if not str(path).strip():
            raise ConfigError(f"expected the name of a folder, got {str(path)!r}: is a shell variable unset?")
        self.path = Path(path)
        self._lock, self._created = None, False

    def open(self, create: bool) -> None:
        """Lock the folder and remove the temporary files of a killed run.

        Args:
            create: create the folder if it does not exist.

        Raises:
            NotWritable: the folder cannot be written to.
            ValueError: another run uses the folder, or a file of the user would be replaced.
        """
        end = time.monotonic() + LOCK_TIMEOUT
        try:
            while not self._acquire(create, time.monotonic() < end):
                time.sleep(0.1)
            if self._locked:
                remove_leftovers(self.path)
            self._stat = os.stat(self.path)
        except OSError as error:
            self.close()
            raise NotWritable(f"cannot write to run.out = {self.path}: {error.strerror}") from None

    def _acquire(self, create: bool, wait: bool) -> bool:
        """Try to lock the folder. Return False if the caller should try again."""
        if create and not self.path.is_dir():
            self._create()
        expect_own(run_files(self.path))
        self._lock = open_file(self.path / LOCK_FILE, "a+b")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._locked = True
        except BlockingIOError:
            text = _first_line(self._lock) or "another process"
            self._release()
            if wait:
                return False
            raise ValueError(
                f"run.out = {self.path} is in use by {text}: wait for it, or choose another run.out"
            ) from None
        except OSError as error:
            self._locked = False
            warning(f"{self.path} cannot be locked ({error.strerror}): make sure that no other run uses it")
        if not self._is_current():  # its holder has just removed the empty folder
            self._release()
            return False
        self._sign()
        return True

    def _create(self) -> None:
        missing = [self.path, *self.path.parents]
        missing = missing[: next(i for i, place in enumerate(missing) if place.is_dir())]
        for place in missing:
            if not os.path.lexists(place) or place.is_dir():  # another process may create it now
                continue
            kind = f"a link to {os.readlink(place)} that leads nowhere" if place.is_symlink() else "a file"
            raise NotADirectoryError(errno.ENOTDIR, f"{place} is {kind}")
        self.path.mkdir(parents=True)
        self._created = True
        for place in missing:
            sync(place.parent)

    def _sign(self) -> None:
        """Write the name of this process to the lock file."""
        before, host = _first_line(self._lock), socket.gethostname()
        if before and f" on {host}," not in before:
            warning(
                f"{self.path} is still locked by {before}; make sure that this process has ended, since two "
                "runs must not share a folder"
            )
        self._signature = process_name()
        os.ftruncate(self._lock.fileno(), 0)
        os.pwrite(self._lock.fileno(), f"{self._signature}\n".encode(), 0)

    def _is_current(self) -> bool:
        """Whether the locked file is still the lock file of the folder."""
        try:
            return os.path.samestat(os.fstat(self._lock.fileno()), os.lstat(self.path / LOCK_FILE))
        except OSError:
            return False

    def expect_held(self) -> None:
        """Check that the path still refers to the opened folder, and that no other run uses it.

        If the lock file was removed, it is created again.

        Raises:
            OSError: the folder was removed or replaced, or another run writes to it.
        """
        if not os.path.samestat(os.stat(self.path), self._stat):
            raise OSError("the folder was replaced by another folder")
        if self._lock is None or not os.path.lexists(self.path / LOCK_FILE):
            self._release()
            try:
                self._acquire(create=False, wait=False)
            except ValueError as error:
                raise OSError(str(error)) from None
        with open_file(self.path / LOCK_FILE) as lock:  # opened again, since another host may have written
            text = _first_line(lock)
        if text != self._signature:
            raise OSError(f"it is in use by {text}" if text else "another run has used it in the meantime")

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
        self._lock = None

    def close(self) -> None:
        """Unlock the folder. If it was created for a run that has not started, remove it."""
        if self._lock is None:
            return
        if self._is_current():
            with contextlib.suppress(OSError):  # the folder has other files, or cannot be written to
                if _first_line(self._lock) == self._signature:
                    os.ftruncate(self._lock.fileno(), 0)
                if self._created and not self.results():
                    for path in filter(is_own, run_files(self.path)):
                        path.unlink()
                    if (self.path / LOG_FOLDER).is_dir():
                        (self.path / LOG_FOLDER).rmdir()
                    self.path.rmdir()
        self._release()

    def clear(self) -> None:
        """Remove the files of the previous run, and no others. From now on :meth:`close` keeps the folder."""
        others = [self.path / HISTORY_FILE, *parts_of_checkpoints(self.path)]
        for path in filter(is_own, [*self.results(), *others]):
            path.unlink()
        self._created = False

    def results(self) -> list[Path]:
        """Return the results file and the checkpoints in the folder."""
        return [*self.path.glob(RUN_FILE), *self.checkpoints()]

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints in the folder, the newest last."""
        return checkpoints(self.path)


class Holder(NamedTuple):
    """The process named in a lock file.

    Attributes:
        text: the name of the process; "" if the folder is not in use.
        holds: whether the process still holds the lock; ``None`` if this cannot be determined on this host.
    """

    text: str
    holds: bool | None


def holder(folder: Path) -> Holder:
    """Find the process that uses a folder. Nothing is written; a run that starts is delayed only briefly.

    A lock ends with its process, but some file systems hide the locks of other hosts.
    """
    try:
        with open_file(folder / LOCK_FILE) as lock:
            text = _first_line(lock)
            return Holder(text, _is_locked(lock, text) if text else False)  # no text yet: a run is starting
    except OSError:
        return Holder("", False)


def _is_locked(lock, text: str) -> bool | None:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two tests do not see each other
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False if f" on {socket.gethostname()}," in text else None


def _first_line(lock) -> str:
    """Return the first line of an open lock file."""
    text = os.pread(lock.fileno(), MAX_CHARACTERS, 0).decode(errors="replace")
    return text.partition("\n")[0].strip("\0 ")  # zero after a crash of the host
