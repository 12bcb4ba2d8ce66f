"""User-defined tables: the roles of their columns, and the split of their rows.

The format of a file follows from its suffix: ``.csv`` and ``.tsv`` with a header, ``.npz`` with arrays of one
length, any other name LIBSVM text. Each may be compressed (``.gz``, ``.xz``). CSV files are parsed by pandas.

Test rows are a random fraction of each class, the rows of a second file, or the rows that a column marks. The
random fraction does not depend on the run's seed: a table has the same test split in all runs.

Missing features are replaced by statistics of the training rows of all clients, for test and validation rows,
too, or rows with missing features are dropped, according to ``missing``. A missing word belongs to no
category: all columns of its one-hot encoding are 0.
"""

from __future__ import annotations

import csv
import io
import json
import mmap
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from mpifed.base.errors import expect_extra, short_repr
from mpifed.base.settings import UserPath, default_of, hyperparameters, settings_of, suggest
from mpifed.core.numerics import first_non_finite
from mpifed.data.libsvm import expect_dense_memory, read_rows
from mpifed.data.npz import read_arrays
from mpifed.data.samples import (
    PARTS,
    Grouping,
    Labelled,
    Texts,
    as_float32,
    encode_labels,
    expect_all_classes,
    hold_out,
    is_decimal,
    owner_fields,
    split_fields,
    standardized,
    warn_of_names,
    warn_of_scales,
)
from mpifed.data.sources import SUFFIXES, DataError, Source, parsing

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_matrix

__all__ = ["UserTable", "UserTexts"]

#: The name of the label column of LIBSVM text, which has no column names.
LABEL = "label"
#: Maximum number of distinct words in a column of words; each becomes a column.
CATEGORIES = 256
#: Maximum number of columns with missing values in a message.
GAPS = 10
#: Numbers with separators of thousands, or with the sign of a currency or of percents.
_FORMATTED = re.compile(r"[-+−]?[$€£¥]?\s?(\d{1,3}([,.'\s]\d{3})+|\d+)([.,]\d+)?\s?[%$€£¥]?")


class Places(NamedTuple):
    """The origin of concatenated rows: the files, and the number of rows of each."""

    files: Sequence[str]
    sizes: Sequence[int]

    def part(self, file: int) -> np.ndarray:
        """Return the numbers of the rows of a file."""
        start = sum(self.sizes[:file])
        return np.arange(start, start + self.sizes[file])

    def where(self, row: int) -> str:
        """Return file and row, from 1 without the header, for messages."""
        file = int(np.searchsorted(np.cumsum(self.sizes), row, side="right"))
        return f"{self.files[file]}, row {row + 1 - sum(self.sizes[:file])}"


@dataclass(frozen=True, eq=False)
class Rows:
    """The concatenated rows of files.

    Attributes:
        places: origin of the rows.
        samples: ``[n, ...]``; sparse for LIBSVM text. Missing values of .csv and .tsv files are NaN.
        numeric: which columns of ``[n, d]`` samples are numbers rather than words, ``[d]`` bool.
        columns: the requested columns by name, ``[n]`` each.
        names: names of the columns of the samples, if they have names.
        incomplete: which rows have missing values, ``[n]`` bool; ``None`` if there may be none.
    """

    places: Places
    samples: np.ndarray | csr_matrix
    numeric: np.ndarray | slice
    columns: dict[str, np.ndarray]
    names: Sequence[str] = ()
    incomplete: np.ndarray | None = None

    def where(self, row: int, *index: int) -> str:
        """Return the place of a number of a sample, for messages."""
        column = short_repr(self.names[index[0]]) if self.names else ", ".join(str(i + 1) for i in index)
        return f"{self.places.where(row)}, column {column}"


