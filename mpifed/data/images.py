"""Images of one channel: scikit-learn's digits, and data sets in the four IDX files of MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from mpifed.data.idx import read_idx
from mpifed.data.samples import Images, Pixels
from mpifed.data.sources import DataError, Source, opened

__all__ = ["IdxImages", "load_digits"]


def load_digits(data_dir: str | None = None) -> Images:
    """The 1,797 digits of 8 x 8 pixels that scikit-learn carries; every fifth (index % 5 == 4) is a test
    image.

    They are read from its file, since importing scikit-learn takes every rank a second.
    """
    (place,) = find_spec("sklearn").submodule_search_locations
    rows = np.loadtxt(Path(place, "datasets/data/digits.csv.gz"), delimiter=",", dtype=np.float32)
    images = torch.from_numpy(rows[:, :-1] / 16).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(rows[:, -1].astype(np.int64))
    test = torch.arange(len(labels)) % 5 == 4
    return Images(images[~test], labels[~test], images[test], labels[test])


@dataclass(frozen=True)
class IdxImages:
    """Images in the four IDX files of MNIST.

    Attributes:
        name: the data set's name and that of its folder.
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
            DataError: a file is missing, damaged or not the official one; the message names the file, what
                was expected and found, the folders searched and the home page.
        """
        with opened(self.name, self.home, data_dir) as source:
            return Images(
                *self._part(source, "train", self.train), *self._part(source, "t10k", self.test), source.files
            )

    def _part(self, source: Source, part: str, count: int) -> tuple[Pixels, torch.Tensor]:
        """Images and labels of the part ``"train"`` or ``"t10k"``."""
        path, labels = read_idx(source, f"{part}-labels-idx1-ubyte", (count,))
        if labels.max() >= self.classes:
            raise DataError(f"{path}: expected labels from 0 to {self.classes - 1}, found {labels.max()}")
        _, pixels = read_idx(source, f"{part}-images-idx3-ubyte", (count, *self.size))
        return Pixels(pixels[:, None]), torch.from_numpy(labels.astype(np.int64))
