"""Ends a run without progress, and reports which ranks have reached the collective call and which have not.

A thread on each rank counts the seconds since the last :meth:`Watchdog.beat`. A rank that reaches its limit
reports to ranks 0 and 1 where it is: waiting in a collective call, or in a client's step. These two ranks
then ask all other ranks, which answer even if their own limits are longer. Rank 0, or rank 1 if rank 0 does
not answer, prints the list and ends all ranks. A rank that is stopped, or hangs in C code that holds the GIL,
does not answer and is reported as such. If every rank hangs in such code, no thread of Python can run:
faulthandler's timer then prints the stacks and ends the process, ``RESERVE`` seconds after the limit.

Only time in which the process could run counts. If all ranks are stopped together and continued (Ctrl-Z, a
suspended Slurm job), the thread wakes up late and the limit is extended. If only one rank is stopped, the
other ranks report it as hanging. faulthandler's timer also counts the time in which a process is stopped, so
a run that is suspended for longer than ``RESERVE`` ends when it is continued, and can be resumed.

A rank also ends if its launcher has died, because not every launcher ends its ranks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import sys
import threading
import time
import traceback

from mpifed.base.log import LOG, print_error
from mpifed.parallel.comm import SerialComm

__all__ = ["Watchdog", "EXIT_HANG"]

#: Exit code of a run that the watchdog has ended.
EXIT_HANG = 75
#: Exit code of a rank whose launcher has died, the same as that of any failed rank.
EXIT_ORPHAN = 1
#: Seconds in which ranks 0 and 1 collect the answers of the other ranks.
GRACE = 5.0
#: Seconds after the limit at which faulthandler ends a process in which no thread of Python can run.
RESERVE = 3600.0
#: The longest timeout passed to faulthandler, in seconds.
LONGEST = 1e9
#: Ratio of the limit to the longest time between two beats of the same type so far.
SLACK = 10
#: Maximum number of seconds between two checks of the time.
TICK = 1.0


class Watchdog:
    """Context that ends the run if this rank makes no progress.

    Args:
        minimum: smallest limit in seconds. The limit is ``SLACK`` times larger for the first work of a type
            (set-up, first round, first evaluation), unless :meth:`beat` receives its expected duration. 0 or
            infinity disables the watchdog.
    """

    def __init__(self, comm: SerialComm, minimum: float):
        self.comm, self.minimum = comm, minimum if math.isfinite(minimum) else 0.0
        self.round, self._work, self._limit = 0, "set-up", SLACK * self.minimum
        self._longest: dict[str, float] = {}
        self._tick, self._since_beat = min(TICK, self.minimum / 8), 0.0
        self._done = threading.Event()

    def __enter__(self) -> Watchdog:
        self._last, self._cpu_time, self._parent = time.monotonic(), time.process_time(), os.getppid()
        if self.minimum:
            self._main = threading.get_ident()
            self._thread = threading.Thread(target=self._watch, name="mpifed-watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        if self.minimum:
            self._done.set()
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    def beat(self, round: int, next_work: str = "round", expected: float | None = None) -> None:
        """Report progress.

        Args:
            round: number of completed rounds.
            next_work: type of the next work: "round", "evaluation", "checkpoint" or "callbacks". Each type
                has its own limit.
            expected: expected duration of the next work in seconds, used the first time.
        """
        present, worked = time.monotonic(), time.process_time()
        took = present - self._last
        if self.minimum:  # without the time in which the process was stopped
            took = min(took, max(self._since_beat + 2 * self._tick, worked - self._cpu_time))
        self._longest[self._work] = max(self._longest.get(self._work, 0.0), took)
        self.round, self._work, self._cpu_time = round, next_work, worked
        unknown = self.minimum if expected is None else expected
        self._limit = max(self.minimum, SLACK * self._longest.get(next_work, unknown))
        self._last = present  # assigned last, because the thread waits for it

    def _watch(self) -> None:
        seen, limit, end = self._last, self._limit, self._limit
        checked, worked = time.monotonic(), time.process_time()
        while True:
            _set_timer(end - self._since_beat + RESERVE)
            if self._done.wait(self._tick):
                return
            if self.comm.size > 1 and os.getppid() != self._parent:
                self._end_alone()
            past, work = time.monotonic() - checked, time.process_time() - worked
            checked, worked = checked + past, worked + work
            if self._last != seen:
                seen, limit, end, self._since_beat = self._last, self._limit, self._limit, 0.0
                continue
            ran = min(past, max(2 * self._tick, work))  # the main thread may have held the GIL
            self._since_beat += ran
            if past - ran > limit / 4:
                end = self._since_beat + limit
            if self._since_beat >= end or (
                self._since_beat >= self.minimum / 2 and self.comm.hang_reported()
            ):
                self._expire()

    def _end_alone(self) -> None:
        """End this rank without MPI, which may no longer work."""
        with contextlib.suppress(OSError):  # standard error may be closed
            print_error(f"mpifed: rank {self.comm.rank} ends: its launcher has died")
        LOG.critical("this rank ends: its launcher has died")
        os._exit(EXIT_ORPHAN)

    def _expire(self) -> None:
        """Report to ranks 0 and 1, which collect the answers and end all ranks. Does not return."""
        _set_timer(5 * GRACE)
        rank, call = self.comm.rank, self.comm.calling
        status_text = f"waits in {call}" if call else f"is at {self._location()}"
        answers = self.comm.report_hang(status_text, GRACE)
        if not call:
            faulthandler.dump_traceback(file=sys.__stderr__)
        LOG.critical("no progress: this rank %s\n%s", status_text, self._stack())
        if answers is None or rank != min(answers):
            time.sleep(2 * GRACE)  # another rank ends all ranks before this
            answers = {rank: status_text}
        print_error(self._report(answers))
        LOG.critical(self._report(answers).removeprefix("mpifed: "))
        self.comm.abort(EXIT_HANG)

    def _stack(self) -> str:
        return "".join(traceback.format_stack(sys._current_frames()[self._main])).rstrip()

    def _location(self) -> str:
        frame = sys._current_frames()[self._main]
        return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"

    def _report(self, answers: dict[int, str]) -> str:
        ranks = range(self.comm.size)
        arrived = [rank for rank in ranks if answers.get(rank, "").startswith("waits")]
        missing = [
            f"rank {rank} {answers.get(rank, 'does not answer')}" for rank in ranks if rank not in arrived
        ]
        return (
            f"mpifed: no progress for {self._limit:.3g} s in the {self._work} after round {self.round} "
            f"(run.watchdog = {self.minimum:g}). "
            f"Arrived: {', '.join(map(str, arrived)) or 'none'}. Not arrived: {'; '.join(missing) or 'none'}"
        )


def _set_timer(seconds: float) -> None:
    """Restart faulthandler's timer, which prints all stacks and ends the process after ``seconds``."""
    faulthandler.dump_traceback_later(min(seconds, LONGEST), exit=True, file=sys.__stderr__)
