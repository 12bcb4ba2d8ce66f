"""The command line: ``mpifed`` or ``python -m mpifed``, alone or under mpirun / srun.

Exit codes: 0 success; 2 the job cannot run as written (settings, data, folders, an error in a method or a
problem); 3 non-finite values; 71 the launcher and the MPI library do not match; 75 the watchdog found no
progress; 85 stopped by a signal, after a checkpoint or before the run began, to be started again; 130 ended
by a second Ctrl-C; 141 the output is no longer read, as in ``| head``; 1 a rank failed and ended all ranks.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path

import click

from mpifed import __version__
from mpifed.base.errors import ConfigError
from mpifed.base.log import print_error, print_traceback
from mpifed.cli.completion import names
from mpifed.cli.completion import settings as keys
from mpifed.cli.entry import loading
from mpifed.cli.errors import RANK_VARIABLES, end, explain, is_explained, rank, spelled
from mpifed.cli.explaining import info, list_, schema
from mpifed.cli.export import export
from mpifed.cli.launch import launch
from mpifed.cli.measure import measure
from mpifed.cli.new import new
from mpifed.cli.options import report_option, verbosity
from mpifed.cli.output import echo, ends_quietly, noticed
from mpifed.cli.report import report
from mpifed.cli.status import status
from mpifed.cli.tune import tune
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.parallel.world import abort_all, world
from mpifed.running.signals import EXIT_RESUME, Stopped, early_signal, hold_signals, release_signals
from mpifed.storage.ownership import REPORT_FILES, expect_own

__all__ = ["main"]

#: Commands that a signal stops gracefully.
_RUNS = ("run", "resume", "sweep", "tune")


class _Commands(click.Group):
    """Commands that raise ``Unread`` before click would end them with code 1, which means a failed rank."""

    def make_context(self, *arguments, **settings):
        with noticed():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx):
        with noticed():
            return super().invoke(ctx)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mpifed")
@click.option("--traceback", "whole", is_flag=True, help="Show the whole traceback of an error.")
@click.pass_context
def cli(context, whole):
    """Federated minimax, variational-inequality and compositional optimisation.

    \b
    mpifed run jobs/digits_auc.toml                      one process
    mpirun -n 4 mpifed run jobs/digits_auc.toml          four ranks, clients spread over them
    mpifed run JOB rounds=20 algorithm.q=5 run.out=runs/a   with changes
    mpifed resume runs/a                                 after a stop, on any number of ranks
    mpifed status                                        the progress of the runs below this folder
    mpifed report runs                                   curves, tables and a page of all runs in a folder
    mpifed export runs/a --to model.safetensors          the trained network, for torch
    mpifed list; mpifed info AdaFGDA; mpifed info run    methods, problems and settings
    mpifed new job; mpifed new method; mpifed new problem   a file to start from
    mpifed tune JOB                                      the best settings of every method, at the same cost
    mpifed measure JOB                                   the constants of theorems, measured along its run
    """
    context.ensure_object(dict)["traceback"] = whole
    if context.invoked_subcommand not in _RUNS:
        release_signals()


@cli.command()
@click.argument("file", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=keys)
@click.option("--data-dir", help="Folder of the data files (else $MPIFED_DATA, else ../shared/data).")
@click.option(
    "--resume",
    "resume_",
    type=click.Choice(["auto", "never", "must"]),
    default="auto",
    show_default=True,
    help="Continue from a checkpoint of this job in run.out: if there is one, never, or always.",
)
@report_option
@verbosity
@hold_signals()
def run(file, overrides, data_dir, resume_, with_report):
    """Run the job FILE (TOML), with settings changed by KEY=VALUE.

    Keys are dotted: rounds=50, algorithm.name=FGDA, problem.partition.alpha=0.3, run.reduction=exact.
    Everything is checked before any work starts. Results go to the folder run.out: run.h5, checkpoints,
    report.html, curves.png, table.txt, and a log of each rank in log/.

    SIGUSR1, SIGTERM or Ctrl-C on any rank stop the run after the round in progress, with a checkpoint and
    exit code 85; the same command then continues. A second Ctrl-C ends it at once. Open MPI's mpirun kills
    its ranks right after Ctrl-C, which loses the work since the last checkpoint: send it SIGUSR1 instead.
    """
    with loading():
        from mpifed.config.job import Config
        from mpifed.config.tables import as_text
        from mpifed.running.run import run as run_job

    comm = _ranks()
    extra = [f"run.data_dir={as_text(data_dir)}"] if data_dir else []
    with collective_errors(comm, ConfigError):
        config = Config.load(file, [*overrides, *extra])
    _note_idle(comm, config.problem.clients)
    _carry_out(comm, lambda: run_job(config, comm, resume_), config.run.out if with_report else None)


@cli.command()
@click.argument("folder", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=keys)
@report_option
@verbosity
@hold_signals()
def resume(folder, overrides, with_report):
    """Continue the run in FOLDER from its newest sound checkpoint, on any number of ranks.

    KEY=VALUE changes settings, for example rounds=1000 to run longer.
    """
    with loading():
        from mpifed.running.run import resume as resume_job

    comm = _ranks()
    _carry_out(comm, lambda: resume_job(folder, overrides, comm), folder if with_report else None)


@cli.command()
@click.argument("file", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=keys)
@click.option(
    "--list",
    "only_list",
    is_flag=True,
    help="Print the names of the runs and end: they are not checked, none of their code is executed.",
)
@click.option(
    "--part",
    default="0/1",
    show_default=True,
    metavar="I/N",
    help="Every N-th run from the I-th (from 0), for an array of N jobs.",
)
@verbosity
@hold_signals()
def sweep(file, overrides, only_list, part):
    """Carry out all runs of the job FILE's [sweep], one after another, each in a folder of run.out.

    Finished runs are skipped, so that the same command continues after an interruption. `mpifed report` on
    the folder picks the best setting of every method.
    """
    with loading():
        from mpifed.config.grids import tables, taken, variants
        from mpifed.running.sweep import sweep as sweep_runs

    comm = _ranks()
    with collective_errors(comm, ConfigError):
        names = taken([*tables(file, list(overrides))], part)
        every = [] if only_list else variants(file, list(overrides))
    if only_list:  # without executing the code that the runs name
        echo("\n".join(names)) if comm.rank == 0 else None
        return
    runs = taken(every, part)
    try:
        outcome = sweep_runs(runs, comm, [one for one in every if one not in runs])
    except (Stopped, KeyboardInterrupt):
        end(EXIT_RESUME)
    if comm.rank == 0:
        echo(
            f"{outcome.done} runs done, {outcome.before} of them before, {outcome.diverged} ended in "
            "non-finite values"
        )


@cli.command()
@click.argument("name", shell_complete=names)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def check(name, settings):
    """Run the contract tests on a user-defined method or problem, ./file.py:Class.

    KEY=VALUE are its settings. Under mpirun the layout tests compare the ranks with a run in one process.
    """
    from mpifed.cli.check import check_class

    sys.exit(0 if check_class(name, list(settings), world()) else 1)


def _ranks() -> SerialComm:
    """All ranks, for a run; a signal that any of them has received so far ends all."""
    comm = world()
    number = early_signal(comm)
    if number:
        if comm.rank == 0:
            name = signal.Signals(number).name
            text = f"mpifed: {name} before the run began: nothing was done, the same command begins it"
            echo(text, err=True)
        end(EXIT_RESUME)
    return comm


def _note_idle(comm, clients: int) -> None:
    """Warn of ranks without clients."""
    if comm.rank == 0 and comm.size > clients:
        text = f"{comm.size} ranks for {clients} clients: {comm.size - clients} will have nothing to do"
        echo(f"mpifed: warning: {text}", err=True)


def _carry_out(comm, job, report_in: str | None) -> None:
    """Run a job; on rank 0 write a report into the folder ``report_in``, if given."""
    with collective_errors(comm, ValueError):
        if comm.rank == 0 and report_in is not None:
            expect_own(Path(report_in, name) for name in REPORT_FILES)
    try:
        result = job()
    except (Stopped, KeyboardInterrupt) as signalled:
        result = signalled.result
    except SystemExit as error:  # a rank must not leave while others wait for it
        raise RuntimeError(f"sys.exit({error.code}) was called in the middle of a run") from error
    if result.unfinished:
        end(EXIT_RESUME)
    if comm.rank == 0 and report_in is not None:
        from mpifed.report.report import report as write_report

        try:
            written = write_report([result.path.parent], result.path.parent)
        except (OSError, ValueError) as fault:
            raise click.UsageError(
                f"the run is done, but its report could not be written: {spelled(fault)}"
            ) from None
        echo("\n".join(map(str, written)))


for _command in (export, info, launch, list_, measure, new, report, schema, status, tune):
    cli.add_command(_command)


def _note_success() -> None:
    """Tell the batch script that the command succeeded, because not every launcher passes exit codes on.

    A file is removed, which works on a full disk.
    """
    mark = os.environ.get("MPIFED_UNFINISHED")
    if not mark or rank() != "0":
        return
    try:
        os.remove(mark)
    except OSError as fault:
        text = f"{mark} cannot be removed ({fault.strerror}): the batch script will report a failure"
        echo(f"mpifed: warning: {text}", err=True)


def _warned(message, category, filename, lineno, file=None, line=None) -> None:
    """Print a Python warning in Python's format."""
    print_error(warnings.formatwarning(message, category, filename, lineno, line).rstrip())


def main() -> None:
    """Entry point. An exception on one rank, or a call of sys.exit during a run, ends all ranks."""
    if any(name in os.environ for name in RANK_VARIABLES):
        os.environ["TERM"] = "dumb"  # mpirun gives its ranks a terminal, wherever their output goes
    if any(os.environ.get(name, "0") != "0" for name in RANK_VARIABLES):
        warnings.showwarning = lambda *_, **__: None  # rank 0 prints them, and the logs contain all
    else:
        warnings.showwarning = _warned
    sys.excepthook = print_traceback
    with ends_quietly(abort_all):
        settings = {"traceback": False}
        try:
            cli(standalone_mode=False, obj=settings)
            _note_success()
        except SystemExit as leaving:
            if not leaving.code:
                _note_success()
            raise
        except Exception as error:
            if not is_explained(error):
                raise
            if settings["traceback"]:
                print_traceback(*sys.exc_info())
            explain(error)
