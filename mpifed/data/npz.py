"""NumPy archives (``.npz``): MedMNIST's official files, and Omniglot's drawings."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from mpifed.core.problem import DataFile
from mpifed.data.samples import Images, Pixels, expect_labels
from mpifed.data.sources import DataError, Source, max_unpacked_bytes, opened, parsing

__all__ = ["MedMnist", "Omniglot", "load_omniglot"]

#: Omniglot's characters by part.
CHARACTERS = {"background": 964, "evaluation": 659}

Arrays = dict[str, np.ndarray]
#: Name of an array → its NumPy type and its shape or number of dimensions.
Wanted = dict[str, tuple[type, int | tuple[int, ...]]]


def read_arrays(source: Source, name: str, wanted: Wanted | None = None) -> tuple[Path, str, Arrays]:
    """Return the path, a description and the arrays of an archive; without ``wanted``, all of its arrays.

    The lengths in the archive's directory are checked first, because a few compressed bytes can represent a
    terabyte.

    Raises:
        DataError: the file is missing or damaged, or an array is missing or has another type or shape.
    """
    names = ", ".join(f"{key} of {_described(*one)}" for key, one in (wanted or {}).items())
    expected = "a NumPy archive with " + (f"the arrays {names}" if wanted else "arrays of numbers and words")
    path, content = source.read(name, expected)
    arrays, room = {}, max_unpacked_bytes(path)
    with parsing(path, expected), zipfile.ZipFile(io.BytesIO(content)) as archive:
        members: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist():
            if members.setdefault(info.filename.removesuffix(".npy"), info) is not info:
                raise ValueError(f"two arrays called {info.filename.removesuffix('.npy')}")
        if missing := [key for key in wanted or () if key not in members]:
            raise ValueError(f"no {', '.join(missing)} among {', '.join(members) or 'no arrays'}")
        for key in wanted or members:
            if (room := room - members[key].file_size) < 0:
                raise ValueError(f"more than {max_unpacked_bytes(path)} bytes, {key} among them")
            with archive.open(members[key]) as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
                if member.read(1):  # the checksum, too, is verified at the end of the member
                    raise ValueError(f"{key} of more bytes than its header states")
            kind, shape = wanted[key] if wanted else (np.generic, array.shape)
            if not np.issubdtype(array.dtype, kind) or shape not in (array.ndim, array.shape):
                raise ValueError(f"{key} of type {array.dtype} and shape {array.shape}")
            arrays[key] = array
    return path, expected, arrays


def _described(kind: type, shape: int | tuple[int, ...]) -> str:
    form = f"{shape} dimensions" if isinstance(shape, int) else f"shape {shape}"
    return f"type {kind.__name__} and {form}"


@dataclass(frozen=True)
class MedMnist:
    """Images of one of MedMNIST's 2D sets with one label each; its validation part is not used.

    Attributes:
        name: name of the set and of its file without ``.npz``.
        classes: number of classes.
    """

    name: str
    classes: int
    home = "https://medmnist.com"

    def __call__(self, data_dir: str | None = None) -> Images:
        """Read the file, from a folder ``medmnist``.

        Raises:
            DataError: it is missing, damaged or not the expected one.
        """
        wanted: Wanted = {f"{part}_images": (np.uint8, 3) for part in ("train", "test")}
        wanted |= {f"{part}_labels": (np.integer, 2) for part in ("train", "test")}
        with opened(self.name, self.home, data_dir, "medmnist") as source:
            path, expected, arrays = read_arrays(source, f"{self.name}.npz", wanted)
            parts = [self._part(path, expected, arrays, part) for part in ("train", "test")]
            sizes = [tuple(part[0].shape[2:]) for part in parts]
            if sizes[0] != sizes[1] or 0 in sizes[0]:
                raise DataError(
                    f"{path}: expected training and test images of one size, found "
                    f"{sizes[0][0]} x {sizes[0][1]} and {sizes[1][0]} x {sizes[1][1]}"
                )
        return Images(*parts[0], *parts[1], source.files)

    def _part(self, path: Path, expected: str, arrays: Arrays, part: str) -> tuple[Pixels, torch.Tensor]:
        pixels, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if labels.shape != (len(pixels), 1) or not len(labels):
            raise DataError(
                f"{path}: expected {expected}, one label per image, found {part} labels of shape "
                f"{labels.shape} for {len(pixels)} images"
            )
        expect_labels(labels[:, 0], self.classes, f"{path}, {part}_labels")
        if missing := sorted({*range(self.classes)} - set(labels[:, 0].tolist())):
            raise DataError(
                f"{path}: expected {part} images of all {self.classes} classes, found none of class "
                f"{missing[0]}"
            )
        return Pixels(pixels[:, None]), torch.from_numpy(labels[:, 0].astype(np.int64))


@dataclass(frozen=True, eq=False)
class Omniglot:
    """Omniglot's drawings ``[characters, 20, 105, 105]``, bool, True for ink.

    Attributes:
        background, evaluation: drawings for training and for testing.
        files: the files read, by name.
    """

    background: np.ndarray
    evaluation: np.ndarray
    files: dict[str, DataFile] = field(default_factory=dict)


def load_omniglot(data_dir: str | None = None) -> Omniglot:
    """Read Omniglot's 964 + 659 characters, each drawn by twenty people, from two NumPy archives.

    In the archives, True means paper.

    Raises:
        DataError: a file is missing, damaged or not the expected one.
    """
    drawings = []
    with opened("omniglot", "https://github.com/brendenlake/omniglot", data_dir) as source:
        for part, characters in CHARACTERS.items():
            shape = (characters, 20, 105, 105)
            _, _, arrays = read_arrays(source, f"images_{part}.npz", {"images": (np.bool_, shape)})
            images = arrays["images"]
            drawings.append(np.logical_not(images, out=images))
    return Omniglot(*drawings, source.files)
