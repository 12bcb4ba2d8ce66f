"""A problem's metrics at a point, off the clock, with the scoring of held-out rows spread over the ranks."""

from __future__ import annotations

import numpy as np
import torch

from mpifed.core.errors import blaming
from mpifed.core.problem import Problem
from mpifed.parallel.comm import SerialComm

__all__ = ["evaluate"]

#: Held-out rows that are scored in one call, the same blocks for every number of ranks.
SCORE_ROWS = 250


def evaluate(problem: Problem, comm: SerialComm, point: list[torch.Tensor]) -> dict[str, float]:
    """The problem's metrics, complete on rank 0 and empty elsewhere. Collective.

    Args:
        point: one flat vector a block.
    """
    blocks = problem.variables()
    named = [blocks.unflatten(block, flat) for block, flat in zip(blocks, point)]
    predictions = _predict(problem, comm, named) if problem.test_rows else None
    if comm.rank != 0:
        return {}
    with blaming(f"{type(problem).__name__}.metrics"):
        return {name: float(value) for name, value in problem.metrics(*named, predictions).items()}


@torch.no_grad()
def _predict(problem: Problem, comm: SerialComm, point) -> torch.Tensor:
    """Scores of all held-out rows, computed in blocks spread over the ranks."""
    total = problem.test_rows
    blocks = -(-total // SCORE_ROWS)
    edges = [min(total, rank * blocks // comm.size * SCORE_ROWS) for rank in range(comm.size + 1)]
    first, last = edges[comm.rank], edges[comm.rank + 1]
    with blaming(f"{type(problem).__name__}.predict"):
        parts = [
            problem.predict(*point, slice(start, min(start + SCORE_ROWS, last)))
            for start in range(first, last, SCORE_ROWS)
        ]
        mine = torch.cat(parts).cpu().double() if parts else torch.empty(0, dtype=torch.float64)
    width = np.array([mine[0].numel() if len(mine) else 0], dtype=np.int64)
    comm.allreduce_(width, "max")
    gathered = np.empty(total * int(width[0]))
    counts = [(right - left) * int(width[0]) for left, right in zip(edges, edges[1:])]
    comm.allgatherv(np.ascontiguousarray(mine.numpy()).reshape(-1), gathered, counts)
    scores = torch.from_numpy(gathered).reshape(total, -1)
    return scores[:, 0] if width[0] == 1 else scores
