"""What searches have found, in files: one each, and from these ``best.toml`` and ``tried.csv``."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpifed.config.grids import settings_name
from mpifed.config.ranges import Range
from mpifed.config.tables import quoted
from mpifed.config.tuning import Cell, Tuning
from mpifed.report.statistics import ranking_key
from mpifed.storage.atomic import replacing
from mpifed.tuning.search import Search

__all__ = ["BEST", "FRESH", "TRIED", "Found", "found_by", "read", "remember", "write"]

BEST, TRIED = "best.toml", "tried.csv"
#: How far the seeds of best.toml lie from those that have chosen.
FRESH = 100
_COLUMNS = ("task", "method", "bracket", "settings", "rounds", "seeds", "value", "oracle calls")


@dataclass(frozen=True)
class Found:
    """What the search for a method has come to.

    Attributes:
        settings: the best values of the open settings; ``value`` of ``metric``, mean over the seeds.
        runs, diverged: how many of its whole runs there are, and how many ended in non-finite values.
        budget, spent: oracle calls.
        warnings: sentences.
        tried: one row a setting: bracket, settings, rounds, seeds, value, oracle calls.
    """

    metric: str
    settings: dict[str, Any]
    value: float
    runs: int
    diverged: int
    budget: int
    spent: int
    warnings: list[str]
    tried: list[list]


def found_by(search: Search, metric: str) -> Found:
    """What a search that has ended has come to."""
    best, rounds = search.best, search.rungs[-1]
    values = best.values(rounds)
    diverged = sum(not math.isfinite(value) for value in values)
    rows = [
        [
            one.bracket,
            one.settings,
            one.rounds,
            len(one.values(one.rounds)),
            _mean(one.values(one.rounds)),
            one.calls,
        ]
        for one in search.trials
    ]
    return Found(
        metric,
        best.settings,
        _mean(values),
        len(values),
        diverged,
        search.budget,
        search.spent,
        _warnings(search),
        rows,
    )


def _mean(values: Sequence[float]) -> float:
    lost, mean = ranking_key(values, False)
    return math.nan if lost or not math.isfinite(mean) else mean


def _warnings(search: Search) -> list[str]:
    best, said = search.best, []
    if any(not math.isfinite(value) for value in best.values(search.rungs[-1])):
        said.append("no setting that was tried ends in finite values with every seed")
    for key, more in search.edges().items():
        one: Range = search.open[key]
        end = "upper" if more.value(more.high) > one.value(one.high) else "lower"
        said.append(
            f"{key} = {best.settings[key]:g} lies at the {end} end of what was searched, {one}: the budget "
            "did not reach past it"
        )
    return said


def _file(tuning: Tuning, cell: Cell) -> Path:
    return tuning.out / "trials" / cell.task / cell.method / "tried.json"


def remember(tuning: Tuning, cell: Cell, digest: str, found: Found) -> None:
    """Write the results next to the runs, for a later start and for other parts."""
    path = _file(tuning, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(
            json.dumps({"search": digest, **asdict(found)}, indent=1) + "\n", encoding="utf-8"
        )


def read(tuning: Tuning, cell: Cell, digest: str) -> Found | None:
    """What was found before by the same search; ``None`` where there is nothing, or of another."""
    try:
        table = json.loads(_file(tuning, cell).read_text(encoding="utf-8"))
        return Found(**table) if table.pop("search") == digest else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write(tuning: Tuning, found: Sequence[Found | None]) -> None:
    """Write ``best.toml`` and ``tried.csv`` of the cells that are done."""
    tuning.out.mkdir(parents=True, exist_ok=True)
    with replacing(tuning.out / TRIED) as path, open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(_COLUMNS)
        for cell, one in zip(tuning.cells, found):
            for bracket, settings, *rest in one.tried if one else ():
                table.writerow(
                    [cell.task, cell.method, bracket, settings_name(settings) if settings else "", *rest]
                )
    with replacing(tuning.out / BEST) as path:
        path.write_text(_best(tuning, found), encoding="utf-8")


def _best(tuning: Tuning, found: Sequence[Found | None]) -> str:
    """The text of best.toml."""
    done = [(cell, one) for cell, one in zip(tuning.cells, found) if one]
    table = dict(tuning.table)
    table["run"] = table.get("run", {}) | {"out": str(tuning.out / "best")}
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [*_head(tuning, done), *_settings(plain)]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += ["", f"[{_key(key)}]", *_settings(value)]
    for cell, one in done:
        algorithm = cell.space.table(one.settings)
        seeds = [cell.seed + FRESH + k for k in range(tuning.tune.fresh or tuning.tune.seeds)]
        lines += ["", f"# {_line(cell, one)}", *(f"# Warning: {text}." for text in one.warnings)]
        lines += [
            "[[sweep]]",
            *_settings({"seed": seeds, **_listed(cell.settings), "algorithm": _listed(algorithm)}),
        ]
    return "\n".join(lines) + "\n"


def _head(tuning: Tuning, done: list[tuple[Cell, Found]]) -> list[str]:
    lines = [
        "# The best settings of every method, found by `mpifed tune`, with seeds that have not chosen them.",
        f"# `mpifed sweep {tuning.out / BEST}` carries them out,",
        f"# `mpifed report {tuning.out / 'best'}` compares them. What was tried stands in {TRIED}.",
    ]
    missing = len(tuning.cells) - len(done)
    if missing:
        lines.append(f"# Unfinished: {missing} of {len(tuning.cells)} searches go on with the same command.")
    return lines


def _line(cell: Cell, one: Found) -> str:
    return (
        f"{cell.title}: {one.metric} = {one.value:.6g}, mean over {one.runs} seed(s); {len(one.tried)} "
        f"setting(s) tried, {one.spent:,} of {one.budget:,} oracle calls spent"
    )


def _listed(table: dict[str, Any]) -> dict[str, Any]:
    """Settings as a [sweep] has them: a value that is a list is a list in a list."""
    return {
        key: [value] if isinstance(value, list) else _listed(value) if isinstance(value, dict) else value
        for key, value in table.items()
    }


def _settings(table: dict[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_toml(value)}" for key, value in table.items() if value is not None]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else quoted(key)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(_settings(value)) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)
