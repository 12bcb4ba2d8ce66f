"""The figure of an experiment: every task with tuned and with stated settings, next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from claims.entries import Experiment
from claims.panels import Panel, taken, task_title
from mpifed.report.comparison import Setting
from mpifed.report.figures import AXES, draw_bound, draw_setting, scales, set_scale, with_finite_counts


def draw(experiment: Experiment, panels: Sequence[Panel], path: Path) -> None:
    """Draw one plot per task, panel and metric, with the best setting of every method.

    A method has the same colour in all plots. Titles contain only the settings in which the tasks differ.
    """
    panels = [one for one in panels if one.settings]
    panels = [one for one in (taken(one, experiment.drawn) for one in panels) if one.settings] or panels
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
                _cell(cell, metric, chosen[panel.name].get(task, []), methods)
                words = [panel.name] if len(panels) > 1 else []
                title = task_title([task[one] for one in differing], [panel.keys[one] for one in differing])
                cell.set_title(", ".join([*words, title]).strip(", "), fontsize=10)
    for cell in grid.flat:
        if not cell.has_data():
            cell.remove()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


def _cell(cell, metric: str, settings: Sequence[Setting], methods: Sequence[str]) -> None:
    """Draw curves with bands over the seeds, and the bounds of theorems."""
    settings = [one for one in settings if metric in one.metrics]
    if not settings:
        return
    scale = scales(settings, metric)[0]
    for one in settings:
        (label,), number = with_finite_counts([one], [one.name], [metric]), methods.index(one.name)
        draw_setting(cell, one, metric, AXES[0], number, scale == "log", label=label)
        draw_bound(cell, one, metric, number, f"bound of {one.name}")
    set_scale(cell, settings, metric, scale)
    cell.set_ylabel(metric)
    cell.set_xlabel("rounds", fontsize=8)
    cell.legend(fontsize=6, frameon=False)
