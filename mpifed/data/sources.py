"""Find and read data files by their official names: plain, ``.gz`` or ``.xz``.

Files are searched in ``data_dir/NAME``, or in ``data_dir`` itself if that folder does not exist; without a
``data_dir``, in the first existing folder of ``$MPIFED_DATA/NAME`` and ``../shared/data/NAME``, relative to
the current directory and to the checkout. NAME is the data set's; some have a second.

The SHA-256 digest of every file's unpacked bytes is recorded: a compressed and a plain copy count as the same
data. Plain files are mapped into memory.

A small compressed file can unpack to more bytes than the memory has. Hence no file is read beyond the length
that its format allows, or unpacked beyond :func:`max_unpacked_bytes`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mpifed.base.data_files import OPENERS, digest, is_hidden
from mpifed.base.memory import host_memory
from mpifed.base.paths import expand_home
from mpifed.core.problem import DataFile

__all__ = [
    "DataError", "SUFFIXES", "Source", "max_unpacked_bytes", "opened", "parsing", "warn_of_left_out",
]  # fmt: skip

#: Suffixes that may follow a file's official name.
SUFFIXES = ("", ".gz", ".xz")
#: A file may always unpack to this number of bytes, and to this multiple of its length: text and images
#: rarely compress by more than 50, zeros by up to 1000 (gzip).
_SMALL, _RATIO = 2**26, 100
#: A file may unpack to 1/16 of the machine's memory, because several of its processes may read it.
_SHARE = 16
#: Environment variable with a number of bytes that replaces this share.
_SETTING = "MPIFED_UNPACKED_BYTES"
#: Bytes unpacked at a time; maximum length of a library's message in an error.
_CHUNK, _LONGEST = 2**20, 200
#: Files, in lower case, in which systems store how a folder is shown.
_VIEWS = (".ds_store", "thumbs.db", "desktop.ini")


class DataError(ValueError):
    """A data file is missing, truncated, damaged, or not the one that was expected."""


def max_unpacked_bytes(path: Path) -> int:
    """Return the maximum number of bytes that a compressed file may unpack to.

    It is the largest of :data:`_SMALL`, :data:`_RATIO` times the length of the file, and
    ``$MPIFED_UNPACKED_BYTES`` or, by default, a sixteenth of the machine's memory.

    Raises:
        ValueError: the variable is not a number of bytes.
    """
    setting = os.environ.get(_SETTING)
    if setting is not None and not setting.isdecimal():
        raise ValueError(f"{_SETTING}: expected a number of bytes, found {setting!r}")
    share = host_memory() // _SHARE if setting is None else int(setting)
    return max(_SMALL, _RATIO * path.stat().st_size, share)


@contextlib.contextmanager
def parsing(where: str | Path, expected: str, found: str = "") -> Iterator[None]:
    """A context that converts any error of reading a file into a DataError of one sentence.

    Args:
        where: the file and the place in it.
        expected: a description of the correct file.
        found: text before the library's message.

    Raises:
        DataError: an exception was raised in the context.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # libraries do not document what they raise for damaged bytes
        words = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, KeyError):  # its text is the key alone
            words = f"no {words}"
        if isinstance(error, MemoryError):
            words = f"more than fits into memory: {words}"
        if len(words) > _LONGEST:
            words = words[:_LONGEST] + "..."
        raise DataError(f"{where}: expected {expected}, found {found}{words}") from error


def warn_of_left_out(folder: Path, names: Iterable[str], read: str) -> None:
    """Warn of files of a folder that are not read, with their number by type and the name of the first.

    Args:
        names: relative names of the files and hidden folders. Files in which systems store views of a folder
            are no reason for a warning.
        read: which files are read.
    """
    left_out = [name for name in names if Path(name).name.lower() not in _VIEWS]
    if not left_out:
        return
    types = Counter("hidden" if is_hidden(Path(name).name) else Path(name).suffix for name in left_out)
    counts = ", ".join(f"{count} {kind or 'without suffix'}" for kind, count in types.most_common())
    warnings.warn(
        f"{folder}: {len(left_out)} files are left out ({counts}), such as {left_out[0]}: "
        f"only {read} are read",
        stacklevel=3,
    )


