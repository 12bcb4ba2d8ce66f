"""Paths that users give: in settings, on the command line, in Python and in environment variables.

This module imports no large library, because the command line loads it.
"""

from __future__ import annotations

import os
from pathlib import Path

from mpifed.base.errors import ConfigError, short_repr

__all__ = ["expand_home", "expect_output_folder"]


def expand_home(path: str | os.PathLike) -> str:
    """Return a path as a text in which a leading ``~`` or ``~user`` is the home folder.

    For paths that users give, once: a folder called ``~`` can exist, and is found as ``./~``.

    A shell expands it only at the beginning of a word, not in ``run.out=~/runs`` or ``--out=~/runs``. Nothing
    else is expanded, e.g. no environment variables.

    Raises:
        ConfigError: there is no such home folder.
    """
    text = os.fsdecode(path)
    if not text.startswith("~"):
        # Path("./~") is Path("~"), which another call would expand.
        return os.path.abspath(text) if str(Path(text)).startswith("~") else text
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise ConfigError(
            f"{short_repr(text)}: there is no home folder {short_repr(text.partition('/')[0])}; a file or "
            f"folder of this name is {short_repr('./' + text)}"
        )
    return expanded


def expect_output_folder(path: str | os.PathLike) -> str:
    """Return the path of a folder to write to, as a text.

    Raises:
        ConfigError: it is the root folder or the home folder, in which the files would be scattered.
    """
    text = expand_home(path)
    places = {"/": "the root folder", os.path.expanduser("~"): "the home folder"}
    for place, name in places.items():
        if os.path.exists(text) and os.path.exists(place) and os.path.samefile(text, place):
            raise ConfigError(
                f"expected a folder of its own for the files, e.g. ~/runs/run, got {short_repr(text)}, which "
                f"is {name}"
            )
    return text
