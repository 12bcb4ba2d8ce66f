"""Problems by name."""

from mpifed.problems.deep_auc import DeepAUC
from mpifed.problems.saddle import Saddle

__all__ = ["PROBLEMS", "DeepAUC", "Saddle"]

PROBLEMS = {"Saddle": Saddle, "DeepAUC": DeepAUC}
