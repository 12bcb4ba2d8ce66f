"""The logs of a run: one text file per rank, ``log/rank-3.txt``, with the messages of the logger "mpifed".

Each line is passed to the operating system before the call returns, so a killed rank loses none. A resumed
run appends to its logs, after a line that names the new process; a run that starts over replaces them.

File systems of clusters are slow for thousands of files. Of more than :data:`MANY` ranks, only the first of
each node has a log from the start; the others keep their last messages in memory, and write a log once there
is a warning or an error among them.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import stat
import sys
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path

from mpifed.base.log import LOG, escape_control, warning
from mpifed.parallel.comm import SerialComm, broadcast_text, collective_errors
from mpifed.parallel.world import process_name
from mpifed.storage.files import LOG_FOLDER, LOG_MAGIC, is_own, logs, open_file, rank_of

__all__ = ["RankLog"]

#: Maximum number of ranks that all have a log, and number of messages that the other ranks keep in memory.
MANY, KEPT = 64, 1000


class _Formatter(logging.Formatter):
    """Adds the time, and the level of warnings and errors."""

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"{self.formatTime(record)} {level}{escape_control(super().format(record))}"


class _File(logging.StreamHandler):
    """Writes until the first error, which causes a warning and does not end the run."""

    def handleError(self, record: logging.LogRecord) -> None:
        LOG.removeHandler(self)
        self.setLevel(sys.maxsize)  # for the handler of kept messages
        warning(f"cannot write the log {self.stream.name}: the run continues without it")


class _AfterWarning(logging.Handler):
    """Keeps the last messages in memory until the first warning, which opens the file."""

    def __init__(self, open_file: Callable[[], logging.Handler]):
        super().__init__()
        self._open_file = open_file
        self._kept: deque[logging.LogRecord] = deque(maxlen=KEPT)
        self._file: logging.Handler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(record)
        if self._file is None and record.levelno >= logging.WARNING:
            self._file = self._open_file()
        while self._file and self._kept:
            kept = self._kept.popleft()
            if kept.levelno >= self._file.level:
                self._file.handle(kept)


class RankLog:
    """Context that logs the messages of this rank: in memory until :meth:`open`, then to a file.

    The level is ``INFO`` unless another level is set. Warnings of Python and the error that ends the run are
    logged as well.
    """

    def __init__(self, comm: SerialComm, folder: Path):
        self._comm, self._folder = comm, folder
        #: Collects messages of all levels until there is a file.
        self._buffer = logging.handlers.MemoryHandler(sys.maxsize, flushLevel=sys.maxsize)
        self._handler: logging.Handler = self._buffer
        self._file: _File | None = None

    def __enter__(self) -> RankLog:
        self._level, self._show = LOG.level, warnings.showwarning
        LOG.setLevel(self._level or logging.INFO)
        LOG.addHandler(self._handler)
        warnings.showwarning = self._show_and_log
        return self

    def __exit__(self, kind, error: BaseException | None, trace) -> None:
        if error is not None:
            LOG.critical("the run has ended on this rank with an error:", exc_info=error)
        if warnings.showwarning == self._show_and_log:
            warnings.showwarning = self._show
        LOG.removeHandler(self._handler)
        LOG.setLevel(self._level)
        self._handler.close()
        if self._file:
            self._file.close()
            self._file.stream.close()

    def _show_and_log(self, message, category, filename, lineno, file=None, line=None) -> None:
        self._show(message, category, filename, lineno, file, line)
        LOG.warning(warnings.formatwarning(message, category, filename, lineno, line).rstrip())

    def open(self) -> None:
        """Open the file in the locked folder of the run. Collective.

        A rank that does not see the folder, or cannot write to it, keeps no log.

        Raises:
            CollectiveError: a file of the user has the name of a log.
        """
        error = ""
        with collective_errors(self._comm, ValueError):
            if self._comm.rank == 0:
                error = self._prepare_folder()
        if reason := broadcast_text(self._comm, error):
            if self._comm.rank == 0:
                place = self._folder / LOG_FOLDER
                warning(f"cannot write the logs in {place}: {reason}; the run continues without them")
            return
        has_file = self._comm.size <= MANY or self._comm.rank == self._comm.node
        handler = self._open_file() if has_file else _AfterWarning(self._open_file)
        LOG.removeHandler(self._buffer)
        LOG.addHandler(handler)
        self._handler = handler
        self._buffer.setTarget(handler)
        self._buffer.flush()

    @property
    def _path(self) -> Path:
        return self._folder / LOG_FOLDER / f"rank-{self._comm.rank}.txt"

    def _open_file(self) -> logging.Handler:
        """Return the handler that appends to this rank's file, or one that writes nothing."""
        try:
            stream = open_file(self._path, "a", encoding="utf-8", errors="backslashreplace")
            self._start_of_run = os.fstat(stream.fileno()).st_size
            stream.write(f"{LOG_MAGIC.decode()}{self._comm.rank} of {self._comm.size}, {process_name()}\n")
            stream.flush()
        except OSError as error:
            if self._comm.rank == 0:
                warning(f"cannot write the log {self._path}: {error.strerror}; the run continues without it")
            return logging.NullHandler()
        self._file = _File(stream)
        self._file.setFormatter(_Formatter())
        return self._file

    def _prepare_folder(self) -> str:
        """Create the folder of the logs on rank 0; return why that is not possible, "" if it is."""
        place = self._folder / LOG_FOLDER
        if os.path.lexists(place) and not stat.S_ISDIR(os.lstat(place).st_mode):
            raise ValueError(f"expected a folder for the logs, found a file or a link {place}: move it away")
        try:
            place.mkdir(exist_ok=True)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def remove_previous(self) -> None:
        """Remove the messages of earlier runs, and the logs of ranks that this run does not have."""
        if isinstance(self._handler, _AfterWarning) and not self._file:
            with contextlib.suppress(OSError):
                if is_own(self._path):
                    self._path.unlink()
        if not self._file:
            return
        with contextlib.suppress(OSError):
            for path in logs(self._folder) if self._comm.rank == 0 else ():
                if rank_of(path) >= self._comm.size and is_own(path):
                    path.unlink()
        with contextlib.suppress(OSError), open(self._path, "rb+") as file:
            file.seek(self._start_of_run)
            current = file.read()
            file.seek(0)
            file.write(current)
            file.truncate()
