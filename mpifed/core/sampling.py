"""Samples: the k-th sample ξ of a client's round as a *value*.

A value can be evaluated at two points (STORM, SVRG), and it does not matter in which order clients ask for theirs. The samples
of a round are drawn at once for all members of the cohort on a rank.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from mpifed.core.problem import Problem
from mpifed.core.streams import Stream

__all__ = ["Sample", "Sampler"]


class Sample(NamedTuple):
    """One sample ξ of C clients: tensors ``[C, b, ...]`` and, with noise, one vector a client ``[C, d]`` over all blocks."""

    batch: tuple[torch.Tensor, ...]
    noise: torch.Tensor | None


class Sampler:
    """Draws the samples of a rank's clients; holds their data on the device.

    Args:
        clients: global numbers of this rank's clients.
        batch_size: rows a sample; 0 takes all rows of the client (the exact local gradient).
        noise: additive noise or ``None``; ``noise_width``: numbers of noise that a sample carries.
    """

    def __init__(
        self, problem: Problem, clients, seed: int, batch_size: int, noise, noise_width: int, dtype, device
    ):
        self.problem, self.seed, self.batch_size, self.noise = problem, seed, batch_size, noise
        self.clients = np.asarray(clients, dtype=np.int64)
        self.dtype, self.device = dtype, device
        self.width = noise_width
        parts = [
            tuple(self._load(tensor) for tensor in problem.client_data(int(client))) for client in clients
        ]
        self.sizes = np.array([len(part[0]) if part else 0 for part in parts], dtype=np.int64)
        self.offsets = np.concatenate(([0], np.cumsum(self.sizes)[:-1])) if parts else self.sizes
        self.data = tuple(torch.cat(column) for column in zip(*parts))
        self._expected = 1
        self.begin(np.arange(len(self.clients)), 0)
        if parts:
            self._draw(0, 1)  # a problem that cannot draw says so now

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

    def normal(self, k: int, rows: slice, size: int) -> torch.Tensor:
        """Standard normal vector number ``k`` of the round, ``[C, size]``, independent of all samples."""
        stream = Stream(self.seed, "normal", self.clients[self.members[rows]], self.round, 1, k)
        return self._load(torch.from_numpy(stream.normal(size)[:, 0]))

    def _draw(self, round: int, count: int):
        """The raw samples ``0..count-1`` of a round: row numbers or the problem's own arrays, and the noise."""
        clients = self.clients[self.members]
        stream = Stream(self.seed, "sample", clients, round, count)
        drawn = self.problem.draw(stream, self.batch_size)
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
        """All rows of clients of one size."""
        blocks = [
            slice(self.offsets[member], self.offsets[member] + self.sizes[member])
            for member in self.members[rows]
        ]
        if len(blocks) == 1:
            return tuple(column[blocks[0]].unsqueeze(0) for column in self.data)
        return tuple(torch.stack([column[block] for block in blocks]) for column in self.data)
