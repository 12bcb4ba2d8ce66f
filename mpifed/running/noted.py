"""Signals that come before anybody can act on them are noted. Imports nothing that takes time."""

from __future__ import annotations

import os
import signal

__all__ = ["Noted", "SIGNALS", "EXIT_INTERRUPTED"]

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
#: Exit code after the second SIGINT.
EXIT_INTERRUPTED = 130


class Noted(list):
    """A handler that keeps the numbers of the signals that came; the second SIGINT ends the process."""

    def listen(self) -> None:
        """Begin; the handlers of before are kept."""
        self._before = {number: signal.signal(number, self) for number in SIGNALS}

    def leave(self) -> None:
        """Put the handlers of before back, but for those that somebody has replaced meanwhile."""
        for number, handler in self._before.items():
            if signal.getsignal(number) is self:
                signal.signal(number, handler)

    def __call__(self, number, frame):
        if number == signal.SIGINT and number in self:
            os.write(2, b"mpifed: second SIGINT: ending at once\n")
            os._exit(EXIT_INTERRUPTED)
        self.append(number)
