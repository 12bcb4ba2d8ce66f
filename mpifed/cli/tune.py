"""``mpifed tune``: a search for the best settings of every method, with comparable budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mpifed.base.errors import ConfigError
from mpifed.base.log import info
from mpifed.cli.errors import exit_with
from mpifed.cli.options import (
    JobCommand,
    allow_code_option,
    importing,
    is_quiet,
    job_argument,
    part_option,
    verbosity,
)
from mpifed.cli.output import echo, print_table
from mpifed.parallel.comm import collective_errors
from mpifed.parallel.world import world
from mpifed.running.signals import EXIT_RESUME, hold_signals

if TYPE_CHECKING:
    from mpifed.config.tuning import Tuning
    from mpifed.tuning.results import SearchResult
    from mpifed.tuning.tuner import Plan

__all__ = ["tune"]


@click.command(cls=JobCommand)
@job_argument("file")
@click.option("--list", "only_list", is_flag=True, help="Print the search space of every method.")
@part_option("tasks and methods")
@allow_code_option(lambda settings: settings["only_list"])
@verbosity
@hold_signals()
def tune(file, overrides, only_list, part):
    """Find the best settings of every method in the job FILE's [tune], with comparable budgets.

    \b
    mpifed tune JOB --list            print the search space and the budget
    mpifed tune JOB                   search, or continue after a stop
    mpirun -n 8 mpifed tune JOB       eight runs at a time, with the same result
    mpifed sweep runs/a/best.toml     run the best settings with new seeds
    mpifed report runs/a/best         compare the methods

    A setting of a method is searched if FILE has a list or a range { low = 1e-3, high = 1.0 } for it, or
    leaves a float out. Poor settings are dropped after a ninth or a third of the rounds; the best settings
    are run for all rounds with several seeds. They are chosen on validation data, never on test data. Writes
    best.toml and tried.csv to run.out.
    """
    with importing():
        from mpifed.config.grids import select_part
        from mpifed.config.tuning import tuning
        from mpifed.tuning.tuner import Interrupted, plan
        from mpifed.tuning.tuner import tune as search

        comm = world()
        with collective_errors(comm, ConfigError):
            job = tuning(file, list(overrides))
            select_part(list(job.studies), part)
    if only_list:
        plans = plan(job, comm)
        _print_space(job, plans) if comm.rank == 0 else None
        return
    try:
        results = search(job, comm, part)
    except Interrupted as stopped:
        info(str(stopped)) if comm.rank == 0 else None
        exit_with(EXIT_RESUME)
    if comm.rank == 0:
        _print_results(job, results)


def _print_space(tuning: Tuning, plans: Sequence[Plan]) -> None:
    """Print the search space of every method, the metric and the budget."""
    from mpifed.tuning.search import rung_rounds

    tasks = list(dict.fromkeys(study.task for study in tuning.studies if study.task))
    rows: list = []
    studies = [study for study in tuning.studies if study.task == tuning.studies[0].task]
    for study in studies:
        space = {key: str(domain) for key, domain in study.space.open.items()}
        space = space or {"": "nothing is searched: one run with each seed"}
        names = [f"{study.method} ({len(study.space.open)} searched)", *[""] * (len(space) - 1)]
        rows += [*zip(names, space, space.values()), None]
    print_table(("method", "setting", "searched"), rows)
    tune, rounds = tuning.tune, studies[0].rounds
    lengths = " / ".join(map(str, rung_rounds(rounds, tune.min_rounds)))
    share = ", times its number of searched settings / the least number" if tune.budget != "equal" else ""
    echo(
        f"\nmetric: {', '.join(dict.fromkeys(plan.metric for plan in plans))}"
        f"\nbudget of each method{' and task' if tasks else ''}: the oracle calls of {tune.runs} runs of "
        f"{rounds} rounds\nof the costliest method{share}; runs of {lengths} rounds; "
        f"{tune.seeds} seed(s) for the longest runs"
    )
    if tasks:
        echo(f"tasks: {'; '.join(tasks)}")


def _print_results(tuning: Tuning, results: Sequence[SearchResult | None]) -> None:
    """Print warnings and, unless -q is given, the best settings of every method and their cost."""
    from mpifed.tuning.results import BEST

    for study, result in zip(tuning.studies, results):
        for text in result.warnings if result else ():
            echo(f"mpifed: warning: {study.title}: {text}", err=True)
    if is_quiet():
        return
    tasks = any(study.task for study in tuning.studies)
    metrics = " / ".join(dict.fromkeys(result.metric for result in results if result))
    rows = []
    for study, result in zip(tuning.studies, results):
        row = ["not done yet", "", "", ""]
        if result is not None:
            settings = ", ".join(f"{key} = {value}" for key, value in result.settings.items())
            settings = settings if result.improves else "none is better than the starting point"
            calls = f"{result.spent:,} of {result.budget:,}"
            row = [settings, f"{result.value:.5g}", str(len(result.tried)), calls]
        searched = str(len(study.space.open))
        rows.append([*([study.task] if tasks else []), study.method, searched, *row])
    names = (*(["task"] if tasks else []), "method", "searched settings", "best settings")
    print_table((*names, metrics, "tried", "calls"), rows)
    echo(tuning.out / BEST)
