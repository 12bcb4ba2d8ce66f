"""Job files as tables: TOML read in, ``key=value`` changes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mpifed.base.errors import ConfigError, short_repr, truncate
from mpifed.base.settings import suggest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "as_text",
    "expect_spellable",
    "loads",
    "override",
    "parse",
    "put",
    "quoted",
    "read_job",
    "read_table",
]

#: Tables and lists within each other, at most: a sweep over a plugin's nested lists has half as many.
DEEPEST = 20
#: Bits of an integer that Python spells in decimal; one written in hexadecimal may have more.
WIDEST = 14_000
#: Bytes of a job file, at most.
LARGEST = 2**20


def read_table(path: str | Path, what: str = "job file") -> dict[str, Any]:
    """The table of a TOML file. A file of weights next to a job file is named by its path.

    Raises:
        ConfigError: the file cannot be read.
    """
    name = truncate(str(path))
    try:
        with Path(path).open("rb") as file:
            source = file.read(LARGEST + 1)
        text = source.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {name}: {error.strerror}{_beside(path)}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not TOML: {error}") from None
    except ValueError as error:  # of the name
        raise ConfigError(f"cannot read the {what} {short_repr(name)}: {error}") from None
    if len(source) > LARGEST:
        raise ConfigError(f"{name} is no {what}: it has more than {LARGEST:,} bytes")
    try:
        table = loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} is not TOML: {truncate(str(error))}") from None
    expect_spellable(table)
    weights = table.get("initial")
    if isinstance(weights, str) and os.path.isfile(beside := Path(path).parent / weights):
        table["initial"] = str(beside)
    return table


def read_job(path: str | Path, overrides: Iterable[str]) -> dict[str, Any]:
    """The table of a job file with ``key=value`` changes.

    Raises:
        ConfigError: the file cannot be read, or a change is not of that form.
    """
    table = read_table(path)
    for text in overrides:
        override(table, text)
    return table


def _beside(path: str | Path) -> str:
    """The job files in the folder of one that cannot be read: the near miss, or where there is none."""
    folder = Path(path).parent
    try:
        names = sorted(str(one) for one in folder.glob("*.toml") if one.is_file())
    except OSError:
        return ""
    return f": {suggest(str(path), names)}" if names else f": no job file (.toml) lies in {folder.resolve()}"


def loads(text: str) -> dict[str, Any]:
    """The table of a TOML text.

    Raises:
        ValueError: it is none.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists or tables are nested too deep") from None
    except OverflowError:  # of a date's offset
        raise ValueError("a date or a number is out of range") from None


def expect_spellable(table: dict) -> None:
    """Hold a table against what can be spelled out.

    Raises:
        ConfigError: its tables and lists are nested too deep, or without end; or an integer has more digits
            than Python spells.
    """
    level: list = [table]
    for _ in range(DEEPEST):
        inside = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        if huge := [value for value in inside if isinstance(value, int) and value.bit_length() > WIDEST]:
            raise ConfigError(f"expected integers of 64 bits, got {short_repr(huge[0])}")
        nested = [value for value in inside if isinstance(value, dict | list | tuple)]
        level = list({id(value): value for value in nested}.values())
        if not level:
            return
    raise ConfigError(f"lists or tables are nested more than {DEEPEST} deep")


def parse(text: str) -> Any:
    """The value of a setting on the command line: TOML, or else the text itself."""
    try:
        table = loads(f"value = {text}")
    except ValueError:
        return text
    return table["value"] if len(table) == 1 else text


def as_text(text: str) -> str:
    """A value that :func:`parse` takes for ``text``, also where that looks like TOML."""
    return text if parse(text) == text else quoted(text)


def quoted(text: str) -> str:
    """A text as a string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def override(table: dict, text: str) -> None:
    """Apply one ``section.key=value``.

    Raises:
        ConfigError: the text is not of that form, or the key leads through something that is no table.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            f"an override is key=value, e.g. run.out=runs/a or algorithm.q=5, got {short_repr(text)}"
        )
    put(table, key.strip(), parse(value))


def put(table: dict, key: str, value) -> None:
    """Set a dotted key. A name on the way becomes a table with that name, and a name replaces a table as one.

    Raises:
        ConfigError: the key leads through something that is no table.
    """
    *path, last = key.split(".")
    if len(path) > DEEPEST:
        raise ConfigError(f"cannot set {truncate(key)}: tables are nested more than {DEEPEST} deep")
    for part in path:
        if isinstance(table.get(part), str):
            table[part] = {"name": table[part]}
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"cannot set {truncate(key)}: {truncate(part)} is not a table")
    if isinstance(table.get(last), dict) and isinstance(value, str):
        value = {"name": value}
    table[last] = value
