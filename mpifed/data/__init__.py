"""Real data: files read and checked, and their division among clients."""

from mpifed.data.npz import Omniglot, load_omniglot
from mpifed.data.partition import PARTITIONS, Partition, thin
from mpifed.data.registry import DATASETS, OWN, OWN_TEXTS, TEXTS, Dataset, TextDataset, read
from mpifed.data.samples import Images, Labelled, Pixels, Table, Texts
from mpifed.data.sources import DataError

__all__ = [
    "DATASETS",
    "DataError",
    "Dataset",
    "Images",
    "Labelled",
    "OWN",
    "OWN_TEXTS",
    "Omniglot",
    "PARTITIONS",
    "Partition",
    "Pixels",
    "TEXTS",
    "Table",
    "TextDataset",
    "Texts",
    "load_omniglot",
    "read",
    "thin",
]
