"""Errors that a user can fix, with their likely causes and the lines of user code that raised them.

A missing optional library is such an error: it names the extra of ``setup.cfg`` to install.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import reprlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = [
    "EXTRAS", "ConfigError", "ContractError", "MissingExtra", "PluginError", "expect_extra", "format_ranges",
    "hint", "is_out_of_memory", "join_lines", "message_of", "requested_memory", "short_repr", "truncate",
    "user_code_errors", "user_frames",
]  # fmt: skip

_PACKAGE = Path(__file__).resolve().parents[1]
_PYTHON = Path(sysconfig.get_path("stdlib")).resolve()
#: File names of the import system and of generated code.
_GENERATED = ("<frozen ", "<string>")
#: Maximum number of characters of a value, a name or a file name in a message.
MAX_LENGTH = 200
#: Maximum number of errors in a message.
MAX_ERRORS = 20
#: Extra of ``setup.cfg`` → the modules of its libraries.
EXTRAS = {
    "mpi": ("mpi4py",),
    "plots": ("bokeh", "jinja2", "matplotlib", "pandas"),
    "tune": ("optuna",),
    "tensorboard": ("tensorboardX",),
}


def truncate(text: str) -> str:
    """Replace the middle of a long text by the text's length."""
    if len(text) <= MAX_LENGTH:
        return text
    end = MAX_LENGTH // 2 - 20
    return f"{text[:end]} ... ({len(text):,} characters) ... {text[-end:]}"


class _Short(reprlib.Repr):
    """``repr`` that abbreviates long values."""

    def __init__(self):
        super().__init__()
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 20
        self.maxother = sys.maxsize  # truncated as a whole by :func:`short_repr`

    def repr_str(self, value: str, level: int) -> str:
        return repr(truncate(value))

    def repr_int(self, value: int, level: int) -> str:
        # Python refuses to convert integers of thousands of digits to text.
        return str(value) if value.bit_length() < 400 else f"an integer of {value.bit_length():,} bits"


_SHORT = _Short()


def join_lines(errors: Sequence, sentence: Callable[[Any], str]) -> str:
    """Format each error by ``sentence`` and join the lines, at most :data:`MAX_ERRORS`."""
    more = [f"... and {len(errors) - MAX_ERRORS:,} more"] if len(errors) > MAX_ERRORS else []
    return "\n".join([*map(sentence, errors[:MAX_ERRORS]), *more])


def short_repr(value) -> str:
    """Return the ``repr`` of a value, shortened to about :data:`MAX_LENGTH` characters for messages."""
    return truncate(_SHORT.repr(value))


