"""Settings (groups of runs that differ only in the seed) and the best setting of each method.

The hyperparameters of an algorithm are tuned. All other values in the job (problem, data, participation,
oracle, rounds, ...) define the task. The best setting of a method is chosen separately for each task.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from mpifed.base.plugins import short_names
from mpifed.base.settings import affecting, flatten, suggest
from mpifed.config.job import Config, Run
from mpifed.config.theory import prescription_of
from mpifed.core.metrics import CLIENTS, VALIDATION, Column, validation_column
from mpifed.report.statistics import (
    Curve,
    MeanStd,
    best_value,
    final_value,
    holm,
    paired_test,
    ranking_key,
)
from mpifed.storage.results import RunData

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Rule", "Setting", "best", "metrics_of", "paired_tests", "settings_of"]

#: The settings of [run] that distinguish settings: not the numbers of threads and GPUs, as machines differ.
_EXECUTION = {*affecting(Run, "results", "digits", "speed")} - {"threads", "gpus"}

#: Settings and sections of a job that do not distinguish settings.
_IGNORED = {*affecting(Config, "selection"), "seed", "run", "plugins", "theory"}


@dataclass(frozen=True, eq=False)
class Setting:
    """Runs that differ only in the seed.

    Attributes:
        settings: the values that the runs share, as ``{dotted name: value}``; user-defined objects by their
            short names.
        repetition: 0, or 1, 2, ... for runs that repeat a seed with the same values.
        name: the method's short name, unique among the methods that are compared.
    """

    runs: tuple[RunData, ...]
    settings: dict[str, object]
    repetition: int
    name: str

    @property
    def infeasible(self) -> int:
        """Number of runs that have left the problem's constraint sets."""
        return sum(bool(run.infeasible) for run in self.runs)

    @functools.cached_property
    def metrics(self) -> dict[str, Column]:
        """The metrics that all runs have, by name."""
        return {
            name: column
            for name, column in self.runs[0].columns.items()
            if all(len(run.metrics.get(name, ())) for run in self.runs)
        }

    def maximises(self, metric: str) -> bool:
        """Whether the metric is to be maximised."""
        return self.runs[0].maximises(metric)

    def spread(self, value: Callable[[RunData], float]) -> MeanStd:
        """Mean and deviation over the runs of a function of a run."""
        return MeanStd.from_values(value(run) for run in self.runs)

    def finite(self, metric: str) -> tuple[RunData, ...]:
        """The runs that have not diverged and whose last value of the metric is finite."""
        return tuple(run for run in self.runs if not run.diverged and np.isfinite(final_value(run, metric)))

    def all_finite(self, metric: str) -> bool:
        """Whether all runs end with a finite value of the metric."""
        return len(self.finite(metric)) == len(self.runs)

    def finite_count(self, metrics: Iterable[str]) -> str:
        """``"4 of 5 finite"``: the number of runs that end with finite values of all metrics, ignoring
        metrics that are finite in no run; "" if all do."""
        counts = [len(self.finite(metric)) for metric in metrics if metric in self.metrics]
        count = min(filter(None, counts), default=0)
        return f"{count} of {len(self.runs)} finite" if counts and count < len(self.runs) else ""

    def curve_runs(self, metric: str) -> tuple[RunData, ...]:
        """The runs that a curve aggregates: those that end with a finite value, or all if none does."""
        return self.finite(metric) or self.runs

    def curve(self, metric: str) -> Curve:
        """The curve of the metric over :meth:`curve_runs`."""
        return Curve.from_runs((run.metric_rounds, run.metrics[metric]) for run in self.curve_runs(metric))

    def bound(self, metric: str) -> float | None:
        """Mean over the runs of their theorem's bound on the metric, ``None`` if a run has no such bound."""
        prescriptions = [prescription_of(run.config.get("theory")) for run in self.runs]
        bounds = [
            prescription.bound
            for theorem, prescription in (pair for pair in prescriptions if pair)
            if theorem.metric == metric and prescription.bound is not None
        ]
        return sum(bounds) / len(bounds) if len(bounds) == len(prescriptions) else None


