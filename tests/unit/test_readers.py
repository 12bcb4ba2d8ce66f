"""Readers of CIFAR batches, NumPy archives and LIBSVM tables: right files, truncated files, wrong files, real
files."""

from __future__ import annotations

import dataclasses
import hashlib
import lzma
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from realdata import real

import mpifed
from mpifed.data import DATASETS, DataError, Images, Table, load_omniglot, npz
from mpifed.data.images import CIFAR10_MD5, Cifar
from mpifed.data.libsvm import LibSVM
from mpifed.data.npz import MedMnist
from mpifed.data.sources import Source, opened

BATCHES = Cifar("colours", ("colours",), ("one", "two"), "test", "labels", 4, None)
SCANS = MedMnist("scans", 3)
ROWS = LibSVM("rows", 6, 2, 4, (-1, 1))


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def batch(count: int, seed: int = 0, **changes) -> dict:
    """A batch as Python 2 wrote it, with bytes for keys."""
    good = {
        "batch_label": b"x",
        "data": pixels(count, 3072, seed=seed),
        "labels": [k % 4 for k in range(count)],
    }
    return {key.encode(): value for key, value in (good | changes).items()}


def write_batches(folder: Path, **contents) -> Path:
    """The three batches of ``BATCHES``; ``contents`` replaces what some hold (bytes, or something to
    pickle)."""
    (folder / "colours").mkdir(exist_ok=True)
    for seed, name in enumerate(("one", "two", "test")):
        content = contents.get(name, batch(5, seed))
        raw = content if isinstance(content, bytes) else pickle.dumps(content, protocol=4)
        (folder / "colours" / name).write_bytes(raw)
    return folder