def _format(file: str) -> str:
    """Return ``"csv"``, ``"tsv"``, ``"npz"`` or ``"libsvm"``, by the file's name."""
    name = file.lower()
    for suffix in SUFFIXES[1:]:
        name = name.removesuffix(suffix)
    ending = Path(name).suffix.lstrip(".")
    return ending if ending in ("csv", "tsv", "npz") else "libsvm"


@hyperparameters
class _Splits:
    """A file and the settings that assign its rows to training, validation and test."""

    file: UserPath = Field(
        description="the file: .csv, .tsv, .npz; others are LIBSVM text; relative to the working folder"
    )
    target: str = Field(default=LABEL, description="column of the labels: words, whole numbers or booleans")
    test: float | UserPath | None = Field(
        default=None, description="fraction of test rows, such as 0.2, or a second file with the test rows"
    )
    validation: UserPath | None = Field(default=None, description="file with the validation rows")
    split: str | None = Field(
        default=None,
        description="column with the split of each row (train, validation or test); replaces test",
    )
    client: str | None = Field(
        default=None, description='column with the client of each row, for partition = "natural"'
    )
    separator: str | None = Field(
        default=None,
        min_length=1,
        max_length=1,
        description="character between the cells; default: a comma in .csv files, a tab in .tsv files",
    )
    encoding: str = Field(
        default="utf-8-sig", description='encoding of .csv and .tsv files, such as "latin-1"'
    )
    quoted: bool = Field(
        default=True,
        description="whether cells of .csv and .tsv files may be in quotation marks; false: a quotation mark "
        "is a character of the cell",
    )

    def __post_init__(self):
        if (self.test is None) == (self.split is None):
            raise ValueError(
                "expected either test (a fraction of the rows, or a second file) or split (a column), got "
                f"{'neither' if self.test is None else 'both'}"
            )
        if not isinstance(self.test, str | None) and not 0 < self.test < 1:
            raise ValueError(f"test: expected a fraction between 0 and 1, or a file, got {self.test}")
        if self.split and self.validation:
            raise ValueError("expected either validation (a file) or split (a column), got both")

    @property
    def files(self) -> dict[str, str]:
        """The files by split."""
        named = {"train": self.file, "test": self.test, "validation": self.validation}
        return {part: file for part, file in named.items() if isinstance(file, str)}

    @property
    def format(self) -> dict[str, Any]:
        """The options of pandas for the format of .csv and .tsv files."""
        default = "," if _format(self.file) == "csv" else "\t"
        quoting = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
        return {"sep": self.separator or default, "encoding": self.encoding, "quoting": quoting}

    @property
    def named(self) -> list[str]:
        """The columns of labels, splits and clients, which are not part of the samples."""
        return [name for name in (self.target, self.split, self.client) if name]

    def rows(
        self, places: Places, columns: dict[str, np.ndarray], labels: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the row numbers of each split.

        Raises:
            ValueError: a row belongs to no split, or there are no rows for training or test.
        """
        if self.split:
            words = columns[self.split].astype(object).astype(str)
            if unknown := np.flatnonzero(~np.isin(words, PARTS)).tolist():
                raise DataError(
                    f"{places.where(unknown[0])}: expected train, validation or test in column "
                    f"{short_repr(self.split)}, found {short_repr(str(words[unknown[0]]))}"
                )
            parts = {part: np.flatnonzero(words == part) for part in PARTS}
        else:
            parts = {part: places.part(number) for number, part in enumerate(self.files)}
            if isinstance(self.test, float):
                rows = hold_out(labels[parts["train"]], self.test, 0, "test")
                parts |= dict(zip(("train", "test"), rows))
        if empty := [part for part in ("train", "test") if not len(parts[part])]:
            raise DataError(f"{self.file}: expected {empty[0]} rows, found none")
        return {part: rows for part, rows in parts.items() if len(rows)}

    def owners(
        self, columns: dict[str, np.ndarray], train: np.ndarray, where: Callable[[int], str], by_value: bool
    ) -> dict[str, Any]:
        """Return the fields of the clients, as :func:`owner_fields`.

        Warns of clients whose rows are all test rows because of the random fraction ``test``.
        """
        if not self.client:
            return {}
        clients = columns[self.client]
        fields = owner_fields(clients, self.client, train, where, by_value)
        lost = sorted({*encode_labels(clients, self.client, where)[0]} - {*fields["owner_names"]})
        if lost and isinstance(self.test, float):
            warnings.warn(
                f"{self.file}: {len(lost)} clients are left out of training, such as {short_repr(lost[0])}, "
                f"because test = {self.test} has drawn all their rows: use a smaller fraction, or a column "
                "split",
                stacklevel=2,
            )
        return fields

    def __str__(self) -> str:
        return self.file


@hyperparameters
class UserTable(_Splits):
    """Rows of numbers in a user-defined file: CSV, a NumPy archive or LIBSVM text.

    Columns of words are one-hot encoded. A NumPy archive contains the target and one array of samples
    ``[n, ...]``. Missing values are refused, unless ``missing`` is set.
    """

    drop: tuple[str, ...] = Field(default=(), description="columns to leave out, such as row numbers")
    groups: tuple[str, ...] = Field(
        default=(), description="columns that divide the rows into groups, such as sex, for fair learning"
    )
    group_features: bool = Field(
        default=False, description="use the columns of groups as features, too; .csv and .tsv files only"
    )
    standardize: bool = Field(
        default=False,
        description="standardise numeric columns by mean and standard deviation of the training rows",
    )
    missing: Literal["mean", "median", "indicator", "drop"] | None = Field(
        default=None,
        description="missing features: mean or median of the training rows replace them; indicator: the "
        "mean, and a further column that is 1 in rows without a value; drop: rows with gaps are left out; "
        "default: an error; .csv and .tsv files only",
    )

    needs = {"group_features": ("groups", lambda table: table.groups)}

    def __post_init__(self):
        super().__post_init__()
        format = _format(self.file)
        if format == "libsvm" and (self.target != LABEL or self.split or self.client or self.groups):
            raise ValueError(
                f"{short_repr(self.file)} is read as LIBSVM text, whose columns have no names: leave out "
                "target, split, client and groups, or use a .csv, .tsv or .npz file"
            )
        if format in ("npz", "libsvm"):
            fields = settings_of(type(self))
            for name in ("drop", "separator", "encoding", "quoted", "group_features", "missing"):
                if getattr(self, name) != default_of(fields[name]):
                    raise ValueError(f"{name} applies only to .csv and .tsv files")
        if dropped := [name for name in self.drop if name in self.named]:
            raise ValueError(
                f"drop: expected columns other than those of target, split, client and groups, got "
                f"{short_repr(dropped[0])}"
            )
        if self.group_features and self.target in self.groups:
            raise ValueError(f"group_features would make the target {short_repr(self.target)} a feature")
        if other := [file for file in self.files.values() if _format(file) != format]:
            raise ValueError(
                f"expected files of one format, got {short_repr(self.file)} and {short_repr(other[0])}"
            )

    @property
    def named(self) -> list[str]:
        """The columns of labels, splits, clients and groups, which are not part of the samples."""
        return [*super().named, *self.groups]

    def __call__(self, data_dir: str | None = None) -> Labelled:
        """Read the files.

        Raises:
            DataError: a file is missing, damaged, or has other columns; a value is missing; a class has no
                training rows.
        """
        source, files = Source("the data set", [Path()]), list(self.files.values())
        format = _format(self.file)
        if format == "npz":
            rows = _read_npz(source, files, self.named)
        elif format == "libsvm":
            rows = _read_libsvm(source, files)
        else:
            kept = self.groups if self.group_features else ()
            rows = _read_csv(source, files, self.named, self.drop, kept, self.format, self.missing)
        if text := format in ("csv", "tsv"):
            for name in (self.target, *self.groups):
                _expect_no_fractions(rows, name)
        where = rows.places.where
        classes, labels = encode_labels(rows.columns[self.target], self.target, where, text)
        parts = self.rows(rows.places, rows.columns, labels)
        if self.missing == "drop":
            parts = {part: which[~rows.incomplete[which]] for part, which in parts.items()}
            if empty := [part for part, which in parts.items() if not len(which)]:
                raise DataError(f"{self.file}: expected {empty[0]} rows without missing values, found none")
        expect_all_classes(classes, {part: labels[which] for part, which in parts.items()}, self.file)
        if self.missing:
            _fill(rows, parts["train"], np.median if self.missing == "median" else np.mean)
        samples = _standardized(rows, parts["train"]) if self.standardize else _dense(rows.samples)
        samples = as_float32(samples, rows.where)
        if not self.standardize:
            columns = rows.names or range(1, samples.shape[1] + 1)
            warn_of_scales(samples, self.file, "set problem.dataset.standardize = true", columns)
        samples, labels = map(torch.from_numpy, (samples, labels))
        return Labelled(
            **split_fields({part: (samples[which], labels[which]) for part, which in parts.items()}),
            files=source.files,
            class_names=classes,
            **self.owners(rows.columns, parts["train"], where, text),
            groups={name: _grouping(name, rows, parts, text) for name in self.groups},
        )


@hyperparameters
class UserTexts(_Splits):
    """Texts with two classes of labels in a user-defined .csv or .tsv file, one text per row."""

    file: UserPath = Field(description="the file, .csv or .tsv, relative to the working folder")
    text: str = Field(default="text", description="column of the texts")
    positive: str | None = Field(
        default=None,
        description="positive label; by default the larger of two numbers, or the second of two words in "
        "alphabetical order",
    )

    def __post_init__(self):
        super().__post_init__()
        if wrong := [file for file in self.files.values() if _format(file) not in ("csv", "tsv")]:
            raise ValueError(
                f"expected a .csv or .tsv file with a column of texts, got {short_repr(wrong[0])}"
            )

    def __call__(self, data_dir: str | None = None) -> Texts:
        """Read the files. Only an empty cell is a missing value.

        Raises:
            DataError: a file is missing, damaged, or has other columns; a cell is empty; there are not two
                classes.
        """
        source = Source("the data set", [Path()])
        named = [*self.named, self.text]
        as_words = self.format | {"dtype": str, "keep_default_na": False, "na_values": [""]}
        files = list(self.files.values())
        table, words, places = _concatenated(source, files, self.named, as_words, [self.text])
        _expect_no_gaps(table[named].isna(), places, named)
        _warn_of_names(words, places)
        columns = {name: table[name].to_numpy(object) for name in named}
        classes, labels = encode_labels(columns[self.target], self.target, places.where, by_value=True)
        parts, labels = self.rows(places, columns, labels), self._positive(classes, labels)
        texts = columns[self.text]
        pairs = {part: (texts[which].tolist(), labels[which]) for part, which in parts.items()}
        known = {part: labels for part, (_, labels) in pairs.items()}
        expect_all_classes(("negative", "positive"), known, self.file)
        return Texts(
            **split_fields(pairs),
            files=source.files,
            **self.owners(columns, parts["train"], places.where, by_value=True),
        )

    def _positive(self, classes: Sequence[str], labels: np.ndarray) -> np.ndarray:
        if self.positive is None and len(classes) == 2:
            return labels
        if self.positive not in classes:
            found = "two labels or the setting positive" if self.positive is None else repr(self.positive)
            raise DataError(
                f"{self.file}: expected {found} in column {short_repr(self.target)}, which has "
                f"{len(classes)} labels: {suggest(self.positive or '', classes)}"
            )
        return (labels == classes.index(self.positive)).astype(np.int64)


def _dense(samples: np.ndarray | csr_matrix) -> np.ndarray:
    return samples if isinstance(samples, np.ndarray) else samples.toarray()


def _grouping(name: str, rows: Rows, parts: dict[str, np.ndarray], by_value: bool) -> Grouping:
    names, numbers = encode_labels(rows.columns[name], name, rows.places.where, by_value)
    return Grouping(names, {part: numbers[which] for part, which in parts.items()})


def _fill(rows: Rows, train: np.ndarray, statistic: Callable[[np.ndarray], float]) -> None:
    """Replace missing values, NaN, by a statistic of the values of their column in the training rows.

    Raises:
        DataError: a column has no values in the training rows.
    """
    gaps = np.isnan(rows.samples)
    for column in np.flatnonzero(gaps.any(axis=0)).tolist():
        known = rows.samples[train, column][~gaps[train, column]]
        if not len(known):
            raise DataError(
                f"{', '.join(rows.places.files)}: expected training rows with a value in column "
                f"{short_repr(rows.names[column])}, found none: leave the column out with drop"
            )
        rows.samples[gaps[:, column], column] = statistic(known)


def _standardized(rows: Rows, train: np.ndarray) -> np.ndarray:
    """Standardise numeric columns by mean and standard deviation of the training rows."""
    samples = _dense(rows.samples).astype(np.float64)
    samples[..., rows.numeric] = standardized(samples, train)[..., rows.numeric]
    return samples


def _expect_no_fractions(rows: Rows, name: str) -> None:
    """Check that a column of classes or groups does not contain measurements.

    Raises:
        DataError: all texts are numbers, and one of them is a fraction.
    """
    texts = rows.columns[name].tolist()
    if all(map(is_decimal, {*texts})):
        for row, text in enumerate(texts):
            if not (float(text).is_integer() or np.isinf(float(text))):
                raise DataError(
                    f"{rows.places.where(row)}: expected words or whole numbers in {short_repr(name)}, found "
                    f"{short_repr(text)}"
                )


def _expect_column(file: str, name: str, columns: Collection[str]) -> None:
    """Check that a file has a column.

    Raises:
        DataError: it has no such column.
    """
    if name not in columns:
        raise DataError(f"{file} has no column {short_repr(name)}: {suggest(name, columns)}")


def _read_csv(
    source: Source,
    files: Sequence[str],
    named: Sequence[str],
    drop: Sequence[str],
    kept: Sequence[str],
    options: dict,
    missing: str | None,
) -> Rows:
    """Read all columns except ``drop`` and those in ``named`` but not in ``kept`` as samples, float64.

    Columns of numbers or booleans are copied; columns of words are one-hot encoded, in alphabetical order.
    The cells of the columns ``named`` are texts. ``missing`` is the setting of :class:`UserTable`: indicators
    are added as columns. Missing numbers are NaN.
    """
    table, texts, places = _concatenated(source, files, named, options, drop)
    table = table.drop(columns=list(drop))
    if unnamed := [name for name in table.columns if name.startswith("Unnamed: ")]:  # pandas' placeholder
        raise DataError(
            f"{files[0]}: expected a name for every column, found a column without a name, perhaps row "
            f"numbers; to leave it out, set drop = [{', '.join(map(json.dumps, unnamed))}]"
        )
    gaps = table.isna()
    for name in named:  # also "NA" is a name, of Namibia for example
        gaps[name] = (texts[name] == "") | (gaps[name] if name in kept else False)
    _expect_no_gaps(gaps[[*dict.fromkeys(named)]] if missing else gaps, places, named)
    _warn_of_names(texts, places)
    features = [name for name in table.columns if name not in named or name in kept]
    inputs = [_numbers(table[name], places) for name in features]
    words = [name for name, (_, is_number) in zip(features, inputs) if not is_number and name not in named]
    cells = table[words].astype(object).astype(str)
    _warn_of_names(cells.where(table[words].notna()), places)
    if not inputs:
        raise DataError(
            f"{files[0]}: expected columns of features in addition to {', '.join(named)}, found none"
        )
    incomplete = gaps[features].to_numpy(bool)
    if missing == "indicator":
        indicators = {name: gap[:, None] for name, gap in zip(features, incomplete.T) if gap.any()}
        features, inputs = [*features, *indicators], [*inputs, *((gap, False) for gap in indicators.values())]
    numeric = np.concatenate([np.full(part.shape[1], is_number) for part, is_number in inputs])
    columns = {name: texts[name].to_numpy(object) for name in named}
    names = [name for name, (part, _) in zip(features, inputs) for _ in range(part.shape[1])]
    samples = np.concatenate([part for part, _ in inputs], axis=1)
    return Rows(places, samples, numeric, columns, names, incomplete.any(axis=1))


def _concatenated(
    source: Source, files: Sequence[str], named: Sequence[str], options: dict, others: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame, Places]:
    """Read files as one table, and their columns ``named`` as texts, as they are written.

    The files must have the columns ``named`` and ``others``, and the same columns as the first file.
    """
    expect_extra("plots", "tables in CSV files")
    import pandas as pd  # takes a second

    frames, texts = zip(*(_frame(source, file, named, options) for file in files))
    for file, frame in zip(files, frames):
        for name in (*named, *others, *frames[0]):
            _expect_column(file, name, frame.columns)
        for name in frame:
            _expect_column(files[0], name, frames[0].columns)
    places = Places(files, [len(frame) for frame in frames])
    return pd.concat(frames, ignore_index=True), pd.concat(texts, ignore_index=True), places


def _frame(
    source: Source, file: str, named: Sequence[str], options: dict
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read a file as a table, and its columns ``named`` as texts."""
    import pandas as pd

    expected = (
        "a header line, then rows with the same number of cells, separated by "
        f"{options['sep']!r}, as {options['encoding']} (settings separator, encoding)"
    )
    path, content = source.read(file, expected)
    options = options | {"index_col": False}
    if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):  # later versions are always exact
        options["float_precision"] = "round_trip"
    with parsing(path, expected), warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows with more cells than names
        if options["quoting"] != csv.QUOTE_NONE and content.find(b'"') >= 0:
            _expect_pairs_of_quotes(path, content, options)
        as_text = options | {"dtype": str, "na_filter": False}
        first = pd.read_csv(io.BytesIO(content), **as_text | {"header": None, "nrows": 1})
        names = first.iloc[0].tolist()
        if repeated := [name for name, times in Counter(names).items() if times > 1 and name]:
            raise ValueError(f"two columns called {short_repr(repeated[0])}")  # pandas would number them
        if len(names) == 1 and (other := next((mark for mark in ";\t," if mark in str(names[0])), "")):
            raise ValueError(f"one column, whose cells seem to be separated by {other!r}")
        frame = pd.read_csv(io.BytesIO(content), low_memory=False, **options)
        if not len(frame):
            raise ValueError("no rows")
        # pandas would read "007" as the number 7.
        known = [name for name in dict.fromkeys(named) if name in frame.columns]
        texts = pd.read_csv(io.BytesIO(content), **as_text | {"usecols": known}) if known else frame[known]
    return frame, texts


