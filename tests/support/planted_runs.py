"""Synthetic runs with known curves, in the form in which they are read from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from claims.panels import Panel
from mpifed.core.metrics import Column
from mpifed.report.comparison import settings_of
from mpifed.storage.results import COSTS, End, RunData


def planted(
    method: str, seed: int, curve: Sequence[float], maximised: bool = False, end: str = "rounds", **config
) -> RunData:
    """Return a run with the metric ``error`` at rounds 0, 10, 20, ...

    A round costs 2 oracle calls, 3 bytes up, 4 bytes down and one second. ``config`` are sections such as
    ``problem={"s": 10}``.
    """
    rounds = 10 * np.arange(len(curve))
    each = {"round": 1, "oracle_calls": 2, "bytes_up": 3, "bytes_down": 4, "seconds": 1.0}
    table = {"seed": seed, "algorithm": {"name": method}, "problem": {"name": "Planted"}}
    for section, own in config.items():
        table[section] = table.get(section, {}) | own
    return RunData(
        path=Path(f"{method}-{seed}/run.h5"),
        name=method,
        config=table,
        versions={},
        costs={name: rounds * each.get(name, 0) for name in COSTS},
        metric_rounds=rounds,
        metrics={"error": np.array(curve, dtype=float)},
        columns={"error": Column("error", "test", maximised=maximised)},
        end=End(end, "all rounds are done"),
        layout={},
        data={},
        ranks={},
        class_counts=None,
        classes=[],
        splits={},
        details=None,
    )


def panel(*runs: RunData, keys: Sequence[str] = (), name: str = "tuned") -> Panel:
    """Return the runs as a panel."""
    return Panel(name, Path(), keys, settings_of(runs))
