"""Stop requests: SIGUSR1, SIGTERM and Ctrl-C end a run cleanly after a round.

A signal from Slurm, mpirun or a keyboard may reach any subset of the ranks. A rank that has received one sets
:attr:`StopSignals.requested`; the run sends this with the first Allreduce of the next round, so all ranks
stop after the same round. A second SIGINT ends all ranks at once.

Python runs a signal handler only between two bytecode instructions of the main thread, which may wait in MPI
for long. Therefore the interpreter's C handler writes the signal's number to a pipe at once
(``signal.set_wakeup_fd``), and a thread reads the pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from mpifed.base.log import LOG, info, print_error

if TYPE_CHECKING:
    from mpifed.parallel.comm import SerialComm
    from mpifed.running.result import Result

__all__ = [
    "EXIT_INTERRUPTED", "EXIT_RESUME", "EarlySignals", "StopSignals", "Stopped", "early_signal",
    "hold_signals", "release_signals", "stopped_by",
]  # fmt: skip

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
TERMINAL = "/dev/tty"
#: Exit code after the second SIGINT.
EXIT_INTERRUPTED = 130
#: Exit code of a run that was stopped by a signal: the same command resumes it.
EXIT_RESUME = 85


class Stopped(SystemExit):
    """Raised after SIGTERM or SIGUSR1, on all ranks together, when the run's files are written.

    The run is complete or can be resumed from a checkpoint. If it is not caught, the exit code is 85.

    Attributes:
        result: the result that the run would have returned.
    """

    def __init__(self, result: Result):
        super().__init__(result.stopped)
        self.code, self.result = EXIT_RESUME, result


def stopped_by(number: int, result: Result) -> Stopped | KeyboardInterrupt:
    """Return the exception for a run that a signal has stopped, with the run's ``result``."""
    if number != signal.SIGINT:
        return Stopped(result)
    error = KeyboardInterrupt(result.stopped)  # a subclass would end Python with exit code 1
    error.result = result
    return error


class EarlySignals(list):
    """A handler that records the numbers of signals that arrive before a run can act on them.

    The second SIGINT ends the process.
    """

    def listen(self) -> None:
        """Install the handler, and keep the previous ones."""
        self._previous = {number: signal.signal(number, self) for number in SIGNALS}

    def restore(self) -> None:
        """Restore the previous handlers of signals whose handler is still this one."""
        for number, handler in self._previous.items():
            if signal.getsignal(number) is self:
                signal.signal(number, handler)

    def __call__(self, number, frame):
        if number == signal.SIGINT and number in self:
            os.write(2, b"mpifed: second SIGINT: ending at once\n")
            os._exit(EXIT_INTERRUPTED)
        self.append(number)


def _early() -> EarlySignals | None:
    """Return the handler that records early signals in this process, if it is installed."""
    handler = signal.getsignal(signal.SIGTERM)
    return handler if isinstance(handler, EarlySignals) else None


@contextlib.contextmanager
def hold_signals():
    """Record signals just before and after a run, which would otherwise end it with a misleading exit code.

    :class:`StopSignals` acts on signals recorded before the run; signals after the run have no effect.
    """
    early = _early()
    if early is None:
        early = EarlySignals()
        early.listen()
    try:
        yield
    finally:
        early.restore()  # a process that is about to end ignores recorded signals


def early_signal(comm: SerialComm) -> int:
    """Return the number of a signal that any rank has recorded so far; 0 without a signal. Collective."""
    return _largest(comm, next(iter(_early() or ()), 0))


def release_signals() -> None:
    """Restore the previous handlers, and send the recorded signals to this process again."""
    early = _early()
    if early is not None:
        early.restore()
        for number in early:
            os.kill(os.getpid(), number)


def _largest(comm: SerialComm, number: int) -> int:
    """Return the largest number on any rank. SIGINT is the smallest of the three signals."""
    import numpy as np  # not at the top: the command line records signals before it loads libraries

    numbers = np.array([number], dtype=np.int64)
    comm.allreduce_(numbers, "max")
    return int(numbers[0])


class StopSignals:
    """Catches the signals within a ``with`` block, and restores the previous handlers.

    Outside the main thread, where Python allows no handlers, no signal is caught.

    Args:
        progress: returns a text about the progress of the run for the message.

    Attributes:
        requested: name of the first signal received; "" without a signal.
    """

    def __init__(self, comm: SerialComm, progress: Callable[[], str]):
        self.comm, self.progress, self.requested = comm, progress, ""

    def __enter__(self) -> StopSignals:
        self._active = threading.current_thread() is threading.main_thread()
        if self._active:
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            self._previous = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
            self._previous_pipe = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._watch, name="mpifed-signals", daemon=True)
            self._thread.start()
            early = self._previous[SIGNALS[0]]
            if isinstance(early, EarlySignals):
                os.write(self._write, bytes(early))
        return self

    def __exit__(self, *_) -> None:
        if self._active:
            signal.set_wakeup_fd(self._previous_pipe)
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            os.close(self._write)  # the thread reads the end of the pipe
            self._thread.join()
            os.close(self._read)
        del self.progress  # breaks a reference cycle with the run, which would keep its data in memory

    def common_signal(self) -> int:
        """Return the number of a signal that any rank has received, 0 without a signal. Collective.

        SIGINT is returned only if no rank has received another signal.
        """
        return _largest(self.comm, signal.Signals[self.requested] if self.requested else 0)

    def _announce(self, text: str) -> None:
        """Log and print a message. Open MPI drops output after Ctrl-C, so it is written to the terminal."""
        if "OMPI_COMM_WORLD_RANK" in os.environ and self.requested == "SIGTERM":
            with contextlib.suppress(OSError), open(TERMINAL, "w", errors="backslashreplace") as terminal:
                terminal.write(f"\nmpifed: {text}; the same command continues from there\n")
        info(text)

    def _watch(self) -> None:
        interrupts = 0
        while number := os.read(self._read, 1):
            if number[0] not in SIGNALS:
                continue
            name = signal.Signals(number[0]).name
            interrupts += name == "SIGINT"
            if interrupts > 1:
                print_error(f"mpifed: second SIGINT on rank {self.comm.rank}: ending at once")
                self.comm.abort(EXIT_INTERRUPTED)
            if not self.requested:
                self.requested = name
                if self.comm.rank == 0:
                    self._announce(f"{name} {self.progress()}")
                else:
                    LOG.info("%s received", name)
