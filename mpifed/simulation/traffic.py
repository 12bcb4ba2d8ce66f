"""Bytes of a phase: what federated clients would send and be sent, and what the collectives of this package carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Blocks, Layout

__all__ = ["Traffic", "traffic"]


@dataclass(frozen=True)
class Traffic:
    """Bytes of one phase.

    Attributes:
        up, down: what one federated client would send and be sent.
        allreduce: the buffer of the phase's Allreduce: the message and the control value.
        bcast: the buffer of the coordinator's Bcast, 0 where the phase has none.
    """

    up: int
    down: int
    allreduce: int
    bcast: int


def traffic(
    algorithm: Algorithm, phase: Phase, blocks: Blocks, kinds: Mapping[str, int], item: int
) -> Traffic:
    """The bytes of a phase of ``algorithm``, from its records alone.

    Args:
        blocks, kinds: the problem's variables and its further kinds of fields.
        item: bytes of a number.
    """
    shared, message = algorithm.shared.layout(blocks, kinds), phase.message.layout(blocks, kinds)
    down = _numbers(shared, shared.slots if phase.down is None else phase.down)
    up = _numbers(message, phase.up or message.slots)
    first, last = shared.span(algorithm.coordinated) if phase.coordinate else (0, 0)
    return Traffic(up * item, down * item, (message.size + 1) * item, (last - first) * item)


def _numbers(layout: Layout, names: Iterable[str]) -> int:
    return sum(stop - start for name in names for start, stop in layout.slots[name])
