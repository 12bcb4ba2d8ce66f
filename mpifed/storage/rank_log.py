"""The logs of a run: one text file per rank, ``log/rank-3.txt``, with the messages of the logger "mpifed".

Each line is with the system when the call returns, so a rank that is killed leaves all of them. A run that
goes on adds to its logs, under a line that names the new process; one that starts over begins them anew.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import time
import warnings
from pathlib import Path

from mpifed.base.log import LOG, visible, warning
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.parallel.world import slurm_job
from mpifed.storage.ownership import LOG_FILES, LOG_FOLDER, claim, is_own, logs, rank_of

__all__ = ["RankLog"]


class _Lines(logging.Formatter):
    """Lines with the time, and from a warning on the level."""

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"{self.formatTime(record)} {level}{visible(super().format(record))}"


class _File(logging.StreamHandler):
    """Writes as long as that succeeds: a log that cannot be written costs a warning, not the run."""

    def handleError(self, record: logging.LogRecord) -> None:
        LOG.removeHandler(self)
        warning(f"no more of the log {self.stream.name}: it cannot be written; the run goes on")


class RankLog:
    """What this rank's process is told from here on, in memory until :meth:`open`; the level is ``INFO``
    unless somebody has set one.

    Between ``with`` and its end, warnings of Python are noted as well as shown, and so is the error that ends
    the run.
    """

    def __init__(self, comm: SerialComm, folder: Path):
        self._comm, self._folder = comm, folder
        self._handler: logging.Handler = _Waiting()

    def __enter__(self) -> RankLog:
        self._level, self._show = LOG.level, warnings.showwarning
        LOG.setLevel(self._level or logging.INFO)
        LOG.addHandler(self._handler)
        warnings.showwarning = self._warned
        return self

    def __exit__(self, kind, error: BaseException | None, trace) -> None:
        if error is not None:
            LOG.critical("the run has ended on this rank with", exc_info=error)
        if warnings.showwarning == self._warned:
            warnings.showwarning = self._show
        LOG.removeHandler(self._handler)
        LOG.setLevel(self._level)
        self._handler.close()
        if isinstance(self._handler, _File):
            self._handler.stream.close()

    def _warned(self, message, category, filename, lineno, file=None, line=None) -> None:
        self._show(message, category, filename, lineno, file, line)
        LOG.warning(warnings.formatwarning(message, category, filename, lineno, line).rstrip())

    def open(self) -> None:
        """Take up the file in the run's folder, which the run holds. A rank that does not see the folder, or
        cannot write there, keeps no log. Collective.

        Raises:
            CollectiveError: what is not this package's lies in the place of a log.
        """
        with collective_errors(self._comm, ValueError):
            if self._comm.rank == 0:
                self._make()
        path = self._folder / LOG_FOLDER / f"rank-{self._comm.rank}.txt"
        try:
            stream = open(path, "a", encoding="utf-8", errors="backslashreplace", opener=_no_link)
            self._begun = os.fstat(stream.fileno()).st_size
            stream.write(_title(self._comm))
            stream.flush()
        except OSError as fault:
            if self._comm.rank == 0:
                warning(f"no log: {path}: {fault.strerror}")
            return
        waiting, self._handler = self._handler, _File(stream)
        self._handler.setFormatter(_Lines())
        LOG.removeHandler(waiting)
        LOG.addHandler(self._handler)
        for record in waiting.records:
            self._handler.handle(record)

    def _make(self) -> None:
        place = self._folder / LOG_FOLDER
        if os.path.lexists(place) and not stat.S_ISDIR(os.lstat(place).st_mode):
            raise ValueError(f"{place} is no folder, and logs go there: move it away")
        with contextlib.suppress(OSError):  # a full disk, which opening reports
            place.mkdir(exist_ok=True)
            claim(place, LOG_FILES)

    def forget(self) -> None:
        """Drop what earlier runs have written, and the logs of ranks that there are no more."""
        if not isinstance(self._handler, _File):
            return
        stale = [path for path in logs(self._folder) if rank_of(path) >= self._comm.size]
        with contextlib.suppress(OSError):
            for path in filter(is_own, stale if self._comm.rank == 0 else []):
                path.unlink()
        with contextlib.suppress(OSError), open(self._handler.stream.name, "rb+") as file:
            file.seek(self._begun)
            kept = file.read()
            file.seek(0)
            file.write(kept)
            file.truncate()


class _Waiting(logging.Handler):
    """Keeps messages until there is a file."""

    def __init__(self):
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _title(comm: SerialComm) -> str:
    """The line at the head of what a process writes."""
    job = f", Slurm job {number}" if (number := slurm_job()) else ""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    who = f"process {os.getpid()} on {socket.gethostname()}{job}, since {now}"
    return f"mpifed log of rank {comm.rank} of {comm.size}, {who}\n"
