"""Error messages and exit codes of commands; the exit code is the same on all ranks."""

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
    is_out_of_memory,
    message_of,
    requested_memory,
    short_repr,
)
from mpifed.cli.output import echo
from mpifed.parallel.comm import CollectiveError, LaunchError
from mpifed.parallel.world import EXIT_LAUNCH, abort_all, slurm_job

__all__ = ["RANK_VARIABLES", "describe", "exit_with", "report_and_exit", "is_user_error", "launcher_rank"]

#: Environment variables in which launchers pass a process its rank.
RANK_VARIABLES = (
    *("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK"),
    *(["SLURM_PROCID"] if slurm_job() else []),
)
#: Maximum number of clients in a message.
MAX_CLIENTS = 10
#: Seconds that other ranks wait before they report an error, because rank 0 usually reports the same error.
RANK_0_DELAY = 1.0
#: The help of a group without a command, since click 8.2; before, click prints it.
_GROUP_HELP = getattr(click.exceptions, "NoArgsIsHelpError", ())
#: Errors that a user can fix, in addition to a lack of memory.
_USER_ERRORS = (
    click.exceptions.Abort,
    click.ClickException,
    CollectiveError,
    ConfigError,
    ContractError,
    LaunchError,
    PluginError,
)
#: Codes of an :class:`OSError` that a user can fix: names that are too long, and full disks and quotas.
_USER_ERRNOS = (errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT)


def launcher_rank() -> str:
    """Return the rank of this process from the launcher's variables; MPI need not be initialised."""
    return next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0")


def is_user_error(error: Exception) -> bool:
    """Return whether a user can fix an error. Other errors end with a traceback and exit code 1."""
    known = getattr(error, "errno", None) in _USER_ERRNOS
    return isinstance(error, _USER_ERRORS) or known or is_out_of_memory(error)


def describe(error: Exception) -> str:
    """Return the message of an error; for an OSError, with the name of its file."""
    if not isinstance(error, OSError):
        return str(error)
    if error.filename is None:  # writing to an open file, such as the output
        return error.strerror or str(error)
    long = error.errno == errno.ENAMETOOLONG
    remedy = ": expected at most 255 bytes per name and 4,095 per path" if long else ""
    return f"cannot use {short_repr(os.fsdecode(error.filename))}: {error.strerror}{remedy}"


def report_and_exit(error: Exception) -> None:
    """Print the message of an error and exit with its code."""
    match error:
        case click.exceptions.Abort():
            _fail("interrupted", 130)
        case click.ClickException():
            prefix = "" if isinstance(error, _GROUP_HELP) else "mpifed: "
            _fail(error.format_message(), error.exit_code, prefix)
        case LaunchError():
            _fail(str(error), EXIT_LAUNCH)
        case CollectiveError():
            # Not at the top: after Ctrl-C during the import of torch, another import of it can crash.
            from mpifed.simulation.simulation import NonFiniteError

            _fail(str(error), 3) if isinstance(error, NonFiniteError) else _fail(_message(error), 2)
        case PluginError() | ContractError():
            _fail_alone(_message(error))
        case ConfigError():
            _fail(str(error), 2)
        case OSError():
            _fail_alone(describe(error))
        case _:
            size = f" for {requested_memory(error)}" if requested_memory(error) else ""
            _fail_alone(
                f"rank {launcher_rank()} has not enough memory{size}: use more nodes, fewer ranks per node, "
                "a smaller problem (problem.clients, its dimensions or its model), a smaller "
                "oracle.batch_size, or run.group = 1\n  (for the whole traceback: mpifed --traceback ...)"
            )


def _fail_alone(message: str) -> NoReturn:
    """End all ranks with code 2 after an error on this rank, because the others would wait for it forever."""
    if int(launcher_rank()):
        time.sleep(RANK_0_DELAY)
    echo(f"mpifed: {message}", err=True)
    abort_all(2)
    exit_with(2)


def _fail(message: str, code: int, prefix: str = "mpifed: ") -> NoReturn:
    """End with ``code`` after an error on all ranks. Only rank 0 prints it, unless MPI is not available."""
    if launcher_rank() == "0" or code == EXIT_LAUNCH:
        sys.stdout.flush()
        echo(f"{prefix}{message}", err=True)
    exit_with(code)


def exit_with(code: int) -> NoReturn:
    """Exit with a code that is the same on all ranks.

    When the first rank exits, the launcher (srun --kill-on-bad-exit, mpirun) sends SIGTERM to the others,
    which ignore it to exit with the same code.
    """
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _message(error: BaseException) -> str:
    """Return the message of an error, the user's lines that raised it, and its round, clients and phase.

    An exception in a user-defined function is the cause of a PluginError, which may be the cause of an error
    on all ranks.
    """
    plugin: BaseException | None = error
    while plugin is not None and not isinstance(plugin, PluginError):
        plugin = plugin.__cause__
    lines = [message_of(error)]
    if plugin is not None and plugin.round is not None:
        numbers = ", ".join(map(str, plugin.clients[:MAX_CLIENTS])) + (
            ", ..." if len(plugin.clients) > MAX_CLIENTS else ""
        )
        clients = f"client{'s' if len(plugin.clients) > 1 else ''} {numbers}, " if plugin.clients else ""
        lines.append(f"  in round {plugin.round}, {clients}phase {plugin.phase!r}")
    if plugin is not None:
        lines.append("  (for the whole traceback: mpifed --traceback ...)")
    return "\n".join(lines)