class Source:
    """The files of one data set.

    Args:
        name: the data set's name, for messages.
        folders: possible folders; the first that exists is used.

    Attributes:
        files: the files read so far, by official name.
    """

    def __init__(self, name: str, folders: Sequence[Path]):
        self.name, self.folders = name, folders
        self.files: dict[str, DataFile] = {}

    @property
    def folder(self) -> Path | None:
        """The first folder that exists, or ``None``."""
        return next((folder for folder in self.folders if folder.is_dir()), None)

    def find(self, name: str) -> Path | None:
        """Return the path of the file with this official name, or ``None``."""
        paths = [self.folder / (name + suffix) for suffix in SUFFIXES] if self.folder else []
        return next((path for path in paths if path.is_file()), None)

    def read(
        self, name: str, expected: str, limit: int | None = None, cut: bool = False
    ) -> tuple[Path, bytes | mmap.mmap]:
        """Return the path and the unpacked content of a file.

        Args:
            name: its official name.
            expected: a description, for messages.
            limit: maximum number of bytes, ``None`` if the format sets no limit.
            cut: return the first ``limit + 1`` bytes of a longer file instead of raising.

        Raises:
            DataError: the file is missing, cannot be read or unpacked, or is longer than ``limit``.
        """
        path = self.find(name)
        if path is None:
            raise self.missing(", ".join(name + suffix for suffix in SUFFIXES), expected)
        with parsing(path, expected, "a file that cannot be read: "):
            content = _content(path, limit)
            if limit is not None and len(content) > limit and not cut:
                raise DataError(f"{path}: expected {expected}, found more than {limit} bytes")
        self.record_file(name, path, [content])
        return path, content

    def record_file(self, name: str, path: Path, content: Iterable) -> None:
        """Record the path of a file and the digest of its content, given in parts."""
        self.files[name] = DataFile(str(path.absolute()), digest(content))

    def missing(self, names: str, expected: str) -> DataError:
        """Return the error for the case that none of the files ``names`` exists."""
        found = f"no such file in {self.folder.absolute()}" if self.folder else "none of the folders"
        return DataError(f"{self.name} lacks a file: expected one of {names} ({expected}), found {found}")


def _content(path: Path, limit: int | None) -> bytes | mmap.mmap:
    """Return the content of a file up to one byte beyond ``limit``; a plain file is mapped into memory.

    Raises:
        ValueError: it unpacks to more bytes than :func:`max_unpacked_bytes` allows.
    """
    size, unpack = path.stat().st_size, OPENERS.get(path.suffix)
    with (unpack or open)(path, "rb") as file:
        if size and not unpack:  # an empty file cannot be mapped
            return mmap.mmap(
                file.fileno(), size if limit is None else min(size, limit + 1), access=mmap.ACCESS_READ
            )
        content, allowed = bytearray(), max_unpacked_bytes(path)
        end = 1 + (allowed if limit is None else min(limit, allowed))
        while chunk := file.read(min(_CHUNK, end - len(content))):
            content += chunk
    if len(content) > allowed:
        raise ValueError(
            f"it unpacks to more than {allowed} bytes, {allowed / size:.0f} times its length; if it is the "
            f"correct file, unpack it, or set {_SETTING} to a larger number"
        )
    return bytes(content)


@contextlib.contextmanager
def opened(name: str, home: str, data_dir: str | None, *folders: str) -> Iterator[Source]:
    """A context with the files of a data set.

    Args:
        name: name of the data set.
        home: home page, for messages.
        data_dir: folder to search, ``None`` for the default folders.
        folders: possible names of the data set's folder, by default ``name``.

    Raises:
        DataError: raised in the context; the searched folders and the home page are added to its message.
    """
    names = folders or (name,)
    # No other folders than a given one: a fallback would hide a misspelt path.
    if data_dir is not None:
        places = [*(Path(expand_home(data_dir), one) for one in names), Path(expand_home(data_dir))]
    else:
        roots = [
            expand_home(os.environ.get("MPIFED_DATA", "")),
            "../shared/data",
            Path(__file__).resolve().parents[3] / "shared/data",
        ]
        places = [Path(root, one) for root in roots if root for one in names]
    try:
        yield Source(name, places)
    except DataError as error:
        searched = ", ".join(str(place.absolute()) for place in places)
        raise DataError(
            f"{error}\nsearched: {searched}; --data-dir or $MPIFED_DATA names the folder of all data sets"
            f"\nhome page of {name}: {home}"
        ) from error
