"""The runs of an experiment: with tuned settings, and with the settings stated in the paper."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpifed.base.errors import ConfigError
from mpifed.base.settings import suggest
from mpifed.config.grids import variants
from mpifed.config.tables import parse_value, read_table
from mpifed.report.comparison import Rule, Setting, best, settings_of
from mpifed.report.labels import differing
from mpifed.running.resume import final_results
from mpifed.storage.files import RUN_FILE
from mpifed.storage.folder import Folder
from mpifed.storage.results import load
from mpifed.tuning.results import BEST

#: Value of a setting that a method does not have.
NONE = "none"
#: Name of the panel of a second search, also of its folder in the output folder; and its seed.
SECOND, SECOND_SEED = "second search", 1000
#: Entries of a run's ``layout["machine"]`` that describe the hardware.
HARDWARE = ("processor", "gpu")


@dataclass(frozen=True)
class Search:
    """A search for settings: total wall time of the rounds of its runs in seconds, and its warnings."""

    seconds: float = 0.0
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Panel:
    """The finished runs of a job.

    Attributes:
        name: "tuned" if a search has selected the settings, :data:`SECOND` if a second search has, "stated"
            for the settings stated in the paper, "full" for the paper's size, otherwise "as given".
        file: the job file.
        keys: the settings whose values define a task.
        settings: the runs, grouped by their settings.
        search: the search that has selected the settings.
        missing: number of runs of the job that have not finished.
        changes: KEY=VALUE that the job has been run with.
    """

    name: str
    file: Path
    keys: Sequence[str]
    settings: Sequence[Setting]
    search: Search = Search()
    missing: int = 0
    changes: Sequence[str] = ()

    @property
    def machines(self) -> str:
        """The processors and GPUs of the runs; "" if the files do not contain them."""
        found = [run.layout.get("machine", {}) for one in self.settings for run in one.runs]
        names = [" with ".join(own[key] for key in HARDWARE if key in own) for own in found]
        return ", ".join(sorted({*filter(None, names)}))

    @property
    def seconds(self) -> float:
        """Total wall time of the rounds of all runs."""
        return sum(run.costs["seconds"][-1].item() for one in self.settings for run in one.runs)

    def tasks(self, without: str | None = None) -> dict[tuple, list[Setting]]:
        """Return the settings by task, sorted. The key ``without`` is ignored."""
        keys = [key for key in self.keys if key != without]
        groups: dict[tuple, list[Setting]] = {}
        for one in self.settings:
            groups.setdefault(tuple(value(one, key) for key in keys), []).append(one)
        return dict(sorted(groups.items(), key=lambda item: _order(item[0])))

    def best(self, metric: str, by: str = "final") -> dict[tuple, list[Setting]]:
        """Return the best setting of each method, by task."""
        return {task: best(own, self._rule(metric, by)) for task, own in self.tasks().items()}

    def _rule(self, metric: str, by: str) -> Rule:
        own = [part for key in self.keys for part in key.split("|") if part.startswith("algorithm.")]
        return Rule(metric, by, each=tuple(part.removeprefix("algorithm.") for part in own))

    def pick(
        self,
        settings: Sequence[Setting],
        method: str,
        metric: str,
        by: str,
        cost: Callable[[Setting], float] | None = None,
    ) -> Setting | None:
        """Return the best of a task's settings of a method, ``None`` if there is none.

        Args:
            method: ``NAME`` or ``NAME,KEY=VALUE``.
            cost: value of a setting to minimise, before the metric counts.

        Raises:
            ConfigError: the runs also differ in settings outside the method.
        """
        own = [one for one in settings if matches(one, method)]
        apart = [key for key in differing(own) if not key.startswith("algorithm.")]
        if apart:
            raise ConfigError(
                f"the runs of {method} differ in {', '.join(apart)}: add the setting to `panels` of the "
                "experiment or to `where` of the claim"
            )
        rule = self._rule(metric, by)
        return min(own, key=lambda one: (cost(one) if cost else 0, rule.rank(one))) if own else None


def read_panel(file: Path, keys: Sequence[str], changes: Sequence[str] = (), second: bool = False) -> Panel:
    """Read the finished runs of a job file, or of the best settings of its search.

    Other runs in the same folder are ignored, including runs of an earlier version of the job.

    Args:
        keys: the settings that define tasks; default: all settings that vary, except those of the methods.
        changes: KEY=VALUE, as for the command that has run the job.
        second: whether to read the runs of the second search.
    """
    table, search = read_table(file), Search()
    out, name, given = output_folder(table, second), file.parent.name, changes
    changes = without(changes, "tune")
    if "tune" in table:
        file, search, name = out / BEST, _search(out), SECOND if second else "tuned"
        changes = without(changes, "sweep")
    begun = file.is_file() and "sweep" in read_table(file)  # best.toml has none before the search has ended
    listed = variants(file, changes) if begun else []
    done = [*filter(None, (final_results(Folder(one.config.run.out), one.config) for one in listed))]
    settings = settings_of(done)
    keys = keys or [key for key in differing(settings) if not key.startswith("algorithm.")]
    name = name if name in ("tuned", SECOND, "stated", "full") else "as given"
    return Panel(name, file, keys, settings, search, len(listed) - len(done), given)


def output_folder(table: Mapping[str, Any], second: bool = False) -> Path:
    """Return the output folder of a job's table, or of its second search."""
    out = Path(table["run"]["out"])
    return out / SECOND.replace(" ", "_") if second else out


def without(changes: Sequence[str], section: str) -> list[str]:
    """Return the changes KEY=VALUE of other sections."""
    return [one for one in changes if not one.startswith(f"{section}.")]


def _search(out: Path) -> Search:
    """Read the search in a folder."""
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
    """Return the value of ``key`` in a setting; for ``a|b`` the first key that exists."""
    names = [name for name in key.split("|") if name in setting.settings]
    return setting.settings[names[0]] if names else NONE


def matches(setting: Setting, method: str) -> bool:
    """Return whether a setting belongs to a method ``NAME,KEY=VALUE`` and has these values."""
    name, *conditions = method.split(",")
    pairs = [one.partition("=")[::2] for one in conditions]
    return setting.name == name and all(
        setting.settings.get(f"algorithm.{key.strip()}") == parse_value(text) for key, text in pairs
    )


def restricted(panel: Panel, where: Mapping[str, Any]) -> Panel:
    """Return the panel with only those runs that have these values; a list allows several values."""

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
    """Return the values of a task as text, numbers with the name of their setting."""
    names = [key.partition("|")[0].rpartition(".")[2] for key in keys]
    return ", ".join(
        str(one) if isinstance(one, str) else f"{name} = {one}" for name, one in zip(names, task)
    )


def _order(task: tuple) -> list:
    """Return a sorting key: numbers by size, then texts alphabetically."""
    return [
        (0, one, "") if isinstance(one, int | float) else (1, 0, json.dumps(one, default=str)) for one in task
    ]
