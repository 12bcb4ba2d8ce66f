"""Real data: files read and checked, and their division among clients."""

from mpifed.data.idx import DataError
from mpifed.data.images import DATASETS, Dataset, Images
from mpifed.data.partition import PARTITIONS, Partition, thin

__all__ = ["DATASETS", "DataError", "Dataset", "Images", "PARTITIONS", "Partition", "thin"]
