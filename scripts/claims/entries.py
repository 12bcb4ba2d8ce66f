"""What is claimed: claims.toml as objects.

``[[claim]]`` is a sentence of a paper as a comparison that runs can decide, ``[experiment.NAME]`` what the
job file NAME.toml beside it shows, ``[paper.KEY]`` the heading of a paper's experiments.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mpifed
from mpifed.base.errors import ConfigError
from mpifed.base.settings import suggest
from mpifed.config.tables import read_table
from mpifed.theory import THEOREMS

STATISTICS = ("final", "best", "mean", "slope", "rounds_to", "calls_to", "bytes_to")
SCALES = ("linear", "log")
GROWS = {"rising": False, "falling": True}
#: What a claim holds its methods against: one of these, or a trend alone.
AGAINST = ("than", "than_level", "than_bound", "worse_than_level")


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper as a comparison.

    Attributes:
        says: the claim in a sentence; ``place`` is where it stands in the ``paper``, a key of references.bib.
        job: its job file, without ending; ``where`` takes some of its runs, by dotted settings.
        metric: what is compared; of ``statistic`` the last value, the best, the mean over the evaluations,
            the slope of its log10 a round, or the rounds (oracle calls, bytes) to ``target``.
        scale: "log" compares log10 of it, so that differences are ratios.
        better: the methods that the claim puts ahead, ``NAME`` or ``NAME,KEY=VALUE`` for a setting of it.
        than: each of these is behind each of the others; or there is a level (``than_level``), or the bound
            of the theorem that the job names (``than_bound``).
        worse_than_level: the claim is that each of ``methods`` stays behind this.
        trend: ``along`` a setting, ``grows`` "rising" or "falling": the lead over the others (without any,
            the figure itself) is the larger the more the setting rises or falls.
        margin: a lead of less is none; in log10 units or those of the metric. Of a trend, from one value of
            the setting to the next.
        all: each of ``better`` is ahead; false: one of them.
        note: what the comparison leaves open.
    """

    name: str
    paper: str
    place: str
    says: str
    job: str
    metric: str
    statistic: str = "final"
    target: float | None = None
    scale: str = "linear"
    where: Mapping[str, Any] = field(default_factory=dict)
    better: Sequence[str] = ()
    methods: Sequence[str] = ()
    than: Sequence[str] = ()
    than_level: float | None = None
    than_bound: str | None = None
    worse_than_level: float | None = None
    trend: Mapping[str, str] | None = None
    margin: float = 0.0
    all: bool = True
    note: str = ""

    @property
    def subjects(self) -> Sequence[str]:
        """The methods that the claim is about."""
        return self.better or self.methods

    @property
    def level(self) -> float | None:
        """What the methods are held against, if it is a number of the claim's own."""
        return self.than_level if self.worse_than_level is None else self.worse_than_level


@dataclass(frozen=True)
class Experiment:
    """What the figure of a job file shows.

    Attributes:
        source: the paper, a key of references.bib.
        title: its heading.
        metric: is drawn, and decides which setting of a grid is best; ``also`` are drawn with it.
        panels: the settings of which every value is a task of its own; ``a|b`` where methods name it
            differently. Of none that are given, all settings outside the methods that vary.
        drawn: takes some of the runs for the figure, by dotted settings, where tasks are many; without any of
            these there, it has all.
        note: what there is to know of it.
    """

    name: str
    source: str
    title: str
    metric: str
    also: Sequence[str] = ()
    panels: Sequence[str] = ()
    drawn: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Book:
    """A file of claims: ``folder`` is where it and its job files lie, ``papers`` are headings by key."""

    folder: Path
    claims: Sequence[Claim]
    experiments: Mapping[str, Experiment]
    papers: Mapping[str, str]

    def job(self, name: str) -> Path:
        """The small job file of an experiment."""
        return self.folder / f"{name}.toml"

    def stated(self, name: str) -> Path:
        """Its job at the settings that the paper states, if there is such a file."""
        return self.folder / "stated" / f"{name}.toml"

    def full(self, name: str) -> Path:
        """Its job at the paper's size."""
        return self.folder / "full" / f"{name}.toml"


def read(path: str | Path) -> Book:
    """A file of claims.

    A job that has claims and no ``[experiment]`` is shown by the metric of its first claim.

    Raises:
        ConfigError: the file cannot be read, or an entry of it is wrong; says which, expected and got.
    """
    table = read_table(path, "file of claims")
    for key in table:
        if key not in ("claim", "experiment", "paper"):
            raise ConfigError(f"{path}: unknown {key!r}: {suggest(key, ['claim', 'experiment', 'paper'])}")
    folder = Path(path).resolve().parent
    claims = [_claim(one, number, folder) for number, one in enumerate(table.get("claim", []), 1)]
    names = [one.name for one in claims]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two claims are called {twice!r}: expected a name each")
    experiments = {name: _experiment(name, one, folder) for name, one in table.get("experiment", {}).items()}
    for one in claims:
        experiments.setdefault(one.job, _shown(one, folder))
    papers = {_key(key, f"[paper.{key}]"): one["title"] for key, one in table.get("paper", {}).items()}
    return Book(folder, claims, experiments, papers)


