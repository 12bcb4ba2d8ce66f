"""Labelled images: scikit-learn's digits, MNIST and Fashion-MNIST.

``DATASETS[name](data_dir)`` reads a data set. Files are looked for in ``data_dir/NAME``, or in ``data_dir`` itself
where that folder does not exist; without a ``data_dir``, in the first that exists of ``$MPIFED_DATA/NAME`` and of
``../shared/data/NAME``, relative to the current directory and to the checkout.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import AfterValidator

from mpifed.data.idx import SUFFIXES, DataError, describe, read_idx
from mpifed.options import near_miss

__all__ = ["Images", "IdxImages", "load_digits", "DATASETS", "Dataset"]


@dataclass(frozen=True, eq=False)
class Images:
    """Images ``[n, 1, h, w]``, float32 in [0, 1], and their labels ``[n]``, int64 from 0."""

    train: torch.Tensor
    train_labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of an image."""
        return tuple(self.train.shape[1:])

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.train_labels.max()) + 1


def _images(pixels: np.ndarray, full: int) -> torch.Tensor:
    scaled = pixels.astype(np.float32)
    scaled /= full
    return torch.from_numpy(scaled).unsqueeze(1)


def load_digits(data_dir: str | None = None) -> Images:
    """The 1,797 digits of 8 x 8 pixels that scikit-learn carries; every fifth (index % 5 == 4) is a test image."""
    from sklearn import datasets  # here, because it takes a second that other data sets need not pay

    digits = datasets.load_digits()
    images, labels = _images(digits.images, 16), torch.from_numpy(digits.target.astype(np.int64))
    test = torch.arange(len(labels)) % 5 == 4
    return Images(images[~test], labels[~test], images[test], labels[test])


@dataclass(frozen=True)
class IdxImages:
    """Reader of a data set in the four IDX files of MNIST.

    Attributes:
        name: the folder's name.
        home: the data set's home page, for messages.
        train, test: number of images.
        size: height and width.
        classes: number of classes.
    """

    name: str
    home: str
    train: int = 60_000
    test: int = 10_000
    size: tuple[int, int] = (28, 28)
    classes: int = 10

    def __call__(self, data_dir: str | None = None) -> Images:
        """Read the four files.

        Raises:
            DataError: a file is missing, damaged or not the official one; the message names the file, what was
                expected and found, the folders searched and the home page.
        """
        folders = self._folders(data_dir)
        try:
            parts = [self._part(folders, "train", self.train), self._part(folders, "t10k", self.test)]
        except DataError as error:
            searched = ", ".join(str(folder.absolute()) for folder in folders)
            raise DataError(f"{error}\nsearched: {searched}\nhome page of {self.name}: {self.home}") from error
        return Images(*parts[0], *parts[1])

    def _folders(self, data_dir: str | None) -> list[Path]:
        # A folder that was asked for is the only one: falling back on another would hide a misspelt path.
        if data_dir is not None:
            return [Path(data_dir, self.name), Path(data_dir)]
        roots = [os.environ.get("MPIFED_DATA"), "../shared/data", Path(__file__).resolve().parents[3] / "shared/data"]
        return [Path(root, self.name) for root in roots if root]

    def _part(self, folders: list[Path], part: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels of the part ``"train"`` or ``"t10k"``."""
        path, labels = self._read(folders, f"{part}-labels-idx1-ubyte", (count,))
        if labels.max() >= self.classes:
            raise DataError(f"{path}: expected labels from 0 to {self.classes - 1}, found {labels.max()}")
        _, pixels = self._read(folders, f"{part}-images-idx3-ubyte", (count, *self.size))
        return _images(pixels, 255), torch.from_numpy(labels.astype(np.int64))

    def _read(self, folders: list[Path], name: str, shape: tuple[int, ...]) -> tuple[Path, np.ndarray]:
        folder = next((folder for folder in folders if folder.is_dir()), None)
        paths = [folder / (name + suffix) for suffix in SUFFIXES] if folder else []
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            names = ", ".join(name + suffix for suffix in SUFFIXES)
            found = f"no such file in {folder.absolute()}" if folder else "none of the folders"
            raise DataError(f"{self.name} lacks a file: expected one of {names}, {describe(shape)}; found {found}")
        return path, read_idx(path, shape)


#: Readers of data sets by name, ``(data_dir) -> Images``.
DATASETS = {
    "digits": load_digits,
    "mnist": IdxImages("mnist", "http://yann.lecun.com/exdb/mnist/"),
    "fashion-mnist": IdxImages("fashion-mnist", "https://github.com/zalandoresearch/fashion-mnist"),
}


def _known(name: str) -> str:
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}: {near_miss(name, DATASETS)}")
    return name


#: The name of a data set.
Dataset = Annotated[str, AfterValidator(_known)]
