"""One logger for messages: on standard error, and in the log file of each rank during a run.

The logger is ``logging.getLogger("mpifed")``, and its level selects the messages: ``INFO`` in a run unless it
is set, below that how long rounds (``DEBUG``) and phases (:data:`PHASES`) take, which the logs alone have.
"""

from __future__ import annotations

import logging
import sys
import traceback
from types import TracebackType

__all__ = ["LOG", "PHASES", "drawn", "print_error", "print_traceback", "info", "visible", "warning"]

LOG = logging.getLogger("mpifed")
LOG.addHandler(logging.NullHandler())
LOG.propagate = False  # what is said here would be said twice where a script has set up logging

PHASES = logging.DEBUG - 1

#: What a terminal acts on in place of showing it, or shows in another order: the control characters but for
#: the ends of lines and tabs, bytes that no text has and some terminals take for the same, and the marks of
#: writing direction.
_RANGES = (
    *((0, 0x20), (0x7F, 0xA0), (0xDC80, 0xDCA0)),
    *((0x61C, 0x61D), (0x200E, 0x2010), (0x2028, 0x202F), (0x2066, 0x206A)),
)
_HIDDEN = {
    code: f"\\u{code:04x}"
    for start, stop in _RANGES
    for code in range(start, stop)
    if chr(code) not in "\n\t"
}
_LINE = _HIDDEN | {ord("\n"): "\\n", ord("\t"): "\\t"}


def visible(text: str, line: bool = False) -> str:
    """A text with its control characters escaped, ``\\u001b``; with ``line`` those that end a line, too.

    Names and reasons come from files, which strangers may have written: what a terminal gets of them is text
    to read and nothing that it acts on.
    """
    return text.translate(_LINE if line else _HIDDEN)


def drawn(text: str) -> str:
    """A text as matplotlib shows it: dollars begin no mathematics, and control characters have no glyph."""
    return visible(text, line=True).replace("$", r"\$")


def print_error(text: str) -> None:
    """A line on standard error, at once."""
    print(visible(text), file=sys.stderr, flush=True)


def print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Python's traceback on standard error, as ``sys.excepthook`` gets it."""
    print_error("".join(traceback.format_exception(kind, error, trace)).rstrip())


def info(text: str) -> None:
    """A line on standard error, above progress bars."""
    if LOG.level <= logging.INFO:
        _show(f"mpifed: {text}")
    LOG.info(text)


def warning(text: str) -> None:
    """A line on standard error that stays where others are left out."""
    _show(f"mpifed: warning: {text}")
    LOG.warning(text)


def _show(line: str) -> None:
    from tqdm import tqdm  # type: ignore[import-untyped]  # which commands that say nothing need not load

    tqdm.write(visible(line), file=sys.stderr)
