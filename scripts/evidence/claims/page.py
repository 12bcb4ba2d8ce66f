"""The pages of experiments, generated from the claims and the existing runs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from scipy import stats

from claims import stored
from claims.entries import PAGES, Book, Claim, Experiment
from claims.figures import draw, draw_trends
from claims.interval import LEVEL
from claims.panels import SECOND, Panel, read_panel, task_title
from claims.verdicts import (
    HOLDS,
    NOT_RUN,
    OPEN,
    TOO_SMALL,
    Judgement,
    Pair,
    Verdict,
    in_practice,
    is_improving,
    judge,
    judge_by_worst,
    verdict,
    with_second_search,
)
from mpifed.base.errors import ConfigError
from mpifed.report.comparison import Rule, Setting

STATISTICS = {
    "final": "final {metric}",
    "best": "best {metric}",
    "mean": "mean {metric} over the evaluations",
    "slope": "slope of log10 {metric} per round",
    "rounds_to": "rounds to {metric} {target:g}",
    "calls_to": "oracle calls to {metric} {target:g}",
    "bytes_to": "bytes to {metric} {target:g}",
}
#: Elapsed time of a repetition, with imports, set-up, evaluations and files, divided by the time of its
#: rounds. Measured for composite_game, whose runs are short; closer to 1 for longer runs.
REPETITION = 1.6


@dataclass(frozen=True)
class Judged:
    """A claim with its judgement in each panel, by the panel's name, the judgement after both searches, the
    verdict, and the answer to the wider question, if it is asked."""

    claim: Claim
    judgements: dict[str, Judgement]
    tuned: Judgement
    verdict: Verdict
    practical: Verdict | None = None

    @property
    def is_open(self) -> bool:
        """Whether neither the claim nor the wider question is decided."""
        return self.verdict.word == TOO_SMALL and (self.practical is None or self.practical.word == OPEN)

    @property
    def rows(self) -> list[tuple[str, Pair, str]]:
        """For each panel, task and method, the pair that contradicts the claim most, and the outcome of all
        pairs as text."""
        rows = []
        for name, judgement in self.judgements.items():
            groups: dict[tuple, list[Pair]] = {}
            for pair in judgement.pairs:
                groups.setdefault((pair.task, pair.subject), []).append(pair)
            rows += [(name, judge_by_worst(own).deciding, outcome(own)) for own in groups.values()]
        return rows

    def search_noise(self, pair: Pair) -> str:
        """Return the distance between the mean differences of a pair after the two searches, or ""."""
        found = [
            one.mean
            for name, judgement in self.judgements.items()
            if name in ("tuned", SECOND)
            for one in judgement.pairs
            if one.key == pair.key
        ]
        return difference(abs(found[0] - found[1]), self.claim) if len(found) == 2 else ""

    @property
    def measure(self) -> str:
        """Description of the compared value."""
        claim = self.claim
        words = [STATISTICS[claim.statistic].format(metric=claim.metric, target=claim.target)]
        if claim.law:
            law = "equal to" if claim.law == "equal" else "at least"
            words += [f"exponent in {claim.trend['along']}, {law} that of {claim.trend['formula']}"]
            return ", ".join([*words, f"tolerance {claim.margin:g}"])
        words += [f"between successive {claim.trend['along']}"] if claim.trend else []
        words += ["ratio"] if claim.scale == "log" else []
        words += [f"margin {difference(claim.margin, claim)}"] if claim.margin else []
        words += [f"tie within {difference(claim.tie, claim)}"] if claim.tie else []
        return ", ".join(words)


@dataclass(frozen=True)
class Section:
    """An experiment with its claims and panels.

    Attributes:
        read: the panels that claims are judged by, also those without runs.
        full: the stored results in the paper's size, which have no verdict.
    """

    book: Book
    experiment: Experiment
    read: Sequence[Panel]
    full: Panel | None = None

    @property
    def page(self) -> str:
        """Name of the page of the experiment's paper."""
        return self.book.pages.get(self.experiment.source, self.experiment.source)

    @property
    def panels(self) -> list[Panel]:
        """The panels with runs."""
        return [one for one in self.read if one.settings]

    @cached_property
    def claims(self) -> list[Judged]:
        """The claims of the experiment, judged."""
        return [self._judged(one) for one in self.book.claims if one.job == self.experiment.name]

    def _judged(self, claim: Claim) -> Judged:
        judgements = {panel.name: judge(claim, panel) for panel in self.read}
        tuned, *stated = (one for name, one in judgements.items() if name != SECOND)
        if SECOND in judgements:
            tuned = with_second_search(tuned, judgements[SECOND], claim)
        found = verdict(tuned, *stated)
        if found.word != NOT_RUN and self.book.page == "experiments" and is_improving(claim, self.read[0]):
            found = replace(found, detail="; ".join(filter(None, [found.detail, "the curves are not flat"])))
        margin = self.book.practical_margin(claim)
        if not margin or found.word == NOT_RUN:
            return Judged(claim, judgements, tuned, found)
        second = next((one for one in self.read if one.name == SECOND), None)
        return Judged(claim, judgements, tuned, found, in_practice(claim, margin, self.read[0], second))

    @property
    def runs(self) -> int:
        """Number of finished runs."""
        return sum(len(one.runs) for panel in self.panels for one in panel.settings)

    @property
    def seconds(self) -> float:
        """Total wall time of the rounds of all runs and searches."""
        return sum(panel.seconds + panel.search.seconds for panel in self.panels)

    @property
    def minutes(self) -> str:
        """Minutes of one core that a repetition of all searches and runs takes; "" if runs are missing."""
        if any(one.missing or not one.settings for one in self.read):
            return ""
        return f"{max(1, self.seconds * REPETITION / 60):.0f}"

    @property
    def methods(self) -> list[str]:
        """The methods with runs."""
        return list(dict.fromkeys(one.name for panel in self.panels for one in panel.settings))

    def rows(self, panel: Panel) -> list[list[str]]:
        """Return one row per task: its name, then the best settings and the metric of each method."""
        metric = self.experiment.metric
        return [
            [task_title(task, panel.keys)]
            + [
                next((_settled(one, metric) for one in chosen if one.name == name), "")
                for name in self.methods
            ]
            for task, chosen in panel.best(metric).items()
        ]

    def full_rows(self) -> list[list[str]]:
        """Return one row per task and method of the full size, with the settings and the metric of the full
        and of the small version."""
        metric = self.experiment.metric
        small = self.panels[0].best(metric) if self.panels else {}
        only = next(iter(small.values())) if len(small) == 1 else []
        rows = []
        for task, chosen in self.full.best(metric).items():
            others = {one.name: _settled(one, metric) for one in small.get(task, only)}
            title = task_title(task, self.full.keys)
            rows += [[title, one.name, _settled(one, metric), others.get(one.name, "")] for one in chosen]
        return rows

    def diverged(self, panel: Panel) -> str:
        """Return the numbers of diverged seeds of the best settings, with intervals of their probability."""
        found = []
        for task, chosen in panel.best(self.experiment.metric).items():
            for one in chosen:
                if lost := sum(run.diverged for run in one.runs):
                    ends = stats.binomtest(lost, len(one.runs)).proportion_ci(LEVEL)
                    place = f", {task_title(task, panel.keys)}" if panel.keys else ""
                    share = f"{ends.low:.0%} to {ends.high:.0%}"
                    found.append(f"{one.name}{place}: {lost} of {len(one.runs)} ({share})")
        return "; ".join(found)

    def seeds(self, panel: Panel) -> str:
        """Return the seeds of the panel's runs as text."""
        seeds = sorted({run.config["seed"] for one in panel.settings for run in one.runs})
        return ", ".join(map(str, seeds))


