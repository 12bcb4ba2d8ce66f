"""The classes that names stand for, and the names of classes.

A name is one of the package's (`mpifed list`), ``./file.py:Class``, ``package.module:Class``, or an entry
point in the groups ``mpifed.algorithms`` and ``mpifed.problems``. A class that is not the package's is a
plugin. It is known by its module or file, its name in there, and the SHA-256 digest of the file that
defines it, so that no run goes on with another.
"""

from __future__ import annotations

import functools
import importlib.metadata
import operator
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mpifed.algorithms import ALGORITHMS
from mpifed.config.loading import digest_of, digest_on_disk, guarded, import_module, is_loaded, load_file
from mpifed.core.algorithm import Algorithm
from mpifed.core.errors import ConfigError, cut, shown
from mpifed.core.later import make_up
from mpifed.core.problem import Problem
from mpifed.core.settings import Preset, build, near_miss
from mpifed.problems import PROBLEMS

__all__ = [
    "Plugin",
    "changed_sources",
    "expect_same_sources",
    "find",
    "make",
    "name_of",
    "plugin",
    "preset_of",
    "title",
]


class Plugin(NamedTuple):
    """A user's class: ``module:Class`` or ``/folder/file.py:Class``; its file's SHA-256, "" without one."""

    name: str
    digest: str


def find(name: str, section: str) -> type | Preset:
    """The class that a name stands for. ``section`` is "algorithm" or "problem".

    Raises:
        ConfigError: there is no such name, file, module or class, its source cannot be run, or it is of the
        wrong
            kind.
    """
    known, base = (ALGORITHMS, Algorithm) if section == "algorithm" else (PROBLEMS, Problem)
    if name in known:
        return known[name]
    make_up()
    place, colon, attribute = name.rpartition(":")
    if colon:
        module = load_file(place) if place.endswith(".py") else import_module(place, name)
        found = _attribute(module, place, attribute, base)
    else:
        points = {point.name: point for point in importlib.metadata.entry_points(group=f"mpifed.{section}s")}
        if name.endswith(".py"):
            raise ConfigError(f"{cut(name)} names a file and no class in it: expected {cut(name)}:Class")
        if name not in points:
            hint = near_miss(name, [*known, *points])
            raise ConfigError(
                f'unknown {section} {shown(name)}: {hint}; your own: "./file.py:Class" or '
                '"package.module:Class"'
            )
        found = guarded(f"{name} cannot be loaded", points[name].load)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{cut(name)} is not a subclass of mpifed.{base.__name__}")
    plugin(found)  # from here on it is known by the source that it was made from
    return found


def _attribute(module: ModuleType, place: str, attribute: str, base: type):
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError:
        own = [
            key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)
        ]
        options = [key for key in own if plugin(vars(module)[key])]
        raise ConfigError(
            f"{cut(place)} has no {shown(attribute)}: {near_miss(attribute, options)}"
        ) from None


def make(cls: type | Preset, settings: dict[str, Any], section: str):
    """An instance from the settings of a job file's section.

    Raises:
        ConfigError: one line for each wrong setting, or what went wrong in the user's own code, and where.
    """
    if not plugin(cls):
        return build(cls, settings, section)
    return guarded(f"{section} {cls.__name__} cannot be made", lambda: build(cls, settings, section))


@functools.cache
def plugin(cls: type | Preset) -> Plugin | None:
    """What a class is known by; ``None`` for the package's own, which their names tell."""
    if any(
        cls is one or cls is getattr(one, "cls", None) for one in (*ALGORITHMS.values(), *PROBLEMS.values())
    ):
        return None
    module = cls.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    by_file = file and (module == "__main__" or is_loaded(module))
    place = str(Path(file).resolve()) if by_file else module
    return Plugin(f"{place}:{cls.__qualname__}", digest_of(module))


def preset_of(instance) -> Preset | None:
    """The preset of a method that makes this instance, if there is one."""
    presets = (one for one in ALGORITHMS.values() if isinstance(one, Preset))
    return next((preset for preset in presets if preset.matches(instance)), None)


def title(instance) -> str:
    """What a method or a problem is called where it is shown: by its preset or its class, never by a path."""
    return (preset_of(instance) or type(instance)).__name__


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
        settings = table.get(section)
        if name != (settings.get("name") if isinstance(settings, dict) else settings):
            continue
        place, _, attribute = name.rpartition(":")
        found = digest_on_disk(place) if place != "__main__" and "<locals>" not in attribute else ""
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


def _said(section: str, name: str, old: str, new: str) -> str:
    if not new:
        return f"{section} {name} has no source file, so nothing tells whether it is still the same"
    return (
        f"the source of {section} {name} has changed (SHA-256 expected {old[:12] or 'none'}, got {new[:12]})"
    )
