"""Errors that a user can fix: likely causes, and the lines of user code that raised them."""

from __future__ import annotations

import contextlib
import re
import reprlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "ConfigError",
    "ContractError",
    "PluginError",
    "user_code_errors",
    "truncate",
    "join_lines",
    "short_repr",
    "message_of",
    "hint",
    "lacks_memory",
    "user_frames",
    "wanted",
]

_PACKAGE = Path(__file__).resolve().parents[1]
_PYTHON = Path(sysconfig.get_path("stdlib")).resolve()
#: File names of generated code, of the import system and of dataclasses.
_MADE = ("<frozen ", "<string>")
#: Maximum number of characters of a value, a name or a file name in a message.
LONGEST = 200
#: Maximum number of errors in a message.
MANY = 20


def truncate(text: str) -> str:
    """A text shortened for messages: a long text becomes its two ends and its length."""
    if len(text) <= LONGEST:
        return text
    end = LONGEST // 2 - 20
    return f"{text[:end]} ... ({len(text):,} characters) ... {text[-end:]}"


class _Short(reprlib.Repr):
    """``repr`` of values, abbreviated for large ones."""

    def __init__(self):
        super().__init__()
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 20
        self.maxother = sys.maxsize  # it is cut as a whole

    def repr_str(self, value: str, level: int) -> str:
        return repr(truncate(value))

    def repr_int(self, value: int, level: int) -> str:
        # Python refuses to spell integers of some thousand digits.
        return str(value) if value.bit_length() < 400 else f"an integer of {value.bit_length():,} bits"


_SHORT = _Short()


def join_lines(faults: Sequence, sentence: Callable[[Any], str]) -> str:
    """One line per error, at most :data:`MANY`, as one text."""
    more = [f"... and {len(faults) - MANY:,} more"] if len(faults) > MANY else []
    return "\n".join([*map(sentence, faults[:MANY]), *more])


def short_repr(value) -> str:
    """``repr`` of a value, shortened to about :data:`LONGEST` characters for messages."""
    return truncate(_SHORT.repr(value))


class ConfigError(ValueError):
    """A job has invalid settings. The message has one line per error."""


class ContractError(ValueError):
    """A method or a problem violates its contract. The message has one line per error."""


class PluginError(ValueError):
    """A function of a method or of a problem has raised an error, which is ``__cause__``.

    Attributes:
        round, phase: where in the run; ``None`` and "" outside of rounds.
        clients: the numbers of the clients that were stepped.
    """

    def __init__(self, message: str, round: int | None = None, phase: str = "", clients: Sequence[int] = ()):
        super().__init__(message)
        self.round, self.phase, self.clients = round, phase, list(clients)


@contextlib.contextmanager
def user_code_errors(
    what: str, round: int | None = None, phase: str = "", clients: Sequence[int] = ()
) -> Iterator[None]:
    """A context for a call of user code: its exceptions name the function, the round and the clients.

    Args:
        what: the function in words.
        clients: the numbers of the clients that it is called for, where it is called for some.

    Raises:
        ContractError: the function has broken the contract.
        PluginError: it has raised anything else, except for what is a sentence already and comes from no line
            of a user's: a lack of memory and, outside of rounds, a ValueError or OSError.
    """
    when = "" if round is None else f" in round {round}"
    try:
        yield
    except ContractError as error:
        if round is None:
            raise
        raise ContractError(f"{what}{when}: {error}") from error
    except Exception as error:  # a user's code may raise anything
        sentence = lacks_memory(error) or (round is None and isinstance(error, ValueError | OSError))
        if sentence and not user_frames(error):
            raise
        many = f"s {clients[0]} to {clients[-1]}" if len(clients) > 1 else ""
        whom = f" for client{many or f' {clients[0]}'}" if len(clients) else ""
        words = f"{type(error).__name__}: {error}".removesuffix(": ") + hint(error)
        raise PluginError(f"{what} failed{when}{whom}: {words}", round, phase, clients) from error


#: Words in errors of torch and Python → the likely cause in a method or a problem.
_MEANINGS = {
    "'Now'": "the first argument is `now`; the round's number is now.round",
    "doesn't match the broadcast shape": "clients read `shared` [d] and never write it: take a new name, "
    "x = shared.x - ..., which is [C, d]",
    "does not require grad": "the loss does not depend on the parameters: .detach(), .item() or .numpy()?",
    " is out of bounds": "labels are whole numbers from 0 to the number of outputs - 1",
    "shapes cannot be multiplied": "a problem's functions see the rows of one client, [b, ...]",
}


def hint(error: Exception) -> str:
    """The likely cause of an error in user code, in brackets; "" if unknown."""
    return next((f" ({meaning})" for words, meaning in _MEANINGS.items() if words in str(error)), "")


def lacks_memory(error: BaseException) -> bool:
    """Whether Python, NumPy or torch has failed to allocate an array."""
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)
    )


def wanted(error: BaseException) -> str:
    """The amount of memory that a :func:`lacks_memory` error requested, in words; "" if unknown."""
    found = re.search(r"to allocate ([\d.]+) (\w+)", str(error))
    if found is None:
        return ""
    number, unit = found.groups()
    return f"{int(number):,} {unit}" if number.isdecimal() else f"{number} {unit}"


def message_of(error: BaseException) -> str:
    """An error's message, followed by the lines of user code that raised it unless it has them.

    For errors of this package that have a cause, the lines are those of the cause.
    """
    raised = error
    while raised.__cause__ is not None and type(raised).__module__.startswith("mpifed."):
        raised = raised.__cause__
    text, frames = str(error), user_frames(raised)
    return text if frames in text else f"{text}\n{frames}"


def user_frames(error: BaseException) -> str:
    """The frames of user code in an error's traceback, as Python prints them; "" without any.

    Frames of this package, of installed packages and of the standard library are left out. A syntax error
    ends with the line that could not be read.
    """
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    lines = traceback.StackSummary.from_list(own).format()  # of a recursion, the first ones
    if isinstance(error, SyntaxError) and error.filename:
        lines += [f'  File "{error.filename}", line {error.lineno}\n', f"    {(error.text or '').strip()}\n"]
    return "".join(lines).rstrip()


def _is_own(filename: str) -> bool:
    """Whether a file is user code, neither installed nor generated."""
    if filename.startswith(_MADE):
        return False
    path = Path(filename).resolve()
    foreign = path.is_relative_to(_PACKAGE) or path.is_relative_to(_PYTHON)
    return not foreign and not {"site-packages", "dist-packages"} & set(path.parts)
