"""Ends a run that does not move any more, and says which ranks have arrived and which have not.

Every rank has a deadline, moved by :meth:`Watchdog.beat`. A thread that finds it passed tells the witnesses
(ranks 0 and 1) where its rank stands: waiting in a collective, or somewhere in a client's step. The first
witness that answers at all prints the list and ends all ranks. A rank that hangs in C code with Python's lock
held, or that is stopped, sends nothing and is listed as silent; should every rank hang like that,
faulthandler's own timer, which needs neither Python nor MPI, ends the process after twice the limit.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time

from mpifed.parallel.comm import SerialComm

__all__ = ["Watchdog", "EXIT_HANG"]

#: Exit code of a run that the watchdog ended.
EXIT_HANG = 75
#: Seconds in which the witnesses collect the answers of the other ranks.
GRACE = 2.0
#: The limit is at least this many times the longest stretch of the same kind between two beats so far.
SLACK = 10


class Watchdog:
    """Watches one rank of a run between ``with`` and its end.

    Args:
        least: seconds without a beat that end the run at the earliest; ``SLACK`` times as many in what has
            not been done before (set-up, first round, first evaluation, first checkpoint), as nothing is
            known about how long it takes. 0: no watch.
    """

    def __init__(self, comm: SerialComm, least: float):
        self.comm, self.least = comm, least
        self.round, self._kind, self._limit = 0, "set-up", SLACK * least
        self._longest: dict[str, float] = {}
        self._done = threading.Event()

    def __enter__(self) -> Watchdog:
        self._last = time.monotonic()
        self._deadline = self._last + self._limit  # one number, as the thread may read it at any moment
        if self.least:
            self._main = threading.get_ident()
            self._thread = threading.Thread(target=self._watch, name="mpifed-watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        if self.least:
            self._done.set()
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    def beat(self, round: int, then: str = "round") -> None:
        """The run moves.

        Args:
            round: rounds done so far.
            then: what comes next; how long a round takes says nothing about an evaluation or a checkpoint.
        """
        present = time.monotonic()
        self._longest[self._kind] = max(self._longest.get(self._kind, 0.0), present - self._last)
        self.round, self._kind, self._last = round, then, present
        self._limit = max(self.least, SLACK * self._longest.get(then, self.least))
        self._deadline = present + self._limit

    def _watch(self) -> None:
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                self._expire()
            self._end_in(left + max(self._limit, 4 * GRACE))
            began, pause = time.monotonic(), min(left, self.least / 2)
            if self._done.wait(pause):
                return
            if (
                time.monotonic() - began > pause + self._limit
            ):  # the process has been stopped, and is to continue or to end
                self._deadline = time.monotonic() + self._limit

    def _expire(self) -> None:
        """Tell the witnesses; there, collect, report and end all ranks. Does not return."""
        self._end_in(5 * GRACE)
        rank, call = self.comm.rank, self.comm.calling
        here = f"waits in {call}" if call else f"is at {self._place()}"
        answers = self.comm.witness(here, GRACE)
        if not call:
            faulthandler.dump_traceback(file=sys.__stderr__)
        if answers is None or rank != min(answers):
            time.sleep(2 * GRACE)  # the first witness ends all ranks before this
            answers = {rank: here}
        print(self._report(answers), file=sys.stderr, flush=True)
        self.comm.abort(EXIT_HANG)

    @staticmethod
    def _end_in(seconds: float) -> None:
        """End this process then, whatever hangs. Later than the witnesses would, who say more."""
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)

    def _place(self) -> str:
        frame = sys._current_frames()[self._main]
        return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"

    def _report(self, answers: dict[int, str]) -> str:
        ranks = range(self.comm.size)
        arrived = [rank for rank in ranks if answers.get(rank, "").startswith("waits")]
        missing = [
            f"rank {rank} {answers.get(rank, 'does not answer')}" for rank in ranks if rank not in arrived
        ]
        return (
            f"mpifed: no progress for {self._limit:.3g} s in the {self._kind} after round {self.round} "
            f"(run.watchdog = {self.least:g}). "
            f"Arrived: {', '.join(map(str, arrived)) or 'none'}. Not arrived: {'; '.join(missing) or 'none'}"
        )
