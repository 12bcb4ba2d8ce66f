"""What happens to messages between a client function and the average: compression with error feedback, and
the weighing of changes for unbiased averages.

A model is not compressed as it stands, which would take most of it away. Of a field that is named as one of
``shared``, of the same kind, the server knows that field, and so does a client that has been sent it: the
difference to it is compressed, and the server adds the field again. All other fields are changes or gradients
by themselves. With b the field of ``shared`` or 0, e the client's residual and C the compression, a client's
message m becomes

    sent = C(m - b + e),    e = m - b + e - sent  (with error feedback),    m = b + sent.

Fields that do not travel are left alone, and so are those that the compression sends whole and the start
phases. A client's residuals are a part of its state: one for each phase that is another, which a phase that
repeats goes on with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from mpifed.core.algorithm import Phase, travels
from mpifed.core.compression import Message
from mpifed.core.records import Layout, State, Stored
from mpifed.core.streams import Stream
from mpifed.simulation.settings import SimulationSettings

__all__ = ["MessageCompressor", "plan"]

#: Columns that random numbers are drawn for at once; an even number, since a lane has two.
COLUMNS = 2**12


class _Field(NamedTuple):
    """The places of a sent field in the message, in ``shared`` (``None``: not there) and in the
    residuals; whether it is the change of a record that clients store."""

    name: str
    own: slice
    base: slice | None
    residual: slice
    stored: bool

    @property
    def size(self) -> int:
        return self.own.stop - self.own.start


def plan(
    settings: Message, phases: Sequence[Phase], layouts: Sequence[Layout], shared: Layout
) -> tuple[list[list[_Field]], int]:
    """The fields of each phase's message that travel, and how many numbers a client's residuals are."""
    plans: list[list[_Field]] = []
    width = 0
    for phase, layout in zip(phases, layouts):
        first = phases.index(phase)
        if first < len(plans):
            plans.append(plans[first])
            continue
        fields = []
        for name in travels(layout.record):
            (start, stop), base = layout.span(name), None
            if start == stop:  # of the size of y, where the problem has none
                continue
            if shared.record.fields.get(name) == layout.record.fields[name]:
                base = slice(*shared.span(name))
            left = settings.error_feedback and not settings.compression.whole(stop - start)
            residual = slice(width, width + left * (stop - start))
            fields.append(_Field(name, slice(start, stop), base, residual, name in layout.record.of(Stored)))
            width += left * (stop - start)
        plans.append(fields)
    return plans, width


class MessageCompressor:
    """Changes the messages of a rank's clients as they are sent and received.

    Args:
        clients: global numbers of this rank's clients.
        layouts: of the messages of a round's phases.
        shared: the state that clients read.

    Attributes:
        residuals: what compression has left out of each client's messages, ``[clients, width]``.
    """

    def __init__(
        self,
        config: SimulationSettings,
        clients: np.ndarray,
        layouts: Sequence[Layout],
        shared: State,
    ):
        settings, self._seed, self._clients, self._shared = config.message, config.seed, clients, shared
        self._compression, self._feedback = settings.compression, settings.error_feedback
        self._plans, width = plan(settings, config.algorithm.phases, layouts, shared.layout)
        self.residuals = shared.buffer.new_zeros(len(clients), width)

    def reads(self, phase: int) -> set[str]:
        """The fields of ``shared`` that clients need for the differences of a phase."""
        if self._compression is None:
            return set()
        return {one.name for one in self._plans[phase] if one.base and not self._compression.whole(one.size)}

    def bytes(self, phase: int) -> int | None:
        """Bytes that a client sends in a phase, ``None`` where nothing is compressed."""
        if self._compression is None:
            return None
        item = self.residuals.element_size()
        return sum(self._compression.bytes(one.size, item) for one in self._plans[phase])

    def send(
        self,
        r: int,
        phase: int,
        rows: torch.Tensor,
        places: np.ndarray,
        scales: tuple[float, np.ndarray] | None,
    ) -> None:
        """Put into ``rows`` ``[C, size]`` what the server makes of these messages.

        Args:
            phase: its number in round ``r``, from 0.
            places: the positions of the senders among this rank's clients, ``[C]``.
            scales: what changes are multiplied with, and ``[C]`` what changes of stored records are.
        """
        if self._compression is not None:
            self._compress(r, phase, rows, places)
        if scales is None:
            return
        scale, stored = scales[0], torch.from_numpy(scales[1]).to(rows)[:, None]
        for one in self._plans[phase]:
            if one.stored:
                rows[:, one.own] *= stored
            elif scale != 1:
                base = self._shared.buffer[one.base] if one.base else 0.0
                rows[:, one.own] = base + scale * (rows[:, one.own] - base)

    def _compress(self, r: int, phase: int, rows: torch.Tensor, places: np.ndarray) -> None:
        stream = Stream(self._seed, "rounding", self._clients[places], r, first=phase)
        for one in self._plans[phase]:
            if self._compression.whole(one.size):
                continue
            values, base = rows[:, one.own], self._shared.buffer[one.base] if one.base else None
            change = values if base is None else values - base
            if self._feedback:
                change = change + self.residuals[places, one.residual]
            draws = torch.empty(0)
            if self._compression.random:
                draws = _uniform(stream, one.size).to(rows.device)
            sent = self._compression(change, draws, self._feedback)
            if self._feedback:
                self.residuals[places, one.residual] = change - sent
            values.copy_(sent if base is None else base + sent)


def _uniform(stream: Stream, size: int) -> torch.Tensor:
    """Uniform draws for a field, ``[C, size]``; the memory of drawing is that of some columns."""
    draws = np.empty((len(stream.clients), size))
    for start in range(0, size, COLUMNS):
        stop = min(start + COLUMNS, size)
        draws[:, start:stop] = stream.uniform(stop - start)[:, 0]
    return torch.from_numpy(draws)
