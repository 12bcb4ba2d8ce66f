"""Data sets whose samples are divided into groups of people, for fair learning.

``adult`` is the census data of the UCI repository in its original files (Becker & Kohavi 1996): is the income
of a person above 50,000 dollars? Its groups are sex and race, which are not features. ``two-groups`` is drawn
from normal distributions and needs no files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mpifed.core.streams import generator
from mpifed.data.samples import Grouping, Table, encode_labels, standardized
from mpifed.data.sources import DataError, Source, opened

__all__ = ["Adult", "load_two_groups"]

#: Columns of the files. ``fnlwgt``, the weight of a row in the census, and ``education``, the name of
#: ``education-num``, are not used.
COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
    "income",
)  # fmt: skip
NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
WORDS = ("workclass", "marital-status", "occupation", "relationship", "native-country")
GROUPS = ("sex", "race")
INCOMES = ("<=50K", ">50K")


@dataclass(frozen=True)
class Adult:
    """The census data Adult: 5 numeric columns, standardised by the training rows, and one-hot columns of the
    words, including "?" for an unknown value.

    Attributes:
        train, test: numbers of rows.
    """

    train: int = 32_561
    test: int = 16_281
    name = "adult"
    home = "https://archive.ics.uci.edu/dataset/2/adult"

    def __call__(self, data_dir: str | None = None) -> Table:
        """Read ``adult.data`` and ``adult.test`` from a folder ``adult``.

        Raises:
            DataError: a file is missing, damaged or not the expected one.
        """
        with opened(self.name, self.home, data_dir) as source:
            train = _read(source, "adult.data", self.train)
            rows = np.concatenate([train, _read(source, "adult.test", self.test)])
        columns = dict(zip(COLUMNS, rows.T))
        numbers = np.stack([columns[name] for name in NUMBERS], axis=1).astype(np.float64)
        numbers = standardized(numbers, np.arange(self.train))
        words = [columns[name][:, None] == np.unique(columns[name]) for name in WORDS]
        samples = torch.from_numpy(np.concatenate([numbers, *words], axis=1).astype(np.float32))
        labels = torch.from_numpy((columns["income"] == INCOMES[1]).astype(np.int64))
        groups = {}
        for name in GROUPS:
            names, codes = encode_labels(columns[name], name, lambda row: f"row {row + 1}")
            groups[name] = Grouping(names, {"train": codes[: self.train], "test": codes[self.train :]})
        cut = slice(self.train), slice(self.train, None)
        return Table(
            *(column[part] for part in cut for column in (samples, labels)),
            files=source.files,
            class_names=INCOMES,
            groups=groups,
        )


def _read(source: Source, file: str, count: int) -> np.ndarray:
    """Return the cells of a file, words ``[count, columns]``. The test file has a first line without cells,
    and its labels end with a point."""
    expected = f"{count} lines of {len(COLUMNS)} cells"
    path, content = source.read(file, expected)
    lines = bytes(content).decode("ascii", errors="replace").splitlines()
    cells = [line.rstrip(".").split(", ") for line in lines if line and not line.startswith("|")]
    sizes = {len(row) for row in cells}
    if len(cells) != count or sizes != {len(COLUMNS)}:
        found = f"{len(cells)} lines of {' or '.join(map(str, sorted(sizes)))} cells"
        raise DataError(f"{path}: expected {expected}, found {found}")
    rows = np.array(cells)
    numbers = [COLUMNS.index(name) for name in NUMBERS]
    correct = np.char.isdigit(rows[:, numbers]).all(1) & np.isin(rows[:, -1], INCOMES)
    if wrong := np.flatnonzero(~correct).tolist():
        raise DataError(
            f"{path}: expected whole numbers and the label {' or '.join(INCOMES)}, found "
            f"{', '.join(cells[wrong[0]])}"
        )
    return rows


def load_two_groups(data_dir: str | None = None) -> Table:
    """Return 1200 + 600 samples of ten features, one in five of the group "small", the others of "large".

    One feature separates the classes, the first in the large and the second in the small group. 60 % of the
    large and 30 % of the small group are positive.
    """
    rng, count, d = generator(0, "two-groups"), 1800, 10
    small = rng.random(count) < 0.2
    labels = (rng.random(count) < np.where(small, 0.3, 0.6)).astype(np.int64)
    samples = rng.standard_normal((count, d)).astype(np.float32)
    samples[np.arange(count), small.astype(np.int64)] += 2 * labels - 1
    samples[:, 2] += small  # the group can be guessed from the features
    train = slice(1200), slice(1200, None)
    parts = [(torch.from_numpy(samples[part]), torch.from_numpy(labels[part])) for part in train]
    numbers = dict(zip(("train", "test"), (small[part].astype(np.int64) for part in train)))
    return Table(
        *parts[0], *parts[1], class_names=("negative", "positive"),
        groups={"group": Grouping(("large", "small"), numbers)},
    )  # fmt: skip
