"""Job files as tables: TOML read in, ``key=value`` changes, objects of settings written back."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from mpifed.config.plugins import name_of, preset_of
from mpifed.core.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["describe", "override", "parse", "put", "read_table"]


def read_table(path: str | Path) -> dict[str, Any]:
    """The table of a TOML job file.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the job file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def parse(text: str) -> Any:
    """The value of a setting on the command line: TOML, or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def override(table: dict, text: str) -> None:
    """Apply one ``section.key=value``.

    Raises:
        ConfigError: the text is not of that form, or the key leads through something that is no table.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"an override is key=value, e.g. run.out=runs/a or algorithm.q=5, got {text!r}")
    put(table, key.strip(), parse(value))


def put(table: dict, key: str, value) -> None:
    """Set a dotted key. A name on the way becomes a table with that name, and a name replaces a table as one.

    Raises:
        ConfigError: the key leads through something that is no table.
    """
    *path, last = key.split(".")
    for part in path:
        if isinstance(table.get(part), str):
            table[part] = {"name": table[part]}
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"cannot set {key}: {part} is not a table")
    if isinstance(table.get(last), dict) and isinstance(value, str):
        value = {"name": value}
    table[last] = value


def describe(value):
    """Settings as JSON-able values: an object of settings becomes a table with its name."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(preset_of(value) or value)
        return {
            "name": getattr(value, "choice_name", None) or name_of(value),
            **{field.name: describe(getattr(value, field.name)) for field in fields if field.init},
        }
    if isinstance(value, list | tuple):
        return [describe(one) for one in value]
    return value
