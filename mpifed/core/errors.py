"""Errors that a user can mend: what they mean, and which lines of the user's own code they came from."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

__all__ = ["ConfigError", "ContractError", "PluginError", "user_frames"]

_PACKAGE = Path(__file__).resolve().parents[1]
_PYTHON = Path(sysconfig.get_path("stdlib")).resolve()
#: Names of code that lies in no file and is nobody's: what the import system and dataclasses make.
_MADE = ("<frozen ", "<string>")


class ConfigError(ValueError):
    """A job asks for something that cannot be done. The message has one line a fault."""


class ContractError(ValueError):
    """A method or a problem breaks the contract it is written against. The message has one line a fault."""


class PluginError(ValueError):
    """A function of a method or of a problem has raised an error, which is ``__cause__``.

    Attributes:
        round, phase: where in the run.
        clients: the numbers of the clients that were stepped.
    """

    def __init__(self, message: str, round: int, phase: str, clients: list[int]):
        super().__init__(message)
        self.round, self.phase, self.clients = round, phase, clients


def user_frames(error: BaseException) -> str:
    """The user's own frames of an error's traceback, as Python prints them; "" where it has none.

    Frames of this package, of installed packages and of the standard library are left out. A syntax error
    ends with the line that could not be read.
    """
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    lines = traceback.format_list(own)
    if isinstance(error, SyntaxError) and error.filename:
        lines += [f'  File "{error.filename}", line {error.lineno}\n', f"    {(error.text or '').strip()}\n"]
    return "".join(lines).rstrip()


def _is_own(filename: str) -> bool:
    """Whether a file is neither installed nor made by Python itself."""
    if filename.startswith(_MADE):
        return False
    path = Path(filename).resolve()
    foreign = path.is_relative_to(_PACKAGE) or path.is_relative_to(_PYTHON)
    return not foreign and not {"site-packages", "dist-packages"} & set(path.parts)
