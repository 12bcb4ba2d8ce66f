"""The methods, one family a file."""

from mpifed.algorithms.fgda import FGDA, AdaFGDA
from mpifed.algorithms.local_sgda import LocalSGDA

__all__ = ["ALGORITHMS", "FGDA", "AdaFGDA", "LocalSGDA"]

ALGORITHMS = {"FGDA": FGDA, "AdaFGDA": AdaFGDA, "LocalSGDA": LocalSGDA}
