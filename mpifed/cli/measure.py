"""The command ``mpifed measure``: what the assumptions of theorems look like along a job's run."""

from __future__ import annotations

from pathlib import Path

import click

from mpifed.base.errors import ConfigError
from mpifed.cli.output import echo
from mpifed.parallel.comm import collective_errors
from mpifed.parallel.world import world

__all__ = ["measure"]


@click.command()
@click.argument("job", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--points",
    default=5,
    show_default=True,
    type=click.IntRange(1),
    help="Points of the run, evenly from the start to the end.",
)
@click.option(
    "--samples",
    default=1000,
    show_default=True,
    type=click.IntRange(10),
    help="Stochastic gradients of each client at each of them.",
)
@click.option(
    "--top",
    type=click.IntRange(2),
    help="How many of the longest of a client's noise tell its tail index; by default the root of SAMPLES.",
)
@click.option(
    "--iterations",
    default=20,
    show_default=True,
    type=click.IntRange(1),
    help="Steps of the power iteration for L.",
)
@click.option(
    "--of",
    multiple=True,
    type=click.Choice(["L", "pl", "noise"]),
    help="What is measured, several times for several; by default all. The noise alone is the cheapest.",
)
def measure(job, overrides, points, samples, top, iterations, of):
    """Estimate along the run of JOB what theorems assume: L, the PL constant, noise, heterogeneity, tails.

    The job is executed again, with settings changed by KEY=VALUE, with or without mpirun. Tables are
    printed; assumptions.csv, assumptions.json and assumptions.png go to the folder run.out.
    """
    from mpifed.config.job import Config
    from mpifed.diagnostics.assumptions import ALL, Options
    from mpifed.diagnostics.assumptions import measure as measure_job

    comm = world()
    if top is not None and top >= samples:
        raise click.UsageError(f"expected --top below --samples = {samples}, got {top}")
    with collective_errors(comm, ConfigError):
        config = Config.load(job, list(overrides))
    folder = Path(config.run.out)
    with collective_errors(comm, ConfigError):
        if comm.rank == 0:
            _expect_places(folder)
    found = measure_job(comm, config, Options(points, samples, top, iterations, of or ALL))
    with collective_errors(comm, ConfigError):
        if comm.rank == 0:
            _show(found, folder)


def _expect_places(folder: Path) -> None:
    """Make the folder, and hold the files that are to be written against what lies there."""
    from mpifed.storage.ownership import ASSUMPTION_FILES, claim

    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim(folder, ASSUMPTION_FILES)
    except OSError as fault:
        raise ConfigError(f"cannot write to run.out = {folder}: {fault.strerror}") from None
    except ValueError as fault:
        raise ConfigError(str(fault)) from None


def _show(found: dict, folder: Path) -> None:
    from mpifed.diagnostics.output import print_tables, write

    print_tables(found)
    for path in write(found, folder):
        echo(path)