def sections(book: Book, read: Mapping[str, list[Panel]]) -> list[Section]:
    """Return the experiments with their existing runs; ``read`` are panels that have been read already."""
    return [
        Section(book, one, read.get(name) or panels_of(book, one), _full(book, one))
        for name, one in book.experiments.items()
    ]


def panels_of(book: Book, one: Experiment, changes: Sequence[str] = ()) -> list[Panel]:
    """Return the panels of an experiment, tuned and stated, as far as there are job files.

    Complete runs count before stored results. ``changes`` are settings of the runs, which stored results do
    not have.
    """
    found = []
    for job, second in jobs_of(book, one):
        panel = read_panel(job, one.panels, changes, second)
        if (panel.missing or not panel.settings) and not changes:
            panel = stored.read(book.stored(job, second), job, one.panels) or panel
        found.append(panel)
    return found


def store_full(book: Book, panel: Panel, name: str) -> None:
    """Write the results of an experiment in the paper's size.

    Raises:
        ConfigError: runs of the panel are missing.
    """
    if panel.missing:
        raise ConfigError(f"{name}: runs that have not finished in the paper's size: {panel.missing}")
    stored.write(panel, book.stored(panel.file, False), panel.file)


def _full(book: Book, one: Experiment) -> Panel | None:
    job = book.full(one.name)
    return stored.read(book.stored(job, False), job, one.panels)


