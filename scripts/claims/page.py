"""docs/experiments.md, from the claims and the runs there are."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from claims.entries import Book, Claim, Experiment
from claims.figures import draw
from claims.panels import Panel, read_panel, task_title
from claims.verdicts import Judgement, Pair, Verdict, all_of, judge, verdict
from mpifed.report.comparison import Rule, Setting

TEMPLATE = Path(__file__).with_name("experiments.md.jinja")
STATISTICS = {
    "final": "last {metric}",
    "best": "best {metric}",
    "mean": "mean {metric} over the evaluations",
    "slope": "slope of log10 {metric} a round",
    "rounds_to": "rounds to {metric} {target:g}",
    "calls_to": "oracle calls to {metric} {target:g}",
    "bytes_to": "bytes to {metric} {target:g}",
}


@dataclass(frozen=True)
class Judged:
    """A claim with what each panel says of it, by the panel's name, and the verdict."""

    claim: Claim
    judgements: dict[str, Judgement]
    verdict: Verdict

    @property
    def rows(self) -> list[tuple[str, Pair, str]]:
        """Of each panel, task and method the pair that is the farthest from the claim, and in words which
        rivals it holds against."""
        rows = []
        for name, judgement in self.judgements.items():
            groups: dict[tuple, list[Pair]] = {}
            for pair in judgement.pairs:
                groups.setdefault((pair.task, pair.subject), []).append(pair)
            rows += [(name, all_of(own).deciding, outcome(own)) for own in groups.values()]
        return rows

    @property
    def measure(self) -> str:
        """What was compared, in words."""
        claim = self.claim
        words = [STATISTICS[claim.statistic].format(metric=claim.metric, target=claim.target)]
        words += [f"from one {claim.trend['along']} to the next"] if claim.trend else []
        words += ["as ratios"] if claim.scale == "log" else []
        return ", ".join([*words, f"margin {difference(claim.margin, claim)}"] if claim.margin else words)


@dataclass(frozen=True)
class Section:
    """An experiment with its claims and panels."""

    book: Book
    experiment: Experiment
    read: Sequence[Panel]

    @property
    def panels(self) -> list[Panel]:
        """Those that have runs."""
        return [one for one in self.read if one.settings]

    @cached_property
    def claims(self) -> list[Judged]:
        """The claims of the experiment, judged."""
        return [self._judged(one) for one in self.book.claims if one.job == self.experiment.name]

    def _judged(self, claim: Claim) -> Judged:
        judgements = {panel.name: judge(claim, panel) for panel in self.read}
        return Judged(claim, judgements, verdict(*judgements.values()))

    @property
    def methods(self) -> list[str]:
        """The methods that ran."""
        return list(dict.fromkeys(one.name for panel in self.panels for one in panel.settings))

    def rows(self, panel: Panel) -> list[list[str]]:
        """Of each task its name, and by method the settings that were best and what they come to."""
        metric = self.experiment.metric
        return [
            [task_title(task, panel.keys)]
            + [
                next((_settled(one, metric) for one in chosen if one.name == name), "")
                for name in self.methods
            ]
            for task, chosen in panel.best(metric).items()
        ]

    def seeds(self, panel: Panel) -> str:
        """The seeds of the panel's runs."""
        seeds = sorted({run.config["seed"] for one in panel.settings for run in one.runs})
        return ", ".join(map(str, seeds))


def sections(book: Book) -> list[Section]:
    """The experiments with the runs that there are."""
    return [Section(book, one, panels_of(book, one)) for one in book.experiments.values()]


def panels_of(book: Book, one: Experiment, changes: Sequence[str] = ()) -> list[Panel]:
    """The panels of an experiment that have job files: tuned, and stated."""
    files = (book.job(one.name), book.stated(one.name))
    return [read_panel(file, one.panels, changes) for file in files if file.is_file()]


def write(book: Book, parts: Sequence[Section], source: str, out: Path) -> Path:
    """The page ``experiments.md`` and its pictures ``papers/NAME.png`` in a folder.

    Args:
        source: the file of claims as a command names it.
    """
    for part in parts:
        if part.panels:
            draw(part.experiment, part.panels, out / "papers" / f"{part.experiment.name}.png")
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {
        "difference": interval_text,
        "sides": sides,
        "time": duration,
        "cell": cell,
        "slug": slug,
    }
    papers = {
        key: [part for part in parts if part.experiment.source == key]
        for key in dict.fromkeys([*book.papers, *(part.experiment.source for part in parts)])
    }
    text = environment.from_string(TEMPLATE.read_text()).render(
        book=book, papers={key: own for key, own in papers.items() if own}, source=source
    )
    out.mkdir(parents=True, exist_ok=True)
    path = out / "experiments.md"
    path.write_text(re.sub(r"\n{3,}", "\n\n", text))
    return path


def _settled(setting: Setting, metric: str) -> str:
    """The numbers that a method ran with, and its metric at the end; its first where it has not this one."""
    numbers = [
        f"{key.rpartition('.')[2]} {value:.2g}"
        for key, value in setting.settings.items()
        if key.startswith("algorithm.") and isinstance(value, float)
    ]
    own = Rule(metric).metric_of(setting)
    spread = setting.spread(lambda run: Rule().value(run, own))
    text = f"**{spread.describe('{:.3g}')}**" if spread.finite else spread.describe("**{:.3g}**")
    return f"{', '.join(numbers)}: {'' if own == metric else f'{own} '}{text}"


def difference(value: float, claim: Claim) -> str:
    """A difference in the claim's scale: of logarithms, the ratio."""
    if claim.scale == "linear":
        return f"{value:.3g}"
    return f"× {10**value:.3g}" if abs(value) < 99 else f"× 1e{value:.0f}"


def interval_text(pair: Pair, claim: Claim) -> str:
    """A pair's difference with its interval."""
    mean, low, high = (difference(one, claim) for one in (pair.mean, pair.low, pair.high))
    if math.isnan(pair.low):
        return f"{mean} (one seed)"
    return f"{mean} [{low.removeprefix('× ')}, {high.removeprefix('× ')}]"


def sides(pair: Pair, claim: Claim) -> str:
    """What the two sides of a pair come to."""
    first, last = f"{pair.ours:.3g}", f"{pair.theirs:.3g}"
    if claim.trend:
        rival = f" over {pair.rival}" if pair.rival else ""
        return f"{pair.subject}{rival}: {first} to {last}"
    return f"{pair.subject} {first}, {pair.rival} {last}"


def outcome(pairs: Sequence[Pair]) -> str:
    """Whether a method's pairs hold, with their rivals where they do not agree."""
    found: dict[str, list[str]] = {}
    for one in pairs:
        found.setdefault(one.state, []).append(one.rival)
    if len(found) == 1:
        return next(iter(found)) + (" against all" if len(pairs) > 1 else "")
    return "; ".join(f"{state}: {', '.join(rivals)}" for state, rivals in found.items())


def duration(seconds: float) -> str:
    """Seconds in the unit that suits."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def cell(text: str) -> str:
    """A text in a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-")


def summary(parts: Sequence[Section]) -> list[str]:
    """A line for each claim and its verdict."""
    return [
        f"{one.verdict.word:28} {one.claim.name}" + (f" ({one.verdict.detail})" if one.verdict.detail else "")
        for part in parts
        for one in part.claims
    ]
