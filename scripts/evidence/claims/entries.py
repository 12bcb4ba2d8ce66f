"""Claims and experiments: the contents of claims.toml as objects.

``[[claim]]`` is a claim of a paper as a comparison of runs, ``[experiment.NAME]`` describes the experiment in
the job file NAME.toml of the same folder, ``[paper.KEY]`` contains the heading of a paper's experiments, and
``page`` is the name of the page with the verdicts.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mpifed
from mpifed.base.errors import ConfigError
from mpifed.base.settings import suggest
from mpifed.config.tables import read_table
from mpifed.theory import THEOREMS

SECTIONS = ("claim", "experiment", "paper", "page", "practical")
#: Names of pages, with the folders of their figures.
PAGES = {"experiments": "papers", "theory_experiments": "theory_experiments"}
STATISTICS = ("final", "best", "mean", "slope", "rounds_to", "calls_to", "bytes_to")
SCALES = ("linear", "log")
GROWS = {"rising": False, "falling": True}
#: Whether the value has to change at least as fast as the formula, or as fast.
LAWS = ("at least", "equal")
#: Keys that set what a claim compares its methods with: one of these, or only a trend.
AGAINST = ("than", "than_level", "than_bound", "worse_than_level")


@dataclass(frozen=True)
class Claim:
    """A claim of a paper as a comparison.

    Attributes:
        says: the claim as a sentence.
        paper, place: the source, a key of references.bib, and the section, figure or theorem.
        job: name of the job file without ``.toml``.
        where: selects runs of the job by the values of dotted settings.
        metric, statistic, target: the compared value: the final or best value of the metric, its mean over
            the evaluations, the slope of its log10 per round, or the rounds (oracle calls, bytes) to reach
            ``target``.
            If a method has several settings in a task, the one with the least cost or the best metric counts.
        scale: "log" compares log10 of the value, so that differences are ratios.
        better: methods that are claimed to be ahead, ``NAME``, or ``NAME,KEY=VALUE`` with certain settings.
        than: methods that each of ``better`` is compared with; alternatively a level (``than_level``) or the
            bound of the theorem in the job (``than_bound``).
        methods, worse_than_level: the claim is that each of ``methods`` is worse than this level.
        trend: ``along`` is a setting, ``grows`` is "rising" or "falling": the lead over the other methods
            (without ``than``, the value itself) improves as the setting rises or falls. With ``formula``
            and ``law`` instead of ``grows``, the exponent of the value (with ``than``, of the lead) in the
            setting is compared with that of the formula in the same runs: the value improves "at least" as
            fast, or its exponent is "equal". :mod:`claims.formulas` evaluates formulas.
        margin: least lead that counts, in log10 units or those of the metric; for a trend, the least change
            between successive values of the setting, or the tolerance of the exponent.
        tie: differences up to this are a tie; default: the margin, 0 for a trend.
        all: whether all of ``better`` must be ahead; otherwise one suffices.
        note: limitations of the comparison.
        was, because: an earlier verdict of the claim, and why it has changed.
        still_open: why no run here decides the claim.
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
    tie: float | None = None
    all: bool = True
    note: str = ""
    was: str = ""
    because: str = ""
    still_open: str = ""

    @property
    def subjects(self) -> Sequence[str]:
        """The methods that the claim makes a statement about."""
        return self.better or self.methods

    @property
    def law(self) -> str:
        """The law of a trend with a formula, or ""."""
        return (self.trend or {}).get("law", "")

    @property
    def equal_within(self) -> float:
        """Largest difference of a tie; 0 if there are no ties."""
        margin = 0.0 if self.trend else self.margin
        return margin if self.tie is None else self.tie

    @property
    def level(self) -> float | None:
        """The level that the methods are compared with, if the claim has one."""
        return self.than_level if self.worse_than_level is None else self.worse_than_level


