"""The random numbers of a round, for as many clients and samples at once as memory allows.

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


def drawn_at_once(members: int, group: int, samples: int, width: int) -> int:
    """Numbers that :class:`Draws` makes at a time, where each of a round's members is asked for so many
    samples of ``width`` numbers, in groups.
    """
    if group * samples * width > DRAWN:
        samples = max(1, DRAWN // (group * width))
    return min(members, max(group, DRAWN // max(1, samples * width))) * samples * width


class Draws:
    """What is drawn in a round for a rank's clients.

    Args:
        clients: global numbers of this rank's clients.
    """

    def __init__(self, seed: int, clients: np.ndarray):
        self.seed, self.clients = seed, clients
        self._expected: dict[str, int] = {}
        self.turn_to(np.arange(len(clients)))

    def expect(self, kind: str, count: int) -> None:
        """Rounds have so many samples of a kind; without a word, as many as have been asked for."""
        self._expected[kind] = count

    def expected(self, kind: str) -> int:
        return self._expected.get(kind, 1)

    def turn_to(self, members: np.ndarray) -> None:
        """Forget what was drawn, and turn to the clients at local positions ``members``."""
        self.members = members
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
    ) -> list[torch.Tensor]:
        """What ``draw`` makes for ``members[rows]``, ``[C, count, ...]``; of one number each ``[C, ...]``.

        Args:
            key: the stream's purpose, the round, and what else tells draws apart.
            width: numbers of a sample.
            draw: makes tensors ``[members, count, ...]`` of a stream and the members' local positions.
            kind: which samples of a round are counted together.
            parts: whether samples may be drawn apart from earlier ones where they are too many.
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
            stream = Stream(self.seed, key[0], self.clients[places], key[1], count, first)
            held = self._held[key] = _Drawn(rows.start, first, draw(stream, places))
        return held.of(rows, numbers)
