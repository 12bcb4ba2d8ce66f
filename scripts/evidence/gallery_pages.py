"""The pages of the gallery, as text."""

from __future__ import annotations

import json
import math
from pathlib import Path

from claims.entries import title
from gallery_figure import heights
from gallery_standings import PAID, Entry, Lead, Standings
from mpifed.base.settings import flatten
from mpifed.problems import PROBLEMS
from mpifed.report.figures import Axis

MARK = "<!-- written by scripts/evidence/gallery.py -->"
#: The front matter of a page has an entry "fewest COST" with the best method for each cost, which the index
#: reads.
FIRST = "fewest"
#: Intervals of a ratio whose ends differ by more than this factor are not shown.
WIDEST = 1e6
#: Problems without a page → the reason.
ABSENT = {
    "TextAUC": "its texts are not part of the package",
    "FewShotMAML": "in a pilot with digits, 24 rounds did not improve the accuracy",
}
#: Methods that are special cases of others → these methods.
SPECIAL_CASES = {"AFL": "FedNormSGDA", "FedGDAGT": "SAGDA", "KGTMinimax": "SAGDA", "STEM": "FGDA"}
#: Methods with compressed messages → the method without compression.
COMPRESSED = {"MASHA1": "ExtraSGD", "MASHA2": "ExtraSGD"}
#: Methods of minimisation that also solve minimax problems. They need not be on the pages of these.
OF_MINIMISATION = ("FedProx",)
#: Methods that need not be on a page.
OPTIONAL = {*SPECIAL_CASES, *COMPRESSED, *OF_MINIMISATION}
INDEX = f"""{MARK}

# Gallery

For every problem, the gallery compares all methods that can solve it, with tuned settings. `mpifed tune`
searches the settings of each method with the same budget of oracle calls, on validation data if the problem
has them. The pages show runs of the best settings with new seeds. The problems and searches are small (some
minutes each on one core), so the rankings are valid for this size only. The following command creates a page:

```
python scripts/evidence/gallery.py Saddle
```

On each page, the target is a level of the metric that at least half of the methods reach with every seed. The
table lists the methods that reach the target at the lowest mean cost over the seeds. The pages show by how
much they lead, with confidence intervals.

"""
AFTER = """
The search is random, too. With global step sizes of 1, as here, FSGDA, LocalSGDA and CDMANC are the same
method, tuned three times. The differences between their rows on a page show how much the results vary between
searches. FLRA uses one y per client. If the clients differ, it therefore solves a different problem than the
other methods.
"""


def page(found: Standings, job: Path) -> str:
    """Return the page of a problem."""
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
        f"*{_bands(found)} Grey: other methods. Dotted line: the target level, {level}. Methods are "
        "ordered as in the table.*",
        "## Best methods",
        "\n".join(_sentences(found)),
        "## All methods",
        f"*{metric}*: mean and standard deviation of the final value. {_diverged(found)}*behind*: 95 % "
        f"confidence interval of the {'ratio to' if found.ratios else 'difference from'} the best method, "
        f"paired by seed{' (–: the ends differ by a factor above 1e6)' if found.ratios else ''}. Last "
        f"columns: mean cost of a run to reach {level} (–: not reached by every seed).",
        "\n".join(_table(found)),
    ]
    return "\n\n".join(parts) + "\n"


def _bands(found: Standings) -> str:
    """Describe the lines and bands of the figure."""
    text = "Lines: median over the seeds; bands: 10 % to 90 % quantile."
    if heights(found)[2] == "linear":
        text = "Lines: mean over the seeds; bands: one standard deviation."
    more = (
        " If some seeds of a method diverge: median of the other seeds, thin lines for single seeds, crosses "
        "at the divergence."
    )
    return text + more * any(one.spread.finite is not None for one in found.entries)


def _diverged(found: Standings) -> str:
    """Describe the rows of methods with diverged seeds, if there are any."""
    if all(one.spread.finite is None for one in found.entries):
        return ""
    return (
        "Methods are ranked first by the number of diverged seeds; a method with diverged seeds is shown "
        "with the median, minimum and maximum of the other seeds. "
    )


