"""Job files with a ``[tune]`` table, which lists methods, tasks and the budget of a hyperparameter search."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from mpifed.base.errors import ConfigError, short_repr, truncate
from mpifed.base.plugins import short_names
from mpifed.base.settings import Needs, Section, config_errors, flatten
from mpifed.config.grids import expand, first_duplicate, folder_names
from mpifed.config.job import Config
from mpifed.config.space import Space, space_of
from mpifed.config.tables import read_job, set_key

__all__ = ["EXAMPLE", "Study", "Tune", "Tuning", "tuning"]

#: Example of a [tune] table for the message that a file has none.
EXAMPLE = """\
[tune]
runs = 16
seeds = 3
[[tune.methods]]
name = "FGDA"
q = 10                              # fixed
alpha = [0.1, 0.5, 0.9]             # a choice
gamma = { low = 1e-3, high = 1.0 }  # a range; the omitted lam and beta have default ranges
"""


class Tune(Section):
    """[tune]: a search for the best settings of several methods with comparable budgets: mpifed tune."""

    runs: int = Field(
        16,
        ge=1,
        description="budget per method and task: the oracle calls of this many runs of the costliest method",
    )
    budget: Literal["equal", "proportional"] = Field(
        "equal",
        description="whether all methods have this budget, or a budget proportional to their number of open "
        "settings, such that a method with the fewest open settings has this budget",
    )
    min_rounds: int = Field(
        1, ge=1, description="least number of rounds of the shortest runs, e.g. those of an epoch"
    )
    seeds: int = Field(
        3, ge=1, le=100, description="number of seeds of runs with at least a third of the rounds"
    )
    fresh: int | None = Field(
        None, ge=1, le=100, description="number of new seeds in best.toml; default: seeds"
    )
    risk: float = Field(
        0.0,
        ge=0,
        description="penalty for results that vary: the mean of the metric counts as worse by this "
        "multiple of the deviation over the seeds",
    )
    metric: str | None = Field(
        None,
        description="metric by which settings are selected, on the validation split if there is one; "
        "default: the problem's first metric",
    )
    tasks: dict[str, Any] = Field(
        {}, description="dotted settings and lists; the methods are tuned separately for each combination"
    )
    methods: tuple[dict[str, Any], ...] = Field(
        min_length=1, description="one table per method: values, lists, ranges { low = 1e-3, high = 1.0 }"
    )

    needs: ClassVar[Needs] = {
        "budget": ("several methods", lambda tune: len(tune.methods) > 1),
    }


@dataclass(frozen=True)
class Study:
    """The search for one method on one task, as described by a job file.

    Attributes:
        task, method: names of their folders.
        settings: the task's settings by dotted names.
        space: search space of the method.
        table: the job's table with the task's settings, without [tune] and [algorithm].
        rounds: rounds of a full run.
        seed: the first seed.
    """

    task: str
    method: str
    settings: dict[str, Any]
    space: Space
    table: dict[str, Any]
    rounds: int
    seed: int

    @property
    def title(self) -> str:
        """Its name in messages and tables."""
        return " ".join(filter(None, [self.task, self.method]))

    def config(self, settings: dict[str, Any], seed: int | None = None) -> Config:
        """Return the configuration of a full run with values of the open settings.

        Raises:
            ConfigError: the values are incompatible.
        """
        table = copy.deepcopy(self.table) | {"algorithm": self.space.table(settings)}
        return Config.from_table(table if seed is None else table | {"seed": seed})


@dataclass(frozen=True)
class Tuning:
    """A hyperparameter search.

    Attributes:
        tune: the section [tune].
        table: the other sections of the job, without [algorithm].
        studies: one per task and method; all methods of the first task come first.
        config: configuration of a run of the first study.
    """

    tune: Tune
    table: dict[str, Any]
    studies: tuple[Study, ...]
    config: Config

    @property
    def out(self) -> Path:
        """The output folder."""
        return Path(self.config.run.out)


def tuning(path: str | Path, overrides: list[str] = ()) -> Tuning:
    """Read the search that a job file describes. Every method is created once for every task.

    Raises:
        ConfigError: the file has no [tune], or a setting is wrong.
    """
    table = read_job(path, overrides)
    section = table.pop("tune", None)
    if not isinstance(section, dict):
        raise ConfigError(
            f"{truncate(str(path))} has no [tune], the table of methods to tune and their budget, e.g."
            f"\n\n{EXAMPLE}"
        )
    if "sweep" in table:
        raise ConfigError(
            "[tune] and [sweep] exclude each other: write settings with several values into [tune.tasks]"
        )
    with config_errors("tune", {"tune": Tune}):
        tune = Tune(**section)
    spaces = _spaces(tune, table)
    tasks = expand(tune.tasks)
    if not tasks:
        raise ConfigError("expected at least one value per setting in [tune.tasks], got an empty list")
    studies = [
        _study(table, task, name, method, space)
        for name, task in zip(folder_names(tasks), tasks)
        for method, space in spaces.items()
    ]
    _expect_budget(studies, tune)
    return Tuning(tune, table, tuple(studies), studies[0].config(studies[0].space.costliest))


def _spaces(tune: Tune, table: dict[str, Any]) -> dict[str, Space]:
    """Return folder name → search space of each method, including the settings in the job's [algorithm]."""
    common = table.pop("algorithm", {})
    if not isinstance(common, dict):
        raise ConfigError(
            f"expected [algorithm] with the settings that all methods share, got {short_repr(common)}"
        )
    common = {key: value for key, value in common.items() if key != "name"}
    spaces = []
    for number, method in enumerate(tune.methods):
        if not isinstance(method.get("name"), str):
            raise ConfigError(
                f"[[tune.methods]] number {number + 1}: expected a table with a name, got "
                f"{short_repr(method)}"
            )
        try:
            spaces.append(space_of(common | method))
        except ConfigError as error:
            raise ConfigError(f"[[tune.methods]] {method['name']}: {error}") from error
    names = folder_names([{"name": space.name} | flatten(space.fixed) for space in spaces])
    if first_duplicate(names) or len(spaces) == 1:
        short = short_names(space.name for space in spaces)
        names = [
            f"{short[space.name]}{f'-{k}' if len(spaces) > 1 else ''}" for k, space in enumerate(spaces, 1)
        ]
    return dict(zip(names, spaces))


