"""An error in a user's method or problem, on one screen: the sentence, and the user's own lines that led to it."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import mpifed
from mpifed.core.errors import PluginError

__all__ = ["screen"]

#: Frames that are shown, the innermost ones.
MOST = 8
#: Libraries whose frames say nothing to a user about the user's own code.
_LIBRARIES = {"click", "torch", "numpy", "scipy", *sys.stdlib_module_names} - {"__main__"}


def screen(error: BaseException) -> str:
    """The error's sentence; below it, where there are any, the user's lines, and where in the run they were.

    The lines are those of the first cause: what a user's function has raised is the cause of a PluginError, which may be
    that of an error on all ranks.
    """
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    lines = [str(error)]
    frames = [
        frame
        for frame, place in zip(
            traceback.extract_tb(chain[-1].__traceback__), traceback.walk_tb(chain[-1].__traceback__)
        )
        if _is_the_users(frame.filename, place[0].f_globals.get("__name__", ""))
    ]
    for frame in frames[-MOST:]:
        lines += [f"  {frame.filename}:{frame.lineno}, in {frame.name}", f"    {frame.line}"]
    plugin = next((one for one in chain if isinstance(one, PluginError)), None)
    if plugin is not None:
        lines.append(f"  {_place(plugin)} (the whole traceback: mpifed --traceback ...)")
    return "\n".join(lines)


def _is_the_users(file: str, module: str) -> bool:
    inside = Path(mpifed.__file__).parent in Path(file).resolve().parents
    return not inside and module.partition(".")[0] not in _LIBRARIES


def _place(error: PluginError) -> str:
    clients = ", ".join(map(str, error.clients[:10])) + (", ..." if len(error.clients) > 10 else "")
    who = f", client{'s' if len(error.clients) > 1 else ''} {clients}" if error.clients else ""
    return f"round {error.round}{who}, phase {error.phase!r}"
