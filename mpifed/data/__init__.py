"""Real data: files read and checked, and their division among clients."""

from mpifed.data.npz import Omniglot, load_omniglot
from mpifed.data.partition import PARTITIONS, Partition, thin
from mpifed.data.registry import DATASETS, TEXTS, Dataset
from mpifed.data.samples import Images, Labelled, Pixels, Table, Texts
from mpifed.data.sources import DataError

__all__ = [
    "DATASETS",
    "DataError",
    "Dataset",
    "Images",
    "Labelled",
    "Omniglot",
    "PARTITIONS",
    "Partition",
    "Pixels",
    "TEXTS",
    "Table",
    "Texts",
    "load_omniglot",
    "thin",
]
