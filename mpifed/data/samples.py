"""Labelled samples, their training, validation and test splits, and names of classes and clients."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import torch

from mpifed.base.errors import short_repr, truncate
from mpifed.core.metrics import VALIDATION
from mpifed.core.numerics import first_non_finite
from mpifed.core.problem import DataFile
from mpifed.core.streams import generator
from mpifed.data.sources import DataError

__all__ = [
    "PARTS", "Grouping", "Images", "Labelled", "Pixels", "Split", "Table", "Texts", "as_float32",
    "encode_labels", "expect_all_classes", "expect_contiguous", "expect_labels", "hold_out", "is_decimal",
    "owner_fields", "split_fields", "splits_of", "splits", "standardized", "warn_of_names", "warn_of_scales",
]  # fmt: skip

#: Texts, in lower case, that often stand for a missing value; they may also be names.
MISSING = ("na", "n/a", "#n/a", "nan", "-nan", "null", "none", "<na>")
#: Size of numbers above which a warning advises to scale them, and number of rows that are inspected.
LARGE, SCALED_ROWS = 100, 1000
#: The splits of a data set, in the order of their use.
PARTS = ("train", VALIDATION, "test")
#: A decimal number in a text file. A larger exponent than :class:`decimal.Decimal` has is not accepted.
_DECIMAL = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,9})?\s*", re.ASCII)
#: Maximum size in bits of a whole number that is a name. Python does not convert larger ones to text.
_MAX_BITS = 14_000


class Pixels:
    """Images ``[n, c, h, w]`` stored as bytes; ``pixels[rows]`` returns float32 tensors in [0, 1].

    Only indexed rows are converted, decoded and loaded from a memory-mapped file. A rank indexes only the
    rows of its clients.

    Args:
        stored: a uint8 array, or another object with a shape and indexable rows.
    """

    def __init__(self, stored):
        self._stored = stored
        self.shape = torch.Size(stored.shape)

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, rows) -> torch.Tensor:
        scaled = self._stored[np.asarray(rows) if isinstance(rows, torch.Tensor) else rows].astype(np.float32)
        scaled /= 255
        return torch.from_numpy(scaled)


class Grouping(NamedTuple):
    """A division of the samples of a data set into groups, such as people by sex.

    Attributes:
        names: names of the groups.
        numbers: the number of each sample's group by split, ``[n]`` int64.
    """

    names: Sequence[str]
    numbers: dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Labelled:
    """A data set of labelled samples.

    Samples are ``[n, ...]``, float32; labels are ``[n]``, int64 from 0. Without a validation split both of
    its fields are ``None``.

    Attributes:
        files: the files read, by name.
        class_names: names of the classes; empty if they are named by their numbers.
        owners: the client of each training sample, ``[n]``, int64 from 0, if the data set assigns samples to
            clients.
        owner_names: names of these clients.
        groups: divisions of the samples into groups, by name.

    Raises:
        DataError: a value is not finite, samples and labels differ in number, or splits have samples of
            different shapes.
    """

    train: torch.Tensor | Pixels
    train_labels: torch.Tensor
    test: torch.Tensor | Pixels
    test_labels: torch.Tensor
    files: dict[str, DataFile] = field(default_factory=dict)
    validation: torch.Tensor | Pixels | None = None
    validation_labels: torch.Tensor | None = None
    class_names: Sequence[str] = ()
    owners: np.ndarray | None = None
    owner_names: Sequence[str] = ()
    groups: Mapping[str, Grouping] = field(default_factory=dict)

    def __post_init__(self):
        where = f" ({', '.join(file.path for file in self.files.values())})" if self.files else ""
        for part, (samples, labels) in splits_of(self).items():
            if len(samples) != len(labels):
                raise DataError(
                    f"{part}: expected one label per sample, found {len(samples)} samples and {len(labels)} "
                    f"labels{where}"
                )
            if samples.shape[1:] != self.train.shape[1:]:
                raise DataError(
                    f"{part}: expected samples of shape {self.shape} as in train, found "
                    f"{tuple(samples.shape[1:])}{where}"
                )
            if isinstance(samples, torch.Tensor) and (index := first_non_finite(samples)):
                found = f"{samples[index].item()} in row {index[0]}"
                raise DataError(f"{part}: expected finite numbers, found {found}{where}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample: channels, height and width of an image; number of columns of a table."""
        return tuple(self.train.shape[1:])

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names) or int(self.train_labels.max()) + 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes, by default their numbers."""
        return tuple(self.class_names) or tuple(map(str, range(self.classes)))

    def grouping(self, name: str) -> Grouping:
        """Return a division of the samples into groups.

        Raises:
            ValueError: the data set has no groups of this name, or a group has no training samples.
        """
        if name not in self.groups:
            known = f"the groups {', '.join(self.groups)}"
            if not self.groups:
                known = "no groups; a table has them with the setting groups = [COLUMN]"
            raise ValueError(f"groups = {short_repr(name)}: the data set has {known}")
        grouping = self.groups[name]
        counts = np.bincount(grouping.numbers["train"], minlength=len(grouping.names))
        if len(empty := np.flatnonzero(counts == 0)):
            raise ValueError(
                f"groups = {short_repr(name)}: expected training samples of every group, found none of "
                f"{short_repr(grouping.names[empty[0]])}"
            )
        return grouping


class Images(Labelled):
    """Images ``[n, c, h, w]`` in [0, 1] and their labels."""


class Table(Labelled):
    """Rows of numbers ``[n, d]`` and their labels, 0 or 1."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts with their labels ``[n]``, int64: 1 positive, 0 negative, and the files read.

    The optional fields are as in :class:`Labelled`.
    """

    train: list[str]
    train_labels: np.ndarray
    test: list[str]
    test_labels: np.ndarray
    files: dict[str, DataFile] = field(default_factory=dict)
    validation: list[str] | None = None
    validation_labels: np.ndarray | None = None
    owners: np.ndarray | None = None
    owner_names: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Split:
    """A subset of a data set's samples.

    Attributes:
        samples, all_labels: samples and class labels, indexed by row number.
        rows: row numbers of the subset, ``[n]`` ascending.
        part: the split of the data set to which the row numbers refer.
    """

    samples: Any
    all_labels: np.ndarray
    rows: np.ndarray
    part: str

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> torch.Tensor:
        """Return the samples of a part of the split, ``[m, ...]``."""
        return self.samples[torch.from_numpy(self.rows[part])]

    @property
    def labels(self) -> np.ndarray:
        """The class labels ``[n]``."""
        return self.all_labels[self.rows]

    def select(self, rows: np.ndarray) -> Split:
        """Return the subset with these row numbers of the data set."""
        return replace(self, rows=rows)


def splits_of(data: Labelled) -> dict[str, tuple[Any, np.ndarray]]:
    """Return samples and class labels of each split of a data set."""
    names = ["train", "test", *([VALIDATION] if data.validation is not None else [])]
    return {name: (getattr(data, name), getattr(data, f"{name}_labels").numpy()) for name in names}


def split_fields(parts: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Return the fields of a data set with the samples and labels of each split, such as ``train_labels``."""
    samples = {part: samples for part, (samples, _) in parts.items()}
    return samples | {f"{part}_labels": labels for part, (_, labels) in parts.items()}


