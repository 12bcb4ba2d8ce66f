"""What readers return: labelled samples to train, to validate and to test on, and the files that hold
them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from mpifed.core.finite import first_bad
from mpifed.core.problem import DataFile
from mpifed.data.sources import DataError

__all__ = ["Labelled", "Images", "Table", "Texts", "Pixels"]


class Pixels:
    """Images ``[n, c, h, w]`` kept as bytes; ``pixels[rows]`` are those rows as float32 in [0, 1].

    A rank asks for the rows of its clients, and nobody else's are converted, decoded or, from a file mapped
    into memory, even loaded.

    Args:
        stored: the bytes; an array, or anything else with a shape and rows.
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


@dataclass(frozen=True, eq=False)
class Labelled:
    """Samples ``[n, ...]``, float32, asked for by rows; their labels ``[n]``, int64 from 0; the files that
    hold them.

    The validation split may be absent: both of its fields are then ``None``. Where samples belong to clients
    by themselves, ``owners`` has the client of each sample to train on, ``[n]`` int64 from 0, and
    ``owner_names`` what these are called. Classes that have no names go by their numbers.

    Raises:
        DataError: a sample has a value that is not finite, samples and labels differ in number, or splits
            have samples of different shapes.
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

    def __post_init__(self):
        where = f" ({', '.join(file.path for file in self.files.values())})" if self.files else ""
        for part in ("train", "test", *(("validation",) if self.validation is not None else ())):
            samples, labels = getattr(self, part), getattr(self, f"{part}_labels")
            if len(samples) != len(labels):
                raise DataError(
                    f"{part}: expected a label a sample, found {len(samples)} and {len(labels)}{where}"
                )
            if samples.shape[1:] != self.train.shape[1:]:
                raise DataError(
                    f"{part}: expected samples of shape {self.shape} as in train, found "
                    f"{tuple(samples.shape[1:])}{where}"
                )
            if isinstance(samples, torch.Tensor) and (index := first_bad(samples)):
                found = f"{samples[index].item()} in row {index[0]}"
                raise DataError(f"{part}: expected finite numbers, found {found}{where}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample: channels, height and width of an image, the number of columns of a table."""
        return tuple(self.train.shape[1:])

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names) or int(self.train_labels.max()) + 1

    @property
    def names(self) -> tuple[str, ...]:
        """What the classes are called, by default their numbers."""
        return tuple(self.class_names) or tuple(map(str, range(self.classes)))


class Images(Labelled):
    """Images ``[n, c, h, w]`` in [0, 1] and their labels."""


class Table(Labelled):
    """Rows of numbers ``[n, d]`` and their labels, 0 or 1."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts and their labels ``[n]``, int64: 1 positive, 0 negative; the files that hold them.

    The validation split may be absent: both of its fields are then ``None``. Owners are as in
    :class:`Labelled`.
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
