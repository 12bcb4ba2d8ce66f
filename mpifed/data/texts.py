"""Labelled texts in tables (tab- or comma-separated), or in one file a class with one text a line."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mpifed.data.samples import Texts
from mpifed.data.sources import DataError, Source, opened, parsing

__all__ = ["TextColumns", "TextLines", "TextSet"]

Part = tuple[list[str], np.ndarray]


def _lines(source: Source, name: str, expected: str, encoding: str) -> tuple:
    """Path and text of a file that must be complete to the end of its last line."""
    path, content = source.read(name, expected)
    with parsing(path, expected):
        raw = bytes(content)
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise ValueError(f"bytes that are not {encoding} in line {line}") from error
    if not text.endswith("\n"):
        raise DataError(f"{path}: expected {expected}, found a last line without an end")
    return path, text


@dataclass(frozen=True)
class TextColumns:
    """A table with a text and a label a row. A first row without a label is a header.

    Attributes:
        file: its official name.
        columns: number of columns.
        text, label: which of them hold the text and the label.
        labels: label in the file → 1 (positive), 0 (negative) or None (rows to leave out).
        rows: number of rows without the header, ``None`` where it is not fixed.
        delimiter, encoding: of the file.
        quoted: whether cells may stand in quotation marks.
    """

    file: str
    columns: int
    text: int
    label: int
    labels: Mapping[str, int | None]
    rows: int | None = None
    delimiter: str = ","
    encoding: str = "utf-8"
    quoted: bool = True

    def present(self, source: Source) -> bool:
        """Whether the file exists."""
        return source.find(self.file) is not None

    def read(self, source: Source) -> Part:
        """Texts and labels.

        Raises:
            DataError: the file is missing, damaged, or has other columns, labels or numbers of rows.
        """
        count = "" if self.rows is None else f"{self.rows} "
        known = ", ".join(self.labels)
        expected = f"{count}rows of {self.columns} columns split by {self.delimiter!r}, labels {known}"
        path, text = _lines(source, self.file, expected, self.encoding)
        quoting = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
        # Without a number of rows to go by, a quotation mark that is never closed must not swallow the rest.
        strict = self.rows is None
        rows = csv.reader(
            io.StringIO(text, newline=""), delimiter=self.delimiter, quoting=quoting, strict=strict
        )
        texts, labels, total = [], [], 0
        try:
            for number, row in enumerate(rows):
                if len(row) != self.columns:
                    raise csv.Error(f"{len(row)} columns")
                if row[self.label] not in self.labels:
                    if number == 0:
                        continue
                    raise csv.Error(f"the label {row[self.label][:20]!r}")
                total += 1
                label = self.labels[row[self.label]]
                if label is not None:
                    texts.append(row[self.text])
                    labels.append(label)
        except csv.Error as error:
            raise DataError(f"{path}: expected {expected}, found {error} in line {rows.line_num}") from error
        if not texts or self.rows not in (None, total):
            raise DataError(f"{path}: expected {expected}, found {total} rows")
        return texts, np.array(labels, dtype=np.int64)


@dataclass(frozen=True)
class TextLines:
    """One file for the negative texts and one for the positive ones, one text a line.

    Attributes:
        negative, positive: official names of the files.
    """

    negative: str
    positive: str

    def present(self, source: Source) -> bool:
        """Whether the file of the negative texts exists."""
        return source.find(self.negative) is not None

    def read(self, source: Source) -> Part:
        """Texts and labels, the negative ones first.

        Raises:
            DataError: a file is missing, damaged, or empty.
        """
        texts, labels = [], []
        for label, name in enumerate((self.negative, self.positive)):
            path, text = _lines(source, name, "lines of UTF-8 text", "utf-8")
            lines = text.removesuffix("\n").split("\n")
            if empty := [number for number, line in enumerate(lines, 1) if not line.strip()]:
                raise DataError(f"{path}: expected lines of UTF-8 text, found an empty line {empty[0]}")
            texts += lines
            labels += [label] * len(lines)
        return texts, np.array(labels, dtype=np.int64)


@dataclass(frozen=True)
class TextSet:
    """Labelled texts to train and to test on.

    Attributes:
        name: the data set's name.
        folders: the names that its folder may have.
        home: its home page, for messages.
        train, test: how the parts may be stored; the first form whose file exists is read.
    """

    name: str
    folders: tuple[str, ...]
    home: str
    train: tuple[TextColumns | TextLines, ...]
    test: tuple[TextColumns | TextLines, ...]

    def __call__(self, data_dir: str | None = None) -> Texts:
        """Read both parts.

        Raises:
            DataError: a file is missing, damaged or another one.
        """
        with opened(self.name, self.home, data_dir, *self.folders) as source:
            parts = [
                next((form for form in forms if form.present(source)), forms[0]).read(source)
                for forms in (self.train, self.test)
            ]
        return Texts(*parts[0], *parts[1], source.files)
