"""The command line: ``mpifed`` or ``python -m mpifed``, alone or under mpirun / srun.

Exit codes: 0 done; 2 the job cannot run as written (settings, data, folders); 3 non-finite values; 71 the launcher and the
MPI library do not fit; 1 a rank failed and took the others with it.
"""

from __future__ import annotations

import json
import os
import sys
import warnings

import click

from mpifed import __version__
from mpifed.comm import EXIT_LAUNCH, CollectiveError, LaunchError, agree, world

__all__ = ["main"]

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mpifed")
def cli():
    """Federated minimax, variational-inequality and compositional optimisation.

    \b
    mpifed run jobs/digits_auc.toml                      one process
    mpirun -n 4 mpifed run jobs/digits_auc.toml          four ranks, clients spread over them
    mpifed run JOB rounds=20 algorithm.q=5 run.out=runs/a   with changes
    mpifed resume runs/a                                 after a stop, on any number of ranks
    mpifed report runs/a runs/b                          curves and a table
    mpifed list; mpifed info AdaFGDA                     what there is, and what it takes
    """


@cli.command()
@click.argument("file", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--data-dir", help="Folder of the data files (else $MPIFED_DATA, else ../shared/data).")
def run(file, overrides, data_dir):
    """Run the job FILE (TOML), with settings changed by KEY=VALUE.

    Keys are dotted: rounds=50, algorithm.name=FGDA, problem.partition.alpha=0.3, run.reduction=exact. Everything is checked
    before any work starts. Results go to the folder run.out: run.h5, checkpoints, curves.png, table.txt.
    """
    from mpifed.config import Config, ConfigError
    from mpifed.run import run as run_job

    comm = world()
    config, error = None, None
    try:
        extra = [f"run.data_dir={json.dumps(data_dir)}"] if data_dir else []
        config = Config.load(file, [*overrides, *extra])
    except ConfigError as fault:
        error = str(fault)
    agree(comm, error)
    _carry_out(comm, lambda: run_job(config, comm))


@cli.command()
@click.argument("folder", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def resume(folder, overrides):
    """Continue the run in FOLDER from its newest sound checkpoint, on any number of ranks.

    KEY=VALUE changes settings, for example rounds=1000 to run longer.
    """
    from mpifed.run import resume as resume_job

    comm = world()
    _carry_out(comm, lambda: resume_job(folder, overrides, comm))


@cli.command("list")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def list_(as_json):
    """List methods, problems, data sets, models, partitions, matrices, schedules, noises and sets."""
    from mpifed.catalogue import catalogue, print_catalogue

    click.echo(json.dumps(catalogue(), indent=2)) if as_json else print_catalogue()


@cli.command()
@click.argument("name")
def info(name):
    """Explain NAME: settings with role and default, records, phases, cost per round, source, readings.

    NAME is anything that `mpifed list` shows, or your own ./file.py:Class.
    """
    from mpifed.catalogue import print_info

    print_info(name)


@cli.command()
@click.argument("name")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def check(name, settings):
    """Run the contract tests on your own method or problem, ./file.py:Class.

    KEY=VALUE are its settings. Under mpirun the layout tests compare the ranks with a run in one process.
    """
    from mpifed.check import check_class

    sys.exit(0 if check_class(name, list(settings), world()) else 1)


@cli.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path())
@click.option("--out", default="report", show_default=True, help="Folder for the figures and tables.")
def report(runs, out):
    """Draw the curves of RUNS (folders) against rounds, oracle calls, bytes and seconds, and print a table."""
    from mpifed.report import report as write_report

    try:
        for path in write_report(runs, out):
            click.echo(path)
    except ValueError as fault:
        raise click.ClickException(str(fault)) from None


def _carry_out(comm, job) -> None:
    """Run a job; on rank 0 draw its curves and print its table."""
    try:
        result = job()
    except SystemExit as error:  # one rank must not leave while the others wait for it
        raise RuntimeError(f"sys.exit({error.code}) was called in the middle of a run") from error
    if comm.rank == 0:
        from mpifed.report import report as write_report

        for path in write_report([result.path.parent], result.path.parent):
            click.echo(path)


def _fail(message: str, code: int):
    """End with ``code``; only the first rank speaks."""
    rank = next((os.environ[name] for name in _RANK_VARIABLES if name in os.environ), "0")
    if rank == "0":
        sys.stdout.flush()
        click.echo(f"mpifed: {message}", err=True)
    sys.exit(code)


def main() -> None:
    """Entry point. An exception on one rank, or a call of sys.exit in the middle of a run, ends all ranks."""
    if any(os.environ.get(name, "0") != "0" for name in _RANK_VARIABLES):
        warnings.simplefilter("ignore")  # rank 0 shows them
    try:
        cli(standalone_mode=False)
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except LaunchError as error:
        _fail(str(error), EXIT_LAUNCH)
    except CollectiveError as error:
        from mpifed.simulation import NonFiniteError

        _fail(str(error), 3 if isinstance(error, NonFiniteError) else 2)
    except ValueError as error:
        from mpifed.config import ConfigError

        if not isinstance(error, ConfigError):
            raise
        _fail(str(error), 2)


if __name__ == "__main__":
    main()
