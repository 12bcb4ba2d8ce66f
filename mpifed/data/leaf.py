"""Samples of users in the JSON format of LEAF (Caldas et al. 2018), such as FEMNIST and Shakespeare.

A file contains ``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``. A
sample is a list of numbers (784 numbers are a grey image of 28 x 28 pixels) with a class number from 0, or a
text with the character that follows it. A text is stored as the numbers of its characters.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from mpifed.base.data_files import listing
from mpifed.base.errors import short_repr
from mpifed.base.settings import UserPath, hyperparameters
from mpifed.data.samples import Labelled, as_float32, expect_labels, owner_fields
from mpifed.data.sources import SUFFIXES, DataError, Source, parsing, warn_of_left_out

__all__ = ["LETTERS", "Leaf"]

#: LEAF's characters in the order of their numbers.
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_NUMBERS = {letter: number for number, letter in enumerate(LETTERS)}
#: Maximum number of classes for which there may be fewer samples than classes.
MANY = 1000
_PIXELS, _IMAGE = 784, (1, 28, 28)

#: Samples and labels of a user.
Pair = tuple[np.ndarray, np.ndarray]


@hyperparameters
class Leaf:
    """User-defined samples in LEAF's JSON files, train/*.json and test/*.json, such as FEMNIST and
    Shakespeare. Users are the clients."""

    path: UserPath = Field(
        description="the folder that contains train and test, relative to the working folder"
    )
    users: int | None = Field(
        default=None, ge=1, description="number of users, the first in the order of names; default: all"
    )
    classes: int | None = Field(
        default=None,
        ge=2,
        description="number of classes; default: the characters of texts, otherwise the largest label + 1",
    )

    def __call__(self, data_dir: str | None = None) -> Labelled:
        """Read the files.

        Test samples are those of the users that have training samples; those of all users if LEAF has split
        the users instead of their samples.

        Raises:
            DataError: a file is missing or damaged, samples differ in form, or a label is out of range.
        """
        source = Source("the data set", [Path(self.path)])
        train, test = (_users(source, part) for part in ("train", "test"))
        names = sorted(train)[: self.users]
        if len(names) < (self.users or 1):
            raise DataError(f"{self.path}: expected {self.users or 1} users in train, found {len(names)}")
        tested = [user for user in names if user in test] or sorted(test)
        if not tested:
            raise DataError(f"{self.path}: expected samples in test, found none")
        if (unknown := sorted(test.keys() - train.keys())) and len(unknown) < len(test):
            warnings.warn(
                f"{self.path}: {len(unknown)} of {len(test)} users in test are left out, such as "
                f"{short_repr(unknown[0])}, as they have no samples in train",
                stacklevel=2,
            )
        form = _form(train[names[0]])
        for part, users in ((train, names), (test, tested)):
            if other := next((user for user in users if _form(part[user]) != form), None):
                found = f"{_form(part[other])} of the user {short_repr(other)}"
                raise DataError(f"{self.path}: expected {form}, found {found}")
        samples, labels = _joined(train, names)
        test_samples, test_labels = _joined(test, tested)
        text = train[names[0]][0].dtype == np.uint8
        classes = self.classes or (len(LETTERS) if text else self._classes(train, test))
        for part, users in (("train", train), ("test", test)):
            for user, (_, known) in users.items():
                expect_labels(known, classes, f"{self.path}, {part}, user {short_repr(user)}")
        owners = np.repeat(np.array(names, dtype=object), [len(train[user][1]) for user in names])
        return Labelled(
            *(torch.from_numpy(samples), torch.from_numpy(labels)),
            *(torch.from_numpy(test_samples), torch.from_numpy(test_labels)),
            files=source.files,
            class_names=[*LETTERS.replace("\n", "↵")] if text else [*map(str, range(classes))],
            **owner_fields(owners, "user", np.arange(len(labels)), lambda _: self.path),
        )

    def _classes(self, train: dict[str, Pair], test: dict[str, Pair]) -> int:
        """Return the largest label + 1, at least 2.

        Raises:
            DataError: there would be more classes than samples, and more than :data:`MANY`.
        """
        largest, samples = 1, 0
        for part, users in (("train", train), ("test", test)):
            for user, (_, known) in users.items():
                samples += len(known)
                if known.max() > largest:
                    largest, row = int(known.max()), int(known.argmax())
                    where = f"{part}, user {short_repr(user)}, row {row}"
        if largest >= max(samples, MANY):
            raise DataError(
                f"{self.path}, {where}: expected labels below the number of samples, {samples}, found "
                f"{largest}: correct it, or set classes to the number of classes"
            )
        return largest + 1

    def __str__(self) -> str:
        return self.path


def _form(pair: Pair) -> str:
    """Return a description of the form of the samples of a user, for messages."""
    samples, _ = pair
    kind = "texts" if samples.dtype == np.uint8 else "samples of numbers"
    return f"{kind} of shape {samples.shape[1:]}"


def _joined(part: dict[str, Pair], users: list[str]) -> Pair:
    samples, labels = zip(*(part[user] for user in users))
    return np.concatenate(samples).astype(np.float32), np.concatenate(labels)


def _users(source: Source, part: str) -> dict[str, Pair]:
    """Return samples and labels of the users in the files of a split; users without samples are left out.

    Raises:
        DataError: there is no file, one is damaged, or a user is in two files.
    """
    folder = source.folders[0] / part
    expected = 'a JSON file in LEAF\'s format, {"user_data": {user: {"x": [...], "y": [...]}}}'
    if not folder.is_dir():
        raise DataError(f"{folder}: expected JSON files in LEAF's format, found no such folder")
    with parsing(folder, "a folder of JSON files in LEAF's format"):
        files, _, hidden = listing(folder)
    stems = {file: file.partition(".json")[0] for file in files if _is_data(file)}
    names = sorted({f"{part}/{stem}.json" for stem in stems.values()})
    if not names:
        raise DataError(f"{folder}: expected JSON files in LEAF's format, found none")
    known = {source.find(name) for name in names}
    left_out = [file for file in files if folder / file not in known]
    warn_of_left_out(folder, [*left_out, *hidden], "files NAME.json, otherwise NAME.json.gz or NAME.json.xz,")
    found: dict[str, Pair] = {}
    for name in names:
        path, content = source.read(name, expected)
        with parsing(path, expected):
            table = json.loads(bytes(content), object_pairs_hook=_unique)
            for user, data in table["user_data"].items():
                if user in found:
                    raise ValueError(f"the user {short_repr(user)}, which is also in another file")
                if data["x"] or data["y"]:
                    found[user] = _pair(data["x"], data["y"], user, path)
            _expect_listed(table)
    return found


def _expect_listed(table: dict[str, Any]) -> None:
    """Check the lists of users and of their numbers of samples in a file, if it has both.

    Raises:
        ValueError: a user is listed or has data, but not both, or has another number of samples.
    """
    if "users" not in table or "num_samples" not in table:
        return
    listed = dict(zip_longest(table["users"], table["num_samples"]))
    counts = {user: len(data["y"]) for user, data in table["user_data"].items()}
    for user in listed | counts:
        expected, count = (known.get(user, "no") for known in (listed, counts))
        if expected != count:
            raise ValueError(
                f"{count} samples of the user {short_repr(user)}, and {expected} in users and num_samples"
            )


def _is_data(file: str) -> bool:
    return "/" not in file and ".json" in file and file.partition(".json")[2] in SUFFIXES


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of a JSON file, of which ``json`` would keep the last of several equal keys."""
    table = dict(pairs)
    if len(table) < len(pairs):
        name = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {short_repr(name)} twice in one object")
    return table


