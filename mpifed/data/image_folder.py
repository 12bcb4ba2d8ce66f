"""Folders of image files, or a zip archive of one, through Pillow.

Two layouts: ``train/CLASS/**`` and ``test/CLASS/**``, and that of Tiny ImageNet, ``train/CLASS/images/*``
with ``val/images/*`` whose classes are in ``val/val_annotations.txt``. Classes are numbered in the order of
their names. Training images are decoded when a rank first asks for them, so each rank decodes those of its
own clients.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mpifed.data.samples import Images, Pixels
from mpifed.data.sources import DataError, Source, opened

__all__ = ["ImageFolder"]

_KINDS = (".jpeg", ".jpg", ".png", ".bmp", ".ppm", ".pgm")
#: What reading and decoding damaged bytes may raise.
_DAMAGE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    Image.DecompressionBombError,
)


@dataclass(frozen=True, eq=False)
class _Tree:
    """Where a tree of files lies, the files' names under its root, and how to read one."""

    path: Path
    names: list[str]
    read: Callable[[str], bytes]


class _Decoded:
    """Image files as an array of bytes ``[n, 3, h, w]`` whose rows are decoded when they are first asked
    for."""

    def __init__(self, tree: _Tree, names: list[str], size: tuple[int, int]):
        self._tree, self._names, self._size = tree, names, size
        self.shape = (len(names), 3, *size)
        self._pixels = np.empty(self.shape, np.uint8)  # memory that nobody writes to costs nothing
        self._known = np.zeros(len(names), bool)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, rows) -> np.ndarray:
        asked = np.unique(np.arange(len(self))[rows])
        for row in asked[~self._known[asked]]:
            self._pixels[row] = self._decode(self._names[row])
            self._known[row] = True
        return self._pixels[rows]

    def _decode(self, name: str) -> np.ndarray:
        expected = f"{self._tree.path}, {name}: expected an image of {self._size[0]} x {self._size[1]} pixels"
        try:
            with Image.open(io.BytesIO(self._tree.read(name))) as image:
                width, height = image.size
                pixels = np.asarray(image.convert("RGB"))
        except _DAMAGE as error:
            raise DataError(f"{expected}, found a file that cannot be decoded: {error}") from error
        if (height, width) != self._size:
            raise DataError(f"{expected}, found {height} x {width}")
        return pixels.transpose(2, 0, 1)


@dataclass(frozen=True)
class ImageFolder:
    """Images in a folder or zip archive with one subfolder a class; grey ones are made colour images.

    Attributes:
        name: the data set's name.
        root: the name of the folder, or of the archive without ``.zip`` and of the one folder in it.
        folders: the names of folders that may hold it.
        home: the data set's home page, for messages.
    """

    name: str
    root: str
    folders: tuple[str, ...]
    home: str

    def __call__(self, data_dir: str | None = None) -> Images:
        """Read the tree; all images must have the size of the first.

        Raises:
            DataError: there is no such folder or archive, it has another layout, or an image cannot be
                decoded.
        """
        with opened(self.name, self.home, data_dir, *self.folders) as source:
            tree = self._tree(source)
            train, test = _classified(tree, "train"), _classified(tree, "test") or _annotated(tree)
            if not train or not test:
                part = "test or val" if train else "train"
                raise DataError(f"{tree.path}: expected images in {part}, a folder a class, found none")
            classes = sorted(set(train.values()))
            if strange := set(test.values()) - set(classes):
                raise DataError(
                    f"{tree.path}: expected the classes of train in test, found {sorted(strange)[0]!r} too"
                )
            size = _size(tree, next(iter(train)))
            held_out = Pixels(
                _Decoded(tree, list(test), size)[:]
            )  # at once, since every evaluation needs them
            return Images(
                Pixels(_Decoded(tree, list(train), size)),
                _numbers(train, classes),
                held_out,
                _numbers(test, classes),
                source.files,
            )

    def _tree(self, source: Source) -> _Tree:
        """The folder, or else the archive."""
        folder = source.folder / self.root if source.folder else None
        if folder and folder.is_dir():
            names = sorted(
                path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
            )
            tree = _Tree(folder, names, lambda name: (folder / name).read_bytes())
            source.note(
                self.root,
                folder,
                *(part for name in names for part in (name.encode(), b"\0", tree.read(name))),
            )
            return tree
        expected = f"a zip archive of the folder {self.root}"
        archive = f"{self.root}.zip"
        if not source.find(archive):
            raise source.missing(f"{self.root}/, {archive}", expected)
        path, _ = source.read(archive, expected)
        try:
            content = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: expected {expected}, found {error}") from error
        start = f"{self.root}/"
        names = sorted(name.removeprefix(start) for name in content.namelist() if name.startswith(start))
        return _Tree(path, names, lambda name: content.read(start + name))


def _classified(tree: _Tree, part: str) -> dict[str, str]:
    """File → class of the images in ``part/CLASS/``."""
    split = {name: name.split("/") for name in tree.names if name.lower().endswith(_KINDS)}
    return {name: parts[1] for name, parts in split.items() if parts[0] == part and len(parts) > 2}


def _annotated(tree: _Tree) -> dict[str, str]:
    """File → class of the images in ``val/images``, by the list beside them; else those in ``val/CLASS/``."""
    annotations = "val/val_annotations.txt"
    if annotations not in tree.names:
        return _classified(tree, "val")
    lines = [line.split("\t") for line in tree.read(annotations).decode().splitlines()]
    listed = {f"val/images/{fields[0]}": fields[1] for fields in lines if len(fields) > 1}
    present = {name for name in tree.names if name.startswith("val/images/")}
    if listed.keys() != present:
        wrong = sorted(listed.keys() ^ present)[0]
        raise DataError(
            f"{tree.path}: expected one line of {annotations} for each image of val, found a difference in "
            f"{wrong}"
        )
    return listed


def _size(tree: _Tree, name: str) -> tuple[int, int]:
    """Height and width of an image, read from its header."""
    try:
        with Image.open(io.BytesIO(tree.read(name))) as image:
            return image.size[::-1]
    except _DAMAGE as error:
        raise DataError(
            f"{tree.path}, {name}: expected an image, found a file that cannot be read: {error}"
        ) from error


def _numbers(files: dict[str, str], classes: list[str]) -> torch.Tensor:
    number = {name: i for i, name in enumerate(classes)}
    return torch.tensor([number[name] for name in files.values()])
