"""Readers of data sets: their results on small and on official files. Damage is in ``test_damaged_data``."""

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
from damage import PACK, idx
from realdata import real

import mpifed
from mpifed.data import DATASETS, TEXTS, DataError, Images, Labelled, Table, load_omniglot, npz
from mpifed.data.images import Cifar, IdxImages
from mpifed.data.libsvm import LibSVM
from mpifed.data.npz import MedMnist
from mpifed.data.sources import Source, opened
from mpifed.data.texts import TextColumns, TextLines, TextSet

HOME = "https://example.org/tiny"
TINY = IdxImages("tiny", HOME, train=12, test=4, size=(3, 2), classes=5)
BATCHES = Cifar("colours", ("colours",), ("one", "two"), "test", "labels", 4, None)


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def scaled(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) / np.float32(255)


def write_tiny(folder: Path, suffix: str = "") -> None:
    """The four files of the data set ``TINY``."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 12), ("t10k", 4)):
        arrays = {"images-idx3": pixels(count, 3, 2), "labels-idx1": (np.arange(count) % 5).astype(np.uint8)}
        for name, array in arrays.items():
            (folder / f"{part}-{name}-ubyte{suffix}").write_bytes(PACK[suffix](idx(array)))


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("folder", ["tiny", "."])
def test_idx_images_in_their_folder_or_in_data_dir_itself(tmp_path, suffix, folder):
    write_tiny(tmp_path / folder, suffix)
    images = TINY(tmp_path)
    assert images.shape == (1, 3, 2) and images.classes == 5
    assert images.train[:].dtype == torch.float32 and images.train_labels.dtype == torch.int64
    np.testing.assert_array_equal(images.test[:, 0].numpy(), scaled(pixels(4, 3, 2)))
    assert images.train_labels.tolist() == [k % 5 for k in range(12)]


def test_order_of_the_searched_folders(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("MPIFED_DATA", str(tmp_path / "env"))
    write_tiny(tmp_path / "shared/data/tiny")
    assert len(TINY().train) == 12, "there is no folder in $MPIFED_DATA yet"
    write_tiny(tmp_path / "env/tiny")
    (tmp_path / "env/tiny/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        TINY()  # only the first existing folder is used
    with pytest.raises(DataError, match="none of the folders"):
        TINY(tmp_path / "misspelt")  # a given folder is the only one searched
    monkeypatch.delenv("MPIFED_DATA")
    with opened("tiny", "home", None) as source:
        checkout = Path(mpifed.__file__).parents[2]
        assert source.folders == [Path("../shared/data/tiny"), checkout / "shared/data/tiny"]


def test_the_message_for_a_missing_file(tmp_path):
    write_tiny(tmp_path / "tiny", ".gz")
    (tmp_path / "tiny/train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError) as caught:
        TINY(tmp_path)
    searched = f"searched: {tmp_path / 'tiny'}"
    for part in ("ubyte,", "ubyte.gz,", "ubyte.xz", "0x00000803", "12 x 3 x 2", searched, HOME):
        assert part in str(caught.value)


def test_digits_hold_out_every_fifth_image():
    from sklearn.datasets import load_digits

    images, digits = DATASETS["digits"](), load_digits()
    test = np.arange(len(digits.target)) % 5 == 4
    assert images.shape == (1, 8, 8) and images.classes == 10 and len(images.test) == 359
    for samples, labels, rows in (
        (images.train, images.train_labels, ~test),
        (images.test, images.test_labels, test),
    ):
        assert labels.tolist() == digits.target[rows].tolist()
        assert torch.equal(samples[:, 0].double(), torch.from_numpy(digits.images[rows] / 16))


def write_batches(folder: Path, **contents) -> Path:
    """The three batches of ``BATCHES``, some with another content (bytes, or an object to pickle)."""
    (folder / "colours").mkdir(exist_ok=True)
    for seed, name in enumerate(("one", "two", "test")):
        good = {b"batch_label": b"x", b"data": pixels(5, 3072, seed=seed), b"labels": [0, 1, 2, 3, 0]}
        content = pickle.dumps(contents.get(name, good), protocol=4)
        (folder / "colours" / name).write_bytes(content)
    return folder


def test_cifar_batches_are_joined_in_order(tmp_path):
    images = BATCHES(write_batches(tmp_path))
    assert isinstance(images, Images) and images.shape == (3, 32, 32) and images.classes == 4
    stored = np.concatenate([pixels(5, 3072), pixels(5, 3072, seed=1)]).reshape(10, 3, 32, 32)
    np.testing.assert_array_equal(images.train[:].numpy(), scaled(stored))
    np.testing.assert_array_equal(images.train[torch.tensor([7, 2])].numpy(), scaled(stored)[[7, 2]])
    assert images.train_labels.tolist() == 2 * [0, 1, 2, 3, 0] and len(images.test) == 5
    assert images.train[:].dtype == torch.float32 and images.train_labels.dtype == torch.int64
    paths = {name: file.path for name, file in images.files.items()}
    assert paths == {name: str(tmp_path / "colours" / name) for name in ("one", "two", "test")}


def test_missing_cifar_batches_cause_a_warning(tmp_path):
    (write_batches(tmp_path) / "colours/one").unlink()
    with pytest.warns(UserWarning, match="colours: one not found, training only on two"):
        images = BATCHES(tmp_path)
    assert len(images.train) == 5 and sorted(images.files) == ["test", "two"]
    (tmp_path / "colours/two").unlink()
    with pytest.raises(DataError, match="lacks a file: expected one of one, one.gz, one.xz"):
        BATCHES(tmp_path)


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_binary_cifar_batches(tmp_path, label_bytes):
    binary = dataclasses.replace(BATCHES, sizes=(3, 2), label_bytes=label_bytes)
    (tmp_path / "colours").mkdir()
    for seed, (name, count) in enumerate({"one": 3, "two": 3, "test": 2}.items()):
        labels = np.column_stack([np.full(count, 9), np.arange(count)])[:, -label_bytes:].astype(np.uint8)
        records = np.concatenate([labels, pixels(count, 3072, seed=seed)], axis=1)
        (tmp_path / f"colours/{name}.bin").write_bytes(records.tobytes())
    images = binary(tmp_path)
    stored = np.concatenate([pixels(3, 3072), pixels(3, 3072, seed=1)]).reshape(6, 3, 32, 32)
    np.testing.assert_array_equal(images.train[:].numpy(), scaled(stored))
    assert images.train_labels.tolist() == 2 * [0, 1, 2] and images.test_labels.tolist() == [0, 1]
    assert sorted(images.files) == ["one.bin", "test.bin", "two.bin"]
    cut = (tmp_path / "colours/test.bin").read_bytes()[:-1]
    (tmp_path / "colours/test.bin").write_bytes(cut)
    size = 3072 + label_bytes
    with pytest.raises(DataError, match=f"test.bin: expected .* of {size} bytes, found {2 * size - 1} bytes"):
        binary(tmp_path)
    (tmp_path / "colours/test.bin").write_bytes(bytes([7]) * 2 * size)
    with pytest.raises(DataError, match="expected labels from 0 to 3, found 7"):
        binary(tmp_path)


class Malicious:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_only_published_batches_are_unpickled_and_no_batch_runs_code(tmp_path):
    folder = write_batches(tmp_path) / "colours"
    md5 = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in ("one", "two", "test")}
    published = dataclasses.replace(BATCHES, md5=md5)
    assert len(published(tmp_path).train) == 10
    (folder / "two.xz").write_bytes(lzma.compress((folder / "two").read_bytes()))
    (folder / "two").unlink()
    assert len(published(tmp_path).train) == 10, "the sum is taken of the unpacked file"
    write_batches(tmp_path, two=Malicious(tmp_path / "folder"))
    with pytest.raises(DataError, match=f"two: expected .* MD5 sum {md5['two']}.*, found [0-9a-f]{{32}} of"):
        published(tmp_path)
    with pytest.raises(DataError, match="two: expected .* found a reference to .*mkdir, which is not"):
        BATCHES(tmp_path)
    assert not (tmp_path / "folder").exists()


def test_medmnist_archives(tmp_path):
    arrays = {f"{part}_images": pixels(n, 28, 28) for part, n in (("train", 6), ("val", 2), ("test", 4))}
    arrays |= {f"{part}_labels": np.arange(n)[:, None] % 3 for part, n in (("train", 6), ("test", 4))}
    np.savez_compressed(path := tmp_path / "scans.npz", **arrays)
    images = MedMnist("scans", 3)(tmp_path)
    np.testing.assert_array_equal(images.train[:][:, 0].numpy(), scaled(pixels(6, 28, 28)))
    assert images.train_labels.tolist() == [0, 1, 2, 0, 1, 2] and images.test.shape == (4, 1, 28, 28)
    assert images.files["scans.npz"].digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_omniglot_is_true_where_there_is_ink(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "CHARACTERS", {"background": 2, "evaluation": 1})
    for part, count in npz.CHARACTERS.items():
        drawings = np.ones((count, 20, 105, 105), bool)
        drawings[0, 3, 4, 5] = False
        np.savez_compressed(tmp_path / f"images_{part}.npz", images=drawings)
    omniglot = load_omniglot(tmp_path)
    assert omniglot.background.shape == (2, 20, 105, 105) and omniglot.evaluation.sum() == 1
    assert np.argwhere(omniglot.background).tolist() == [[0, 3, 4, 5]]
    assert sorted(omniglot.files) == ["images_background.npz", "images_evaluation.npz"]


def test_libsvm_rows_are_dense_and_labels_0_or_1(tmp_path):
    (tmp_path / "rows").write_text("-1 1:0.5 3:2\n+1 4:1\n-1\n-1 2:1\n+1 1:1 2:-1 3:1 4:1\n-1 1:3\n")
    form = LibSVM("rows", 6, 2, 4, (-1, 1))
    held_out = form(tmp_path)  # without a test file every fifth row
    assert held_out.test.tolist() == [[1, -1, 1, 1]] and len(held_out.train) == 5
    (tmp_path / "rows.t").write_text("1 1:1\n-1 4:7\n")
    table = form(tmp_path)
    assert isinstance(table, Table) and table.shape == (4,) and table.classes == 2
    assert table.train.dtype == torch.float32 and table.train_labels.tolist() == [0, 1, 0, 0, 1, 0]
    assert table.train[:2].tolist() == [[0.5, 0, 2, 0], [0, 0, 0, 1]] and not table.train[2].any()
    assert table.test.tolist() == [[1, 0, 0, 0], [0, 0, 0, 7]] and table.test_labels.tolist() == [1, 0]
    assert (list(held_out.files), list(table.files)) == (["rows"], ["rows", "rows.t"])


TAB = TextColumns("part.tsv", 2, 0, 1, {"0": 0, "1": 1}, rows=3, delimiter="\t", quoted=False)
CSV = TextColumns("part.csv", 3, text=2, label=0, labels={"0": 0, "2": None, "4": 1})
QUOTED = '0,7,plain\n4,8,"a ""quoted"", cell\nof two lines"\n2,9,neither\n'


@pytest.mark.parametrize(("form", "content", "texts", "labels"), [
    (TAB, 'sentence\tlabel\nit "is\t1\nso , so \t0\nécru\t1\n', ['it "is', "so , so ", "écru"], [1, 0, 1]),
    (CSV, QUOTED, ["plain", 'a "quoted", cell\nof two lines'], [0, 1]),
    (CSV, "target,id,text\n" + QUOTED, ["plain", 'a "quoted", cell\nof two lines'], [0, 1]),
    (dataclasses.replace(CSV, encoding="latin-1"), b"4,1,caf\xe9\n", ["café"], [1]),
    (TextLines("part.0", "part.1"), "so bad\nworse .\n", ["so bad", "worse .", "fine"], [0, 0, 1]),
])  # fmt: skip
def test_texts(tmp_path, form, content, texts, labels):
    name = form.file if isinstance(form, TextColumns) else form.negative
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "part.1").write_text("fine\n")
    read = TextSet("words", ("words",), HOME, (form,), (form,))(tmp_path)
    assert read.train == read.test == texts and read.train_labels.tolist() == labels
    assert read.test_labels.dtype == np.int64 and next(iter(read.files)) == name


def test_the_first_existing_form_of_texts_is_read(tmp_path):
    (tmp_path / "part.csv").write_text(QUOTED)
    both = TextSet("words", ("words",), HOME, (TAB, CSV), (CSV,))
    assert list(both(tmp_path).files) == ["part.csv"]
    (tmp_path / "part.tsv").write_text("a\t1\nb\t0\nc\t0\n")
    assert sorted(both(tmp_path).files) == ["part.csv", "part.tsv"]


def labelled(**changes) -> Labelled:
    samples, labels = torch.ones(2, 3), torch.tensor([0, 1])
    splits = dict(train=samples, train_labels=labels, test=samples, test_labels=labels)
    return Labelled(**splits | {"validation_labels": labels} | changes)


@pytest.mark.parametrize("part", ["train", "test", "validation"])
@pytest.mark.parametrize(("samples", "message"), [
    (torch.ones(3, 3), "expected one label per sample, found 3 samples and 2 labels"),
    (torch.tensor([[1.0, 2, 3], [1, float("nan"), 3]]), "expected finite numbers, found nan in row 1"),
])  # fmt: skip
def test_every_split_is_checked(part, samples, message):
    with pytest.raises(DataError, match=f"^{part}: {message}$"):
        labelled(**{part: samples})
    if part != "train":
        with pytest.raises(DataError, match=rf"^{part}: expected samples of shape \(3,\) as in train, found"):
            labelled(**{part: torch.ones(2, 4)})


#: A line of each file of texts with its text and its label.
LINES = {
    "train.tsv": ("fine\t1", "fine", 1),
    "dev.tsv": ("bad\t0", "bad", 0),
    "training.1600000.processed.noemoticon.csv": ("4,id,date,query,user,fine", "fine", 1),
    "sentiment140_sample_20k.csv": ("0,id,date,query,user,bad", "bad", 0),
    "sentiment140_sample_10k.csv": ("0,id,date,query,user,bad", "bad", 0),
    "testdata.manual.2009.06.14.csv": ("2,id,date,query,user,so", "so", None),
    "testdata_manual.csv": ("4;1;id;date;query;user;fine", "fine", 1),
    "reviews_dev.csv": ("fine,place,Review Stars: 4.0", "fine", 1),
    "reviews_test.csv": ("so,place,Review Stars: 3.0", "so", None),
    "train.csv": ("2,fine", "fine", 1),
    "test.csv": ("1,bad", "bad", 0),
}


def test_columns_and_labels_of_the_published_texts():
    published = [one for one in TEXTS.values() if isinstance(one, TextSet)]  # other tests add functions
    forms = [form for one in published for form in (*one.train, *one.test)]
    columns = [one for one in forms if isinstance(one, TextColumns)]
    assert {one.file for one in columns} == {*LINES}
    for one in columns:
        line, text, label = LINES[one.file]
        cells = line.split(one.delimiter)
        assert len(cells) == one.columns and cells[one.text] == text and one.labels[cells[one.label]] == label


@pytest.mark.parametrize(("name", "folder", "train", "test"), [
    ("mnist", "mnist", [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
     [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
    ("fashion-mnist", "fashion-mnist", [6000] * 10, [1000] * 10),
    ("cifar100-subset", "cifar100_subset", [30] * 100, [10] * 100),
    ("tiny-imagenet", "tiny-imagenet-200_subset", [50] * 50, [10] * 50),
    ("pneumoniamnist", "medmnist", [1_214, 3_494], [234, 390]),
    ("a9a", "libsvm", [24_720, 7_841], [12_435, 3_846]),
    ("w8a", "libsvm", [38_616, 1_184], [9_654, 295]),
    ("mushrooms", "libsvm", [3_151, 3_349], [765, 859]),
    ("phishing", "libsvm", [3_927, 4_917], [971, 1_240]),
    ("sst2", "sst2", [29_780, 37_569], [428, 444]),
    ("sentiment140", "sentiment140", [9_942, 10_058], [177, 182]),
    ("yelp-sentences", "yelp", [25_278, 38_205], [50_278, 76_392]),
    ("yelp-reviews", "yelp", None, None),
])  # fmt: skip
def test_official_files(name, folder, train, test):
    """Samples per class, as the home pages state, where the files are available."""
    data = {**DATASETS, **TEXTS}[name](real(folder))
    found = [np.bincount(labels).tolist() for labels in (data.train_labels, data.test_labels)]
    if train is None:  # the reviews of the two files that do not have three stars
        assert np.sum(found, axis=0).tolist() == [8_939 - 6_613, 6_613]
        return
    assert found == [train, test]
    if isinstance(data, Images):
        part = data.train[:: len(data.train) // 5]
        assert 0 <= part.min() and 0.5 < part.max() <= 1
    elif isinstance(data, Table):
        assert data.train.any(dim=0).sum() > 0.9 * data.shape[0], "few columns are empty"


def test_a_real_cifar10_batch():
    source = Source("cifar10", [real("cifar10") / "cifar10/cifar-10-batches-py"])
    images, labels = DATASETS["cifar10"]._batch(source, "test_batch")
    assert torch.bincount(labels).tolist() == [1000] * 10
    # Mean red, green and blue of the test set, to the digits commonly given for normalisation.
    assert (images.mean((0, 2, 3)) / 255).round(3).tolist() == [0.494, 0.485, 0.450]


def test_the_subset_of_cifar100_is_not_taken_for_the_whole_set(tmp_path):
    subset = real("cifar100_subset") / "cifar100_subset/cifar-100-python"
    (tmp_path / "cifar-100-python").symlink_to(subset)
    with pytest.raises(DataError, match="train.xz: expected a CIFAR batch with the MD5 sum 16019d7e"):
        DATASETS["cifar100"](tmp_path)


def test_real_omniglot():
    omniglot = load_omniglot(real("omniglot"))
    assert [len(omniglot.background), len(omniglot.evaluation)] == [964, 659]
    assert 0.02 < omniglot.evaluation.mean() < 0.2, "ink covers little of the paper"
