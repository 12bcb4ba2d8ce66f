"""IDX files and the data sets in them: what is read, and what is said of files that are not as they should
be."""

from __future__ import annotations

import gzip
import lzma
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from mpifed.data import DATASETS, DataError
from mpifed.data.images import IdxImages, read_idx
from mpifed.data.sources import Source

PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
HOME = "https://example.org/tiny"
TINY = IdxImages("tiny", HOME, train=12, test=4, size=(3, 2), classes=5)


def content(array: np.ndarray, code: int = 0x08) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()


def pixels(*shape: int) -> np.ndarray:
    return (np.arange(np.prod(shape)) * 7 % 256).astype(np.uint8).reshape(shape)


def write_tiny(folder: Path, suffix: str = "") -> None:
    """The four files of the data set ``TINY``."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 12), ("t10k", 4)):
        for name, array in (
            (f"{part}-images-idx3-ubyte", pixels(count, 3, 2)),
            (f"{part}-labels-idx1-ubyte", (np.arange(count) % 5).astype(np.uint8)),
        ):
            (folder / (name + suffix)).write_bytes(PACK[suffix](content(array)))


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("shape", [(5,), (4, 3, 2)])
def test_read_idx_returns_what_was_written(tmp_path, suffix, shape):
    path = tmp_path / ("file" + suffix)
    path.write_bytes(PACK[suffix](content(pixels(*shape))))
    found, array = read_idx(Source("test", [tmp_path]), "file", shape)
    np.testing.assert_array_equal(array, pixels(*shape))
    assert found == path and array.dtype == np.uint8


GOOD = content(pixels(4, 3, 2))
DAMAGES = {
    "empty": (b"", "only 0 bytes"),
    "half a header": (GOOD[:9], "only 9 bytes"),
    "not IDX": (b"<html>" + GOOD, "magic number 0x3C68746D"),
    "other type": (content(pixels(4, 3, 2), code=0x0D), "magic number 0x00000D03"),
    "other number of dimensions": (content(pixels(4, 6)), "magic number 0x00000802"),
    "other count": (content(pixels(5, 3, 2)), "dimensions 5 x 3 x 2"),
    "other size": (content(pixels(4, 2, 3)), "dimensions 4 x 2 x 3"),
    "truncated": (GOOD[:-1], "39 bytes"),
    "trailing bytes": (GOOD + b"\0", "more than 40 bytes"),
}


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_file_is_refused(tmp_path, damage, suffix):
    raw, found = DAMAGES[damage]
    path = tmp_path / ("file" + suffix)
    path.write_bytes(PACK[suffix](raw))
    with pytest.raises(DataError) as caught:
        read_idx(Source("test", [tmp_path]), "file", (4, 3, 2))
    message = str(caught.value)
    assert str(path) in message and "0x00000803 and 4 x 3 x 2 unsigned bytes (40 bytes" in message
    assert message.endswith(f"found {found}")


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "bad stream", "not compressed"])
def test_a_damaged_archive_is_refused(tmp_path, damage, suffix):
    packed = bytearray(PACK[suffix](GOOD))
    if damage == "truncated":
        del packed[len(packed) // 2 :]
    elif damage == "flipped":
        packed[len(packed) // 2] ^= 0xFF
    elif damage == "bad stream":
        packed[10] = 0xFF  # the first byte of gzip's deflate stream: a block of no known type
    path = tmp_path / ("file" + suffix)
    path.write_bytes(GOOD if damage == "not compressed" else packed)
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(Source("test", [tmp_path]), "file", (4, 3, 2))


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("folder", ["tiny", "."])
def test_a_data_set_is_read_from_its_folder_or_from_data_dir_itself(tmp_path, suffix, folder):
    write_tiny(tmp_path / folder, suffix)
    images = TINY(tmp_path)
    assert images.shape == (1, 3, 2) and images.classes == 5
    assert images.train[:].dtype == torch.float32 and images.train_labels.dtype == torch.int64
    np.testing.assert_array_equal(
        images.test[:, 0].numpy(), pixels(4, 3, 2).astype(np.float32) / np.float32(255)
    )
    assert images.train_labels.tolist() == [k % 5 for k in range(12)]


def test_places_are_searched_in_order(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("MPIFED_DATA", str(tmp_path / "env"))
    write_tiny(tmp_path / "shared" / "data" / "tiny")
    assert TINY().train.shape == (12, 1, 3, 2)  # no folder in $MPIFED_DATA yet
    write_tiny(tmp_path / "env" / "tiny")
    (tmp_path / "env" / "tiny" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        TINY()  # the first folder that exists is the one that counts


def test_a_given_folder_is_the_only_one_searched(tmp_path, monkeypatch):
    monkeypatch.setenv("MPIFED_DATA", str(tmp_path))
    write_tiny(tmp_path / "tiny")
    with pytest.raises(DataError, match="none of the folders"):
        TINY(tmp_path / "misspelt")


def test_the_message_of_a_missing_file_says_all_there_is_to_know(tmp_path):
    write_tiny(tmp_path / "tiny", ".gz")
    (tmp_path / "tiny" / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError) as caught:
        TINY(tmp_path)
    for part in (
        "train-images-idx3-ubyte,",
        "ubyte.gz,",
        "ubyte.xz",
        "0x00000803",
        "12 x 3 x 2",
        str(tmp_path),
        HOME,
    ):
        assert part in str(caught.value)


def test_a_truncated_file_of_a_data_set_names_file_place_and_home(tmp_path):
    write_tiny(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError) as caught:
        TINY(tmp_path)
    for part in (str(path), "expected", "found 37 bytes", f"searched: {tmp_path / 'tiny'}", HOME):
        assert part in str(caught.value)


def test_labels_out_of_range_are_refused(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(content(np.full(12, 5, np.uint8)))
    with pytest.raises(DataError, match="labels from 0 to 4, found 5"):
        TINY(tmp_path)


def test_digits_hold_out_every_fifth_image():
    from sklearn.datasets import load_digits

    images, digits = DATASETS["digits"](), load_digits()
    target, pixels = digits.target, torch.from_numpy(digits.images / 16)
    assert images.shape == (1, 8, 8) and images.classes == 10
    assert (len(images.train), len(images.test)) == (1438, 359)
    assert images.test_labels.tolist() == target[4::5].tolist()
    assert images.train_labels[:5].tolist() == target[[0, 1, 2, 3, 5]].tolist()
    assert images.train.min() == 0 and images.train.max() == 1
    assert torch.equal(images.test[:, 0].double(), pixels[4::5])
    assert torch.equal(images.train[:, 0].double(), pixels[np.arange(len(target)) % 5 != 4])


@pytest.mark.parametrize("name, smallest, largest", [("mnist", 5421, 6742), ("fashion-mnist", 6000, 6000)])
def test_the_real_files_load(name, smallest, largest):
    root = Path(os.environ.get("MPIFED_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data"))
    if not (root / name).is_dir():
        pytest.skip(f"no folder {name} in $MPIFED_DATA or in shared/data beside the checkout")
    images = DATASETS[name](root)
    assert images.train.shape == (60_000, 1, 28, 28) and images.test.shape == (10_000, 1, 28, 28)
    assert images.train[:].min() == 0 and images.train[:].max() == 1
    counts = torch.bincount(images.train_labels)
    assert (len(counts), int(counts.min()), int(counts.max())) == (10, smallest, largest)