def _pair(samples: list, labels: list, user: str, path: Path) -> Pair:
    """Return the samples of a user as an array, uint8 for texts, and the labels as int64.

    Raises:
        ValueError: they have another form.
    """
    if len(samples) != len(labels):
        raise ValueError(f"{len(samples)} samples and {len(labels)} labels of the user {short_repr(user)}")
    text = isinstance(samples[0], str)
    kind, described = (str, "single characters") if text else (int, "whole numbers")
    # Some programs write all numbers as floats.
    labels = [int(one) if isinstance(one, float) and one.is_integer() else one for one in labels]
    for row, label in enumerate(labels):
        if type(label) is not kind or (text and len(label) != 1):
            found = f"{short_repr(label)} in row {row}"
            raise ValueError(f"labels of the user {short_repr(user)} that are not {described}, {found}")
        if not text and label.bit_length() > 62:
            raise ValueError(f"the label {short_repr(label)} of the user {short_repr(user)} in row {row}")
    if text:
        return _letters(samples, user).astype(np.uint8), _letters(labels, user)[:, 0]
    array = as_float32(
        np.asarray(samples, dtype=np.float64),
        lambda *index: f"{path}, user {short_repr(user)}, row {index[0]}",
    )
    if array.ndim != 2:
        raise ValueError(f"samples of the user {short_repr(user)} that are neither texts nor number lists")
    return array.reshape(-1, *_IMAGE) if array.shape[1] == _PIXELS else array, np.array(labels)


def _letters(texts: list[str], user: str) -> np.ndarray:
    if unknown := sorted({letter for text in texts for letter in text} - {*LETTERS}):
        raise ValueError(f"the character {unknown[0]!r} of the user {short_repr(user)}, which LEAF removes")
    return np.array([[_NUMBERS[letter] for letter in text] for text in texts])
