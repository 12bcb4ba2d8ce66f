"""What ``mpifed launch`` is to run: the job's settings, and the elements of a job array."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from mpifed.config.grids import expand, folder_names, twice, variants
from mpifed.config.job import Config
from mpifed.config.tables import as_text, parse, read_table
from mpifed.config.tuning import tuning
from mpifed.core.errors import ConfigError
from mpifed.core.settings import flatten

__all__ = ["Planned", "array_tasks", "planned"]


class Planned(NamedTuple):
    """A configuration to hold the sizes against, the folder of results, and of the batch job ``verb``,
    ``tasks``, ``parts`` and ``shares``.
    """

    config: Config
    out: str
    verb: str = "run"
    tasks: tuple[tuple[str, ...], ...] = ()
    parts: int = 0
    shares: tuple[tuple[str, ...], ...] = ()


def planned(job: str, settings: list[str], axes: tuple[str, ...], parts: int | None) -> Planned:
    """What a job file is launched as: a run, or one for each value of ``axes``, a sweep, or a search."""
    section = next((name for name in ("sweep", "tune") if name in read_table(job)), None)
    if section and axes:
        raise click.UsageError(
            f"{job} has a [{section}]: --parts N shares its runs among the elements of a job array, "
            "--array is for other files"
        )
    if section == "tune":
        search = tuning(job, settings)
        return Planned(search.config, str(search.out), "tune", parts=parts or 1)
    if section:
        runs, parts = variants(job, settings), parts or 1
        config = runs[0].config
        shares = tuple(tuple(run.name for run in runs[number::parts]) for number in range(parts))
        return Planned(config, str(Path(config.run.out).parent), "sweep", parts=parts, shares=shares)
    if parts:
        raise click.UsageError(
            f"--parts is for a job file with a [sweep] or a [tune], which {job} does not have: --array "
            "KEY=V1,V2,... makes an array"
        )
    config = Config.load(job, settings)
    tasks = tuple(array_tasks(axes, config.run.out)) if axes else ()
    for task in tasks:
        Config.load(job, [*settings, *task])
    names = tuple((Path(parse(task[-1].removeprefix("run.out="))).name,) for task in tasks)
    return Planned(config, config.run.out, tasks=tasks, shares=names)


def array_tasks(axes: list[str], out: str) -> list[tuple[str, ...]]:
    """All combinations of ``key=value,value,...``, each with a folder of its own below ``out``.

    Raises:
        ConfigError: an axis is not of this form, or two combinations would share a folder.
    """
    choices = {}
    for axis in axes:
        key, equals, text = axis.partition("=")
        values = [value.strip() for value in _values(text)]
        if not equals or not key or not all(values):
            raise ConfigError(f"--array takes KEY=VALUE,VALUE,..., e.g. seed=0,1,2, got {axis!r}")
        if key in choices:
            raise ConfigError(
                f"--array names {key} twice: give all of its values at once, {key}=VALUE,VALUE,..."
            )
        choices[key] = values
    tasks = expand(choices)
    names = folder_names([flatten({key: parse(text) for key, text in task.items()}) for task in tasks])
    if twice(names):
        raise ConfigError(f"--array names the same run twice: {', '.join(axes)}")
    return [
        (*(f"{key}={text}" for key, text in task.items()), f"run.out={as_text(str(Path(out) / name))}")
        for task, name in zip(tasks, names)
    ]


def _values(text: str) -> list[str]:
    """``text`` split at commas outside quotes and brackets; empty where one of these stays open."""
    values, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        if character == "," and not quote and not depth:
            values.append("")
        else:
            values[-1] += character
    return [""] if quote or depth else values
