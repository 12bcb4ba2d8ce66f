"""Stochastic oracles: what an algorithm may ask of the clients it steps.

``oracle.sample(k)`` is the k-th sample ξ of the round as a *value*, so that it can be evaluated at two points (STORM,
SVRG) and so that it does not matter in which order clients run. The samples of a round are drawn at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from mpifed.problem import Problem
from mpifed.records import Blocks
from mpifed.streams import Stream

__all__ = ["Sample", "Sampler", "MinimaxOracle"]


class Sample(NamedTuple):
    """One sample ξ of C clients: tensors ``[C, b, ...]`` and, with noise, one vector a client ``[C, d]`` over all blocks."""

    batch: tuple[torch.Tensor, ...]
    noise: torch.Tensor | None


class Sampler:
    """Draws the samples of a rank's clients; holds their data on the device.

    Args:
        clients: global numbers of this rank's clients.
        batch_size: rows a sample; 0 takes all rows of the client (the exact local gradient).
        noise: additive gradient noise or ``None``.
    """

    def __init__(self, problem: Problem, clients, seed: int, batch_size: int, noise, dtype, device):
        self.problem, self.seed, self.batch_size, self.noise = problem, seed, batch_size, noise
        self.clients = np.asarray(clients, dtype=np.int64)
        self.dtype, self.device = dtype, device
        self.width = sum(problem.variables().sizes.values())
        parts = [tuple(self._load(tensor) for tensor in problem.client_data(client)) for client in clients]
        self.sizes = np.array([len(part[0]) if part else 0 for part in parts], dtype=np.int64)
        self.offsets = np.concatenate(([0], np.cumsum(self.sizes)[:-1])) if parts else self.sizes
        self.data = tuple(torch.cat(column) for column in zip(*parts))
        self._expected = 1
        self.begin(np.arange(len(self.clients)), 0)

    def _load(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = torch.as_tensor(tensor)
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)

    def begin(self, members: np.ndarray, r: int) -> None:
        """Turn to round ``r`` of the clients at local positions ``members``."""
        self.members, self.round, self._drawn = members, r, {}

    def sample(self, k: int, rows: slice, round: int | None = None) -> Sample:
        """Sample ``k`` of a round (the current one unless named) for ``members[rows]``."""
        round = self.round if round is None else round
        drawn = self._drawn.get(round)
        if drawn is None or k >= drawn[0]:
            self._expected = max(self._expected, k + 1) if drawn is None else max(2 * drawn[0], k + 1)
            drawn = self._drawn[round] = (self._expected, *self._draw(round, self._expected))
        _, indices, noise = drawn
        if self.batch_size or isinstance(indices, tuple):
            batch = self._gather(indices, rows, k)
        else:
            batch = self._everything(rows)
        return Sample(batch, None if noise is None else noise[rows, k])

    def _draw(self, round: int, count: int):
        """The raw samples ``0..count-1`` of a round: row numbers or the problem's own arrays, and the noise."""
        clients = self.clients[self.members]
        stream = Stream(self.seed, "sample", clients, round, count)
        drawn = self.problem.draw(stream)
        if drawn is not None:
            indices = tuple(self._load(torch.from_numpy(np.ascontiguousarray(array))) for array in drawn)
        elif self.batch_size:
            local = stream.integers(self.sizes[self.members], self.batch_size)
            indices = torch.from_numpy(local + self.offsets[self.members][:, None, None]).to(self.device)
        else:
            indices = None
        noise = None
        if self.noise is not None:
            values = self.noise(Stream(self.seed, "noise", clients, round, count), self.width)
            noise = self._load(torch.from_numpy(values))
        return indices, noise

    def _gather(self, indices, rows: slice, k: int) -> tuple[torch.Tensor, ...]:
        if isinstance(indices, tuple):
            return tuple(array[rows, k] for array in indices)
        chosen = indices[rows, k]
        return tuple(column[chosen] for column in self.data)

    def _everything(self, rows: slice) -> tuple[torch.Tensor, ...]:
        members = self.members[rows]
        sizes, offsets = self.sizes[members], self.offsets[members]
        if len(set(sizes.tolist())) > 1:
            raise ValueError(
                "full batches of clients stepped together need clients of one size, got sizes from "
                f"{sizes.min()} to {sizes.max()}: set [oracle] batch_size, or [run] executor = \"loop\""
            )
        blocks = [slice(offset, offset + size) for offset, size in zip(offsets, sizes)]
        if len(blocks) == 1:
            return tuple(column[blocks[0]].unsqueeze(0) for column in self.data)
        return tuple(torch.stack([column[block] for block in blocks]) for column in self.data)


