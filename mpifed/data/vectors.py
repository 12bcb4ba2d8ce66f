"""Words of texts, and vectors for them: from a file, or without one a random vector for each word.

Words are runs of letters and digits with apostrophes inside (``don't``, ``n't``), in lower case; all else is
left out. Files are NumPy archives with the arrays ``words`` and ``vectors``, or texts with a word and its
numbers a line, as GloVe has them and as word2vec has them after a first line of two counts. They lie where
data sets lie, in a folder ``wordvectors``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import mmap
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from mpifed.core.problem import DataFile
from mpifed.core.streams import generator
from mpifed.data.npz import read_arrays
from mpifed.data.sources import DataError, Source, opened

__all__ = ["WordVectors", "encode", "random_vectors", "read_vectors", "word_vectors", "words_of"]

#: The file that is read unless another is named.
VECTORS = "googlenews300_small_f16.npz"
_PLACE = ("word vectors", "https://nlp.stanford.edu/projects/glove/")

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words_of(text: str) -> list[str]:
    """The words of a text, in order."""
    return _WORD.findall(text.lower().replace("’", "'"))


@dataclass(frozen=True, eq=False)
class WordVectors:
    """A table ``[1 + words, d]``, float32, with a row of zeros and a row for each word; a word's row; the
    files read."""

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
    """The vectors of a file for those words of a vocabulary that it has.

    Args:
        name: the file's name without ``.gz`` or ``.xz``; one that ends in ``.npz`` is an archive, any other a
            text.
        vocabulary: words in lower case.

    Raises:
        DataError: the file is missing, damaged, or has none of the words.
    """
    with opened(*_PLACE, data_dir, "wordvectors") as source:
        found, d = (_from_archive if name.endswith(".npz") else _from_text)(source, name, set(vocabulary))
        if not found:
            raise DataError(f"{source.files[name].path}: expected vectors of words of the texts, found none")
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
            f"{path}: expected finite numbers, found others in row {row} of vectors, of the word "
            f"{words[row][:20]!r}"
        )
    return {word: vector for word, vector in zip(words, vectors) if word in vocabulary}, vectors.shape[1]


def _from_text(source: Source, name: str, vocabulary: set[str]) -> tuple[dict[str, np.ndarray], int]:
    expected = "lines of a word and its numbers, the same count in each, split by blanks"
    path, content = source.read(name, expected)
    lines = content.readline if isinstance(content, mmap.mmap) else io.BytesIO(content).readline
    found, d, number, counts = {}, 0, 0, None
    try:
        for number, line in enumerate(iter(lines, b""), 1):
            text = line.decode("utf-8", "replace").rstrip()
            if number == 1 and text.count(" ") == 1:
                with contextlib.suppress(ValueError):  # word2vec's counts; else a word with one number
                    counts = [int(cell) for cell in text.split()]
                    continue
            d = d or text.count(" ")
            word, *cells = text.rsplit(" ", d)  # a few words of GloVe hold blanks
            if len(cells) < max(d, 1):
                raise ValueError(f"{len(cells)} numbers instead of {d}")
            if not line.endswith(b"\n"):
                raise ValueError("no end")
            if word in vocabulary:
                found[word] = _vector(cells)
        if counts and counts != [number - 1, d]:
            raise ValueError(f"{counts[0]} words of {counts[1]} numbers announced, {number - 1} of {d} there")
    except ValueError as error:
        words = str(error)[:80]
        raise DataError(f"{path}: expected {expected}, found {words} in line {number}") from error
    return found, d


def _vector(cells: list[str]) -> np.ndarray:
    with np.errstate(over="ignore"):  # what is too large is infinite
        vector = np.array(cells, dtype=np.float32)
    if not np.isfinite(vector).all():
        raise ValueError(f"{vector[~np.isfinite(vector)][0]}, which is not a finite number,")
    return vector


def random_vectors(vocabulary: Iterable[str], d: int, seed: int = 0) -> WordVectors:
    """A vector for each word, uniform on the unit sphere of ``d`` dimensions, that depends on the word and
    the seed alone.

    ``files`` names what stands in for a file, so that a run's record shows it.
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
    """Vectors for the words of a vocabulary.

    Args:
        name: a file as for :func:`read_vectors`; ``"random"`` for :func:`random_vectors`; ``"auto"`` for the
            file ``VECTORS`` where it exists and random ones where it does not.
        d: numbers of a random vector.

    Raises:
        DataError: a file is named and missing, or one is damaged or has none of the words.
    """
    if name == "auto":
        with opened(*_PLACE, data_dir, "wordvectors") as source:
            name = VECTORS if source.find(VECTORS) else "random"
    return random_vectors(vocabulary, d) if name == "random" else read_vectors(name, vocabulary, data_dir)


def encode(texts: Iterable[list[str]], rows: Mapping[str, int], length: int) -> np.ndarray:
    """Rows of the first ``length`` words that have one, of each text given as words, ``[n, length]``, then
    zeros; unsigned whole numbers of as few bytes as hold them, since every rank holds all texts.
    """
    texts = list(texts)
    tokens = np.zeros((len(texts), length), dtype=np.min_scalar_type(max(rows.values(), default=0)))
    for own, words in zip(tokens, texts):
        known = [rows[word] for word in words if word in rows][:length]
        own[: len(known)] = known
    return tokens
