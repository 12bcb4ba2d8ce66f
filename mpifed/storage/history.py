"""The history of a run: one file next to its checkpoints, to which rows are only appended.

A row holds the records of a round: its costs, its metrics if it was evaluated, its iterates, and a checksum.
The header of a checkpoint has the number of rows that belong to it, so the time to write a checkpoint does
not grow with the history. A process that continues from a checkpoint writes the file again. All rows have one
size, so a damaged row affects no other row. The state of a run does not depend on its history, so the run
continues without rows that are damaged.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from mpifed.storage.atomic import replacing
from mpifed.storage.format import COSTS
from mpifed.storage.ownership import HISTORY_FILE, HISTORY_MAGIC

__all__ = ["ranges", "read", "row_type", "write"]

#: Bytes of rows that are written at once.
PIECE = 2**24


def row_type(metrics: int, iterates: Mapping[str, int], dtype: str) -> np.dtype:
    """A row: its checksum, costs, metrics (NaN in rounds without an evaluation) and iterates by block."""
    tables = [(f"iterates_{block}", dtype, (size,)) for block, size in iterates.items()]
    return np.dtype([("check", "u4"), ("costs", "f8", (len(COSTS),)), ("metrics", "f8", (metrics,)), *tables])


def _checks(rows: np.ndarray) -> np.ndarray:
    """The checksum of each row."""
    data = rows.view(np.uint8).reshape(len(rows), rows.itemsize)
    return np.array([zlib.crc32(row[4:]) for row in data], "u4")


def write(folder: Path, known: int, end: int, type: np.dtype, rows: Callable[[int, int], np.ndarray]) -> None:
    """Append rows to the history of a folder, or write the file again if it does not end with row ``known``.

    Args:
        known: rows that this process has written to the file.
        end: rows of the whole history.
        rows: returns the rows from a first one to before another one, without checksums.

    Raises:
        OSError: the file cannot be written; rows that are in it stay.
    """
    path = Path(folder) / HISTORY_FILE
    appends = known > 0 and _size(path) == len(HISTORY_MAGIC) + known * type.itemsize
    with contextlib.nullcontext(path) if appends else replacing(path) as target, open(target, "ab") as file:
        if not appends:
            file.write(HISTORY_MAGIC)
        step = max(1, PIECE // type.itemsize)
        for start in range(known if appends else 0, end, step):
            file.write(_checked(rows(start, min(start + step, end))))
        if appends:
            file.flush()
            os.fsync(file.fileno())


def _size(path: Path) -> int:
    """The size of a file in bytes, -1 if there is none."""
    return path.stat().st_size if path.is_file() and not path.is_symlink() else -1


def _checked(rows: np.ndarray) -> np.ndarray:
    rows["check"] = _checks(rows)
    return rows


def read(folder: Path, header: Mapping) -> tuple[dict[str, np.ndarray], list[int]]:
    """The history up to a checkpoint.

    Args:
        header: of the checkpoint, which has the costs after its own round.

    Returns:
        Tables as :meth:`Recorder.restore` takes them, with NaN for the costs and iterates of damaged rows;
        and the rounds of these rows.
    """
    rows = np.zeros(
        header["round"] + 1, row_type(len(header["metrics"]), header["recorded"], header["sizes"]["dtype"])
    )
    if (folder / HISTORY_FILE).is_file():
        with contextlib.suppress(OSError), open(folder / HISTORY_FILE, "rb") as file:
            file.seek(len(HISTORY_MAGIC))
            file.readinto(rows)
    rounds, numbers = rows["costs"][:, 0], np.arange(len(rows))
    whole = (rows["check"] == _checks(rows)) & (np.isnan(rounds) | (rounds == numbers))
    for table in rows.dtype.names[1:]:
        rows[table][~whole] = np.nan
    rows["costs"][-1] = header["totals"]
    evaluated = ~np.isnan(rows["metrics"][:, 0])
    tables = {"costs": rows["costs"], "metrics": rows["metrics"][evaluated].T}
    iterates = {name: rows[name][1:] for name in rows.dtype.names[3:]}
    return tables | iterates, numbers[~whole].tolist()


def ranges(rounds: list[int]) -> str:
    """Rounds in words: "3, 5 to 7"."""
    edges = [k for k in range(1, len(rounds)) if rounds[k] > rounds[k - 1] + 1]
    parts = [rounds[a:b] for a, b in zip([0, *edges], [*edges, len(rounds)])]
    return ", ".join(f"{one[0]} to {one[-1]}" if len(one) > 1 else str(one[0]) for one in parts)
