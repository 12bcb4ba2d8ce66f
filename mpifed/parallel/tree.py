"""The fixed binary tree over the clients' numbers that determines the order of additions in ``exact`` sums.

Node (l, i) covers the clients i 2^l .. (i + 1) 2^l - 1. Its value is the sum of its left and its right child;
a child without members of the cohort is skipped. The *gap* between two neighbouring members is the level of
the smallest node that covers both: every node adds the two parts on either side of its highest gap. A rank
evaluates the nodes whose members are all on this rank. Only these partial sums, at most 2 log2 of the number
of its clients, are exchanged with other ranks. The order is therefore the same for every placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["PartialSums", "Tree", "max_partial_sums"]

#: The gap before the first and after the last member: higher than every node.
TOP = 64


def gaps_of(members: np.ndarray) -> np.ndarray:
    """Return the gap before each of ``members`` (ascending) and after the last, ``[members + 1]``."""
    gaps = np.full(len(members) + 1, TOP)
    gaps[1:-1] = np.frexp((members[1:] ^ members[:-1]).astype(np.float64))[1]  # number of bits
    return gaps


def max_partial_sums(first: int, last: int) -> int:
    """Return the maximum number of partial sums while clients ``first .. last - 1`` are added in order."""
    most = 0
    for level in range((first ^ last).bit_length()):
        middle = (first >> level | 1) << level  # intervals that end beyond it are split there
        if first >> level & 1 or middle > last:
            continue
        beyond = min(last - middle, 2**level - 1)  # 2^j - 1 clients have the most partial sums
        most = max(most, (middle - first).bit_count() + (beyond + 1).bit_length() - 1)
    return most


def plan_by_level(gaps: np.ndarray, closed: np.ndarray) -> tuple[list, np.ndarray, np.ndarray]:
    """Plan the additions of all complete nodes, level by level.

    Args:
        gaps: ``[rows + 1]``, see :func:`gaps_of`.
        closed: ``[rows]``, whether a row must not be added to earlier rows.

    Returns:
        The additions of each level, the final positions of the sums, and the first row of each sum. A level
        is either a number n, if the rows 0 and 1, 2 and 3, ... (n pairs) are added and become the rows
        0 .. n-1, the only ones left; or indices (left, right) of rows that are added in place, left += right.
    """
    steps: list = []
    starts = np.arange(len(closed))
    places = starts
    for level in np.unique(gaps[:-1][~closed]):
        own = gaps[starts]
        after = np.append(own[1:], gaps[-1])
        complete = (own == level) & ~closed[starts] & (np.roll(own, 1) > level) & (after > level)
        right = np.flatnonzero(complete)
        if not len(right):
            continue
        starts = np.delete(starts, right)
        if 2 * len(right) == len(places) == places[-1] + 1:  # all rows are added in pairs
            steps.append(len(right))
            places = np.arange(len(starts))
        else:
            steps.append((_index(places[right - 1]), _index(places[right])))
            places = np.delete(places, right)
    return steps, places, starts


def _index(rows: np.ndarray):
    """Return equidistant ``rows`` as a slice, so that indexing returns a view, otherwise as they are."""
    distance = rows[1] - rows[0] if len(rows) > 1 else 1
    if (np.diff(rows) == distance).all():
        return slice(rows[0], rows[-1] + 1, distance)
    return rows


def plan_one_by_one(gaps: np.ndarray, closed: np.ndarray) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Plan the same additions one by one, with as few intermediate values as possible.

    Returns:
        Triples (out, left, right), and the final values. A value of at least 0 is a row; -1, -2, ... are
        intermediate values.
    """
    adds, stack = [], []
    for row in range(len(closed)):
        stack.append((row, row))
        while len(stack) > 1:
            (before, left), (start, right) = stack[-2:]
            if closed[start] or gaps[start] >= min(gaps[before], gaps[row + 1]):
                break
            stack.pop()
            adds.append((-len(stack), left, right))
            stack[-1] = (before, -len(stack))
    return adds, [value for _, value in stack]


