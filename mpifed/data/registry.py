"""Data sets: built-in ones by name, ``DATASETS[name](data_dir)`` and ``TEXTS[name](data_dir)``, and
user-defined ones in files or from a function."""

from __future__ import annotations

from typing import Any

from mpifed.base.settings import choice
from mpifed.data.groups import Adult, load_two_groups
from mpifed.data.image_folder import ImageFolder, UserFolder
from mpifed.data.images import CIFAR10_MD5, CIFAR100_MD5, Cifar, IdxImages, load_digits
from mpifed.data.leaf import Leaf
from mpifed.data.libsvm import LibSVM
from mpifed.data.npz import MedMnist
from mpifed.data.texts import TextColumns, TextLines, TextSet
from mpifed.data.user_functions import UserFunction, UserTextFunction
from mpifed.data.user_tables import UserTable, UserTexts

__all__ = ["DATASETS", "TEXTS", "USER_DATASETS", "USER_TEXTS", "Dataset", "TextDataset", "read"]

_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))

#: Readers of samples by name, ``(data_dir) -> Labelled``.
DATASETS = {
    "digits": load_digits,
    "mnist": IdxImages("mnist", "http://yann.lecun.com/exdb/mnist/"),
    "fashion-mnist": IdxImages("fashion-mnist", "https://github.com/zalandoresearch/fashion-mnist"),
    "cifar10": Cifar(
        "cifar10",
        (
            *("cifar10/cifar-10-batches-py", "cifar-10-batches-py"),
            *("cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
        ),
        _BATCHES,
        "test_batch",
        "labels",
        10,
        CIFAR10_MD5,
        (10_000, 10_000),
    ),
    "cifar100": Cifar(
        "cifar100",
        (
            *("cifar100/cifar-100-python", "cifar-100-python"),
            *("cifar100/cifar-100-binary", "cifar-100-binary"),
        ),
        ("train",),
        "test",
        "fine_labels",
        100,
        CIFAR100_MD5,
        (50_000, 10_000),
        2,
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
    "adult": Adult(),
    "two-groups": load_two_groups,
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


#: User-defined samples and texts in files, by type.
USER_DATASETS = {"table": UserTable, "folder": UserFolder, "leaf": Leaf}
USER_TEXTS = {"texts": UserTexts}


def read(dataset: Any, data_dir: str | None = None) -> Any:
    """Read the samples or texts of a data set, given by its name or as an object.

    Raises:
        DataError: they cannot be read.
    """
    if isinstance(dataset, str):
        return (DATASETS[dataset] if dataset in DATASETS else TEXTS[dataset])(data_dir)
    return dataset(data_dir)


#: A data set of samples, and one of texts.
Dataset = choice("data set", USER_DATASETS, UserFunction, names=DATASETS)
TextDataset = choice("set of texts", USER_TEXTS, UserTextFunction, names=TEXTS)
