"""An error in a user's method or problem, on one screen: a sentence and the user's own lines."""

from __future__ import annotations

from mpifed.core.errors import PluginError, user_frames

__all__ = ["screen"]

#: Numbers of clients that are named.
MOST = 10


def screen(error: BaseException) -> str:
    """The error's sentence, the user's lines that raised it, and where in the run, as far as there are any.

    What a user's function has raised is the cause of a PluginError, which may be that of an error on all
    ranks.
    """
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    plugin = next((one for one in chain if isinstance(one, PluginError)), None)
    where = [f"  {_place(plugin)}", "  (the whole traceback: mpifed --traceback ...)"] if plugin else []
    raised = plugin.__cause__ if plugin and plugin.__cause__ else chain[-1]
    return "\n".join([str(error), *user_frames(raised).splitlines(), *where])


def _place(error: PluginError) -> str:
    clients = ", ".join(map(str, error.clients[:MOST])) + (", ..." if len(error.clients) > MOST else "")
    who = f"client{'s' if len(error.clients) > 1 else ''} {clients}, " if error.clients else ""
    return f"in round {error.round}, {who}phase {error.phase!r}"
