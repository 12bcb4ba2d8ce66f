"""NaN and infinity in tensors: tests at the price of a sum, and decompositions that tolerate them.

LAPACK raises an error for NaN and ignores infinities; :func:`where_finite` returns NaN for such matrices.
"""

from __future__ import annotations

from cmath import isfinite
from collections.abc import Callable

import torch

__all__ = ["all_finite", "first_bad", "where_finite"]


def all_finite(values: torch.Tensor) -> bool:
    """One sum is finite unless a value is not, or the sum overflows, which the second look sorts out."""
    return not values.numel() or isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def first_bad(values: torch.Tensor) -> tuple[int, ...] | None:
    """Index of the first value that is not finite, row first; ``None`` if all are finite."""
    if not (values.is_floating_point() or values.is_complex()) or all_finite(values):
        return None
    return tuple((~torch.isfinite(values)).nonzero()[0].tolist())


def where_finite(function: Callable[[torch.Tensor], torch.Tensor], U: torch.Tensor) -> torch.Tensor:
    """``function(U)`` of matrices ``[..., m, n]``; NaN, as from arithmetic, for those that are not finite."""
    finite = torch.isfinite(U).all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
    return torch.where(finite, function(torch.where(finite, U, 0.0)), torch.nan)
