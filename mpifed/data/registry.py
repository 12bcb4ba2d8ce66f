"""Data sets: those of the package by name, ``DATASETS[name](data_dir)`` and ``TEXTS[name](data_dir)``, and a
user's own, in files or from a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, InstanceOf

from mpifed.core.errors import shown
from mpifed.core.own import Own
from mpifed.core.settings import build, near_miss
from mpifed.data.cifar import CIFAR10_MD5, CIFAR100_MD5, Cifar
from mpifed.data.image_folder import ImageFolder, OwnFolder
from mpifed.data.images import IdxImages, load_digits
from mpifed.data.libsvm import LibSVM
from mpifed.data.npz import MedMnist
from mpifed.data.own_functions import OwnFunction, OwnTextFunction
from mpifed.data.own_table import OwnTable, OwnTexts
from mpifed.data.texts import TextColumns, TextLines, TextSet

__all__ = ["DATASETS", "OWN", "OWN_TEXTS", "TEXTS", "Dataset", "TextDataset", "dataset_of", "read"]

_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))

#: Readers of samples by name, ``(data_dir) -> Labelled``.
DATASETS = {
    "digits": load_digits,
    "mnist": IdxImages("mnist", "http://yann.lecun.com/exdb/mnist/"),
    "fashion-mnist": IdxImages("fashion-mnist", "https://github.com/zalandoresearch/fashion-mnist"),
    "cifar10": Cifar(
        "cifar10",
        ("cifar10/cifar-10-batches-py", "cifar-10-batches-py"),
        _BATCHES,
        "test_batch",
        "labels",
        10,
        CIFAR10_MD5,
    ),
    "cifar100": Cifar(
        "cifar100",
        ("cifar100/cifar-100-python", "cifar-100-python"),
        ("train",),
        "test",
        "fine_labels",
        100,
        CIFAR100_MD5,
    ),
    "cifar100-subset": Cifar(
        "cifar100-subset", ("cifar100_subset/cifar-100-python",), ("train",), "test", "fine_labels", 100, None
    ),
    "pneumoniamnist": MedMnist("pneumoniamnist", 2),
    "tiny-imagenet": ImageFolder(
        "tiny-imagenet",
        "tiny-imagenet-200",
        ("tiny-imagenet", "tiny-imagenet-200_subset"),
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    ),
    "a9a": LibSVM("a9a", 32_561, 16_281, 123, (-1, 1)),
    "w8a": LibSVM("w8a", 49_749, 14_951, 300, (-1, 1)),
    "mushrooms": LibSVM("mushrooms", 8_124, 0, 112, (1, 2)),
    "phishing": LibSVM("phishing", 11_055, 0, 68, (0, 1)),
}

_POLARITY = {"0": 0, "2": None, "4": 1}  # neutral tweets are left out
_STARS = {f"Review Stars: {stars}.0": label for stars, label in ((1, 0), (2, 0), (3, None), (4, 1), (5, 1))}


def _tweets(file: str, rows: int | None = None) -> TextColumns:
    return TextColumns(
        file, 6, text=5, label=0, labels=_POLARITY, rows=rows, encoding="latin-1" if rows else "utf-8"
    )


#: Readers of texts by name, ``(data_dir) -> Texts``.
TEXTS = {
    "sst2": TextSet(
        "sst2",
        ("sst2", "SST-2"),
        "https://gluebenchmark.com/tasks",
        (TextColumns("train.tsv", 2, 0, 1, {"0": 0, "1": 1}, 67_349, "\t", quoted=False),),
        (TextColumns("dev.tsv", 2, 0, 1, {"0": 0, "1": 1}, 872, "\t", quoted=False),),
    ),
    "sentiment140": TextSet(
        "sentiment140",
        ("sentiment140",),
        "http://help.sentiment140.com/for-students",
        (
            _tweets("training.1600000.processed.noemoticon.csv", 1_600_000),
            _tweets("sentiment140_sample_20k.csv"),
            _tweets("sentiment140_sample_10k.csv"),
        ),
        (
            _tweets("testdata.manual.2009.06.14.csv", 498),
            TextColumns(
                "testdata_manual.csv", 7, text=6, label=0, labels=_POLARITY, delimiter=";", quoted=False
            ),
        ),
    ),
    "yelp-reviews": TextSet(
        "yelp-reviews",
        ("yelp",),
        "https://business.yelp.com/data/resources/open-dataset/",
        (TextColumns("reviews_dev.csv", 3, text=0, label=2, labels=_STARS),),
        (TextColumns("reviews_test.csv", 3, text=0, label=2, labels=_STARS),),
    ),
    "yelp-sentences": TextSet(
        "yelp-sentences",
        ("yelp/sentences",),
        "https://github.com/shentianxiao/language-style-transfer",
        (
            TextLines("sentiment.train.0", "sentiment.train.1"),
            TextLines("sentiment.dev.0", "sentiment.dev.1"),
        ),
        (TextLines("sentiment.test.0", "sentiment.test.1"),),
    ),
    "yelp-polarity": TextSet(
        "yelp-polarity",
        ("yelp_review_polarity_csv",),
        "https://arxiv.org/abs/1509.01626",
        (TextColumns("train.csv", 2, text=1, label=0, labels={"1": 0, "2": 1}, rows=560_000),),
        (TextColumns("test.csv", 2, text=1, label=0, labels={"1": 0, "2": 1}, rows=38_000),),
    ),
}


#: Samples and texts of a user's own in files, by the name of their kind.
OWN = {"table": OwnTable, "folder": OwnFolder}
OWN_TEXTS = {"texts": OwnTexts}


def dataset_of(
    named: Mapping[str, Callable], own: Mapping[str, Any], function: type[Own], kind: str = "data set"
) -> Any:
    """The annotation of a setting that takes a data set: a name, a table of settings with the name of one of
    ``own``, or a user's function, ``"./data.py:load"``. Names stay as they are; whatever else is called like
    a reader.

    Args:
        named: the package's readers.
        kind: what is said in messages.
    """
    for name, cls in own.items():
        cls.choice_name = name

    def resolve(value):
        if (found := function.of(value, kind)) is not None:
            return found
        if isinstance(value, tuple(own.values())):
            return value
        settings = dict(value) if isinstance(value, dict) else {"name": value}
        name = settings.pop("name", None)
        if isinstance(name, str) and name in own:
            return build(own[name], settings, f"{kind} {name!r}")
        if isinstance(name, str) and name in named:
            if settings:
                raise ValueError(f"{kind} {name!r} has no settings, got {shown(settings)}")
            return name
        near = near_miss(name if isinstance(name, str) else "", [*named, *own])
        raise ValueError(f'unknown {kind} {shown(name)}: {near}; your own: "./file.py:Name", {function.kind}')

    return Annotated[InstanceOf[object], BeforeValidator(resolve)]


def read(dataset: Any, data_dir: str | None = None) -> Any:
    """The samples or texts of a data set as a setting holds it.

    Raises:
        DataError: they cannot be read.
    """
    if isinstance(dataset, str):
        return (DATASETS[dataset] if dataset in DATASETS else TEXTS[dataset])(data_dir)
    return dataset(data_dir)


#: A data set of samples, and one of texts.
Dataset = dataset_of(DATASETS, OWN, OwnFunction)
TextDataset = dataset_of(TEXTS, OWN_TEXTS, OwnTextFunction, "set of texts")