def test_data_beside_the_checkout_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.delenv("MPIFED_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with opened("colours", "home", None) as source:
        beside = Path(mpifed.__file__).parents[2] / "shared/data/colours"
        assert source.folders == [Path("../shared/data/colours"), beside]


def test_cifar_batches_are_joined_in_order(tmp_path):
    images = BATCHES(write_batches(tmp_path))
    assert isinstance(images, Images) and images.shape == (3, 32, 32) and images.classes == 4
    expected = (
        np.concatenate([pixels(5, 3072), pixels(5, 3072, seed=1)]).reshape(10, 3, 32, 32).astype(np.float32)
        / 255
    )
    np.testing.assert_array_equal(images.train[:].numpy(), expected)  # the same division
    np.testing.assert_array_equal(images.train[torch.tensor([7, 2])].numpy(), expected[[7, 2]])
    assert images.train_labels.tolist() == 2 * [0, 1, 2, 3, 0] and len(images.test) == 5
    assert images.train[:].dtype == torch.float32 and images.train_labels.dtype == torch.int64
    assert {name: file.path for name, file in images.files.items()} == {
        name: str(tmp_path / "colours" / name) for name in ("one", "two", "test")
    }


def test_absent_batches_are_left_out_with_a_warning(tmp_path):
    (write_batches(tmp_path) / "colours" / "one").unlink()
    with pytest.warns(UserWarning, match="colours: training on two alone, one are absent"):
        images = BATCHES(tmp_path)
    assert len(images.train) == 5 and sorted(images.files) == ["test", "two"]
    (tmp_path / "colours" / "two").unlink()
    with pytest.raises(DataError, match="lacks a file: expected one of one, one.gz, one.xz"):
        BATCHES(tmp_path)


class Evil:
    """Unpickles by making a folder."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_only_published_files_are_unpickled_and_no_file_runs_code(tmp_path):
    write_batches(tmp_path)
    md5 = {
        name: hashlib.md5((tmp_path / "colours" / name).read_bytes()).hexdigest()
        for name in ("one", "two", "test")
    }
    published = dataclasses.replace(BATCHES, md5=md5)
    assert len(published(tmp_path).train) == 10
    packed = tmp_path / "colours" / "two.xz"
    packed.write_bytes(lzma.compress(packed.with_suffix("").read_bytes()))
    packed.with_suffix("").unlink()
    assert len(published(tmp_path).train) == 10  # the sum is that of the unpacked file
    packed.unlink()
    write_batches(tmp_path, two=Evil(tmp_path / "evil"))
    with pytest.raises(
        DataError,
        match=f"two: expected a CIFAR batch with the MD5 sum {md5['two']}.*, found [0-9a-f]{{32}} of",
    ):
        published(tmp_path)
    with pytest.raises(
        DataError, match="two: expected a CIFAR batch: .* found a reference to .*mkdir, which no batch needs"
    ):
        BATCHES(tmp_path)
    assert not (tmp_path / "evil").exists()


GOOD = pickle.dumps(batch(5), protocol=4)
WRONG = {
    "empty": b"",
    "truncated": GOOD[:-9000],
    "text": b"<html>no batch</html>",
    "a list": [1, 2],
    "no labels": {b"data": pixels(5, 3072)},
    "nothing": batch(0),
    "labels of halves": batch(5, labels=[0.5] * 5),
    "grey": batch(5, data=pixels(5, 1024)),
    "floats": batch(5, data=np.zeros((5, 3072))),
    "too few": batch(5, data=pixels(4, 3072)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_batch_is_refused(tmp_path, wrong):
    with pytest.raises(DataError, match="two: expected a CIFAR batch: .*, found "):
        BATCHES(write_batches(tmp_path, two=WRONG[wrong]))


def test_labels_of_a_batch_are_in_range(tmp_path):
    with pytest.raises(DataError, match="test: expected labels from 0 to 3, found 4 in row 4"):
        BATCHES(write_batches(tmp_path, test={b"data": pixels(5, 3072), b"labels": [0, 1, 2, 3, 4]}))


def test_a_real_cifar10_batch():
    folder = real("cifar10") / "cifar10" / "cifar-10-batches-py"
    source = Source("cifar10", [folder])
    images, labels = DATASETS["cifar10"]._batch(source, "test_batch")
    assert torch.bincount(labels).tolist() == [1000] * 10 and sorted(CIFAR10_MD5)[-1] == "test_batch"
    # Red, green, blue means of the test set as commonly used for normalisation, to the digits that are
    # commonly given.
    assert (images.mean((0, 2, 3)) / 255).round(3).tolist() == [0.494, 0.485, 0.450]


def test_the_real_subset_of_cifar100_is_read_by_its_own_name_only(tmp_path):
    root = real("cifar100_subset")
    images = DATASETS["cifar100-subset"](root)
    assert torch.bincount(images.train_labels).tolist() == [30] * 100
    assert torch.bincount(images.test_labels).tolist() == [10] * 100
    (tmp_path / "cifar-100-python").symlink_to(root / "cifar100_subset" / "cifar-100-python")
    with pytest.raises(DataError, match="train.xz: expected a CIFAR batch with the MD5 sum 16019d7e"):
        DATASETS["cifar100"](tmp_path)


def scans(**changes) -> dict[str, np.ndarray]:
    arrays = {f"{part}_images": pixels(n, 28, 28) for part, n in (("train", 6), ("val", 2), ("test", 4))}
    arrays |= {
        f"{part}_labels": np.arange(n)[:, None] % 3 for part, n in (("train", 6), ("val", 2), ("test", 4))
    }
    return {key: value for key, value in (arrays | changes).items() if value is not None}


def save_scans(folder: Path, **changes) -> Path:
    (folder / "medmnist").mkdir(exist_ok=True)
    np.savez_compressed(folder / "medmnist" / "scans.npz", **scans(**changes))
    return folder / "medmnist" / "scans.npz"


def test_medmnist_archives(tmp_path):
    path = save_scans(tmp_path)
    images = SCANS(tmp_path)
    np.testing.assert_array_equal(
        images.train[:][:, 0].numpy(), pixels(6, 28, 28).astype(np.float32) / np.float32(255)
    )
    assert (
        images.train_labels.tolist() == [0, 1, 2, 0, 1, 2]
        and images.test.shape == (4, 1, 28, 28)
        and images.classes == 3
    )
    assert images.files["scans.npz"].digest == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "changes, found",
    [
        ({"test_labels": None}, "no test_labels among train_images"),
        ({"train_images": pixels(6, 28, 28, 3)}, r"train_images of type uint8 and shape \(6, 28, 28, 3\)"),
        ({"test_images": np.zeros((4, 28, 28))}, "test_images of type float64"),
        ({"train_labels": np.zeros((6, 14), int)}, r"train labels of shape \(6, 14\) for 6 images"),
        ({"train_labels": np.full((6, 1), 3)}, "found 3 in row 0 of train_labels"),
        ({"test_labels": np.array([[None]] * 4)}, "test_labels of type object"),
    ],
)
def test_another_archive_is_refused(tmp_path, changes, found):
    save_scans(tmp_path, **changes)
    with pytest.raises(DataError, match=f"scans.npz: expected .*{found}"):
        SCANS(tmp_path)


@pytest.mark.parametrize("kept", [0, 100, 2000, -1])
def test_a_truncated_archive_is_refused(tmp_path, kept):
    path = save_scans(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match="scans.npz: expected a NumPy archive with the arrays train_images"):
        SCANS(tmp_path)


def test_omniglot_is_ink_on_paper(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "CHARACTERS", {"background": 2, "evaluation": 1})
    for part, count in npz.CHARACTERS.items():
        drawings = np.ones((count, 20, 105, 105), bool)
        drawings[0, 3, 4, 5] = False
        np.savez_compressed(tmp_path / f"images_{part}.npz", images=drawings)
    omniglot = load_omniglot(tmp_path)
    assert omniglot.background.shape == (2, 20, 105, 105) and np.argwhere(omniglot.background).tolist() == [
        [0, 3, 4, 5]
    ]
    assert omniglot.evaluation.sum() == 1 and sorted(omniglot.files) == [
        "images_background.npz",
        "images_evaluation.npz",
    ]
    np.savez_compressed(tmp_path / "images_evaluation.npz", images=np.ones((3, 20, 105, 105), bool))
    with pytest.raises(
        DataError, match=r"shape \(1, 20, 105, 105\), found images of type bool and shape \(3, 20, 105, 105\)"
    ):
        load_omniglot(tmp_path)


def test_real_archives():
    images = DATASETS["pneumoniamnist"](real("medmnist"))
    assert [torch.bincount(one).tolist() for one in (images.train_labels, images.test_labels)] == [
        [1214, 3494],
        [234, 390],
    ]
    omniglot = load_omniglot(real("omniglot"))
    assert [len(omniglot.background), len(omniglot.evaluation)] == [964, 659]
    assert 0.02 < omniglot.evaluation.mean() < 0.2  # lines cover little of the paper


TRAIN = "-1 1:0.5 3:2\n+1 4:1\n-1\n-1 2:1\n+1 1:1 2:-1 3:1 4:1\n-1 1:3\n"


def write_rows(folder: Path, train: str = TRAIN, test: str | None = "1 1:1\n-1 4:7\n") -> Path:
    (folder / "libsvm").mkdir(exist_ok=True)
    (folder / "libsvm" / "rows").write_text(train)
    if test is not None:
        (folder / "libsvm" / "rows.t").write_text(test)
    return folder


def test_libsvm_rows_are_dense_and_labels_0_or_1(tmp_path):
    table = ROWS(write_rows(tmp_path))
    assert isinstance(table, Table) and table.shape == (4,) and table.classes == 2
    assert table.train.tolist() == [
        [0.5, 0, 2, 0],
        [0, 0, 0, 1],
        [0] * 4,
        [0, 1, 0, 0],
        [1, -1, 1, 1],
        [3, 0, 0, 0],
    ]
    assert table.train.dtype == torch.float32 and table.train_labels.tolist() == [0, 1, 0, 0, 1, 0]
    assert table.test.tolist() == [[1, 0, 0, 0], [0, 0, 0, 7]] and table.test_labels.tolist() == [1, 0]


def test_without_a_test_file_every_fifth_row_is_held_out(tmp_path):
    table = ROWS(write_rows(tmp_path, test=None))
    assert (
        table.test.tolist() == [[1, -1, 1, 1]] and table.test_labels.tolist() == [1] and len(table.train) == 5
    )
    assert list(table.files) == ["rows"]


@pytest.mark.parametrize(
    "train, found",
    [
        (TRAIN[:-8], "5 rows"),
        (TRAIN[:-2], ""),
        (TRAIN + TRAIN, "12 rows"),
        ("", ""),
        ("\0\1\2", ""),
        (TRAIN.replace("+1", "2"), "the label 2 in row 2"),
        (TRAIN.replace("4:", "5:"), ""),
        (TRAIN.replace("1:3", "0:3"), ""),
    ],
)
def test_another_table_is_refused(tmp_path, train, found):
    with pytest.raises(
        DataError, match=f"rows: expected 6 rows of LIBSVM text with labels -1 and 1 .*, found {found}"
    ):
        ROWS(write_rows(tmp_path, train))


@pytest.mark.parametrize(
    "name, train, test",
    [
        ("a9a", [24_720, 7_841], [12_435, 3_846]),
        ("w8a", [38_616, 1_184], [9_654, 295]),
        ("mushrooms", [3_151, 3_349], [765, 859]),
        ("phishing", [3_927, 4_917], [971, 1_240]),
    ],
)
def test_real_tables(name, train, test):
    table = DATASETS[name](real("libsvm"))
    assert [torch.bincount(one).tolist() for one in (table.train_labels, table.test_labels)] == [train, test]
    assert bool(table.train.any(dim=0).sum() > 0.9 * table.shape[0])  # columns are in place, few are empty
