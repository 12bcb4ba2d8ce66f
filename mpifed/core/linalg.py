"""Decompositions of matrices that may hold NaN or ∞, for which LAPACK raises an error or forgets the ∞."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["where_finite"]


def where_finite(function: Callable[[torch.Tensor], torch.Tensor], U: torch.Tensor) -> torch.Tensor:
    """``function(U)`` of matrices ``[..., m, n]``; NaN, as from arithmetic, for those that are not finite."""
    finite = torch.isfinite(U).all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
    return torch.where(finite, function(torch.where(finite, U, 0.0)), torch.nan)
