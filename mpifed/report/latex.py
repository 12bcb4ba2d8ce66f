"""The best setting of every method as a LaTeX table."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from mpifed.base.log import escape_control
from mpifed.report.comparison import Rule, Setting, paired_tests
from mpifed.report.labels import Labels
from mpifed.report.statistics import MeanStd
from mpifed.report.tables import TEST
from mpifed.storage.files import REPORT_MARK

__all__ = ["LEVEL", "escape", "number", "table"]

#: Significance level of the test.
LEVEL = 0.05
#: Marks methods that do not differ significantly from the best.
MARK = r"\dagger"
#: Numbers below SMALL and from LARGE on are written with a power of ten.
SMALL, LARGE = 1e-3, 1e5
_SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    **{one: "\\" + one for one in "&%$#_{}"},
}  # fmt: skip


def table(chosen: Sequence[Setting], rule: Rule, metrics: Sequence[str], names: Labels = Labels()) -> str:
    """A table with a row per method and a column per metric, mean ± standard deviation over the seeds.

    In each column the best mean is bold, and methods that do not differ significantly from it are marked. A
    method with diverged seeds is neither: its cell has the median of the finite values and their count.
    Methods are compared only within a task.
    """
    labels = dict(zip(chosen, names.for_settings(chosen, _quoted)))
    parts, tested = [], False
    for competitors in rule.by_task(chosen):
        columns = [_column(competitors, rule, metric) for metric in metrics]
        tested |= any(compared for _, compared in columns)
        rows = zip(*(cells for cells, _ in columns))
        lines = (f"{labels[setting]} & {' & '.join(row)} \\\\" for setting, row in zip(competitors, rows))
        parts.append("\n".join(lines))
    heads = [names.metric(metric, _quoted) + _arrow(chosen, metric) for metric in metrics]
    body = "\n\\midrule\n".join(parts)
    criterion = escape_control(rule.describe(chosen), line=True)
    return (
        f"% {REPORT_MARK}; needs \\usepackage{{booktabs}}\n% {criterion}\n"
        f"\\begin{{table}}\n\\centering\n\\caption{{{_caption(chosen, rule, tested, body)}}}\n"
        f"\\begin{{tabular}}{{l{'r' * len(metrics)}}}\n\\toprule\n"
        f"Method & {' & '.join(heads)} \\\\\n\\midrule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def _column(competitors: Sequence[Setting], rule: Rule, metric: str) -> tuple[list[str], bool]:
    """The cells of one metric, and whether any p-value could be computed."""
    spreads = [
        MeanStd.from_values(rule.value(run, metric) for run in setting.runs if metric in setting.metrics)
        for setting in competitors
    ]
    finite = [place for place, spread in enumerate(spreads) if math.isfinite(spread.mean)]
    if not finite:
        return [_diverged(spread) for spread in spreads], False
    sign = -1 if competitors[finite[0]].maximises(metric) else 1
    first = min(finite, key=lambda place: sign * spreads[place].mean)
    others = [place for place in finite if place != first]
    tests = paired_tests(competitors[first], [competitors[place] for place in others], rule, metric)
    tied = {place for place, p in zip(others, tests["p (Holm)"]) if p >= LEVEL}
    # If all pairs are equal, there is no p-value.
    tied |= {place for place, pairs in zip(others, tests["difference"]) if pairs.mean == pairs.deviation == 0}
    best = {place for place in finite if spreads[place].mean == spreads[first].mean}
    cells = [
        number(spread, place in best, place in tied - best) if place in finite else _diverged(spread)
        for place, spread in enumerate(spreads)
    ]
    return cells, bool(len(tests) and tests["p"].notna().any())


def _diverged(spread: MeanStd) -> str:
    """The cell of a method with diverged seeds, or without the metric."""
    if spread.finite is None:
        return "--"
    count = f"{spread.finite.count}/{spread.finite.runs}"
    return f"{number(MeanStd(spread.finite.median, math.nan))} ({count})" if spread.finite.count else count


def number(spread: MeanStd, bold: bool = False, marked: bool = False) -> str:
    """Mean and deviation as mathematics: the deviation with two digits, the mean with the same decimals; a
    mean without a deviation with four digits."""
    power = math.floor(math.log10(abs(spread.mean))) if spread.mean else 0
    shift = 0 if not spread.mean or SMALL <= abs(spread.mean) < LARGE else power
    mean, deviation = spread.mean / 10.0**shift, spread.deviation / 10.0**shift
    last = math.floor(math.log10(deviation)) - 1 if deviation > 0 else power - shift - 3
    decimals = min(max(-last, 0), 6)
    around = rf" \pm {deviation:.{decimals}f}" if math.isfinite(deviation) else ""
    text = f"{mean:.{decimals}f}{around}"
    if shift:
        text = (f"({text})" if around else text) + rf" \times 10^{{{shift}}}"
    text = rf"\mathbf{{{text}}}" if bold else text
    return f"${text}^{{{MARK}}}$" if marked else f"${text}$"


def escape(text: str) -> str:
    """Escape a text for LaTeX."""
    return "".join(_SPECIAL.get(character, character) for character in escape_control(text, line=True))


def _quoted(text: str, by_user: bool) -> str:
    """A name for LaTeX; mathematics between dollars is kept only in the user's names."""
    if not by_user:
        return escape(text)
    parts = re.split(r"(\$[^$]+\$)", text)
    return "".join(part if part.startswith("$") and len(part) > 1 else escape(part) for part in parts)


def _arrow(chosen: Sequence[Setting], metric: str) -> str:
    maximised = any(setting.maximises(metric) for setting in chosen if metric in setting.metrics)
    return r" $\uparrow$" if maximised else r" $\downarrow$"


def _caption(chosen: Sequence[Setting], rule: Rule, tested: bool, body: str) -> str:
    """The caption, which explains the numbers and the test."""
    numbers = sorted({len(setting.runs) for setting in chosen})
    seeds = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    evaluation = "the last evaluation" if rule.by == "final" else "the best evaluation"
    spread = rf"mean $\pm$ standard deviation over {seeds} seeds" if numbers[-1] > 1 else "one seed"
    words = [f"Value at {evaluation}, {spread}.", "The best is bold."]
    if tested:
        words.append(rf"${MARK}$: not significantly different from the best at level {LEVEL:g} ({TEST}).")
    elif len(chosen) > 1:
        words.append("Too few seeds for a test.")
    if "--" in body:
        words.append("--: not available.")
    if re.search(r"\b\d+/\d+\b", body.partition("&")[2]):
        words.append(
            "($k$/$n$): median over the $k$ of $n$ seeds that end in finite values; such a method ranks "
            "behind methods without diverged seeds, and is not tested."
        )
    return " ".join(words)
