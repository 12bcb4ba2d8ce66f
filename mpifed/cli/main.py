"""The command line: ``mpifed`` or ``python -m mpifed``, alone or under mpirun / srun.

Exit codes: 0 success; 2 the job cannot run as written (settings, data, folders, an error in a method or a
problem); 3 non-finite values; 71 there is no MPI library, or the launcher does not match it; 75 the watchdog
found no progress; 85 stopped by a signal, after a checkpoint or before the run began, and the same command
continues; 130 ended by a second Ctrl-C; 1 a rank failed and ended all, the output was closed as in
``| head``, or ``check`` or ``selftest`` found an error.
"""

from __future__ import annotations

import io
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import click

from mpifed import __version__
from mpifed.base.errors import ConfigError, MissingExtra
from mpifed.base.log import print_error, print_traceback
from mpifed.cli.errors import (
    RANK_VARIABLES,
    describe,
    exit_with,
    is_user_error,
    launcher_rank,
    report_and_exit,
)
from mpifed.cli.estimate import estimate
from mpifed.cli.export import export
from mpifed.cli.info import info, list_, schema
from mpifed.cli.launch import idle_ranks, launch
from mpifed.cli.new import new
from mpifed.cli.options import (
    JobCommand,
    complete_name,
    importing,
    is_quiet,
    job_argument,
    part_option,
    report_option,
    verbosity,
)
from mpifed.cli.output import echo
from mpifed.cli.report import report
from mpifed.cli.selftest import selftest
from mpifed.cli.status import status
from mpifed.cli.tune import tune
from mpifed.parallel.comm import SerialComm, collective_errors
from mpifed.parallel.world import world
from mpifed.running.signals import EXIT_RESUME, Stopped, early_signal, hold_signals, release_signals
from mpifed.storage.files import REPORT_FILES, expect_own

__all__ = ["main"]

#: Commands that a signal stops gracefully.
_RUNS = ("run", "resume", "sweep", "tune")


class _Commands(click.Group):
    def resolve_command(self, ctx, args):
        if args[0].endswith(".toml"):
            raise click.UsageError(
                f"expected a command, got a job file: {shlex.join(['mpifed', 'run', *args])}"
            )
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="mpifed")
@click.option("--traceback", "whole", is_flag=True, help="Print the whole traceback of an error.")
@click.pass_context
def cli(context, whole):
    """Federated minimax, variational-inequality, compositional and bilevel optimisation.

    \b
    mpifed selftest                    test the installation
    mpifed run JOB.toml                one process
    mpirun -n 4 mpifed run JOB.toml    four ranks, which share the clients
    mpifed run JOB.toml rounds=20 algorithm.q=5 run.out=runs/a   other settings
    mpifed resume runs/a               continue, on any number of ranks
    mpifed status                      progress of the runs below this folder
    mpifed report runs                 compare all runs in a folder
    mpifed export runs/a --to a.safetensors   the trained network, for torch
    mpifed list                        methods, problems and other names
    mpifed info AdaFGDA                a method, a problem or a setting
    mpifed new job                     a template, also of a method or problem
    mpifed tune JOB.toml               the best settings of every method
    mpifed estimate JOB.toml           estimates of constants in theorems
    """
    context.ensure_object(dict)["traceback"] = whole
    try:
        os.getcwd()
    except FileNotFoundError:  # MKL would end the process with a message about its own files
        raise click.UsageError("the current folder was removed: change to another folder") from None
    if context.invoked_subcommand not in _RUNS:
        release_signals()


