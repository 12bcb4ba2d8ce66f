"""What a paper takes from a report: a figure and a table, with names of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpifed.core.settings import near_miss
from mpifed.report.comparison import Rule, Setting, metrics_of
from mpifed.report.paper_figure import figure, plan
from mpifed.report.renaming import Renaming, renaming
from mpifed.storage.named import expect_place
from mpifed.storage.ownership import is_paper

__all__ = ["Paper"]


@dataclass(frozen=True)
class Paper:
    """What is wanted for a paper.

    Attributes:
        figure: the file of the figure, ``None`` for none; its ending says the format.
        latex: the file of the table, ``None`` for none.
        width: of the figure, with its unit.
        metrics: of figure and table; by default the one that decides which setting is best.
        x: names of the figure's axes.
        labels: a file with new names.
    """

    figure: Path | None = None
    latex: Path | None = None
    width: str = "3.25in"
    metrics: tuple[str, ...] = ()
    x: tuple[str, ...] = ("rounds",)
    labels: Path | None = None

    def writers(self, chosen: Sequence[Setting], rule: Rule) -> dict[Path, Callable[[Path], object]]:
        """What writes each file, of the best setting of every method.

        Raises:
            ValueError: something that is asked for is not there, or a file cannot be written.
        """
        if not (self.figure or self.latex):
            return {}
        known = metrics_of(chosen)
        for metric in self.metrics:
            if metric not in known:
                raise ValueError(f"no run has the metric {metric!r}: {near_miss(metric, known)}")
        if not known:
            raise ValueError("the runs have no metrics: there is nothing to draw, and no table")
        metrics = self.metrics or tuple(dict.fromkeys(filter(None, map(rule.metric_of, chosen))))
        names = renaming(self.labels, chosen) if self.labels else Renaming()
        found: dict[Path, Callable[[Path], object]] = {}
        if self.figure:
            wanted = plan(chosen, self.figure, self.width, metrics, self.x)
            found[self.figure] = lambda path: figure(chosen, path, wanted, names)
        if self.latex:
            from mpifed.report.latex import table  # it tests, and scipy.stats takes a second to load

            text = table(chosen, rule, metrics, names)
            found[self.latex] = lambda path: path.write_text(text, encoding="utf-8")
        for path in found:
            expect_place(path, is_paper)
        return found