@dataclass(frozen=True)
class Rule:
    """Criterion for the best setting of a method: a metric, on the validation split if the runs have one. The
    metric on the test split is reported.

    Attributes:
        metric: by default the first metric of the runs.
        by: whether the last or the best value of a run counts.
        target: value of the metric; the rounds needed to reach it are reported, and do not affect the choice.
        each: hyperparameters, such as ``q``, that are part of the task: a best setting is selected for each
            of their values.
    """

    metric: str | None = None
    by: Literal["final", "best"] = "final"
    target: float | None = None
    each: tuple[str, ...] = ()

    def metric_of(self, setting: Setting) -> str | None:
        """The reported metric: :attr:`metric` if the setting has it, else the setting's first."""
        return self.metric if self.metric in setting.metrics else next(iter(setting.metrics), None)

    def selection_metric(self, setting: Setting) -> str | None:
        """The metric that selects the best setting, on the validation split if all runs have one."""
        metric = self.metric_of(setting)
        return metric and (validation_column(metric, setting.metrics) or metric)

    def check(self, settings: Sequence[Setting]) -> None:
        """Check that the rule applies to the settings.

        Raises:
            ValueError: no run has the metric, or no method has a setting in ``each``.
        """
        known = [*dict.fromkeys(metric for setting in settings for metric in setting.metrics)]
        if self.metric is not None and self.metric not in known:
            raise ValueError(f"no run has the metric {self.metric!r}: {suggest(self.metric, known)}")
        keys = {key for setting in settings for key in setting.settings if key.startswith("algorithm.")}
        names = {key.removeprefix("algorithm.") for key in keys}
        for name in self.each:
            if name not in names:
                raise ValueError(f"no method has the setting {name!r}: {suggest(name, names)}")

    def value(self, run: RunData, metric: str) -> float:
        """A run's value; NaN if the run has diverged."""
        if run.diverged:
            return np.nan
        return final_value(run, metric) if self.by == "final" else best_value(run, metric)

    def rank(self, setting: Setting) -> tuple[int, float]:
        """The setting's :func:`ranking_key <mpifed.report.statistics.ranking_key>`; smaller is better.

        The value of a run with infeasible points is no solution's, and counts as NaN.
        """
        metric = self.selection_metric(setting)
        if metric is None:
            return 0, 0.0
        values = (np.nan if run.infeasible else self.value(run, metric) for run in setting.runs)
        return ranking_key(values, setting.maximises(metric))

    def rounds_to_target(self, run: RunData, metric: str | None) -> int | None:
        """Round of the first evaluation that reaches the target, ``None`` if none does."""
        values = run.metrics.get(metric, np.zeros(0))
        reached = values >= self.target if metric and run.maximises(metric) else values <= self.target
        return int(run.metric_rounds[np.argmax(reached)]) if reached.any() else None

    def is_task(self, key: str) -> bool:
        """Whether a dotted setting is part of the task rather than tuned."""
        return not key.startswith("algorithm.") or key.removeprefix("algorithm.") in self.each

    def task(self, setting: Setting) -> str:
        """A text that identifies the setting's task."""
        table = {key: value for key, value in setting.settings.items() if self.is_task(key)}
        return json.dumps([setting.repetition, table], sort_keys=True)

    def by_task(self, settings: Sequence[Setting]) -> list[list[Setting]]:
        """Group the settings by task, in their order."""
        tasks: dict[str, list[Setting]] = {}
        for setting in settings:
            tasks.setdefault(self.task(setting), []).append(setting)
        return [*tasks.values()]

    def describe(self, settings: Sequence[Setting]) -> str:
        """The rule, and the data on which it chooses, as a sentence."""
        goals = []
        for metric in dict.fromkeys(filter(None, map(self.selection_metric, settings))):
            maximised = any(setting.maximises(metric) for setting in settings if metric in setting.metrics)
            goals.append(f"the {'largest' if maximised else 'smallest'} {self.by} {metric}")
        evaluation = "at the last evaluation" if self.by == "final" else "at the run's best evaluation"
        diverged = any(self.rank(setting)[0] for setting in settings)
        mean = f"mean over the seeds{', or median of the finite values if some diverge' if diverged else ''}"
        splits = dict.fromkeys(filter(None, map(self._selection_data, settings)))
        data_used = [f"chosen on {data}" for data in splits]
        return (
            "The best setting of a method has the fewest runs that end in non-finite values or leave the "
            f"problem's sets, then {' or '.join(goals)} ({'; '.join([evaluation, mean, *data_used])})."
        )

    def _selection_data(self, setting: Setting) -> str | None:
        """The data on which the best setting is selected; ``None`` if the runs have no held-out data."""
        metric = self.selection_metric(setting)
        split = setting.metrics[metric].split if metric else ""
        if split == VALIDATION:
            return "the validation data, other metrics refer to the test data"
        if split in ("train", CLIENTS):
            return "the training data"
        tested = split and all(run.splits.get("test") for run in setting.runs)
        return "the test data" if tested else None