def _expect_pairs_of_quotes(path: Path, content: bytes | mmap.mmap, options: dict) -> None:
    """Check that a quotation mark at the beginning of a cell has a partner at its end.

    If it has none, pandas reads the rows up to the next mark as one cell. Warns of cells with line breaks
    and as many separators as whole rows have.

    Raises:
        ValueError: a cell continues after the second mark, or the file ends before it.
    """
    text = io.TextIOWrapper(io.BytesIO(content), options["encoding"], newline="")
    rows = csv.reader(text, delimiter=options["sep"], strict=True)
    limit = csv.field_size_limit(max(len(content), csv.field_size_limit()))
    remedy = "set quoted = false if quotation marks are characters of the cells"
    line, swallowed = 1, []
    try:
        for row in rows:
            breaks = rows.line_num - line
            if breaks and sum(cell.count(options["sep"]) for cell in row) == breaks * (len(row) - 1) > 0:
                swallowed.append(line)
            line = rows.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{error} in the row that begins in line {line}: double the quotation marks inside of a quoted "
            f"cell, or {remedy}"
        ) from error
    finally:
        csv.field_size_limit(limit)
    if swallowed:
        warnings.warn(
            f"{path}: {len(swallowed)} rows have a quoted cell of several lines that look like rows, the "
            f"first from line {swallowed[0]} on: {remedy}",
            stacklevel=2,
        )


