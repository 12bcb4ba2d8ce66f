"""Whether all values of a tensor are finite, at the price of a sum."""

from __future__ import annotations

from cmath import isfinite

import torch

__all__ = ["all_finite", "first_bad"]


def all_finite(values: torch.Tensor) -> bool:
    """One sum is finite unless a value is not, or the sum overflows, which the second look sorts out."""
    return not values.numel() or isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def first_bad(values: torch.Tensor) -> tuple[int, ...] | None:
    """Where the first value lies that is not finite, row first; ``None`` where all are."""
    if not (values.is_floating_point() or values.is_complex()) or all_finite(values):
        return None
    return tuple((~torch.isfinite(values)).nonzero()[0].tolist())
