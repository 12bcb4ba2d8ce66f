"""Who holds what: the samples of every class on every client of a job, as a table and as a figure."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.table import Table

from mpifed.base.console import Console
from mpifed.base.log import drawn
from mpifed.config.job import Config, ConfigError
from mpifed.storage.atomic import writing
from mpifed.storage.ownership import MADE_BY

__all__ = ["Holdings", "holdings", "title", "print_holdings", "draw", "show"]

#: Most classes that get a column or an entry of the legend each, and most clients that get a row each.
COLUMNS, ROWS = 12, 40


@dataclass(frozen=True, eq=False)
class Holdings:
    """Samples by client and class ``[N, classes]``, and the classes' names. One class stands for samples
    without any."""

    title: str
    counts: np.ndarray
    names: list[str]


def holdings(config: Config) -> Holdings:
    """Prepare the job's problem as a run does, and count.

    Raises:
        ConfigError: the problem's data do not fit or cannot be read, or it has none.
    """
    problem = config.problem
    try:
        problem.prepare(config.seed, config.run.data_dir)
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    found = problem.class_counts()
    if found is None and not problem.client_data(0):
        raise ConfigError(f"{type(problem).__name__} makes its samples as it goes: clients hold no data")
    counts, names = found or (
        np.array([[problem.client_size(client)] for client in range(problem.clients)]),
        ["samples"],
    )
    return Holdings(title(config.table()), counts, names)


def show(config: Config, path: Path) -> None:
    """Print the holdings of a job, and draw them into the file ``path``.

    Raises:
        ConfigError: as for :func:`holdings`, or the file cannot be written.
    """
    held = holdings(config)
    print_holdings(held)
    with writing(path) as temporary:
        draw(held, temporary)


def title(config: dict) -> str:
    """The problem, its data and who gets what, from the table of a job's settings."""
    settings = config["problem"]
    words = [_called(settings[key]) for key in ("name", "dataset") if key in settings]
    if isinstance(partition := settings.get("partition"), dict):
        options = ", ".join(f"{key} = {value}" for key, value in partition.items() if key != "name")
        words.append(f"{partition['name']} ({options})" if options else partition["name"])
    return ", ".join([*words, f"{settings['clients']} clients", f"seed {config['seed']}"])


def _called(value) -> str:
    """A name, or of a table of settings the file that it is about."""
    if not isinstance(value, dict):
        return str(value)
    return Path(next(value[key] for key in ("file", "path", "name") if key in value)).name


def print_holdings(held: Holdings, console: Console | None = None) -> None:
    """Print one row a client, with a column a class where there are not too many of either, and totals."""
    console = console or Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 120)
    counts, sizes = held.counts, held.counts.sum(axis=1)
    wide = 1 < len(held.names) <= COLUMNS
    table = Table(title=held.title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    columns = held.names if wide else ["classes", "largest class %"] if len(held.names) > 1 else []
    for column in ("client", "samples", *columns):
        table.add_column(column, justify="right", overflow="fold")
    shown = (
        range(len(counts))
        if len(counts) <= ROWS
        else [*range(ROWS // 2), *range(len(counts) - ROWS // 2, len(counts))]
    )
    for place, client in enumerate(shown):
        if place and client != shown[place - 1] + 1:
            table.add_row("...")
        table.add_row(str(client), *_cells(counts[client], wide, len(columns)))
    table.add_section()
    table.add_row("all", *_cells(counts.sum(axis=0), wide, len(columns)))
    console.print(table)
    console.print(f"samples a client: {sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}")


def _cells(counts: np.ndarray, wide: bool, columns: int) -> list[str]:
    numbers = counts if wide else [np.count_nonzero(counts), 100 * counts.max() / max(counts.sum(), 1)]
    return [str(counts.sum()), *(f"{number:.0f}" for number in [*numbers][:columns])]


def draw(held: Holdings, file: Path | BinaryIO) -> None:
    """Write a PNG, to a path or an open file, with one bar a client, stacked from its samples of each
    class."""
    counts = held.counts
    clients, classes = counts.shape
    figure = Figure(
        figsize=(min(14, 5 + 0.25 * clients), 4.5), dpi=150, layout="constrained", facecolor="white"
    )
    axes = figure.subplots()
    colours = colormaps["tab10" if classes <= 10 else "turbo"].resampled(
        max(classes, 10 if classes <= 10 else 1)
    )
    tops = np.concatenate([np.zeros((clients, 1), int), np.cumsum(counts, axis=1)], axis=1)
    left, right = np.arange(clients) - 0.4, np.arange(clients) + 0.4
    for k, name in enumerate(
        held.names
    ):  # one collection a class: a patch a bar would take minutes for large jobs
        low, high = tops[:, k], tops[:, k + 1]
        corners = np.stack([left, low, left, high, right, high, right, low], axis=1).reshape(-1, 4, 2)
        axes.add_collection(PolyCollection(corners, facecolors=[colours(k)], linewidths=0, label=drawn(name)))
    axes.set_xlim(-0.7, clients - 0.3)
    axes.set_ylim(0, 1.04 * max(tops[:, -1].max(), 1))
    axes.xaxis.set_major_locator(MaxNLocator(min(clients + 1, 20), steps=[1, 2, 5, 10], integer=True))
    axes.set(xlabel="client", ylabel="samples", title=drawn(held.title))
    axes.title.set(fontsize=9, wrap=True)
    axes.spines[["top", "right"]].set_visible(False)
    if 1 < classes <= COLUMNS:
        figure.legend(
            *(part[::-1] for part in axes.get_legend_handles_labels()),
            title="class",
            loc="outside right center",
            frameon=False,
        )
    elif classes > 1:
        figure.colorbar(ScalarMappable(Normalize(0, classes - 1), colours), ax=axes, label="class")
    figure.savefig(file, format="png", metadata=MADE_BY)
