"""The runs of an experiment: tuned, and at the settings that its paper states."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpifed.base.errors import ConfigError
from mpifed.base.settings import suggest
from mpifed.config.grids import variants
from mpifed.config.tables import parse, read_table
from mpifed.report.comparison import Rule, Setting, best, settings_of
from mpifed.report.labels import differing
from mpifed.running.resume import is_done
from mpifed.storage.files import RUN_FILE
from mpifed.storage.folder import Folder
from mpifed.storage.results import load
from mpifed.tuning.results import BEST

#: What a task has in the place of a setting that one of its methods lacks.
NONE = "none"


@dataclass(frozen=True)
class Search:
    """What a search for the settings took: wall ``seconds`` of its runs' rounds, and what it warns of."""

    seconds: float = 0.0
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Panel:
    """Finished runs.

    Attributes:
        name: "tuned" where a search has chosen the settings, "as given" where a job has them, "stated" where
            it has those that the paper states, "full" where it is of the paper's size.
        file: the job that they are of.
        keys: the settings whose values make a task.
        settings: the runs by their settings.
        search: which has chosen them, if one has.
        missing: how many of the job's runs there are not yet.
    """

    name: str
    file: Path
    keys: Sequence[str]
    settings: Sequence[Setting]
    search: Search = Search()
    missing: int = 0

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


def read_panel(file: Path, keys: Sequence[str], changes: Sequence[str] = ()) -> Panel:
    """The finished runs of a job file, or of what the search in it has found: none where nothing ran.

    Runs that lie beside them and are not the job's as it stands now do not count. Without ``keys``, every
    setting outside the methods that varies makes tasks.
    """
    table, search = read_table(file), Search()
    out, name = Path(table["run"]["out"]), file.parent.name
    changes = without(changes, "tune")
    if "tune" in table:
        file, search, name, changes = out / BEST, _search(out), "tuned", without(changes, "sweep")
    begun = file.is_file() and "sweep" in read_table(file)  # a search that has found nothing yet has none
    listed = variants(file, changes) if begun else []
    done = [load(one.config.run.out) for one in listed if is_done(Folder(one.config.run.out), one.config)]
    settings = settings_of(done)
    keys = keys or [key for key in differing(settings) if not key.startswith("algorithm.")]
    name = name if name in ("tuned", "stated", "full") else "as given"
    return Panel(name, file, keys, settings, search, len(listed) - len(done))


def without(changes: Sequence[str], section: str) -> list[str]:
    """The changes KEY=VALUE of other sections."""
    return [one for one in changes if not one.startswith(f"{section}.")]


def _search(out: Path) -> Search:
    """The search whose files lie in a folder."""
    found = sorted(out.glob("trials/**/tried.json"))
    warnings = [
        f"{' '.join(path.relative_to(out / 'trials').parts[:-1])}: {text}"
        for path in found
        for text in json.loads(path.read_text())["warnings"]
    ]
    return Search(
        sum(load(path).costs["seconds"][-1].item() for path in out.glob(f"trials/**/{RUN_FILE}")), warnings
    )


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
            raise ConfigError(f"where: no run has the setting {key!r}: {suggest(key, known)}")
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
