"""Data sets read from files and functions, and their partition among clients."""

from mpifed.data.npz import Omniglot, load_omniglot
from mpifed.data.partition import PARTITIONS, Partition, thin
from mpifed.data.registry import DATASETS, TEXTS, USER_DATASETS, USER_TEXTS, Dataset, TextDataset, read
from mpifed.data.samples import Grouping, Images, Labelled, Pixels, Table, Texts
from mpifed.data.sources import DataError

__all__ = [
    "DATASETS", "DataError", "Dataset", "Grouping", "Images", "Labelled", "USER_DATASETS", "USER_TEXTS",
    "Omniglot", "PARTITIONS", "Partition", "Pixels", "TEXTS", "Table", "TextDataset", "Texts",
    "load_omniglot", "read", "thin",
]  # fmt: skip
