#!/usr/bin/env python3
"""Draws the figures of docs/headlines.md from the stored results of the experiments: one plot per figure.

python scripts/evidence/headlines.py [FOLDER]     # default docs/headlines
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from claims.entries import Book, read
from claims.figures import draw_cell, draw_trend, save
from claims.page import panels_of
from claims.panels import restricted
from mpifed.report.comparison import Setting

ROOT = Path(__file__).resolve().parents[2]


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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "docs/headlines")
    folder = parser.parse_args().folder
    books = {name: read(ROOT / "jobs" / name / "claims.toml") for name in ("papers", "theory")}
    for name, one in HEADLINES.items():
        draw(one, books[one.book], folder / f"{name}.png")
        print(folder / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
