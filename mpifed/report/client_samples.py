"""Number of samples per client and class, as a table and as a figure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
from mpifed.base.log import escape_control, escape_mathtext
from mpifed.base.plugins import data_folder
from mpifed.config.job import Config, ConfigError
from mpifed.core.problem import listed_clients, sizes_of
from mpifed.storage.files import PNG_METADATA, is_figure, writing

__all__ = [
    "ClassCounts",
    "class_counts",
    "title",
    "print_counts",
    "draw_class_counts",
    "prepared_class_counts",
    "write_figure",
]

#: Maximum number of classes shown as columns or in the legend, and of clients shown as rows.
MAX_COLUMNS, MAX_ROWS = 12, 40


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Number of samples by client and class, and the names of the classes.

    Attributes:
        counts: samples of all clients or of evenly spaced ones (:func:`listed_clients`), ``[C, classes]``.
            Samples without labels count as one class.
        total: number N of all clients.
        clients: names of the clients, if they have names.
    """

    title: str
    counts: np.ndarray
    names: list[str]
    total: int
    clients: Sequence[str] = ()


def class_counts(config: Config) -> ClassCounts | None:
    """Prepare the job's problem as a run does, and count its samples; ``None`` if it generates them.

    Raises:
        ConfigError: the data cannot be read or partitioned.
    """
    try:
        config.problem.prepare(config.seed, data_folder(type(config.problem), config.run.data_dir))
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    return prepared_class_counts(config)


def prepared_class_counts(config: Config) -> ClassCounts | None:
    """Count the samples of the job's problem, which is prepared; ``None`` if it generates them."""
    problem = config.problem
    counted = problem.class_counts()
    if counted is None and not problem.client_data(0):
        return None
    counts, names = counted or (
        sizes_of(problem, np.arange(problem.clients))[:, None],
        ["samples"],
    )
    clients = getattr(problem, "client_names", ())
    return ClassCounts(title(config.table()), counts, names, len(counts), clients)


def write_figure(samples: ClassCounts, path: Path) -> None:
    """Draw class counts into the file ``path``.

    Raises:
        ConfigError: the file cannot be written.
    """
    with writing(path, is_figure) as temporary:
        draw_class_counts(samples, temporary)


def title(config: dict) -> str:
    """The problem, its data and partition, from the table of a job's settings."""
    settings = config["problem"]
    words = [_name(settings[key]) for key in ("name", "dataset") if key in settings]
    if isinstance(partition := settings.get("partition"), dict):
        options = ", ".join(f"{key} = {value}" for key, value in partition.items() if key != "name")
        words.append(f"{partition['name']} ({options})" if options else partition["name"])
    return ", ".join([*words, f"{settings['clients']} clients", f"seed {config['seed']}"])


def _name(value) -> str:
    """The name in a setting; the file's name for a table about a file."""
    if not isinstance(value, dict):
        return str(value)
    return Path(next(value[key] for key in ("file", "path", "name") if key in value)).name


def print_counts(samples: ClassCounts) -> None:
    """Print one row per client, with one column per class unless there are too many, and totals."""
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 120)
    counts, sizes = samples.counts, samples.counts.sum(axis=1)
    wide = 1 < len(samples.names) <= MAX_COLUMNS
    table = Table(title=samples.title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    names = [escape_control(name, line=True) for name in samples.names]
    columns = names if wide else ["classes", "largest class %"] if len(samples.names) > 1 else []
    for column in ("client", "samples", *columns):
        table.add_column(column, justify="right", overflow="fold")
    for client in range(len(counts)):
        if len(counts) <= MAX_ROWS or not MAX_ROWS // 2 <= client < len(counts) - MAX_ROWS // 2:
            name = escape_control(samples.clients[client], line=True) if samples.clients else ""
            table.add_row(f"{client} {name}".rstrip(), *_cells(counts[client], wide, len(columns)))
        elif client == MAX_ROWS // 2:
            table.add_row("...")
    table.add_section()
    table.add_row("all", *_cells(counts.sum(axis=0), wide, len(columns)))
    console.print(table)
    console.print(f"samples per client: {sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}")


def _cells(counts: np.ndarray, wide: bool, columns: int) -> list[str]:
    numbers = counts if wide else [np.count_nonzero(counts), 100 * counts.max() / max(counts.sum(), 1)]
    return [str(counts.sum()), *(f"{number:.0f}" for number in [*numbers][:columns])]


def draw_class_counts(samples: ClassCounts, file: Path | BinaryIO) -> None:
    """Write a PNG to a path or an open file: one bar per client, stacked from its samples of each class.

    If there are many clients, evenly spaced ones are drawn.
    """
    counts = samples.counts[listed_clients(len(samples.counts))]
    (clients, classes), last = counts.shape, samples.total - 1
    size = (min(14, 5 + 0.25 * clients), 4.5)
    figure = Figure(figsize=size, dpi=150, layout="constrained", facecolor="white")
    axes = figure.subplots()
    colours = colormaps["tab10" if classes <= 10 else "turbo"].resampled(max(classes, 10))
    tops = np.concatenate([np.zeros((clients, 1), int), np.cumsum(counts, axis=1)], axis=1)
    numbers, half = listed_clients(samples.total, clients), 0.4 * max(1, last / max(clients - 1, 1))
    left, right = numbers - half, numbers + half
    for k, name in enumerate(samples.names):  # a collection per class; a patch per bar would take minutes
        low, high = tops[:, k], tops[:, k + 1]
        corners = np.stack([left, low, left, high, right, high, right, low], axis=1).reshape(-1, 4, 2)
        label = escape_mathtext(name)
        axes.add_collection(PolyCollection(corners, facecolors=[colours(k)], linewidths=0, label=label))
    axes.set_xlim(-half - 0.3, last + half + 0.3)
    axes.set_ylim(0, 1.04 * max(tops[:, -1].max(), 1))
    axes.xaxis.set_major_locator(MaxNLocator(min(clients + 1, 20), steps=[1, 2, 5, 10], integer=True))
    note = f" ({clients:,} of {samples.total:,}, evenly spaced)" if clients < samples.total else ""
    axes.set(xlabel=f"client{note}", ylabel="samples", title=escape_mathtext(samples.title))
    axes.title.set(fontsize=9, wrap=True)
    axes.spines[["top", "right"]].set_visible(False)
    if 1 < classes <= MAX_COLUMNS:
        handles, names = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], names[::-1], title="class", loc="outside right center", frameon=False)
    elif classes > 1:
        figure.colorbar(ScalarMappable(Normalize(0, classes - 1), colours), ax=axes, label="class")
    figure.savefig(file, format="png", metadata=PNG_METADATA)
