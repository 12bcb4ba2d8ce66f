#!/usr/bin/env python3
"""Writes the table of methods in docs/methods.md from the attributes of their classes.

python scripts/evidence/methods_table.py
"""

from __future__ import annotations

import re
from pathlib import Path

from mpifed.algorithms import ALGORITHMS
from mpifed.core.algorithm import Algorithm

PAGE = Path(__file__).resolve().parents[2] / "docs/methods.md"
HEADER = ("name", "method", "source", "solves", "clients", "cost per client and round in the paper")


def table() -> str:
    """Return the table, sorted by name."""
    lines = [_line(HEADER), _line(["---"] * len(HEADER))]
    for name in sorted(ALGORITHMS, key=str.lower):
        cls = ALGORITHMS[name]
        about = (cls.__doc__ or "").split("\n\n")[0]
        clients = "any cohort" if cls.partial_participation else "all"
        lines.append(_line([f"`{name}`", about, cls.source, _solves(cls), clients, cls.paper_cost]))
    return "".join(lines)


def updated(page: str) -> str:
    """Return the text of the page with the current table in place of the table that begins like it."""
    return re.sub(rf"^{re.escape(_line(HEADER))}(?:\|.*\n)*", lambda _: table(), page, flags=re.M)


def _line(cells) -> str:
    escaped = (" ".join(cell.split()).replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |\n"


def _solves(cls: type[Algorithm]) -> str:
    """Return the problems that a method solves."""
    family = "VI" if cls.family == "operator" else cls.family
    kind = "mixtures of the clients' losses" if cls.mixture else "composite VI" if cls.composite else family
    return kind if cls.constrained or cls.family == "bilevel" else f"{kind}, without sets"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
