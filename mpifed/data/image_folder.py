"""Folders of image files, or a zip archive of one, decoded by Pillow.

There are two layouts: ``train/CLASS/**`` and ``test/CLASS/**``, optionally with ``validation/CLASS/**`` or
``val/CLASS/**``; and Tiny ImageNet's, ``train/CLASS/images/*`` and test images ``val/images/*`` whose classes
are listed in ``val/val_annotations.txt``. Classes are numbered in the order of their names. Training images
are decoded when they are first indexed, so a rank decodes only the images of its clients.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field

from mpifed.base.data_files import folder_chunks, is_hidden, listing
from mpifed.base.errors import truncate
from mpifed.base.settings import UserPath, hyperparameters
from mpifed.data.samples import Images, Pixels, expect_all_classes, split_fields, warn_of_names
from mpifed.data.sources import DataError, Source, opened, parsing, warn_of_left_out

if TYPE_CHECKING:
    import PIL.Image

__all__ = ["ImageFolder", "UserFolder"]

_SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".ppm", ".pgm")
#: The names of these formats in Pillow. Other formats are excluded; for example, Pillow runs an external
#: program to read EPS.
_FORMATS = ("JPEG", "PNG", "BMP", "PPM")
#: Pillow's modes with more than one byte per channel, which conversion to RGB would truncate.
_WIDE = ("I", "F")
#: Maximum number of bytes of an image file or of the list of classes.
_LARGEST = 2**26
_ANNOTATIONS = "val/val_annotations.txt"
#: Suffixes of images, also in formats that are not read.
_IMAGES = (
    *_SUFFIXES,
    ".webp",
    ".tif",
    ".tiff",
    ".gif",
    ".jfif",
    ".jpe",
    ".jp2",
    ".heic",
    ".heif",
    ".avif",
    ".npy",
)


class _Folder:
    """A folder of files.

    Args:
        path: its path.
        names: names of the files in it, relative to the path, without hidden files.
        folders: names of the folders in it.
        hidden: names of hidden files and folders, which are left out.
    """

    def __init__(self, path: Path, names: list[str], folders: list[str], hidden: list[str]):
        self.path, self.names, self.folders, self.hidden = path, names, folders, hidden

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        path = self.path / name
        _expect_length(path.stat().st_size)
        return path.read_bytes()


class _Archive:
    """The files of a folder in a zip archive, as :class:`_Folder`.

    Args:
        path: path of the archive.
        packed: its content, if it is not the content of the file at ``path``.
        root: path of the folder in the archive, ends in ``/``.

    Raises:
        ValueError: there is no such folder in the archive, or a file is in it twice.
    """

    def __init__(self, path: Path, packed: bytes | None, root: str):
        self.path, self._packed, self._root = path, packed, root
        self._content = zipfile.ZipFile(path if packed is None else io.BytesIO(packed))
        self._members: dict[str, zipfile.ZipInfo] = {}
        self.folders, hidden, outside = [], [], []
        for info in self._content.infolist():
            path_text = _plain(info.filename)
            name, parts = path_text.removeprefix(root), path_text.rstrip("/").split("/")
            if first := next((end for end, part in enumerate(parts, 1) if is_hidden(part)), 0):
                hidden.append("/".join(parts[:first]).removeprefix(root))
            elif not path_text.startswith(root):
                outside += [] if path_text.endswith("/") else [path_text]
            elif path_text.endswith("/"):
                self.folders.append(name.rstrip("/"))
            elif self._members.setdefault(name, info) is not info:
                raise ValueError(f"two files called {path_text}")
        if outside and not self._members:
            found = sorted({name.partition("/")[0] + "/" * ("/" in name) for name in outside})
            raise ValueError(
                f"no folder {root} in it, but {truncate(', '.join(found))}: pack the folder itself"
            )
        self.names, self.hidden = sorted(self._members), [*dict.fromkeys(hidden), *sorted(outside)]

    def __reduce__(self):
        return _Archive, (self.path, self._packed, self._root)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        _expect_length(self._members[name].file_size)  # no more bytes than stated are read
        return self._content.read(self._members[name])


def _plain(name: str) -> str:
    """Return the path of a member of an archive, with single slashes and without ``./``.

    Some programs write ``./a/b``, and some on Windows ``a\\b``.
    """
    text = name.replace("\\", "/")
    return PurePosixPath(text).as_posix() + "/" * text.endswith("/")


_Tree = _Folder | _Archive


class _Decoded:
    """Image files as a uint8 array ``[n, 3, h, w]`` whose rows are decoded when they are first indexed.

    Images are resized to ``size`` if ``resized``; otherwise they must have this size. Another process that
    gets a copy decodes the rows that it needs.
    """

    def __init__(self, tree: _Tree, names: list[str], size: tuple[int, int], resized: bool):
        self._tree, self._names, self._size, self._resized = tree, names, size, resized
        self.shape = (len(names), 3, *size)
        self._pixels = np.empty(self.shape, np.uint8)  # unwritten pages take no memory
        self._known = np.zeros(len(names), bool)

    def __reduce__(self):
        return _Decoded, (self._tree, self._names, self._size, self._resized)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, rows) -> np.ndarray:
        wanted = np.unique(np.arange(len(self))[rows])
        for row in wanted[~self._known[wanted]]:
            self._pixels[row] = self._decode(self._names[row])
            self._known[row] = True
        return self._pixels[rows]

    def _decode(self, name: str) -> np.ndarray:
        height, width = self._size
        where, expected = f"{self._tree.path}, {name}", "an image"
        if not self._resized:
            expected += f" of {height} x {width} pixels"
        with parsing(where, expected, "a file that cannot be decoded: "), _opened(self._tree, name) as image:
            # Checked before decoding: a small file can contain any number of pixels.
            if image.size != (width, height) and not self._resized:
                raise DataError(
                    f"{where}: expected {expected}, found {image.size[1]} x {image.size[0]}: all images must "
                    "have the size of the first training image; size = N resizes a user-defined folder"
                )
            if image.mode.startswith(_WIDE):
                raise DataError(f"{where}: expected one byte per channel, found pixels of mode {image.mode}")
            coloured = image.convert("RGB")
            if coloured.size != (width, height):
                coloured = coloured.resize((width, height))
            return np.asarray(coloured).transpose(2, 0, 1)


def _opened(tree: _Tree, name: str) -> PIL.Image.Image:
    """Open an image, reading only its header."""
    from PIL import Image, UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            return Image.open(io.BytesIO(tree.read(name)), formats=_FORMATS)
        except UnidentifiedImageError as error:  # its text has an address in memory
            raise ValueError(f"its content is none of {', '.join(_FORMATS)}") from error


@dataclass(frozen=True)
class ImageFolder:
    """Images in a folder or zip archive with one subfolder per class; grey images become colour images.

    Attributes:
        name: name of the data set.
        root: name of the folder, or of the archive without ``.zip`` and of the one folder in it.
        folders: possible names of the folder that contains it.
        home: home page of the data set, for messages.
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
            return _images(source, self.root)