@dataclass(frozen=True)
class Experiment:
    """An experiment and its figure.

    Attributes:
        source: the paper, a key of references.bib.
        title: the heading.
        metric: metric of the figure, which also selects the best setting of a grid.
        also: further metrics of the figure.
        panels: settings whose combinations of values are separate tasks; ``a|b`` if methods name a setting
            differently. Default: all settings that vary, except those of the methods.
        searches: number of searches, 1 or 2. The second search has other seeds, and shows by how much the
            differences between methods depend on the search.
        second_fresh: number of seeds of the runs after the second search, which can be smaller, since they
            only contradict or confirm; default: ``fresh`` of the job.
        drawn: selects the tasks of the figure by the values of dotted settings; all tasks if none matches.
        note: remarks.
    """

    name: str
    source: str
    title: str
    metric: str
    also: Sequence[str] = ()
    panels: Sequence[str] = ()
    searches: int = 1
    second_fresh: int = 0
    drawn: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Paper:
    """The entry of a paper.

    Attributes:
        title: the heading.
        page: name of its page without ``.md``; default: the key.
    """

    title: str
    page: str = ""


@dataclass(frozen=True)
class Book:
    """The contents of a file of claims.

    Attributes:
        folder: folder of the file and its job files.
        papers: headings by key of references.bib.
        page: name of the page and of its template; a key of :data:`PAGES`.
        pages: names of the papers' pages by key of references.bib.
        practical: margins of the wider question, whether methods are practically equal, by metric; ``ratio``
            is a factor, for values on a logarithmic scale.
    """

    folder: Path
    claims: Sequence[Claim]
    experiments: Mapping[str, Experiment]
    papers: Mapping[str, str]
    page: str = "experiments"
    pages: Mapping[str, str] = field(default_factory=dict)
    practical: Mapping[str, float] = field(default_factory=dict)

    def practical_margin(self, claim: Claim) -> float:
        """Return the margin of the wider question for a claim; 0 if it adds nothing or has no such margin."""
        if claim.law or claim.than_bound is not None or claim.statistic == "slope":
            return 0.0
        log = claim.scale == "log"
        found = math.log10(self.practical.get("ratio", 1)) if log else self.practical.get(claim.metric, 0.0)
        return found if found > min(claim.margin, claim.equal_within) else 0.0

    def job(self, name: str) -> Path:
        """Return the small job file of an experiment."""
        return self.folder / f"{name}.toml"

    def stated(self, name: str) -> Path:
        """Return its job file with the settings stated in the paper, which may not exist."""
        return self.folder / "stated" / f"{name}.toml"

    def full(self, name: str) -> Path:
        """Return its job file in the paper's size."""
        return self.folder / "full" / f"{name}.toml"

    def stored(self, job: Path, second: bool) -> Path:
        """Return the file with the stored results of a job file, or of its second search."""
        suffix = ".second.jsonl.xz" if second else ".jsonl.xz"
        return self.folder / "results" / job.relative_to(self.folder).with_suffix(suffix)


def read(path: str | Path) -> Book:
    """Read a file of claims.

    A job with claims but without ``[experiment]`` is shown with the metric of its first claim.

    Raises:
        ConfigError: the file cannot be read, or an entry is invalid.
    """
    table = read_table(path, "file of claims")
    for key in table:
        if key not in SECTIONS:
            raise ConfigError(f"{path}: unknown {key!r}: {suggest(key, SECTIONS)}")
    folder = Path(path).resolve().parent
    claims = [_claim(one, number, folder) for number, one in enumerate(table.get("claim", []), 1)]
    names = [one.name for one in claims]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two claims are called {twice!r}: expected different names")
    experiments = {name: _experiment(name, one, folder) for name, one in table.get("experiment", {}).items()}
    for one in claims:
        default = {"source": one.paper, "metric": one.metric}
        experiments.setdefault(one.job, _experiment(one.job, default, folder))
    papers = {key: _paper(key, one) for key, one in table.get("paper", {}).items()}
    page = table.get("page", "experiments")
    if page not in PAGES:
        raise ConfigError(f"{path}: no page {page!r}: {suggest(page, PAGES)}")
    pages = {key: one.page or key for key, one in papers.items()}
    titles = {key: one.title for key, one in papers.items()}
    return Book(folder, claims, experiments, titles, page, pages, table.get("practical", {}))


def _paper(key: str, table: dict) -> Paper:
    what = f"[paper.{key}]"
    _expect_reference(key, what)
    return _from_table(Paper, table, what)


