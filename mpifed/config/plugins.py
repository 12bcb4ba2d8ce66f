"""Classes of methods and problems by name.

A name is a built-in name (`mpifed list`), ``./file.py:Class``, ``package.module:Class``, or the name of an
entry point in the groups ``mpifed.algorithms`` and ``mpifed.problems``. Classes outside of the package are
identified as ``base.plugins`` says.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import typing
from collections.abc import Mapping
from typing import Any

from mpifed.base.errors import ConfigError, short_repr
from mpifed.base.plugins import (
    call_user_code,
    digest_on_disk,
    expect_code_allowed,
    expect_fitting,
    is_instance,
    is_user_defined,
    load_object,
    plugin_of,
)
from mpifed.base.settings import build, join_names, settings_of, suggest, title
from mpifed.config.tables import to_toml
from mpifed.core.algorithm import Algorithm
from mpifed.core.epochs import Epochs
from mpifed.core.problem import Problem

__all__ = ["changed_sources", "expect_same_sources", "find_class", "builtin_classes", "create", "name_of"]


def builtin_classes(section: str) -> Mapping[str, type]:
    """Return the package's classes by name. ``section`` is "algorithm" or "problem"."""
    if section == "algorithm":
        from mpifed.algorithms import ALGORITHMS

        return ALGORITHMS
    from mpifed.problems import PROBLEMS

    return PROBLEMS


def find_class(name: str, section: str) -> type:
    """Return the class with a name. ``section`` is "algorithm" or "problem".

    Raises:
        ConfigError: there is no such name, file, module or class, its source raises an error, or it is not a
            class of methods or problems.
    """
    builtin, base = builtin_classes(section), Algorithm if section == "algorithm" else Problem
    if name in builtin:
        return builtin[name]

    def fits(value: Any) -> bool:
        return isinstance(value, type) and issubclass(value, base)

    expected = f"a subclass of mpifed.{base.__name__}"
    if is_user_defined(name):
        *_, cls = load_object(name, fits, expected)
    else:
        group = f"mpifed.{section}s"
        entry_points = {point.name: point for point in importlib.metadata.entry_points(group=group)}
        if name not in entry_points:
            hint = suggest(name, [*builtin, *entry_points])
            raise ConfigError(
                f'unknown {section} {short_repr(name)}: {hint}; user-defined: "./file.py:Class" or '
                '"package.module:Class"'
            )
        expect_code_allowed(name)
        cls = call_user_code(f"{name} cannot be loaded", entry_points[name].load)
        expect_fitting(name, cls, fits, expected)
    plugin_of(cls)  # caches the digest of the source that was executed
    return cls


def create(cls: type, settings: dict[str, Any], section: str, known: Mapping[str, Any]):
    """Create an instance of a class from the settings of a job file's section.

    Args:
        known: section of the job file → its class of settings.

    Raises:
        ConfigError: settings are wrong, one line each, or user code has raised an error.
    """

    if section == "algorithm":
        _expect_steps(cls, settings)

    def make():
        return build(cls, settings, section, known)

    try:
        what = f"{section} {cls.__name__} cannot be created"
        return call_user_code(what, make) if plugin_of(cls) else make()
    except ConfigError as error:
        raise ConfigError(f"{error}{_replacement(cls, settings, section)}") from error.__cause__


def _expect_steps(cls: type, settings: dict[str, Any]) -> None:
    """Raise a ConfigError for a number in epochs in a setting of the method ``cls`` that is an integer."""
    for name in settings.keys() & settings_of(cls).keys():
        value = settings[name]
        if isinstance(value, dict) and [*value] == ["epochs"] and not _accepts_epochs(cls, name):
            methods = builtin_classes("algorithm").items()
            accepting = (
                method for method, c in methods if any(_accepts_epochs(c, s) for s in settings_of(c))
            )
            raise ConfigError(
                f"algorithm.{name}: {cls.__name__} has no local steps in epochs, got {short_repr(value)}: "
                f"set a number, or use one of {join_names(accepting)}"
            )


def _accepts_epochs(cls: type, name: str) -> bool:
    """Return whether a setting of a method may be a number of local steps in epochs."""
    return Epochs in typing.get_args(settings_of(cls)[name].annotation)


