"""Job files as tables: reading TOML and applying ``key=value`` changes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mpifed.base.errors import ConfigError, short_repr, truncate
from mpifed.base.paths import expand_home
from mpifed.base.settings import is_number, suggest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "as_text", "expect_bounded", "loads", "apply_override", "apply_overrides", "parse_value", "read_job",
    "read_table", "set_key", "to_toml", "toml_key", "toml_settings",
]  # fmt: skip

#: Maximum depth of nested tables and lists. A sweep over a plugin's nested lists has half as many.
MAX_DEPTH = 20
#: Maximum size of an integer in bits. Python does not convert larger ones to decimal text.
MAX_BITS = 14_000
#: Maximum size of a job file in bytes.
MAX_BYTES = 2**20


def read_table(path: str | Path, what: str = "job file") -> dict[str, Any]:
    """Read the table of a TOML file.

    If the setting ``initial`` is the path of a file relative to the job file, the path is resolved.

    Args:
        what: description of the file in messages.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = expand_home(path)
    name = truncate(path)
    try:
        with open(path, "rb") as file:
            source = file.read(MAX_BYTES + 1)
        text = source.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"cannot read the {what} {name}: {error.strerror}{_suggest_job_files(path)}"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not TOML: {error}") from None
    except ValueError as error:  # an invalid name
        raise ConfigError(f"cannot read the {what} {short_repr(name)}: {error}") from None
    if len(source) > MAX_BYTES:
        raise ConfigError(f"{name}: expected a {what} of at most {MAX_BYTES:,} bytes, got a larger file")
    try:
        table = loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} is not TOML: {truncate(str(error))}") from None
    expect_bounded(table)
    weights = table.get("initial")
    if isinstance(weights, str) and os.path.isfile(sibling := Path(path).parent / weights):
        table["initial"] = str(sibling)
    return table


def read_job(path: str | Path, overrides: Iterable[str]) -> dict[str, Any]:
    """Read the table of a job file and apply ``key=value`` changes.

    Raises:
        ConfigError: the file cannot be read, or a change is invalid.
    """
    table = read_table(path)
    apply_overrides(table, overrides)
    expect_bounded(table)
    return table


def _suggest_job_files(path: str | Path) -> str:
    """Return a hint for the message that a file cannot be read: the job files in its folder."""
    folder = Path(path).parent
    try:
        names = sorted(str(file) for file in folder.glob("*.toml") if file.is_file())
    except OSError:
        return ""
    return f": {suggest(str(path), names)}" if names else f": no job file (.toml) in {folder.resolve()}"


