"""The files of this package: their names, how they are recognised, opened for reading, and replaced.

The folder of a run may contain files of the user, and may even be a home folder. Therefore a file is replaced
or removed only if it is a regular file that begins as this package begins files of its name, or that is empty
or zero, as full disks and crashes leave files; never a link, folder or pipe.

This module imports no large library, because the command line loads it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from mpifed.base.errors import ConfigError

__all__ = [
    "ASSUMPTION_FILES", "CHECKPOINT_MAGIC", "HDF5_MAGIC", "HISTORY_FILE", "HISTORY_MAGIC", "LOCK_FILE",
    "LOG_FOLDER", "PART_MAGIC", "PNG_METADATA", "REPORT_FILES", "REPORT_MARK", "RESULTS_MAGIC", "RUN_FILE",
    "SCRIPT", "SCRIPT_HEAD", "SEARCH_RESULT", "TRIALS", "TRIED", "assigned_runs", "assignment_lines",
    "checkpoints", "expect_own", "expect_writable", "is_figure", "is_own", "is_paper", "is_part", "is_script",
    "is_weights", "logs", "open_file", "parts_of_checkpoints", "rank_of", "remove_leftovers", "replacing",
    "round_of", "run_files", "sync", "writing",
]  # fmt: skip

RUN_FILE, LOCK_FILE = "run.h5", "run.lock"
#: The folder of the logs.
LOG_FOLDER = "log"
#: First bytes of checkpoints, of their parts, and of results files. Results files of version 0.1 begin with
#: HDF5's own bytes.
CHECKPOINT_MAGIC, PART_MAGIC = b"mpifed checkpoint ", b"mpifed client rows "
RESULTS_MAGIC = b"mpifed run file "
HISTORY_FILE, HISTORY_MAGIC = "history.bin", b"mpifed history 1\n"
#: First bytes of a log, and of a lock file whose process has not ended normally.
LOG_MAGIC, LOCK_MAGIC = b"mpifed log of rank ", b"process "
#: In the folder of a search: the folder of its runs, the table of all settings, and the result of a study.
TRIALS, TRIED, SEARCH_RESULT = "trials", "tried.csv", "tried.json"
#: Files of a report. Some of them require metrics or several runs.
REPORT_FILES = ("report.html", "curves.png", "table.txt", "table.csv", "settings.csv")
#: Files of ``mpifed estimate``.
ASSUMPTION_FILES = ("assumptions.csv", "assumptions.json", "assumptions.png")
#: Metadata of PNG figures.
PNG_METADATA = {"Software": "mpifed"}
#: Follows the length of the header in a safetensors file of this package.
WEIGHTS_MARK = b'{"__metadata__":{"mpifed":'
#: Creator of vector figures, and first line of a report's text.
REPORT_MARK = "mpifed report"
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
#: Name of the batch script that ``mpifed launch`` writes into a folder of results, the first characters of
#: every script, and its maximum size in bytes. A file that begins otherwise is not replaced.
SCRIPT, SCRIPT_HEAD, MAX_SCRIPT = "job.sbatch", "#!/bin/bash\n# mpifed launch ", 2**26
#: A comment of a script: an element of its job array, and the runs that the element executes, as a JSON list
#: of folders next to the script.
_ASSIGNMENT = re.compile(r"# runs (\d+): (\[.*\])")
#: Number of bytes that are searched for a signature.
_HEAD_BYTES = 2**20
_TEMPORARY = re.compile(r"(.+)\.tmp\.([0-9]{1,18})", re.DOTALL)
#: Whether the first bytes of a file are those of a file of this package.
Signature = Callable[[bytes], bool]


def _begins(magic: bytes, then: bytes = b"") -> Signature:
    """Return whether a file begins with ``magic``, of which every eighth byte may be damaged, and contains
    ``then``."""

    def begins(head: bytes) -> bool:
        pairs = [*zip(head, magic)]
        return sum(actual != expected for actual, expected in pairs) <= len(pairs) // 8 and then in head

    return begins


def is_figure(head: bytes) -> bool:
    """Whether the first bytes are those of a PNG figure of this package."""
    return head.startswith(b"\x89PNG") and b"Software\0mpifed" in head


def is_paper(head: bytes) -> bool:
    """Whether the first bytes are those of a vector figure or a LaTeX table of a report."""
    return REPORT_MARK.encode() in head


def is_weights(head: bytes) -> bool:
    """Whether the first bytes are those of a file that ``mpifed export`` has written."""
    return head[8:].startswith(WEIGHTS_MARK)


#: Names of checkpoints, of their parts, and of logs.
_CHECKPOINT = re.compile(r"checkpoint-[0-9]{8,}\.h5")
_PART = re.compile(r"checkpoint-[0-9]{8,}-part-[0-9]{1,18}\.h5")
_LOG = re.compile(r"rank-[0-9]+\.txt")
#: Patterns of the names that a run uses in its folder → signature.
_RUN = {
    re.compile(re.escape(RUN_FILE)): _begins(RESULTS_MAGIC),
    re.compile(re.escape(HISTORY_FILE)): _begins(HISTORY_MAGIC),
    re.compile(re.escape(LOCK_FILE)): _begins(LOCK_MAGIC),
    _CHECKPOINT: _begins(CHECKPOINT_MAGIC),
    _PART: _begins(PART_MAGIC),
}
#: Patterns of all names that this package chooses → signature.
_NAMES = _RUN | {
    _LOG: _begins(LOG_MAGIC),
    re.compile(r"(curves|assumptions)\.png"): is_figure,
    re.compile(r"report\.html"): _begins(b"<!doctype html>", b'name="generator" content="mpifed"'),
    re.compile(r"table\.txt"): _begins(REPORT_MARK.encode()),
    re.compile(r"table\.csv"): _begins(b"name,", b",stopped\n"),
    re.compile(r"settings\.csv"): _begins(b"method,", b",runs,diverged,not finished"),
    re.compile(r"assumptions\.csv"): _begins(b"round,client,"),
    re.compile(r"assumptions\.json"): _begins(b'{\n "mpifed '),
}


def _signature(name: str) -> Signature:
    """Return the signature of the files of a name that this package chooses; of other names there is none."""
    return next((own for pattern, own in _NAMES.items() if pattern.fullmatch(name)), lambda head: False)


def _no_link(path: str | Path, flags: int) -> int:
    """Open a file, as the ``opener`` of :func:`open`, without following a link or waiting for a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def open_file(path: Path, mode: str = "rb", limit: float = math.inf, **options) -> IO:
    """Open a file that a stranger may have put into a folder, with the options of :func:`open`.

    Args:
        limit: maximum size in bytes.

    Raises:
        OSError: there is no file to read, or a link, or another one than a regular file of at most this size.
    """
    file = open(path, mode, opener=_no_link, **options)
    state = os.fstat(file.fileno())
    if not stat.S_ISREG(state.st_mode) or state.st_size > limit:
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def is_own(path: Path, signature: Signature | None = None) -> bool:
    """Whether a file may be replaced or removed, see above.

    Args:
        signature: required for names that the user chooses.
    """
    try:
        with open_file(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return not head.strip(b"\0") or (signature or _signature(path.name))(head)


def assignment_lines(runs_by_element: Sequence[Sequence[str]]) -> list[str]:
    """Return comment lines in ASCII with the runs of each element, as names of folders next to the script."""
    return [f"# runs {number}: {json.dumps(list(names))}" for number, names in enumerate(runs_by_element)]


def is_script(file: Path) -> bool:
    """Whether ``mpifed launch`` has written a file."""
    return bool(_script_text(file))


def assigned_runs(script: Path) -> list[tuple[int, Path]]:
    """Return the element and the folder of every run in a script; [] for any other or unreadable file."""
    runs = []
    for match in _ASSIGNMENT.finditer(_script_text(script)):
        with contextlib.suppress(ValueError):
            names = json.loads(match[2])
            runs += [(int(match[1]), script.parent / name) for name in names if isinstance(name, str)]
    return runs


def _script_text(script: Path) -> str:
    """Return the text of a script; "" for any other or unreadable file."""
    try:
        with open_file(script, limit=MAX_SCRIPT) as file:
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return text if text.startswith(SCRIPT_HEAD) else ""


def expect_own(paths: Iterable[Path], signature: Signature | None = None) -> None:
    """Raise a :class:`ConfigError` if one of the paths exists and is not a file of this package."""
    for path in paths:
        if not is_own(path, signature) and os.path.lexists(path):  # another run may remove it in between
            raise ConfigError(_refusal(path))


def _refusal(path: Path) -> str:
    kind = "a file that mpifed has not written"
    if path.is_symlink():
        kind = "a symbolic link"
    elif path.is_dir():
        kind = "a folder"
    return f"{path} is {kind} and would be replaced: move it away, or choose another place"


def expect_writable(path: str | Path, signature: Signature) -> None:
    """Check before a computation that its result may be written to ``path``.

    Raises:
        ConfigError: the folder does not exist, or a file of the user would be replaced.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
    expect_own([path], signature)


def run_files(folder: Path) -> list[Path]:
    """Return everything in a folder and its subfolder ``log`` that has the name of a file of a run."""
    return [path for path in Path(folder).iterdir() if _is_of_run(path.name)] + logs(folder)


def _is_of_run(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in _RUN)


def checkpoints(folder: str | Path) -> list[Path]:
    """Return the files of a folder with the names of checkpoints, the newest last."""
    named = [path for path in Path(folder).glob("checkpoint-*.h5") if _CHECKPOINT.fullmatch(path.name)]
    return sorted((path for path in named if path.is_file()), key=lambda path: (len(path.name), path.name))


def parts_of_checkpoints(folder: str | Path) -> list[Path]:
    """Return the files of a folder with the names of parts of checkpoints."""
    return [path for path in Path(folder).glob("checkpoint-*-part-*.h5") if is_part(path.name)]


def is_part(name: str) -> bool:
    """Whether a file name is that of a part of a checkpoint."""
    return bool(_PART.fullmatch(name))


def round_of(path: Path) -> int:
    """Return the round of a checkpoint from its file name."""
    return int(path.stem.rpartition("-")[2])


def logs(folder: str | Path) -> list[Path]:
    """Return everything in the subfolder ``log`` that has the name of a rank's log."""
    return [path for path in Path(folder, LOG_FOLDER).glob("rank-*.txt") if _LOG.fullmatch(path.name)]


#: Return the rank of a log from its file name.
rank_of = round_of


@contextlib.contextmanager
def replacing(path: Path, signature: Signature | None = None) -> Iterator[Path]:
    """Yield a temporary file next to ``path``, which is synced to disk and replaces ``path`` on success.

    If an error is raised, the temporary file is removed and ``path`` is unchanged. The temporary files of
    this name that killed processes of this host have left are removed.

    Args:
        signature: required for names that the user chooses.

    Raises:
        OSError: one of these steps fails, or ``path`` is not a file of this package.
    """
    path = Path(path)
    for leftover, name, process in _temporary_files(path.parent, signature):
        if name == path.name and (process == os.getpid() or not _is_running(process)):
            leftover.unlink(missing_ok=True)
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        yield temporary
        sync(temporary)
        if os.path.lexists(path) and not is_own(path, signature):
            raise FileExistsError(errno.EEXIST, _refusal(path))
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: str | Path, signature: Signature | None = None) -> Iterator[Path]:
    """:func:`replacing` for files that the user names: errors are raised as :class:`ConfigError`."""
    try:
        with replacing(Path(path), signature) as temporary:
            yield temporary
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that killed runs have left in a locked folder."""
    for path, name, _ in _temporary_files(folder):
        if _is_of_run(name):
            path.unlink(missing_ok=True)


def _temporary_files(folder: Path, signature: Signature | None = None) -> Iterator[tuple[Path, str, int]]:
    """Yield the temporary files of a folder, the names of their targets, and their processes."""
    for path in Path(folder).glob("*.tmp.*"):
        parts = _TEMPORARY.fullmatch(path.name)
        if parts and is_own(path, signature or _signature(parts[1])):
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