def jobs_of(book: Book, one: Experiment) -> list[tuple[Path, bool]]:
    """Return the job file of each panel of an experiment, and whether its search is the second."""
    job, stated = book.job(one.name), book.stated(one.name)
    searches = [(job, False), (job, True)][: one.searches]
    return [*searches, (stated, False)] if stated.is_file() else searches


def store(book: Book, one: Experiment) -> list[Panel]:
    """Write the results of the complete panels of an experiment; return its panels."""
    panels = []
    for job, second in jobs_of(book, one):
        panel = read_panel(job, one.panels, (), second)
        if panel.settings and not panel.missing:
            stored.write(panel, book.stored(job, second), job)
        panels.append(panel)
    return panels


def write(book: Book, parts: Sequence[Section], source: str, out: Path) -> Path:
    """Write the book's pages, and the figures of its experiments to the folder in :data:`PAGES`.

    The page "experiments" is a folder with an index and a page per paper.

    Args:
        source: the file of claims as an argument of the command, with a space at the end; "" for the default.

    Returns:
        The book's page, or the index.
    """
    for part in parts:
        draw_figure(part, out / PAGES[book.page] / f"{part.experiment.name}.png")
    papers = {
        key: [part for part in parts if part.experiment.source == key]
        for key in dict.fromkeys([*book.papers, *(part.experiment.source for part in parts)])
    }
    papers = {key: own for key, own in papers.items() if own}
    content = {"book": book, "papers": papers, "parts": parts, "counts": counts(parts), "source": source}
    if book.page != "experiments":
        return _write_page(out / f"{book.page}.md", book.page, content)
    folder = out / book.page
    for key, own in papers.items():
        title = book.papers.get(key, key)
        _write_page(folder / f"{own[0].page}.md", "paper", content | {"title": title, "parts": own})
    more = {"repetition": REPETITION, "practical_counts": counts(parts, wider=True)}
    return _write_page(folder / "index.md", book.page, content | more)


def draw_figure(part: Section, path: Path) -> None:
    """Draw the figure of an experiment: the metric against the rounds, or, if claims are about a trend, the
    claimed value against the setting."""
    trends = [one.claim for one in part.claims if one.claim.law and one.rows]
    if trends:
        draw_trends(trends, part.panels[0], path)
    elif part.panels:
        draw(part.experiment, [one for one in part.panels if one.name != SECOND], path)


def _write_page(path: Path, template: str, content: Mapping[str, object]) -> Path:
    """Fill the template ``TEMPLATE.md.jinja`` and write the page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "difference": interval_text,
        "sides": sides,
        "p": p_value,
        "time": duration,
        "cell": cell,
        "slow": on_slow_side,
        "verdict": verdict_text,
        "slug": slug,
        "table": claims_table,
    }
    text = environment.get_template(f"{template}.md.jinja").render(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(re.sub(r"\n{3,}", "\n\n", text))
    return path


#: Columns of the tables of claims after the claim itself: the text of a claim of an experiment by heading.
COLUMNS: Mapping[str, Callable[[Section, Judged], str]] = {
    "verdict": lambda part, one: verdict_text(one.verdict) + on_slow_side(one.verdict.pair, one.claim),
    "in practice": lambda part, one: verdict_text(one.practical) if one.practical else "",
    "difference [interval]": lambda part, one: (
        interval_text(one.verdict.pair, one.claim) if one.verdict.pair else ""
    ),
    "seeds": lambda part, one: str(one.verdict.pair.seeds) if one.verdict.pair else "",
    "minutes to repeat": lambda part, one: part.minutes,
}


def claims_table(parts: Sequence[Section], in_index: bool = False) -> str:
    """Return the table of the claims of experiments, with links to their sections on the paper's page.

    Args:
        in_index: whether the table is on another page than the sections.
    """
    lines = [["claim", *COLUMNS], ["---"] * (1 + len(COLUMNS))]
    for part in parts:
        target = f"{part.page}.md" * in_index + f"#{slug(part.experiment.title)}"
        for one in part.claims:
            texts = [f"[{one.claim.says}]({target})", *(text(part, one) for text in COLUMNS.values())]
            lines.append([cell(text) for text in texts])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _settled(setting: Setting, metric: str) -> str:
    """Return a method's numerical settings and its final metric, or its first metric if it lacks this one."""
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
    """Format a difference; a difference of logarithms as a ratio."""
    if claim.scale == "linear" or claim.law:
        return f"{value:.3g}"
    return f"× {10**value:.3g}" if abs(value) < 99 else f"× 1e{value:.0f}"


