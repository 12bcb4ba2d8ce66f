"""Job files: TOML plus ``key=value`` overrides → frozen, validated objects.

A :class:`Config` holds the algorithm and the problem as objects; it can be built in Python, from a table, or from a file.
:meth:`Config.table` gives the resolved settings back, complete enough to build the same run again.

A name is one of the package's (`mpifed list`), ``./file.py:Class``, ``package.module:Class``, or an entry point in the
groups ``mpifed.algorithms`` and ``mpifed.problems``.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError, model_validator

from mpifed.algorithms import ALGORITHMS
from mpifed.config.sections import SECTIONS, Clock, Oracle, Participation, Run, Stop
from mpifed.core.algorithm import Algorithm
from mpifed.core.problem import Problem
from mpifed.core.proximal import Zero
from mpifed.core.settings import build, explain, near_miss
from mpifed.problems import PROBLEMS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Config", "ConfigError", "find", "describe", "override", "read_table"]


class ConfigError(ValueError):
    """A job file or an override asks for something that cannot be done. The message has one line a fault."""


class Config(BaseModel):
    """One run, resolved and validated."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    algorithm: InstanceOf[Algorithm]
    problem: InstanceOf[Problem]
    seed: int = Field(0, ge=0, description="first part of the address of every random stream")
    rounds: int = Field(100, ge=1, description="communication rounds")
    output: Literal["last", "average", "uniform"] | None = Field(
        None, description="the point returned: last, average, random round; by default the paper's rule"
    )
    record: tuple[str, ...] = Field(
        (), description='blocks whose averaged iterate is stored every round, e.g. ["x", "y"]'
    )
    oracle: Oracle = Oracle()
    participation: Participation = Participation()
    stop: Stop = Stop()
    run: Run = Run()
    clock: Clock | None = None
    sources: dict[str, str] = Field(default_factory=dict, exclude=True)

    @model_validator(mode="after")
    def _fits_together(self):
        algorithm, problem, cohort = self.algorithm, self.problem, self.participation.cohort
        name = type(algorithm).__name__
        fits = {problem.family, "operator"} if problem.family == "minimax" else {problem.family}
        if algorithm.family not in fits:
            raise ValueError(
                f"{name} solves {algorithm.family} problems, {type(problem).__name__} is a {problem.family} problem: "
                f"methods for it are {', '.join(n for n, c in ALGORITHMS.items() if c.family in fits)}"
            )
        if problem.family == "operator" and not isinstance(problem.phi, Zero) and not algorithm.composite:
            raise ValueError(
                f"{type(problem).__name__} has a convex part φ = {problem.phi}, which {name} would ignore: methods for it are "
                f"{', '.join(n for n, c in ALGORITHMS.items() if c.composite)}"
            )
        if cohort is not None and cohort > problem.clients:
            raise ValueError(
                f"participation.cohort = {cohort} is more than problem.clients = {problem.clients}"
            )
        if cohort not in (None, problem.clients) and not algorithm.partial_participation:
            raise ValueError(
                f"{name} needs every client in every round, got participation.cohort = {cohort} of {problem.clients}: leave it "
                f"out, or take one of {', '.join(n for n, c in ALGORITHMS.items() if c.partial_participation)}"
            )
        return self

    @property
    def output_rule(self) -> str:
        """The output rule: as set, or the method's own."""
        return self.output or self.algorithm.output

    @classmethod
    def load(cls, path: str | Path, overrides: list[str] = ()) -> Config:
        """Read a TOML job file and apply ``key=value`` overrides.

        Raises:
            ConfigError: the file cannot be read, or something in it is wrong.
        """
        table = read_table(path)
        for text in overrides:
            override(table, text)
        return cls.from_table(table)

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Config:
        """Build the objects that a job file's table names.

        Raises:
            ConfigError: something in it is wrong.
        """
        if "sweep" in table:
            raise ConfigError(
                "the job file has a [sweep], which makes many runs: start it with `mpifed sweep`"
            )
        table, sources = dict(table), {}
        for section, group in (("algorithm", ALGORITHMS), ("problem", PROBLEMS)):
            settings = table.get(section)
            if isinstance(settings, str):
                settings = {"name": settings}
            if not isinstance(settings, dict) or not isinstance(settings.get("name"), str):
                raise ConfigError(f"[{section}] needs a name {near_miss('', group)}")
            settings = dict(settings)
            name = settings.pop("name")
            kind = find(name, section)
            try:
                table[section] = build(kind, settings, section)
            except ValueError as error:
                raise ConfigError(str(error)) from None
            sources[section] = name if name in group or not _is_file(name) else str(Path(name).resolve())
        try:
            return cls(**table, sources=sources)
        except ValidationError as error:
            raise ConfigError(_explain_sections(error)) from None

    def table(self) -> dict[str, Any]:
        """The resolved settings: JSON-able, and :meth:`from_table` builds the same run from them."""
        table = self.model_dump(mode="json", exclude={"algorithm", "problem", "oracle"})
        for section in ("algorithm", "problem"):
            table[section] = describe(getattr(self, section), self.sources.get(section))
        table["oracle"] = {"batch_size": self.oracle.batch_size, "noise": describe(self.oracle.noise)}
        table["output"] = self.output_rule
        table["stop"] = {key: value for key, value in table["stop"].items() if value is not None}
        if self.clock is None:
            del table["clock"]
        return table


