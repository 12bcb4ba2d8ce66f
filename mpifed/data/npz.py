"""NumPy archives (``.npz``): MedMNIST's official files, and Omniglot's drawings."""

from __future__ import annotations

import io
import lzma
import tokenize
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from mpifed.core.problem import DataFile
from mpifed.data.samples import Images, Pixels
from mpifed.data.sources import DataError, Source, opened

__all__ = ["MedMnist", "Omniglot", "load_omniglot"]

#: Omniglot's characters by part.
CHARACTERS = {"background": 964, "evaluation": 659}

Arrays = dict[str, np.ndarray]
#: What damaged bytes may raise on their way through zip, its compressions, NumPy and the tokeniser it reads
#: headers with.
_DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


def read_arrays(source: Source, name: str, wanted: dict[str, tuple[str, int]]) -> tuple[Path, str, Arrays]:
    """Path, description and arrays of an archive; ``wanted`` maps a name to dtype kinds and number of
    dimensions."""
    words = ", ".join(f"{key} of {number} dimensions" for key, (_, number) in wanted.items())
    expected = f"a NumPy archive with the arrays {words}"
    path, content = source.read(name, expected)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            if lacking := [key for key in wanted if key not in archive]:
                raise ValueError(f"no {', '.join(lacking)} among {', '.join(archive) or 'no arrays'}")
            arrays = {key: archive[key] for key in wanted}
    except _DAMAGE as error:
        raise DataError(f"{path}: expected {expected}, found {error or 'no archive'}") from error
    for key, (kinds, number) in wanted.items():
        array = arrays[key]
        if array.dtype.kind not in kinds or array.ndim != number:
            raise DataError(
                f"{path}: expected {expected}, found {key} of type {array.dtype} and shape {array.shape}"
            )
    return path, expected, arrays


@dataclass(frozen=True)
class MedMnist:
    """Images of one of MedMNIST's 2D sets with one label each; its validation part is left alone.

    Attributes:
        name: the set's name, that of its file without ``.npz``.
        classes: number of classes.
    """

    name: str
    classes: int
    home = "https://medmnist.com"

    def __call__(self, data_dir: str | None = None) -> Images:
        """Read the file, from a folder ``medmnist``.

        Raises:
            DataError: it is missing, damaged or another one.
        """
        wanted = {f"{part}_labels": ("iu", 2) for part in ("train", "test")}
        images = {"train_images": ("u", 3), "test_images": ("u", 3)}
        with opened(self.name, self.home, data_dir, "medmnist") as source:
            path, expected, arrays = read_arrays(source, f"{self.name}.npz", images | wanted)
            parts = [self._part(path, expected, arrays, part) for part in ("train", "test")]
        return Images(*parts[0], *parts[1], source.files)

    def _part(self, path: Path, expected: str, arrays: Arrays, part: str) -> tuple[Pixels, torch.Tensor]:
        pixels, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if labels.shape != (len(pixels), 1) or not len(labels):
            raise DataError(
                f"{path}: expected {expected}, one label an image, found {part} labels of shape "
                f"{labels.shape} for "
                f"{len(pixels)} images"
            )
        if labels.min() < 0 or labels.max() >= self.classes:
            raise DataError(
                f"{path}: expected labels from 0 to {self.classes - 1}, found {labels.min()} to "
                f"{labels.max()}"
            )
        return Pixels(pixels[:, None]), torch.from_numpy(labels[:, 0].astype(np.int64))


@dataclass(frozen=True, eq=False)
class Omniglot:
    """Handwritten characters ``[characters, 20, 105, 105]``, bool, True where there is ink; the files that
    hold them.

    The characters of ``background`` are to learn from, those of ``evaluation`` are new ones.
    """

    background: np.ndarray
    evaluation: np.ndarray
    files: dict[str, DataFile] = field(default_factory=dict)


def load_omniglot(data_dir: str | None = None) -> Omniglot:
    """Omniglot's 964 + 659 characters, each drawn by twenty people, from two NumPy archives of bits (True:
    paper).

    Raises:
        DataError: a file is missing, damaged or another one.
    """
    drawings = []
    with opened("omniglot", "https://github.com/brendenlake/omniglot", data_dir) as source:
        for part, characters in CHARACTERS.items():
            path, expected, arrays = read_arrays(source, f"images_{part}.npz", {"images": ("b", 4)})
            images, shape = arrays["images"], (characters, 20, 105, 105)
            if images.shape != shape:
                raise DataError(
                    f"{path}: expected {expected}, images of shape {shape}, found shape {images.shape}"
                )
            drawings.append(np.logical_not(images, out=images))
    return Omniglot(*drawings, source.files)
