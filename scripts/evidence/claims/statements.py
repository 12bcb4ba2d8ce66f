"""Statements of a page about results: each has a type, which the verdicts of its claims must allow.

:class:`Evidence` provides the functions of a template: :meth:`Evidence.say` begins a statement, the other
methods return the figures in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from claims.entries import Book, Claim
from claims.page import Judged, Section, panels_of, slug
from claims.panels import Panel, restricted
from claims.values import COSTS, mean_cost, scaled_mean, values_by_seed
from claims.verdicts import (
    AT_STATED,
    CONTESTED,
    FAILS,
    HOLDS,
    NOT_RUN,
    PARTLY_REPRODUCED,
    REFUTED,
    REPRODUCED,
    STATED,
    TOO_SMALL,
    UNDECIDED,
)
from mpifed.base.errors import ConfigError
from mpifed.base.settings import suggest
from mpifed.report.comparison import Setting

#: Names of methods in prose, where they differ from those of the classes.
NAMES = {
    "CDMAADA": "CDMA-ADA",
    "FESSGDA": "FESS-GDA",
    "FedMuonDA": "FedMuon-DA",
    "FedNSGDAM": "Fed-NSGDA-M",
    "FedNestComposition": "FedNest",
    "FedNormSGDA": "Fed-Norm-SGDA",
    "FedSGDAClip": "FedSGDA-Clip",
    "FedSGDAM": "FedSGDA-M",
    "LocalSCGDM": "Local-SCGDM",
    "LocalSGDA": "Local-SGDA",
    "MomentumLocalSGDA": "Momentum-Local-SGDA",
}


@dataclass(frozen=True)
class Kind:
    """A type of statement: its heading, the verdicts of a claim that allow it, and the states of pairs that
    allow it for a part of a claim."""

    heading: str
    words: Sequence[str]
    states: Sequence[str] = ()


KINDS = {
    "agrees": Kind("Agrees", [REPRODUCED], [HOLDS]),
    "partly": Kind("Agrees in part", [PARTLY_REPRODUCED]),
    "stated": Kind("Agrees at the stated settings only", [STATED]),
    "differs": Kind("Differs", [REFUTED], [FAILS]),
    "open": Kind("Open", [TOO_SMALL, NOT_RUN], [UNDECIDED, CONTESTED]),
}


@dataclass(frozen=True)
class Values:
    """The values of a setting over the seeds.

    Attributes:
        claim: the claim that compares them.
        setting: the setting.
        values: one per seed; NaN for a run that diverged or did not reach the target.
    """

    claim: Claim
    setting: Setting
    values: Sequence[float]

    @property
    def total(self) -> int:
        """Number of runs."""
        return len(self.values)

    @property
    def reached(self) -> int:
        """Number of runs with a value."""
        return len(self._finite)

    @property
    def missing(self) -> int:
        """Number of runs without a value."""
        return self.total - self.reached

    @property
    def diverged(self) -> int:
        """Number of runs with non-finite values."""
        return sum(run.diverged for run in self.setting.runs)

    @property
    def mean(self) -> float:
        """The mean of all runs, in the scale of the claim."""
        self._expect_no_more_missing_than(0)
        return self.mean_reached

    @property
    def mean_reached(self) -> float:
        """The mean of the runs with a value, in the scale of the claim."""
        self._expect_no_more_missing_than(self.total - 1)
        return scaled_mean(self._finite, self.claim)

    @property
    def largest(self) -> float:
        """The largest value of all runs."""
        self._expect_no_more_missing_than(0)
        return max(self.values)

    def of(self, key: str) -> Any:
        """Return the value of a dotted setting."""
        return self.setting.settings[key]

    @property
    def _finite(self) -> Sequence[float]:
        return [one for one in self.values if math.isfinite(one)]

    def _expect_no_more_missing_than(self, most: int) -> None:
        if self.missing > most:
            raise ConfigError(
                f"claim {self.claim.name!r}: {self.missing} of {self.total} runs of {self.setting.name} "
                "have no value"
            )


class Evidence:
    """The claims of several books, judged, and their panels.

    Args:
        books: the books; claims and experiments have different names.
        read: panels by experiment that have been read already.
    """

    def __init__(self, books: Sequence[Book], read: Mapping[str, Sequence[Panel]] = {}):
        self._books, self._read = books, read
        self._section = cache(self._new_section)
        self.errors: list[str] = []

    def functions(self) -> dict[str, Any]:
        """Return the functions of a template by name."""
        return {
            one.__name__: one
            for one in (self.say, self.link, self.rivals, self.values, self.means, self.factor, self.exponent)
        }

    def say(self, kind: str, *names: str, task: str = "", method: str = "", rival: str = "") -> str:
        """Return the heading of a statement with the verdicts of the claims that it rests on.

        A statement that its verdicts do not allow is added to ``errors``.

        Args:
            task, method, rival: restricts the statement to these pairs, whose states must allow it; the
                verdict of the whole claim is shown.
        """
        if kind not in KINDS:
            raise ConfigError(f"no type of statement {kind!r}: {suggest(kind, KINDS)}")
        selected = {"task": task, "subject": method, "rival": rival}
        part = {field: value for field, value in selected.items() if value}
        shown = []
        for name in names:
            judged = self._claim(name)
            if part:
                found = {one.state for one in judged.tuned.pairs if part.items() <= vars(one).items()}
            else:
                found = {judged.verdict.word}
            allowed = KINDS[kind].states if part else KINDS[kind].words
            if not found or found - {*allowed}:
                about, got = ", ".join([name, *part.values()]), ", ".join(sorted(found)) or "no pairs"
                self.errors.append(f"{about}: a statement {kind!r} needs {' or '.join(allowed)}, got {got}")
            shown.append(f"[{_brief(judged)}]({self.link(judged.claim.job)})")
        heading = KINDS[kind].heading + " in part" * bool(part)
        return f"*{heading}* ({', '.join(dict.fromkeys(shown))}):"

    def link(self, experiment: str) -> str:
        """Return the address of an experiment's section."""
        section = self._section(experiment)
        page = section.book.page
        page = f"{page}/{section.page}" if page == "experiments" else page
        return f"{page}.md#{slug(section.experiment.title)}"

    def rivals(self, name: str, state: str, *methods: str) -> list[str]:
        """Return the rivals for which all pairs with the methods have this state, in all tasks.

        Raises:
            ConfigError: there are none.
        """
        judged, states = self._claim(name), {}
        for one in judged.tuned.pairs:
            states.setdefault((one.subject, one.rival), set()).add(one.state)
        found = [
            rival
            for rival in judged.claim.than
            if all(states.get((method, rival)) == {state} for method in methods)
        ]
        if not found:
            raise ConfigError(f"claim {name!r}: no rival has the state {state!r} for {', '.join(methods)}")
        return found

    def values(
        self, name: str, method: str, where: Mapping[str, Any] = {}, panel: str = "", **changes: Any
    ) -> Values:
        """Return the values that a claim compares, of any method of its experiment.

        Args:
            where: settings that select the task.
            panel: name of the panel; default: the first.
            changes: fields of the claim, such as another target.
        """
        claim = replace(self._claim(name).claim, **changes)
        chosen = restricted(self._panel(claim.job, panel), {**claim.where, **where})
        tasks = chosen.tasks()
        if len(tasks) != 1:
            raise ConfigError(f"claim {name!r}: expected one task, got {[*tasks]}")
        (settings,) = tasks.values()
        cost = partial(mean_cost, claim=claim) if claim.statistic in COSTS else None
        setting = chosen.pick(settings, method, claim.metric, "final", cost)
        if setting is None:
            raise ConfigError(f"claim {name!r}: no runs of {method}")
        return Values(claim, setting, [*values_by_seed(setting, claim).values()])

    def means(self, name: str, methods: Sequence[str] = (), panel: str = "") -> list[float]:
        """Return the mean values of several methods; default: the claim's rivals."""
        return [self.values(name, one, panel=panel).mean for one in methods or self._claim(name).claim.than]

    def factor(self, name: str) -> float:
        """Return the smallest lead of a claim on a logarithmic scale, of all pairs after all searches."""
        claim, judgements = self._claim(name).claim, self._claim(name).judgements
        if claim.scale != "log":
            raise ConfigError(f'claim {name!r}: a factor needs scale = "log"')
        found = [judgement.pairs for panel, judgement in judgements.items() if panel != "stated"]
        return 10 ** min(one.mean for pairs in found for one in pairs)

    def exponent(self, name: str) -> float:
        """Return the measured exponent of a claim about the exponent of one method."""
        (pair,) = self._claim(name).tuned.pairs
        return pair.ours

    def _new_section(self, experiment: str) -> Section:
        for book in self._books:
            if experiment in book.experiments:
                one = book.experiments[experiment]
                return Section(book, one, self._read.get(experiment) or panels_of(book, one))
        raise ConfigError(f"no experiment {experiment!r}")

    def _claim(self, name: str) -> Judged:
        jobs = {claim.name: claim.job for book in self._books for claim in book.claims}
        if name not in jobs:
            raise ConfigError(f"no claim {name!r}: {suggest(name, jobs)}")
        return next(one for one in self._section(jobs[name]).claims if one.claim.name == name)

    def _panel(self, experiment: str, name: str) -> Panel:
        panels = {one.name: one for one in self._section(experiment).panels}
        if not panels or name and name not in panels:
            raise ConfigError(f"{experiment}: no results{f' of the panel {name!r}' * bool(name)}")
        return panels[name] if name else next(iter(panels.values()))


def _brief(judged: Judged) -> str:
    """Return the verdict without the names of pairs and numbers of seeds; if it is open, with the answer to
    the wider question."""
    words = [judged.verdict.word]
    words += [one for one in judged.verdict.detail.split("; ") if one in AT_STATED.values()]
    words += [judged.practical.word] if judged.practical and judged.verdict.word == TOO_SMALL else []
    return ", ".join(dict.fromkeys(words))


def listed(methods: Sequence[str]) -> str:
    """Return the names of methods as text."""
    *most, last = (NAMES.get(one, one) for one in methods)
    return f"{', '.join(most)} and {last}" if most else last


def rounded_down(value: float) -> str:
    """Format a value of at least 1, rounded down to two digits."""
    unit = 10 ** max(math.floor(math.log10(value)) - 1, 0)
    return f"{math.floor(value / unit) * unit:,}"
