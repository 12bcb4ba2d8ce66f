"""The pages of the gallery, as text."""

from __future__ import annotations

import math
from pathlib import Path

from gallery_standings import PAID, Entry, Lead, Standings

from mpifed.core.settings import flatten
from mpifed.report.figures import Axis

MARK = "<!-- written by scripts/gallery.py -->"
#: The beginning of a page, for the index: who is first by each cost.
FIRST = "first by"
INDEX = f"""{MARK}

# Gallery

Every problem of the package with every method that solves it, at its best: the same number of oracle calls goes
into the search for each method's settings (`mpifed tune`), validation data choose where there are any, and the
pictures show seeds that have chosen nothing. Problems are small, so that all of it is done on two cores in an
hour: who is first here is first *at this size*. One command makes a page anew:

```
python scripts/gallery.py Saddle
```

A level is what half of the methods end at or better. First is who pays least for it, mean over the seeds; how far
the next is behind, with an interval over the seeds, stands on the page.

"""
AFTER = """
How much is luck: with global steps of 1, as here, FSGDA, LocalSGDA and CDMANC are the same method, searched three
times. What lies between their rows on a page is what the search leaves to chance. FLRA keeps an adversary of its
own at each client, and so solves another problem than its rivals unless the clients are alike.

"""


def page(found: Standings, job: Path) -> str:
    """The page of a problem."""
    name = found.problem.__name__
    first = [f"{FIRST} {axis.name}: {_first(found.lead(axis))}" for axis in PAID]
    about = " ".join((found.problem.__doc__ or "").strip().split("\n\n")[0].split())
    sign = "≥" if found.maximised else "≤"
    parts = [
        "\n".join(["---", *first, "---"]),
        MARK,
        f"# {name}",
        f"{about} ({found.problem.source})" if getattr(found.problem, "source", "") else about,
        f"*{_title(job)}* " + _setting(found, job),
        f"![{found.metric} against rounds, oracle calls and bytes]({name}.png)",
        f"*Mean of the seeds, bands of one standard deviation; grey: the other methods; dotted: the level "
        f"{found.metric} {sign} {found.level:g}. Methods are shown in the order of the table.*",
        "## Who wins",
        "\n".join(_sentences(found)),
        "## All methods",
        f"Final {found.metric}: mean and standard deviation; *behind*: the interval of what the method is behind "
        f"the first, {'as a factor' if found.ratios else 'as a difference'}, seed by seed; then what it pays to "
        f"come to {found.metric} {sign} {found.level:g} with every seed.",
        "\n".join(_table(found)),
    ]
    return "\n\n".join(parts) + "\n"


def _title(job: Path) -> str:
    with job.open(encoding="utf-8") as file:
        return file.readline().removeprefix("#").strip()


def _setting(found: Standings, job: Path) -> str:
    """The settings of the task, and of the search."""
    table = {key: value for key, value in found.tuning.table.items() if key not in ("run", "problem")}
    own = {key: value for key, value in found.tuning.table["problem"].items() if key != "name"}
    words = [
        f"{key} = {value}" for key, value in (flatten(own) | flatten(table)).items() if not key.endswith("seed")
    ]
    tune = found.tuning.tune
    return (
        f"`{', '.join(words)}`. The search for each method takes as many oracle calls as {tune.runs} whole runs "
        f"of the costliest; {tune.seeds} fresh seeds are shown. All of it: `jobs/gallery/{job.name}`."
    )


def _sentences(found: Standings) -> list[str]:
    """Who is first at the end and by each cost, and by how much."""
    lead = found.final_lead()
    said = [f"- **At the end**: {lead.first.name}, {found.metric} {_number(lead.first.spread.mean)}{_ahead(lead)}"]
    for axis in PAID:
        by_cost = found.lead(axis)
        if by_cost is None:
            said.append(f"- **By {axis.name}**: no method comes to the level with every seed.")
            continue
        cost = _cost(by_cost.first, axis, found)
        said.append(f"- **By {axis.name}**: {by_cost.first.name}, {cost}{_ahead(by_cost)}")
    return said


def _ahead(lead: Lead) -> str:
    if lead.second is None:
        return "."
    times = f"a factor of {_number(lead.ahead)}" if lead.ratio else _number(lead.ahead)
    ends = f"{_number(lead.low)} to {_number(lead.high)}"
    sure = lead.low > (1 if lead.ratio else 0)
    return (
        f"; the next, {lead.second.name}, is {times} behind (interval {ends}{'' if sure else ': not told apart'})."
        f" Surely behind: {lead.behind} of {lead.rivals}."
    )


def _table(found: Standings) -> list[str]:
    heads = [axis.scale(found.settings)[1] for axis in PAID]
    lines = [
        f"| | method | settings found | {found.metric} | behind | {' | '.join(heads)} |",
        f"|{'---|' * (5 + len(heads))}",
    ]
    for place, one in enumerate(found.entries, 1):
        costs = [_cost(one, axis, found, unit=False) for axis in PAID]
        lines.append(
            f"| {place} | {one.name} | {one.tuned} | {_spread(one)} | {_behind(one, found)} | {' | '.join(costs)} |"
        )
    return lines


def _spread(one: Entry) -> str:
    mean, deviation = one.spread
    if math.isnan(mean):
        return "not finite"
    return _number(mean) if math.isnan(deviation) else f"{_number(mean)} ± {_number(deviation)}"


def _behind(one: Entry, found: Standings) -> str:
    if one is found.entries[0]:
        return ""
    low, high = found.behind(one)
    return "" if math.isnan(low) else f"{_number(low)} to {_number(high)}"


def _cost(one: Entry, axis: Axis, found: Standings, unit: bool = True) -> str:
    """What the level costs, in the unit of the table."""
    if not one.paid:
        return "–"
    size, label = axis.scale(found.settings)
    paid = one.paid[axis.name].values()
    return _number(math.fsum(paid) / len(paid) / size) + (f" {label}" if unit else "")


def _number(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.2e}" if abs(value) >= 1e5 else f"{value:.0f}"


def _first(lead: Lead | None) -> str:
    return lead.first.name if lead else "none"


def index(pages: Path) -> str:
    """The first page, from the others that there are."""
    rows = [f"| problem | {' | '.join(f'{FIRST} {axis.name}' for axis in PAID)} | |", f"|{'---|' * (len(PAID) + 2)}"]
    for path in sorted(pages.glob("*.md")):
        if path.name == "index.md":
            continue
        lines = path.read_text(encoding="utf-8").splitlines()[1 : 1 + len(PAID)]
        first = [line.rpartition(": ")[2] for line in lines]
        small = f"[![{path.stem}]({path.stem}_small.png)]({path.name})"
        rows.append(f"| [{path.stem}]({path.name}) | {' | '.join(first)} | {small} |")
    return INDEX + "\n".join(rows) + "\n" + AFTER.rstrip("\n") + "\n"