@cli.command(cls=JobCommand)
@job_argument("file")
@click.option("--data-dir", help="Folder of the data files.  [default: $MPIFED_DATA or ../shared/data]")
@click.option(
    "--resume",
    "resume_",
    type=click.Choice(["auto", "never", "must"]),
    default="auto",
    help="Continue from a checkpoint in run.out: if there is one, never, or fail if there is none.",
)
@report_option
@verbosity
@hold_signals()
def run(file, overrides, data_dir, resume_, with_report):
    """Run the job FILE (TOML). KEY=VALUE changes settings.

    Keys are dotted: rounds=50, algorithm.name=FGDA, problem.partition.alpha=0.3, run.reduction=exact. The
    whole job is validated before the first round. Results are written to the folder run.out: run.h5,
    checkpoints, report.html, curves.png, table.txt, and a log of each rank in log/.

    SIGUSR1, SIGTERM or Ctrl-C on any rank stop the run after the current round, with a checkpoint and exit
    code 85; the same command then continues. A second Ctrl-C ends the run at once. Open MPI's mpirun kills
    its ranks right after Ctrl-C, which loses the work since the last checkpoint: send it SIGUSR1 instead.
    """
    with importing():
        from mpifed.config.job import Config
        from mpifed.config.tables import as_text
        from mpifed.running.run import run as run_job

        comm = _ranks()
        data_dir_override = [f"run.data_dir={as_text(data_dir)}"] if data_dir else []
        with collective_errors(comm, ConfigError):
            config = Config.load(file, [*overrides, *data_dir_override])
    _warn_idle(comm, config.problem.clients)
    _execute(comm, lambda: run_job(config, comm, resume_), config.run.out if with_report else None)


@cli.command(cls=JobCommand)
@job_argument("folder")
@report_option
@verbosity
@hold_signals()
def resume(folder, overrides, with_report):
    """Continue the run in FOLDER from its newest valid checkpoint, on any number of ranks.

    KEY=VALUE changes settings, for example rounds=1000 for a longer run.
    """
    with importing():
        from mpifed.running.run import resume as resume_job

        comm = _ranks()
    _execute(comm, lambda: resume_job(folder, overrides, comm), folder if with_report else None)


@cli.command(cls=JobCommand)
@job_argument("file")
@click.option(
    "--list",
    "only_list",
    is_flag=True,
    help="Print the names of the runs, without validating them or executing their code.",
)
@part_option("runs")
@verbosity
@hold_signals()
def sweep(file, overrides, only_list, part):
    """Run all combinations of settings in the job FILE's [sweep], each in its own folder below run.out.

    Finished runs are skipped, so the same command continues after an interruption. `mpifed report` on the
    folder selects the best setting of every method.
    """
    with importing():
        from mpifed.config.grids import select_part, variant_tables, variants
        from mpifed.running.run import sweep as sweep_runs

        comm = _ranks()
        with collective_errors(comm, ConfigError):
            names = select_part([*variant_tables(file, list(overrides))], part)
            all_runs = [] if only_list else variants(file, list(overrides))
    if only_list:
        echo("\n".join(names)) if comm.rank == 0 else None
        return
    runs = select_part(all_runs, part)
    try:
        outcome = sweep_runs(runs, comm, [variant for variant in all_runs if variant not in runs])
    except (Stopped, KeyboardInterrupt):
        exit_with(EXIT_RESUME)
    if comm.rank == 0 and not is_quiet():
        echo(
            f"{outcome.done} runs are finished, {outcome.before} of them before this command; "
            f"{outcome.diverged} ended in non-finite values"
        )


@cli.command(cls=JobCommand)
@click.argument("name", shell_complete=complete_name)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def check(name, settings):
    """Test whether a user-defined method or problem, ./file.py:Class, satisfies its contract.

    KEY=VALUE are its settings. The derivatives of a problem are tested, and whether short runs are finite,
    feasible and reproducible. Under mpirun, a run on all ranks is also compared with a run in one process.
    """
    from mpifed.cli.check import check_class

    sys.exit(0 if check_class(name, list(settings), world()) else 1)


def _ranks() -> SerialComm:
    """Return the communicator of all ranks; exit if a rank has received a signal."""
    comm = world()
    number = early_signal(comm)
    if number:
        if comm.rank == 0:
            name = signal.Signals(number).name
            text = f"mpifed: {name} arrived before the run began: start it with the same command"
            echo(text, err=True)
        exit_with(EXIT_RESUME)
    return comm