def loads(text: str) -> dict[str, Any]:
    """Parse a TOML text.

    Raises:
        ValueError: the text is not TOML.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists or tables are nested too deep") from None
    except OverflowError:  # the offset of a date
        raise ValueError("a date or a number is out of range") from None


def expect_bounded(table: dict) -> None:
    """Raise a :class:`ConfigError` if lists or tables are nested too deep, or an integer is too large."""
    level: list = [table]
    for _ in range(MAX_DEPTH):
        inside = [value for part in level for value in (part.values() if isinstance(part, dict) else part)]
        if huge := [value for value in inside if isinstance(value, int) and value.bit_length() > MAX_BITS]:
            raise ConfigError(f"expected integers of at most 64 bits, got {short_repr(huge[0])}")
        nested = [value for value in inside if isinstance(value, dict | list | tuple)]
        level = list({id(value): value for value in nested}.values())
        if not level:
            return
    raise ConfigError(f"lists or tables are nested more than {MAX_DEPTH} deep")


def parse_value(text: str) -> Any:
    """Parse the value of a setting on the command line as TOML, or return the text if it is not TOML."""
    try:
        table = loads(f"value = {text}")
    except ValueError:
        return text
    return table["value"] if len(table) == 1 else text


def as_text(text: str) -> str:
    """Return the right-hand side of a change ``key=value`` that sets the setting to ``text``."""
    return text if parse_value(text) == text and not _numbers(text) else to_toml(text)


def _numbers(text: str) -> list[int | float]:
    """Return the numbers of a text such as ``1,2,3``; an empty list for other texts."""
    values = [parse_value(part) for part in text.split(",")]
    return values if len(values) > 1 and all(map(is_number, values)) else []


def to_toml(value: Any) -> str:
    """Format a value as TOML, a table in braces."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return f"{{ {', '.join(toml_settings(value))} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    return repr(value)


def toml_settings(table: dict[str, Any]) -> list[str]:
    """Format the settings of a table as ``key = value``, without settings that are ``None``."""
    return [f"{toml_key(key)} = {to_toml(value)}" for key, value in table.items() if value is not None]


def toml_key(key: str) -> str:
    """Format a key as TOML, in quotes if necessary."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else to_toml(key)


def apply_overrides(table: dict, texts: Iterable[str]) -> None:
    """Apply ``key=value`` changes in their order. A later change of a key replaces an earlier one.

    Raises:
        ConfigError: as for :func:`apply_override`, or the shell has split a table or a list into its parts.
    """
    texts = list(texts)
    _expect_whole(texts)
    for text in texts:
        apply_override(table, text)


def _expect_whole(texts: list[str]) -> None:
    """Raise a :class:`ConfigError` if a shell has expanded braces: ``a={b=1,c=2}`` to ``a=b=1 a=c=2``."""
    values: dict[str, list[str]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        values.setdefault(key.strip(), []).append(value)
    for key, given in values.items():
        parts = [value.partition("=") for value in given]
        of_table = all(name.isidentifier() and equals for name, equals, _ in parts)
        of_list = key.startswith("sweep.") and not any(value.lstrip().startswith("[") for value in given)
        if len(given) > 1 and (of_table or of_list):
            table = {name: parse_value(value) for name, _, value in parts}
            whole = to_toml(table if of_table else [parse_value(value) for value in given])
            raise ConfigError(
                f"{truncate(key)} is given {len(given)} times, as {truncate(' and '.join(given))}: a shell "
                f"expands braces, so quote the argument: '{truncate(key)}={truncate(whole)}'"
            )


def apply_override(table: dict, text: str) -> None:
    """Set the value of a setting from a text ``section.key=value``.

    Raises:
        ConfigError: the text has another form, or a parent of the key is not a table.
    """
    key, equals, value = text.partition("=")
    key = re.sub(r"""(["'])(.*?)\1""", r"\2", key)  # sweep."algorithm.q", as in a job file
    if not equals or not key.strip():
        raise ConfigError(f"expected KEY=VALUE, e.g. run.out=runs/a or algorithm.q=5, got {short_repr(text)}")
    if _numbers(value):
        key, value = truncate(key.strip().removeprefix("sweep.")), truncate(value)
        raise ConfigError(
            f"expected one value of {key}, got {value}: for one run per value, `mpifed sweep JOB "
            f"'sweep.{key}=[{value}]'`, or in a job array `mpifed launch JOB --array {key}={value}`"
        )
    parsed = parse_value(value)
    if parsed == value and re.fullmatch(r"\s*\{.*=.*", value, re.DOTALL):
        raise ConfigError(
            f"{truncate(key.strip())}: expected a TOML table, got {truncate(value)}: each key once, and "
            """texts in quotes, and in a shell the whole argument, e.g. 'algorithm={name="FGDA", q=5}'"""
        )
    set_key(table, key.strip(), parsed)


def set_key(table: dict, key: str, value) -> None:
    """Set a dotted key. Where a table is needed, a name such as "FGDA" becomes ``{ name = "FGDA" }``.

    A table may have the dotted key itself, as [sweep] has "algorithm.q".

    Raises:
        ConfigError: a parent of the key is not a table.
    """
    path = key.split(".")
    if len(path) > MAX_DEPTH + 1:
        raise ConfigError(f"cannot set {truncate(key)}: tables are nested more than {MAX_DEPTH} deep")
    while len(path) > 1 and ".".join(path) not in table:
        part = path.pop(0)
        if isinstance(table.get(part), str):
            table[part] = {"name": table[part]}
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(
                f"cannot set {truncate(key)}: expected {truncate(part)} to be a table or a name"
            )
    last = ".".join(path)
    if isinstance(table.get(last), dict) and isinstance(value, str):
        value = {"name": value}
    table[last] = value