def _expect_no_gaps(gaps: pd.DataFrame, places: Places, named: Sequence[str]) -> None:
    """Check that no value is missing.

    Args:
        gaps: whether values are missing, by column.

    Raises:
        DataError: values are missing; the message has their number in each column.
    """
    missing = gaps.to_numpy(bool)
    if not missing.any():
        return
    counts = missing.sum(axis=0)
    columns = [*dict.fromkeys([np.argwhere(missing)[0][1], *np.flatnonzero(counts)])]
    found = [
        f"{short_repr(str(gaps.columns[column]))} ({counts[column]} of {len(missing)} rows, the first is "
        f"{places.where(int(missing[:, column].argmax()))})"
        for column in columns[:GAPS]
    ]
    more = f", and {len(columns) - GAPS} more columns" if len(columns) > GAPS else ""
    droppable = [name for column in columns if (name := str(gaps.columns[column])) not in named]
    quoted = ", ".join(f'"{name}"' for name in droppable[:GAPS])
    remedy = (
        f", or the columns: drop = [{quoted}{', ...' if len(droppable) > GAPS else ''}], or set missing = "
        '"mean", "median", "indicator" or "drop"'
    )
    raise DataError(
        f"{places.where(int(np.argwhere(missing)[0][0]))}: expected a value in every column, found none in "
        f"{', '.join(found)}{more}: fill them in, or leave out the rows{remedy if droppable else ''}"
    )


