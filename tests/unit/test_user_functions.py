"""Data sets that a user-defined function returns: accepted forms, errors, and digests."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import runpy

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from mpifed import Config
from mpifed.algorithms import FedAvg
from mpifed.base.errors import ConfigError
from mpifed.base.settings import build
from mpifed.data import DataError, user_functions
from mpifed.problems import Classification, DeepAUC, FairClassification, RobustRegression, TextAUC

SAMPLES, LABELS = np.arange(24.0).reshape(12, 2), np.arange(12) % 3
GOOD = {"train": (SAMPLES, LABELS), "test": (SAMPLES[:4], LABELS[:4])}
TEXTS = (["good film", "bad film"] * 4, [1, 0] * 4)


class Pictures(Dataset):
    """A data set of torch whose labels are Python integers."""

    def __len__(self):
        return len(SAMPLES)

    def __getitem__(self, row):
        return torch.from_numpy(SAMPLES[row]), int(LABELS[row])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(SAMPLES, LABELS))


class SizedStream(Stream):
    """A stream with a length, which is read by iteration all the same."""

    def __len__(self):
        return len(SAMPLES)


def returning(value):
    def load():
        return value

    return load


def read(value):
    return Classification(dataset=returning(value), clients=2).dataset()


class OneBuffer(Pictures):
    """A data set that writes every sample and its label to the same memory."""

    def __init__(self):
        self.buffer, self.label = torch.zeros(2), torch.zeros((), dtype=torch.int64)

    def __getitem__(self, row):
        self.buffer[:] = torch.from_numpy(SAMPLES[row])
        return self.buffer, self.label.fill_(int(LABELS[row]))


FORMS = {
    "arrays": (SAMPLES, LABELS),
    "lists": [SAMPLES.tolist(), LABELS.tolist()],
    "whole": (SAMPLES.astype(int), LABELS.astype(np.uint8)),
    "tensors": (torch.from_numpy(SAMPLES), torch.from_numpy(LABELS)),
    "bfloat16": (torch.from_numpy(SAMPLES).bfloat16(), LABELS),  # which holds small integers exactly
    "leaf": (torch.from_numpy(SAMPLES).requires_grad_(), LABELS),
    "TensorDataset": TensorDataset(torch.from_numpy(SAMPLES), torch.from_numpy(LABELS)),
    "Dataset": Pictures(),
    "IterableDataset": Stream(),
    "IterableDataset with a length": SizedStream(),
    "one buffer": OneBuffer(),
}


@pytest.mark.parametrize("train", FORMS.values(), ids=FORMS)
def test_forms_of_samples_and_labels(train):
    data = read(GOOD | {"train": train})
    assert data.train.dtype == torch.float32 and data.train.tolist() == SAMPLES.tolist()
    assert data.train_labels.dtype == torch.int64 and data.train_labels.tolist() == LABELS.tolist()
    assert data.validation is None and data.classes == 3 and data.class_names == ()


def test_validation_classes_and_clients():
    more = dict(validation=(SAMPLES[:2], LABELS[:2]), classes=["a", "b", "c"], clients=["x", "y", "x"] * 4)
    data = read(GOOD | more)
    assert data.validation.tolist() == SAMPLES[:2].tolist() and data.validation_labels.tolist() == [0, 1]
    assert data.names == ("a", "b", "c") and data.owner_names == ("x", "y")
    assert read(GOOD | {"classes": np.array(["a", "b", "c"])}).names == data.names
    assert data.owners.tolist() == [0, 1, 0] * 4


def test_images_that_are_not_scaled_cause_a_warning():
    images = np.arange(48, dtype=np.uint8).reshape(12, 1, 2, 2) * 5
    with pytest.warns(UserWarning, match="load: the largest number of a sample is up to 235, .*by 255, or"):
        read({"train": (images, LABELS), "test": (images, LABELS)})


@pytest.mark.parametrize(("clients", "names"), [
    ([7, "007"], ("007", "7")), ([-1, 2**63 + 1], ("-1", str(2**63 + 1))), ([10, 9], ("9", "10")),
    ([2.0, np.int64(10)], ("2", "10")), ([True, False], ("False", "True")), ([b"a", "B"], ("B", "a")),
    (np.array([3, 1]), ("1", "3")), (torch.tensor([3, 1]), ("1", "3")), (["10", "9"], ("10", "9")),
])  # fmt: skip
def test_names_of_clients(clients, names):
    tile = torch.tile if isinstance(clients, torch.Tensor) else np.tile
    repeated = [*clients] * 6 if isinstance(clients, list) else tile(clients, (6,))
    assert read(GOOD | {"clients": repeated}).owner_names == names


def test_returned_data_are_identified_by_their_digest():
    def digest(value):
        ((name, file),) = read(value).files.items()
        assert name.endswith(":returning.<locals>.load") and file.path.startswith("returned by ")
        return file.digest

    other = SAMPLES.copy()
    other[3, 1] += 1
    turned = GOOD | {"train": (SAMPLES, (LABELS + 1) % 3)}
    longer = GOOD | {"test": (SAMPLES[:5], LABELS[:5])}
    named = GOOD | {"classes": ["a", "b", "c"]}
    owned = GOOD | {"clients": [0, 1] * 6}
    changed = [GOOD | {"train": (other, LABELS)}, turned, longer, named, owned]
    assert len({digest(one) for one in (GOOD, *changed)}) == 6 and digest(GOOD) == digest(dict(GOOD))


NAN = np.where(SAMPLES == 5, np.nan, SAMPLES)
ONE, FROM_1 = (SAMPLES, np.zeros(12, int)), (SAMPLES, 1 + np.arange(12) % 2)
REFUSED = {
    "None": (None, "load returned None: expected a dictionary"),
    "an array": (SAMPLES, r"load returned an array of type float64 and shape \(12, 2\): expected a"),
    "a pair": ((SAMPLES, LABELS), "load returned a tuple of 2: expected a dictionary"),
    "no test": ({"train": (SAMPLES, LABELS)}, "load returned no test samples: expected a dictionary"),
    "another name": (dict(GOOD, valid=1), "load returned 'valid': did you mean 'validation'"),
    "no labels": (dict(GOOD, train=SAMPLES), "train: expected a pair .* found an array of type float64"),
    "masked": (
        dict(GOOD, train=(np.ma.masked_equal(SAMPLES, 5), LABELS)),
        "train: expected an array without masked entries, found 1: fill them",
    ),
    "words": (dict(GOOD, train=(SAMPLES.astype(str), LABELS)), "train: expected numeric samples"),
    "flat": (dict(GOOD, train=(SAMPLES[:, 0], LABELS)), r"numeric samples \[n, ...\], .*shape \(12,\)"),
    "no features": (dict(GOOD, train=(SAMPLES[:, :0], LABELS)), r"numeric samples \[n, ...\], .* \(12, 0\)"),
    "floats": (dict(GOOD, train=(SAMPLES, LABELS / 1)), "train: expected labels .n. that are .*float64"),
    "wide": (dict(GOOD, train=(SAMPLES, LABELS[:, None])), r"labels \[n\] that are .* shape \(12, 1\)"),
    "named": (dict(GOOD, train=(SAMPLES, ["a"] * 12)), "and return their names as classes"),
    "fewer": (dict(GOOD, test=(SAMPLES, [0, 1])), "test: expected samples .* 12 samples and 2 labels"),
    "empty": (dict(GOOD, test=(SAMPLES[:0], LABELS[:0])), "test: .* found 0 samples and 0 labels"),
    "too high": (dict(GOOD, test=(SAMPLES[:1], [3])), "test: .* from 0 to 2, found 3 in row 0"),
    "negative": (dict(GOOD, train=(SAMPLES, LABELS - 1)), "train: .* from 0 to 1, found -1 in row 0"),
    "from 1": (dict(train=FROM_1, test=FROM_1), "expected labels from 0, found 1 to 2: subtract 1"),
    "few names": (dict(GOOD, classes=["a", "b"]), "from 0 to 1, found 2 in row 2"),
    "many names": (dict(GOOD, classes=list("abcd")), "training samples of every class, found none of 'd'"),
    "a gap": (
        dict(GOOD, train=(SAMPLES, LABELS * 2)),
        "every class from 0 to .*, 4 in row 2, found none of '1'",
    ),
    "an id": (dict(GOOD, train=(SAMPLES, LABELS * 10**15)), "found none of '1'"),
    "unsigned": (
        dict(GOOD, test=(SAMPLES, (LABELS - 1).astype(np.uint64))),
        "test: .* found 18446744073709551615",
    ),
    "huge": (
        dict(GOOD, test=(SAMPLES, [0] * 11 + [10**20])),
        "that are integers .*, 10{20} in row 11: number",
    ),
    "no number": (
        dict(GOOD, test=(SAMPLES, [0.0, np.nan] * 6)),
        "that are integers .*, 0.0 in row 0: number",
    ),
    "too large": (
        dict(GOOD, test=(SAMPLES * 1e38, LABELS)),
        "test, row 2: expected numbers of at most 3.4e.38",
    ),
    "one class": (dict(train=ONE, test=ONE), "expected at least two classes, found 1 \\(0\\)"),
    "ragged": (dict(GOOD, test=([[1, 2], [3]], [0, 1])), "test: expected an array, found setting"),
    "classes": (dict(GOOD, classes=3), "classes: expected a list of different names, found 3"),
    "a text as classes": (dict(GOOD, classes="abc"), "a list of different names, found 'abc'"),
    "equal classes": (dict(GOOD, classes=list("aab")), r"different names, found \['a', 'a', 'b'\]"),
    "no client": (
        dict(GOOD, clients=["a", None] * 6),
        "clients, row 1: expected .* numbers in 'clients', found None",
    ),
    "clients": (dict(GOOD, clients=[0, 1]), r"one client for each of 12 training samples, .* \(2,\)"),
    "nan": (dict(GOOD, test=(NAN, LABELS)), "test: expected finite numbers, found nan in row 2 .returned"),
    "shapes": (dict(GOOD, test=(SAMPLES.T[:, :3], [0, 1])), r"test: expected samples of shape \(2,\) as in"),
}


@pytest.mark.parametrize("value, says", REFUSED.values(), ids=REFUSED)
def test_other_values_are_refused(value, says):
    with pytest.raises(DataError, match=says):
        read(value)


class Uneven(Pictures):
    def __getitem__(self, row):
        return torch.ones(row + 1), 0


class Single(Pictures):
    def __getitem__(self, row):
        return torch.ones(2)[0]


class Undecoded(Pictures):
    def __getitem__(self, row):
        return {"picture": 1}, 0


class Triples(Pictures):
    def __getitem__(self, row):
        return torch.ones(2), 0, row


class Failing(Pictures):
    def __getitem__(self, row):
        raise OSError("no such picture")


@pytest.mark.parametrize("dataset, says", [
    (Uneven(), r"of one shape, found an array of type torch.float32 and shape \(2,\) in row 1"),
    (Single(), "expected a Dataset of pairs .sample, label., found an array .* in row 0"),
    (Undecoded(), "expected samples that are tensors or arrays of one shape, found a dict in row 0"),
    (Triples(), "expected a Dataset of pairs .sample, label., found a tuple of 3 in row 0"),
    (Failing(), "load failed: OSError: no such picture\n.*raise OSError"),
])  # fmt: skip
def test_errors_in_a_data_set_of_torch(dataset, says):
    with pytest.raises(ValueError, match=f"(?s){says}"):
        read(GOOD | {"train": dataset})


FILE = """
import numpy as np

