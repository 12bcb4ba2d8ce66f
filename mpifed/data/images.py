"""Image data sets in official files: scikit-learn's digits, MNIST's IDX files, CIFAR's Python and binary
batches.

An IDX file is a magic number (two zero bytes, the type code 0x08, the number of dimensions), each dimension
as a big-endian 32-bit number, then the elements with the last dimension varying fastest.

CIFAR's batches are pickled dictionaries. Their MD5 sums are compared with the published ones, and a
restricted unpickler accepts only plain values and integer arrays. The data set ``cifar100-subset`` has no
published sums: no code in its files can run, but a malicious file can take long to read. The binary version
has the same batches as records of one or two label bytes and 3072 bytes of pixels, in files ``BATCH.bin``.
"""

from __future__ import annotations

import hashlib
import io
import math
import pickle
import struct
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from mpifed.data.samples import Images, Pixels, expect_labels
from mpifed.data.sources import DataError, Source, opened, parsing

__all__ = ["CIFAR10_MD5", "CIFAR100_MD5", "Cifar", "IdxImages", "load_digits", "read_idx"]

CIFAR10_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CIFAR100_MD5 = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}
#: Bytes of a CIFAR image; maximum number of bytes of its label and file name; maximum number of images in a
#: batch.
_PIXELS, _WORDS, _IMAGES = 3072, 1024, 60_000


def load_digits(data_dir: str | None = None) -> Images:
    """Read scikit-learn's 1,797 digits of 8 x 8 pixels; every fifth (index % 5 == 4) is a test image.

    The file is read directly because importing scikit-learn takes a second on every rank.
    """
    (place,) = find_spec("sklearn").submodule_search_locations
    rows = np.loadtxt(Path(place, "datasets/data/digits.csv.gz"), delimiter=",", dtype=np.float32)
    images = torch.from_numpy(rows[:, :-1] / 16).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(rows[:, -1].astype(np.int64))
    test = torch.arange(len(labels)) % 5 == 4
    return Images(images[~test], labels[~test], images[test], labels[test])


def read_idx(source: Source, name: str, shape: tuple[int, ...]) -> tuple[Path, np.ndarray]:
    """Return the path of an IDX file of unsigned bytes, and its content as a read-only array of ``shape``.

    Raises:
        DataError: the file cannot be read, or its type, dimensions or length differ.
    """
    magic, start = 0x0800 | len(shape), 4 + 4 * len(shape)
    length = start + math.prod(shape)
    expected = (
        f"an IDX file with magic number 0x{magic:08X} and {' x '.join(map(str, shape))} unsigned bytes "
        f"({length} bytes uncompressed)"
    )
    path, content = source.read(name, expected, length, cut=True)
    if len(content) < start:
        found = f"only {len(content)} bytes"
    elif (number := int.from_bytes(content[:4], "big")) != magic:
        found = f"magic number 0x{number:08X}"
    elif (sizes := struct.unpack(f">{len(shape)}I", content[4:start])) != shape:
        found = f"dimensions {' x '.join(map(str, sizes))}"
    elif len(content) != length:
        found = f"more than {length} bytes" if len(content) > length else f"{len(content)} bytes"
    else:
        return path, np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    raise DataError(f"{path}: expected {expected}, found {found}")


@dataclass(frozen=True)
class IdxImages:
    """Images in the four IDX files of MNIST.

    Attributes:
        name: name of the data set and its folder.
        home: home page of the data set, for messages.
        train, test: numbers of images.
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
            DataError: a file is missing, damaged or not the official one.
        """
        with opened(self.name, self.home, data_dir) as source:
            return Images(
                *self._part(source, "train", self.train), *self._part(source, "t10k", self.test), source.files
            )

    def _part(self, source: Source, part: str, count: int) -> tuple[Pixels, torch.Tensor]:
        path, labels = read_idx(source, f"{part}-labels-idx1-ubyte", (count,))
        expect_labels(labels, self.classes, str(path))
        _, pixels = read_idx(source, f"{part}-images-idx3-ubyte", (count, *self.size))
        return Pixels(pixels[:, None]), torch.from_numpy(labels.astype(np.int64))