class MinimaxOracle:
    """Gradients of f_n for the clients ``members[rows]`` of a sampler.

    ``batched`` maps the loss over the client axis at once; otherwise there is one client. Counts its evaluations in
    ``calls``: one gradient pair at one sample ξ (a minibatch is one ξ) of one client is one call.
    """

    def __init__(self, problem: Problem, sampler: Sampler, blocks: Blocks, batched: bool):
        self.problem, self.sampler, self.blocks, self.batched = problem, sampler, blocks, batched
        self.sets = problem.sets
        self.calls = 0
        self._points: dict[int, tuple] = {}
        self._mapped = torch.func.vmap(problem.loss) if batched else problem.loss
        self._split = (blocks.sizes["x"], blocks.sizes["y"])

    def at(self, rows: slice, counted: int | None = None) -> None:
        """Turn to the clients ``members[rows]`` of the sampler's current round; ``counted`` of them are no padding."""
        self._rows, self._count = rows, rows.stop - rows.start
        self._counted = self._count if counted is None else counted

    def sample(self, k: int, round: int | None = None) -> Sample:
        """The k-th sample ξ (k = 0, 1, ...) of the round, or of another round: the same address gives the same ξ."""
        return self.sampler.sample(k, self._rows, round)

    def grad(self, x: torch.Tensor, y: torch.Tensor, xi: Sample) -> tuple[torch.Tensor, torch.Tensor]:
        """∇_x f_n(x, y; ξ) and ∇_y f_n(x, y; ξ), ``[C, dx]`` and ``[C, dy]``, at ``x``: ``[C, dx]`` or ``[dx]``, ``y`` alike."""
        self.calls += self._counted
        if self.problem.gradients is not None:
            gx, gy = self.problem.gradients(x, y, xi.batch)
        else:
            gx, gy = self._differentiate(x, y, xi.batch)
        if xi.noise is not None:
            noise_x, noise_y = xi.noise.split(self._split, dim=-1)
            gx, gy = gx + noise_x, gy + noise_y
        return gx, gy

    def _point(self, like: torch.Tensor):
        """Persistent flat blocks ``[C, d]`` and their named parameters as leaves of the autograd graph."""
        if self._count not in self._points:
            flat = [like.new_zeros(self._count, size) for size in self._split]
            seen = flat if self.batched else [block[0] for block in flat]
            leaves = [
                {name: view.detach().requires_grad_() for name, view in self.blocks.unflatten(block, one).items()}
                for block, one in zip("xy", seen)
            ]
            self._points[self._count] = (*flat, *leaves, [*leaves[0].values(), *leaves[1].values()])
        return self._points[self._count]

    def _differentiate(self, x, y, batch):
        flat_x, flat_y, named_x, named_y, leaves = self._point(x)
        flat_x.copy_(x)
        flat_y.copy_(y)
        with torch.enable_grad():
            if self.batched:
                loss = self._mapped(named_x, named_y, batch).sum()  # clients are independent: one gradient each
            else:
                loss = self._mapped(named_x, named_y, tuple(column[0] for column in batch))
            grads = torch.autograd.grad(loss, leaves, materialize_grads=True)
        rows = [grad.reshape(self._count, -1) for grad in grads]
        return _join(rows[: len(named_x)]), _join(rows[len(named_x) :])


def _join(rows: list[torch.Tensor]) -> torch.Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