def format_ranges(numbers: Sequence[int], to: str = "-") -> str:
    """Format ascending numbers as text with ranges, for example "0-3, 7"."""
    ends = [k for k in range(1, len(numbers)) if numbers[k] > numbers[k - 1] + 1]
    parts = [numbers[a:b] for a, b in zip([0, *ends], [*ends, len(numbers)])]
    return ", ".join(f"{part[0]}{to}{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


class ConfigError(ValueError):
    """A job has invalid settings. The message has one line per error."""


class MissingExtra(ConfigError, ImportError):
    """A library of an extra is not installed."""


def expect_extra(extra: str, purpose: str) -> None:
    """Raise an error if a library of ``extra`` is not installed. The libraries are not imported.

    Args:
        purpose: what needs the libraries, a plural: the subject of the message.

    Raises:
        MissingExtra: a library is not installed.
    """
    if missing := [name for name in EXTRAS[extra] if find_spec(name) is None]:
        raise MissingExtra(
            f"{purpose} need the extra {extra!r} (not installed: {', '.join(missing)}): "
            f"pip install 'mpifed[{extra}]'"
        )


class ContractError(ValueError):
    """A method or a problem violates its contract. The message has one line per error."""


class PluginError(ValueError):
    """A function of a method or of a problem has raised an exception, which is ``__cause__``.

    Attributes:
        round, phase: round and phase of the run; ``None`` and "" outside of rounds.
        clients: numbers of the clients for which the function was called.
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
        what: description of the function.
        clients: numbers of the clients for which the function is called, if any.

    Raises:
        ContractError: the function violates the contract.
        PluginError: the function has raised another exception.
        MemoryError, RuntimeError, ValueError, OSError: raised unchanged if no line of user code is involved:
            failed allocations, and outside of rounds ValueErrors and OSErrors.
    """
    when = "" if round is None else f" in round {round}"
    try:
        yield
    except ContractError as error:
        if round is None:
            raise
        raise ContractError(f"{what}{when}: {error}") from error
    except Exception as error:  # user code may raise anything
        is_self_explanatory = is_out_of_memory(error) or (
            round is None and isinstance(error, ValueError | OSError)
        )
        if is_self_explanatory and not user_frames(error):
            raise
        noun = "client" if len(clients) == 1 else "clients"
        for_clients = f" for {noun} {truncate(format_ranges(clients, ' to '))}" if len(clients) else ""
        text = f"{type(error).__name__}: {error}".removesuffix(": ") + hint(error)
        raise PluginError(f"{what} failed{when}{for_clients}: {text}", round, phase, clients) from error


#: Part of a message of torch or Python → the likely cause in a method or a problem.
_CAUSES = {
    "'Now'": "the first argument is `now`; the round's number is now.round",
    "doesn't match the broadcast shape": "clients must not write `shared` [d]; assign to a new "
    "variable [C, d], x = shared.x - ...",
    "does not require grad": "the loss does not depend on the parameters: .detach(), .item() or .numpy()? "
    "In analytic gradients(), autograd needs torch.enable_grad()",
    " is out of bounds": "labels must be integers from 0 to the number of outputs - 1",
    "shapes cannot be multiplied": "functions of a problem get the rows of one client, [b, ...]",
}


#: Schedules (:mod:`mpifed.core.schedules`) in the message that an operand is none of the expected types.
_SCHEDULE = re.compile(r"\b(Constant|Cosine|Exponential|Listed|Polynomial|Power|Squared|Steps)\b")


def hint(error: Exception) -> str:
    """Return the likely cause of an error in user code, in parentheses; "" if unknown."""
    causes = [cause for part, cause in _CAUSES.items() if part in str(error)]
    if isinstance(error, TypeError) and (schedule := _SCHEDULE.search(str(error))):
        name = _attribute(error, schedule[1])
        causes.append(f"self.{name} is a schedule: call self.{name}(t), with t = now.step(k) or now.round")
    return f" ({causes[0]})" if causes else ""


def _attribute(error: Exception, cls: str) -> str:
    """Return the attribute of ``self``, an instance of a class of this name, in the line that has failed."""
    (frame, number) = [*traceback.walk_tb(error.__traceback__)][-1]
    names = re.findall(r"\bself\.(\w+)", linecache.getline(frame.f_code.co_filename, number))
    own = frame.f_locals.get("self")
    return next((name for name in names if type(getattr(own, name, None)).__name__ == cls), "eta")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python, NumPy or torch has failed to allocate an array."""
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)
    )


def requested_memory(error: BaseException) -> str:
    """Return the amount of memory that a failed allocation requested, such as "4 GiB"; "" if unknown."""
    amount = re.search(r"to allocate ([\d.]+) (\w+)", str(error))
    if amount is None:
        return ""
    number, unit = amount.groups()
    return f"{int(number):,} {unit}" if number.isdecimal() else f"{number} {unit}"


def message_of(error: BaseException) -> str:
    """Return an error's message, followed by the lines of user code that raised the error or its cause.

    The lines are not repeated if the message contains them already.
    """
    raised = error
    while raised.__cause__ is not None and type(raised).__module__.startswith("mpifed."):
        raised = raised.__cause__
    text, frames = str(error), user_frames(raised)
    return text if frames in text else f"{text}\n{frames}"


def user_frames(error: BaseException) -> str:
    """Return the frames of user code in an error's traceback, as Python prints them; "" if there are none.

    Frames of this package, of installed packages and of the standard library are omitted. For a syntax error,
    the invalid line is added.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_code(frame.filename)]
    lines = traceback.StackSummary.from_list(frames).format()  # abbreviates recursions
    if isinstance(error, SyntaxError) and error.filename:
        lines += [f'  File "{error.filename}", line {error.lineno}\n', f"    {(error.text or '').strip()}\n"]
    return "".join(lines).rstrip()


def _is_user_code(filename: str) -> bool:
    """Return whether a file is user code, i.e. neither installed nor generated."""
    if filename.startswith(_GENERATED) or filename.endswith(".pyx"):  # compiled packages
        return False
    path = Path(filename).resolve()
    installed = path.is_relative_to(_PACKAGE) or path.is_relative_to(_PYTHON)
    return not installed and not {"site-packages", "dist-packages"} & set(path.parts)
