"""Results of panels as small files, from which claims can be judged without running their jobs again.

A file has a line with the job, its changes and the search, then a line per run: its settings, metrics and
costs at the evaluations, why it ended, its hardware, and the SHA-256 digest of its ``run.h5``. Output points
are omitted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import lzma
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from claims.panels import HARDWARE, Panel, Search
from mpifed.config.tables import read_table
from mpifed.core.metrics import Details
from mpifed.report.comparison import settings_of
from mpifed.storage.results import End, RunData, columns_of_names

__all__ = ["read", "write"]

#: Fields of a run that no claim and no figure uses.
_OMITTED = {
    "data": {},
    "ranks": {},
    "class_counts": None,
    "classes": [],
    "splits": {},
    "details": Details(),
}


def write(panel: Panel, path: Path, job: Path) -> None:
    """Write the results of a complete panel of a job."""
    search = {"seconds": panel.search.seconds, "warnings": [*panel.search.warnings]}
    head = {
        "job": _digest(job),
        "panel": panel.name,
        "keys": [*panel.keys],
        "search": search,
        "changes": [*panel.changes],
    }
    lines = [head, *(_entry(run) for setting in panel.settings for run in setting.runs)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", preset=9 | lzma.PRESET_EXTREME) as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def read(path: Path, job: Path, keys: Sequence[str]) -> Panel | None:
    """Return a stored panel; ``None`` without a file, or if the job has changed since it was written.

    Args:
        keys: the settings that define tasks; default: those of the stored panel.
    """
    if not path.is_file():
        return None
    with lzma.open(path, "rt") as file:
        head, *entries = map(json.loads, file)
    if head["job"] != _digest(job):
        return None
    search = Search(head["search"]["seconds"], head["search"]["warnings"])
    settings, changes = settings_of(map(_run, entries)), head.get("changes", [])
    return Panel(head["panel"], job, keys or head["keys"], settings, search, changes=changes)


def _digest(job: Path) -> str:
    """Return the digest of a job's settings, which comments do not change."""
    return hashlib.sha256(json.dumps(read_table(job), sort_keys=True).encode()).hexdigest()


def _entry(run: RunData) -> dict:
    evaluated = np.searchsorted(run.costs["round"], run.metric_rounds)
    rows = np.union1d(evaluated, len(run.costs["round"]) - 1)  # a diverged run has rounds after the last one
    machine = run.layout.get("machine", {})
    return {
        "sha256": hashlib.sha256(run.path.read_bytes()).hexdigest(),
        "name": run.name,
        "config": run.config,
        "versions": run.versions,
        "machine": {key: machine[key] for key in HARDWARE if key in machine},
        "costs": {name: values[rows].tolist() for name, values in run.costs.items()},
        "evaluated": run.metric_rounds.tolist(),
        "metrics": {name: values.tolist() for name, values in run.metrics.items()},
        "end": run.end and dataclasses.asdict(run.end),
        "maximised": sorted(filter(run.maximises, run.metrics)),
        "infeasible": run.infeasible,
    }


def _run(entry: dict) -> RunData:
    return RunData(
        path=Path(entry["config"]["run"]["out"]),
        name=entry["name"],
        config=entry["config"],
        versions=entry["versions"],
        layout={"machine": entry.get("machine", {})},  # older files have none
        costs={name: np.array(values) for name, values in entry["costs"].items()},
        metric_rounds=np.array(entry["evaluated"]),
        metrics={name: np.array(values, dtype=float) for name, values in entry["metrics"].items()},
        columns=dict(zip(entry["metrics"], columns_of_names(entry["metrics"], entry["maximised"]))),
        end=entry["end"] and End(**entry["end"]),
        infeasible=entry["infeasible"],
        **_OMITTED,
    )