def _warn_idle(comm, clients: int) -> None:
    if comm.rank == 0 and (text := idle_ranks(comm.size, clients)):
        echo(f"mpifed: warning: {text}", err=True)


def _execute(comm, job, report_in: str | None) -> None:
    """Run a job; then, on rank 0, write a report to the folder ``report_in`` unless it is ``None``."""
    with collective_errors(comm, ValueError):
        if comm.rank == 0 and report_in is not None:
            expect_own(Path(report_in, name) for name in REPORT_FILES)
    try:
        result = job()
    except (Stopped, KeyboardInterrupt) as signalled:
        result = signalled.result
    except SystemExit as error:  # other ranks wait for this rank
        raise RuntimeError(f"user code called sys.exit({error.code}) during a run") from error
    if result.unfinished:
        exit_with(EXIT_RESUME)
    if comm.rank == 0 and report_in is not None:
        if not os.access(report_in, os.W_OK):  # the run was complete before, as its files are written last
            echo(f"mpifed: {report_in} cannot be written to: its report is not written again", err=True)
            return
        try:
            from mpifed.report.report import report as write_report
        except MissingExtra as error:
            echo(f"mpifed: the run is finished, without a report: {error}", err=True)
            return
        from mpifed.base.console import Console

        folder, console = result.path.parent, Console(quiet=is_quiet())
        try:
            written = write_report([result.path], folder, console=console)
        except (OSError, ValueError) as error:
            raise click.UsageError(
                f"the run is finished, but its report could not be written: {describe(error)}"
            ) from None
        console.print("\n".join(map(str, written)), soft_wrap=True, markup=False, highlight=False)


for _command in (estimate, export, info, launch, list_, new, report, schema, selftest, status, tune):
    cli.add_command(_command)


def _warning_printer() -> Callable[..., None]:
    """Return a hook that prints each warning once: the runs of a sweep or a search have the same warnings."""
    printed = set()

    def show(message, category, filename, line, *_) -> None:
        text = warnings.formatwarning(message, category, filename, line).rstrip()
        if category is UserWarning and Path(filename).is_relative_to(Path(__file__).parents[1]):
            text = f"mpifed: warning: {message}"
        if text not in printed:
            printed.add(text)
            print_error(text)

    return show


def _report_success() -> None:
    """Report success to the batch script, because not every launcher passes exit codes on.

    A file is removed, which also works on a full disk.
    """
    mark = os.environ.get("MPIFED_UNFINISHED")
    if not mark or launcher_rank() != "0":
        return
    try:
        os.remove(mark)
    except OSError as error:
        text = f"{mark} cannot be removed ({error.strerror}): the batch script will report a failure"
        echo(f"mpifed: warning: {text}", err=True)


def main() -> None:
    """Run the command line. An exception on one rank, or sys.exit during a run, ends all ranks."""
    if any(name in os.environ for name in RANK_VARIABLES):
        os.environ["TERM"] = "dumb"  # mpirun gives its ranks a terminal even if the output is a file
    if any(os.environ.get(name, "0") != "0" for name in RANK_VARIABLES):
        warnings.showwarning = lambda *_, **__: None  # rank 0 prints warnings, and every rank logs them
    else:
        warnings.showwarning = _warning_printer()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by `2>&-`; a file of the run must not get its descriptor
            setattr(sys, name, open(os.devnull, mode))
    for stream in (sys.stdout, sys.stderr):  # in ASCII, ‖∇Φ‖ is printed as an escape sequence
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.excepthook = print_traceback
    settings = {"traceback": False}
    try:
        cli(standalone_mode=False, obj=settings)
        _report_success()
    except SystemExit as error:
        if not error.code:
            _report_success()
        raise
    except Exception as error:
        if not is_user_error(error):
            raise
        if settings["traceback"]:
            print_traceback(*sys.exc_info())
        report_and_exit(error)
