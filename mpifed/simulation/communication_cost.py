"""What travels: bytes that federated clients would be sent and send, observed; and what the collectives here
carry.

A federated client is sent what its function reads of ``shared`` and the server has written since the client
was last sent it. A member of a cohort smaller than N is sent all that it reads, since others may have been
asked before it. It sends its message. Fields that are ``kept`` do not count. A rank counts for its own
members, so that ranks need not agree on what a function has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mpifed.core.algorithm import Algorithm, refreshed, travels
from mpifed.core.records import Blocks, Layout

__all__ = ["Costs", "Sent", "Traffic", "collectives", "size_of"]


@dataclass
class Costs:
    """Running totals of this rank. ``bytes_*`` is what its federated clients would send and be sent."""

    oracle_calls: int = 0
    phases: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    wire_bytes: int = 0
    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    seconds: float = 0.0


class Sent(NamedTuple):
    """Bytes that one federated client sends and is sent in a phase."""

    up: int
    down: int


class Traffic:
    """Observes what a federated client would be sent.

    Args:
        shared: the layout of the method's ``shared``.
        item: bytes of a number.

    Attributes:
        unsent: the fields that have been written and that clients have not been sent since.
    """

    def __init__(self, shared: Layout, item: int):
        self._layout, self._item = shared, item
        self._counted = set(travels(shared.record))
        self.unsent: set[str] = set()

    def wrote(self, names: Iterable[str]) -> None:
        """The server has written these fields of ``shared``."""
        self.unsent |= self._counted & set(names)

    def phase(self, reads: set[str], message: Layout, everyone: bool) -> Sent:
        """Bytes of a phase in which client functions have read the fields ``reads``.

        Args:
            everyone: all clients take part.
        """
        reads = reads & self._counted
        sent = reads & self.unsent if everyone else reads
        if everyone:
            self.unsent -= sent
        up = size_of(message, travels(message.record))
        return Sent(up * self._item, size_of(self._layout, sent) * self._item)


def size_of(layout: Layout, names: Iterable[str]) -> int:
    """How many numbers the fields ``names`` hold."""
    return sum(stop - start for name in names for start, stop in layout.slots[name])


def collectives(
    method: Algorithm, blocks: Blocks, kinds: Mapping[str, int], item: int
) -> tuple[tuple[int, int], ...]:
    """Bytes of the Allreduce and of the Bcast of each phase of a round, from the method's records alone.

    The Allreduce carries the message and a control value, the Bcast the adaptive matrices, 0 where there are
    none.

    Args:
        blocks, kinds: the problem's variables and its further kinds of fields.
        item: bytes of a number.
    """
    matrix = getattr(method, "matrix", None)
    shared = method.shared.layout(blocks, kinds, matrix)
    return tuple(
        ((phase.message.layout(blocks, kinds).size + 1) * item, size_of(shared, names) * item)
        for phase, names in zip(method.phases, refreshed(method, method.phases))
    )
