"""The output folder of a run, as rank 0 sees it: one run at a time, and never a file lost by mistake."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time
from datetime import datetime
from pathlib import Path

from mpifed.parallel.slurm import slurm_job
from mpifed.storage.atomic import remove_leftovers
from mpifed.storage.format import RUN_FILE

__all__ = ["Folder"]

LOCK_FILE = "run.lock"
#: Seconds to wait for another run to let the folder go: a requeued job may meet the last moments of its
#: predecessor.
PATIENCE = 3.0


class Folder:
    """A folder that one run writes to, held by a lock between :meth:`open` and :meth:`close`.

    The lock is the kernel's (flock), so it ends with the process, however that dies. On a file system without
    such locks the run goes on with a warning.

    Attributes:
        ours: whether the checkpoints here are of the run that this object belongs to.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._lock, self._made, self.ours = None, False, False

    def open(self, create: bool) -> None:
        """Take the folder and remove what a killed run has left half written.

        Args:
            create: make the folder if it does not exist.

        Raises:
            ValueError: another run holds the folder, or it cannot be written to.
        """
        end = time.monotonic() + PATIENCE
        try:
            while not self._take(create, time.monotonic() < end):
                time.sleep(0.1)
            remove_leftovers(self.path)
        except OSError as fault:
            self.close()
            raise ValueError(f"cannot write to run.out = {self.path}: {fault.strerror}") from None

    def _take(self, create: bool, patient: bool) -> bool:
        """Try to lock the folder; False while another run holds it and ``patient``."""
        if create and not self.path.is_dir():
            self.path.mkdir(parents=True)
            self._made = True
        self._lock = open(self.path / LOCK_FILE, "a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            self._drop()
            if patient:
                return False
            raise ValueError(
                f"run.out = {self.path} is in use by {holder}: wait for it, or choose another run.out"
            ) from None
        except OSError as fault:
            print(
                f"mpifed: warning: {self.path} cannot be locked ({fault.strerror}): take care that no "
                "second run writes to it",
                file=sys.stderr,
            )
        if not self._holds():  # its holder has just removed the empty folder
            self._drop()
            return False
        self._lock.truncate(0)
        job = f", Slurm job {number}" if (number := slurm_job()) else ""
        self._lock.write(
            f"process {os.getpid()} on {socket.gethostname()}{job}, "
            f"since {datetime.now():%Y-%m-%d %H:%M:%S}\n"
        )
        self._lock.flush()
        return True

    def _holds(self) -> bool:
        """Whether the locked file is still the one that others find."""
        try:
            return os.path.samestat(os.fstat(self._lock.fileno()), os.stat(self.path / LOCK_FILE))
        except FileNotFoundError:
            return False

    def _drop(self) -> None:
        self._lock.close()
        self._lock = None

    def close(self) -> None:
        """Let the folder go; one that was made for a run that never began is removed."""
        if self._lock is None:
            return
        if self._made and not self.results():
            (self.path / LOCK_FILE).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else lies there
                self.path.rmdir()
        self._drop()

    def results(self) -> list[Path]:
        """The results file and the checkpoints that lie here."""
        return [*self.path.glob(RUN_FILE), *self.checkpoints()]

    def checkpoints(self) -> list[Path]:
        """The checkpoints that lie here, the newest last."""
        return sorted(self.path.glob("checkpoint-*.h5"))