def interval_text(pair: Pair, claim: Claim) -> str:
    """Format the difference of a pair with its interval."""
    mean, low, high = (difference(one, claim) for one in (pair.mean, pair.low, pair.high))
    if not pair.seeds:
        return ""
    if math.isnan(pair.low):
        return f"{mean} (one seed)"
    return f"{mean} [{low.removeprefix('× ')}, {high.removeprefix('× ')}]"


def sides(pair: Pair, claim: Claim) -> str:
    """Format the values of both sides of a pair."""
    first, last = f"{pair.ours:.3g}", f"{pair.theirs:.3g}"
    ours_lost, theirs_lost, seeds = pair.lost
    lost = f"diverged: {pair.subject} {ours_lost}, {pair.rival} {theirs_lost} of {seeds} seeds"
    if not pair.seeds:
        return lost
    if not claim.trend:
        return f"{pair.subject} {first}, {pair.rival} {last}" + (ours_lost + theirs_lost > 0) * f"; {lost}"
    names = f"{pair.subject} over {pair.rival}" if pair.rival else pair.subject
    return f"{names}: exponent {first}, formula {last}" if claim.law else f"{names}: {first} to {last}"


def outcome(pairs: Sequence[Pair]) -> str:
    """Return the state of a method's pairs, with the names of the rivals if the states differ."""
    found: dict[str, list[str]] = {}
    for one in pairs:
        found.setdefault(one.state, []).append(one.rival)
    if len(found) == 1:
        return next(iter(found)) + (" against all" if len(pairs) > 1 else "")
    return "; ".join(f"{state}: {', '.join(rivals)}" for state, rivals in found.items())


def on_slow_side(pair: Pair | None, claim: Claim) -> str:
    """Return a mark for a pair that holds although its whole interval is slower than the formula; else ""."""
    slow = pair and claim.law == "at least" and pair.state == HOLDS and pair.high < 0
    return " (within the tolerance, on the slow side)" if slow else ""


def verdict_text(found: Verdict) -> str:
    """Format a verdict with its detail."""
    return f"**{found.word}**" + (f" ({found.detail})" if found.detail else "")


def p_value(p: float) -> str:
    """Format an adjusted p-value; "" for NaN."""
    return "" if math.isnan(p) else f"{p:.2g}" if p >= 1e-3 else "< 0.001"


def duration(seconds: float) -> str:
    """Format seconds as seconds, minutes or hours."""
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def cell(text: str) -> str:
    """Escape text for a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-")


def counts(parts: Sequence[Section], wider: bool = False) -> str:
    """Return the number of claims by verdict, or by the answer to the ``wider`` question, as text."""
    verdicts = [one.practical if wider else one.verdict for part in parts for one in part.claims]
    words = Counter(one.word for one in verdicts if one)
    return ", ".join(f"{number} {word}" for word, number in words.most_common())


def summary(parts: Sequence[Section], names: Container[str] | None = None) -> list[str]:
    """Return one line with the verdict per claim, or per claim with a name or an experiment in ``names``."""
    return [
        f"{one.verdict.word:28} {one.claim.name}"
        + (f" ({one.verdict.detail})" if one.verdict.detail else "")
        + (f"; in practice: {one.practical.word}" if one.practical else "")
        for part in parts
        for one in part.claims
        if names is None or one.claim.name in names or part.experiment.name in names
    ]
