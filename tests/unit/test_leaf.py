"""Data in LEAF's JSON format: images and texts of users, the natural partition, and damaged files."""

import gzip
import json

import numpy as np
import pytest
import torch

from mpifed.data import DataError
from mpifed.data.leaf import LETTERS, Leaf
from mpifed.problems import Classification, DeepAUC

LENGTH = 80


def text(users, **files):
    return json.dumps(
        {"users": [*users], "num_samples": [len(one["y"]) for one in users.values()], "user_data": users}
    )


def write(folder, part, users, name="all_data_niid_0_keep_0_train_9.json"):
    (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / part / name).write_text(text(users))


def images(count, seed):
    """Samples of FEMNIST: 784 numbers from 0 to 1 and labels from 0 to 61."""
    rng = np.random.default_rng(seed)
    return {"x": rng.random((count, 784)).round(3).tolist(), "y": rng.integers(0, 62, count).tolist()}


def lines(count, seed):
    """Samples of Shakespeare: 80 characters and the next one."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice([*LETTERS], LENGTH + 1)) for _ in range(count)]
    return {"x": [one[:LENGTH] for one in words], "y": [one[LENGTH] for one in words]}


@pytest.fixture(params=[images, lines], ids=["femnist", "shakespeare"])
def folder(request, tmp_path):
    """Three users in two files, one of them compressed; a user has no samples."""
    make = request.param
    write(tmp_path, "train", {"f02": make(4, 0), "f01": make(3, 1)})
    later = text({"f00": make(5, 2), "f09": {"x": [], "y": []}})
    (tmp_path / "train/later.json.gz").write_bytes(gzip.compress(later.encode()))
    write(tmp_path, "test", {user: make(2, 10 + k) for k, user in enumerate(("f00", "f01", "f02"))})
    return tmp_path


def test_users_are_the_clients(folder, request):
    shakespeare = "shakespeare" in request.node.name
    dataset = {"name": "leaf", "path": str(folder)} | ({} if shakespeare else {"classes": 62})
    problem = Classification(dataset=dataset, clients=3, partition="natural")
    problem.prepare(0)
    sizes = [problem.client_size(k) for k in range(3)]
    assert sizes == [5, 3, 4] and problem.test_rows == 6, "in the order of names: f00, f01, f02"
    (samples, labels), raw = problem.client_data(0), (lines if shakespeare else images)(5, 2)
    (*_, (outputs, *_)) = problem.variables()["x"].values()
    assert samples.dtype == torch.float32 and labels.dtype == torch.int64
    if shakespeare:
        assert samples.shape == (5, LENGTH) and outputs == 80
        assert ["".join(LETTERS[int(c)] for c in one) for one in samples] == raw["x"]
        assert [LETTERS[label] for label in labels] == raw["y"]
    else:
        assert samples.shape == (5, 1, 28, 28) and outputs == 62
        np.testing.assert_array_equal(samples.reshape(5, -1).numpy(), np.array(raw["x"], np.float32))
        assert labels.tolist() == raw["y"]
    assert len(problem.files) == 3


def test_the_first_users_and_their_test_samples(folder):
    first = Leaf(path=str(folder), users=2)()
    assert [*first.owner_names] == ["f00", "f01"] and len(first.train) == 8 and len(first.test) == 4
    with pytest.raises(DataError, match="expected 4 users in train, found 3"):
        Leaf(path=str(folder), users=4)()
    make = lines if first.train.shape[1:] == (LENGTH,) else images
    write(folder, "test", {"new": make(3, 5)})  # other users
    assert len(Leaf(path=str(folder), users=2)().test) == 3


def test_ranking_requires_samples_of_both_sides(tmp_path):
    for part in ("train", "test"):
        write(tmp_path, part, {"a": images(3, 0) | {"y": [0, 0, 0]}})
    problem = DeepAUC(dataset=Leaf(path=str(tmp_path)), clients=1, partition="natural")
    with pytest.raises(ValueError, match="negative train samples, found 0 positive and 3 negative"):
        problem.prepare(0)


@pytest.mark.parametrize(("users", "words"), [
    ({"a": {"x": [[0.5, 1.0]], "y": [0, 1]}}, "1 samples and 2 labels of the user 'a'"),
    ({"a": {"x": [[0.5, 1.0], [0.5]], "y": [0, 1]}}, "inhomogeneous"),
    ({"a": {"x": [[0.5], [1.0]], "y": [0, 0.5]}}, "of the user 'a' that are not whole numbers, 0.5 in row 1"),
    ({"a": {"x": [[[0.5]]], "y": [0]}}, "samples of the user 'a' that are neither texts nor number lists"),
    ({"a": {"x": ["ab"], "y": ["cd"]}}, "labels of the user 'a' that are not single characters"),
    ({"a": {"x": ["ab"], "y": [3]}}, "labels of the user 'a' that are not single characters"),
    ({"a": {"x": [], "y": [0, 1]}}, "0 samples and 2 labels of the user 'a'"),
    ({"a": {"x": [[0.5], [1.0]], "y": [0, -1]}}, "expected labels from 0 to 1, found -1 in row 1"),
    ({"a": {"x": ["é"], "y": ["a"]}}, "the character 'é' of the user 'a'"),
    ({"a": {"x": [[0.5]], "y": [0]}, "b": {"x": [[0.5, 1.0]], "y": [0]}}, r"shape \(2,\) of the user 'b'"),
    ({"a": {"x": [[float("nan")]], "y": [0]}}, "expected finite numbers, found nan in row 0"),
    ({"a": {"y": [0]}}, "LEAF's format.*found no 'x'"),
    ({}, "expected 1 users in train, found 0"),
    ({"a": {"x": ["a"], "y": ["b"]}}, r"expected texts of shape \(1,\), found samples of numbers"),
    ({"a": {"x": [[0.5], [1e39]], "y": [0, 1]}}, "a.json, user 'a', row 1: expected numbers of at most"),
    ({"a": {"x": [[0.5], [1.0]], "y": [0, 10**6]}}, "train, user 'a', row 1: .* 3, found 1000000: c"),
    ({"a": {"x": [[0.5], [1.0]], "y": [0, 2**62]}}, "a.json: .*label 4611.* of the user 'a' in row 1"),
    ({"a": {"x": [[0.5], [1.0]], "y": [10**20, 0]}}, "a.json: .*label 1000.* of the user 'a' in row 0"),
])  # fmt: skip
def test_damaged_files_are_reported(tmp_path, users, words):
    (tmp_path / "train").mkdir()
    (tmp_path / "train/a.json").write_text(json.dumps({"user_data": users}))
    write(tmp_path, "test", {"a": {"x": [[0.5]], "y": [0]}})
    with pytest.raises(DataError, match=words):
        Leaf(path=str(tmp_path))()


@pytest.mark.parametrize(("change", "words"), [
    ({"users": ["a", "b"], "num_samples": [2, 3]}, "no samples of the user 'b', and 3 in users and num_s"),
    ({"num_samples": [3]}, "2 samples of the user 'a', and 3 in users and num_samples"),
    ({"users": [], "num_samples": []}, "2 samples of the user 'a', and no in users and num_samples"),
])  # fmt: skip
def test_users_and_numbers_of_samples_must_be_those_in_the_lists(tmp_path, change, words):
    (tmp_path / "train").mkdir()
    content = json.loads(text({"a": {"x": [[0.5], [1.0]], "y": [0, 1]}}))
    (tmp_path / "train/a.json").write_text(json.dumps(content | change))
    with pytest.raises(DataError, match=f"a.json: expected .*, found {words}"):
        Leaf(path=str(tmp_path))()


def test_labels_may_be_whole_floats(tmp_path):
    for part in ("train", "test"):
        write(tmp_path, part, {"a": {"x": [[0.5], [1.0]], "y": [0.0, 1.0]}})
    assert Leaf(path=str(tmp_path))().train_labels.tolist() == [0, 1]


def test_test_users_without_training_samples_cause_a_warning(tmp_path):
    pair = {"x": [[0.5], [1.0]], "y": [0, 1]}
    write(tmp_path, "train", {"a": pair, "b": pair})
    write(tmp_path, "test", {"a": pair, "c": pair, "d": pair})
    with pytest.warns(UserWarning, match="2 of 3 users in test are left out, such as 'c', as they have no"):
        assert len(Leaf(path=str(tmp_path))().test) == 2


def test_missing_files_and_repeated_users_are_reported(tmp_path):
    with pytest.raises(DataError, match="train: expected JSON files in LEAF's format, found no such folder"):
        Leaf(path=str(tmp_path))()
    for name in ("a.json", "b.json"):
        write(tmp_path, "train", {"a": images(1, 0)}, name)
    with pytest.raises(
        DataError, match="b.json: expected .*found the user 'a', which is also in another file"
    ):
        Leaf(path=str(tmp_path))()


@pytest.mark.parametrize(("text", "key"), [
    ('{"user_data": {"a": {"x": [[1]], "y": [0]}, "a": {"x": [[2]], "y": [1]}}}', "a"),
    ('{"user_data": {"a": {"x": [[1]], "y": [0], "x": [[2]]}}}', "x"),
    ('{"user_data": {}, "user_data": {"a": {"x": [[1]], "y": [0]}}}', "user_data"),
])  # fmt: skip
def test_repeated_keys_are_refused(tmp_path, text, key):
    (tmp_path / "train").mkdir()
    (tmp_path / "train/a.json").write_text(text)
    with pytest.raises(DataError, match=f"a.json: expected .*found the key '{key}' twice in one object"):
        Leaf(path=str(tmp_path))()


@pytest.mark.parametrize(
    "name", ["b.JSON", "b.json.bz2", "more/b.json", "._a.json", "all_data_niid_0_keep_0_train_9.json.gz"]
)
def test_files_that_are_not_read_cause_a_warning(tmp_path, name):
    for part in ("train", "test"):
        write(tmp_path, part, {"a": {"x": [[0.5], [1.0]], "y": [0, 1]}})
    (tmp_path / "train" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "train" / name).write_bytes(b"")
    with pytest.warns(UserWarning, match=f"train: 1 files are left out .*, such as {name}: only files NAME"):
        Leaf(path=str(tmp_path))()
