"""Printing of all commands.

If the output is closed early, as in ``mpifed list | head``, click and rich exit silently with code 1.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable

import click

from mpifed.base.log import escape_control, wrap_on_terminal

__all__ = ["console", "echo", "print_markdown", "print_table"]


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print a text with control characters escaped, to standard error if ``err``."""
    line = escape_control(str(text))
    # With a file, because click would print UTF-8 where the encoding of the terminal is ASCII.
    click.echo(wrap_on_terminal(line) if err else line, sys.stderr if err else sys.stdout, nl)


def console():
    """Return a console of rich: as wide as the terminal or ``$COLUMNS``, otherwise 110 columns."""
    from mpifed.base.console import Console

    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(highlight=False, markup=False, width=None if known else 110)


def print_markdown(text: str) -> None:
    """Print a docstring or another text in Markdown, wrapped at the width of the console."""
    from rich.markdown import Markdown

    text = re.sub(r"(?m) ?::$", ":", text)  # before an indented block
    text = re.sub(r"(?m)^    (?=\w[\w, ]*: )", "* ", text)  # the entries of "Attributes:" or "Args:"
    console().print(Markdown(text, hyperlinks=False))


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str] | None], paged: bool = False) -> None:
    """Print a table; a row ``None`` ends a section. With ``paged``, a long table is shown by a pager."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_section() if row is None else table.add_row(*row)
    screen = console()
    if not paged:
        screen.print(table)
        return
    with screen.capture() as captured:
        screen.print(table)
    text = captured.get()
    click.echo_via_pager(text) if text.count("\n") >= screen.height else click.echo(
        text, sys.stdout, nl=False
    )
