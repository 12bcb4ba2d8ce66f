"""Options and shell completion of several commands."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import click

from mpifed.base.log import LOG, PHASES
from mpifed.base.paths import expand_home

__all__ = [
    "HomePath", "JobCommand", "allow_code_option", "complete_name", "complete_setting", "importing",
    "is_quiet", "job_argument", "part_option", "report_option", "verbosity",
]  # fmt: skip

#: Options of launchers for the number of ranks.
_RANKS = ("-n", "-np", "--np", "--ranks")
_REMEDY = "read the code, then add --allow-code"


class HomePath(click.Path):
    """A path in which a leading ``~`` is the home folder, also where the shell leaves it, as in --out=~/x."""

    def convert(self, value, param, ctx):
        """Return the path as a text."""
        return super().convert(expand_home(value), param, ctx)


class JobCommand(click.Command):
    """A command with the arguments KEY=VALUE, whose message for an unknown option shows them."""

    def parse_args(self, ctx, args):
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if self.name != "launch" and (launched := _under_mpirun(ctx.command_path.split(), words)):
                launcher = "The number of ranks is an option of the launcher"
                raise click.UsageError(f"{error.message} {launcher}: {shlex.join(launched)}") from None
            if fixed := _as_settings(words, error.option_name):
                command = shlex.join([*ctx.command_path.split(), *fixed])
                raise click.UsageError(f"{error.message} A setting has no dashes: {command}") from None
            raise


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A context for imports, without garbage collections, which take a third of the time of a small run.

    Later collections skip the imported objects.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _under_mpirun(command: list[str], words: list[str]) -> list[str]:
    """Return a command with arguments that contain the launcher's option, as a command under mpirun."""
    number = next((k for k, word in enumerate(words) if word in _RANKS), None)
    if number is None:
        return []
    has_value = words[number + 1 : number + 2] and words[number + 1].isdecimal()
    rest = words[number + 1 + bool(has_value) :]
    return ["mpirun", "-n", words[number + 1] if has_value else "N", *command, *words[:number], *rest]


def _as_settings(words: list[str], option: str) -> list[str]:
    """Return a command's arguments with an option as a setting at the end, if there is such a setting."""
    from mpifed.algorithms import ALGORITHMS
    from mpifed.base.settings import places_of
    from mpifed.config.job import SECTIONS, Config
    from mpifed.problems import PROBLEMS

    name = option.removeprefix("--").replace("-", "_")
    places = places_of(name, {"": Config, **SECTIONS})
    for section, classes in (("algorithm", ALGORITHMS), ("problem", PROBLEMS)):
        places += [place for cls in classes.values() for place in places_of(name, {section: cls})]
    places = [place for place in places if "{" not in place]
    number = next((k for k, word in enumerate(words) if word.partition("=")[0] == option), None)
    if number is None or not places:
        return []
    value, after = words[number].partition("=")[2], number + 1
    if not value and after < len(words) and "=" not in words[after] and not words[after].startswith("-"):
        value, after = words[after], number + 2
    return [*words[:number], *words[after:], f"{places[0]}={value or '...'}"]


report_option = click.option(
    "--report/--no-report",
    "with_report",
    default=True,
    help="Write curves, tables and report.html after the run.",
)


def complete_name(ctx, param, incomplete: str) -> list[str]:
    """Return the methods, problems and sections that begin with ``incomplete``."""
    from mpifed.algorithms import ALGORITHMS
    from mpifed.config.job import SECTIONS
    from mpifed.problems import PROBLEMS

    return [name for name in (*ALGORITHMS, *PROBLEMS, *SECTIONS, "tune") if name.startswith(incomplete)]


def complete_setting(ctx, param, incomplete: str) -> list[str]:
    """Return the settings ``section.key=`` that begin with ``incomplete``."""
    from mpifed.config.job import SECTIONS, Config
    from mpifed.config.tuning import Tune

    keys = [*(Config.model_fields.keys() - SECTIONS), "algorithm.name", "problem.name", "problem.clients"]
    for name, section in {**SECTIONS, "tune": Tune}.items():
        keys += [f"{name}.{key}" for key in section.model_fields]
    return [f"{key}=" for key in keys if key.startswith(incomplete)]


def job_argument(name: str) -> Callable:
    """Add the arguments ``name`` (a path) and ``overrides`` (KEY=VALUE...)."""

    def decorate(command: Callable) -> Callable:
        changes = click.argument(
            "overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=complete_setting
        )
        return click.argument(name, type=HomePath())(changes(command))

    return decorate


def part_option(what: str) -> Callable:
    """Add the option ``--part``, which selects some of ``what`` for an element of a job array."""
    text = f"Do every N-th of the {what}, beginning with number I (from 0): for job arrays of N elements."
    return click.option("--part", default="0/1", metavar="I/N", help=text)


def allow_code_option(only: Callable[[dict[str, Any]], bool]) -> Callable:
    """Add the option ``--allow-code`` to a command that inspects a job. Without it, user code is refused.

    Args:
        only: whether a command with these arguments only inspects the job; other commands execute user code.
    """

    def decorate(command: Callable) -> Callable:
        @click.option(
            "--allow-code",
            is_flag=True,
            help="Execute the user-defined methods, problems, networks, metrics and data that JOB names.",
        )
        @functools.wraps(command)
        def inspecting(*arguments, allow_code: bool, **settings):
            from mpifed.base.plugins import refused_code

            with refused_code(_REMEDY if only(settings) and not allow_code else ""):
                return command(*arguments, **settings)

        return inspecting

    return decorate


def _set_level(context, parameter, value) -> None:
    """Set the log level for this command only."""
    if not value:
        return
    level = logging.WARNING if parameter.name == "quiet" else (logging.DEBUG, PHASES)[min(value, 2) - 1]
    if LOG.level not in (logging.NOTSET, level):
        LOG.setLevel(logging.NOTSET)
        raise click.UsageError("-v and -q exclude each other: give one of them")
    LOG.setLevel(level)
    context.call_on_close(lambda: LOG.setLevel(logging.NOTSET))


def is_quiet() -> bool:
    """Whether the option -q was given, with which a command prints nothing but warnings and errors."""
    return LOG.level > logging.INFO


def verbosity(command):
    """Add the options -v and -q, which set the level of the logger "mpifed"."""
    settings = {"expose_value": False, "callback": _set_level}
    verbose_help = "Log the time of each round in run.out/log; -vv: also of each phase."
    verbose = click.option("-v", "--verbose", count=True, show_default=False, help=verbose_help, **settings)
    quiet_help = "Print only warnings and errors."
    quiet = click.option("-q", "--quiet", is_flag=True, help=quiet_help, **settings)
    return verbose(quiet(command))