def _claim(table: dict, number: int, folder: Path) -> Claim:
    what = f"claim {table.get('name', number)!r}"
    claim = _from_table(Claim, table, what)
    _expect_reference(claim.paper, what)
    _expect_job(claim.job, folder, what)
    for key, options in (("statistic", STATISTICS), ("scale", SCALES)):
        if getattr(claim, key) not in options:
            raise ConfigError(
                f"{what}: no {key} {getattr(claim, key)!r}: {suggest(getattr(claim, key), options)}"
            )
    if claim.statistic.endswith("_to") != (claim.target is not None):
        raise ConfigError(f"{what}: expected a target only for the statistics rounds_to, calls_to, bytes_to")
    if claim.statistic == "slope" and claim.scale == "log":
        raise ConfigError(f'{what}: expected scale = "linear", since a slope is that of the logarithm')
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
    if trend is not None and not _is_trend(trend):
        raise ConfigError(
            f'{what}: expected trend = {{ along = "problem.lam", grows = "falling" }} or "rising", or '
            'trend = { along = "rounds", formula = "rounds ** -0.5", law = "at least" } or "equal"'
        )
    if claim.law and (claim.scale != "log" or not claim.margin):
        raise ConfigError(f'{what}: expected scale = "log" and a margin > 0, the tolerance of the exponent')
    if claim.tie is not None and (claim.tie <= 0 or claim.law):
        raise ConfigError(f"{what}: expected tie > 0 and no law, got tie = {claim.tie}")
    if trend is not None and (claim.level is not None or claim.than_bound):
        raise ConfigError(f"{what}: a trend allows no level or bound: remove one of them")


def _is_trend(trend: Mapping[str, str]) -> bool:
    if "formula" in trend:
        return set(trend) == {"along", "formula", "law"} and trend["law"] in LAWS
    return set(trend) == {"along", "grows"} and trend["grows"] in GROWS


def _experiment(name: str, table: dict, folder: Path) -> Experiment:
    what = f"[experiment.{name}]"
    _expect_job(name, folder, what)
    one = _from_table(Experiment, {"name": name, "title": title(folder / f"{name}.toml")} | table, what)
    _expect_reference(one.source, what)
    if one.searches not in (1, 2):
        raise ConfigError(f"{what}: expected searches = 1 or 2, got {one.searches}")
    return one


def title(path: Path) -> str:
    """Return the first line of a job file, a comment."""
    with path.open(encoding="utf-8") as file:
        return file.readline().removeprefix("#").strip().rstrip(".")


def _from_table(kind, table: dict, what: str):
    """Create a Claim, an Experiment or a Paper from a table.

    Raises:
        ConfigError: this is no table, a key is unknown or missing, or a value has the wrong type.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{what}: expected a table, got {json.dumps(table, default=str)}")
    fields = {one.name: one for one in dataclasses.fields(kind)}
    for key in table:
        if key not in fields:
            raise ConfigError(f"{what}: unknown {key!r}: {suggest(key, fields)}")
    for key, one in fields.items():
        needed = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if needed and key not in table:
            raise ConfigError(f"{what}: expected {key!r}, which is missing")
        if key in table and not _has_type(table[key], str(one.type)):
            raise ConfigError(
                f"{what}: expected {key} = {one.type}, got {json.dumps(table[key], default=str)}"
            )
    return kind(**table)


def _has_type(value, kind: str) -> bool:
    """Return whether a value of TOML has the type of an annotation."""
    if kind.startswith("Sequence"):
        return isinstance(value, list) and value != [] and all(isinstance(one, str) for one in value)
    if kind.startswith("Mapping"):
        return isinstance(value, dict)
    if kind.startswith("float"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if kind == "bool" else str)


def _expect_reference(key: str, what: str) -> None:
    text = Path(mpifed.__file__).with_name("references.bib").read_text()
    known = [line.partition("{")[2].rstrip(",") for line in text.splitlines() if line.startswith("@")]
    if key not in known:
        raise ConfigError(f"{what}: no key {key!r} in references.bib: {suggest(key, known)}")


def _expect_job(name: str, folder: Path, what: str) -> None:
    if not (folder / f"{name}.toml").is_file():
        jobs = [path.stem for path in folder.glob("*.toml") if not path.stem.startswith("claims")]
        raise ConfigError(f"{what}: no job file {name}.toml in {folder}: {suggest(name, jobs)}")
