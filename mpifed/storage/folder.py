"""The output folder of a run, as rank 0 sees it: one run at a time, and never a file lost by mistake."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from mpifed.base.errors import ConfigError
from mpifed.base.log import warning
from mpifed.parallel.world import slurm_job
from mpifed.storage.atomic import remove_leftovers, sync
from mpifed.storage.format import RUN_FILE
from mpifed.storage.ownership import (
    HISTORY_FILE,
    LOCK_FILE,
    LOG_FOLDER,
    MARKER,
    RUN_FILES,
    checkpoints,
    claim,
    expect_own,
    is_own,
    logs,
)

__all__ = ["Folder", "Holder", "holder"]

#: Seconds to wait for another run to let the folder go: a requeued job may meet the last moments of its
#: predecessor.
PATIENCE = 3.0
#: Characters of the lock's text that are printed.
SHOWN = 200


class Folder:
    """A folder that one run writes to, held by a lock between :meth:`open` and :meth:`close`.

    The lock is the kernel's (flock), so it ends with the process, however that dies. Its text names the
    holder. On a file system without such locks, or with locks that other hosts do not see, the text is what
    tells a run that another one writes here, too.

    Raises:
        ConfigError: the path is blank.
    """

    def __init__(self, path: str | Path):
        if not str(path).strip():
            raise ConfigError(f"expected the name of a folder, got {str(path)!r}: is a shell variable unset?")
        self.path = Path(path)
        self._lock, self._made = None, False

    def open(self, create: bool) -> None:
        """Take the folder and remove what a killed run has left half written.

        Args:
            create: make the folder if it does not exist.

        Raises:
            ValueError: another run holds the folder, it cannot be written to, or a file that is not this
                package's is in the way.
        """
        end = time.monotonic() + PATIENCE
        try:
            while not self._take(create, time.monotonic() < end):
                time.sleep(0.1)
            if self._locked:
                remove_leftovers(self.path)
            self._place = os.stat(self.path)
        except OSError as fault:
            self.close()
            raise ValueError(f"cannot write to run.out = {self.path}: {fault.strerror}") from None

    def _take(self, create: bool, patient: bool) -> bool:
        """Try to lock the folder; False while another run holds it and ``patient``."""
        if create and not self.path.is_dir():
            self._make()
        claim(self.path, RUN_FILES)
        expect_own([self.path / RUN_FILE, self.path / LOCK_FILE])
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._lock = open(os.open(self.path / LOCK_FILE, flags, 0o666), "r+b", buffering=0)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._locked = True
        except BlockingIOError:
            text = _told(self._lock) or "another process"
            self._drop()
            if patient:
                return False
            raise ValueError(
                f"run.out = {self.path} is in use by {text}: wait for it, or choose another run.out"
            ) from None
        except OSError as fault:
            self._locked = False
            warning(
                f"{self.path} cannot be locked ({fault.strerror}): take care that no second run writes to it"
            )
        if not self._holds():  # its holder has just removed the empty folder
            self._drop()
            return False
        self._sign()
        return True

    def _make(self) -> None:
        missing = [self.path, *self.path.parents]
        missing = missing[: next(i for i, place in enumerate(missing) if place.is_dir())]
        self.path.mkdir(parents=True)
        self._made = True
        for place in missing:
            sync(place.parent)

    def _sign(self) -> None:
        """Write into the lock who holds it."""
        before, host = _told(self._lock), socket.gethostname()
        if before and f" on {host}," not in before:
            warning(
                f"{before} has never let go of {self.path}: see that it has ended, two runs must not share it"
            )
        job = f", Slurm job {number}" if (number := slurm_job()) else ""
        self._text = f"process {os.getpid()} on {host}{job}, since {datetime.now():%Y-%m-%d %H:%M:%S}"
        os.ftruncate(self._lock.fileno(), 0)
        os.pwrite(self._lock.fileno(), f"{self._text}\n".encode(), 0)

    def _holds(self) -> bool:
        """Whether the locked file is still the one that others find."""
        try:
            return os.path.samestat(os.fstat(self._lock.fileno()), os.lstat(self.path / LOCK_FILE))
        except OSError:
            return False

    def expect_held(self) -> None:
        """See that this is still the folder that was opened, and nobody else's by now. A lock file that
        somebody has removed is made again.

        Raises:
            OSError: the folder is gone or another one, or another run writes to it.
        """
        if not os.path.samestat(os.stat(self.path), self._place):
            raise OSError("another folder has taken its place")
        if self._lock is None or not os.path.lexists(self.path / LOCK_FILE):
            self._drop()
            try:
                self._take(create=False, patient=False)
            except ValueError as fault:
                raise OSError(str(fault)) from None
        flags = (
            os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )  # anew: another host may have written
        with open(os.open(self.path / LOCK_FILE, flags), "rb") as lock:
            text = _told(lock) if stat.S_ISREG(os.fstat(lock.fileno()).st_mode) else ""
        if text != self._text:
            raise OSError(f"it is in use by {text}" if text else "another run has used it meanwhile")

    def _drop(self) -> None:
        if self._lock is not None:
            self._lock.close()
        self._lock = None

    def close(self) -> None:
        """Let the folder go; one that was made for a run that never began is removed."""
        if self._lock is None:
            return
        if self._holds():
            with contextlib.suppress(OSError):  # something else lies there, or nothing can be written
                if _told(self._lock) == self._text:
                    os.ftruncate(self._lock.fileno(), 0)
                if self._made and not self.results():
                    for path in filter(is_own, logs(self.path)):
                        path.unlink()
                    if (self.path / LOG_FOLDER).is_dir():
                        (self.path / LOG_FOLDER / MARKER).unlink(missing_ok=True)
                        (self.path / LOG_FOLDER).rmdir()
                    (self.path / LOCK_FILE).unlink()
                    (self.path / MARKER).unlink()
                    self.path.rmdir()
        self._drop()

    def clear(self) -> None:
        """Remove the files of the run that lies here, and no others."""
        for path in filter(is_own, [*self.results(), self.path / HISTORY_FILE]):
            path.unlink()

    def keep(self) -> None:
        """A run has begun: the folder that was made for it stays, whatever comes."""
        self._made = False

    def results(self) -> list[Path]:
        """The results file and the checkpoints that lie here."""
        return [*self.path.glob(RUN_FILE), *self.checkpoints()]

    def checkpoints(self) -> list[Path]:
        """The checkpoints that lie here, the newest last."""
        return checkpoints(self.path)


class Holder(NamedTuple):
    """Who has signed the lock of a folder, "" for nobody, and whether it holds the lock still, ``None`` where
    that cannot be told here.
    """

    text: str
    holds: bool | None


def holder(folder: Path) -> Holder:
    """Who uses a folder. Writes nothing, and in the way of a run that begins for no longer than it waits.

    A lock goes with its process. But some file systems keep those of other hosts to themselves: of a run
    there that does not seem to hold it, nothing can be told.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(folder / LOCK_FILE, flags), "rb", buffering=0) as lock:
            text = _told(lock) if stat.S_ISREG(os.fstat(lock.fileno()).st_mode) else ""
            return Holder(text, _held(lock, text) if text else False)  # one just being taken is not tested
    except OSError:
        return Holder("", False)


def _held(lock, text: str) -> bool | None:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that look do not see each other
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False if f" on {socket.gethostname()}," in text else None


def _told(lock) -> str:
    """The first line of an open lock file."""
    text = os.pread(lock.fileno(), SHOWN, 0).decode(errors="replace")
    return text.partition("\n")[0].strip()