def read_table(path: str | Path) -> dict[str, Any]:
    """The table of a TOML job file.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the job file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def describe(value, name: str | None = None):
    """Settings as JSON-able values: a record of settings becomes a table with its name."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"name": name or getattr(value, "choice_name", type(value).__name__), **fields}
    if isinstance(value, list | tuple):
        return [describe(one) for one in value]
    return value


def find(name: str, section: str) -> type:
    """The class that a name stands for. ``section`` is "algorithm" or "problem".

    Raises:
        ConfigError: there is no such name, file, module or class, or the class is of the wrong kind.
    """
    known, base = (ALGORITHMS, Algorithm) if section == "algorithm" else (PROBLEMS, Problem)
    if name in known:
        return known[name]
    module, colon, attribute = name.rpartition(":")
    if not colon:
        points = {point.name: point for point in importlib.metadata.entry_points(group=f"mpifed.{section}s")}
        if name not in points:
            hint = near_miss(name, [*known, *points])
            raise ConfigError(
                f'unknown {section} {name!r}: {hint}; your own: "./file.py:Class" or "package.module:Class"'
            )
        found = points[name].load()
    else:
        loaded = _load_file(module) if _is_file(name) else _import(module, name)
        found = getattr(loaded, attribute, None)
        if found is None:
            classes = [
                key
                for key, value in vars(loaded).items()
                if isinstance(value, type) and issubclass(value, base)
            ]
            raise ConfigError(f"{module} has no {attribute!r}: {near_miss(attribute, classes)}")
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{name} is not a subclass of mpifed.{base.__name__}")
    return found


def _is_file(name: str) -> bool:
    return name.rpartition(":")[0].endswith(".py")


def _load_file(path: str):
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"there is no file {path} (looked in {Path.cwd()})")
    spec = importlib.util.spec_from_file_location(f"mpifed_user_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _import(module: str, name: str):
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"cannot import {module!r} for {name!r}: {error}") from None


def override(table: dict, text: str) -> None:
    """Apply one ``section.key=value``; the value is TOML, or else a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"an override is key=value, e.g. run.out=runs/a or algorithm.q=5, got {text!r}")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *path, last = key.strip().split(".")
    for part in path:
        if isinstance(table.get(part), str):
            table[part] = {"name": table[part]}
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"cannot set {key}: {part} is not a table")
    if isinstance(table.get(last), dict) and isinstance(parsed, str):
        parsed = {"name": parsed}
    table[last] = parsed


def _explain_sections(error: ValidationError) -> str:
    """Faults of the sections, with the near miss of an unknown key."""
    lines = []
    for fault in error.errors():
        if fault["type"] == "extra_forbidden":
            *path, key = map(str, fault["loc"])
            model = SECTIONS.get(path[0] if path else "", Config)
            known = [name for name in model.model_fields if name != "sources"]
            where = f"[{path[0]}]" if path else "a job file"
            lines.append(f"{where} has no setting {key!r}: {near_miss(key, known)}")
    rest = [fault for fault in error.errors() if fault["type"] != "extra_forbidden"]
    return "\n".join(lines + ([explain(rest, "job file")] if rest else []))
