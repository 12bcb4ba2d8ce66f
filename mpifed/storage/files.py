"""Recognition of the files of this package, and atomic replacement.

The folder of a run may contain files of the user, and may even be a home folder. Before this package writes
to a folder, it registers the names of its files in the marker file ``mpifed-files.txt``, and raises an error
if another file has such a name. Only registered regular files are replaced or removed, never links, folders
or pipes. Checkpoints, histories and results that were copied without the marker file are recognised by their
first bytes. A file whose name the user chooses, such as a figure, is recognised by a signature in it.

This module imports no large library, because the command line loads it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from mpifed.base.errors import ConfigError
from mpifed.base.log import warning

__all__ = [
    "ASSUMPTION_FILES", "CHECKPOINT_MAGIC", "HDF5_MAGIC", "HISTORY_FILE", "HISTORY_MAGIC", "LOCK_FILE",
    "LOG_FILES", "LOG_FOLDER", "MARKER", "PNG_METADATA", "REPORT_FILES", "REPORT_MARK", "RESULTS_MAGIC",
    "RUN_FILE", "RUN_FILES", "SEARCH_RESULT", "TRIALS", "TRIED", "checkpoints", "expect_writable",
    "is_figure", "is_paper", "is_registered", "is_weights", "logs", "rank_of", "refuse_foreign", "register",
    "remove_leftovers", "replacing", "round_of", "sync", "writing",
]  # fmt: skip

#: The marker file, and its first line.
MARKER, _TITLE = "mpifed-files.txt", "mpifed replaces and removes the files listed here:"
RUN_FILE, LOCK_FILE = "run.h5", "run.lock"
#: The folder of the logs, and the pattern of their names.
LOG_FOLDER, LOG_FILES = "log", ("rank-*.txt",)
#: First bytes of checkpoints, and of results files. Results files of version 0.1 begin with HDF5's own bytes.
CHECKPOINT_MAGIC, RESULTS_MAGIC = b"mpifed checkpoint ", b"mpifed run file "
HISTORY_FILE, HISTORY_MAGIC = "history.bin", b"mpifed history 1\n"
#: First bytes of a log, and of a lock file whose process has not ended normally.
LOG_MAGIC, LOCK_MAGIC = b"mpifed log of rank ", b"process "
#: In the folder of a search: the folder of its runs, the table of all settings, and the result of a study.
TRIALS, TRIED, SEARCH_RESULT = "trials", "tried.csv", "tried.json"
#: Patterns of the names of a run's files.
RUN_FILES = (RUN_FILE, HISTORY_FILE, LOCK_FILE, f"checkpoint-{8 * '[0-9]'}*.h5")
#: Files of a report. Some of them require metrics or several runs.
REPORT_FILES = ("report.html", "curves.png", "table.txt", "table.csv", "settings.csv")
#: Files of ``mpifed measure``.
ASSUMPTION_FILES = ("assumptions.csv", "assumptions.json", "assumptions.png")
#: Metadata of PNG figures.
PNG_METADATA = {"Software": "mpifed"}
#: Follows the length of the header in a safetensors file of this package.
WEIGHTS_MARK = b'{"__metadata__":{"mpifed":'
#: Creator of vector figures, and first line of a report's text.
REPORT_MARK = "mpifed report"
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
#: First bytes of the files of a run. Copies of them need no marker file.
_RUN_MAGICS = (CHECKPOINT_MAGIC, HISTORY_MAGIC, RESULTS_MAGIC, LOG_MAGIC)
#: Number of bytes that are searched for a signature.
_HEAD_BYTES = 2**20
_CHECKPOINT = re.compile(r"checkpoint-([0-9]{8,})\.h5")
_LOG = re.compile(r"rank-([0-9]+)\.txt")
_TEMPORARY = re.compile(r"(.+)\.tmp\.([0-9]{1,18})", re.DOTALL)


def register(folder: Path, patterns: Iterable[str]) -> None:
    """Add the names of files, or patterns of names, to the marker file of a folder.

    Raises:
        ValueError: an unregistered file has such a name and does not begin like a file of a run.
        OSError: the marker file cannot be written.
    """
    known = _registered(folder)
    new = [pattern for pattern in patterns if pattern not in known]
    existing = [path for pattern in new for path in _matching(folder, pattern)]
    refuse_foreign(path for path in existing if not _is_recognised(path))
    if new:
        refuse_foreign([folder / MARKER] if not known and not _is_empty(folder / MARKER) else [])
        with replacing(folder / MARKER, _is_marker) as temporary:
            temporary.write_text("\n".join([_TITLE, *known, *new, ""]), encoding="utf-8")


def _is_marker(head: bytes) -> bool:
    return head.startswith(_TITLE.encode())


def _is_empty(path: Path) -> bool:
    return _is_regular(path) and not os.lstat(path).st_size


def _is_recognised(path: Path) -> bool:
    """Whether an unregistered file is one of a run, or empty, as full disks and kills leave files."""
    head = _head(path)
    if path.name == LOCK_FILE and head.startswith(LOCK_MAGIC):
        return True
    # HDF5 leaves the bytes before its own, the user block, at 0 until the file is complete.
    incomplete = bool(_TEMPORARY.fullmatch(path.name)) and head.lstrip(b"\0").startswith(HDF5_MAGIC)
    return head.startswith(_RUN_MAGICS) or incomplete or _is_empty(path)


def _matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder whose names, or whose names without ``.tmp.PID``, match a pattern."""
    bases = {name: _TEMPORARY.fullmatch(name) for name in os.listdir(folder)}
    return [folder / name for name, base in bases.items() if fnmatchcase(base[1] if base else name, pattern)]


