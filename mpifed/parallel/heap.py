"""Memory that the C library keeps for the tensors to come."""

from __future__ import annotations

import contextlib
import ctypes
import os

__all__ = ["keep_freed_memory"]

#: Parameters of glibc's ``mallopt(3)``: blocks up to 32 MiB, the most it takes, come from the heap, of which
#: what is free is given back to the system only above 256 MiB, and which grows by 16 MiB.
_SETTINGS = ((-3, 32 * 2**20), (-1, 256 * 2**20), (-2, 16 * 2**20))


def keep_freed_memory() -> None:
    """Let the C library keep what is freed: else tensors of some 100 KB and more are given back to the system
    at every step, and the next ones fault their pages in again, a fifth of a step's time.

    glibc alone has this; elsewhere nothing happens. Whoever has set one of its variables in the environment
    has decided.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    with contextlib.suppress(OSError, AttributeError):  # another system, another C library
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for parameter, value in _SETTINGS:
            mallopt(parameter, value)