def _replacement(cls: type, settings: dict[str, Any], section: str) -> str:
    """Return the changes that replace a section with settings of another class, or ""."""
    fields = settings_of(cls)
    others = {name for other in builtin_classes(section).values() for name in settings_of(other)}
    if not settings.keys() & (others - fields.keys()):
        return ""
    plugin = plugin_of(cls)
    words = [f"{section}={plugin.name if plugin else cls.__name__}"]
    words += [f"{section}.{name}=..." for name, field in fields.items() if field.is_required()]
    return f"\nto replace all settings of the {section}: {' '.join(words)}"


def name_of(instance) -> str:
    """Return the name by which :func:`find_class` finds the class of a method or a problem."""
    plugin = plugin_of(type(instance))
    return plugin.name if plugin else title(instance)


def changed_sources(old: dict, new: dict) -> list[str]:
    """Return a sentence for each plugin that has the same name but another source in two runs' tables."""
    sentences = []
    for section, before in old.get("plugins", {}).items():
        after = new.get("plugins", {}).get(section)
        same_name = after and before["name"] == after["name"]
        if same_name and (before["digest"] != after["digest"] or not before["digest"]):
            sentences.append(_sentence(section, before["name"], before["digest"], after["digest"]))
    return sentences


def expect_same_sources(table: dict) -> None:
    """Compare the plugins of a stored run with their current files.

    Args:
        table: the stored settings with the user's changes. A plugin that a change replaces is skipped.

    Raises:
        ConfigError: a source has changed or is missing, or a plugin cannot be imported again.
    """
    kept = {
        section: stored
        for section, stored in table.get("plugins", {}).items()
        if stored["name"] == _name_in(table, section)
    }
    if moved := [_missing(table, section) for section, stored in kept.items() if _is_missing(stored["name"])]:
        raise ConfigError("\n".join(moved))
    for section, stored in kept.items():
        name, digest = stored["name"], stored["digest"]
        place, _, attribute = name.rpartition(":")
        not_importable = place == "__main__" or "<locals>" in attribute or is_instance(name)
        current = "" if not_importable else digest_on_disk(place)
        if not current:
            raise ConfigError(
                f"{section} {name} cannot be imported again: continue with its Config, "
                "mpifed.run(Config(...)), or start over with run.overwrite=true"
            )
        if current != digest:
            raise ConfigError(
                f"{_sentence(section, name, digest, current)}: undo the change, or start over with `mpifed "
                "run` and run.overwrite=true"
            )


def _name_in(table: dict, section: str):
    """Return the name of the object in a section such as "algorithm", "problem.model" or "metrics.0"."""
    settings = functools.reduce(_child, section.split("."), table)
    return settings.get("name") if isinstance(settings, dict) else settings


def _is_missing(name: str) -> bool:
    place = name.rpartition(":")[0]
    return place.endswith(".py") and not is_instance(name) and not os.path.exists(place)


def _missing(table: dict, section: str) -> str:
    """Return the message that the file of a plugin is missing, with the change that names another file."""
    name = _name_in(table, section)
    end = name.rpartition("/")[2]
    change = f"{section}.name=FOLDER/{end}"
    if section.startswith("metrics."):
        names = [part if isinstance(part, str) else part["name"] for part in table["metrics"]]
        change = f"'metrics={to_toml([f'FOLDER/{end}' if other == name else other for other in names])}'"
    return (
        f"{section} {end}: there is no file {name.rpartition(':')[0]}: restore it, or resume the run with "
        f"its new folder: {change}"
    )


def _child(table, key: str):
    if isinstance(table, list | tuple):
        return table[int(key)] if key.isdecimal() and int(key) < len(table) else None
    return table.get(key) if isinstance(table, dict) else None


def _sentence(section: str, name: str, old: str, new: str) -> str:
    if not new:
        return f"{section} {name} has no source file, so a change of its source cannot be detected"
    return (
        f"the source of {section} {name} has changed (SHA-256 expected {old[:12] or 'none'}, got {new[:12]})"
    )
