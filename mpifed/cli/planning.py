"""What ``mpifed launch`` is to run: the job's settings, and the elements of a job array."""

from __future__ import annotations

from pathlib import Path

import click

from mpifed.config.grids import expand, folder_names, twice, variants
from mpifed.config.job import Config
from mpifed.config.tables import as_text, parse, read_table
from mpifed.core.errors import ConfigError
from mpifed.core.settings import flatten

__all__ = ["array_tasks", "planned"]


def planned(
    job: str, settings: list[str], axes: tuple[str, ...], parts: int | None
) -> tuple[Config, str, tuple, int, tuple[tuple[str, ...], ...]]:
    """A configuration to hold the sizes against, the folder of results, ``tasks``, ``parts`` and ``shares``
    of the batch job.
    """
    if "sweep" in read_table(job):
        if axes:
            raise click.UsageError(
                f"{job} has a [sweep]: --parts N shares its runs among the elements of a job array, "
                "--array is for other files"
            )
        runs, parts = variants(job, settings), parts or 1
        config = runs[0].config
        shares = tuple(tuple(run.name for run in runs[number::parts]) for number in range(parts))
        return config, str(Path(config.run.out).parent), (), parts, shares
    if parts:
        raise click.UsageError(
            f"--parts is for a job file with a [sweep], which {job} does not have: --array KEY=V1,V2,... "
            "makes an array"
        )
    config = Config.load(job, settings)
    tasks = tuple(array_tasks(axes, config.run.out)) if axes else ()
    for task in tasks:
        Config.load(job, [*settings, *task])
    names = tuple((Path(parse(task[-1].removeprefix("run.out="))).name,) for task in tasks)
    return config, config.run.out, tasks, 0, names


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
