"""The history of a run: one append-only file next to the checkpoints.

One row per round holds a checksum, the costs, the metrics if the round was evaluated, and recorded iterates.
The round in a checkpoint's header gives the number of rows that belong to it, so the time to write a
checkpoint does not grow with the history. All rows have the same size and a checksum each, so a damaged
row affects no other row. Damaged rows are read from the results file, if it contains them. The state of a run
does not depend on its history: the run continues without rows that are lost. A process that resumes a run
writes the whole file again at its first checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from mpifed.base.errors import format_ranges
from mpifed.base.log import warning
from mpifed.storage.files import HISTORY_FILE, HISTORY_MAGIC, RUN_FILE, is_own, open_file, replacing
from mpifed.storage.results import COSTS, read_if_valid

__all__ = ["read", "row_type", "write"]

#: Maximum number of bytes that are written at once.
MAX_WRITE = 2**24


def row_type(metrics: int, iterates: Mapping[str, int], dtype: str) -> np.dtype:
    """Return the dtype of a row: checksum, costs, metrics (NaN if not evaluated) and iterates by block."""
    tables = [(f"iterates_{block}", dtype, (size,)) for block, size in iterates.items()]
    return np.dtype([("check", "u4"), ("costs", "f8", (len(COSTS),)), ("metrics", "f8", (metrics,)), *tables])


def _checksums(rows: np.ndarray) -> np.ndarray:
    data = rows.view(np.uint8).reshape(len(rows), rows.itemsize)
    return np.array([zlib.crc32(row[4:]) for row in data], "u4")


def write(
    folder: Path, written: int, end: int, type: np.dtype, rows: Callable[[int, int], np.ndarray]
) -> None:
    """Append rows to the history, or write the whole file if it does not consist of ``written`` rows.

    Args:
        written: number of rows that this process has already written to the file.
        end: number of rows of the whole history.
        rows: returns the rows ``start:stop`` without checksums.

    Raises:
        OSError: the file cannot be written; rows that it already contains remain.
    """
    path = Path(folder) / HISTORY_FILE
    size = path.stat().st_size if is_own(path) else -1
    appends = written > 0 and size == len(HISTORY_MAGIC) + written * type.itemsize
    with contextlib.nullcontext(path) if appends else replacing(path) as target, open(target, "ab") as file:
        if not appends:
            file.write(HISTORY_MAGIC)
        step = max(1, MAX_WRITE // type.itemsize)
        for start in range(written if appends else 0, end, step):
            file.write(_with_checksums(rows(start, min(start + step, end))))
        if appends:
            file.flush()
            os.fsync(file.fileno())


def _with_checksums(rows: np.ndarray) -> np.ndarray:
    rows["check"] = _checksums(rows)
    return rows


def read(folder: Path, header: Mapping) -> tuple[dict[str, np.ndarray], list[int]]:
    """Read the history up to a checkpoint. Damaged rows cause a warning.

    Args:
        header: header of the checkpoint, which contains the costs of its own round. They identify the run.

    Returns:
        Tables for :meth:`Recorder.restore`, with NaN for the costs and iterates of lost rows; and the
        rounds of these rows.
    """
    rows = np.zeros(
        header["round"] + 1, row_type(len(header["metrics"]), header["recorded"], header["sizes"]["dtype"])
    )
    state = "is damaged or of another run"
    try:
        with open_file(folder / HISTORY_FILE) as file:
            file.seek(len(HISTORY_MAGIC))
            file.readinto(rows)
    except OSError as error:
        state = f"cannot be read ({error.strerror or error})"
    rounds, numbers = rows["costs"][:, 0], np.arange(len(rows))
    valid = (rows["check"] == _checksums(rows)) & (np.isnan(rounds) | (rounds == numbers))
    # Rows of another run with the same sizes are valid, too, but its round took another time.
    valid &= not valid[-1] or np.array_equal(rows["costs"][-1], header["totals"])
    for table in rows.dtype.names[1:]:
        rows[table][~valid] = np.nan
    rows["costs"][-1] = header["totals"]
    damaged = numbers[~valid].tolist()
    restored = _restore(rows, damaged, folder, header) if damaged else []
    lost = sorted({*damaged} - {*restored})
    reason = f"{folder / HISTORY_FILE} {state}"
    if restored:
        warning(f"{reason}: rounds {format_ranges(restored, ' to ')} are read from {RUN_FILE}")
    if lost:
        warning(
            f"{reason}: the costs, metrics and recorded iterates of rounds {format_ranges(lost, ' to ')} are "
            "lost; the run continues from the state in its checkpoint, which is complete"
        )
    evaluated = ~np.isnan(rows["metrics"][:, 0])
    tables = {"costs": rows["costs"], "metrics": rows["metrics"][evaluated].T}
    iterates = {name: rows[name][1:] for name in rows.dtype.names[3:]}
    return tables | iterates, lost


def _restore(rows: np.ndarray, damaged: list[int], folder: Path, header: Mapping) -> list[int]:
    """Fill damaged rows, whose values are NaN, from the results file in ``folder``, and return their rounds.

    Nothing is filled from the results of another run: seed, problem, names of metrics and sizes of iterates,
    and the costs of the rounds that are known, must be the same.
    """
    results = read_if_valid(folder)
    if results is None:
        return []
    (run, output), names = results, header["metrics"][1:]
    costs = dict(zip(run.costs["round"].tolist(), np.array([run.costs[name] for name in COSTS], float).T))
    known = {r for r, row in enumerate(rows["costs"]) if not np.isnan(row[0])}
    same_run = (
        all(run.config.get(key) == header["config"].get(key) for key in ("seed", "problem"))
        and {*names} <= {*run.metrics}
        and all(np.array_equal(costs[r], rows["costs"][r]) for r in known & {*costs})
        and all(
            output.iterates.get(block, rows[:0]).shape == (run.last_round, size)
            for block, size in header["recorded"].items()
        )
    )
    if not same_run:
        return []
    evaluated = {r: place for place, r in enumerate(run.metric_rounds.tolist())}
    restored = [r for r in damaged if r in costs]
    for r in restored:
        rows["costs"][r] = costs[r]
        if r in evaluated:
            rows["metrics"][r] = [r, *(run.metrics[name][evaluated[r]] for name in names)]
        for block in header["recorded"] if r else ():
            rows[f"iterates_{block}"][r] = output.iterates[block][r - 1]
    return restored