def settings_of(runs: Iterable[RunData]) -> list[Setting]:
    """Group runs by all settings except the seed, in their order."""
    groups: dict[tuple[str, int], list[RunData]] = {}
    flat: dict[str, dict] = {}
    for run in runs:
        settings = _compared(run.config)
        key, repetition = json.dumps(settings, sort_keys=True), 0
        while any(_seed(other) == _seed(run) for other in groups.get((key, repetition), ())):
            repetition += 1
        groups.setdefault((key, repetition), []).append(run)
        flat[key] = settings
    names = _class_names(members[0].config for members in groups.values())
    return [
        Setting(
            tuple(members),
            {name: names.get(str(value), value) for name, value in flat[key].items()},
            repetition,
            names[str(flat[key]["algorithm.name"])],
        )
        for (key, repetition), members in groups.items()
    ]


def _class_names(configs: Iterable[dict]) -> dict[str, str]:
    """The short names of methods, problems and user-defined objects that jobs name."""
    names: dict[str, None] = {}
    for config in configs:
        parts = [config["algorithm"], config.get("problem", {}), *_plugins(config).values()]
        names |= {part["name"]: None for part in parts if "name" in part}
    return short_names(names)


def _plugins(config: dict) -> dict[str, dict]:
    """The user-defined objects that a job's settings name, by the place of the setting."""
    return config.get("plugins") or {}


def _seed(run: RunData) -> int | None:
    return run.config.get("seed")


def _compared(config: dict) -> dict[str, object]:
    """The values that distinguish settings: all except the seed and options of output and files.

    A schedule is represented by its value, a user-defined object by its name and the digest of its file.
    """
    table = {key: value for key, value in config.items() if key not in _IGNORED}
    # A step size from a theorem differs between seeds because the problems' constants do.
    theory = config.get("theory", {})
    for key, times in theory.get("times", {}).items():
        step = theory["of"] if times == 1 else f"{times:g} x {theory['of']}"
        table["algorithm"] = table["algorithm"] | {key: step}
    digests = {
        f"{place}.digest": plugin["digest"][:12]
        for place, plugin in _plugins(config).items()
        if place.split(".")[0] not in _IGNORED
    }
    table["run"] = {key: value for key, value in config.get("run", {}).items() if key in _EXECUTION}
    flat = flatten(table) | digests
    return {key.removesuffix(".value"): value for key, value in flat.items() if value is not None}


def best(settings: Sequence[Setting], rule: Rule) -> list[Setting]:
    """The best setting of each method for each task."""
    competitors: dict[tuple[object, str], list[Setting]] = {}
    for setting in settings:
        competitors.setdefault((setting.settings["algorithm.name"], rule.task(setting)), []).append(setting)
    return [min(group, key=rule.rank) for group in competitors.values()]


def metrics_of(settings: Iterable[Setting]) -> list[str]:
    """The distinct metrics of the settings, without statistics over clients except their means; a separate
    table shows these."""
    columns = [column for setting in settings for column in setting.metrics.values()]
    return [*dict.fromkeys(column.name for column in columns if column.statistic in ("", "mean"))]


def paired_tests(first: Setting, others: Sequence[Setting], rule: Rule, metric: str) -> pd.DataFrame:
    """Compare each of the other settings with the first by a paired t-test over the seeds.

    Runs with the same seed form a pair: they share the data partition and the starting point, so only the
    method differs.

    Returns:
        One row per setting. ``difference`` is the setting's value minus that of ``first``, mean and deviation
        over the pairs; ``seeds`` is the number of pairs; ``left out`` counts the seeds at which one of the
        two has no finite value. ``p`` is NaN for fewer than two pairs or equal differences; ``p (Holm)`` is
        corrected for the number of comparisons.
    """
    import pandas as pd  # not needed for a single setting

    rows = []
    of_first, *by_seed = (
        pd.Series({run.config.get("seed"): rule.value(run, metric) for run in setting.runs})
        for setting in (first, *others)
    )
    for pair in (values - of_first for values in by_seed):
        finite = pair[np.isfinite(pair)]
        missing = len(pair) - len(finite)
        rows.append((len(finite), missing, MeanStd.from_values(finite), paired_test(finite)))
    tests = pd.DataFrame(rows, columns=["seeds", "left out", "difference", "p"])
    return tests.assign(**{"p (Holm)": holm(tests["p"])})
