"""The data set "tiny" in the IDX format: 24 + 8 images of 2 x 2 pixels in two classes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from mpifed.data.images import IdxImages

TINY = IdxImages("tiny", "https://example.org/tiny", train=24, test=8, size=(2, 2), classes=2)


def idx(array: np.ndarray, code: int = 8) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()


def write_tiny(folder: Path) -> Path:
    """Write the files of the data set into a new folder."""
    folder.mkdir(parents=True)
    for part, count in (("train", 24), ("t10k", 8)):
        labels, images = np.arange(count) % 2, np.arange(4 * count).reshape(count, 2, 2)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels.astype(np.uint8)))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(images.astype(np.uint8)))
    return folder
