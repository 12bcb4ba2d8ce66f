"""Entry point of the command line. It installs signal handlers before it imports large packages.

Importing torch takes seconds on a busy machine. A signal during the import would otherwise end one rank but
not the others, with an exit code that does not report the signal.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from mpifed.running.signals import EarlySignals

__all__ = ["loading", "main"]


def main() -> None:
    """Run the command line, and record signals from the beginning."""
    EarlySignals().listen()
    from mpifed.cli.main import main as command_line

    command_line()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Disable garbage collection during imports, and exempt the imported objects from later collections."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
