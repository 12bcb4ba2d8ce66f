"""Tests for NaN and infinity, decompositions of matrices that may not be finite, and norms of vectors whose
squares overflow."""

from __future__ import annotations

import math
from cmath import isfinite
from collections.abc import Callable

import torch

__all__ = ["all_finite", "first_non_finite", "scaled_norm", "where_finite"]


def all_finite(values: torch.Tensor) -> bool:
    """Return whether all values are finite."""
    # The sum is cheap. If it is not finite, a value is not finite or the sum overflows.
    return not values.numel() or isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def first_non_finite(values: torch.Tensor) -> tuple[int, ...] | None:
    """Return the index of the first value that is not finite, ``None`` if all values are finite."""
    if not (values.is_floating_point() or values.is_complex()) or all_finite(values):
        return None
    return tuple((~torch.isfinite(values)).nonzero()[0].tolist())


def where_finite(function: Callable[[torch.Tensor], torch.Tensor], U: torch.Tensor) -> torch.Tensor:
    """Apply a decomposition to matrices ``[..., m, n]``; the result is NaN for non-finite matrices.

    LAPACK raises an error for NaN and ignores infinities.
    """
    finite = torch.isfinite(U).all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
    return torch.where(finite, function(torch.where(finite, U, 0.0)), torch.nan)


def scaled_norm(
    values: torch.Tensor, dim: int | tuple[int, ...] = -1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return s v, its Euclidean norm and the scale s, for vectors v of finite elements of any size.

    s is 1 unless the sum of the squares of v overflows or underflows; then it is a power of two, by which
    multiplication is exact. The norm of v itself may be too large for its dtype.

    Args:
        dim: the axes of a vector v, which the norm and the scale keep with length 1.
    """
    norm, tiny = torch.linalg.vector_norm(values, dim=dim, keepdim=True), torch.finfo(values.dtype).tiny
    scale = torch.ones_like(norm).masked_fill(norm == torch.inf, tiny)
    scale = scale.masked_fill(norm < math.sqrt(tiny), 1 / tiny)
    values = values * scale
    return values, torch.linalg.vector_norm(values, dim=dim, keepdim=True), scale
