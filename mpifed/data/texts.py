"""Labelled texts in tables or in one file per class, their words, and word vectors.

Words are runs of letters and digits with apostrophes inside (``don't``, ``n't``), in lower case. Word vectors
are read from the folder ``wordvectors``, or random. The files are NumPy archives with the arrays ``words``
and ``vectors``, or text with a word and its numbers on each line, as in GloVe and, after a first line with
two counts, in word2vec.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import mmap
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mpifed.base.errors import short_repr
from mpifed.core.problem import DataFile
from mpifed.core.streams import generator
from mpifed.data.npz import read_arrays
from mpifed.data.samples import Texts
from mpifed.data.sources import DataError, Source, opened, parsing

__all__ = [
    "TextColumns", "TextLines", "TextSet", "WordVectors", "encode", "random_vectors", "read_vectors",
    "word_vectors", "words_of",
]  # fmt: skip

Part = tuple[list[str], np.ndarray]


def _lines(source: Source, name: str, expected: str, encoding: str) -> tuple:
    """Return the path and the text of a file, whose last line must be complete."""
    path, content = source.read(name, expected)
    with parsing(path, expected):
        raw = bytes(content)
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise ValueError(f"bytes that are not {encoding} in line {line}") from error
    if not text.endswith("\n"):
        raise DataError(f"{path}: expected {expected}, found an incomplete last line")
    return path, text


@dataclass(frozen=True)
class TextColumns:
    """A table with a text and a label in each row. A first row without a known label is a header.

    Attributes:
        file: official name.
        columns: number of columns.
        text, label: columns of the text and the label.
        labels: label in the file → 1 (positive), 0 (negative) or None (rows to leave out).
        rows: number of rows without the header, ``None`` if it is not fixed.
        delimiter, encoding: of the file.
        quoted: whether cells may be quoted.
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
        """Return whether the file exists."""
        return source.find(self.file) is not None

    def read(self, source: Source) -> Part:
        """Return texts and labels.

        Raises:
            DataError: the file is missing, damaged, or has other columns, labels or numbers of rows.
        """
        count = "" if self.rows is None else f"{self.rows} "
        known = ", ".join(self.labels)
        expected = f"{count}rows of {self.columns} columns separated by {self.delimiter!r}, labels {known}"
        path, text = _lines(source, self.file, expected, self.encoding)
        quoting = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
        # If the number of rows is not known, an unclosed quotation mark must not swallow the rest unnoticed.
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
    """One file of negative and one of positive texts, one text per line.

    Attributes:
        negative, positive: official names of the files.
    """

    negative: str
    positive: str

    def present(self, source: Source) -> bool:
        """Return whether the file of the negative texts exists."""
        return source.find(self.negative) is not None

    def read(self, source: Source) -> Part:
        """Return texts and labels, negative texts first.

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
    """A built-in data set of labelled texts.

    Attributes:
        name: name of the data set.
        folders: possible names of its folder.
        home: home page, for messages.
        train, test: possible formats; the first whose file exists is read.
    """

    name: str
    folders: tuple[str, ...]
    home: str
    train: tuple[TextColumns | TextLines, ...]
    test: tuple[TextColumns | TextLines, ...]

    def __call__(self, data_dir: str | None = None) -> Texts:
        """Read the training and test texts.

        Raises:
            DataError: a file is missing, damaged or not the expected one.
        """
        with opened(self.name, self.home, data_dir, *self.folders) as source:
            parts = [
                next((form for form in forms if form.present(source)), forms[0]).read(source)
                for forms in (self.train, self.test)
            ]
        return Texts(*parts[0], *parts[1], source.files)


#: The default file of word vectors.
VECTORS = "googlenews300_small_f16.npz"
_PLACE = ("the set of word vectors", "https://nlp.stanford.edu/projects/glove/")

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words_of(text: str) -> list[str]:
    """Return the words of a text, in order. Accents may be characters of their own."""
    return _WORD.findall(unicodedata.normalize("NFC", text.lower()).replace("’", "'"))


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Vectors of words.

    Attributes:
        table: ``[1 + words, d]``, float32: a row of zeros, then one row per word.
        rows: word → its row.
        files: the files read, by name.
    """

    table: np.ndarray
    rows: Mapping[str, int]
    files: dict[str, DataFile] = field(default_factory=dict)


def _table(found: Mapping[str, np.ndarray], d: int, files: dict[str, DataFile]) -> WordVectors:
    words = sorted(found)
    table = np.zeros((1 + len(words), d), dtype=np.float32)
    for row, word in enumerate(words, 1):
        table[row] = found[word]
    return WordVectors(table, {word: row for row, word in enumerate(words, 1)}, files)


def read_vectors(name: str, vocabulary: Iterable[str], data_dir: str | None = None) -> WordVectors:
    """Read the vectors of the words of a vocabulary that a file contains.

    Args:
        name: the file's name without ``.gz`` or ``.xz``; a name that ends in ``.npz`` is an archive, any
            other a text.
        vocabulary: words in lower case.

    Raises:
        DataError: the file is missing, damaged, or contains none of the words.
    """
    with opened(*_PLACE, data_dir, "wordvectors") as source:
        found, d = (_from_archive if name.endswith(".npz") else _from_text)(source, name, set(vocabulary))
        if not found:
            raise DataError(f"{source.files[name].path}: expected vectors for words of the texts, found none")
        return _table(found, d, source.files)


