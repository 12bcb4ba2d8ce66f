"""Costs of a run: oracle calls, bytes and seconds here, and the simulated time of a federated system.

**Communication volume** is measured, not declared. A client downloads a field of ``shared`` in a phase if its
client function reads the field and the server has written it since the client last downloaded it. Under
partial participation, clients may have missed the updates of earlier rounds, so a member of a cohort
downloads every field that it reads, once unless the server writes it again. It uploads its message. Fields
declared by ``not_sent`` do not count, and fields declared by ``compressed`` count with the bytes of their
compression. A rank counts for the members that it steps.

**The federated clock** simulates the wall time of rounds for clients behind networks. A phase is one
synchronous round trip: the server sends the fields to all members of the cohort, each member evaluates
gradients and sends its message, and the server continues when all messages have arrived. One attempt of a
member takes ::

    down / bandwidth_down + slowness * jitter * calls / gradients_per_second + up / bandwidth_up + 2 * latency

with the lognormal factors slowness = exp(stragglers Z_client), sampled once per client, and
jitter = exp(jitter Z_client,round,phase), both with median 1. An attempt is lost with probability
``clock.dropout``, independently of all others; the server repeats a lost attempt after ``timeout`` seconds. A
phase takes as long as its slowest member, plus ``server_seconds``. If a client drops out of a round
(``participation.dropout``), the server waits for ``timeout`` seconds.

The clock changes no iterate, cohort or message. Random numbers are addressed by client, round and phase, so
the simulated times are the same for every number of ranks and in resumed runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mpifed.core.algorithm import Algorithm, communicated_fields, constant_matrices
from mpifed.core.records import Compressed, Layout
from mpifed.core.streams import Stream
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.options import Clock

__all__ = ["Costs", "FederatedClock", "Traffic", "Volume", "member_seconds"]


@dataclass
class Costs:
    """Running totals of this rank.

    Attributes:
        bytes_up, bytes_down: bytes that the federated clients on this rank would upload and download.
        wire_bytes: bytes that the collectives of the simulation send.
    """

    oracle_calls: int = 0
    phases: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    wire_bytes: int = 0
    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    seconds: float = 0.0

    def add_seconds(self, seconds: float, communication: float) -> None:
        """Add the time of a round, of which ``communication`` was spent waiting for messages."""
        self.seconds += seconds
        self.communication_seconds += communication
        self.compute_seconds += seconds - communication


class Volume(NamedTuple):
    """Bytes that one federated client uploads and downloads in a phase."""

    up: int
    down: int


class Traffic:
    """Measures the communication volume of the phases.

    Args:
        method: determines the compressions of compressed fields, and constant matrices, which are not sent.
        shared: layout of the method's ``shared``.
        itemsize: bytes per element.

    Attributes:
        unsent: fields of ``shared`` that the server has written since all clients last downloaded them.
    """

    def __init__(self, method: Algorithm, shared: Layout, itemsize: int):
        self._method, self._layout, self._itemsize = method, shared, itemsize
        self._communicated = set(communicated_fields(shared.record)) - set(constant_matrices(method))
        self.unsent: set[str] = set()
        self._current: set[str] = set()  # fields whose values the members of the cohort have downloaded

    def begin_cohort(self) -> None:
        """Record that a cohort is sampled: its members have not downloaded anything yet."""
        self._current = set()

    def record_writes(self, names: Iterable[str]) -> None:
        """Record that the server has written these fields of ``shared``."""
        self.unsent |= self._communicated & set(names)
        self._current -= set(names)

    def volume(self, r: int, reads: set[str], message: Layout, full: bool) -> Volume:
        """Return the communication volume of a phase per client, and record its downloads.

        Args:
            r: number of the round; in start phases (round 0), all fields are sent uncompressed.
            reads: fields of ``shared`` that the client function has read.
            message: layout of the message.
            full: whether all clients participate.
        """
        reads = reads & self._communicated
        sent = reads & self.unsent if full else reads - self._current
        if full:
            self.unsent -= sent
        self._current |= reads
        up = self._bytes(r, message, communicated_fields(message.record))
        return Volume(up, self._bytes(r, self._layout, sent))

    def _bytes(self, r: int, layout: Layout, names: Iterable[str]) -> int:
        compressed, total = layout.record.fields_of_type(Compressed) if r else {}, 0
        for name in names:
            rule = getattr(self._method, compressed[name].by) if name in compressed else None
            for start, stop in layout.slots[name]:
                size = stop - start
                total += rule.bytes(size, self._itemsize) if rule and size else size * self._itemsize
        return total


def member_seconds(
    clock: Clock, seed: int, r: int, phase: int, clients: np.ndarray, calls: np.ndarray, volume: Volume
) -> np.ndarray:
    """Return the seconds from the start of a phase until each member's message has arrived, ``[C]``.

    Args:
        r, phase: the round, and the number of the phase in it.
        clients: client numbers of the members, ``[C]``.
        calls: gradient evaluations of each member in the phase, ``[C]``.
        volume: communication volume of the phase.
    """

    def stream(purpose: str, round: int, index: int) -> Stream:
        return Stream(seed, f"clock-{purpose}", clients, round, 1, index)

    compute = np.asarray(calls) / clock.gradients_per_second
    if clock.stragglers:
        compute = compute * np.exp(clock.stragglers * stream("slowness", 0, 0).normal()[:, 0])
    if clock.jitter:
        compute = compute * np.exp(clock.jitter * stream("jitter", r, phase).normal()[:, 0])
    transfer = volume.down / clock.bandwidth_down + volume.up / clock.bandwidth_up + 2 * clock.latency
    seconds = compute + transfer
    if clock.dropout:  # lost attempts before the first success: geometric, by inversion
        lost = np.floor(np.log(stream("dropout", r, phase).uniform()[:, 0]) / np.log(clock.dropout))
        seconds = seconds + lost * clock.timeout
    return seconds


class FederatedClock:
    """Simulates the times of the phases for the clients that a rank steps; :meth:`collect` combines the
    ranks.

    Args:
        clock: speed and network of the clients; ``None`` for times of 0.
    """

    def __init__(self, clock: Clock | None, seed: int):
        self.settings, self.seed = clock, seed
        self._rounds: list[list[float]] = []  # the slowest member of each phase on this rank

    def begin_round(self) -> None:
        """Begin a round, to which the following phases belong."""
        self._rounds.append([])

    def record_phase(
        self, r: int, members: np.ndarray, calls: np.ndarray, volume: Volume, waits: bool = False
    ) -> None:
        """Record the next phase of round ``r``.

        Args:
            members: client numbers of the members that this rank steps, ``[C]``.
            calls: gradient evaluations of each member, ``[C]``.
            volume: communication volume of the phase.
            waits: whether the server waits until the timeout for a client that has dropped out.
        """
        if self.settings is not None:
            phase = len(self._rounds[-1])
            seconds = member_seconds(self.settings, self.seed, r, phase, members, calls, volume)
            timeout = (self.settings.timeout or 0.0) if waits else 0.0
            self._rounds[-1].append(seconds.max(initial=timeout))

    def collect(self, comm: SerialComm) -> np.ndarray:
        """Return the seconds of each round since the last call, ``[R]``, on all ranks. Collective."""
        rounds, self._rounds = self._rounds, []
        if self.settings is None:
            return np.zeros(len(rounds))
        slowest = np.array([seconds for phases in rounds for seconds in phases])
        comm.allreduce_(slowest, "max")
        ends = np.cumsum([0, *(len(phases) for phases in rounds)])
        server = self.settings.server_seconds
        return np.array(
            [sum(slowest[start:end].tolist()) + (end - start) * server for start, end in zip(ends, ends[1:])]
        )
