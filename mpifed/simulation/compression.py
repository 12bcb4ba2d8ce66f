"""Compression of messages with error feedback, and their scaling for unbiased averages.

Compressing a model itself would lose most of it. If a message field has the name and the type of a field of
``shared``, server and clients both know that field. Clients then compress the difference to it, and the
server adds the field again. All other message fields are changes or gradients, and are compressed directly.
With b the field of ``shared`` or 0, e the client's residual and C the compressor, a message m becomes ::

    sent = C(m - b + e),    e = m - b + e - sent  (with error feedback),    m = b + sent.

Fields that are not communicated, fields that the compressor sends uncompressed and the start phases are
excluded. Residuals are part of a client's state. Each distinct phase has separate residuals; a repeated phase
continues with the same residuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from mpifed.core.algorithm import Phase, communicated_fields
from mpifed.core.compression import Message, compress
from mpifed.core.device import DeviceStream, to_device
from mpifed.core.records import Layout, State, Stored
from mpifed.core.streams import Stream
from mpifed.parallel.placement import Cohort
from mpifed.simulation.client_store import GroupRows
from mpifed.simulation.executor import Stage
from mpifed.simulation.settings import SimulationSettings

__all__ = ["MessageCompressor", "plan"]


class _Field(NamedTuple):
    """A communicated field of a message.

    Attributes:
        message, residual: slices of the field in the message and in the residuals.
        base: slice of the field of ``shared`` with its name and type; ``None`` without such a field.
        stored: whether the field is the change of a field that clients store.
    """

    name: str
    message: slice
    base: slice | None
    residual: slice
    stored: bool

    @property
    def size(self) -> int:
        return self.message.stop - self.message.start


def plan(
    settings: Message, phases: Sequence[Phase], layouts: Sequence[Layout], shared: Layout
) -> tuple[list[list[_Field]], int]:
    """Return the communicated fields of each phase's message, and the number of residuals per client."""
    plans: list[list[_Field]] = []
    width = 0
    for phase, layout in zip(phases, layouts):
        first = phases.index(phase)
        if first < len(plans):
            plans.append(plans[first])
            continue
        fields = []
        for name in communicated_fields(layout.record):
            (start, stop), base = layout.span(name), None
            if start == stop:  # y of a problem without y
                continue
            if shared.record.fields.get(name) == layout.record.fields[name]:
                base = slice(*shared.span(name))
            has_residual = settings.error_feedback and not settings.compression.is_lossless(stop - start)
            residual = slice(width, width + has_residual * (stop - start))
            fields.append(
                _Field(name, slice(start, stop), base, residual, name in layout.record.fields_of_type(Stored))
            )
            width = residual.stop
        plans.append(fields)
    return plans, width


class MessageCompressor:
    """Compresses and scales the messages of a rank's clients in place.

    Args:
        clients: numbers of the clients that this rank may step.
        layouts: layouts of the messages of a round's phases.
        shared: the state that clients read.
        residuals: compression errors not sent yet, ``[clients, width]``, on the device or in host memory.
    """

    def __init__(
        self,
        config: SimulationSettings,
        clients: np.ndarray,
        layouts: Sequence[Layout],
        shared: State,
        residuals: torch.Tensor,
    ):
        settings, self._seed, self._clients, self._shared = config.message, config.seed, clients, shared
        self._compression, self._feedback = settings.compression, settings.error_feedback
        self._plans = plan(settings, config.algorithm.phases, layouts, shared.layout)[0]
        self._residuals, self._copied = residuals, GroupRows.if_needed(residuals, shared.buffer.device)

    def reads(self, phase: int) -> set[str]:
        """Return the fields of ``shared`` that clients need for the differences in a phase."""
        if self._compression is None:
            return set()
        return {
            field.name
            for field in self._plans[phase]
            if field.base and not self._compression.is_lossless(field.size)
        }

    def bytes(self, phase: int) -> int | None:
        """Return the bytes that a client uploads in a phase, ``None`` without compression."""
        if self._compression is None:
            return None
        itemsize = self._residuals.element_size()
        return sum(self._compression.bytes(field.size, itemsize) for field in self._plans[phase])

    def send(
        self, r: int, stage: Stage, cohort: Cohort, members: slice, scales: tuple[float, np.ndarray] | None
    ) -> None:
        """Replace the messages of a group by the values that the server reconstructs from them.

        Args:
            members: the group, a part of ``cohort.local``.
            scales: the factor of changes, and the factors of changes of stored fields, one per member of the
                cohort on this rank; ``None`` if averages are not corrected.
        """
        if self._compression is None and scales is None:
            return
        rows = stage.messages.buffer[: members.stop - members.start]
        if self._compression is not None:
            self._compress(r, stage.number, rows, cohort.local[members])
        if scales is None:
            return
        scale, stored = scales[0], to_device(scales[1][members], rows.device, rows.dtype)[:, None]
        for field in self._plans[stage.number]:
            if field.stored:
                rows[:, field.message] *= stored
            elif scale != 1:
                base = self._shared.buffer[field.base] if field.base else 0.0
                rows[:, field.message] = base + scale * (rows[:, field.message] - base)

    def _compress(self, r: int, phase: int, rows: torch.Tensor, positions: np.ndarray) -> None:
        stream = Stream(self._seed, "rounding", self._clients[positions], r, first=phase)
        if rows.is_cuda:
            stream = DeviceStream(stream, rows.device)
        residuals = self._read_residuals(positions) if self._feedback else None
        for field in self._plans[phase]:
            if self._compression.is_lossless(field.size):
                continue
            values, base = rows[:, field.message], self._shared.buffer[field.base] if field.base else None
            change = values if base is None else values - base
            if residuals is not None:
                change = change + residuals[:, field.residual]
            sent = compress(self._compression, change, stream, self._feedback)
            if residuals is not None:
                residuals[:, field.residual] = change - sent
            values.copy_(sent if base is None else base + sent)
        if residuals is not None and self._copied:
            self._copied.write(positions, residuals)
        elif residuals is not None:
            self._residuals[to_device(positions, residuals.device)] = residuals

    def _read_residuals(self, positions: np.ndarray) -> torch.Tensor:
        if self._copied:
            return self._copied.read(positions)
        return self._residuals[to_device(positions, self._residuals.device)]
