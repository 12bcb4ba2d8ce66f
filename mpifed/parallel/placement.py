"""Clients → ranks, and the cohort of a round.

Clients are numbered 0 .. N-1 and lie on the ranks in contiguous blocks, so a rank's rows, one rank after
another, are in the order of the clients' numbers. Blocks are of nearly equal size, or of nearly equal cost.
There may be more ranks than clients.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property

import numpy as np

from mpifed.core.streams import Stream
from mpifed.parallel.tree import Tree, depth

__all__ = ["Placement", "Cohort"]


class Placement:
    """Which rank hosts which clients.

    Args:
        edges: ``[ranks + 1]``, rank r hosts the clients ``edges[r] .. edges[r + 1] - 1``; left out, blocks
            differ by one client at most.
    """

    def __init__(self, clients: int, ranks: int, edges: list[int] | None = None):
        self.clients, self.ranks = clients, ranks
        self.edges = np.array(edges or [rank * clients // ranks for rank in range(ranks + 1)])

    @classmethod
    def balanced(cls, costs: np.ndarray, ranks: int) -> Placement:
        """The contiguous blocks whose largest cost is the smallest possible, none empty where there are
        clients enough.

        As far as that allows, rank r's block begins where r / ranks of the total cost is reached. Whole
        numbers make the result exact and the same on all ranks.

        Args:
            costs: cost of each client, ``[N]`` positive integers, such as numbers of samples.
        """
        clients = len(costs)
        if clients <= ranks:
            return cls(clients, ranks)
        ends = [0, *np.cumsum(costs).tolist()]  # ends[k]: cost of the clients before k
        limit = _smallest_limit(ends, ranks)
        first = [clients]  # the least edges, from the right: what lies behind still fits under the limit
        while len(first) <= ranks:
            first.append(bisect_left(ends, ends[first[-1]] - limit))
        edges = [0]
        for rank in range(1, ranks):
            share = bisect_left(ends, ends[-1] * rank / ranks)
            last = min(bisect_right(ends, ends[edges[-1]] + limit) - 1, clients - ranks + rank)
            edges.append(min(max(share, first[ranks - rank], edges[-1] + 1), last))
        return cls(clients, ranks, [*edges, clients])

    def of(self, rank: int) -> np.ndarray:
        """The numbers of the clients on ``rank``, ascending."""
        return np.arange(self.edges[rank], self.edges[rank + 1])

    def most_sums(self, first: int, last: int) -> int:
        """The most partial sums that the ranks ``first .. last - 1`` hold of their clients at a time, at
        least one (:mod:`mpifed.parallel.tree`).
        """
        return max(1, depth(int(self.edges[first]), int(self.edges[last])))

    @property
    def counts(self) -> list[int]:
        """The number of clients on every rank."""
        return np.diff(self.edges).tolist()

    @cached_property
    def rank_of(self) -> np.ndarray:
        """The rank of every client, ``[N]``."""
        return np.repeat(np.arange(self.ranks), self.counts)


def _smallest_limit(ends: list[int], ranks: int) -> int:
    """The least cost per rank under which ``ranks`` contiguous blocks hold all clients, by bisection."""
    low, high = -(-ends[-1] // ranks), ends[-1]
    while low < high:
        limit, edge = (low + high) // 2, 0
        for _ in range(ranks):
            edge = bisect_right(ends, ends[edge] + limit) - 1
        low, high = (low, limit) if edge == len(ends) - 1 else (limit + 1, high)
    return low


class Cohort:
    """The clients of one round, as one rank sees them.

    Attributes:
        members: numbers of the members, ascending.
        local: positions of this rank's members among the clients that it hosts.
        counts: members on each rank.
        weights: the members' weights or ``None`` for uniform; ``local_weights``: those of this rank's
            members.
        total: sum of the members' weights (their number when uniform).
        asked: clients that have been asked, of whom the members have answered.
    """

    def __init__(
        self, members: np.ndarray, placement: Placement, rank: int, weights: np.ndarray | None = None
    ):
        self.members, self._rank, self.asked = members, rank, len(members)
        ranks = placement.rank_of[members]
        self.counts = np.bincount(ranks, minlength=placement.ranks)
        mine = members[ranks == rank]
        self.local = np.searchsorted(placement.of(rank), mine)
        self.total = float(len(members))
        self.weights = self.local_weights = None
        if weights is not None:
            self.weights, self.local_weights = weights[members], weights[mine]
            self.total = float(self.weights.sum())

    @cached_property
    def tree(self) -> Tree:
        """How the members' messages are added up."""
        return Tree(self.members, self.counts, self._rank)

    @property
    def silent(self) -> int:
        """Clients that have been asked and do not answer, as this rank counts them: all of them where it
        hosts the first member."""
        silent = self.asked - len(self.members)
        return silent if silent and (self.counts > 0).argmax() == self._rank else 0

    @staticmethod
    def draw(seed: int, r: int, clients: int, size: int, number: int = 0) -> np.ndarray:
        """``size`` of ``clients`` clients, uniformly without replacement; the address is (round, number)."""
        if size == clients:
            return np.arange(clients)
        return np.sort(Stream(seed, "cohort", round=r, first=number).permutation(clients)[0, 0, :size])
