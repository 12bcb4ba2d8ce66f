"""What is told on the way, by one logger: on standard error, and in the log of a rank where a run keeps one.

The logger is ``logging.getLogger("mpifed")``, and its level decides what is told: ``INFO`` in a run unless it
is set, below that how long rounds (``DEBUG``) and phases (:data:`PHASES`) take, which the logs alone have.
"""

from __future__ import annotations

import logging
import sys

__all__ = ["LOG", "PHASES", "say", "warn"]

LOG = logging.getLogger("mpifed")
LOG.addHandler(logging.NullHandler())
LOG.propagate = False  # what is said here would be said twice where a script has set up logging

PHASES = logging.DEBUG - 1


def say(text: str) -> None:
    """A line on standard error, above progress bars."""
    if LOG.level <= logging.INFO:
        _show(f"mpifed: {text}")
    LOG.info(text)


def warn(text: str) -> None:
    """A line on standard error that stays where others are left out."""
    _show(f"mpifed: warning: {text}")
    LOG.warning(text)


def _show(line: str) -> None:
    from tqdm import tqdm  # type: ignore[import-untyped]  # which commands that say nothing need not load

    tqdm.write(line, file=sys.stderr)