def _registered(folder: Path) -> list[str]:
    """Return the patterns in the marker file of a folder; [] if there is no such file."""
    title, *patterns = _head(folder / MARKER).decode(errors="replace").splitlines() or [""]
    return patterns if title == _TITLE else []


def is_registered(path: Path) -> bool:
    """Whether a path is a regular file whose name is registered in the marker file of its folder."""
    return _is_regular(path) and any(fnmatchcase(path.name, name) for name in _registered(path.parent))


def refuse_foreign(paths: Iterable[Path]) -> None:
    """Raise a :class:`ValueError` if one of the paths exists and is not a registered file."""
    for path in paths:
        if os.path.lexists(path) and not is_registered(path):
            raise ValueError(_refusal(path))


def _refusal(path: Path) -> str:
    found = "a file that mpifed has not written"
    if path.is_symlink():
        found = "a symbolic link"
    elif path.is_dir():
        found = "a folder"
    return f"{path} is {found} and would be replaced: move it away, or choose another place"


def expect_writable(path: str | Path, signature: Callable[[bytes], bool]) -> None:
    """Check before a computation that its result may be written to ``path``.

    Args:
        signature: whether the first bytes of an existing file are those of a file that may be replaced. Empty
            files are always replaced.

    Raises:
        ConfigError: the folder does not exist, or a file of the user would be replaced.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
    if os.path.lexists(path):
        head = _head(path)
        if not _is_regular(path) or (head and not signature(head)):
            raise ConfigError(_refusal(path))


def is_figure(head: bytes) -> bool:
    """Whether the first bytes are those of a PNG figure of this package."""
    return head.startswith(b"\x89PNG") and b"Software\0mpifed" in head


def is_paper(head: bytes) -> bool:
    """Whether the first bytes are those of a vector figure or a LaTeX table of a report."""
    return REPORT_MARK.encode() in head


def is_weights(head: bytes) -> bool:
    """Whether the first bytes are those of a file that ``mpifed export`` has written."""
    return head[8:].startswith(WEIGHTS_MARK)


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _head(path: Path) -> bytes:
    """Return the first bytes of a regular file; b"" for anything else and if the file cannot be read."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(_HEAD_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def checkpoints(folder: str | Path) -> list[Path]:
    """Return the files of a folder with the names of checkpoints, the newest last."""
    named = [path for path in Path(folder).glob("checkpoint-*.h5") if _CHECKPOINT.fullmatch(path.name)]
    return sorted((path for path in named if path.is_file()), key=lambda path: (len(path.name), path.name))


def round_of(path: Path) -> int:
    """Return the round of a checkpoint from its file name."""
    return int(path.stem.rpartition("-")[2])


def logs(folder: str | Path) -> list[Path]:
    """Return the files in the subfolder ``log`` with the names of the ranks' logs."""
    return [path for path in Path(folder, LOG_FOLDER).glob("rank-*.txt") if _LOG.fullmatch(path.name)]


#: Return the rank of a log from its file name.
rank_of = round_of


@contextlib.contextmanager
def replacing(path: Path, signature: Callable[[bytes], bool] | None = None) -> Iterator[Path]:
    """Yield a temporary file next to ``path``, which is synced to disk and replaces ``path`` on success.

    If an error is raised, the temporary file is removed and ``path`` is unchanged. A link, folder or pipe at
    ``path`` is renamed.

    Args:
        signature: for a name that is not registered: whether the first bytes are those of such a file. The
            temporary files that killed processes of this host have left are removed if they have it or are
            empty. :func:`remove_leftovers` removes those of registered names.

    Raises:
        OSError: one of these steps fails.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    if temporary.is_file():  # left by a killed process with the same number
        temporary.unlink()
    for leftover, name, process in _temporary_files(path.parent) if signature else ():
        head = _head(leftover)
        if name == path.name and not _is_running(process) and (not head or signature(head)):
            leftover.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        yield temporary
        sync(temporary)
        if os.path.lexists(path) and not _is_regular(path):
            names = (path.with_name(f"{path.name}.kept{number}") for number in itertools.count(1))
            new_name = next(name for name in names if not os.path.lexists(name))
            os.rename(path, new_name)
            warning(f"{path} is not a regular file: renamed to {new_name.name}")
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: str | Path, signature: Callable[[bytes], bool] | None = None) -> Iterator[Path]:
    """:func:`replacing` for files that the user names: errors are raised as :class:`ConfigError`."""
    try:
        with replacing(Path(path), signature) as temporary:
            yield temporary
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def remove_leftovers(folder: Path, patterns: Iterable[str], locked: bool = False) -> None:
    """Remove the temporary files that killed processes have left of registered files, and of the marker file.

    Args:
        patterns: registered names whose temporary files are removed.
        locked: whether a lock excludes other writers of ``patterns``. Otherwise the files of processes that
            are running on this host remain.
    """
    for path, name, process in _temporary_files(folder):
        is_ours = any(fnmatchcase(name, pattern) for pattern in patterns)
        if (is_ours and locked) or (
            not _is_running(process) and (is_ours or (name == MARKER and _is_marker(_head(path))))
        ):
            path.unlink(missing_ok=True)


def _temporary_files(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield the temporary files of a folder, the names of their targets, and their processes."""
    for path in Path(folder).glob("*.tmp.*"):
        parts = _TEMPORARY.fullmatch(path.name)
        if parts and _is_regular(path):
            yield path, parts[1], int(parts[2])


def _is_running(process: int) -> bool:
    """Whether a process of this number runs on this host; True for numbers that no process has."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
