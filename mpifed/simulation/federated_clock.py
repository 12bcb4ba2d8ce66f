"""The federated clock: the wall time that a round would take with clients behind networks of their own.

A phase is one synchronous round trip: the server sends to every member of the cohort, each evaluates its
gradients and sends its message, and the server continues when all messages have arrived. One attempt of one
member takes::

    down / bandwidth_down + slowness * jitter * calls / gradients_per_second + up / bandwidth_up + 2 * latency

with slowness = exp(stragglers Z_client), drawn once a client, and jitter = exp(jitter Z_client,round,phase):
lognormal factors of median 1. An attempt is lost with probability ``dropout``, independently of all others;
the server waits for ``timeout`` seconds and asks again, until an attempt succeeds. A phase takes as long as
its slowest member, and ``server_seconds`` more.

The clock is a gauge: it never changes an iterate, a cohort or a message. A client whose attempts are lost is
late, not absent. One that drops out of a round (``participation.dropout``) is absent; where ``timeout`` is
set, a server that waits for it waits as long. Every draw has an address (client, round, phase), so the clock
is the same for every number of ranks and after a resumption.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field, model_validator

from mpifed.base.settings import Section
from mpifed.base.units import BytesPerSecond, GradientsPerSecond, Seconds
from mpifed.core.streams import Stream
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.communication_cost import Sent

__all__ = ["Clock", "FederatedClock", "member_seconds"]


class Clock(Section):
    """[clock]: speed and network of federated clients, for the simulated wall time of a run."""

    bandwidth_down: BytesPerSecond = Field(gt=0, description="bandwidth from the server to a client")
    bandwidth_up: BytesPerSecond = Field(gt=0, description="bandwidth from a client to the server")
    gradients_per_second: GradientsPerSecond = Field(
        gt=0, description="oracle calls per second of the median client"
    )
    latency: Seconds = Field(
        0.0, ge=0, description="one-way latency of a message; a phase consists of two messages"
    )
    stragglers: float = Field(
        0.0,
        ge=0,
        description="σ of the lognormal factor on a client's computation time, sampled once per client",
    )
    jitter: float = Field(
        0.0,
        ge=0,
        description="σ of the lognormal factor on a client's computation time, sampled in every phase",
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="probability that an attempt of a client in a phase is lost and repeated"
    )
    timeout: Seconds | None = Field(
        None,
        gt=0,
        description="time after which the server repeats an attempt, and considers a silent client as "
        "dropped out; required with dropout",
    )
    server_seconds: Seconds = Field(0.0, ge=0, description="time of the server after each phase")

    @model_validator(mode="after")
    def _timeout_with_dropout(self):
        if self.dropout and self.timeout is None:
            raise ValueError("dropout needs timeout, the seconds after which a lost attempt is repeated")
        return self


def member_seconds(
    clock: Clock, seed: int, r: int, phase: int, clients: np.ndarray, calls: np.ndarray, traffic: Sent
) -> np.ndarray:
    """Seconds from the start of a phase until each member's message has arrived, ``[C]``.

    Args:
        r, phase: the round, and the phase's number in it.
        clients: global numbers of the members, ``[C]``.
        calls: gradients that each evaluates in the phase, ``[C]``.
        traffic: bytes of the phase.
    """

    def stream(purpose: str, round: int, index: int) -> Stream:
        return Stream(seed, f"clock-{purpose}", clients, round, 1, index)

    compute = np.asarray(calls) / clock.gradients_per_second
    if clock.stragglers:
        compute = compute * np.exp(clock.stragglers * stream("slowness", 0, 0).normal()[:, 0])
    if clock.jitter:
        compute = compute * np.exp(clock.jitter * stream("jitter", r, phase).normal()[:, 0])
    transfer = traffic.down / clock.bandwidth_down + traffic.up / clock.bandwidth_up + 2 * clock.latency
    seconds = compute + transfer
    if clock.dropout:  # lost attempts before the first success: geometric, by inversion
        lost = np.floor(np.log(stream("dropout", r, phase).uniform()[:, 0]) / np.log(clock.dropout))
        seconds = seconds + lost * clock.timeout
    return seconds


class FederatedClock:
    """Notes the phases of every round as one rank sees them; the ranks meet only when the history is wanted.

    Args:
        clock: what clients are like, ``None`` for a clock that stands still.
        seed: the run's.
        clients: global numbers of the clients on this rank.
    """

    def __init__(self, clock: Clock | None, seed: int, clients: np.ndarray):
        self.settings, self.seed, self.clients = clock, seed, clients
        self._rounds: list[list[float]] = []  # the slowest member of each phase on this rank

    def begin_round(self) -> None:
        """A round begins; the phases noted from here on are its own."""
        self._rounds.append([])

    def phase(
        self, r: int, members: np.ndarray, calls: np.ndarray, traffic: Sent, waits: bool = False
    ) -> None:
        """Note the next phase of round ``r``.

        Args:
            members: positions of this rank's members among its clients, ``[C]``.
            calls: gradients that each has evaluated, ``[C]``.
            traffic: bytes of the phase.
            waits: for a client that does not answer, ``timeout`` seconds where they are set.
        """
        if self.settings is not None:
            phase = len(self._rounds[-1])
            seconds = member_seconds(
                self.settings, self.seed, r, phase, self.clients[members], calls, traffic
            )
            waited = (self.settings.timeout or 0.0) if waits else 0.0
            self._rounds[-1].append(seconds.max(initial=waited))

    def collect(self, comm: SerialComm) -> np.ndarray:
        """Seconds of each round since the last call, ``[R]``, the same on all ranks. Collective."""
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
