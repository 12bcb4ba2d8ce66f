"""Named choices of a job file: ``matrix = "adam"`` or ``matrix = { name = "adam", rho = 0.01 }``.

A family of choices is a dictionary ``{name: frozen dataclass}``. :func:`choice` turns it into a pydantic annotation
that accepts a name, a table with a name, or an instance, and refuses everything else by naming the near miss.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, InstanceOf, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as _dataclass

__all__ = ["hyperparameters", "problem_settings", "choice", "build", "explain", "flatten", "near_miss"]

#: Validated on construction, unknown names refused; what checks it is made when it is first needed.
_STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True, defer_build=True)

#: Decorator of every record of settings: frozen.
hyperparameters = _dataclass(frozen=True, config=_STRICT)

#: Decorator of a problem: its settings go by name, and it may keep what it prepares.
problem_settings = _dataclass(kw_only=True, config=_STRICT)


def near_miss(name: str, options: Iterable[str]) -> str:
    """The tail of an error message: a suggestion when one is near, and all options."""
    options = sorted(options)
    lower = {option.lower(): option for option in options}
    close = difflib.get_close_matches(str(name).lower(), lower, n=1)
    hint = f"did you mean {lower[close[0]]!r}? " if close else ""
    return f"{hint}(options: {', '.join(options)})" if options else "(nothing can be set here)"


def build(cls: type, settings: dict[str, Any], what: str):
    """An instance of the dataclass ``cls`` from a table of a job file.

    Raises:
        ValueError: one line for each unknown key, missing key or wrong value.
    """
    if not dataclasses.is_dataclass(cls):
        raise ValueError(f"{cls.__name__} must be a dataclass: its fields are its settings")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    wrong = [
        f"{what} has no setting {key!r}: {near_miss(key, fields)}" for key in settings if key not in fields
    ]
    if wrong:
        raise ValueError("\n".join(wrong))
    try:
        return TypeAdapter(cls).validate_python(settings)
    except ValidationError as error:
        raise ValueError(explain(error.errors(), what)) from None


def explain(faults: list, what: str) -> str:
    """The faults of a validation error, one line each: where, what was expected, what was got."""
    lines = []
    for fault in faults:
        where = ".".join(
            [what, *(str(part) for part in fault["loc"] if not str(part).startswith("function-"))]
        )
        message = fault["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if fault["type"] in {"missing", "missing_argument"}:
            lines.append(f"{where} is missing: it has no default")
        elif "\n" in message or fault["type"] == "value_error":
            lines.append(f"{where}: {message}")
        else:
            lines.append(f"{where}: {message}, got {fault['input']!r}")
    return "\n".join(lines)


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A table of tables as a flat one: ``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``."""
    flat = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def choice(kind: str, classes: dict[str, type]):
    """The annotation of a setting that takes one of ``classes`` by name. ``kind`` is used in messages."""
    for name, cls in classes.items():
        cls.choice_name = name

    def resolve(value):
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, dict):
            if isinstance(value, tuple(classes.values())):
                return value
            raise ValueError(
                f"expected the name of a {kind} or a table with one, got {value!r}: {near_miss('', classes)}"
            )
        settings = dict(value)
        name = settings.pop("name", None)
        if name not in classes:
            raise ValueError(f"unknown {kind} {name!r}: {near_miss(name or '', classes)}")
        return build(classes[name], settings, f"{kind} {name!r}")

    return Annotated[InstanceOf[object], BeforeValidator(resolve)]
