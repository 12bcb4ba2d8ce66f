"""Clients → ranks → devices, and the cohort of a round.

Clients are numbered 0 .. N-1 and lie on the ranks in contiguous blocks of nearly equal size, so a rank's rows, one rank
after another, are in the order of the clients' numbers. There may be more ranks than clients.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from mpifed.streams import Stream

__all__ = ["Placement", "Cohort", "device_for"]


class Placement:
    """Which rank hosts which clients."""

    def __init__(self, clients: int, ranks: int):
        self.clients, self.ranks = clients, ranks

    def of(self, rank: int) -> np.ndarray:
        """The numbers of the clients on ``rank``, ascending."""
        return np.arange(rank * self.clients // self.ranks, (rank + 1) * self.clients // self.ranks)

    @cached_property
    def rank_of(self) -> np.ndarray:
        """The rank of every client, ``[N]``."""
        return np.concatenate([np.full(len(self.of(rank)), rank) for rank in range(self.ranks)])


class Cohort:
    """The clients of one round, as one rank sees them.

    Attributes:
        members: numbers of the members, ascending.
        local: positions of this rank's members among the clients that it hosts.
        counts: members on each rank.
        order: positions that bring rows lying rank after rank into the order of ``members``.
        weights: the members' weights or ``None`` for uniform; ``local_weights``: those of this rank's members.
        total: sum of the members' weights (their number when uniform).
    """

    def __init__(self, members: np.ndarray, placement: Placement, rank: int, weights: np.ndarray | None = None):
        self.members = members
        ranks = placement.rank_of[members]
        self.order = np.argsort(np.argsort(ranks, kind="stable"), kind="stable")
        self.counts = np.bincount(ranks, minlength=placement.ranks)
        mine = members[ranks == rank]
        self.local = np.searchsorted(placement.of(rank), mine)
        self.weights = None if weights is None else weights[members]
        self.local_weights = None if weights is None else weights[mine]
        self.total = float(len(members) if weights is None else self.weights.sum())

    @staticmethod
    def draw(seed: int, r: int, clients: int, size: int) -> np.ndarray:
        """``size`` of ``clients`` clients, uniformly without replacement, from the address of round ``r``."""
        if size == clients:
            return np.arange(clients)
        return np.sort(Stream(seed, "cohort", round=r).permutation(clients)[0, 0, :size])


def device_for(wanted: str, local_rank: int) -> torch.device:
    """The device of a rank: its node's GPU number ``local_rank`` modulo the number of GPUs, or the CPU.

    Args:
        wanted: "cpu", "cuda", or "auto" (CUDA where there is a GPU).

    Raises:
        ValueError: CUDA is asked for and no GPU is visible.
    """
    gpus = torch.cuda.device_count() if wanted != "cpu" else 0
    if wanted == "cuda" and not gpus:
        raise ValueError("run.device = 'cuda', but no GPU is visible to this process (options: auto, cpu)")
    return torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
