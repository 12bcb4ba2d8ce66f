"""Options that the commands share which carry out runs."""

from __future__ import annotations

import logging

import click

from mpifed.core.telling import LOG, PHASES

__all__ = ["report_option", "verbosity"]

report_option = click.option(
    "--report/--no-report",
    "with_report",
    default=True,
    help="Draw curves and write the report at the end (default).",
)


def _louder(context, parameter, times: int) -> None:
    _set(context, (logging.NOTSET, logging.DEBUG, PHASES)[min(times, 2)])


def _quieter(context, parameter, quiet: bool) -> None:
    _set(context, logging.WARNING if quiet else logging.NOTSET)


def _set(context, level: int) -> None:
    """The level of this command; the next one in this process has its own."""
    if level:
        before = LOG.level
        LOG.setLevel(logging.NOTSET)
        if before not in (logging.NOTSET, level):
            raise click.UsageError("-v and -q exclude each other")
        LOG.setLevel(level)
        context.call_on_close(lambda: LOG.setLevel(logging.NOTSET))


def verbosity(command):
    """The options -v and -q, which set the level of the logger "mpifed"."""
    louder = click.option(
        *("-v", "--verbose"),
        count=True,
        expose_value=False,
        callback=_louder,
        help="More in the logs of the ranks, run.out/log: how long rounds take; -vv: phases, too.",
    )
    quieter = click.option(
        *("-q", "--quiet"),
        is_flag=True,
        expose_value=False,
        callback=_quieter,
        help="No progress bar, and of what is said, warnings alone.",
    )
    return louder(quieter(command))
