"""The fixed binary tree over the clients' numbers along which ``exact`` sums.

Node (l, i) covers the clients i 2^l .. (i + 1) 2^l - 1, and its value is that of its left child plus that of
its right one; a child without a member of the cohort is skipped. So the *gap* between two neighbouring
members, the level of the least node that covers both, says when they are added: every node joins what
lies to both sides of its one highest gap. A rank adds the nodes whose members all lie on it, and only those
partial sums, at most 2 log2 of its clients, meet those of other ranks. Nothing of this depends on the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Sums", "Tree", "depth"]

#: The gap before the first and after the last member: above every node.
TOP = 64


def gaps_of(members: np.ndarray) -> np.ndarray:
    """The gap before each of ``members`` (ascending) and the one after the last, ``[members + 1]``."""
    gaps = np.full(len(members) + 1, TOP)
    gaps[1:-1] = np.frexp((members[1:] ^ members[:-1]).astype(np.float64))[1]  # bits of a whole number
    return gaps


def depth(first: int, last: int) -> int:
    """The most partial sums that a rank holds at a time while its clients ``first .. last - 1`` come one
    after another.
    """
    most = 0
    for level in range((first ^ last).bit_length()):
        middle = (first >> level | 1) << level  # at an end beyond it, the sums split there
        if first >> level & 1 or middle > last:
            continue
        beyond = min(last - middle, 2**level - 1)  # of all ends up to it, 2^j - 1 clients make the most sums
        most = max(most, (middle - first).bit_count() + (beyond + 1).bit_length() - 1)
    return most


def contract(gaps: np.ndarray, closed: np.ndarray) -> tuple[list, np.ndarray, np.ndarray]:
    """Add up neighbours as far as the nodes are complete, all additions of a level at once.

    Args:
        gaps: ``[rows + 1]``, as of :func:`gaps_of`.
        closed: ``[rows]``, whether a row may not be added to what lies before it.

    Returns:
        The additions of each level: a number n where rows 0 and 1, 2 and 3, ..., n pairs, are added and
        their sums are all that is left, rows 0 .. n - 1; else indices: rows ``left`` become ``left + right``.
        Then where the sums are in the end, and the rows that they begin with.
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
        if 2 * len(right) == len(places) == places[-1] + 1:  # no two neighbours are added to what lies before
            steps.append(len(right))
            places = np.arange(len(starts))
        else:
            steps.append((_index(places[right - 1]), _index(places[right])))
            places = np.delete(places, right)
    return steps, places, starts


def _index(rows: np.ndarray):
    """``rows`` as a slice where they lie at equal distances: a view, and not a copy."""
    distance = rows[1] - rows[0] if len(rows) > 1 else 1
    if (np.diff(rows) == distance).all():
        return slice(rows[0], rows[-1] + 1, distance)
    return rows


def program(gaps: np.ndarray, closed: np.ndarray) -> tuple[list[tuple[int, int, int]], list[int]]:
    """The additions of :func:`contract` one by one, with as few values between as possible.

    Returns:
        Triples (out, left, right) and the values that are left in the end. A value from 0 on is a row, one
        below is a place for what lies between: -1, -2, ...
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
class Sums:
    """Partial sums and how they are to be added.

    Attributes:
        partials: how many there are on each rank; they stand in the order of the ranks.
        gaps: the levels of the additions, ``[partial sums + 1]``: between two neighbours, the lowest first.
    """

    partials: tuple[int, ...]
    gaps: np.ndarray
    _within: dict[tuple[int, int], tuple] = field(default_factory=dict)

    @classmethod
    def of_ranks(cls, nodes: Sequence[int]) -> Sums:
        """One partial sum a rank, added in the order of the ranks, those of a node first.

        Args:
            nodes: the first rank of each node, and the number of ranks.
        """
        ranks = nodes[-1]
        gaps = [rank + (rank in nodes) * ranks for rank in range(1, ranks)]
        return cls((1,) * ranks, np.array([2 * ranks, *gaps, 2 * ranks]))

    @property
    def all(self) -> tuple:
        """The additions of all, as :func:`program` says."""
        return self.within(0, len(self.partials))

    def within(self, first: int, last: int) -> tuple:
        """The additions among the ranks ``first .. last - 1``, as :func:`program` says."""
        if (first, last) not in self._within:
            start, stop = sum(self.partials[:first]), sum(self.partials[:last])
            adds = program(self.gaps[start : stop + 1].tolist(), np.arange(stop - start) == 0)
            self._within[first, last] = adds
        return self._within[first, last]

    def between(self, nodes: Sequence[int]) -> Sums:
        """The sums that are left when each node has made its own; ``nodes`` as for :meth:`of_ranks`."""
        ends = np.cumsum(self.partials)[np.array(nodes[1:]) - 1]
        closed = np.zeros(ends[-1] + 1, dtype=bool)
        closed[[0, *ends]] = True
        starts = contract(self.gaps, closed[:-1])[-1]
        counts = np.bincount(np.searchsorted(ends, starts, "right"), minlength=len(ends))
        return Sums(tuple(counts.tolist()), np.append(self.gaps[starts], self.gaps[-1]))


class Tree:
    """The sum over one cohort, as one rank sees it.

    Args:
        members: the numbers of the cohort's members, ascending; ``counts``: members on each rank.

    Attributes:
        sums: the partial sums of all ranks.
    """

    def __init__(self, members: np.ndarray, counts: np.ndarray, rank: int):
        self._gaps, ends = gaps_of(members), np.cumsum(counts)
        closed = np.zeros(len(members), dtype=bool)
        closed[(ends - counts)[counts > 0]] = True
        starts = contract(self._gaps, closed)[-1]
        partials = np.bincount(np.searchsorted(ends, starts, "right"), minlength=len(counts))
        self.sums = Sums(tuple(partials.tolist()), np.append(self._gaps[starts], TOP))
        self._first = int(ends[rank] - counts[rank])
        self._stacks: dict[int, list[int]] = {0: []}
        self._steps: dict[tuple[int, int], tuple] = {}

    def steps(self, members: slice) -> tuple[list, list[tuple[int, int, int]]]:
        """What is to be added when the rows of this rank's ``members`` have come, those before them having
        been added.

        Returns:
            The additions among the rows, as :func:`contract`; and for each place that then holds a sum: the
            place, the number of partial sums so far, and how many of these, the last ones, it is added to.
        """
        key = members.start, members.stop
        if key not in self._steps:
            self._steps[key] = self._made(*key)
        return self._steps[key]

    def _made(self, start: int, stop: int) -> tuple:
        gaps = self._gaps[self._first + start : self._first + stop + 1]
        levels, places, starts = contract(gaps, np.arange(stop - start) == 0)
        stack, pushed, ends = list(self._stacks[start]), [], [*starts.tolist()[1:], stop - start]
        for place, row, end in zip(places.tolist(), starts.tolist(), ends):
            held = len(stack)
            stack.append(int(gaps[row]))
            while len(stack) > 1 and stack[-1] < min(stack[-2], gaps[end]):
                stack.pop()
            pushed.append((place, held, held + 1 - len(stack)))
        self._stacks[stop] = stack
        return levels, pushed