def _warn_of_names(texts: pd.DataFrame, places: Places) -> None:
    """Warn of names of classes, clients, groups and categories that were perhaps meant otherwise.

    There is one warning per column and reason. NaN is no name.
    """
    for column in texts:
        warn_of_names(texts[column].tolist(), f"in column {short_repr(column)}", places.where)


def _numbers(column: pd.Series, places: Places) -> tuple[np.ndarray, bool]:
    """Return a column as numbers ``[n, k]``, float64, and whether it contains numbers rather than words.

    A missing number is NaN, and a missing word 0 in all columns.
    """
    rows = np.flatnonzero(column.notna())
    values, is_number = _known_numbers(column.iloc[rows], places, lambda row: places.where(int(rows[row])))
    filled = np.full((len(column), values.shape[1]), np.nan if is_number else 0.0)
    filled[rows] = values
    return filled, is_number


def _known_numbers(column: pd.Series, places: Places, where: Callable[[int], str]) -> tuple[np.ndarray, bool]:
    """Return a column without missing values as :func:`_numbers` does.

    Args:
        where: function that returns the place of a row, for messages.
    """
    import pandas as pd

    name, remedy = short_repr(column.name), f'leave the column out: drop = ["{column.name}"]'
    if column.dtype.kind not in "biuf":
        numbers = pd.to_numeric(column, errors="coerce")
        known = numbers.notna().to_numpy()
        if not known.any():
            if all(re.fullmatch(r"[-+]?[\d.]*,\d+", str(cell)) for cell in column):
                raise DataError(
                    f"{', '.join(places.files)}: expected decimal points in column {name}, found "
                    f"{short_repr(str(column.iloc[0]))}"
                )
            words, codes = encode_labels(column.to_numpy(object), str(column.name), where)
            if len(words) > CATEGORIES:
                raise DataError(
                    f"{', '.join(places.files)}: expected at most {CATEGORIES} different words in column "
                    f"{name}, as each becomes a column, found {len(words)}; {remedy}"
                )
            if all(map(_FORMATTED.fullmatch, words)):
                warnings.warn(
                    f"{', '.join(places.files)}: {short_repr(words[0])} and the {len(words) - 1} other words "
                    f"in column {name} look like numbers, but each becomes a column: write them as 1234.5",
                    stacklevel=2,
                )
            return (codes[:, None] == np.arange(len(words))).astype(np.float64), False
        if not known.all():
            word, number = (int(np.argmax(found)) for found in (~known, known))
            raise DataError(
                f"{where(word)}: expected only numbers or only words in column {name}, found "
                f"{short_repr(column.iloc[word])}, but {short_repr(column.iloc[number])} elsewhere: "
                f"correct it, or {remedy}"
            )
        column = numbers
    values = column.to_numpy(np.float64, copy=True)[:, None]
    if index := first_non_finite(torch.from_numpy(values)):
        raise DataError(f"{where(index[0])}: expected finite numbers in column {name}, found {values[index]}")
    return values, True


