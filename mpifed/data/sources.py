"""Where data files lie, and how they are opened: plain, ``.gz`` or ``.xz``, by their official names.

Files are looked for in ``data_dir/NAME``, or in ``data_dir`` itself where that folder does not exist; without
a ``data_dir``, in the first that exists of ``$MPIFED_DATA/NAME`` and of ``../shared/data/NAME``, relative to
the current directory and to the checkout. NAME is the data set's; some have a second.

Of every file a SHA-256 digest of its unpacked bytes is kept: a packed and a plain copy count as the same
data, and ``sha256sum`` of the plain file gives the same number. Hashing runs at about 1 GB/s, ten times as
fast as gzip unpacks. Plain files are mapped into memory: the ranks of a node share one copy, and pages that
are not asked for need not stay.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import lzma
import mmap
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from mpifed.core.problem import DataFile

__all__ = ["DataError", "SUFFIXES", "Source", "opened"]

#: What may follow a file's official name.
SUFFIXES = ("", ".gz", ".xz")
_OPEN = {".gz": gzip.open, ".xz": lzma.open}


class DataError(ValueError):
    """A data file is missing, truncated, damaged, or not the one that was expected."""


class Source:
    """The files of one data set.

    Args:
        name: the data set's name, for messages.
        folders: where its files may lie; the first that exists is the one that counts.

    Attributes:
        files: what has been read so far, by official name.
    """

    def __init__(self, name: str, folders: Sequence[Path]):
        self.name, self.folders = name, folders
        self.files: dict[str, DataFile] = {}

    @property
    def folder(self) -> Path | None:
        """The folder of the files, ``None`` where there is none."""
        return next((folder for folder in self.folders if folder.is_dir()), None)

    def find(self, name: str) -> Path | None:
        """The path of the file of this official name, ``None`` where there is none."""
        paths = [self.folder / (name + suffix) for suffix in SUFFIXES] if self.folder else []
        return next((path for path in paths if path.is_file()), None)

    def read(self, name: str, expected: str) -> tuple[Path, bytes | mmap.mmap]:
        """Path and unpacked content of a file.

        Args:
            name: its official name.
            expected: what it should be, for messages.

        Raises:
            DataError: it is missing, or cannot be read or unpacked.
        """
        path = self.find(name)
        if path is None:
            raise self.missing(", ".join(name + suffix for suffix in SUFFIXES), expected)
        try:
            content = _content(path)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise DataError(
                f"{path}: expected {expected}, found a file that cannot be read: {error}"
            ) from error
        self.note(name, path, content)
        return path, content

    def note(self, name: str, path: Path, *content) -> None:
        """Keep where a file lies and the digest of its content."""
        digest = hashlib.sha256()
        for part in content:
            digest.update(part)
        self.files[name] = DataFile(str(path.absolute()), digest.hexdigest())

    def missing(self, names: str, expected: str) -> DataError:
        """The error that none of the files ``names`` exists."""
        found = f"no such file in {self.folder.absolute()}" if self.folder else "none of the folders"
        return DataError(f"{self.name} lacks a file: expected one of {names}, {expected}; found {found}")


def _content(path: Path) -> bytes | mmap.mmap:
    with _OPEN.get(path.suffix, open)(path, "rb") as file:
        if path.suffix in _OPEN or not path.stat().st_size:  # an empty file cannot be mapped
            return file.read()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@contextlib.contextmanager
def opened(name: str, home: str, data_dir: str | None, *folders: str) -> Iterator[Source]:
    """The source of a data set, to read from inside a ``with``.

    Args:
        name: the data set's name.
        home: its home page, for messages.
        data_dir: where to look, ``None`` for the default places.
        folders: the names that its folder may have, by default ``name``.

    Raises:
        DataError: one is raised inside; the folders searched and the home page are added to its message.
    """
    names = folders or (name,)
    # A folder that was asked for is the only one: falling back on another would hide a misspelt path.
    if data_dir is not None:
        places = [*(Path(data_dir, one) for one in names), Path(data_dir)]
    else:
        roots = [
            os.environ.get("MPIFED_DATA"),
            "../shared/data",
            Path(__file__).resolve().parents[3] / "shared/data",
        ]
        places = [Path(root, one) for root in roots if root for one in names]
    try:
        yield Source(name, places)
    except DataError as error:
        searched = ", ".join(str(place.absolute()) for place in places)
        raise DataError(f"{error}\nsearched: {searched}\nhome page of {name}: {home}") from error
