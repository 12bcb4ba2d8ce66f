"""Ends a process that hangs where no Python can run, but not one that was only stopped."""

from __future__ import annotations

import ctypes
import faulthandler
import platform
import signal
import sys
import time

__all__ = ["LastResort"]

#: A signal that nothing on Linux sends, by its number: older Pythons have no name for it.
_FIRST = 16
#: Where timer_settime takes seconds from; more are as good as never.
_LONGEST = 1e9


class LastResort:
    """A timer that ends this process, with the stacks of all threads, unless it is put off in time.

    It is the kernel's, and its handlers are C functions, so a thread that keeps Python's lock cannot hold
    it up. Time also passes while a process is stopped (SIGSTOP, Ctrl-Z, a suspended Slurm job), and then
    the timer has run out when the process goes on. Therefore the first signal ends nothing: its handler is
    libc's ``alarm``, which takes the signal's number for a number of seconds. Python has so long (16 s) to
    put the end off, before SIGALRM comes to faulthandler. Nothing happens on systems other than Linux with
    glibc.
    """

    def __init__(self) -> None:
        self._runs = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
        if not self._runs:
            return
        self._libc = ctypes.CDLL("librt.so.1")
        self._libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        self._libc.signal.restype = ctypes.c_void_p
        self._before = self._libc.signal(_FIRST, ctypes.cast(self._libc.alarm, ctypes.c_void_p))
        faulthandler.register(signal.SIGALRM, file=sys.__stderr__, all_threads=True, chain=True)
        event = (ctypes.c_int * 16)(0, 0, _FIRST, 0)  # struct sigevent: value, signal, "send a signal"
        self._timer = ctypes.c_void_p()
        self._libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(self._timer))
        self._at = float("inf")

    def put_off(self, seconds: float) -> None:
        """The end comes after ``seconds`` from now (and 16 more), or not at all for 0."""
        if not self._runs:
            return
        whole, rest = divmod(min(seconds, _LONGEST), 1.0)
        self._libc.timer_settime(self._timer, 0, (ctypes.c_long * 4)(0, 0, int(whole), int(rest * 1e9)), None)
        if time.monotonic() >= self._at:
            self._libc.alarm(0)
        self._at = time.monotonic() + seconds if seconds else float("inf")

    def close(self) -> None:
        """No end any more; the signals get their handlers back."""
        self.put_off(0)
        if self._runs:
            self._libc.timer_delete(self._timer)
            faulthandler.unregister(signal.SIGALRM)
            self._libc.signal(_FIRST, self._before)
