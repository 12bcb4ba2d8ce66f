"""The logger of the package, and messages on standard error.

The logger is ``logging.getLogger("mpifed")``. During a run each rank writes it to a log file. Its level is
``INFO`` in a run unless it is set. ``DEBUG`` adds the durations of rounds and :data:`PHASES` those of phases,
which are written to the log files only.
"""

from __future__ import annotations

import logging
import shutil
import sys
import textwrap
import traceback
from types import TracebackType

__all__ = [
    "LINE", "LOG", "PHASES", "escape_mathtext", "info", "print_error", "print_traceback", "progress_bar",
    "escape_cell", "escape_control", "warning", "wrap_on_terminal",
]  # fmt: skip

LOG = logging.getLogger("mpifed")
LOG.addHandler(logging.NullHandler())
LOG.propagate = False  # a script that configures logging would print every message twice

PHASES = logging.DEBUG - 1

#: Seconds between the lines of progress that are not printed on a terminal, and their maximum length.
INTERVAL, LINE = 10.0, 110
#: Characters that a terminal interprets instead of printing them, or that change the order of printed text:
#: control characters except for newlines and tabs, undecodable bytes that some terminals interpret like
#: control characters, and marks of writing direction.
_RANGES = (
    (0, 0x20), (0x7F, 0xA0), (0xDC80, 0xDCA0),
    (0x61C, 0x61D), (0x200E, 0x2010), (0x2028, 0x202F), (0x2066, 0x206A),
)  # fmt: skip
_CONTROL = {
    code: f"\\u{code:04x}"
    for start, stop in _RANGES
    for code in range(start, stop)
    if chr(code) not in "\n\t"
}
#: Characters with which a formula of a spreadsheet begins.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
_CONTROL_AND_BREAKS = _CONTROL | {ord("\n"): "\\n", ord("\t"): "\\t"}


def escape_control(text: str, line: bool = False) -> str:
    """Replace control characters by escape sequences such as ``\\u001b``.

    Names and messages may come from untrusted files and must not control the terminal.

    Args:
        line: also escape newlines and tabs.
    """
    return text.translate(_CONTROL_AND_BREAKS if line else _CONTROL)


def escape_mathtext(text: str) -> str:
    """Escape dollar signs, which delimit formulas in matplotlib, control characters and undecodable bytes."""
    printable = escape_control(text, line=True).encode(errors="backslashreplace").decode()
    return printable.replace("$", r"\$")


def escape_cell(value: object) -> object:
    """Return the value of a cell of a CSV file, without control characters in a text.

    A text that a spreadsheet would execute as a formula begins with an apostrophe. Numbers are unchanged.
    """
    if not isinstance(value, str):
        return value
    text = escape_control(value, line=True)
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
    return text


def wrap_on_terminal(text: str) -> str:
    """Wrap the lines of a message, except indented ones, if standard error is a terminal."""
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    wrapper = textwrap.TextWrapper(
        width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return "\n".join(
        line if len(line) <= width or line[:1].isspace() else wrapper.fill(line) for line in text.split("\n")
    )


def print_error(text: str) -> None:
    """Print text on standard error and flush."""
    print(escape_control(text), file=sys.stderr, flush=True)


def print_traceback(
    error_type: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print a traceback on standard error. The arguments are those of ``sys.excepthook``."""
    print_error("".join(traceback.format_exception(error_type, error, trace)).rstrip())


def info(text: str) -> None:
    """Log a message, and print it on standard error above progress bars."""
    if LOG.level <= logging.INFO:
        _show(f"mpifed: {text}")
    LOG.info(text)


def warning(text: str) -> None:
    """Log a warning, and print it on standard error at every level of the logger."""
    _show(f"mpifed: warning: {text}")
    LOG.warning(text)


class _Lines:
    """The file of a progress bar whose standard error is not a terminal: a line for each state of the bar."""

    encoding = "utf-8"

    def write(self, text: str) -> None:
        if text := text.strip():
            print(text[:LINE], file=sys.stderr, flush=True)

    def flush(self) -> None:
        pass


def progress_bar(**options):
    """Return a progress bar of tqdm on standard error, or lines at intervals if that is not a terminal."""
    from tqdm import tqdm  # type: ignore[import-untyped]  # not loaded by commands without messages

    if sys.stderr.isatty():
        return tqdm(dynamic_ncols=True, **options)
    form = "{desc}: {n_fmt} of {total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
    return tqdm(file=_Lines(), bar_format=form, mininterval=INTERVAL, **options)


def _show(line: str) -> None:
    from tqdm import tqdm

    tqdm.write(wrap_on_terminal(escape_control(line)), file=sys.stderr)