@hyperparameters
class UserFolder:
    """A user-defined folder of images, or a zip archive of one: train/CLASS/, test/CLASS/ and optionally
    validation/CLASS/."""

    path: UserPath = Field(description="the folder or its .zip archive, relative to the working folder")
    size: int | None = Field(
        default=None,
        ge=1,
        description="height and width to which images are resized; by default all must have the same size",
    )

    def __call__(self, data_dir: str | None = None) -> Images:
        """Read the tree.

        Raises:
            DataError: as for :class:`ImageFolder`.
        """
        return _images(Source("the data set", [Path()]), self.path.removesuffix(".zip"), self.size)

    def __str__(self) -> str:
        return self.path


def _images(source: Source, root: str, size: int | None = None) -> Images:
    """Return the images of the folder ``root`` or its archive, resized to ``size`` if it is given."""
    tree = _tree(source, root)
    parts = _parts(tree)
    if lacking := [part for part in ("train", "test") if part not in parts]:
        part = "train" if "train" in lacking else "test or val"
        top = sorted({name.partition("/")[0] for name in (*tree.names, *tree.folders)})
        raise DataError(
            f"{tree.path}: expected images in {part}, one folder per class, found none with the suffix "
            f"{', '.join(_SUFFIXES)}; the folder contains {truncate(', '.join(top)) or 'nothing'}"
        )
    _expect_no_empty_class(tree, parts["train"])
    _warn_of_left_out(tree, parts)
    for files in parts.values():
        images = [*files]
        warn_of_names([*files.values()], "among the classes", lambda row: f"{tree.path}, {images[row]}")
    classes = sorted({name for files in parts.values() for name in files.values()})
    labels = {part: np.searchsorted(classes, [*files.values()]) for part, files in parts.items()}
    expect_all_classes(classes, labels, str(tree.path))
    shape = (size, size) if size else _size(tree, next(iter(parts["train"])))
    with parsing(tree.path, f"{len(labels['train'])} images of {shape[0]} x {shape[1]} pixels"):
        pixels = {
            part: _Decoded(tree, list(files), shape, resized=size is not None)
            for part, files in parts.items()
        }
    return Images(
        **split_fields(
            {
                part: (Pixels(images if part == "train" else images[:]), torch.from_numpy(labels[part]))
                for part, images in pixels.items()
            }
        ),
        files=source.files,
        class_names=classes,
    )


