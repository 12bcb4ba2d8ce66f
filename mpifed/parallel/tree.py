"""The fixed binary tree over the clients' numbers that determines the order of additions in ``exact`` sums.

Node (l, i) covers the clients i 2^l .. (i + 1) 2^l - 1. Its value is the sum of its left and its right child;
a child without members of the cohort is skipped. The *level between* two neighbouring members is that of the
smallest node that covers both. This node adds the two parts of its members before and after the place between
them. A rank evaluates the nodes whose members are all on this rank. Only these partial sums, at most 2 log2
of the number of its clients, are exchanged with other ranks. The order is therefore the same for every
placement.

A plan is computed from ``levels``, ``[rows + 1]``: the level before each row, i.e. between it and the row
before, and the level after the last row. A row is a member, or the sum of neighbouring members.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["PartialSums", "Tree", "max_partial_sums"]

#: The level before the first and after the last member: higher than every node.
TOP = 64


def levels_between(members: np.ndarray) -> np.ndarray:
    """Return the level before each of ``members`` (ascending) and after the last, ``[members + 1]``."""
    levels = np.full(len(members) + 1, TOP)
    levels[1:-1] = np.frexp((members[1:] ^ members[:-1]).astype(np.float64))[1]  # number of bits
    return levels


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


def plan_by_level(levels: np.ndarray, separate: np.ndarray) -> tuple[list, np.ndarray, np.ndarray]:
    """Plan the additions of all complete nodes, level by level.

    Args:
        levels: ``[rows + 1]``.
        separate: ``[rows]``, whether a row must not be added to earlier rows.

    Returns:
        The additions of each level, the final positions of the sums, and the first row of each sum. A level's
        additions are either a number n, if the rows 0 and 1, 2 and 3, ... (n pairs) are added and become the
        rows 0 .. n-1, the only ones left; or indices (left, right) of rows that are added in place,
        left += right.
    """
    steps: list = []
    starts = np.arange(len(separate))
    places = starts
    for level in np.unique(levels[:-1][~separate]):
        before = levels[starts]
        after = np.append(before[1:], levels[-1])
        complete = (before == level) & ~separate[starts] & (np.roll(before, 1) > level) & (after > level)
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


def plan_one_by_one(levels: Sequence[int]) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Plan the additions of all complete nodes one by one, with as few intermediate values as possible.

    Args:
        levels: ``[rows + 1]``; the first row is not added to earlier rows.

    Returns:
        Triples (out, left, right), and the final values. A value of at least 0 is a row; -1, -2, ... are
        intermediate values.
    """
    adds, stack = [], []  # the stack has the level before each value, and the value
    for row, after in enumerate(levels[1:]):
        stack.append((levels[row], row))
        while len(stack) > 1 and stack[-1][0] < min(stack[-2][0], after):
            _, right = stack.pop()
            before, left = stack.pop()
            value = -1 - len(stack)
            adds.append((value, left, right))
            stack.append((before, value))
    return adds, [value for _, value in stack]


class PartialSums:
    """The partial sums of all ranks, and the order in which they are added. Plans are computed once.

    Args:
        counts: number of partial sums per rank.
        levels: ``[partial sums + 1]``.
    """

    def __init__(self, counts: tuple[int, ...], levels: np.ndarray):
        self.counts, self._levels = counts, levels
        self._within: dict[tuple[int, int], tuple] = {}
        self._between: dict[tuple[int, ...], PartialSums] = {}

    @classmethod
    def of_ranks(cls, nodes: Sequence[int]) -> PartialSums:
        """Return one partial sum per rank, added in rank order, first within each node.

        Args:
            nodes: the first rank of each node, then the number of ranks.
        """
        ranks = nodes[-1]
        levels = [rank + (rank in nodes) * ranks for rank in range(1, ranks)]
        return cls((1,) * ranks, np.array([2 * ranks, *levels, 2 * ranks]))

    @classmethod
    def of_groups(cls, levels: np.ndarray, counts: np.ndarray) -> PartialSums:
        """Return the partial sums that remain when each rank or node has added what it can of its own rows.

        Args:
            levels: ``[rows + 1]``.
            counts: number of consecutive rows of each rank or node.
        """
        ends = np.cumsum(counts)
        separate = np.zeros(len(levels) - 1, dtype=bool)
        separate[(ends - counts)[counts > 0]] = True
        starts = plan_by_level(levels, separate)[-1]
        partials = np.bincount(np.searchsorted(ends, starts, "right"), minlength=len(counts))
        return cls(tuple(partials.tolist()), np.append(levels[starts], levels[-1]))

    @property
    def all(self) -> tuple:
        """The plan of all additions, see :func:`plan_one_by_one`."""
        return self.within(0, len(self.counts))

    def within(self, first: int, last: int) -> tuple:
        """Return the plan of all additions among the ranks ``first .. last - 1``."""
        if (first, last) not in self._within:
            start, stop = sum(self.counts[:first]), sum(self.counts[:last])
            self._within[first, last] = plan_one_by_one(self._levels[start : stop + 1].tolist())
        return self._within[first, last]

    def between(self, nodes: tuple[int, ...]) -> PartialSums:
        """Return the partial sums of the nodes; ``nodes`` as for :meth:`of_ranks`."""
        if nodes not in self._between:
            counts = [sum(self.counts[first:last]) for first, last in zip(nodes, nodes[1:])]
            self._between[nodes] = PartialSums.of_groups(self._levels, np.array(counts))
        return self._between[nodes]


class Tree:
    """The sum over a cohort, from the point of view of one rank.

    Args:
        members: numbers of the members, ascending; ``counts``: number of members per rank.

    Attributes:
        sums: the partial sums of all ranks.
    """

    def __init__(self, members: np.ndarray, counts: np.ndarray, rank: int):
        self._levels = levels_between(members)
        self.sums = PartialSums.of_groups(self._levels, counts)
        self._first = int(counts[:rank].sum())
        #: Number of members added so far → the levels before the partial sums that are then stored.
        self._stored: dict[int, list[int]] = {0: []}
        self._steps: dict[tuple[int, int], tuple] = {}

    def steps(self, members: slice) -> tuple[list, list[tuple[int, int, int]]]:
        """Plan the additions for the rows of this rank's ``members``, after all earlier ones.

        Returns:
            The additions among the rows, see :func:`plan_by_level`. Then a triple (row, first, stored) for
            each resulting sum: the partial sums ``first .. stored - 1``, the last of those stored so far, are
            added to it, and it is stored as number ``first``.
        """
        key = members.start, members.stop
        if key not in self._steps:
            self._steps[key] = self._plan(*key)
        return self._steps[key]

    def _plan(self, start: int, stop: int) -> tuple:
        levels = self._levels[self._first + start : self._first + stop + 1]
        additions, places, starts = plan_by_level(levels, np.arange(stop - start) == 0)
        before, sums, ends = list(self._stored[start]), [], [*starts.tolist()[1:], stop - start]
        for place, row, end in zip(places.tolist(), starts.tolist(), ends):
            stored = len(before)
            before.append(int(levels[row]))
            while len(before) > 1 and before[-1] < min(before[-2], levels[end]):
                before.pop()
            sums.append((place, len(before) - 1, stored))
        self._stored[stop] = before
        return additions, sums
