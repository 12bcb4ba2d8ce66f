"""The placement of clients on ranks, and the cohort of a round.

Each rank hosts a contiguous block of the clients 0 .. N-1; blocks have nearly equal sizes or nearly equal
costs. There may be more ranks than clients. A rank steps the members of a cohort that it hosts, unless ranks
form *groups*, such as the ranks of a node: the members that a group hosts are divided among its ranks, in the
order of their numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from mpifed.parallel.tree import Tree, max_partial_sums

__all__ = ["Placement", "Cohort"]


class Placement:
    """The clients of each rank.

    Args:
        edges: ``[ranks + 1]``, rank r hosts the clients ``edges[r] .. edges[r + 1] - 1``. Default: the sizes
            of the blocks differ by at most one.
        groups: the first rank of each group, then the number of ranks. Default: each rank is a group.
        costs: cost of each client, ``[N]`` positive integers. Default: all clients cost the same.
    """

    def __init__(
        self,
        clients: int,
        ranks: int,
        edges: Sequence[int] | None = None,
        groups: Sequence[int] | None = None,
        costs: np.ndarray | None = None,
    ):
        self.clients, self.ranks, self._costs = clients, ranks, costs
        self.edges = np.array(edges or [rank * clients // ranks for rank in range(ranks + 1)])
        self._groups = np.array(groups or range(ranks + 1))
        self._group_of = np.repeat(np.arange(len(self._groups) - 1), np.diff(self._groups))

    def in_groups(self, groups: Sequence[int]) -> Placement:
        """Return the same placement with other groups of ranks."""
        return Placement(self.clients, self.ranks, self.edges.tolist(), groups, self._costs)

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
            return cls(clients, ranks, costs=costs)
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
        return cls(clients, ranks, [*edges, clients], costs=costs)

    def clients_of(self, rank: int) -> np.ndarray:
        """Return the numbers of the clients on ``rank``, ascending, a part of :attr:`numbers`."""
        return self.numbers[self.edges[rank] : self.edges[rank + 1]]

    @cached_property
    def numbers(self) -> np.ndarray:
        """The numbers of all clients, ``[N]``. Other arrays are parts of it: it must not be changed."""
        return np.arange(self.clients)

    def reach(self, rank: int) -> range:
        """Return the numbers of the clients that ``rank`` may step: those of its group."""
        group = self._group_of[rank]
        first, last = self.edges[self._groups[group : group + 2]].tolist()
        return range(first, last)

    def max_members(self, rank: int, cohort: int) -> int:
        """Return the maximum number of members of a cohort of size ``cohort`` that ``rank`` steps."""
        reach, ranks = len(self.reach(rank)), int(np.diff(self._groups)[self._group_of[rank]])
        if ranks == 1 or cohort == self.clients:
            return min(self.counts[rank], cohort)
        most = min(reach, cohort)
        return most if self._costs is not None else -(-most // ranks)

    def split(self, members: np.ndarray) -> np.ndarray:
        """Divide a cohort among the ranks.

        The members of a group are divided into contiguous parts of nearly equal costs. If all clients are
        members, each rank steps those that it hosts.

        Args:
            members: numbers of the members, ascending.

        Returns:
            ``[ranks + 1]``: rank r steps the members from ``bounds[r]`` to ``bounds[r + 1] - 1``.
        """
        if len(self._groups) == self.ranks + 1 or len(members) == self.clients:
            return self.edges
        costs = np.ones(len(members), dtype=np.int64) if self._costs is None else self._costs[members]
        before = np.concatenate([[0], np.cumsum(costs)])  # the costs of all members before each member
        ends = before[np.searchsorted(members, self.edges[self._groups])]
        first, size = self._groups[self._group_of], np.diff(self._groups)[self._group_of]
        shares = (np.arange(self.ranks) - first) * np.diff(ends)[self._group_of] // size
        places = np.searchsorted(before, ends[self._group_of] + shares)
        return np.append(members, self.clients)[np.append(places, len(members))]

    def max_partial_sums(self, first: int, last: int) -> int:
        """Return the maximum number of partial sums that the ranks ``first .. last - 1`` store at a time
        (:mod:`mpifed.parallel.tree`), at least 1. The ranks are a whole group, several, or one rank.
        """
        reach = self.reach(first)
        if reach and last - first < np.diff(self._groups)[self._group_of[first]]:
            # Any members of the group: at most one node of each level before and after the middle.
            return max(1, 2 * (reach[0] ^ reach[-1]).bit_length() - 2)
        return max(1, max_partial_sums(int(self.edges[first]), int(self.edges[last])))

    @property
    def counts(self) -> list[int]:
        """Number of clients per rank."""
        return np.diff(self.edges).tolist()

    def rank_of(self, client: int) -> int:
        """Return the rank that hosts a client."""
        return int(np.searchsorted(self.edges, client, "right")) - 1


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
        members: numbers of the members, ascending; ``numbers``: those that this rank steps.
        local: positions of this rank's members among the clients that it may step.
        bounds: how the cohort is divided among the ranks, see :meth:`Placement.split`.
        counts: number of members per rank.
        weights: weights of the members, ``None`` for uniform weights; ``local_weights``: those of this rank's
            members.
        total: sum of the weights, or the number of members for uniform weights.
        selected: number of sampled clients, including those that have dropped out.
    """

    def __init__(
        self,
        members: np.ndarray,
        placement: Placement,
        rank: int,
        weights: np.ndarray | None = None,
        bounds: np.ndarray | None = None,
    ):
        self.members, self._rank, self.selected = members, rank, len(members)
        self.bounds = placement.split(members) if bounds is None else bounds
        ends = np.searchsorted(members, self.bounds)
        self.counts = np.diff(ends)
        self.numbers = members[slice(*ends[rank : rank + 2])]
        first = placement.reach(rank).start
        self.local = self.numbers - first if first else self.numbers
        self.total = float(len(members))
        self.weights = self.local_weights = None
        if weights is not None:
            self.weights, self.local_weights = weights[members], weights[self.numbers]
            self.total = float(self.weights.sum())

    @cached_property
    def tree(self) -> Tree:
        """The order in which the members' messages are added."""
        return Tree(self.members, self.counts, self._rank)

    @property
    def dropouts(self) -> int:
        """Number of sampled clients that have dropped out; 0 except on the rank that steps the first
        member."""
        dropouts = self.selected - len(self.members)
        return dropouts if dropouts and (self.counts > 0).argmax() == self._rank else 0
