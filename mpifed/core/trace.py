"""Traces of participation: which clients were available in which round, read from a CSV file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from mpifed.core.errors import shown
from mpifed.core.participation import Available
from mpifed.core.problem import DataFile
from mpifed.core.settings import near_miss

__all__ = ["read_trace"]

COLUMNS = ("round", "client")


def read_trace(file: str, clients: int) -> tuple[Available, DataFile]:
    """Who is available by the file's account, and the file with its digest.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is no such table, or names a client that there is not.
    """
    path = Path(file)
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise OSError(f"participation.law: cannot read the trace {shown(file)}: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"the trace {shown(file)} is no text: expected a CSV file") from None
    _expect_columns(file, lines[0] if lines else "")
    rows = [(number, line) for number, line in enumerate(lines[1:], 2) if line.strip()]
    if not rows:
        raise ValueError(f"the trace {shown(file)} is empty: expected a row for each round and client")
    pairs = np.array([_pair(f"{file}, line {number}", line, clients) for number, line in rows])
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    pairs = pairs[order]
    again = np.flatnonzero((pairs[1:] == pairs[:-1]).all(axis=1))
    if len(again):
        (r, client), number = pairs[again[0]], rows[order[again[0] + 1]][0]
        raise ValueError(f"{file}, line {number}: client {client} stands in round {r} already")
    rounds, members = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])

    def available(r: int, number: int) -> np.ndarray:
        return members[slice(*np.searchsorted(rounds, [r, r + 1]))]

    return available, DataFile(str(path.absolute()), hashlib.sha256(content).hexdigest())


def _expect_columns(file: str, line: str) -> None:
    names = [name.strip().strip('"') for name in line.split(",")]
    if tuple(names) == COLUMNS:
        return
    unknown = next((name for name in names if name not in COLUMNS), "")
    hint = f", {near_miss(unknown, COLUMNS)}" if unknown else ""
    raise ValueError(
        f"the trace {shown(file)} begins with {shown(line)}: expected the columns round,client{hint}"
    )


def _pair(where: str, line: str, clients: int) -> tuple[int, int]:
    try:
        r, client = map(int, line.split(","))
    except ValueError:
        raise ValueError(f"{where}: expected two whole numbers, round,client, got {shown(line)}") from None
    if not 1 <= r < 2**31:
        raise ValueError(f"{where}: rounds are numbered from 1, got {shown(r)}")
    if not 0 <= client < clients:
        raise ValueError(f"{where}: expected a client from 0 to {clients - 1}, got {shown(client)}")
    return r, client