def _claim(table: dict, number: int, folder: Path) -> Claim:
    what = f"claim {table.get('name', number)!r}"
    claim = _built(Claim, table, what)
    _key(claim.paper, what)
    _job(claim.job, folder, what)
    for key, options in (("statistic", STATISTICS), ("scale", SCALES)):
        if getattr(claim, key) not in options:
            raise ConfigError(
                f"{what}: no {key} {getattr(claim, key)!r}: {suggest(getattr(claim, key), options)}"
            )
    if claim.statistic.endswith("_to") != (claim.target is not None):
        raise ConfigError(f"{what}: a target belongs to rounds_to, calls_to and bytes_to, and they need one")
    if claim.statistic == "slope" and claim.scale == "log":
        raise ConfigError(f'{what}: a slope is of the logarithm already: expected scale = "linear"')
    _expect_comparison(claim, what)
    return claim


def _expect_comparison(claim: Claim, what: str) -> None:
    given = [key for key in AGAINST if getattr(claim, key) not in (None, ())]
    if len(given) > 1 or (not given and claim.trend is None):
        raise ConfigError(f"{what}: expected one of {', '.join(AGAINST)}, or a trend, got {given or 'none'}")
    role, other = ("methods", "better") if "worse_than_level" in given else ("better", "methods")
    if not getattr(claim, role) or getattr(claim, other):
        raise ConfigError(f"{what}: expected the methods in {role!r}, and no {other!r}")
    if claim.margin < 0:
        raise ConfigError(f"{what}: expected a margin of at least 0, got {claim.margin}")
    if claim.than_bound is not None and claim.than_bound not in THEOREMS:
        raise ConfigError(f"{what}: no theorem {claim.than_bound!r}: {suggest(claim.than_bound, THEOREMS)}")
    trend = claim.trend
    if trend is not None and (set(trend) != {"along", "grows"} or trend["grows"] not in GROWS):
        raise ConfigError(
            f'{what}: expected trend = {{ along = "problem.lam", grows = "falling" }} or "rising"'
        )
    if trend is not None and (claim.level is not None or claim.than_bound):
        raise ConfigError(f"{what}: a trend is of a lead over methods, or of a figure itself")


def _experiment(name: str, table: dict, folder: Path) -> Experiment:
    what = f"[experiment.{name}]"
    _job(name, folder, what)
    one = _built(Experiment, {"name": name, "title": title(folder / f"{name}.toml")} | table, what)
    _key(one.source, what)
    return one


def _shown(claim: Claim, folder: Path) -> Experiment:
    return Experiment(claim.job, claim.paper, title(folder / f"{claim.job}.toml"), claim.metric)


def title(path: Path) -> str:
    """The first line of a job file, a comment."""
    with path.open() as file:
        return file.readline().removeprefix("#").strip().rstrip(".")


def _built(kind, table: dict, what: str):
    """An object of a table.

    Raises:
        ConfigError: an unknown key, one that is missing, or a value of another type.
    """
    fields = {one.name: one for one in dataclasses.fields(kind)}
    for key in table:
        if key not in fields:
            raise ConfigError(f"{what}: unknown {key!r}: {suggest(key, fields)}")
    for key, one in fields.items():
        needed = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if needed and key not in table:
            raise ConfigError(f"{what}: expected {key!r}, which is missing")
        if key in table and not _is(table[key], str(one.type)):
            raise ConfigError(
                f"{what}: expected {key} = {one.type}, got {json.dumps(table[key], default=str)}"
            )
    return kind(**table)


def _is(value, kind: str) -> bool:
    """Whether a value of TOML is of the type in an annotation."""
    if kind.startswith("Sequence"):
        return isinstance(value, list) and value != [] and all(isinstance(one, str) for one in value)
    if kind.startswith("Mapping"):
        return isinstance(value, dict)
    if kind.startswith("float"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, bool if kind == "bool" else str)


def _key(key: str, what: str) -> str:
    """A key of references.bib."""
    text = Path(mpifed.__file__).with_name("references.bib").read_text()
    known = [line.partition("{")[2].rstrip(",") for line in text.splitlines() if line.startswith("@")]
    if key not in known:
        raise ConfigError(f"{what}: no key {key!r} in references.bib: {suggest(key, known)}")
    return key


def _job(name: str, folder: Path, what: str) -> None:
    if not (folder / f"{name}.toml").is_file():
        jobs = [path.stem for path in folder.glob("*.toml") if not path.stem.startswith("claims")]
        raise ConfigError(f"{what}: no job file {name}.toml in {folder}: {suggest(name, jobs)}")
