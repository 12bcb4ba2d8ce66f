"""Tables in LIBSVM's text format: ``label column:value ...`` in each row."""

from __future__ import annotations

import io
import warnings
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from mpifed.base.memory import format_bytes, host_memory
from mpifed.data.samples import Table
from mpifed.data.sources import DataError, Source, opened, parsing

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

__all__ = ["LibSVM", "expect_dense_memory", "read_rows"]

#: Maximum length of a row's label, and of one of its cells.
_LABEL, _CELL = 64, 64
#: A warning reports dense samples of at least ``LARGE`` bytes with less than this share of nonzero numbers.
LARGE, SPARSE = 2**28, 0.01


@dataclass(frozen=True)
class LibSVM:
    """A table in LIBSVM's text format. Without a test file, every fifth row (index % 5 == 4) is a test row.

    Attributes:
        name: name of the data set and of its file; the test file has the suffix ``.t``.
        train, test: numbers of rows; 0 test rows if the set has no test file.
        columns: number of columns.
        labels: the two labels in the file, the negative one first.
    """

    name: str
    train: int
    test: int
    columns: int
    labels: tuple[int, int]
    home = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"

    def __call__(self, data_dir: str | None = None) -> Table:
        """Read the files, from a folder ``libsvm``. Columns that a row omits are 0.

        Raises:
            DataError: a file is missing, damaged or not the expected one.
        """
        with opened(self.name, self.home, data_dir, "libsvm") as source:
            rows, labels = self._read(source, self.name, self.train)
            if self.test and source.find(f"{self.name}.t"):
                return Table(rows, labels, *self._read(source, f"{self.name}.t", self.test), source.files)
        test = torch.arange(len(labels)) % 5 == 4
        return Table(rows[~test], labels[~test], rows[test], labels[test], source.files)

    def _read(self, source: Source, name: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows ``[n, d]``, float32, and labels, 0 or 1."""
        low, high = self.labels
        expected = f"{count} rows of LIBSVM text with labels {low} and {high} and columns 1 to {self.columns}"
        limit = count * (_LABEL + _CELL * self.columns)
        sparse, labels = read_rows(source, name, expected, self.columns, limit)
        path = source.files[name].path
        if len(labels) != count:
            raise DataError(f"{path}: expected {expected}, found {len(labels)} rows")
        known = np.isin(labels, self.labels)
        if not known.all():
            row = int(known.argmin())
            raise DataError(f"{path}: expected {expected}, found the label {labels[row]:g} in row {row + 1}")
        return torch.from_numpy(sparse.toarray()), torch.from_numpy((labels == high).astype(np.int64))


def read_rows(
    source: Source, name: str, expected: str, columns: int | None = None, limit: int | None = None
) -> tuple[csr_matrix, np.ndarray]:
    """Return the sparse rows ``[n, d]``, float32, and labels ``[n]``, float64, of a file.

    Args:
        expected: a description of the file, for messages.
        columns: number of columns, by default the largest that occurs.
        limit: maximum number of bytes of the file.

    Raises:
        DataError: the file is missing or damaged, or has values that are not finite.
    """
    from sklearn.datasets import load_svmlight_file  # takes a second

    path, content = source.read(name, expected, limit)

    def parse(text: bytes):
        return load_svmlight_file(io.BytesIO(text), n_features=columns, dtype=np.float32, zero_based=False)

    text = bytes(content)
    with parsing(path, expected):
        try:
            sparse, labels = parse(text)
        except Exception:  # the parser does not report the line number
            number, line = _first_invalid_line(list(io.BytesIO(text)), parse)
            with parsing(path, expected, f"in line {number}: "):
                parse(line)
            raise
        if not len(labels):
            raise ValueError("no rows")
    bad, rows = ~np.isfinite(sparse.data), np.repeat(np.arange(len(labels)), np.diff(sparse.indptr))
    if bad.any():
        where = f"row {rows[bad][0] + 1}, column {sparse.indices[bad][0] + 1}"
        raise DataError(f"{path}: expected finite numbers, found {sparse.data[bad][0]} in {where} (float32)")
    if (large := np.abs(labels) >= 2**53).any():  # as float64, several labels would be one
        row = int(large.argmax())
        raise DataError(f"{path}: expected labels below 2^53, found {labels[row]:.17g} in row {row + 1}")
    return sparse, labels


def expect_dense_memory(rows: csr_matrix, what: str, where: Callable[[int], str]) -> None:
    """Check that rows fit into memory as dense samples, which all methods use.

    Warns if they need at least :data:`LARGE` bytes and nearly all elements are 0.

    Args:
        rows: ``[n, d]``.
        what: the files, for messages.
        where: function that returns the place of a row, for messages.

    Raises:
        DataError: the rows do not fit.
    """
    n, d = rows.shape
    needed, memory = 4 * n * d, host_memory()
    text = f"{what}: {n:,} rows of {d:,} columns"
    if needed > memory:
        last = int(np.searchsorted(rows.indptr, rows.indices.argmax(), side="right")) - 1
        column = f"{d:,} in {where(last).rpartition(', ')[2]}"
        raise DataError(
            f"{text} take {format_bytes(needed)} as dense float32, this machine has {format_bytes(memory)}: "
            f"if the largest column number, {column}, is a mistake, correct it; otherwise "
            "use fewer columns (hash them, or leave out rare ones) or fewer rows"
        )
    if needed >= LARGE and rows.nnz < SPARSE * n * d:
        share, size = f"{100 * rows.nnz / (n * d):.1g} %", format_bytes(needed)
        warnings.warn(f"{text}, {share} of them not 0, take {size} as dense float32", stacklevel=2)


def _first_invalid_line(lines: list[bytes], parse) -> tuple[int, bytes]:
    """Return the number and text of the first line that ``parse`` cannot read, by bisection."""

    def fails(count: int) -> bool:
        try:
            parse(b"".join(lines[:count]))
        except Exception:  # as above
            return True
        return False

    number = bisect(range(1, len(lines)), False, key=fails) + 1
    return number, lines[number - 1]