@dataclass(frozen=True)
class Cifar:
    """Colour images of 32 x 32 pixels in CIFAR's Python batches, or in binary batches where those are absent.

    Missing training batches are left out with a warning; at least one is required.

    Attributes:
        name: name of the data set.
        folders: possible names of its folder.
        train, test: names of the batches.
        labels: key of the labels in a batch.
        classes: number of classes.
        md5: published MD5 sums by Python batch; ``None`` accepts any files.
        sizes: numbers of images in a training and in the test batch of the binary version; ``None`` accepts
            any.
        label_bytes: number of labels per record of the binary version, of which the last is used.
    """

    name: str
    folders: tuple[str, ...]
    train: tuple[str, ...]
    test: str
    labels: str
    classes: int
    md5: dict[str, str] | None
    sizes: tuple[int, int] | None = None
    label_bytes: int = 1
    home = "https://www.cs.toronto.edu/~kriz/cifar.html"

    def __call__(self, data_dir: str | None = None) -> Images:
        """Read the batches.

        Raises:
            DataError: a file is missing, damaged or not the published one.
        """
        with opened(self.name, self.home, data_dir, *self.folders) as source:
            present = [batch for batch in self.train if _found(source, batch)] or self.train[:1]
            parts = [self._batch(source, batch) for batch in present]
            test = self._batch(source, self.test)
        if absent := [batch for batch in self.train if batch not in present]:
            warnings.warn(
                f"{self.name}: {', '.join(absent)} not found, training only on {', '.join(present)}",
                stacklevel=2,
            )
        pixels, labels = zip(*parts)
        return Images(
            Pixels(np.concatenate(pixels)), torch.cat(labels), Pixels(test[0]), test[1], source.files
        )

    def _batch(self, source: Source, name: str) -> tuple[np.ndarray, torch.Tensor]:
        """Return the pixels ``[n, 3, 32, 32]`` and labels of a batch."""
        if not source.find(name) and source.find(f"{name}.bin"):
            return self._binary(source, name)
        published = f" with the MD5 sum {self.md5[name]}" if self.md5 else ""
        expected = (
            f"a CIFAR batch{published}: a pickled dictionary with n x 3072 bytes of data and n {self.labels}"
        )
        path, content = source.read(name, expected, _IMAGES * (_PIXELS + _WORDS))
        if self.md5 and (found := hashlib.md5(content, usedforsecurity=False).hexdigest()) != self.md5[name]:
            raise DataError(f"{path}: expected {expected}, found {found} of {len(content)} bytes")
        with parsing(path, expected):
            pixels, labels = _unpickled(bytes(content), self.labels)
        expect_labels(labels, self.classes, str(path))
        return pixels, torch.from_numpy(labels.astype(np.int64))

    def _binary(self, source: Source, name: str) -> tuple[np.ndarray, torch.Tensor]:
        """Return pixels and labels of a batch of the binary version."""
        record = self.label_bytes + _PIXELS
        count = self.sizes and self.sizes[name == self.test]
        expected = f"a binary CIFAR batch: {count or 'n'} records of {record} bytes"
        path, content = source.read(f"{name}.bin", expected, _IMAGES * record)
        if not content or len(content) % record or (count and len(content) != count * record):
            raise DataError(f"{path}: expected {expected}, found {len(content)} bytes")
        records = np.frombuffer(content, np.uint8).reshape(-1, record)
        labels = records[:, self.label_bytes - 1].astype(np.int64)
        expect_labels(labels, self.classes, str(path))
        return records[:, self.label_bytes :].reshape(-1, 3, 32, 32), torch.from_numpy(labels)


def _found(source: Source, batch: str) -> bool:
    """Whether a batch exists in one of the two versions."""
    return bool(source.find(batch) or source.find(f"{batch}.bin"))


class _Dtype:
    """Replaces ``numpy.dtype``, whose pickled state could reinterpret numbers as pointers."""

    def __init__(self, code, *flags):
        self.code = code.decode() if isinstance(code, bytes) else code
        if self.code not in ("u1", "i4", "i8"):
            raise pickle.UnpicklingError(f"an array of type {self.code!r}, which is not an integer type")

    def __setstate__(self, state: tuple) -> None:
        order = state[1].decode() if isinstance(state[1], bytes) else state[1]
        if order not in ("|", "<", ">", "="):
            raise pickle.UnpicklingError("an array without a byte order")
        self.code = order + self.code


class _Array:
    """Replaces ``numpy.ndarray``, which a pickle creates empty and then fills; ``values`` is the array."""

    values: np.ndarray | None = None

    def __init__(self, *ignored):
        pass

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array without its bytes")
        self.values = np.frombuffer(raw, dtype.code).reshape(shape, order="F" if fortran else "C")


class _Unpickler(pickle.Unpickler):
    """Unpickles plain values and integer arrays, as written by NumPy 1 and 2."""

    allowed = {
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
    }

    def find_class(self, module: str, name: str):
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"a reference to {module}.{name}, which is not allowed")
        return self.allowed[module, name]


def _unpickled(content: bytes, key: str) -> tuple[np.ndarray, np.ndarray]:
    batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    if not isinstance(batch, dict):
        raise ValueError(f"a pickled {type(batch).__name__}")
    # The published files were written by Python 2, so their keys are bytes.
    batch = {name.decode() if isinstance(name, bytes) else name: value for name, value in batch.items()}
    if lacking := [name for name in ("data", key) if name not in batch]:
        raise ValueError(f"no {lacking[0]} in the dictionary")
    pixels, labels = (getattr(batch[name], "values", batch[name]) for name in ("data", key))
    if isinstance(labels, list) and all(type(label) is int for label in labels):
        labels = np.array(labels)
    if not isinstance(labels, np.ndarray) or labels.dtype.kind != "i" or labels.ndim != 1:
        raise ValueError(f"{key} that are not a list of integers")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8:
        raise ValueError(f"data of type {getattr(pixels, 'dtype', type(pixels))} instead of uint8")
    if pixels.shape != (len(labels), _PIXELS) or not len(labels):
        raise ValueError(f"data of shape {pixels.shape} and {len(labels)} labels")
    return pixels.reshape(-1, 3, 32, 32), labels
