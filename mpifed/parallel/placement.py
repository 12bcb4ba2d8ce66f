"""The placement of clients on ranks, and the cohort of a round.

Each rank hosts a contiguous block of the clients 0 .. N-1; blocks have nearly equal sizes or nearly equal
costs. There may be more ranks than clients.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property

import numpy as np

from mpifed.parallel.tree import Tree, max_partial_sums

__all__ = ["Placement", "Cohort"]


class Placement:
    """The clients of each rank.

    Args:
        edges: ``[ranks + 1]``, rank r hosts the clients ``edges[r] .. edges[r + 1] - 1``. Default: the sizes
            of the blocks differ by at most one.
    """

    def __init__(self, clients: int, ranks: int, edges: list[int] | None = None):
        self.clients, self.ranks = clients, ranks
        self.edges = np.array(edges or [rank * clients // ranks for rank in range(ranks + 1)])

    @classmethod
    def balanced(cls, costs: np.ndarray, ranks: int) -> Placement:
        """Minimise the largest cost of a block; no block is empty if there are enough clients.

        Among these placements, the block of rank r starts as close as possible to the fraction r / ranks of
        the total cost. Integer costs make the result exact and the same on all ranks.

        Args:
            costs: cost of each client, ``[N]`` positive integers, such as numbers of samples.
        """
        clients = len(costs)
        if clients <= ranks:
            return cls(clients, ranks)
        ends = [0, *np.cumsum(costs).tolist()]  # ends[k]: cost of the clients before k
        limit = _smallest_limit(ends, ranks)
        first = [clients]  # smallest edges, from the right: the later blocks stay within the limit
        while len(first) <= ranks:
            first.append(bisect_left(ends, ends[first[-1]] - limit))
        edges = [0]
        for rank in range(1, ranks):
            share = bisect_left(ends, ends[-1] * rank / ranks)
            last = min(bisect_right(ends, ends[edges[-1]] + limit) - 1, clients - ranks + rank)
            edges.append(min(max(share, first[ranks - rank], edges[-1] + 1), last))
        return cls(clients, ranks, [*edges, clients])

    def clients_of(self, rank: int) -> np.ndarray:
        """Return the numbers of the clients on ``rank``, ascending."""
        return np.arange(self.edges[rank], self.edges[rank + 1])

    def max_partial_sums(self, first: int, last: int) -> int:
        """Return the maximum number of partial sums that the ranks ``first .. last - 1`` store at a time
        (:mod:`mpifed.parallel.tree`), at least 1.
        """
        return max(1, max_partial_sums(int(self.edges[first]), int(self.edges[last])))

    @property
    def counts(self) -> list[int]:
        """Number of clients per rank."""
        return np.diff(self.edges).tolist()

    @cached_property
    def rank_of(self) -> np.ndarray:
        """Rank of each client, ``[N]``."""
        return np.repeat(np.arange(self.ranks), self.counts)


def _smallest_limit(ends: list[int], ranks: int) -> int:
    """Return the smallest cost limit of ``ranks`` contiguous blocks of all clients, by bisection."""
    low, high = -(-ends[-1] // ranks), ends[-1]
    while low < high:
        limit, edge = (low + high) // 2, 0
        for _ in range(ranks):
            edge = bisect_right(ends, ends[edge] + limit) - 1
        low, high = (low, limit) if edge == len(ends) - 1 else (limit + 1, high)
    return low


class Cohort:
    """The clients that participate in a round, from the point of view of one rank.

    Attributes:
        members: numbers of the members, ascending.
        local: positions of this rank's members among its clients.
        counts: number of members per rank.
        weights: weights of the members, ``None`` for uniform weights; ``local_weights``: those of this rank's
            members.
        total: sum of the weights, or the number of members for uniform weights.
        selected: number of sampled clients, including those that have dropped out.
    """

    def __init__(
        self, members: np.ndarray, placement: Placement, rank: int, weights: np.ndarray | None = None
    ):
        self.members, self._rank, self.selected = members, rank, len(members)
        ranks = placement.rank_of[members]
        self.counts = np.bincount(ranks, minlength=placement.ranks)
        mine = members[ranks == rank]
        self.local = mine - placement.edges[rank]
        self.total = float(len(members))
        self.weights = self.local_weights = None
        if weights is not None:
            self.weights, self.local_weights = weights[members], weights[mine]
            self.total = float(self.weights.sum())

    @cached_property
    def tree(self) -> Tree:
        """The order in which the members' messages are added."""
        return Tree(self.members, self.counts, self._rank)

    @property
    def dropouts(self) -> int:
        """Number of sampled clients that have dropped out; 0 except on the rank that hosts the first
        member."""
        dropouts = self.selected - len(self.members)
        return dropouts if dropouts and (self.counts > 0).argmax() == self._rank else 0
