"""Step sizes that theorems prescribe, and the bounds that they guarantee.

There is one file per paper. A theorem is a function of the constants in its assumptions, and remains valid
for larger constants. :func:`prescribe` takes a name in :data:`THEOREMS`.
"""

from mpifed.theory import composition, huang, proxskip, shen, sun_wei, wang_kale, zhang_gao
from mpifed.theory.prescription import THEOREMS, Prescription, Theorem, prescribe

__all__ = [
    "THEOREMS", "Prescription", "Theorem", "composition", "huang", "prescribe", "proxskip", "shen", "sun_wei",
    "wang_kale", "zhang_gao",
]  # fmt: skip