def _read_npz(source: Source, files: Sequence[str], named: Sequence[str]) -> Rows:
    """Read the arrays ``named``, ``[n]``, and the only other array as samples ``[n, ...]``."""
    archives = [read_arrays(source, file)[2] for file in files]
    parts = [_samples(file, arrays, named) for file, arrays in zip(files, archives)]
    for file, part in zip(files, parts):
        if part.shape[1:] != parts[0].shape[1:]:
            raise DataError(
                f"{file}: expected samples of shape {parts[0].shape[1:]} as in {files[0]}, "
                f"found {part.shape[1:]}"
            )
    columns = {name: np.concatenate([arrays[name] for arrays in archives]) for name in named}
    return Rows(Places(files, [len(part) for part in parts]), np.concatenate(parts), slice(None), columns)


def _samples(file: str, arrays: dict[str, np.ndarray], named: Sequence[str]) -> np.ndarray:
    for name in named:
        _expect_column(file, name, list(arrays))
    others = [name for name in arrays if name not in named]
    if len(others) != 1:
        found = ", ".join(others) or "none"
        raise DataError(
            f"{file}: expected one array of samples in addition to {', '.join(named)}, found {found}"
        )
    samples = arrays[others[0]]
    if samples.dtype.kind not in "biuf" or samples.ndim < 2 or not samples.size:
        found = f"type {samples.dtype} and shape {samples.shape}"
        raise DataError(f"{file}: expected numbers [rows, ...] in {others[0]}, found {found}")
    for name in named:
        if arrays[name].shape != samples.shape[:1]:
            raise DataError(
                f"{file}: expected {len(samples)} entries in {name}, one per row of {others[0]}, found shape "
                f"{arrays[name].shape}"
            )
    if samples.dtype.kind == "f" and (
        index := first_non_finite(torch.from_numpy(samples.astype(np.float64)))
    ):
        raise DataError(
            f"{file}, row {index[0] + 1}: expected finite numbers in {others[0]}, found {samples[index]}"
        )
    return samples


def _read_libsvm(source: Source, files: Sequence[str]) -> Rows:
    """Read LIBSVM text, with the labels as the column :data:`LABEL`; missing columns are 0."""
    from scipy.sparse import vstack

    parts = [read_rows(source, file, "LIBSVM text, or a .csv, .tsv or .npz file") for file in files]
    width = max(rows.shape[1] for rows, _ in parts)
    for rows, _ in parts:
        rows.resize(rows.shape[0], width)
    samples = vstack([rows for rows, _ in parts], format="csr")
    places = Places(files, [rows.shape[0] for rows, _ in parts])
    expect_dense_memory(samples, ", ".join(files), places.where)
    return Rows(places, samples, slice(None), {LABEL: np.concatenate([labels for _, labels in parts])})
