"""Errors of commands: one sentence, the user's lines, and one exit code on all ranks."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from typing import NoReturn

import click

from mpifed.base.errors import (
    ConfigError,
    ContractError,
    PluginError,
    lacks_memory,
    message_of,
    short_repr,
    wanted,
)
from mpifed.cli.output import echo
from mpifed.parallel.comm import CollectiveError
from mpifed.parallel.world import EXIT_LAUNCH, LaunchError, abort_all, slurm_job

__all__ = ["RANK_VARIABLES", "rank", "explain", "end", "is_explained", "screen", "spelled"]

#: Environment variables in which launchers pass a process its rank.
RANK_VARIABLES = (
    *("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK"),
    *(["SLURM_PROCID"] if slurm_job() else []),
)
#: Most client numbers in a message.
MOST = 10
#: Seconds that another rank waits for rank 0, which usually has the same error, to report it.
TURN = 1.0
#: Errors that a user can fix, in addition to a lack of memory.
_EXPLAINED = (
    click.exceptions.Abort,
    click.ClickException,
    CollectiveError,
    ConfigError,
    ContractError,
    LaunchError,
    PluginError,
)


def rank() -> str:
    """The rank of this process from the launcher's variables, before MPI has started."""
    return next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0")


def is_explained(error: Exception) -> bool:
    """Whether a user can fix an error, such as a too long file name. Other errors end with a traceback and
    code 1."""
    too_long = getattr(error, "errno", None) == errno.ENAMETOOLONG
    return isinstance(error, _EXPLAINED) or too_long or lacks_memory(error)


def spelled(error: Exception) -> str:
    """The message of an error; of an OSError with its file."""
    if not isinstance(error, OSError) or error.filename is None:
        return str(error)
    long = error.errno == errno.ENAMETOOLONG
    remedy = ": expected at most 255 bytes a name and 4,095 a path" if long else ""
    return f"cannot use {short_repr(os.fsdecode(error.filename))}: {error.strerror}{remedy}"


def explain(error: Exception) -> None:
    """Print the message of an error and end with its exit code."""
    from mpifed.simulation.simulation import NonFiniteError

    match error:
        case click.exceptions.Abort():
            _fail("interrupted", 130)
        case click.ClickException():
            _fail(error.format_message(), error.exit_code)
        case LaunchError():
            _fail(str(error), EXIT_LAUNCH)
        case NonFiniteError():
            _fail(str(error), 3)
        case CollectiveError():
            _fail(screen(error), 2)
        case PluginError() | ContractError():
            _fail_alone(screen(error))
        case ConfigError():
            _fail(str(error), 2)
        case OSError():
            _fail_alone(spelled(error))
        case _:
            _fail_alone(_memory(error))


def _memory(error: Exception) -> str:
    """The message of an error for which :func:`lacks_memory` holds."""
    size = f" for {wanted(error)}" if wanted(error) else ""
    return (
        f"rank {rank()} has no memory{size}: take more nodes or fewer ranks per node, a smaller problem "
        "(problem.clients, its dimensions or its model), a smaller oracle.batch_size, or run.group = 1\n"
        "  (the whole traceback: mpifed --traceback ...)"
    )


def _fail_alone(message: str) -> NoReturn:
    """End all ranks with code 2 for an error that other ranks may not have: they would wait forever."""
    if int(rank()):
        time.sleep(TURN)
    echo(f"mpifed: {message}", err=True)
    abort_all(2)
    end(2)


def _fail(message: str, code: int) -> NoReturn:
    """End with ``code``; only rank 0 prints, except for processes that are not connected by MPI."""
    if rank() == "0" or code == EXIT_LAUNCH:
        sys.stdout.flush()
        echo(f"mpifed: {message}", err=True)
    end(code)


def end(code: int) -> NoReturn:
    """Exit with a code that is the same on all ranks.

    When the first rank exits, the launcher (srun --kill-on-bad-exit, mpirun) sends SIGTERM to the others,
    which ignore it to exit with the same code.
    """
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def screen(error: BaseException) -> str:
    """The error's message, the user's lines that raised it, and the place in the run, as far as known.

    An exception of a user's function is the cause of a PluginError, which may be the cause of an error on all
    ranks.
    """
    plugin = error
    while plugin is not None and not isinstance(plugin, PluginError):
        plugin = plugin.__cause__
    more = ["  (the whole traceback: mpifed --traceback ...)"] if plugin else []
    where = [f"  {_place(plugin)}", *more] if plugin and plugin.round is not None else more
    return "\n".join([message_of(error), *where])


def _place(error: PluginError) -> str:
    clients = ", ".join(map(str, error.clients[:MOST])) + (", ..." if len(error.clients) > MOST else "")
    who = f"client{'s' if len(error.clients) > 1 else ''} {clients}, " if error.clients else ""
    return f"in round {error.round}, {who}phase {error.phase!r}"
