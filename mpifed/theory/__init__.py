"""Theory as code: the step sizes that theorems prescribe and the bounds that they give, by name.

One file a paper. Every statement is a function of the constants of its assumptions; larger constants than
need be leave it true. :func:`prescribe` takes a name of :data:`THEOREMS`.
"""

from mpifed.theory import composition, huang, shen, wang_kale, zhang_gao
from mpifed.theory.prescription import THEOREMS, Prescription, Theorem, prescribe

__all__ = [
    "THEOREMS",
    "Prescription",
    "Theorem",
    "composition",
    "huang",
    "prescribe",
    "shen",
    "wang_kale",
    "zhang_gao",
]
