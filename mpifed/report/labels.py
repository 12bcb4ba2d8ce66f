"""Names of runs, settings, metrics and axes in tables and figures, and user-defined replacements."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mpifed.base.settings import suggest
from mpifed.config.tables import read_table
from mpifed.storage.results import RunData

if TYPE_CHECKING:
    from mpifed.report.comparison import Rule, Setting

__all__ = ["Labels", "columns", "differing", "labels", "run_names", "setting_cells", "whole_setting_cells"]


def differing(settings: Sequence[Setting]) -> list[str]:
    """Dotted names of the settings whose values differ."""
    if len(settings) < 2:
        return []
    texts = [{key: json.dumps(value) for key, value in setting.settings.items()} for setting in settings]
    keys = dict.fromkeys(key for values in texts for key in values)
    return [key for key in keys if len({values.get(key) for values in texts}) > 1]


def _varying_within_methods(settings: Sequence[Setting]) -> dict[str, list[str]]:
    """The settings that vary within each method."""
    names = dict.fromkeys(setting.name for setting in settings)
    return {name: differing([setting for setting in settings if setting.name == name]) for name in names}


def columns(settings: Sequence[Setting]) -> list[str]:
    """The settings that a table shows: those of the algorithm that vary within a method, others that vary."""
    varied = {key for keys in _varying_within_methods(settings).values() for key in keys}
    return [key for key in differing(settings) if key in varied or not key.startswith("algorithm.")]


def setting_cells(settings: Sequence[Setting], rule: Rule) -> dict[Setting, dict]:
    """The cells of each setting in a table, with the same columns for all: the settings that vary.

    Different methods use the same letter for different hyperparameters. Therefore the hyperparameters share
    one cell, unless there is only one method or they belong to the task.
    """
    keys, several = columns(settings), len({setting.name for setting in settings}) > 1
    shared_cell = [key for key in keys if several and not rule.is_task(key)]
    within, cells = _varying_within_methods(settings), {}
    for setting in settings:
        words = _setting_texts(setting, [key for key in within[setting.name] if key in shared_cell])
        cells[setting] = ({"settings": ", ".join(words)} if shared_cell else {}) | {
            key: setting.settings.get(key) for key in keys if key not in shared_cell
        }
    return cells


def whole_setting_cells(settings: Sequence[Setting], rule: Rule) -> dict[Setting, dict]:
    """The cells of :func:`setting_cells`, with all hyperparameters of each method in the shared cell."""
    keys = [key for key in columns(settings) if rule.is_task(key)]
    return {
        setting: {"settings": ", ".join(_hyperparameters(setting, keys))}
        | {key: setting.settings.get(key) for key in keys}
        for setting in settings
    }


def _hyperparameters(setting: Setting, others: Collection[str]) -> Iterator[str]:
    """All hyperparameters but ``others``, as ``gamma=0.1``. A choice is listed by its name, except a constant
    schedule, which is listed by its value."""
    for key, value in setting.settings.items():
        name = key.removeprefix("algorithm.").removesuffix(".name")
        constant = value == "constant" and f"algorithm.{name}" in setting.settings
        chosen = key.startswith("algorithm.") and key != "algorithm.name" and not key.endswith(".digest")
        if chosen and not constant and key not in others:
            yield f"{name}={value}"


def labels(
    settings: Sequence[Setting], methods: Mapping[str, str] = {}, keys: Mapping[str, str] = {}
) -> list[str]:
    """Unique labels of settings: the method, whether the setting is infeasible, the settings that distinguish
    it from others of the same method, and the folder if nothing else does.

    ``methods`` and ``keys`` replace the names of methods and the last words of settings.
    """
    within, result = _varying_within_methods(settings), []
    for setting in settings:
        words = _setting_texts(setting, within[setting.name], keys)
        name = f"{methods.get(setting.name, setting.name)}{' (infeasible)' if setting.infeasible else ''}"
        result.append(", ".join([name, *words]))
    counts = Counter(result)
    folders = run_names([setting.runs[0] for setting in settings])
    return [f"{label} ({folder})" if counts[label] > 1 else label for label, folder in zip(result, folders)]


def run_names(runs: Sequence[RunData]) -> list[str]:
    """Names of runs: the distinguishing part of the folder's path; the algorithm if there is only one run."""
    if len(runs) == 1:
        return [runs[0].name]
    folders = [str(run.folder) for run in runs]
    common = os.path.commonpath(folders) if len(set(folders)) > 1 else str(Path(folders[0]).parent)
    return [os.path.relpath(folder, common) for folder in folders]


def _setting_texts(setting: Setting, varying: Sequence[str], keys: Mapping[str, str] = {}) -> Iterator[str]:
    """``gamma=0.1`` for each varying setting; the whole dotted name if another one ends in the same word."""
    counts = Counter(key.rpartition(".")[2] for key in varying)
    for key in varying:
        first, dot, last = key.rpartition(".")
        unique, name, value = counts[last] == 1, keys.get(last, last), setting.settings.get(key)
        if key in setting.settings:
            named = name if unique else first + dot + name
            yield str(value) if last == "name" and unique else f"{named}={value}"


@dataclass(frozen=True)
class Labels:
    """User-defined names in the figure and the table for a paper, each by the name that it replaces.

    Names may contain mathematics between dollar signs. The argument ``quote`` of the methods is a function
    that escapes a name for the output; it also receives whether the name is user-defined.

    Attributes:
        methods: names of methods (``FGDA``) or of whole lines (``"FGDA, gamma=0.1"``).
        settings: names of settings in the labels of lines (``gamma``).
        metrics: names of metrics.
        axes: names of horizontal axes (``bytes``); the unit is appended.
    """

    methods: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path, settings: Sequence[Setting], metrics: Iterable[str], axes: Iterable[str]):
        """Read a TOML file with names for these settings, metrics and axes.

        Raises:
            ValueError: the file cannot be read, or names something that does not exist.
        """
        tables = read_table(path, "file of labels")
        known = {
            "methods": {*(item.name for item in settings), *labels(settings)},
            "settings": {key.rpartition(".")[2] for item in settings for key in item.settings},
            "metrics": {*metrics},
            "axes": {*axes},
        }
        for section, names in tables.items():
            if section not in known:
                raise ValueError(f"{path}: unknown section [{section}]: {suggest(section, known)}")
            if not isinstance(names, dict):
                raise ValueError(f"{path}: {section} must be a table of names, got {names!r}")
            for name, new in names.items():
                if name not in known[section]:
                    options = suggest(name, known[section])
                    raise ValueError(f"{path}: [{section}] has no {name!r}: {options}")
                if not isinstance(new, str):
                    raise ValueError(f"{path}: [{section}] {name} must be a text, got {new!r}")
        return cls(**tables)

    def for_settings(self, settings: Sequence[Setting], quote: Callable[[str, bool], str]) -> list[str]:
        """The labels of settings."""
        plain, renamed = labels(settings), labels(settings, self.methods, self.settings)
        renamed = [self.methods.get(old, new) for old, new in zip(plain, renamed)]
        return [quote(new, new != old) for old, new in zip(plain, renamed)]

    def metric(self, name: str, quote: Callable[[str, bool], str]) -> str:
        """The label of a metric."""
        return quote(self.metrics.get(name, name), name in self.metrics)