def _study(table: dict, task: dict, name: str, method: str, space: Space) -> Study:
    task_table = copy.deepcopy(table)
    for key, value in task.items():
        set_key(task_table, key, value)
    given = task_table.pop("algorithm", {})  # from tasks such as "algorithm.q"
    still_open = {key: domain for key, domain in space.open.items() if key not in given}
    space = Space(space.name, space.fixed | given, still_open)
    study = Study(name if task else "", method, task, space, task_table, 0, 0)
    try:
        config = study.config(space.costliest)
    except ConfigError as error:
        raise ConfigError(f"[tune] {', '.join(filter(None, [study.task, method]))}: {error}") from error
    if config.stop.seconds is not None:
        raise ConfigError(
            "a job with [tune] must not have stop.seconds, because results would depend on the speed of the "
            "machine: remove it"
        )
    return replace(study, rounds=config.rounds, seed=config.seed)


def _expect_budget(studies: list[Study], tune: Tune) -> None:
    """Raise a :class:`ConfigError` if the budget is less than a search needs."""
    minimum = tune.seeds if all(not study.space.open for study in studies) else tune.seeds + 1
    if tune.runs < minimum:
        raise ConfigError(
            f"tune.runs = {tune.runs} with tune.seeds = {tune.seeds}: expected at least {minimum}, "
            "so that the best settings can be run with every seed"
        )
