"""Entry point of the command line: signals are handled before large packages are imported.

Importing torch takes seconds on a busy machine. A signal during the import must neither end the process
silently nor one rank without the others.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from mpifed.running.signals import EarlySignals

__all__ = ["loading", "main"]


def main() -> None:
    """The command line, with signals recorded from the beginning."""
    EarlySignals().listen()
    from mpifed.cli.main import main as command_line

    command_line()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Disable garbage collection during imports, and exclude the imported objects from later collections."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
