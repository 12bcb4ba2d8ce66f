"""The random numbers of a round, for as many clients and samples at once as memory allows; where that is few,
of the rounds that follow too.

Numbers have addresses, so how many are drawn together changes none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from mpifed.core.streams import Stream

__all__ = ["Draws", "Numbers", "drawn_at_once"]

#: Numbers that are drawn at once, at most, beyond those of one sample of one group.
DRAWN = 2**20

#: Numbers below which a draw takes as long as its calls: as many rounds are drawn at once, where the same
#: clients take part in them.
FEW = 2**14

#: The samples that are wanted of a group: a range of them, or one number a client, ``[C]``.
Numbers = range | np.ndarray


class _Drawn(NamedTuple):
    """What is drawn for the members from ``row`` on and the samples from ``first`` on: tensors ``[members,
    count, ...]``."""

    row: int
    first: int
    values: tuple[torch.Tensor, ...]

    def has(self, rows: slice, low: int, high: int) -> bool:
        """Whether the samples ``low`` to ``high`` of a group are here."""
        members, count = self.values[0].shape[:2]
        inside = self.row <= rows.start and rows.stop <= self.row + members
        return inside and self.first <= low and high < self.first + count

    def of(self, rows: slice, numbers: Numbers) -> list[torch.Tensor]:
        """The samples of a group: a range of them ``[C, count, ...]``, or one a client ``[C, ...]``."""
        group = slice(rows.start - self.row, rows.stop - self.row)
        if isinstance(numbers, range):
            steps = slice(numbers.start - self.first, numbers.stop - self.first)
            return [array[group, steps] for array in self.values]
        members = torch.arange(group.start, group.stop)
        return [array[members, torch.from_numpy(numbers - self.first)] for array in self.values]


def drawn_at_once(members: int, group: int, samples: int, width: int, ahead: bool = False) -> int:
    """Numbers that :class:`Draws` makes at a time, where each of a round's members is asked for so many
    samples of ``width`` numbers, in groups; of several rounds where it draws ``ahead``.
    """
    if group * samples * width > DRAWN:
        samples = max(1, DRAWN // (group * width))
    round = min(members, max(group, DRAWN // max(1, samples * width))) * samples * width
    return round * max(1, FEW // max(1, round)) if ahead else round


class _Ahead(NamedTuple):
    """Draws of the rounds from ``first`` on: tensors ``[rounds, members, count, ...]``."""

    first: int
    values: list[torch.Tensor]


class Draws:
    """What is drawn in a round for a rank's clients.

    Args:
        clients: global numbers of this rank's clients.
    """

    def __init__(self, seed: int, clients: np.ndarray):
        self.seed, self.clients = seed, clients
        self._expected: dict[str, int] = {}
        self.members: Any = None
        self.turn_to(np.arange(len(clients)))

    def expect(self, kind: str, count: int) -> None:
        """Rounds have so many samples of a kind; without a word, as many as have been asked for."""
        self._expected[kind] = count

    def expected(self, kind: str) -> int:
        return self._expected.get(kind, 1)

    def turn_to(self, members: np.ndarray) -> None:
        """Forget what was drawn for a round, and turn to the clients at local positions ``members``."""
        self._ahead: dict[tuple, _Ahead]
        if not np.array_equal(members, self.members):
            self.members, self._ahead = members, {}
        self._held: dict[tuple, _Drawn] = {}

    def of(
        self,
        key: tuple[str, int, Any],
        rows: slice,
        numbers: Numbers,
        width: int,
        draw: Callable[[Stream, np.ndarray], tuple[torch.Tensor, ...]],
        *,
        kind: str = "sample",
        parts: bool = True,
        ahead: bool = False,
    ) -> list[torch.Tensor]:
        """What ``draw`` makes for ``members[rows]``, ``[C, count, ...]``; of one number each ``[C, ...]``.

        Args:
            key: the stream's purpose, the round, and what else tells draws apart.
            width: numbers of a sample.
            draw: makes tensors ``[members, count, ...]`` of a stream and the members' local positions.
            kind: which samples of a round are counted together.
            parts: whether samples may be drawn apart from earlier ones where they are too many.
            ahead: whether ``draw`` takes a stream of several rounds.
        """
        if isinstance(numbers, range):
            low, high = numbers[0], numbers[-1]
        else:
            low, high = int(numbers.min()), int(numbers.max())
        held = self._held.get(key)
        if held is None or not held.has(rows, low, high):
            if high >= self.expected(kind):
                self._expected[kind] = max(2 * self.expected(kind), high + 1)
            first, count, group = 0, self.expected(kind), rows.stop - rows.start
            if parts and group * count * width > DRAWN:
                first, count = low, max(high + 1 - low, min(count - low, DRAWN // (group * width)))
            places = self.members[rows.start : rows.start + max(group, DRAWN // max(1, count * width))]
            rounds = FEW // (len(places) * count * width) if ahead else 1
            values = self._values(key, places, range(first, first + count), rounds, draw)
            held = self._held[key] = _Drawn(rows.start, first, values)
        return held.of(rows, numbers)

    def _values(
        self, key: tuple[str, int, Any], places: np.ndarray, numbers: range, rounds: int, draw: Callable
    ) -> tuple[torch.Tensor, ...]:
        """The samples ``numbers`` of a round, ``[members, count, ...]``, drawn for some rounds at a time."""
        purpose, r, other = key
        if rounds < 2:
            stream = Stream(self.seed, purpose, self.clients[places], r, len(numbers), numbers.start)
            return draw(stream, places)
        name = purpose, other, int(places[0]), len(places), numbers
        ahead = self._ahead.get(name)
        if ahead is None or not 0 <= r - ahead.first < rounds:
            each = np.tile(places, rounds)
            which = np.repeat(np.arange(r, r + rounds), len(places))
            stream = Stream(self.seed, purpose, self.clients[each], which, len(numbers), numbers.start)
            values = [array.unflatten(0, (rounds, len(places))) for array in draw(stream, each)]
            ahead = self._ahead[name] = _Ahead(r, values)
        return tuple(array[r - ahead.first] for array in ahead.values)
