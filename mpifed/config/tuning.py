"""A job file with a ``[tune]`` table: which methods are tuned for which tasks, and at what cost."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from mpifed.base.errors import ConfigError, short_repr, truncate
from mpifed.base.settings import Section, explain, flatten, suggest
from mpifed.config.grids import expand, folder_names, twice
from mpifed.config.job import Config
from mpifed.config.space import Space, space_of
from mpifed.config.tables import expect_spellable, put, read_job

__all__ = ["EXAMPLE", "Cell", "Tune", "Tuning", "tuning"]

#: A [tune] table, as the error of a file without one shows it.
EXAMPLE = """\
[tune]
runs = 16
seeds = 3
[[tune.methods]]
name = "FGDA"
q = 10                              # fixed
alpha = [0.1, 0.5, 0.9]             # one of them
gamma = { low = 1e-3, high = 1.0 }  # a range; lam and beta, left out, have their own
"""


class Tune(Section):
    """[tune]: a search for the best settings of several methods, at the same cost for each: mpifed tune."""

    runs: int = Field(
        16,
        ge=1,
        description="budget of each method and task: oracle calls of so many runs of the costliest method",
    )
    seeds: int = Field(
        3,
        ge=1,
        le=100,
        description="seeds of what is run for a third of the rounds or longer",
    )
    fresh: int | None = Field(
        None, ge=1, le=100, description="seeds of best.toml, which have chosen nothing; as many when left out"
    )
    metric: str | None = Field(
        None,
        description="what decides, on the validation split where there is one; the problem's first when left "
        "out",
    )
    tasks: dict[str, Any] = Field(
        {}, description="dotted settings and lists: the methods are tuned for every combination apart"
    )
    methods: tuple[dict[str, Any], ...] = Field(
        min_length=1, description="tables of a method each: values, lists, ranges { low = 1e-3, high = 1.0 }"
    )


@dataclass(frozen=True)
class Cell:
    """One method under one task.

    Attributes:
        task, method: their names, of folders.
        settings: those of the task, by dotted names.
        space: what is open in the method.
        table: the job's table with the task's settings, without [tune] and [algorithm].
        rounds: of a whole run; ``seed``: the first one.
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
        """What it is called where it is shown."""
        return " ".join(filter(None, [self.task, self.method]))

    def config(self, settings: dict[str, Any], seed: int | None = None) -> Config:
        """A whole run with values of the open settings.

        Raises:
            ConfigError: these do not go together.
        """
        table = copy.deepcopy(self.table) | {"algorithm": self.space.table(settings)}
        return Config.from_table(table if seed is None else table | {"seed": seed})


@dataclass(frozen=True)
class Tuning:
    """A search.

    Attributes:
        tune: its section; ``table``: the rest of the job, without [algorithm].
        cells: the methods of the first task, then of the next.
        config: a run of the first cell.
    """

    tune: Tune
    table: dict[str, Any]
    cells: tuple[Cell, ...]
    config: Config

    @property
    def out(self) -> Path:
        """The folder of its files."""
        return Path(self.config.run.out)


def tuning(path: str | Path, overrides: list[str] = ()) -> Tuning:
    """The search that a job file asks for; every method has been built once for every task.

    Raises:
        ConfigError: the file has no [tune], or something in it cannot be run; says what.
    """
    table = read_job(path, overrides)
    expect_spellable(table)
    said = table.pop("tune", None)
    if not isinstance(said, dict):
        raise ConfigError(
            f"{truncate(str(path))} has no [tune], the table of methods to be tuned and of their budget, e.g."
            f"\n\n{EXAMPLE}"
        )
    if "sweep" in table:
        raise ConfigError(
            "[tune] and [sweep] exclude each other: what is a list of tasks goes into [tune.tasks]"
        )
    tune = _section(said)
    spaces = _spaces(tune, table)
    tasks = expand(tune.tasks)
    if not tasks:
        raise ConfigError("[tune.tasks] has an empty list, which leaves no task")
    cells = [
        _cell(table, task, name, method, space)
        for name, task in zip(folder_names(tasks), tasks)
        for method, space in spaces.items()
    ]
    _expect_fair(cells, tune)
    return Tuning(tune, table, tuple(cells), cells[0].config(cells[0].space.costliest))


def _section(said: dict[str, Any]) -> Tune:
    if unknown := [key for key in said if key not in Tune.model_fields]:
        raise ConfigError(
            f"[tune] has no setting {short_repr(unknown[0])}: {suggest(unknown[0], Tune.model_fields)}"
        )
    try:
        return Tune(**said)
    except ValidationError as error:
        raise ConfigError(explain(error.errors(), "tune")) from None


def _spaces(tune: Tune, table: dict[str, Any]) -> dict[str, Space]:
    """Name of a folder → space of each method, with what the job's [algorithm] says of all."""
    shared = table.pop("algorithm", {})
    if not isinstance(shared, dict):
        raise ConfigError(f"[algorithm] beside [tune] holds what all methods share, got {short_repr(shared)}")
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
    if twice(names) or len(spaces) == 1:
        names = [f"{space.name}-{k}" if len(spaces) > 1 else space.name for k, space in enumerate(spaces, 1)]
    return dict(zip(names, spaces))


def _cell(table: dict, task: dict, name: str, method: str, space: Space) -> Cell:
    own = copy.deepcopy(table)
    for key, value in task.items():
        put(own, key, value)
    given = own.pop("algorithm", {})  # of tasks such as "algorithm.q"
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
        raise ConfigError("stop.seconds makes what is found depend on the clock: leave it out beside [tune]")
    return Cell(cell.task, method, task, space, own, config.rounds, config.seed)


def _expect_fair(cells: list[Cell], tune: Tune) -> None:
    """Hold the budget against the least that a search takes."""
    least = tune.seeds if all(not cell.space.open for cell in cells) else tune.seeds + 1
    if tune.runs < least:
        raise ConfigError(
            f"tune.runs = {tune.runs} with tune.seeds = {tune.seeds}: expected at least {least}, for what "
            "is best with every seed"
        )
