"""``mpifed estimate``: estimates of the constants in the assumptions of theorems along a run."""

from __future__ import annotations

from pathlib import Path

import click

from mpifed.base.errors import ConfigError
from mpifed.cli.options import JobCommand, job_argument
from mpifed.cli.output import echo
from mpifed.parallel.comm import collective_errors
from mpifed.parallel.world import world

__all__ = ["estimate"]


@click.command(cls=JobCommand)
@job_argument("job")
@click.option(
    "--points",
    default=5,
    type=click.IntRange(1),
    help="Number of points of the run, evenly spaced.",
)
@click.option(
    "--samples",
    default=1000,
    type=click.IntRange(10),
    help="Stochastic gradients per client and point.",
)
@click.option(
    "--top",
    type=click.IntRange(2),
    help="Number of largest noise norms per client in the Hill estimator of the tail index.  [default: "
    "floor(sqrt(SAMPLES))]",
)
@click.option(
    "--iterations",
    default=20,
    type=click.IntRange(1),
    help="Maximum number of power iterations for L.",
)
@click.option(
    "--of",
    multiple=True,
    type=click.Choice(["L", "pl", "noise"]),
    help="Estimates to compute; may be repeated. `noise` is the cheapest.  [default: all]",
)
def estimate(job, overrides, points, samples, top, iterations, of):
    """Estimate Lipschitz and PL constants, noise, heterogeneity and tail indices along the run of JOB.

    The job is executed again, in one process or under mpirun. KEY=VALUE changes settings. Tables are printed,
    and assumptions.csv, assumptions.json and assumptions.png are written to the folder run.out.
    """
    from mpifed.config.job import Config
    from mpifed.diagnostics.assumptions import ALL, Options
    from mpifed.diagnostics.assumptions import estimate as estimate_job
    from mpifed.diagnostics.output import print_tables, write

    comm = world()
    if top is not None and top >= samples:
        raise click.UsageError(f"expected --top below --samples = {samples}, got {top}")
    with collective_errors(comm, ConfigError):
        config = Config.load(job, list(overrides))
        folder = Path(config.run.out)
        if comm.rank == 0:
            _prepare_folder(folder)
    estimates = estimate_job(comm, config, Options(points, samples, top, iterations, of or ALL))
    with collective_errors(comm, ConfigError):
        if comm.rank == 0:
            print_tables(estimates)
            for path in write(estimates, folder):
                echo(path)


def _prepare_folder(folder: Path) -> None:
    """Create the folder, and raise a ConfigError if a file of the user would be replaced."""
    from mpifed.storage.files import ASSUMPTION_FILES, expect_own

    try:
        folder.mkdir(parents=True, exist_ok=True)
        expect_own(folder / name for name in ASSUMPTION_FILES)
    except OSError as error:
        raise ConfigError(f"cannot write to run.out = {folder}: {error.strerror}") from None