@dataclass(frozen=True, eq=False)
class PartialSums:
    """The partial sums of all ranks, and the order in which they are added.

    Attributes:
        counts: number of partial sums per rank.
        gaps: ``[partial sums + 1]``, the gaps between neighbours; the lowest is added first.
    """

    counts: tuple[int, ...]
    gaps: np.ndarray
    _within: dict[tuple[int, int], tuple] = field(default_factory=dict)

    @classmethod
    def of_ranks(cls, nodes: Sequence[int]) -> PartialSums:
        """Return one partial sum per rank, added in rank order, first within each node.

        Args:
            nodes: the first rank of each node, then the number of ranks.
        """
        ranks = nodes[-1]
        gaps = [rank + (rank in nodes) * ranks for rank in range(1, ranks)]
        return cls((1,) * ranks, np.array([2 * ranks, *gaps, 2 * ranks]))

    @classmethod
    def of_groups(cls, gaps: np.ndarray, counts: np.ndarray) -> PartialSums:
        """Return the partial sums that remain when each rank or node has added what it can of its own rows.

        Args:
            gaps: ``[rows + 1]``, see :func:`gaps_of`.
            counts: number of consecutive rows of each rank or node.
        """
        ends = np.cumsum(counts)
        closed = np.zeros(len(gaps) - 1, dtype=bool)
        closed[(ends - counts)[counts > 0]] = True
        starts = plan_by_level(gaps, closed)[-1]
        partials = np.bincount(np.searchsorted(ends, starts, "right"), minlength=len(counts))
        return cls(tuple(partials.tolist()), np.append(gaps[starts], gaps[-1]))

    @property
    def all(self) -> tuple:
        """The plan of all additions, see :func:`plan_one_by_one`."""
        return self.within(0, len(self.counts))

    def within(self, first: int, last: int) -> tuple:
        """Return the plan of all additions among the ranks ``first .. last - 1``."""
        if (first, last) not in self._within:
            start, stop = sum(self.counts[:first]), sum(self.counts[:last])
            adds = plan_one_by_one(self.gaps[start : stop + 1].tolist(), np.arange(stop - start) == 0)
            self._within[first, last] = adds
        return self._within[first, last]

    def between(self, nodes: Sequence[int]) -> PartialSums:
        """Return the partial sums of the nodes; ``nodes`` as for :meth:`of_ranks`."""
        counts = [sum(self.counts[first:last]) for first, last in zip(nodes, nodes[1:])]
        return PartialSums.of_groups(self.gaps, np.array(counts))


class Tree:
    """The sum over a cohort, from the point of view of one rank.

    Args:
        members: numbers of the members, ascending; ``counts``: number of members per rank.

    Attributes:
        sums: the partial sums of all ranks.
    """

    def __init__(self, members: np.ndarray, counts: np.ndarray, rank: int):
        self._gaps = gaps_of(members)
        self.sums = PartialSums.of_groups(self._gaps, counts)
        self._first = int(counts[:rank].sum())
        self._stacks: dict[int, list[int]] = {0: []}
        self._steps: dict[tuple[int, int], tuple] = {}

    def steps(self, members: slice) -> tuple[list, list[tuple[int, int, int]]]:
        """Plan the additions for the rows of this rank's ``members``, after all earlier ones.

        Returns:
            The additions among the rows, see :func:`plan_by_level`. Then, for each resulting sum: its row,
            the number of partial sums stored so far, and how many of them, from the last, it is added to.
        """
        key = members.start, members.stop
        if key not in self._steps:
            self._steps[key] = self._plan(*key)
        return self._steps[key]

    def _plan(self, start: int, stop: int) -> tuple:
        gaps = self._gaps[self._first + start : self._first + stop + 1]
        levels, places, starts = plan_by_level(gaps, np.arange(stop - start) == 0)
        stack, pushed, ends = list(self._stacks[start]), [], [*starts.tolist()[1:], stop - start]
        for place, row, end in zip(places.tolist(), starts.tolist(), ends):
            held = len(stack)
            stack.append(int(gaps[row]))
            while len(stack) > 1 and stack[-1] < min(stack[-2], gaps[end]):
                stack.pop()
            pushed.append((place, held, held + 1 - len(stack)))
        self._stacks[stop] = stack
        return levels, pushed