def load(rows=12, shift=0):
    samples = np.random.default_rng(0).random((rows, 1, 8, 8)) + shift
    return {"train": (samples, np.arange(rows) % 2), "test": (samples, np.arange(rows) % 2)}

def broken():
    raise KeyError("column")

def said():
    texts = ["good film", "bad film"] * 4, [1, 0] * 4
    return {"train": texts, "test": texts}
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    (tmp_path / "data.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data.py"


@pytest.mark.parametrize("kind", [Classification, FairClassification, RobustRegression, DeepAUC])
def test_problems_accept_a_function_of_a_file(file, kind):
    settings = {"model": "linear", "clients": 2, "dataset": {"name": "./data.py:load", "rows": 20}}
    problem = build(kind, settings, "problem")
    problem.prepare(0)
    assert sum(problem.client_size(client) for client in range(2)) == 20
    assert problem.client_data(0)[0].shape[1:] == (1, 8, 8) and list(problem.files) == ["data.py:load"]


def test_a_function_that_raises_shows_its_lines(file):
    with pytest.raises(ConfigError, match="(?s)data.py:broken failed: KeyError: .column.\n.*raise KeyError"):
        build(Classification, {"dataset": "./data.py:broken"}, "problem").prepare(0)


def test_texts_of_a_function(file):
    problem = build(TextAUC, {"dataset": "./data.py:said", "clients": 2, "vectors": "random"}, "problem")
    problem.prepare(0)
    assert problem.test_labels().tolist() == [1, 0] * 4
    for wrong, says in (
        ({"train": TEXTS, "test": (["a", 3], [0, 1])}, "test: expected texts, found 3 in row 1"),
        ({"train": (["a"] * 3, [0, 1, 2]), "test": TEXTS}, "expected labels 1 .positive. and 0 .negative."),
        ({"train": ("ab", [0, 1]), "test": TEXTS}, "train: expected a list of texts, found 'ab'"),
        ({"train": (5, [0, 1]), "test": TEXTS}, "train: expected a list of texts, found 5"),
    ):
        with pytest.raises(DataError, match=says):
            TextAUC(dataset=returning(wrong)).dataset()


def test_unknown_data_sets():
    with pytest.raises(ConfigError, match="data set 'digit': did you mean 'digits'.*user-defined: "):
        Classification(dataset="digit")
    with pytest.raises(ConfigError, match="data set 'digits' has no settings, got {'size': 3}"):
        Classification(dataset={"name": "digits", "size": 3})
    with pytest.raises(ConfigError, match="unknown set of texts 'digits': expected one of .*sentiment140"):
        TextAUC(dataset="digits")
    table = r"unknown data set 'x.csv': for a file or folder write { name = \"table\", file = 'x.csv' } or "
    with pytest.raises(ConfigError, match=table):
        Classification(dataset="x.csv")
    with pytest.raises(ConfigError, match="the name of a data set or a table with a name, got {'file'"):
        Classification(dataset={"file": "x.csv"})
    assert Classification(dataset={"name": "digits"}).dataset == "digits"


def test_a_function_passed_in_python_is_named():
    problem = Classification(dataset=returning(GOOD), clients=2)
    config = Config(algorithm=FedAvg(K=2, eta=0.1), problem=problem)
    name = config.table()["problem"]["dataset"]["name"]
    assert name.endswith(":returning.<locals>.load")
    assert config.table()["plugins"]["problem.dataset"]["name"] == name


def test_samples_are_copied_from_arrays_that_the_function_keeps():
    samples = SAMPLES.astype(np.float32)
    data = read({"train": (samples, LABELS), "test": (torch.from_numpy(samples), LABELS)})
    samples += 1
    assert torch.equal(data.train, torch.from_numpy(SAMPLES).float()) and torch.equal(data.test, data.train)


@pytest.mark.parametrize("generator", ["random", "numpy", "torch"])
def test_global_generators_are_seeded(generator):
    """The samples are the same on every rank and when a run is resumed; the user's generators continue."""
    draw = {
        "random": lambda: [[random.random()] for _ in LABELS],
        "numpy": lambda: np.random.rand(len(LABELS), 1),  # noqa: NPY002
        "torch": lambda: torch.rand(len(LABELS), 1),
    }[generator]

    class Drawn(Dataset):
        def __len__(self):
            return len(LABELS)

        def __getitem__(self, row):
            return torch.as_tensor(np.asarray(draw()))[row], int(LABELS[row])

    def load():
        return {"train": (np.asarray(draw()), LABELS), "test": Drawn()}

    before, expected = draw(), draw()
    random.seed(3), np.random.seed(3), torch.manual_seed(3)  # noqa: NPY002
    first, second = (Classification(dataset=load, clients=2).dataset() for _ in range(2))
    found = draw()
    random.seed(3), np.random.seed(3), torch.manual_seed(3)  # noqa: NPY002
    assert np.array_equal(found, draw()) and not np.array_equal(before, expected)
    assert torch.equal(first.train, second.train) and torch.equal(first.test, second.test)
    assert len(first.train.unique()) > 1


def test_random_samples_depend_on_the_seed_of_the_run():
    """Of global generators, and of an argument ``seed`` without a default."""

    def unseeded():
        return {"train": (np.random.rand(12, 2), LABELS), "test": (SAMPLES, LABELS)}  # noqa: NPY002

    def seeded(seed, scale=1.0):
        rows = scale * np.random.default_rng(seed).random((12, 2))
        return {"train": (rows, LABELS), "test": (SAMPLES, LABELS)}

    for load in (unseeded, seeded):
        drawn = []
        for seed in (0, 0, 3):
            problem = Classification(dataset=load, clients=1)
            problem.prepare(seed)
            drawn.append(problem.client_data(0)[0])
        assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    rows = np.random.default_rng(3).random((12, 2)).astype(np.float32)
    np.testing.assert_array_equal(drawn[2], rows)


def test_an_argument_data_dir_is_the_data_folder(tmp_path, monkeypatch):
    def load(data_dir, scale=1.0):
        rows = scale * np.load(f"{data_dir}/rows.npy")
        return {"train": (rows, LABELS), "test": (SAMPLES, LABELS)}

    for folder in (default := tmp_path / "default", given := tmp_path / "given"):
        folder.mkdir()
        np.save(folder / "rows.npy", SAMPLES + (folder == given))
    problem = Classification(dataset=load, clients=1)
    monkeypatch.delenv("MPIFED_DATA", raising=False)
    with pytest.raises(
        DataError, match=r"load: its argument data_dir is .* set run.data_dir \(--data-dir\) or"
    ):
        problem.prepare(0)
    monkeypatch.setenv("MPIFED_DATA", str(default))
    for data_dir, moved in ((None, 0), (str(given), 1)):
        problem.prepare(0, data_dir)
        np.testing.assert_array_equal(problem.client_data(0)[0], (SAMPLES + moved).astype(np.float32))


def test_other_generators_must_be_seeded(monkeypatch):
    def load():
        return {"train": (np.random.default_rng().random((12, 2)), LABELS), "test": (SAMPLES, LABELS)}

    with pytest.raises(DataError, match="load: expected the same samples from every call, .*default_rng.0."):
        Classification(dataset=load, clients=2).dataset()
    monkeypatch.setattr(user_functions, "FAST", 0.0)  # a slow function is called once
    assert Classification(dataset=load, clients=2).dataset().train.shape == (12, 2)


def test_modules_that_are_not_registered(tmp_path):
    """Functions and classes of a file that runpy or importlib has loaded are identified by this file."""
    file = tmp_path / "side.py"
    file.write_text(
        "import numpy as np, torch\n"
        "def load():\n"
        "    return {part: (np.eye(4), np.arange(4) % 2) for part in ('train', 'test')}\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self, outputs=2):\n"
        "        super().__init__(4, outputs)\n"
    )
    spec = importlib.util.spec_from_file_location("side", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    for found in (vars(module), runpy.run_path(str(file))):
        problem = Classification(dataset=found["load"], model=found["Net"], clients=2)
        assert (problem.dataset.name, problem.dataset.digest) == (f"{file}:load", digest)
        assert (problem.model.name, problem.model.digest) == (f"{file}:Net", digest)
        assert Classification(dataset=found["load"], model=found["Net"](), clients=2).model.is_instance
        problem.prepare(0)
    assert Classification(dataset={"name": f"{file}:load"}, clients=2).dataset.digest == digest
