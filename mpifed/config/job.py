"""One run as a frozen, validated object: from a job file, from its table, or from objects in Python.

A :class:`Config` holds the algorithm and the problem as objects. :meth:`Config.table` gives the resolved
settings back, complete enough to build the same run again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from mpifed.algorithms import ALGORITHMS
from mpifed.base.errors import ConfigError
from mpifed.base.plugins import Plugin, sources
from mpifed.base.settings import Preset, as_table, sections_of, suggest
from mpifed.config.plugins import find, make, name_of
from mpifed.config.sections import Run, Stop
from mpifed.config.tables import expect_spellable, read_job
from mpifed.config.theory import fill, prescription_of
from mpifed.problems import PROBLEMS
from mpifed.simulation.settings import SimulationSettings

__all__ = ["SECTIONS", "Config"]

#: Sections and settings that a table leaves out where the job has none.
_OPTIONAL = ("clock", "initial", "measures", "regularize", "theory")
#: Section → settings that its table leaves out where they are not set.
_WHERE_SET = {"participation": ("availability", "oversample", "dropout"), "stop": tuple(Stop.model_fields)}


class Config(SimulationSettings):
    """One run, resolved and validated.

    Raises:
        ConfigError: a setting is wrong, or two do not go together; one line per error.
    """

    record: tuple[str, ...] = Field(
        (), description='blocks whose averaged iterate is stored every round, e.g. ["x", "y"]'
    )
    stop: Stop = Stop()
    run: Run = Run()
    theory: dict[str, Any] | None = Field(
        None,
        description="name of a theorem, of = ..., and its constants; settings may then be name = theorem",
    )

    @model_validator(mode="after")
    def _prescribes(self):
        prescription_of(self.theory)
        return self

    @classmethod
    def load(cls, path: str | Path, overrides: list[str] = ()) -> Config:
        """Read a TOML job file and apply ``key=value`` overrides.

        Raises:
            ConfigError: the file cannot be read, or something in it is wrong.
        """
        return cls.from_table(read_job(path, overrides))

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Config:
        """Build the objects that a job file's table names.

        What :meth:`table` says of the plugins' sources is left aside: their names alone say what is built.

        Raises:
            ConfigError: something in it is wrong.
        """
        expect_spellable(table)
        if "sweep" in table:
            raise ConfigError(
                "the job file has a [sweep], which makes many runs: start it with `mpifed sweep`"
            )
        if "tune" in table:
            raise ConfigError(
                "the job file has a [tune], a search for the best settings: start it with `mpifed tune`"
            )
        settings = {key: value for key, value in table.items() if key != "plugins"}
        (method, rest), (kind, of_problem) = (
            _part(settings, section, group)
            for section, group in (("algorithm", ALGORITHMS), ("problem", PROBLEMS))
        )
        settings["problem"] = make(kind, of_problem, "problem")
        rest, settings["theory"] = fill(method, rest, settings, settings["problem"])
        settings["algorithm"] = make(method, rest, "algorithm")
        return cls(**settings)

    def table(self) -> dict[str, Any]:
        """The resolved settings: JSON-able, and :meth:`from_table` builds the same run from them.

        Its ``plugins`` are the names and the digests of the sources of the user's own classes, and, under
        ``problem.model`` and so on, of what else of their settings is the user's.
        """
        parts = {"algorithm": self.algorithm, "problem": self.problem}
        table = self.model_dump(mode="json", exclude={*parts, "metrics"})
        table |= {section: as_table(part) | {"name": name_of(part)} for section, part in parts.items()}
        for section, names in _WHERE_SET.items():
            table[section] = {k: v for k, v in table[section].items() if v is not None or k not in names}
        if self.message.compression is None:
            del table["message"]
        table["output"] = self.output_rule
        table = {key: value for key, value in table.items() if value is not None or key not in _OPTIONAL}
        plugins = {
            place: one for section, part in parts.items() for place, one in sources(section, part).items()
        }
        if self.metrics:
            table["metrics"] = [one.name for one in self.metrics]
            plugins |= {f"metrics.{k}": Plugin(one.name, one.digest) for k, one in enumerate(self.metrics)}
        if plugins:
            table["plugins"] = {place: one._asdict() for place, one in plugins.items()}
        return table


def _part(settings: dict[str, Any], section: str, group: dict) -> tuple[type | Preset, dict[str, Any]]:
    """The class that a section names, and its settings."""
    own = settings.get(section)
    own = {"name": own} if isinstance(own, str) else own
    if not isinstance(own, dict) or not isinstance(own.get("name"), str):
        raise ConfigError(f"[{section}] needs a name {suggest('', group)}")
    rest = {key: value for key, value in own.items() if key != "name"}
    return find(own["name"], section), rest


#: Name in a job file → record of the section's settings.
SECTIONS = sections_of(Config)
