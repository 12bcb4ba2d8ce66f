"""Options and option types of several commands."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import click

from mpifed.base.log import LOG, PHASES
from mpifed.base.units import Dimension, convert

__all__ = ["Quantity", "looking", "report_option", "verbosity"]

_REMEDY = "this command only looks at the job. Read the code first, then execute it with --allow-code"

report_option = click.option(
    "--report/--no-report",
    "with_report",
    default=True,
    help="Draw curves and write the report at the end (default).",
)


class Quantity(click.ParamType):
    """A positive number in the unit of ``dimension``, or a text with a unit; bounds are inclusive."""

    def __init__(self, dimension: Dimension, least: float = 0.0, most: float = float("inf")):
        self.dimension, self.least, self.most = dimension, least, most
        self.name = dimension.words.removeprefix("a ")

    def convert(self, value, param, ctx) -> float:
        try:
            number = float(value)
        except ValueError:
            try:
                number = convert(value, self.dimension)
            except ValueError as error:
                self.fail(str(error), param, ctx)
        if not 0 < number < float("inf") or not self.least <= number <= self.most:
            bounds = f"{self.least:g} to {self.most:g}" if self.least else "more than 0"
            self.fail(f"expected {bounds} {self.dimension.unit}, got {value!r}", param, ctx)
        return number


def looking(only: Callable[[dict[str, Any]], bool] = lambda settings: True) -> Callable:
    """Add the option ``--allow-code`` to a command that inspects a job: without it no code but the package's
    is loaded.

    Args:
        only: whether a command with these arguments only inspects the job.
    """

    def decorate(command: Callable) -> Callable:
        @click.option(
            "--allow-code",
            is_flag=True,
            help="Execute the code that JOB names: methods, problems, networks, metrics, data.",
        )
        @functools.wraps(command)
        def looked(*arguments, allow_code: bool, **settings):
            from mpifed.base.plugins import refused_code

            with refused_code(_REMEDY if only(settings) and not allow_code else ""):
                return command(*arguments, **settings)

        return looked

    return decorate


def _set_level(context, parameter, value) -> None:
    """Set the log level of this command only: other commands of this process keep theirs."""
    if not value:
        return
    level = logging.WARNING if parameter.name == "quiet" else (logging.DEBUG, PHASES)[min(value, 2) - 1]
    if LOG.level not in (logging.NOTSET, level):
        LOG.setLevel(logging.NOTSET)
        raise click.UsageError("-v and -q exclude each other")
    LOG.setLevel(level)
    context.call_on_close(lambda: LOG.setLevel(logging.NOTSET))


def verbosity(command):
    """Add the options -v and -q, which set the level of the logger "mpifed"."""
    louder = click.option(
        *("-v", "--verbose"),
        count=True,
        expose_value=False,
        callback=_set_level,
        help="More in the logs of the ranks, run.out/log: how long rounds take; -vv: phases, too.",
    )
    quieter = click.option(
        *("-q", "--quiet"),
        is_flag=True,
        expose_value=False,
        callback=_set_level,
        help="No progress bar, and of what is said, warnings alone.",
    )
    return louder(quieter(command))
