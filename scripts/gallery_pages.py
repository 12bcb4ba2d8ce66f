"""The pages of the gallery, as text."""

from __future__ import annotations

import json
import math
from pathlib import Path

from gallery_figure import heights
from gallery_standings import PAID, Entry, Lead, Standings
from mpifed.base.settings import flatten
from mpifed.problems import PROBLEMS
from mpifed.report.figures import Axis

MARK = "<!-- written by scripts/gallery.py -->"
#: The head of a page has a line of these for each cost, from which the index is made.
FIRST = "first by"
#: An interval of a factor that is wider than this by a factor says that some seeds diverge and others do not.
UNSURE = 1e6
#: Problems without a page.
ABSENT = {
    "TextAUC": "its texts do not come with the package",
    "FewShotMAML": "a pilot on digits learnt nothing in 24 rounds, at seconds a run",
}
INDEX = f"""{MARK}

# Gallery

Every problem of the package with every method that solves it, at its best. The search for a method's settings
(`mpifed tune`) takes the same number of oracle calls for each. Validation data choose where there are any,
and pages show seeds that have chosen nothing. Problems and searches are small, some minutes each on one core:
who is first here is first at this size. One command makes a page anew:

```
python scripts/gallery.py Saddle
```

A page names a level, what half of the methods come to with every seed. First is who pays least for it, mean
over the seeds; the page says by how much, with an interval.

"""
AFTER = """
How much is luck: with global steps of 1, as here, FSGDA, LocalSGDA and CDMANC are one method, searched three
times. What lies between their rows on a page is what the search leaves to chance. FLRA keeps an adversary at
each client, and so solves another problem than its rivals where clients differ.
"""


def page(found: Standings, job: Path) -> str:
    """The page of a problem."""
    name, metric = found.problem.__name__, found.metric
    level = f"{metric} {'≥' if found.maximised else '≤'} {found.level:g}"
    about = " ".join((found.problem.__doc__ or "").strip().split("\n\n")[0].split())
    source = getattr(found.problem, "source", "")
    parts = [
        "\n".join(["---", *(f"{FIRST} {axis.name}: {_first(found.lead(axis))}" for axis in PAID), "---"]),
        MARK,
        f"# {name}",
        f"{about}{f' ({source})' if source else ''}",
        _setting(found, job),
        f"![{metric} against rounds, oracle calls and bytes]({name}.png)",
        f"*{_bands(found)} Grey: the other methods. Dotted: the level, {level}. Methods come in the order of "
        "the table.*",
        "## Who wins",
        "\n".join(_sentences(found)),
        "## All methods",
        f"{metric}: at the end, mean and standard deviation. {_lost(found)}*behind*: interval of what the "
        f"method is behind the first, {'a factor' if found.ratios else 'a difference'}, seed by seed"
        f"{' (–: some seeds diverge)' if found.ratios else ''}. Then what it pays to come to {level} with "
        "every seed.",
        "\n".join(_table(found)),
    ]
    return "\n\n".join(parts) + "\n"


def _bands(found: Standings) -> str:
    """What the lines and bands of the picture are."""
    said = "Median of the seeds, bands from the 10 % to the 90 % quantile."
    if heights(found)[2] == "linear":
        said = "Mean of the seeds, bands of one standard deviation."
    more = " Of a method with seeds that diverge: median of the others, each seed thin, crosses where lost."
    return said + more * any(one.spread.finite is not None for one in found.entries)


def _lost(found: Standings) -> str:
    """What the table has of methods with seeds that diverge, where there are any."""
    if all(one.spread.finite is None for one in found.entries):
        return ""
    return (
        "A method with seeds that diverge comes behind all with fewer such seeds, and has the median of the "
        "others, the least and the largest. "
    )


def _setting(found: Standings, job: Path) -> str:
    """The task and the search."""
    table, tune = found.tuning.table, found.tuning.tune
    with job.open(encoding="utf-8") as file:
        title = file.readline().removeprefix("#").strip()
    own = {key: value for key, value in table["problem"].items() if key != "name"}
    rest = {key: value for key, value in table.items() if key not in ("run", "problem")}
    words = ", ".join(f"{key} = {json.dumps(value)}" for key, value in (flatten(own) | flatten(rest)).items())
    return (
        f"{title} `{words}`. The search for each method takes as many oracle calls as {tune.runs} whole runs "
        f"of the costliest; {tune.fresh or tune.seeds} other seeds are shown. All settings: "
        f"`jobs/gallery/{job.name}`."
    )


