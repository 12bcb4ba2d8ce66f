"""The classes that names stand for, and the names of classes.

A name is one of the package's (`mpifed list`), ``./file.py:Class``, ``package.module:Class``, or an entry
point in the groups ``mpifed.algorithms`` and ``mpifed.problems``. A class that is not the package's is a
plugin. It is known by its module or file, its name in there, and the SHA-256 digest of the file that
defines it, so that no run is resumed with another one.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from mpifed.algorithms import ALGORITHMS
from mpifed.base.errors import ConfigError, short_repr, truncate
from mpifed.base.plugins import (
    attribute_of,
    digest_on_disk,
    expect_allowed,
    guarded,
    is_instance,
    module_of,
    plugin,
)
from mpifed.base.settings import Preset, build, suggest, title
from mpifed.core.algorithm import Algorithm
from mpifed.core.problem import Problem
from mpifed.problems import PROBLEMS

__all__ = [
    "changed_sources",
    "expect_same_sources",
    "find",
    "known",
    "make",
    "name_of",
]


def known(section: str) -> Mapping[str, type | Preset]:
    """The package's own classes by name. ``section`` is "algorithm" or "problem"."""
    return ALGORITHMS if section == "algorithm" else PROBLEMS


def find(name: str, section: str) -> type | Preset:
    """The class that a name stands for. ``section`` is "algorithm" or "problem".

    Raises:
        ConfigError: there is no such name, file, module or class, its source cannot be run, or it is of the
        wrong
            kind.
    """
    own, base = known(section), Algorithm if section == "algorithm" else Problem
    if name in own:
        return own[name]
    place, colon, attribute = name.rpartition(":")
    if colon:
        module = module_of(place, name)
        found = attribute_of(module, place, attribute, lambda one: _is_plugin(one, base))
    else:
        points = {point.name: point for point in importlib.metadata.entry_points(group=f"mpifed.{section}s")}
        if name.endswith(".py"):
            raise ConfigError(
                f"{truncate(name)} names a file and no class in it: expected {truncate(name)}:Class"
            )
        if name not in points:
            hint = suggest(name, [*own, *points])
            raise ConfigError(
                f'unknown {section} {short_repr(name)}: {hint}; user-defined: "./file.py:Class" or '
                '"package.module:Class"'
            )
        expect_allowed(name)
        found = guarded(f"{name} cannot be loaded", points[name].load)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{truncate(name)} is not a subclass of mpifed.{base.__name__}")
    plugin(found)  # from here on it is known by the source that it was made from
    return found


def _is_plugin(value, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base) and plugin(value) is not None


def make(cls: type | Preset, settings: dict[str, Any], section: str):
    """An instance from the settings of a job file's section.

    Raises:
        ConfigError: one line for each wrong setting, or what went wrong in the user's own code, and where.
    """
    if not plugin(cls):
        return build(cls, settings, section)
    return guarded(f"{section} {cls.__name__} cannot be made", lambda: build(cls, settings, section))


def name_of(instance) -> str:
    """The name that :func:`find` finds the class of a method or a problem by."""
    own = plugin(type(instance))
    return own.name if own else title(instance)


def changed_sources(old: dict, new: dict) -> list[str]:
    """The plugins of two runs' tables that have one name and different sources, a sentence each."""
    pairs = [
        (section, one, new.get("plugins", {}).get(section)) for section, one in old.get("plugins", {}).items()
    ]
    return [
        _said(section, one["name"], one["digest"], other["digest"])
        for section, one, other in pairs
        if other and one["name"] == other["name"] and (one["digest"] != other["digest"] or not one["digest"])
    ]


def expect_same_sources(table: dict) -> None:
    """Hold the plugins of a stored run against the files that they would be made from again.

    Args:
        table: the settings to continue it with: as stored, with changes. A plugin that they replace is
        passed over.

    Raises:
        ConfigError: a source has changed, or cannot be imported again; says what to do.
    """
    for section, stored in table.get("plugins", {}).items():
        name, digest = stored["name"], stored["digest"]
        settings = functools.reduce(_inside, section.split("."), table)
        if name != (settings.get("name") if isinstance(settings, dict) else settings):
            continue
        place, _, attribute = name.rpartition(":")
        lost = place == "__main__" or "<locals>" in attribute or is_instance(name)
        found = "" if lost else digest_on_disk(place)
        if not found:
            raise ConfigError(
                f"{section} {name} cannot be imported again: continue with its Config, "
                "mpifed.run(Config(...)), or start over with run.overwrite=true"
            )
        if found != digest:
            raise ConfigError(
                f"{_said(section, name, digest, found)}: undo the change, or start over with `mpifed run` "
                "and run.overwrite=true"
            )


def _inside(table, key: str):
    if isinstance(table, list | tuple):
        return table[int(key)] if key.isdecimal() and int(key) < len(table) else None
    return table.get(key) if isinstance(table, dict) else None


def _said(section: str, name: str, old: str, new: str) -> str:
    if not new:
        return f"{section} {name} has no source file, so nothing tells whether it is still the same"
    return (
        f"the source of {section} {name} has changed (SHA-256 expected {old[:12] or 'none'}, got {new[:12]})"
    )
