"""Results as data: the evaluations of runs as one tidy table."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from mpifed.report.comparison import settings_of
from mpifed.report.labels import labels
from mpifed.storage.format import COSTS
from mpifed.storage.results import RunData, find_runs, load

__all__ = ["frame", "tidy"]


def frame(places: str | os.PathLike | Iterable[str | os.PathLike]) -> pd.DataFrame:
    """The evaluations of finished runs, and of runs that still go on, read from their files.

    Args:
        places: a folder that is a run or holds some at any depth, a run file, a :class:`Result`, or several
            of these.

    Returns:
        One row for each run, round and metric of an evaluation, in their order. ``run`` is the run's folder,
        below the working directory as seen from there; ``method`` the algorithm's name; ``setting`` what runs
        that differ in nothing but the seed share, named by what sets it apart from the others in the table;
        then ``seed``, ``round``, ``metric`` and ``value``, which is NaN or infinite where the run's was. Then
        what the run had cost by that round, under its names in ``run.h5``: counts, bytes and seconds,
        cumulative. ``diverged`` says whether the run has ended in non-finite values.

    Raises:
        ValueError: there are no runs, or one of them cannot be read.
    """
    several = [places] if isinstance(places, str | os.PathLike) else places
    return tidy([load(file) for file in find_runs(several)])


def tidy(runs: Iterable[RunData]) -> pd.DataFrame:
    """The evaluations of runs as :func:`frame` gives them."""
    settings = settings_of(runs)
    tables = [_of(run, one.name, name) for one, name in zip(settings, labels(settings)) for run in one.runs]
    found = pd.concat(tables, ignore_index=True)
    for column in ("run", "method", "setting", "metric"):
        found[column] = pd.Categorical(found[column], categories=found[column].unique())
    return found


def _of(run: RunData, method: str, setting: str) -> pd.DataFrame:
    """The rows of one run."""
    metrics, at = np.array([*run.metrics], dtype=str), np.searchsorted(run.costs["round"], run.metric_rounds)
    rows = {
        "run": _seen(run.folder),
        "method": method,
        "setting": setting,
        "seed": run.config.get("seed"),
        "round": run.metric_rounds.repeat(len(metrics)),
        "metric": np.tile(metrics, len(run.metric_rounds)),
        "value": np.array([*run.metrics.values()], dtype=float).T.ravel(),
    }
    costs = {cost: run.costs[cost][at].repeat(len(metrics)) for cost in COSTS[1:]}
    return pd.DataFrame(rows | costs | {"diverged": run.diverged})


def _seen(folder: Path) -> str:
    """A folder below the working directory as seen from there, another from the root."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