def _parts(tree: _Tree) -> dict[str, dict[str, str]]:
    """Return file → class of the images of each split that has images.

    Without a test split the validation images are used for testing.
    """
    train = _classified(tree, "train")
    if _ANNOTATIONS in tree.names:
        parts = {"train": train, "test": _annotated(tree)}
    else:
        validation = _classified(tree, "validation") or _classified(tree, "val")
        test = _classified(tree, "test")
        parts = {"train": train, "validation": validation if test else {}, "test": test or validation}
    return {part: files for part, files in parts.items() if files}


def _tree(source: Source, root: str) -> _Tree:
    """Return the folder ``root``, or the archive if there is no such folder."""
    folder = source.folder / root if source.folder else None
    if folder and folder.is_dir():
        with parsing(folder, "a folder of images", "a file that cannot be read: "):
            names, folders, hidden = listing(folder)
            source.record_file(root, folder, folder_chunks(folder, names))
        return _Folder(folder, names, folders, hidden)
    expected = f"a zip archive of the folder {root}"
    archive = f"{root}.zip"
    if not source.find(archive):
        raise source.missing(f"{root}/, {archive}", expected)
    path, packed = source.read(archive, expected)
    with parsing(path, expected):
        return _Archive(path, packed if isinstance(packed, bytes) else None, f"{Path(root).name}/")


def _expect_no_empty_class(tree: _Tree, train: dict[str, str]) -> None:
    """Check that every folder of a class has training images: a class must not vanish.

    Raises:
        DataError: a folder has no images.
    """
    inside = {name.split("/")[1] for name in tree.names if name.startswith("train/") and name.count("/") > 1}
    inside |= {name.split("/")[1] for name in tree.folders if name.startswith("train/")}
    if empty := sorted(inside - {*train.values()}):
        raise DataError(
            f"{tree.path}: expected images with the suffix {', '.join(_SUFFIXES)} in the folder of every "
            f"class, found none in train/{empty[0]}: convert its images, or remove the folder"
        )


def _warn_of_left_out(tree: _Tree, parts: dict[str, dict[str, str]]) -> None:
    """Warn of hidden files, of files in the folders of classes and of images elsewhere that are not read."""
    used = {name for files in parts.values() for name in files}
    annotated = _ANNOTATIONS in tree.names
    left_out = [
        name
        for name in tree.names
        if name not in used
        and (name.startswith(("train/", "test/", "validation/", "val/")) or name.lower().endswith(_IMAGES))
        and not (annotated and _is_official(name))
    ]
    read = f"images {', '.join(_SUFFIXES)} in train/CLASS/, test/CLASS/, and validation/CLASS/ or val/CLASS/"
    warn_of_left_out(tree.path, [*left_out, *tree.hidden], read)


def _is_official(name: str) -> bool:
    """Whether a file of Tiny ImageNet is not needed: a list, or a test image, which has no label."""
    return name == _ANNOTATIONS or name.endswith("_boxes.txt") or name.startswith("test/images/")


def _expect_length(length: int) -> None:
    if length > _LARGEST:
        raise ValueError(f"{length} bytes, more than {_LARGEST}")


def _classified(tree: _Tree, part: str) -> dict[str, str]:
    """Return file → class of the images in ``part/CLASS/``."""
    split = {name: name.split("/") for name in tree.names if name.lower().endswith(_SUFFIXES)}
    return {name: parts[1] for name, parts in split.items() if parts[0] == part and len(parts) > 2}


def _annotated(tree: _Tree) -> dict[str, str]:
    """Return file → class of the images in ``val/images``, from the list of annotations."""
    where = f"{tree.path}, {_ANNOTATIONS}"
    expected = "one line per image of val/images: its name, a tab and its class"
    with parsing(where, expected, "a file that cannot be read: "):
        lines = tree.read(_ANNOTATIONS).decode().splitlines()
    present, listed = {name for name in tree.names if name.startswith("val/images/")}, {}
    for number, line in enumerate(lines, 1):
        image, *fields = line.split("\t")
        name = f"val/images/{image}"
        if not fields or name not in present or name in listed:
            known = " again" if name in listed else "" if name in present else ", but no such image"
            raise DataError(f"{where}: expected {expected}, found {line[:40]!r} in line {number}{known}")
        listed[name] = fields[0]
    if lacking := sorted(present - listed.keys()):
        raise DataError(f"{where}: expected {expected}, found none for {lacking[0]}")
    return listed


def _size(tree: _Tree, name: str) -> tuple[int, int]:
    """Return height and width of an image, read from its header."""
    with (
        parsing(f"{tree.path}, {name}", "an image", "a file that cannot be read: "),
        _opened(tree, name) as image,
    ):
        return image.size[::-1]
