"""IDX files of unsigned bytes, the format of MNIST.

A file is a magic number (two zero bytes, the type code 0x08, the number of dimensions), each dimension as a
big-endian 32-bit number, then the elements with the last dimension varying fastest.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from mpifed.data.sources import DataError, Source

__all__ = ["describe", "read_idx"]


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


def read_idx(source: Source, name: str, shape: tuple[int, ...]) -> tuple[Path, np.ndarray]:
    """Path and array of an IDX file that must hold unsigned bytes of this ``shape``; uint8, read-only.

    Raises:
        DataError: the file cannot be read or unpacked, or its magic number (type and number of dimensions),
            its dimensions or its length are others; says what was expected and what was found.
    """
    path, content = source.read(name, describe(shape), _length(shape), cut=True)

    def check(holds: bool, found: str) -> None:
        if not holds:
            raise DataError(f"{path}: expected {describe(shape)}, found {found}")

    start = 4 + 4 * len(shape)
    check(len(content) >= 4, f"only {len(content)} bytes")
    magic = int.from_bytes(content[:4], "big")
    check(magic == _magic(shape), f"magic number 0x{magic:08X}")
    check(len(content) >= start, f"only {len(content)} bytes")
    found = struct.unpack(f">{len(shape)}I", content[4:start])
    check(found == shape, f"dimensions {_times(found)}")
    check(len(content) <= _length(shape), f"more than {_length(shape)} bytes")
    check(len(content) == _length(shape), f"{len(content)} bytes")
    return path, np.frombuffer(content, np.uint8, offset=start).reshape(shape)