def _sentences(found: Standings) -> list[str]:
    """Who is first at the end and by each cost, and by how much."""
    lead = found.final_lead()
    first = lead.first.spread
    value = f"{found.metric} {_spread(lead.first) if first.finite else _number(first.mean)}"
    said = [f"- **At the end**: {lead.first.name}, {value}{_ahead(lead)}"]
    for axis in PAID:
        by_cost = found.lead(axis)
        if by_cost is None:
            said.append(f"- **By {axis.name}**: no method comes to the level with every seed.")
        else:
            size, unit = _unit(axis, found)
            words = axis.name if axis.name != "bytes" else unit
            cost = _number(_mean(by_cost.first, axis) / (size if axis.name == "bytes" else 1))
            said.append(f"- **By {axis.name}**: {by_cost.first.name}, {cost} {words}{_ahead(by_cost)}")
    return said


def _ahead(lead: Lead) -> str:
    if lead.second is None:
        return "."
    lost = f", {lead.lost} of them with seeds that diverge" if lead.lost else ""
    behind = f"{lead.behind} of {lead.rivals} are behind by their whole interval{lost}."
    if math.isnan(lead.low):
        return f". The next, {lead.second.name}: {_spread(lead.second)}. {behind}"
    gap = f"{'a factor of ' if lead.ratio else ''}{_number(lead.ahead)}"
    doubt = "" if lead.low > (1 if lead.ratio else 0) else ", not told apart"
    return f". The next, {lead.second.name}, is {gap} behind ({_ends(lead.low, lead.high)}{doubt}). {behind}"


def _table(found: Standings) -> list[str]:
    heads = [axis.scale(found.settings)[1] for axis in PAID]
    lines = [
        f"| | method | settings found | {found.metric} | behind | {' | '.join(heads)} |",
        "|---" * (5 + len(heads)) + "|",
    ]
    for place, one in enumerate(found.entries, 1):
        costs = [_number(_mean(one, axis) / _unit(axis, found)[0]) if one.paid else "–" for axis in PAID]
        cells = [str(place), one.name, one.tuned, _spread(one), _behind(one, found), *costs]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _spread(one: Entry) -> str:
    mean, deviation, finite = one.spread
    if finite:
        return finite.describe(_number)
    return _number(mean) if math.isnan(deviation) else f"{_number(mean)} ± {_number(deviation)}"


def _behind(one: Entry, found: Standings) -> str:
    low, high = found.behind(one)
    if found.ratios and high > UNSURE * low:
        return "–"
    return "" if one is found.entries[0] or math.isnan(low) else _ends(low, high)


def _ends(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"


def _mean(one: Entry, axis: Axis) -> float:
    """What the level costs the method."""
    paid = one.paid[axis.name].values()
    return math.fsum(paid) / len(paid)


def _unit(axis: Axis, found: Standings) -> tuple[float, str]:
    """The unit of an axis: its size and its name."""
    size = axis.scale(found.settings)[0]
    return size, dict(axis.units)[size]


def _number(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}" if abs(value) < 1000 or abs(value) >= 1e6 else f"{value:.0f}"


def _first(lead: Lead | None) -> str:
    return lead.first.name if lead else "none"


def index(pages: Path) -> str:
    """The first page, from the others that there are; it names the problems that have none."""
    heads = [f"{FIRST} {axis.name}" for axis in PAID]
    rows = [f"| problem | {' | '.join(heads)} | |", "|---" * (2 + len(heads)) + "|"]
    there = {path.stem: path for path in sorted(pages.glob("*.md")) if path.name != "index.md"}
    for name, path in there.items():
        lines = path.read_text(encoding="utf-8").splitlines()[1 : 1 + len(heads)]
        first = " | ".join(line.rpartition(": ")[2] for line in lines)
        rows.append(f"| [{name}]({name}.md) | {first} | [![{name}]({name}_small.png)]({name}.md) |")
    lacking = {name: ABSENT.get(name, "not run yet") for name in PROBLEMS if name not in there}
    absent = "; ".join(f"{name}, {reason}" for name, reason in lacking.items())
    return INDEX + "\n".join(rows) + "\n" + AFTER + f"\nNo page: {absent}.\n"
