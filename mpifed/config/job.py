"""The configuration of a run: a frozen, validated object from a job file, a table or Python objects.

``config.tables`` reads TOML and applies changes, ``config.theory`` inserts the step sizes of a theorem,
``config.plugins`` creates the method and the problem by name, and :class:`Config` validates them together
with the other sections. :meth:`Config.table` converts a configuration back to a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import Field, model_validator

from mpifed.base.errors import ConfigError, short_repr
from mpifed.base.paths import expand_home
from mpifed.base.plugins import Plugin, plugins_of
from mpifed.base.settings import (
    Digits,
    Files,
    Length,
    Needs,
    Results,
    Section,
    Selection,
    as_table,
    sections_of,
)
from mpifed.base.units import Seconds
from mpifed.config.plugins import create, find_class, name_of
from mpifed.config.tables import expect_bounded, read_job
from mpifed.config.theory import fill, prescription_of
from mpifed.core.user_metrics import Metric
from mpifed.simulation.options import ExecutionOptions
from mpifed.simulation.settings import SimulationSettings
from mpifed.storage.options import StorageOptions

__all__ = ["SECTIONS", "Config", "JobSummary", "Run", "Stop", "summarise"]


class Stop(Section):
    """[stop]: conditions that end a run before its last round."""

    metric: str | None = Field(None, description="metric that ends the run, e.g. validation_auc")
    at_least: float | None = Field(None, description="stop when the metric is at least this value")
    at_most: float | None = Field(None, description="stop when the metric is at most this value")
    patience: int | None = Field(
        None,
        ge=1,
        description="stop after this number of evaluations in a row without an improvement of the metric; "
        "whether it improves by growing or by falling is a property of the metric (`maximised`)",
    )
    min_delta: float | None = Field(
        None, ge=0, description="improvements by at most this value do not count for patience; default: 0"
    )
    seconds: Seconds | None = Field(
        None,
        gt=0,
        description="stop when the rounds of the run, also those before a resumption, have taken this time; "
        "evaluations and files do not count",
    )

    needs: ClassVar[Needs] = {"min_delta": ("patience", lambda stop: stop.patience is not None)}

    @model_validator(mode="after")
    def _one_metric(self):
        names = ("at_least", "at_most", "patience")
        given = [name for name in names if getattr(self, name) is not None]
        if {"at_least", "at_most"} <= {*given}:
            raise ValueError("at_least and at_most exclude each other: leave one of them out")
        if given and self.metric is None:
            raise ValueError(f"{given[0]} needs a metric: set stop.metric")
        if self.metric is not None and not given:
            raise ValueError("expected at_least, at_most or patience with metric, got none of them")
        return self


class Run(StorageOptions, ExecutionOptions):
    """[run]: how the run is executed."""

    threads: Digits[int | None] = Field(
        None,
        ge=1,
        le=4096,
        description="threads of torch per rank; default: 1 with reduction = exact, otherwise "
        "OMP_NUM_THREADS, or the cores of the node divided by its ranks",
    )
    watchdog: Files[Seconds] = Field(
        60.0,
        ge=0,
        le=1e8,
        description="minimum time without progress after which the run is ended; ten times as long for the "
        "set-up, the first round and the first evaluation; 0 disables the watchdog",
    )
    progress: Files[bool] = Field(True, description="show a progress bar on rank 0")


#: Sections and settings that a table omits if they are ``None``.
_OPTIONAL = ("clock", "initial", "measures", "personalize", "regularize", "theory")
#: Section → settings that its table omits if they are ``None``.
_OPTIONAL_IN = {
    "oracle": ("clip", "clip_over"),
    "participation": ("availability", "oversample", "dropout"),
    "stop": tuple(Stop.model_fields),
}


class Config(SimulationSettings):
    """The resolved and validated settings of one run.

    Raises:
        ConfigError: settings are wrong or incompatible; one line per error.
    """

    record: Selection[tuple[str, ...]] = Field(
        (), description='blocks whose averaged iterate is stored every round, e.g. ["x", "y"]'
    )
    stop: Length[Stop] = Stop()
    run: Run = Run()
    theory: Results[dict[str, Any] | None] = Field(
        None,
        description='name of a theorem, e.g. of = "wang-kale-2", and its constants; settings of the method '
        'may then be { name = "theorem" }',
    )

    @model_validator(mode="after")
    def _prescribes(self):
        prescription_of(self.theory)
        return self

    @classmethod
    def load(cls, path: str | Path, overrides: list[str] = ()) -> Config:
        """Read a TOML job file and apply ``key=value`` overrides.

        Raises:
            ConfigError: the file cannot be read, or a setting is wrong.
        """
        return cls.from_table(read_job(path, overrides))

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Config:
        """Create the configuration that a job file's table describes.

        The entry ``plugins`` of a stored table is ignored: classes are found by their names.

        Raises:
            ConfigError: a setting is wrong.
        """
        expect_bounded(table)
        _expect_stored_plugins(table.get("plugins", {}))
        for section, purpose in (("sweep", "many runs"), ("tune", "a search for the best settings")):
            if section in table:
                raise ConfigError(
                    f"the job file has a [{section}], which describes {purpose}: start it with `mpifed "
                    f"{section}`"
                )
        settings = {key: value for key, value in table.items() if key != "plugins"}
        method_settings, problem_settings = _named(settings, "algorithm"), _named(settings, "problem")
        method = find_class(method_settings.pop("name"), "algorithm")
        problem = find_class(problem_settings.pop("name"), "problem")
        known = {"": cls, **SECTIONS, "algorithm": method, "problem": problem}
        settings["problem"] = create(problem, problem_settings, "problem", known)
        method_settings, settings["theory"] = fill(method, method_settings, settings, settings["problem"])
        settings["algorithm"] = create(method, method_settings, "algorithm", known)
        return cls(**settings)

    def table(self) -> dict[str, Any]:
        """Return the resolved settings as JSON values; :meth:`from_table` creates the same run from them.

        The entry ``plugins`` has the names and source digests of user-defined classes and of user-defined
        values of their settings, such as ``problem.model``.
        """
        parts = {"algorithm": self.algorithm, "problem": self.problem}
        table = self.model_dump(mode="json", exclude={*parts, "metrics"})
        table |= {section: as_table(part) | {"name": name_of(part)} for section, part in parts.items()}
        for section, names in _OPTIONAL_IN.items():
            table[section] = {k: v for k, v in table[section].items() if v is not None or k not in names}
        if self.message.compression is None:
            del table["message"]
        table["output"] = self.output_rule
        table = {key: value for key, value in table.items() if value is not None or key not in _OPTIONAL}
        plugins = plugins_of("algorithm", self.algorithm) | plugins_of("problem", self.problem)
        if self.metrics:
            table["metrics"] = [
                part.name if isinstance(part, Metric) else as_table(part) for part in self.metrics
            ]
            for k, part in enumerate(self.metrics):
                if isinstance(part, Metric):
                    plugins[f"metrics.{k}"] = Plugin(part.name, part.digest)
        if plugins:
            table["plugins"] = {place: part._asdict() for place, part in plugins.items()}
        return table


def _expect_stored_plugins(entries: Any) -> None:
    """Check that the entry ``plugins`` is that of a stored table: no setting has this name."""
    stored = isinstance(entries, dict) and all(
        place.partition(".")[0] in ("algorithm", "problem", "metrics")
        and isinstance(entry, dict)
        and entry.keys() == {*Plugin._fields}
        for place, entry in entries.items()
    )
    if not stored:
        raise ConfigError(
            f"a job file has no setting 'plugins', which stored runs use for the sources of user-defined "
            f"classes, got {short_repr(entries)}: leave it out; name a class by its file, e.g. "
            'algorithm.name = "./file.py:Name"'
        )


def _named(table: dict[str, Any], section: str) -> dict[str, Any]:
    """Return a copy of the section "algorithm" or "problem", which may be only a name."""
    named = table.get(section)
    named = {"name": named} if isinstance(named, str) else named
    if not isinstance(named, dict) or not isinstance(named.get("name"), str):
        raise ConfigError(f"[{section}] has no name: set {section}.name to a name that `mpifed list` prints")
    return dict(named)


#: Name in a job file → record of the section's settings.
SECTIONS = sections_of(Config)


class JobSummary(NamedTuple):
    """Summary of a job's table: output folder, names of method and problem, and number of rounds.

    ``rounds`` is ``None`` if it is not an integer in the table.
    """

    out: str
    method: str
    problem: str
    rounds: int | None


def summarise(table: dict[str, Any]) -> JobSummary:
    """Summarise a job's table without loading the classes that it names.

    Raises:
        ConfigError: one of these settings has a wrong type.
    """
    run, rounds = table.get("run", {}), table.get("rounds", Config.model_fields["rounds"].default)
    out = run.get("out", Run.model_fields["out"].default) if isinstance(run, dict) else None
    if not isinstance(out, str) or not out.strip():
        raise ConfigError(f"run.out: expected the name of a folder, got {short_repr(out)}")
    names = [_named(table, section)["name"].rpartition(":")[2] for section in ("algorithm", "problem")]
    return JobSummary(expand_home(out), *names, rounds if isinstance(rounds, int) else None)