def _setting(found: Standings, job: Path) -> str:
    """Describe the problem and the search."""
    table, tune = found.tuning.table, found.tuning.tune
    own = {key: value for key, value in table["problem"].items() if key != "name"}
    rest = {key: value for key, value in table.items() if key not in ("run", "problem")}
    words = ", ".join(f"{key} = {json.dumps(value)}" for key, value in (flatten(own) | flatten(rest)).items())
    return (
        f"{title(job)}. `{words}`. The search for each method uses as many oracle calls as {tune.runs} "
        f"complete runs of the costliest method. The results are for {tune.fresh or tune.seeds} new seeds. "
        f"Job file: `jobs/gallery/{job.name}`."
    )


def _sentences(found: Standings) -> list[str]:
    """Name the best method by final value and by each cost, and by how much it leads."""
    lead = found.final_lead()
    first = lead.first.spread
    value = f"{found.metric} {_spread(lead.first) if first.finite else _number(first.mean)}"
    lines = [f"- **Final value**: {lead.first.name}, {value}{_ahead(lead)}"]
    for axis in PAID:
        by_cost = found.lead(axis)
        if by_cost is None:
            lines.append(f"- **Fewest {axis.name}**: no method reaches the level with every seed.")
        else:
            size, unit = _unit(axis, found)
            words = axis.name if axis.name != "bytes" else unit
            cost = _number(_mean(by_cost.first, axis) / (size if axis.name == "bytes" else 1))
            lines.append(f"- **Fewest {axis.name}**: {by_cost.first.name}, {cost} {words}{_ahead(by_cost)}")
    return lines


def _ahead(lead: Lead) -> str:
    if lead.second is None:
        return "."
    lost = f"; some seeds of {lead.lost} diverge" if lead.lost else ""
    behind = f"{lead.behind} of {lead.rivals} other methods are significantly behind{lost}."
    if math.isnan(lead.low):
        return f". The next method, {lead.second.name}: {_spread(lead.second)}. {behind}"
    gap = f"{'a factor of ' if lead.ratio else ''}{_number(lead.ahead)}"
    doubt = "" if lead.low > (1 if lead.ratio else 0) else ", not significant"
    ends = _ends(lead.low, lead.high)
    return f". The next method, {lead.second.name}, is behind by {gap} ({ends}{doubt}). {behind}"


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
    if found.ratios and high > WIDEST * low:
        return "–"
    return "" if one is found.entries[0] or math.isnan(low) else _ends(low, high)


def _ends(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"


def _mean(one: Entry, axis: Axis) -> float:
    """Return the mean cost of reaching the level."""
    paid = one.paid[axis.name].values()
    return math.fsum(paid) / len(paid)


def _unit(axis: Axis, found: Standings) -> tuple[float, str]:
    """Return the size and the name of the unit of an axis."""
    size = axis.scale(found.settings)[0]
    return size, dict(axis.units)[size]


def _number(value: float) -> str:
    """Format a number with three significant digits."""
    return f"{value:.3g}" if abs(value) < 1000 or abs(value) >= 1e6 else f"{value:.0f}"


def _first(lead: Lead | None) -> str:
    return lead.first.name if lead else "none"


def index(pages: Path) -> str:
    """Return the index of the existing pages; it names the problems without a page."""
    heads = [f"{FIRST} {axis.name}" for axis in PAID]
    rows = [f"| problem | {' | '.join(heads)} | |", "|---" * (2 + len(heads)) + "|"]
    there = {path.stem: path for path in sorted(pages.glob("*.md")) if path.name != "index.md"}
    for name, path in there.items():
        lines = path.read_text(encoding="utf-8").splitlines()[1 : 1 + len(heads)]
        first = " | ".join(line.rpartition(": ")[2] for line in lines)
        rows.append(f"| [{name}]({name}.md) | {first} | [![{name}]({name}_small.png)]({name}.md) |")
    missing = {name: ABSENT.get(name, "not run yet") for name in PROBLEMS if name not in there}
    absent = "; ".join(f"{name} ({reason})" for name, reason in missing.items())
    special, sparse = (
        ", ".join(f"{one} ({other})" for one, other in methods.items())
        for methods in (SPECIAL_CASES, COMPRESSED)
    )
    left_out = (
        f"Methods that are not on every page: special cases of other methods, {special}; methods with "
        f"compressed messages, {sparse}; methods stated for minimisation, {', '.join(OF_MINIMISATION)}."
    )
    return INDEX + "\n".join(rows) + "\n" + AFTER + f"\n{left_out}\n\nProblems without a page: {absent}.\n"
