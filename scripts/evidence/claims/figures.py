"""The figure of an experiment: tasks with tuned and with stated settings, or the trends of its claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from claims.entries import Claim, Experiment
from claims.formulas import formula
from claims.panels import Panel, restricted, task_title, value
from claims.values import values_by_seed
from claims.verdicts import tasks_of
from mpifed.report.comparison import Setting
from mpifed.report.figures import AXES, draw_bound, draw_setting, scales, set_scale, with_finite_counts


def draw(experiment: Experiment, panels: Sequence[Panel], path: Path) -> None:
    """Draw one plot per task, panel and metric, with the best setting of every method.

    A method has the same colour in all plots. Titles contain only the settings in which the tasks differ.
    """
    panels = [one for one in panels if one.settings]
    panels = [one for one in (restricted(one, experiment.drawn) for one in panels) if one.settings] or panels
    chosen = {one.name: one.best(experiment.metric) for one in panels}
    tasks = list(dict.fromkeys(task for own in chosen.values() for task in own))
    differing = [key for key, values in enumerate(zip(*tasks)) if len({*values}) > 1]
    methods = list(dict.fromkeys(one.name for panel in panels for one in panel.settings))
    metrics = (experiment.metric, *experiment.also)
    columns = (
        (2 if len(tasks) in (2, 4) else min(3, len(tasks))) if len(panels) == 1 else 1 + (len(tasks) > 3)
    )
    across, down = columns * len(panels), -(-len(tasks) // columns) * len(metrics)
    figure = Figure(figsize=(0.8 + 3.4 * across, 0.4 + 2.8 * down), dpi=100, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for number, task in enumerate(tasks):
        for row, metric in enumerate(metrics, number // columns * len(metrics)):
            cells = grid[row, number % columns * len(panels) :]
            for cell, panel in zip(cells, panels):
                draw_cell(cell, metric, chosen[panel.name].get(task, []), methods)
                words = [panel.name] if len(panels) > 1 else []
                title = task_title([task[one] for one in differing], [panel.keys[one] for one in differing])
                cell.set_title(", ".join([*words, title]).strip(", "), fontsize=10)
    for cell in grid.flat:
        if not cell.has_data():
            cell.remove()
    save(figure, path)


def draw_trends(claims: Sequence[Claim], panel: Panel, path: Path) -> None:
    """Draw one plot per claim: the mean value and its range over the seeds against the setting of the trend.

    The dashed line is the claim's formula, scaled to the mean of the values of the first method.
    """
    columns = min(3, len(claims))
    down = -(-len(claims) // columns)
    figure = Figure(figsize=(0.8 + 3.6 * columns, 0.4 + 3 * down), dpi=100, layout="constrained")
    grid = figure.subplots(down, columns, squeeze=False)
    for cell, claim in zip(grid.flat, claims):
        draw_trend(cell, claim, panel)
    for cell in grid.flat[len(claims) :]:
        cell.remove()
    save(figure, path)


def draw_trend(cell, claim: Claim, panel: Panel) -> None:
    for task, steps in tasks_of(claim, panel):
        along = [value(step[claim.subjects[0]], claim.trend["along"]) for step in steps]
        for method in (*claim.subjects, *claim.than):
            found = [[*values_by_seed(step[method], claim).values()] for step in steps]
            mean = np.array([10 ** np.mean(np.log10(one)) for one in found])
            spread = np.abs(np.array([[min(one), max(one)] for one in found]).T - mean)
            line = cell.errorbar(along, mean, spread, marker=".", capsize=2, lw=1, label=f"{method} {task}")
            if not claim.than:
                law = np.array([formula(step[method], claim) for step in steps])
                law = law * 10 ** np.mean(np.log10(mean / law))
                cell.plot(along, law, "--", color=line[0].get_color(), lw=1)
    cell.set_xscale("log")
    cell.set_yscale("log")
    cell.set_xticks(along, [f"{one:g}" for one in along], fontsize=8)
    cell.set_xticks([], minor=True)
    cell.set_title(claim.name.replace("_", " "), fontsize=10)
    cell.set_xlabel(claim.trend["along"].partition("|")[0].rpartition(".")[2], fontsize=8)
    cell.set_ylabel(
        claim.metric
        if claim.target is None
        else f"{claim.statistic.partition('_')[0]} to {claim.metric} {claim.target:g}"
    )
    cell.legend(fontsize=6, frameon=False)


def draw_cell(cell, metric: str, settings: Sequence[Setting], methods: Sequence[str]) -> None:
    """Draw curves with bands over the seeds, and the bounds of theorems."""
    settings = [one for one in settings if metric in one.metrics]
    if not settings:
        return
    scale = scales(settings, metric)[0]
    for one in settings:
        (label,), number = with_finite_counts([one], [one.name], [metric]), methods.index(one.name)
        draw_setting(cell, one, metric, AXES[0], number=number, log=scale == "log", label=label)
        draw_bound(cell, one, metric, number, f"bound of {one.name}")
    set_scale(cell, settings, metric, scale)
    cell.set_ylabel(metric)
    cell.set_xlabel("rounds", fontsize=8)
    cell.legend(fontsize=6, frameon=False)


def save(figure: Figure, path: Path) -> None:
    """Write a figure, in a new folder if necessary, without the version of matplotlib."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
