"""NumPy archives (``.npz``): MedMNIST's official files, and Omniglot's drawings."""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from mpifed.core.problem import DataFile
from mpifed.data.samples import Images, Pixels
from mpifed.data.sources import DataError, Source, bound, opened, parsing

__all__ = ["MedMnist", "Omniglot", "load_omniglot"]

#: Omniglot's characters by part.
CHARACTERS = {"background": 964, "evaluation": 659}

Arrays = dict[str, np.ndarray]
#: Name of an array → its NumPy type, and its shape or number of dimensions.
Wanted = dict[str, tuple[type, int | tuple[int, ...]]]


def read_arrays(source: Source, name: str, wanted: Wanted) -> tuple[Path, str, Arrays]:
    """Path, description and arrays of an archive.

    Headers are checked first, because a few compressed bytes can stand for a terabyte.

    Raises:
        DataError: the file is missing or damaged, or an array is missing or has another type or shape.
    """
    words = ", ".join(f"{key} of {_described(*one)}" for key, one in wanted.items())
    expected = f"a NumPy archive with the arrays {words}"
    path, content = source.read(name, expected)
    arrays, room = {}, bound(path)
    with parsing(path, expected), zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if lacking := [key for key in wanted if key not in members]:
            raise ValueError(f"no {', '.join(lacking)} among {', '.join(members) or 'no arrays'}")
        for key, (kind, shape) in wanted.items():
            if (room := room - members[key].file_size) < 0:
                raise ValueError(f"more than {bound(path)} bytes, {key} among them")
            arrays[key] = _array(archive, members[key], key, kind, shape)
    return path, expected, arrays


def read_all(source: Source, name: str) -> Arrays:
    """All arrays of an archive, of numbers or of words.

    Raises:
        DataError: the file is missing or damaged, or has an array of another type.
    """
    expected = "a NumPy archive with arrays of numbers and words"
    path, content = source.read(name, expected)
    arrays, room = {}, bound(path)
    with parsing(path, expected), zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            if (room := room - info.file_size) < 0:
                raise ValueError(f"more than {bound(path)} bytes, {info.filename} among them")
            key = info.filename.removesuffix(".npy")
            arrays[key] = _array(archive, info, key, np.generic, None)
    return arrays


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, key: str, kind: type, shape) -> np.ndarray:
    """An array, after its header has been checked."""
    with archive.open(info) as member:
        _check_header(member, key, kind, shape, info.file_size)
    with archive.open(info) as member:
        array = np.lib.format.read_array(member, allow_pickle=False)
        member.read(1)  # the checksum is verified at the end of the member
    return array


def _described(kind: type, shape: int | tuple[int, ...]) -> str:
    return f"type {kind.__name__} and " + (
        f"{shape} dimensions" if isinstance(shape, int) else f"shape {shape}"
    )


def _check_header(member, key: str, kind: type, shape: int | tuple[int, ...] | None, size: int) -> None:
    """Compare an array's header with the expected type and shape and with the length of the archive's
    member."""
    version = np.lib.format.read_magic(member)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{key} in version {version} of the format")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    found, _, dtype = read(member)
    same = shape is None or (len(found) == shape if isinstance(shape, int) else found == shape)
    if not np.issubdtype(dtype, kind) or not same:
        raise ValueError(f"{key} of type {dtype} and shape {found}")
    if (length := member.tell() + math.prod(found) * dtype.itemsize) != size:
        raise ValueError(f"{key} of {size} bytes, where its header states {length}")


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
                    f"{path}: expected images of one size to train and to test on, found "
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
        if outside := np.flatnonzero((labels < 0) | (labels >= self.classes)).tolist():
            raise DataError(
                f"{path}: expected labels from 0 to {self.classes - 1}, found {labels[outside[0], 0]} in row "
                f"{outside[0]} of {part}_labels"
            )
        if lacking := sorted({*range(self.classes)} - set(labels[:, 0].tolist())):
            raise DataError(
                f"{path}: expected {part} images of all {self.classes} classes, found none of class "
                f"{lacking[0]}"
            )
        return Pixels(pixels[:, None]), torch.from_numpy(labels[:, 0].astype(np.int64))


@dataclass(frozen=True, eq=False)
class Omniglot:
    """Handwritten characters ``[characters, 20, 105, 105]``, bool, True for ink, for training
    (``background``) and for test (``evaluation``), and their files."""

    background: np.ndarray
    evaluation: np.ndarray
    files: dict[str, DataFile] = field(default_factory=dict)


def load_omniglot(data_dir: str | None = None) -> Omniglot:
    """Omniglot's 964 + 659 characters, each drawn by twenty people, from two NumPy archives of bits (True:
    paper).

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
