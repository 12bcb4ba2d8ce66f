#!/usr/bin/env python3
"""Writes headlines.md and its figures, one plot per figure, from the stored results of the experiments.

python scripts/evidence/headlines.py [FOLDER]     # default docs
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from claims.entries import Book, read
from claims.figures import draw_cell, draw_trend, save
from claims.page import panels_of
from claims.panels import restricted
from claims.statements import Evidence, listed, rounded_down
from mpifed.base.errors import ConfigError
from mpifed.report.comparison import Setting

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = Path(__file__).with_name("claims") / "headlines.md.jinja"


@dataclass(frozen=True)
class Headline:
    """A figure.

    Attributes:
        book, experiment: folder of the claims in jobs, and the experiment.
        where: selects one task by the values of dotted settings.
        claim: name of the claim whose trend is drawn; default: the experiment's metric against the rounds.
        label: label of the vertical axis.
        low: its lower end; default: below all curves.
    """

    book: str
    experiment: str
    where: Mapping[str, Any] = field(default_factory=dict)
    claim: str = ""
    label: str = ""
    low: float | None = None


HEADLINES = {
    "saddle": Headline(
        "papers", "saddle_by_heterogeneity", {"problem.s": 10.0}, label="distance from the saddle"
    ),
    "mnist": Headline("papers", "auc_mnist", label="test AUC on MNIST", low=0.9),
    "texts": Headline("papers", "auc_texts", label="test AUC on SST-2"),
    "tails": Headline("papers", "heavy_tails_on_a_saddle", label="error under infinite variance"),
    "games": Headline("papers", "affine_games", {"problem.smooth": 0.0}, label="err_D on a rotation"),
    "composition": Headline("papers", "worst_client", label="objective"),
    "wgan": Headline(
        "papers", "wgan_by_regularisation", {"problem.lam": 0.001}, label="squared distance, λ = 0.001"
    ),
    "kappa": Headline("theory", "kappa", claim="kappa_lead", label="rounds to ‖∇Φ‖ = 0.1"),
}


def draw(one: Headline, book: Book, path: Path) -> None:
    """Write a figure of 420 by 320 pixels, which can be read on a phone."""
    experiment = book.experiments[one.experiment]
    panel = restricted(panels_of(book, experiment)[0], one.where)
    if not panel.settings:
        raise SystemExit(
            f"{path.stem}: no results of {one.experiment}: run scripts/evidence/reproduce.py --claims first"
        )
    figure = Figure(figsize=(4.2, 3.2), dpi=100, layout="constrained")
    cell = figure.subplots()
    if one.claim:
        draw_trend(cell, next(claim for claim in book.claims if claim.name == one.claim), panel)
    else:
        methods = list(dict.fromkeys(setting.name for setting in panel.settings))
        draw_cell(cell, experiment.metric, _only_task(one, panel.best(experiment.metric)), methods)
    cell.set_title("")
    cell.set_ylim(bottom=one.low)
    cell.set_ylabel(one.label, fontsize=9)
    cell.xaxis.label.set_size(9)
    cell.legend(fontsize=7.5, edgecolor="none", framealpha=0.7)
    save(figure, path)


def _only_task(one: Headline, tasks: Mapping[tuple, Sequence[Setting]]) -> Sequence[Setting]:
    if len(tasks) != 1:
        raise SystemExit(f"{one.experiment}: {len(tasks)} tasks {[*tasks]}: expected one, set `where`")
    (settings,) = tasks.values()
    return settings


def page(evidence: Evidence, template: str) -> str:
    """Fill a template, and wrap its paragraphs.

    Raises:
        ConfigError: the verdicts do not allow a statement, or results are missing.
    """
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {
        "fixed": lambda value, digits=0: f"{value:.{digits}f}",
        "listed": listed,
        "down": rounded_down,
    }
    text = environment.from_string(template).render(evidence.functions())
    if evidence.errors:
        raise ConfigError("statements that the verdicts do not allow:\n" + "\n".join(evidence.errors))
    return "\n\n".join(map(_wrapped, text.split("\n\n")))


def _wrapped(block: str) -> str:
    """Wrap a paragraph; headings, tables, figures and code are returned as they are."""
    if block.startswith(("#", "|", "!", "`")):
        return block
    end = "\n" * block.endswith("\n")
    return textwrap.fill(block, 130, break_long_words=False, break_on_hyphens=False) + end


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "docs")
    folder = parser.parse_args().folder
    books = {name: read(ROOT / "jobs" / name / "claims.toml") for name in ("papers", "theory")}
    try:
        text = page(Evidence([*books.values()]), TEMPLATE.read_text())
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    for name, one in HEADLINES.items():
        draw(one, books[one.book], folder / f"headlines/{name}.png")
    (folder / "headlines.md").write_text(text)
    print(folder / "headlines.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
