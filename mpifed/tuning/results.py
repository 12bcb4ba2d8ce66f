"""Results of searches in files: one JSON file per study, and the summaries ``best.toml``, ``tried.csv``."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpifed.base.log import escape_cell
from mpifed.config.grids import settings_name
from mpifed.config.space import Range
from mpifed.config.tables import toml_key, toml_settings
from mpifed.config.tuning import Study, Tuning
from mpifed.report.statistics import ranking_key
from mpifed.storage.files import SEARCH_RESULT, TRIALS, TRIED, replacing
from mpifed.tuning.search import ROUNDING, Search

__all__ = ["BEST", "SEED_OFFSET", "SearchResult", "discard", "read", "result_of", "store", "write_tables"]

BEST = "best.toml"
#: Difference between the first seed in best.toml and the first seed of the search.
SEED_OFFSET = 100
_TITLE = "# The best settings of every method, found by `mpifed tune`, with seeds unused by the search."
_COLUMNS = ("task", "method", "bracket", "settings", "rounds", "seeds", "value", "oracle calls")


@dataclass(frozen=True)
class SearchResult:
    """The result of a study.

    Attributes:
        metric: name of the metric by which settings are selected.
        settings: the best values of the open settings.
        value: mean of ``metric`` over the seeds for these values.
        runs, diverged: number of full runs with these values, and how many of them diverged.
        budget, spent: oracle calls.
        warnings: sentences.
        tried: one row per setting: bracket, settings, rounds, seeds, value, oracle calls.
        improves: whether ``value`` is better than the metric at the starting point.
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
    improves: bool = True


def result_of(search: Search, metric: str) -> SearchResult:
    """Return the result of a finished search."""
    best, values = search.best, search.best.values(search.rungs[-1])
    rows = []
    for trial in search.trials:
        last = trial.values(trial.rounds)
        rows.append([trial.bracket, trial.settings, trial.rounds, len(last), _mean(last), trial.calls])
    value, start = _mean(values), search.preview.start.get(metric, math.nan)
    is_same = math.isclose(value, start, rel_tol=ROUNDING)
    improves = not (is_same or search.sign * value > search.sign * start)  # True if one of them is NaN
    return SearchResult(
        metric,
        best.settings,
        value,
        len(values),
        sum(not math.isfinite(value) for value in values),
        search.budget,
        search.spent,
        _warnings(search, f"{metric} = {value:g}", "" if improves else f"{metric} = {start:g}"),
        rows,
        improves,
    )


def _mean(values: Sequence[float]) -> float:
    diverged, mean = ranking_key(values, False)
    return math.nan if diverged or not math.isfinite(mean) else mean


def _warnings(search: Search, found: str, start: str) -> list[str]:
    """Return the warnings of a search.

    Args:
        found: the best value.
        start: the value at the starting point if the best value is no better, else "".
    """
    best, messages = search.best, []
    if any(not math.isfinite(value) for value in best.values(search.rungs[-1])):
        messages.append(
            "no setting that was tried has finite values, at points in the problem's sets, with every seed"
        )
    elif search.tied > 1:
        messages.append(
            f"{search.tied} of {len(search.trials)} settings tie at {found}: more rounds or another metric "
            "(tune.metric) may distinguish them"
        )
    if start:
        messages.append(
            f"no setting that was tried is better than the starting point, {start}: the best value is {found}"
        )
    for key, beyond in search.extensions().items():
        searched: Range = search.open[key]
        end = "upper" if beyond.value(beyond.high) > searched.value(searched.high) else "lower"
        messages.append(
            f"{key} = {best.settings[key]:g} is at the {end} end of the searched range, {searched}: the "
            "budget did not suffice to extend the range"
        )
    return messages


def _file(tuning: Tuning, study: Study) -> Path:
    return tuning.out / TRIALS / study.task / study.method / SEARCH_RESULT


def store(tuning: Tuning, study: Study, digest: str, result: SearchResult) -> None:
    """Write the result of a study next to its runs, so that other parts and later starts can read it."""
    path = _file(tuning, study)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"search": digest, **asdict(result)}, indent=1) + "\n"
    with replacing(path, lambda head: head.startswith(b'{\n "search": ')) as temporary:
        temporary.write_text(text, encoding="utf-8")


def discard(tuning: Tuning, study: Study) -> None:
    """Remove the stored result of a study."""
    _file(tuning, study).unlink(missing_ok=True)


def read(tuning: Tuning, study: Study, digest: str) -> SearchResult | None:
    """Return the stored result of the search with this digest; ``None`` if there is none."""
    try:
        table = json.loads(_file(tuning, study).read_text(encoding="utf-8"))
        return SearchResult(**table) if table.pop("search") == digest else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_tables(tuning: Tuning, results: Sequence[SearchResult | None]) -> None:
    """Write ``best.toml`` and ``tried.csv`` for the studies that have finished."""
    tuning.out.mkdir(parents=True, exist_ok=True)
    columns = ",".join(_COLUMNS).encode()
    with (
        replacing(tuning.out / TRIED, lambda head: head.startswith(columns)) as path,
        open(path, "w", newline="", encoding="utf-8") as file,
    ):
        table = csv.writer(file, lineterminator="\n")
        table.writerow(_COLUMNS)
        for study, result in zip(tuning.studies, results):
            for bracket, settings, *rest in result.tried if result else ():
                name = settings_name(settings) if settings else ""
                table.writerow(map(escape_cell, (study.task, study.method, bracket, name, *rest)))
    with replacing(tuning.out / BEST, lambda head: head.startswith(_TITLE.encode())) as path:
        path.write_text(_best(tuning, results), encoding="utf-8")


def _best(tuning: Tuning, results: Sequence[SearchResult | None]) -> str:
    """Return the text of best.toml."""
    done = [(study, result) for study, result in zip(tuning.studies, results) if result]
    table = dict(tuning.table)
    table["run"] = table.get("run", {}) | {"out": str(tuning.out / "best")}
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [
        _TITLE,
        f"# `mpifed sweep {tuning.out / BEST}` runs them,",
        f"# `mpifed report {tuning.out / 'best'}` compares them. {TRIED} lists all settings that were tried.",
    ]
    if missing := len(tuning.studies) - len(done):
        lines.append(
            f"# Unfinished: {missing} of {len(tuning.studies)} searches; the same command continues."
        )
    lines += toml_settings(plain)
    for key, value in table.items():
        if isinstance(value, dict):
            lines += ["", f"[{toml_key(key)}]", *toml_settings(value)]
    for study, result in done:
        seeds = [study.seed + SEED_OFFSET + k for k in range(tuning.tune.fresh or tuning.tune.seeds)]
        algorithm = _as_choices(study.space.table(result.settings))
        lines += [
            "",
            f"# {study.title}: {result.metric} = {result.value:.6g}, mean over {result.runs} seed(s); "
            f"{len(study.space.open)} setting(s) searched, {len(result.tried)} combination(s) tried, "
            f"{result.spent:,} of {result.budget:,} oracle calls spent",
            *(f"# Warning: {text}." for text in result.warnings),
            "[[sweep]]",
            *toml_settings({"seed": seeds, **_as_choices(study.settings), "algorithm": algorithm}),
        ]
    return "\n".join(lines) + "\n"


def _as_choices(table: dict[str, Any]) -> dict[str, Any]:
    """Convert settings to the form of a [sweep], where a value that is a list is a list in a list."""
    return {
        key: [value] if isinstance(value, list) else _as_choices(value) if isinstance(value, dict) else value
        for key, value in table.items()
    }
