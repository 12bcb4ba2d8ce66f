"""The runs of an experiment: tuned, and at the settings that its paper states."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpifed.config.tables import parse, read_table
from mpifed.core.errors import ConfigError
from mpifed.core.settings import near_miss
from mpifed.report.comparison import Rule, Setting, best, settings_of
from mpifed.report.names import differing
from mpifed.storage.format import RUN_FILE
from mpifed.storage.results import load

#: What a task has in the place of a setting that one of its methods lacks.
NONE = "none"


@dataclass(frozen=True)
class Panel:
    """Finished runs.

    Attributes:
        name: "tuned", "stated" or "full".
        folder: where they lie.
        keys: the settings whose values make a task.
        settings: the runs by their settings.
        searched: wall seconds that the search took which chose them, 0 without one.
    """

    name: str
    folder: Path
    keys: Sequence[str]
    settings: Sequence[Setting]
    searched: float = 0.0

    @property
    def seconds(self) -> float:
        """Wall time of the runs' rounds."""
        return sum(run.costs["seconds"][-1].item() for one in self.settings for run in one.runs)

    def tasks(self, without: str | None = None) -> dict[tuple, list[Setting]]:
        """The settings by task, sorted; ``without`` one of the keys."""
        keys = [key for key in self.keys if key != without]
        groups: dict[tuple, list[Setting]] = {}
        for one in self.settings:
            groups.setdefault(tuple(value(one, key) for key in keys), []).append(one)
        return dict(sorted(groups.items(), key=lambda item: _order(item[0])))

    def best(self, metric: str, by: str = "final") -> dict[tuple, list[Setting]]:
        """The best setting of each method, by task."""
        return {task: best(own, self._rule(metric, by)) for task, own in self.tasks().items()}

    def _rule(self, metric: str, by: str) -> Rule:
        own = [part for key in self.keys for part in key.split("|") if part.startswith("algorithm.")]
        return Rule(metric, by, each=tuple(part.removeprefix("algorithm.") for part in own))

    def pick(self, settings: Sequence[Setting], method: str, metric: str, by: str) -> Setting | None:
        """The best of a task's settings of a method, ``NAME`` or ``NAME,KEY=VALUE``; ``None`` without any.

        Raises:
            ConfigError: they differ in more than the method's own settings.
        """
        own = [one for one in settings if matches(one, method)]
        apart = [key for key in differing(own) if not key.startswith("algorithm.")]
        if apart:
            raise ConfigError(
                f"the runs of {method} differ in {', '.join(apart)}: expected it among the panels of the "
                "experiment, or in the claim's where"
            )
        rule = self._rule(metric, by)
        return min(own, key=rule.rank) if own else None


def read_panel(name: str, folder: Path, keys: Sequence[str], searched: float = 0.0) -> Panel:
    """The finished runs in a folder, of which there may be none.

    Without ``keys``, every setting outside the methods that varies makes tasks.
    """
    runs = [load(path) for path in sorted(folder.rglob(RUN_FILE))]
    settings = settings_of([run for run in runs if run.end is not None])
    keys = keys or [key for key in differing(settings) if not key.startswith("algorithm.")]
    return Panel(name, folder, keys, settings, searched)


def tuned_folder(job: Path) -> Path:
    """Where the runs of an experiment's small job lie: of one with a search, those of its best settings."""
    table = read_table(job)
    out = Path(table["run"]["out"])
    return out / "best" if "tune" in table else out


def value(setting: Setting, key: str) -> Any:
    """A setting's value; of ``a|b`` the first that it has."""
    names = [name for name in key.split("|") if name in setting.settings]
    return setting.settings[names[0]] if names else NONE


def matches(setting: Setting, method: str) -> bool:
    """Whether a setting is of a method, and has the values named after it."""
    name, *conditions = method.split(",")
    pairs = [one.partition("=")[::2] for one in conditions]
    return setting.name == name and all(
        setting.settings.get(f"algorithm.{key.strip()}") == parse(text) for key, text in pairs
    )


def taken(panel: Panel, where: Mapping[str, Any]) -> Panel:
    """The panel with the runs alone that have these values, one of several where a list says so."""

    def suits(one: Setting) -> bool:
        return all(
            value(one, key) in (wanted if isinstance(wanted, list) else [wanted])
            for key, wanted in where.items()
        )

    for key in where:
        known = {name for one in panel.settings for name in one.settings}
        if known and not known & set(key.split("|")):
            raise ConfigError(f"where: no run has the setting {key!r}: {near_miss(key, known)}")
    return replace(panel, settings=[one for one in panel.settings if suits(one)])


def task_title(task: Sequence, keys: Sequence[str]) -> str:
    """A task's values; numbers with their setting's name."""
    names = [key.partition("|")[0].rpartition(".")[2] for key in keys]
    return ", ".join(
        str(one) if isinstance(one, str) else f"{name} = {one}" for name, one in zip(names, task)
    )


def _order(task: tuple) -> list:
    """Numbers by size, texts by letters."""
    return [
        (0, one, "") if isinstance(one, int | float) else (1, 0, json.dumps(one, default=str)) for one in task
    ]
