"""Tests for NaN and infinity, decompositions of matrices that may not be finite, norms of vectors whose
squares overflow, and odds of probabilities that are rounded to 1."""

from __future__ import annotations

import math
from cmath import isfinite
from collections.abc import Callable

import torch

__all__ = ["all_finite", "first_non_finite", "log_odds", "scaled_norm", "where_finite"]


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
    # The norm of a single element is computed without squares, so it may be finite although squares overflow.
    scale = torch.ones_like(norm).masked_fill(norm > math.sqrt(torch.finfo(values.dtype).max), tiny)
    scale = scale.masked_fill(norm < math.sqrt(tiny), 1 / tiny)
    values = values * scale
    return values, torch.linalg.vector_norm(values, dim=dim, keepdim=True), scale


def log_odds(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return log(p / (1 - p)) ``[n]``, where p is the softmax probability of one class per row.

    p is rounded to 1 if the score of the class exceeds all others by 17 in single precision, and its
    derivative to 0. The logarithm of the odds is accurate for all scores.

    Args:
        scores: ``[n, classes]``, at least 2 classes.
        labels: the classes, int64 ``[n]``.
    """
    index = labels[:, None]
    others = scores.scatter(1, index, -torch.inf).logsumexp(1)
    return scores.gather(1, index)[:, 0] - others
