"""Which files of a folder belong to this package: the regular files whose names its marker file lists.

The folder of a run may hold files of others, even be a home folder. Before this package writes to a folder,
it lists the names of its files in the marker file ``mpifed-files.txt``, and refuses a name that another file
has. It replaces and removes listed files only; links, folders and pipes are never its own. Checkpoints,
histories and results that were copied without the marker file are recognised by their first bytes; files that
a user names, such as a figure, by a mark in their content.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from mpifed.storage.format import RUN_FILE

__all__ = [
    "ASSUMPTION_FILES",
    "FIGURE_MARK",
    "HDF5",
    "HISTORY_FILE",
    "HISTORY_MAGIC",
    "LOCK_FILE",
    "LOG_FILES",
    "LOG_FOLDER",
    "MADE_BY",
    "MAGIC",
    "MARKER",
    "REPORT_FILES",
    "RESULTS_MAGIC",
    "RUN_FILES",
    "TEXT_MARK",
    "checkpoints",
    "claim",
    "expect_own",
    "is_figure",
    "is_leftover",
    "is_marked",
    "is_own",
    "is_paper",
    "is_weights",
    "logs",
    "rank_of",
    "round_of",
    "taken",
]

#: The marker file, and its first line.
MARKER, _TITLE = "mpifed-files.txt", "mpifed replaces and removes the files listed here:"
LOCK_FILE = "run.lock"
#: The folder of the ranks' logs, and their names.
LOG_FOLDER, LOG_FILES = "log", ("rank-*.txt",)
#: How a checkpoint begins.
MAGIC = b"mpifed checkpoint "
#: How a results file begins; files of version 0.1 begin as HDF5.
RESULTS_MAGIC = b"mpifed run file "
#: The history of a run, and how it begins.
HISTORY_FILE, HISTORY_MAGIC = "history.bin", b"mpifed history 1\n"
#: The files of a run.
RUN_FILES = (RUN_FILE, HISTORY_FILE, LOCK_FILE, f"checkpoint-{8 * '[0-9]'}*.h5")
#: The files of a report, some of which need metrics or several runs.
REPORT_FILES = ("report.html", "curves.png", "table.txt", "table.csv", "settings.csv")
#: The files of ``mpifed measure``.
ASSUMPTION_FILES = ("assumptions.csv", "assumptions.json", "assumptions.png")
#: Metadata of a figure in PNG, by which it is recognised.
MADE_BY = {"Software": "mpifed"}
#: What follows the length of the header in a safetensors file of this package.
WEIGHTS_MARK = b'{"__metadata__":{"mpifed":'
#: The creator that a vector figure names.
FIGURE_MARK = "mpifed report"
#: The first line of a report's text.
TEXT_MARK = "mpifed report"
#: How an HDF5 file begins.
HDF5 = b"\x89HDF\r\n\x1a\n"
#: How the binary files of a run begin: copies of them need no marker file.
_BEGINNINGS = (MAGIC, HISTORY_MAGIC, RESULTS_MAGIC)
#: Bytes in which a mark is searched for.
_HEAD = 2**20
_CHECKPOINT = re.compile(r"checkpoint-([0-9]{8,})\.h5")
_LOG = re.compile(r"rank-([0-9]+)\.txt")
_LEFTOVER = re.compile(r"(.+)\.tmp\.[0-9]+", re.DOTALL)


def claim(folder: Path, names: Iterable[str]) -> None:
    """List the names of files, or patterns of names, in the marker file of a folder.

    Raises:
        ValueError: a file of that name is there, is not listed and does not begin as a file of a run.
        OSError: the marker file cannot be written.
    """
    listed = _listed(folder)
    new = [name for name in names if name not in listed]
    expect_own(
        path for name in new for path in _matching(folder, name) if not _head(path).startswith(_BEGINNINGS)
    )
    if new:
        expect_own([folder / MARKER] if not listed else [])
        temporary = folder / f"{MARKER}.tmp.{os.getpid()}"
        with open(temporary, "w") as file:
            file.write("\n".join([_TITLE, *listed, *new, ""]))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / MARKER)


def _matching(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder with a name, and files that would pass for their temporary files."""
    bases = {name: _LEFTOVER.fullmatch(name) for name in os.listdir(folder)}
    return [folder / name for name, base in bases.items() if fnmatchcase(base[1] if base else name, pattern)]


def _listed(folder: Path) -> list[str]:
    """The lines of the marker file of a folder after the first, [] if there is no such file."""
    title, *names = _head(folder / MARKER).decode(errors="replace").splitlines() or [""]
    return names if title == _TITLE else []


def is_own(path: Path) -> bool:
    """Whether a path is a regular file whose name the marker file of its folder lists."""
    return _is_regular(path) and any(fnmatchcase(path.name, name) for name in _listed(path.parent))


def is_leftover(path: Path) -> bool:
    """Whether a path is a temporary file that a killed process has left for a file of this package."""
    name = _LEFTOVER.fullmatch(path.name)
    listed = _listed(path.parent) if name and _is_regular(path) else []
    return any(fnmatchcase(name[1], one) for one in listed)


def is_marked(path: Path, mark: Callable[[bytes], bool]) -> bool:
    """Whether a path is a regular file that is empty or whose beginning has a mark."""
    head = _head(path)
    return _is_regular(path) and (not head or mark(head))


def expect_own(paths: Iterable[Path]) -> None:
    """Raise a :class:`ValueError` if a path, which is to be written, is taken by a file of others."""
    for path in paths:
        if os.path.lexists(path) and not is_own(path):
            raise ValueError(taken(path))


def taken(path: Path) -> str:
    """The error for a path that is taken by a file of others."""
    mode = os.lstat(path).st_mode
    link, folder = stat.S_ISLNK(mode), stat.S_ISDIR(mode)
    what = "a symbolic link" if link else "a folder" if folder else "a file that mpifed has not written"
    return f"{path} is {what} and would be replaced: move it away, or choose another place"


def checkpoints(folder: str | Path) -> list[Path]:
    """The files of a folder that are named like checkpoints, the newest last."""
    found = [path for path in Path(folder).glob("checkpoint-*.h5") if _CHECKPOINT.fullmatch(path.name)]
    return sorted((path for path in found if path.is_file()), key=lambda path: (len(path.name), path.name))


def round_of(path: Path) -> int:
    """The round of a checkpoint, by its name."""
    return int(path.stem.rpartition("-")[2])


def logs(folder: str | Path) -> list[Path]:
    """The files of a folder's logs that are named like those of ranks."""
    return [path for path in Path(folder, LOG_FOLDER).glob("rank-*.txt") if _LOG.fullmatch(path.name)]


def rank_of(path: Path) -> int:
    """The rank of a log, by its name."""
    return int(path.stem.rpartition("-")[2])


def is_figure(head: bytes) -> bool:
    """Whether a file that begins so is a figure of this package."""
    return head.startswith(b"\x89PNG") and b"Software\0mpifed" in head


def is_paper(head: bytes) -> bool:
    """Whether a file that begins so is a figure or a table of a report for a paper."""
    return FIGURE_MARK.encode() in head


def is_weights(head: bytes) -> bool:
    """Whether a file that begins so holds weights that ``mpifed export`` has written."""
    return head[8:].startswith(WEIGHTS_MARK)


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _head(path: Path) -> bytes:
    """The beginning of a regular file, empty for anything else and for a file that cannot be read."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(_HEAD) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""
