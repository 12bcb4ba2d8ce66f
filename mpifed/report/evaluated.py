"""Tables of what the evaluation of the output points has found: metrics over the clients, confusion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpifed.core.details import QUANTILES
from mpifed.report.comparison import Setting, Spread
from mpifed.storage.results import RunData

__all__ = ["client_rows", "confusion_rows"]

#: Classes of which a table of the confusion is shown, at most.
MOST = 30


def client_rows(settings: Sequence[Setting], names: Sequence[str]) -> list[dict]:
    """One row a setting and metric: its quantiles over the clients' own samples and the worst client, in the
    mean over the runs, and the worst client's number in each run."""
    rows = []
    for one, name in zip(settings, names):
        runs = [run for run in one.runs if run.details.clients]
        for metric in runs[0].details.clients if runs else ():
            known = [_known(run, metric) for run in runs]
            worst = [_worst(run, metric) for run in runs]
            quantiles = {
                f"{per_cent} %": Spread.of(np.quantile(values, per_cent / 100) for values in known)
                for per_cent in QUANTILES
            }
            row = {"setting": name, "metric": metric, "clients": len(runs[0].details.clients[metric])}
            figures = Spread.of(run.details.clients[metric][k] for run, k in zip(runs, worst))
            rows.append(row | quantiles | {"worst": figures, "worst client": ", ".join(map(str, worst))})
    return rows


def _known(run: RunData, metric: str) -> np.ndarray:
    """The clients' values that are numbers; one NaN where there are none."""
    values = run.details.clients[metric]
    return values[~np.isnan(values)] if not np.isnan(values).all() else values[:1]


def _worst(run: RunData, metric: str) -> int:
    """The number of the client with the worst value; the first where there is none."""
    values = run.details.clients[metric] * (1 if metric in run.maximised else -1)
    return 0 if np.isnan(values).all() else int(np.nanargmin(values))


def confusion_rows(setting: Setting) -> list[dict]:
    """One row a class: of its test samples, those that are taken for each class, added up over the runs;
    nothing where there is no confusion, or of very many classes."""
    found = [run.details for run in setting.runs if run.details.confusion is not None]
    if not found or len(found[0].classes) > MOST:
        return []
    counts, classes = sum(one.confusion for one in found), found[0].classes
    return [
        {"class": name} | dict(zip((f"as {other}" for other in classes), row))
        for name, row in zip(classes, counts.tolist())
    ]
