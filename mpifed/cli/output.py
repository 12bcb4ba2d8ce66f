"""Printing of all commands, and the end of a program whose output is no longer read, as in ``mpifed list |
head``.

Such a program ends silently, as if SIGPIPE had ended it. SIGPIPE itself stays ignored, as in Python: it would
also end a run whose plugin writes to a connection that the other side has closed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

import click

from mpifed.base.log import visible

__all__ = ["EXIT_UNREAD", "Unread", "echo", "ends_quietly", "noticed"]

#: The exit code that a shell reports for a program that SIGPIPE ended.
EXIT_UNREAD = 141


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print a text, to standard error with ``err``. Control characters, for example from other people's
    files, are escaped."""
    click.echo(visible(str(text)), err=err, nl=nl)


class Unread(Exception):
    """The reader of the output has closed it."""


@contextlib.contextmanager
def noticed() -> Iterator[None]:
    """Turn a closed pipe into :class:`Unread`: click and rich would end the program with code 1.

    Raises:
        Unread: the reader of the output has closed it.
    """
    try:
        yield
    except BrokenPipeError:
        raise Unread from None
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # raised by rich
            raise Unread from None
        raise


@contextlib.contextmanager
def ends_quietly(before: Callable[[int], None] = lambda code: None) -> Iterator[None]:
    """End the program with :data:`EXIT_UNREAD` when the reader of its output has closed it.

    Args:
        before: called with the exit code first.
    """
    try:
        with noticed():
            try:
                yield
            finally:
                sys.stdout.flush()
    except Unread:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):  # their buffers are flushed when Python ends
            os.dup2(nowhere, stream.fileno())
        before(EXIT_UNREAD)
        sys.exit(EXIT_UNREAD)