def _from_archive(source: Source, name: str, vocabulary: set[str]) -> tuple[dict[str, np.ndarray], int]:
    path, expected, arrays = read_arrays(source, name, {"words": (np.str_, 1), "vectors": (np.floating, 2)})
    words, vectors = arrays["words"].tolist(), arrays["vectors"]
    if len(words) != len(vectors):
        raise DataError(f"{path}: expected {expected}, found {len(words)} words and {len(vectors)} vectors")
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int(finite.argmin())
        raise DataError(
            f"{path}: expected finite numbers, found others in row {row} of vectors, for the word "
            f"{words[row][:20]!r}"
        )
    counts = Counter(word for word in words if word in vocabulary)
    _warn_of_repeated(path, [word for word, times in counts.items() if times > 1])
    return {word: vector for word, vector in zip(words, vectors) if word in vocabulary}, vectors.shape[1]


def _from_text(source: Source, name: str, vocabulary: set[str]) -> tuple[dict[str, np.ndarray], int]:
    expected = "lines with a word and its numbers, equally many in each, separated by spaces"
    path, content = source.read(name, expected)
    lines = content.readline if isinstance(content, mmap.mmap) else io.BytesIO(content).readline
    found, d, number, counts = {}, 0, 0, None
    repeated: list[str] = []
    try:
        for number, line in enumerate(iter(lines, b""), 1):
            text = line.decode("utf-8", "replace").rstrip()
            if number == 1 and text.count(" ") == 1:
                with contextlib.suppress(ValueError):  # word2vec's counts, or a word with one number
                    counts = [int(cell) for cell in text.split()]
                    continue
            d = d or text.count(" ")
            word, *cells = text.rsplit(" ", d)  # a few words of GloVe contain spaces
            if len(cells) < max(d, 1):
                raise ValueError(f"{len(cells)} numbers instead of {d}")
            if not line.endswith(b"\n"):
                raise ValueError("an incomplete line")
            if word in vocabulary:
                repeated += [word] if word in found else []
                found[word] = _vector(cells)
        if counts and counts != [number - 1, d]:
            raise ValueError(f"{number - 1} words with {d} numbers instead of {counts[0]} with {counts[1]}")
    except ValueError as error:
        words = str(error)[:80]
        raise DataError(f"{path}: expected {expected}, found {words} in line {number}") from error
    _warn_of_repeated(path, repeated)
    return found, d


def _warn_of_repeated(path: Path, words: list[str]) -> None:
    if words:
        warnings.warn(
            f"{path}: {len(words)} words occur again, such as {short_repr(words[0])}: "
            "the last vector is used",
            stacklevel=3,
        )


def _vector(cells: list[str]) -> np.ndarray:
    with np.errstate(over="ignore"):  # too large numbers become infinite
        vector = np.array(cells, dtype=np.float32)
    if not np.isfinite(vector).all():
        raise ValueError(f"{vector[~np.isfinite(vector)][0]}, which is not a finite number,")
    return vector


def random_vectors(vocabulary: Iterable[str], d: int, seed: int = 0) -> WordVectors:
    """Return random vectors, uniform on the unit sphere in ``d`` dimensions.

    A vector depends only on the word and the seed. ``files`` contains a digest of words and seed.
    """
    found, digest = {}, hashlib.sha256(f"{seed} {d}".encode())
    for word in sorted(vocabulary):
        digest.update(f"\n{word}".encode())
        vector = generator(seed, f"word vector {word}").standard_normal(d)
        found[word] = vector / np.linalg.norm(vector)
    return _table(
        found, d, {"word vectors": DataFile("none: a random vector for each word", digest.hexdigest())}
    )


def word_vectors(name: str, vocabulary: Iterable[str], d: int, data_dir: str | None = None) -> WordVectors:
    """Return vectors for the words of a vocabulary, from a file or random.

    Args:
        name: a file as for :func:`read_vectors`; ``"random"`` for :func:`random_vectors`; ``"auto"`` for the
            file ``VECTORS`` if it exists and random vectors otherwise.
        d: length of a random vector.

    Raises:
        DataError: the named file is missing, damaged or contains none of the words.
    """
    if name == "auto":
        with opened(*_PLACE, data_dir, "wordvectors") as source:
            name = VECTORS if source.find(VECTORS) else "random"
    return random_vectors(vocabulary, d) if name == "random" else read_vectors(name, vocabulary, data_dir)


def encode(texts: Iterable[list[str]], rows: Mapping[str, int], length: int) -> np.ndarray:
    """Return the row numbers of the first ``length`` known words of each text, padded with zeros.

    Returns:
        ``[n, length]``, in the smallest sufficient unsigned type.
    """
    texts = list(texts)
    tokens = np.zeros((len(texts), length), dtype=np.min_scalar_type(max(rows.values(), default=0)))
    for row, words in zip(tokens, texts):
        known = [rows[word] for word in words if word in rows][:length]
        row[: len(known)] = known
    return tokens
