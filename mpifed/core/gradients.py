"""Gradients of a loss as flat vectors: for one client, or for several together.

One client's small parameters are copied into leaves of the autograd graph that are made once, whose gradients
are views of one flat vector: no tensor of Python's is made for a parameter. Where they are large, a pass over
memory counts for more than that, and leaves are made as views of the point itself. The two give the same
bits. Several clients have the loss mapped over them, and the sum of their losses differentiated outside of
the map: each client's parameters get its own gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from mpifed.core.mapping import mapped
from mpifed.core.records import Blocks

__all__ = ["Gradients"]

#: Parameters from which a pass over them takes longer than to make leaves and join gradients.
LARGE = 2**16
#: What ``torch.autograd.grad`` and ``Tensor.backward`` call; what they do around it takes as long as the
#: gradient of a small network.
_run_backward = torch.autograd.Variable._execution_engine.run_backward


class Gradients:
    """Differentiates ``loss(*blocks, batch)`` with respect to all its blocks."""

    def __init__(self, loss: Callable, blocks: Blocks):
        self._loss, self._mapped, self._blocks = loss, mapped(loss), blocks
        self._sizes = [[math.prod(shape) for shape in blocks[block].values()] for block in blocks]
        self._large = sum(map(sum, self._sizes)) >= LARGE
        self._leaves: _Leaves | None = None
        self._one = torch.ones(())

    def alone(self, point: Sequence[torch.Tensor], batch: tuple) -> torch.Tensor:
        """The gradient of one client, ``[1, d]`` over all blocks.

        Args:
            point: the blocks, ``[1, d]`` or ``[d]``.
            batch: one sample, without the client axis.
        """
        if self._large:
            named = self._views([block.reshape(-1) for block in point])
            return self._joined(named, self._evaluate(self._loss, named, batch), 1)
        if self._leaves is None:
            self._leaves = _Leaves(self._blocks, point[0])
        leaves = self._leaves
        for own, block in zip(leaves.point, point):
            own.copy_(block)
        leaves.gradient.zero_()
        value = self._evaluate(self._loss, leaves.named, batch)
        _run_backward((value,), (self._like(value),), False, False, (), True, True)
        return leaves.gradient.clone()

    def together(self, point: Sequence[torch.Tensor], batch: tuple, count: int) -> torch.Tensor:
        """The gradients of ``count`` clients, ``[C, d]`` over all blocks.

        Args:
            point: the blocks, ``[C, d]`` or ``[d]``.
            batch: a sample of each, with the client axis.
        """
        rows = [block if block.dim() > 1 else block.expand(count, -1).contiguous() for block in point]
        named = self._views(rows)
        return self._joined(named, self._evaluate(self._mapped, named, batch), count)

    def _evaluate(self, loss: Callable, named: list[dict[str, torch.Tensor]], batch: tuple) -> torch.Tensor:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        try:
            return loss(*named, batch)
        finally:
            torch.set_grad_enabled(before)

    def _views(self, point: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """The named parameters of a point, ``[..., *shape]``, as leaves that share its memory."""
        return [
            {
                name: part.view((*flat.shape[:-1], *shape)).requires_grad_()
                for part, (name, shape) in zip(flat.detach().split(sizes, -1), self._blocks[block].items())
            }
            for block, sizes, flat in zip(self._blocks, self._sizes, point)
        ]

    def _joined(self, named: list[dict[str, torch.Tensor]], value: torch.Tensor, count: int) -> torch.Tensor:
        """The gradients of ``value`` by all parameters, one row a client."""
        leaves = [leaf for block in named for leaf in block.values()]
        parts = _run_backward((value,), (self._like(value),), False, False, tuple(leaves), True, False)
        rows = [
            (torch.zeros_like(leaf) if part is None else part).reshape(count, -1)
            for leaf, part in zip(leaves, parts)
        ]
        return torch.cat(rows, dim=1)

    def _like(self, losses: torch.Tensor) -> torch.Tensor:
        """The gradient of the sum of some losses by each of them."""
        one = self._one
        if one.shape != losses.shape or one.dtype != losses.dtype or one.device != losses.device:
            self._one = one = torch.ones_like(losses)
        return one


class _Leaves:
    """A flat point whose named parameters are leaves, and a flat gradient that ``backward`` adds to."""

    def __init__(self, blocks: Blocks, like: torch.Tensor):
        split = tuple(blocks.sizes.values())
        point, self.gradient = like.new_zeros(1, sum(split)), like.new_zeros(1, sum(split))
        self.point = point.split(split, dim=1)
        self.named = [
            {name: view.detach().requires_grad_() for name, view in blocks.unflatten(block, flat[0]).items()}
            for block, flat in zip(blocks, self.point)
        ]
        for block, named, gradient in zip(blocks, self.named, self.gradient[0].split(split)):
            for leaf, view in zip(named.values(), blocks.unflatten(block, gradient).values()):
                leaf.grad = view
