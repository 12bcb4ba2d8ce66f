"""What theorems say of the runs whose jobs name one: their bounds, and how far the steps used are from
theirs."""

from __future__ import annotations

from collections.abc import Sequence

from mpifed.config.theory import prescription_of
from mpifed.core.settings import flatten
from mpifed.report.comparison import Rule, Setting, Spread
from mpifed.report.names import labels
from mpifed.storage.results import RunData

__all__ = ["bound_of", "theory_rows"]


def bound_of(setting: Setting, metric: str) -> float | None:
    """The mean over the runs of what their theorem bounds the metric by, ``None`` where none does."""
    found = [prescription_of(run.config.get("theory")) for run in setting.runs]
    bounds = [
        prescription.bound
        for theorem, prescription in (one for one in found if one)
        if theorem.metric == metric and prescription.bound is not None
    ]
    return sum(bounds) / len(bounds) if len(bounds) == len(found) else None


def theory_rows(settings: Sequence[Setting]) -> list[dict]:
    """One row a step that a setting's theorem prescribes, figures as :class:`Spread` over the runs.

    ``used / prescribed`` says how many times smaller the theorem's step is than the one used.
    """
    rows = []
    for setting, name in zip(settings, labels(settings)):
        found = prescription_of(setting.runs[0].config.get("theory"))
        if found is None:
            continue
        theorem, _ = found
        common = {"theorem": theorem.name, "bound on": theorem.of}
        bounds = [_steps(run)[1] for run in setting.runs]
        figure = Spread.of(bounds) if None not in bounds else None
        has = theorem.metric in setting.metrics
        final = setting.spread(lambda run: Rule().value(run, theorem.metric)) if has else None
        steps = [key for key in _steps(setting.runs[0])[0] if all(_used(run, key) for run in setting.runs)]
        for key in steps:
            row = {"setting": name, **common, "bound": figure, "measured": final, "step": key}
            row["prescribed"] = setting.spread(lambda run: _steps(run)[0][key])
            row["used"] = setting.spread(lambda run: _used(run, key))
            row["used / prescribed"] = setting.spread(lambda run: _used(run, key) / _steps(run)[0][key])
            rows.append(row)
    return rows


def _steps(run: RunData) -> tuple[dict[str, float], float | None]:
    """The numbers that a run's theorem prescribes, those of a schedule as ``eta.scale``, and its bound."""
    found = prescription_of(run.config["theory"])
    assert found is not None
    numbers = {key: value for key, value in flatten(found[1].steps).items() if isinstance(value, int | float)}
    return {key: float(value) for key, value in numbers.items() if value}, found[1].bound


def _used(run: RunData, key: str) -> float:
    """The number that a run has in the place of a step; 0 where it has none, or another schedule."""
    own = flatten(run.config["algorithm"])
    value = own.get(key, own.get(f"{key}.value"))
    return float(value) if isinstance(value, int | float) else 0.0
