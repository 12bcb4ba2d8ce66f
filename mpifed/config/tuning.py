"""Job files with a ``[tune]`` table, which lists methods, tasks and the budget of a hyperparameter search."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from mpifed.base.errors import ConfigError, short_repr, truncate
from mpifed.base.settings import Section, explain, flatten, suggest
from mpifed.config.grids import expand, first_duplicate, folder_names
from mpifed.config.job import Config
from mpifed.config.space import Space, space_of
from mpifed.config.tables import read_job, set_key

__all__ = ["EXAMPLE", "Cell", "Tune", "Tuning", "tuning"]

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
    """[tune]: a search for the best settings of several methods, at the same cost for each: mpifed tune."""

    runs: int = Field(
        16,
        ge=1,
        description="budget per method and task: the oracle calls of this many runs of the costliest method",
    )
    seeds: int = Field(
        3,
        ge=1,
        le=100,
        description="number of seeds of runs with at least a third of the rounds",
    )
    fresh: int | None = Field(
        None, ge=1, le=100, description="number of new seeds in best.toml; default: seeds"
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


@dataclass(frozen=True)
class Cell:
    """One method for one task.

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
        cells: the methods for the first task, then those for the next task, and so on.
        config: configuration of a run of the first cell.
    """

    tune: Tune
    table: dict[str, Any]
    cells: tuple[Cell, ...]
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
    tune = _section(section)
    spaces = _spaces(tune, table)
    tasks = expand(tune.tasks)
    if not tasks:
        raise ConfigError("[tune.tasks] has an empty list, which leaves no task")
    cells = [
        _cell(table, task, name, method, space)
        for name, task in zip(folder_names(tasks), tasks)
        for method, space in spaces.items()
    ]
    _expect_budget(cells, tune)
    return Tuning(tune, table, tuple(cells), cells[0].config(cells[0].space.costliest))


def _section(table: dict[str, Any]) -> Tune:
    if unknown := [key for key in table if key not in Tune.model_fields]:
        raise ConfigError(
            f"[tune] has no setting {short_repr(unknown[0])}: {suggest(unknown[0], Tune.model_fields)}"
        )
    try:
        return Tune(**table)
    except ValidationError as error:
        raise ConfigError(explain(error.errors(), "tune")) from None


def _spaces(tune: Tune, table: dict[str, Any]) -> dict[str, Space]:
    """Return folder name → search space of each method, including the settings in the job's [algorithm]."""
    shared = table.pop("algorithm", {})
    if not isinstance(shared, dict):
        raise ConfigError(
            f"expected [algorithm] with the settings that all methods share, got {short_repr(shared)}"
        )
    shared = {key: value for key, value in shared.items() if key != "name"}
    spaces = []
    for number, one in enumerate(tune.methods):
        if not isinstance(one.get("name"), str):
            raise ConfigError(f"[[tune.methods]] number {number + 1} needs a name, got {short_repr(one)}")
        try:
            spaces.append(space_of(shared | one))
        except ConfigError as error:
            raise ConfigError(f"[[tune.methods]] {one['name']}: {error}") from error
    names = folder_names([{"name": space.name} | flatten(space.fixed) for space in spaces])
    if first_duplicate(names) or len(spaces) == 1:
        names = [f"{space.name}-{k}" if len(spaces) > 1 else space.name for k, space in enumerate(spaces, 1)]
    return dict(zip(names, spaces))


def _cell(table: dict, task: dict, name: str, method: str, space: Space) -> Cell:
    own = copy.deepcopy(table)
    for key, value in task.items():
        set_key(own, key, value)
    given = own.pop("algorithm", {})  # from tasks such as "algorithm.q"
    space = Space(
        space.name, space.fixed | given, {k: one for k, one in space.open.items() if k not in given}
    )
    try:
        cell = Cell(name if task else "", method, task, space, own, 0, 0)
        config = cell.config(space.costliest)
    except ConfigError as error:
        raise ConfigError(
            f"[tune] {', '.join(filter(None, [name if task else '', method]))}: {error}"
        ) from error
    if config.stop.seconds is not None:
        raise ConfigError(
            "stop.seconds makes the result depend on the clock: remove it from a job with [tune]"
        )
    return Cell(cell.task, method, task, space, own, config.rounds, config.seed)


def _expect_budget(cells: list[Cell], tune: Tune) -> None:
    """Raise a :class:`ConfigError` if the budget is less than a search needs."""
    least = tune.seeds if all(not cell.space.open for cell in cells) else tune.seeds + 1
    if tune.runs < least:
        raise ConfigError(
            f"tune.runs = {tune.runs} with tune.seeds = {tune.seeds}: expected at least {least}, so that the "
            "best settings can be run with every seed"
        )
