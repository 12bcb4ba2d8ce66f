"""Personalised points: the averaged point, fine-tuned by each client on its own samples ([personalize]).

The steps are plain stochastic gradient steps with the job's batch size and noise: descent in x and ascent in
y, with projections onto the problem's sets. They are excluded from the costs, and no run uses the addresses
of their samples, so the iterates do not change.
"""

from __future__ import annotations

import torch

from mpifed.simulation.full_data import ROUNDS, FullData
from mpifed.simulation.options import Personalize

__all__ = ["FineTuning"]


class FineTuning:
    """Fine-tunes a point for one client.

    Args:
        full: the problem, whose clients on this rank are numbered by position.
    """

    def __init__(self, settings: Personalize, full: FullData):
        self.settings, self._full = settings, full
        sizes, sets = full.blocks.sizes, full.problem.sets
        self._sizes = [*sizes.values()]
        self._directions = [-1.0 if block == "x" else 1.0 for block in sizes]
        self._projections = [getattr(sets, block) if block in sets else None for block in sizes]

    def __call__(self, position: int, point: torch.Tensor, r: int) -> torch.Tensor:
        """Return the point ``[d]`` after the steps of the client at ``position``; ``point`` is not changed.

        Args:
            r: number of completed rounds, for the addresses of the samples.
        """
        point = point.clone()
        blocks = point.split(self._sizes)
        for number in range(self.settings.steps):
            gradients = self._full.stochastic(position, number, ROUNDS + r, point).split(self._sizes)
            for block, gradient, sign, project in zip(
                blocks, gradients, self._directions, self._projections, strict=True
            ):
                block.add_(gradient, alpha=sign * self.settings.step_size)
                if project is not None:
                    block.copy_(project(block))
        return point
