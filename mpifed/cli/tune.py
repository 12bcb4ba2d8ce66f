"""``mpifed tune``: the best settings of every method, found at the same cost."""

from __future__ import annotations

import click

from mpifed.base.errors import ConfigError
from mpifed.base.log import info
from mpifed.cli.completion import settings as keys
from mpifed.cli.entry import loading
from mpifed.cli.errors import end
from mpifed.cli.options import looking, verbosity
from mpifed.parallel.comm import collective_errors
from mpifed.parallel.world import world
from mpifed.running.signals import EXIT_RESUME, hold_signals

__all__ = ["tune"]


@click.command()
@click.argument("file", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=keys)
@click.option("--list", "only_list", is_flag=True, help="Print what is open in every method, and end.")
@click.option(
    "--part",
    default="0/1",
    show_default=True,
    metavar="I/N",
    help="Every N-th task and method from the I-th (from 0), for an array of N jobs.",
)
@looking(lambda settings: settings["only_list"])
@verbosity
@hold_signals()
def tune(file, overrides, only_list, part):
    """Find the best settings of every method in the job FILE's [tune], at the same cost for each.

    \b
    mpifed tune jobs/papers/auc_mnist.toml --list     what is open, in which ranges, and the budget
    mpifed tune jobs/papers/auc_mnist.toml            search; the same command goes on after a stop
    mpirun -n 8 mpifed tune JOB                          runs side by side, with the same result
    mpifed sweep runs/papers/auc_mnist/best.toml      the best of each, on seeds that chose nothing
    mpifed report runs/papers/auc_mnist/best          and compared

    Settings of a method are searched where FILE has a list, a range { low = 1e-3, high = 1.0 }, or leaves a
    float out. What does badly after a ninth of the rounds goes no further; the best end with all rounds and
    several seeds. Validation data choose, never test data. Writes best.toml and tried.csv into run.out.
    """
    with loading():
        from mpifed.cli.tune_table import described, results
        from mpifed.config.grids import taken
        from mpifed.config.tuning import tuning
        from mpifed.tuning.tuner import Interrupted
        from mpifed.tuning.tuner import tune as search

    comm = world()
    with collective_errors(comm, ConfigError):
        job = tuning(file, list(overrides))
        taken(list(job.cells), part)
    if only_list:
        described(job) if comm.rank == 0 else None
        return
    try:
        found = search(job, comm, part)
    except Interrupted as stopped:
        info(str(stopped)) if comm.rank == 0 else None
        end(EXIT_RESUME)
    if comm.rank == 0:
        results(job, found)
