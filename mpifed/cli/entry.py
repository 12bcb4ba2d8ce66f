"""Where the processes of the command line begin: they listen to signals before they load what takes long.

Torch and what stands on it take seconds to import on a busy machine. A signal in this time must not end the
process without a word, nor one rank without the others.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from mpifed.core.later import put_off
from mpifed.running.noted import Noted

__all__ = ["loading", "main"]


def main() -> None:
    """The command line, with signals noted from the first moment on."""
    Noted().listen()
    put_off()
    from mpifed.cli.main import main as command_line

    command_line()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Around imports: what they make stays, so no collection looks through it, the last one included."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
