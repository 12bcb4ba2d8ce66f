"""CIFAR-10 and CIFAR-100 in the official Python batches: pickled dictionaries of pixels and labels.

A pickle can run any code, so these are read in two steps. The MD5 of a file must be the published one. And
whatever the file is, it is unpickled by :mod:`mpifed.data.pickles`, which knows nothing but arrays of bytes
and plain values. The second guard alone makes the set ``cifar100-subset`` safe, whose files are by nature not
the published ones; it has to be asked for by that name.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mpifed.data.pickles import unpickle
from mpifed.data.samples import Images, Pixels
from mpifed.data.sources import DataError, Source, opened, parsing

__all__ = ["Cifar", "CIFAR10_MD5", "CIFAR100_MD5"]

CIFAR10_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CIFAR100_MD5 = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}


#: Bytes of an image, and its pickled labels and file name at most; images of a batch at most.
_PIXELS, _WORDS, _IMAGES = 3072, 1024, 60_000


@dataclass(frozen=True)
class Cifar:
    """Colour images of 32 x 32 pixels in CIFAR's Python batches.

    Training batches that are absent are left out with a warning; one is needed at least.

    Attributes:
        name: the data set's name.
        folders: the names that its folder may have.
        train, test: names of the batches.
        labels: key of the labels in a batch.
        classes: number of classes.
        md5: published MD5 sums by batch, ``None`` to take any files.
    """

    name: str
    folders: tuple[str, ...]
    train: tuple[str, ...]
    test: str
    labels: str
    classes: int
    md5: dict[str, str] | None
    home = "https://www.cs.toronto.edu/~kriz/cifar.html"

    def __call__(self, data_dir: str | None = None) -> Images:
        """Read the batches.

        Raises:
            DataError: a file is missing, damaged or not the published one.
        """
        with opened(self.name, self.home, data_dir, *self.folders) as source:
            present = [batch for batch in self.train if source.find(batch)] or self.train[:1]
            parts = [self._batch(source, batch) for batch in present]
            test = self._batch(source, self.test)
        if absent := [batch for batch in self.train if batch not in present]:
            warnings.warn(
                f"{self.name}: training on {', '.join(present)} alone, {', '.join(absent)} are absent",
                stacklevel=2,
            )
        pixels, labels = zip(*parts)
        return Images(
            Pixels(np.concatenate(pixels)), torch.cat(labels), Pixels(test[0]), test[1], source.files
        )

    def _batch(self, source: Source, name: str) -> tuple[np.ndarray, torch.Tensor]:
        """Pixels ``[n, 3, 32, 32]`` and labels of a batch."""
        published = f" with the MD5 sum {self.md5[name]}" if self.md5 else ""
        expected = (
            f"a CIFAR batch{published}: a pickled dictionary with n x 3072 bytes of data and n {self.labels}"
        )
        path, content = source.read(name, expected, _IMAGES * (_PIXELS + _WORDS))
        if self.md5 and (found := hashlib.md5(content, usedforsecurity=False).hexdigest()) != self.md5[name]:
            raise DataError(f"{path}: expected {expected}, found {found} of {len(content)} bytes")
        with parsing(path, expected):
            pixels, labels = _unpickled(bytes(content), self.labels)
        return pixels, self._checked(path, labels)

    def _checked(self, path: Path, labels: np.ndarray) -> torch.Tensor:
        if outside := np.flatnonzero((labels < 0) | (labels >= self.classes)).tolist():
            raise DataError(
                f"{path}: expected labels from 0 to {self.classes - 1}, found {labels[outside[0]]} in row "
                f"{outside[0]}"
            )
        return torch.from_numpy(labels.astype(np.int64))


def _unpickled(content: bytes, key: str) -> tuple[np.ndarray, np.ndarray]:
    batch = unpickle(content, values=10 * (len(content) // _PIXELS))
    # Python 2, which wrote the published files, has bytes for keys.
    batch = {name.decode() if isinstance(name, bytes) else name: value for name, value in batch.items()}
    if lacking := [name for name in ("data", key) if name not in batch]:
        raise ValueError(f"no {lacking[0]} in the dictionary")
    pixels, labels = batch["data"], batch[key]
    if isinstance(labels, list) and all(type(label) is int for label in labels):
        labels = np.array(labels)
    if not isinstance(labels, np.ndarray) or labels.dtype.kind != "i" or labels.ndim != 1:
        raise ValueError(f"{key} that are no list of whole numbers")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8:
        raise ValueError(f"data that is no array of bytes but {getattr(pixels, 'dtype', type(pixels))}")
    if pixels.shape != (len(labels), _PIXELS) or not len(labels):
        raise ValueError(f"data of shape {pixels.shape} and {len(labels)} labels")
    return pixels.reshape(-1, 3, 32, 32), labels
