"""A problem's functions mapped over the client axis.

``vmap`` splits ``F.linear`` so that every weight's gradient comes out transposed, and is copied where
gradients are joined: a third of the time of an MLP 784-128-10, an eighth with two layers of 200. With the
weight on the left of its product, all lie as they are needed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["mapped"]


def mapped(function: Callable) -> Callable:
    """``function`` of one client for several: arguments and results get a leading axis, ``[C, ...]``."""
    together = torch.func.vmap(function)

    def apply(*arguments):
        with _WeightOnTheLeft():
            return together(*arguments)

    return apply


class _WeightOnTheLeft(TorchFunctionMode):
    """``F.linear`` as (W hᵀ)ᵀ + b."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return (_linear if func is F.linear else func)(*args, **(kwargs or {}))


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if input.dim() < 2 or weight.dim() < 2:
        return F.linear(input, weight, bias)
    rows = input.flatten(0, -2)
    value = (weight @ rows.mT).mT.unflatten(0, input.shape[:-1])
    return value if bias is None else value + bias
