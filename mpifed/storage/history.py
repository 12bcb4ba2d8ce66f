"""The long part of a run's history, in files beside its checkpoints to which rows are only ever added.

A checkpoint carries the latest rows of the history's tables and names the earlier ones: how many there are,
and the digest of their file up to there. So it takes no longer to write the more rounds are recorded, and
what it names stays as it is while more comes behind it. A file is a mark and rows, nothing that tells when
they were written: where a process writes one anew, its beginning is what earlier checkpoints name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpifed.storage.atomic import replacing
from mpifed.storage.ownership import HISTORY_MAGIC

if TYPE_CHECKING:
    from mpifed.storage.recorder import Recorder

__all__ = ["CARRIED", "History", "read"]

#: Bytes of rows that a checkpoint carries at most.
CARRIED = 2**18


def _digest(data=HISTORY_MAGIC):
    return hashlib.blake2b(data, digest_size=16)


def _path(folder: Path, table: str) -> Path:
    return Path(folder) / f"history-{table}.bin"


def _turned(table: str, values: np.ndarray) -> np.ndarray:
    """A table as a checkpoint has it, of one with a row an entry, and back: there metrics have a row each."""
    return values.T if table == "metrics" else values


def _identity(path: Path) -> tuple | None:
    """By which a file is known that nobody has touched, ``None`` where there is none."""
    try:
        now = os.lstat(path)
    except OSError:
        return None
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns


class _Written(NamedTuple):
    """A file as this process has left it."""

    identity: tuple | None
    rows: int
    digest: Any


class History:
    """Writes the history that a recorder has gathered (rank 0)."""

    def __init__(self, recorder: Recorder):
        self.recorder, self._files = recorder, {}  # path → what has been written to it

    def write(self, folder: Path) -> tuple[dict[str, dict], dict[str, np.ndarray]]:
        """Bring rows to the files in ``folder`` where a checkpoint there would have too many to carry.

        Returns:
            What the checkpoint names of each file, and the tables of rows that it carries.

        Raises:
            OSError: a file cannot be written; what earlier checkpoints name stays.
        """
        files = {table: _path(folder, table) for table in self.recorder.tables}
        self._files = {path: one for path, one in self._files.items() if one.identity == _identity(path)}
        rows = {table: self._rest(table, path) for table, path in files.items()}
        if sum(part.nbytes for part in rows.values()) > CARRIED:
            for table, path in files.items():
                if len(rows[table]):
                    self._add(path, rows[table])
                    rows[table] = self._rest(table, path)
        written = {table: self._files[path] for table, path in files.items() if path in self._files}
        named = {
            table: {"rows": one.rows, "digest": one.digest.hexdigest()} for table, one in written.items()
        }
        return named, {table: _turned(table, part) for table, part in rows.items()}

    def _rest(self, table: str, path: Path) -> np.ndarray:
        """The rows of a table that are not in its file."""
        return self.recorder.rows(table, self._files[path].rows if path in self._files else 0)

    def _add(self, path: Path, rows: np.ndarray) -> None:
        data, before = np.ascontiguousarray(rows), self._files.pop(path, None)
        if before is None:
            with replacing(path) as temporary, open(temporary, "wb") as file:
                file.write(HISTORY_MAGIC)
                file.write(data)
            before = _Written(None, 0, _digest())
        else:
            with open(path, "ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        before.digest.update(data)
        self._files[path] = _Written(_identity(path), before.rows + len(rows), before.digest)


def read(folder: Path, named: Mapping[str, Mapping], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint with its tables whole.

    Args:
        named, arrays: what it names of the files and carries, as from :meth:`History.write`.

    Raises:
        ValueError: a file is missing, too short, or altered.
    """
    whole = {}
    for table, one in named.items():
        late, path = _turned(table, arrays[table]), _path(folder, table)
        values = np.empty((one["rows"] + len(late), late.shape[1]), late.dtype)
        values[one["rows"] :] = late
        _fill(path, values[: one["rows"]], one["digest"])
        whole[table] = _turned(table, values)
    return arrays | whole


def _fill(path: Path, rows: np.ndarray, expected: str) -> None:
    """Read the first rows of a file."""
    if not path.is_file():
        raise ValueError(f"{path.name}, where its history begins, is missing")
    with open(path, "rb") as file:
        digest = _digest(file.read(len(HISTORY_MAGIC)))
        short = file.readinto(rows) < rows.nbytes
    digest.update(rows)
    if short or digest.hexdigest() != expected:
        what = "is cut off" if short else "does not match its digest"
        raise ValueError(f"{path.name}, where its history begins, {what}")