def splits(
    parts: Mapping[str, tuple[Any, np.ndarray]], share: float, seed: int, classes: list[int] | None = None
) -> dict[str, Split]:
    """Return the splits "train" and "test", and "validation" if the data set has it or ``share`` is not 0.

    Args:
        parts: samples and class labels of the data set's splits.
        share: fraction of the training samples that is held out for validation.
        classes: classes to use, by default all.

    Raises:
        ValueError: the data set already has a validation split, or the share holds out nothing or all.
    """
    found = {}
    for name, (samples, labels) in parts.items():
        used = np.ones(len(labels), dtype=bool) if classes is None else np.isin(labels, classes)
        found[name] = Split(samples, labels, np.flatnonzero(used), name)
    if share and VALIDATION in found:
        raise ValueError(
            f"validation = {share}: the data set already has a validation split of {len(found[VALIDATION])} "
            "samples: leave out problem.validation"
        )
    if share:
        train = found["train"]
        rest, held = hold_out(train.labels, share, seed)
        found |= {"train": train.select(train.rows[rest]), VALIDATION: train.select(train.rows[held])}
    return found


def hold_out(
    labels: np.ndarray, share: float, seed: int, purpose: str = VALIDATION, client: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers of the remaining and of the held-out samples, each ascending.

    The same share of every class, to the nearest sample, is drawn at random. The draw depends on the seed,
    the purpose and the client alone.

    Args:
        share: fraction of the samples that is held out.
        purpose: purpose of the random numbers, and name of the setting for messages.

    Raises:
        ValueError: nothing would be held out, or nothing would remain.
    """
    counts_by_class = np.unique(labels, return_counts=True)[1]
    ends = np.cumsum(counts_by_class)
    classes = np.split(np.argsort(labels, kind="stable"), ends[:-1])  # a comparison per class is quadratic
    counts = np.diff(np.round(ends * share).astype(np.int64), prepend=0)  # they sum to round(share * n)
    if not 0 < counts.sum() < len(labels):
        raise ValueError(
            f"{purpose} = {share} of {len(labels)} samples holds out {counts.sum()}: expected at least one, "
            "and at least one training sample"
        )
    rng = generator(seed, purpose, client)
    held = np.concatenate([rng.permutation(members)[:count] for members, count in zip(classes, counts)])
    return np.setdiff1d(np.arange(len(labels)), held), np.sort(held)


def encode_labels(
    values: np.ndarray, name: str, where: Callable[[int], str], by_value: bool = False
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the sorted names of the distinct values, and the number of each value's name ``[n]``, int64.

    A text is its own name, character by character, so that "7" and "007" are different names. The name of a
    whole number consists of its decimal digits. Numbers are sorted by value, other names alphabetically.

    Args:
        values: texts, whole numbers or booleans ``[n]``.
        name: name of the column, for messages.
        where: function that returns the place of a row, for messages.
        by_value: if all texts are decimal numbers, sort them by value, too.

    Raises:
        DataError: a value is a fraction, not finite or of another type.
    """
    if values.dtype.kind in "biu":
        distinct, numbers = np.unique(values, return_inverse=True)
        return tuple(map(str, distinct.tolist())), numbers.astype(np.int64)
    if values.dtype.kind == "M":
        values = np.where(np.isnat(values), None, values.astype(str).astype(object))
    found = values.tolist()
    keys = [_text_or_whole(value) for value in found]
    if None in keys:
        row = keys.index(None)
        raise DataError(
            f"{where(row)}: expected words or whole numbers in {short_repr(name)}, found "
            f"{short_repr(found[row])}"
        )
    distinct_keys = {*keys}
    if all(isinstance(key, int) for key in distinct_keys):
        names = [*map(str, sorted(distinct_keys))]
    else:
        names = sorted({*map(str, distinct_keys)})
        if by_value and all(map(is_decimal, names)):
            names.sort(key=lambda text: (Decimal(text.strip()), text))
    number = {name: i for i, name in enumerate(names)}
    return tuple(names), np.array([number[str(key)] for key in keys], dtype=np.int64)


def is_decimal(text: str) -> bool:
    """Whether a text is a finite decimal number, such as "007", "1E2" or "-0.5"."""
    return _DECIMAL.fullmatch(text) is not None


def _text_or_whole(value: Any) -> str | int | None:
    """Return the text or the whole number that a value is; ``None`` for a value of another type."""
    if isinstance(value, np.generic | torch.Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, bytes) and value.isascii():
        return value.decode()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and value.bit_length() <= _MAX_BITS:
        return value
    return value if isinstance(value, str) else None


def expect_all_classes(classes: Sequence[str], labels: Mapping[str, np.ndarray], what: str) -> None:
    """Check that there are at least two classes, and that each has training samples.

    Args:
        classes: names of the classes.
        labels: the labels of each split.
        what: the data set, for messages.

    Raises:
        DataError: there are fewer classes, or a class without training samples.
    """
    if len(classes) < 2:
        raise DataError(f"{what}: expected at least two classes, found {len(classes)} ({', '.join(classes)})")
    counts = {part: np.bincount(known, minlength=len(classes)) for part, known in labels.items()}
    if lacking := np.flatnonzero(counts["train"] == 0).tolist():
        found = {part: number[lacking[0]] for part, number in counts.items()}
        others = [f"{number} in {part}" for part, number in found.items() if number]
        raise DataError(
            f"{what}: expected training samples of every class, found none of "
            f"{short_repr(classes[lacking[0]])}" + (f" (but {' and '.join(others)})" if others else "")
        )


def expect_labels(labels: np.ndarray, classes: int, what: str) -> None:
    """Check that labels are from 0 to ``classes`` - 1.

    Raises:
        DataError: a label is out of range.
    """
    if outside := np.flatnonzero((labels < 0) | (labels >= classes)).tolist():
        found = f"{labels[outside[0]]} in row {outside[0]}"
        raise DataError(f"{what}: expected labels from 0 to {classes - 1}, found {found}")


def expect_contiguous(labels: np.ndarray, what: str) -> None:
    """Check that the labels of the training samples are all numbers from 0 to the largest.

    Called before anything is allocated whose size is the largest label.

    Raises:
        DataError: a number does not occur.
    """
    present = np.unique(labels)
    if lacking := np.flatnonzero(present != np.arange(len(present))).tolist():
        row = int(labels.argmax())
        raise DataError(
            f"{what}: expected training samples of every class from 0 to the largest label, {labels[row]} in "
            f"row {row}, found none of '{lacking[0]}': number the classes 0, 1, ..., or return their names "
            "as classes"
        )


def as_float32(samples: np.ndarray, where: Callable[..., str]) -> np.ndarray:
    """Return numbers as float32.

    Args:
        where: function that returns the place of an element of ``samples``, given its index, for messages.

    Raises:
        DataError: a finite number is too large.
    """
    with np.errstate(over="ignore"):
        converted = samples.astype(np.float32, copy=False)
    index = first_non_finite(torch.from_numpy(converted)) if samples.dtype.itemsize > 4 else None
    if index and np.isfinite(samples[index]):
        largest = np.finfo(np.float32).max
        raise DataError(
            f"{where(*index)}: expected numbers of at most {largest:.3g} (float32), found {samples[index]}: "
            "use another unit"
        )
    return converted


def standardized(samples: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Standardise columns ``[n, ...]``, float64, by mean and standard deviation of the training rows.

    From a constant column only its value is subtracted. A column is constant if its variance is not above the
    rounding error of a variance, relative to the size of the column, as in scikit-learn's StandardScaler.

    Args:
        train: row numbers of the training samples.
    """
    # Powers of two change no digit, and squares of the scaled numbers neither overflow nor underflow.
    exponent = np.frexp(np.abs(samples[train]).max(axis=0))[1]
    scaled = np.ldexp(samples, -exponent)
    known = scaled[train]
    mean, deviation = known.mean(axis=0), known.std(axis=0)
    n, eps = len(known), np.finfo(np.float64).eps
    constant = deviation**2 <= n * eps * deviation**2 + (n * mean * eps) ** 2
    centred = scaled - np.where(constant, known[0], mean)
    return np.where(constant, np.ldexp(centred, exponent), centred / np.where(constant, 1, deviation))


def warn_of_names(names: Sequence[Any], what: str, where: Callable[[int], str]) -> None:
    """Warn of names of classes, clients, groups and categories that were perhaps meant otherwise.

    They begin or end with a blank, may stand for missing values, or are, apart from case and invisible
    characters, the same number or word as another name. There is one warning per reason.

    Args:
        names: the name of each row; values of other types than texts are no names.
        what: the origin of the names, for messages.
        where: function that returns the place of a row, for messages.
    """
    counts = Counter(name for name in names if isinstance(name, str))
    first: dict[Decimal | str, str] = {}
    blank = [text for text in counts if text != text.strip()]
    known = {text: first.setdefault(_meaning(text), text) for text in counts}
    alike = {text: one for text, one in known.items() if one != text and text == text.strip()}
    found = {
        "begins or ends with a blank": blank,
        "often stands for a missing value": [text for text in counts if text.lower() in MISSING],
        f"resembles {short_repr(next(iter(alike.values()), ''))}": [*alike],
    }
    for reason, odd in found.items():
        if odd:
            rows = sum(counts[text] for text in odd)
            others = f" with {len(odd)} such names" if len(odd) > 1 else ""
            warnings.warn(
                f"{where(names.index(odd[0]))}: {short_repr(odd[0])} {what} {reason} and is read as a name "
                f"of its own ({rows} rows{others})",
                stacklevel=3,
            )


def _meaning(text: str) -> Decimal | str:
    """Return the number or the word that a name probably stands for; letters may differ in case or width."""
    if is_decimal(text):
        return Decimal(text.strip())
    letters = unicodedata.normalize("NFKC", text).strip()
    word = "".join(letter for letter in letters if unicodedata.category(letter) != "Cf")  # invisible ones
    return word if len(word) == 1 else word.casefold()


def warn_of_scales(samples: np.ndarray, what: str, remedy: str, columns: Sequence[Any] = ()) -> None:
    """Warn of numbers so large that the usual step sizes diverge, in about :data:`SCALED_ROWS` of the rows.

    Args:
        samples: ``[n, d]``, of which the standard deviations of the columns count, or arrays ``[n, ...]``
            such as images, of which the largest number counts.
        what: the data set, for messages.
        remedy: how to scale the samples.
        columns: names of the ``d`` columns; by default their numbers.
    """
    known = samples[:: max(1, len(samples) // SCALED_ROWS)]
    if known.ndim > 2:
        found, size = "the largest number of a sample", float(max(known.max(), -known.min()))
    else:
        deviations = known.std(axis=0, dtype=np.float64)
        size = float(deviations.max())
        large = [columns[column] for column in np.flatnonzero(deviations > LARGE)]
        names = [*dict.fromkeys(map(short_repr, large))]
        found = f"the standard deviation in column {truncate(', '.join(names))}"
    if size > LARGE:
        warnings.warn(
            f"{what}: {found} is up to {size:.3g}, for which most step sizes are too large: {remedy}",
            stacklevel=3,
        )


def owner_fields(
    clients: np.ndarray | None,
    name: str,
    train: np.ndarray,
    where: Callable[[int], str],
    by_value: bool = False,
) -> dict:
    """Return the fields ``owners`` and ``owner_names`` of a data set, or an empty dictionary.

    Args:
        clients: the client of each row, ``[n]``; ``None`` if the data set does not assign rows to clients.
        name: name of the column, for messages.
        train: row numbers of the training samples.
        where: function that returns the place of a row, for messages.
        by_value: as for :func:`encode_labels`.
    """
    if clients is None:
        return {}
    names, numbers = encode_labels(clients[train], name, lambda row: where(train[row]), by_value)
    return {"owners": numbers, "owner_names": names}
