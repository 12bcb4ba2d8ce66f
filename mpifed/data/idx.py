"""Reader of IDX files of unsigned bytes, the format of MNIST: plain, ``.gz`` or ``.xz``.

A file is a magic number (two zero bytes, the type code 0x08, the number of dimensions), each dimension as a big-endian
32-bit number, then the elements with the last dimension varying fastest.
"""

from __future__ import annotations

import gzip
import lzma
import math
import struct
import zlib
from pathlib import Path

import numpy as np

__all__ = ["DataError", "SUFFIXES", "describe", "read_idx"]

#: What may follow a file's official name.
SUFFIXES = ("", ".gz", ".xz")
_OPEN = {".gz": gzip.open, ".xz": lzma.open}


class DataError(ValueError):
    """A data file is missing, truncated, damaged, or not the one that was expected."""


def _magic(shape: tuple[int, ...]) -> int:
    return 0x0800 | len(shape)


def _length(shape: tuple[int, ...]) -> int:
    return 4 + 4 * len(shape) + math.prod(shape)


def _times(shape) -> str:
    return " x ".join(map(str, shape))


def describe(shape: tuple[int, ...]) -> str:
    """In words, the IDX file of unsigned bytes of this shape."""
    return (
        f"an IDX file with magic number 0x{_magic(shape):08X} and {_times(shape)} unsigned bytes "
        f"({_length(shape)} bytes uncompressed)"
    )


def read_idx(path: str | Path, shape: tuple[int, ...]) -> np.ndarray:
    """The array in an IDX file that must hold unsigned bytes of this ``shape``; uint8, writable.

    Raises:
        DataError: the file cannot be read or decompressed, or its magic number (type and number of dimensions), its
            dimensions or its length are others; says what was expected and what was found.
    """
    path = Path(path)

    def check(holds: bool, found: str) -> None:
        if not holds:
            raise DataError(f"{path}: expected {describe(shape)}, found {found}")

    try:
        with _OPEN.get(path.suffix, open)(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: expected {describe(shape)}, found a file that cannot be read: {error}") from error
    start = 4 + 4 * len(shape)
    check(len(content) >= 4, f"only {len(content)} bytes")
    magic = int.from_bytes(content[:4], "big")
    check(magic == _magic(shape), f"magic number 0x{magic:08X}")
    check(len(content) >= start, f"only {len(content)} bytes")
    found = struct.unpack(f">{len(shape)}I", content[4:start])
    check(found == shape, f"dimensions {_times(found)}")
    check(len(content) == _length(shape), f"{len(content)} bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
