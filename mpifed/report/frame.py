"""The evaluations of runs as a tidy table."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from mpifed.report.comparison import settings_of
from mpifed.report.labels import differing, labels
from mpifed.storage.results import COSTS, RunData, find_runs, load

__all__ = ["frame", "tidy"]


def frame(places: str | os.PathLike | Iterable[str | os.PathLike]) -> pd.DataFrame:
    """Read the evaluations of runs, finished or still in progress.

    Args:
        places: the folder of a run, a folder that contains runs at any depth, a run file, a :class:`Result`,
            or several of these.

    Returns:
        One row per run, round and metric. ``run`` is the run's folder, relative to the working directory if
        it is below; ``method`` the algorithm's name; ``setting`` a name shared by runs that differ only in
        the seed, made of the settings that distinguish it; then ``seed``, ``round``, ``metric`` and ``value``
        (can be NaN or infinite); then the cumulative costs up to this round, with the names in ``run.h5``.
        ``diverged`` is whether the run ended in non-finite values. The other columns have dotted names of
        settings: every hyperparameter (``algorithm.eta``), and all others that differ between the runs; NaN
        where a job has no such setting.

    Raises:
        ValueError: there are no runs, or a run cannot be read.
    """
    several = [places] if isinstance(places, str | os.PathLike) else places
    return tidy([load(file) for file in find_runs(several)])


def tidy(runs: Iterable[RunData]) -> pd.DataFrame:
    """The table of :func:`frame` for runs that have been read."""
    settings = settings_of(runs)
    keys = {key for setting in settings for key in setting.settings if key.startswith("algorithm.")}
    keys = keys.union(differing(settings)) - {"algorithm.name"}
    tables = [
        _rows(run, setting.name, label).assign(**{k: v for k, v in setting.settings.items() if k in keys})
        for setting, label in zip(settings, labels(settings))
        for run in setting.runs
    ]
    table = pd.concat(tables, ignore_index=True)
    for column in ("run", "method", "setting", "metric"):
        table[column] = pd.Categorical(table[column], categories=table[column].unique())
    return table


def _rows(run: RunData, method: str, setting: str) -> pd.DataFrame:
    metrics, at = np.array([*run.metrics], dtype=str), np.searchsorted(run.costs["round"], run.metric_rounds)
    rows = {
        "run": _relative(run.folder),
        "method": method,
        "setting": setting,
        "seed": run.config.get("seed"),
        "round": run.metric_rounds.repeat(len(metrics)),
        "metric": np.tile(metrics, len(run.metric_rounds)),
        "value": np.array([*run.metrics.values()], dtype=float).T.ravel(),
    }
    costs = {cost: run.costs[cost][at].repeat(len(metrics)) for cost in COSTS[1:]}
    return pd.DataFrame(rows | costs | {"diverged": run.diverged})


def _relative(folder: Path) -> str:
    """The path relative to the working directory if the folder is below it, else the absolute path."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
