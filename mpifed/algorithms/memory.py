"""FedVARP (Jhunjhunwala et al. 2022) and MIFA (Gu et al. 2021): a memory of the last update of each client.

Clients take the local steps of FedAvg. The update u_i is the displacement x_i^K - x, and in MIFA displacement
/ η_t. With the memory m_i, the last update of client i, and the mean m̄ over all clients::

    FedVARP:  x ← x + η_g [mean over S of (u_i - m_i) + m̄]
    MIFA:     x ← x + η_t m̄, with m̄ after the update of m_i for i in S

These are the estimators of SAGA and SAG over clients. They remove the variance of sampling clients, but not
the clients' drift.

Readings:

* *Memory.* The papers store the m_i at the server. Here clients store them and send the change u_i - m_i, and
  the server stores m̄, which is the same.
* *Start of FedVARP.* m_i = 0, so the first round is a round of FedAvg.
* *Start of MIFA.* The reference implementation MIFA waits until every client has been available, and then all
  clients compute their first update (``initial_memory = "updates"``). With ``"zero"``, m_i = 0 until client i
  participates.
* *Cohorts.* FedVARP expects uniform cohorts and averages over them, so ``availability.unbiased`` is refused.
  MIFA averages over all clients and is valid for any availability.
* *Step size.* η is a schedule over rounds.
* *Minimax.* The papers minimise. If the problem has a block y, y ascends in the same way.
* *Sets.* Problems with sets are refused: an update that contains a projection is not valid at other points.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record, stored
from mpifed.core.schedules import PositiveRate, Rate

__all__ = ["MIFA", "FedVARP"]


@hyperparameters
class _Memory(Algorithm):
    K: int = Field(ge=1, description="local steps per round")
    eta: Rate = Field(description="local step size of both blocks in a round")

    paper_cost = "up D; down D; 1 phase; 1 gradient per step"
    constrained = False
    steps = "K"
    shared = Record(x="x", y="y", memory=("x", "y"))
    client = Record(memory=("x", "y"))

    def rate(self, now) -> float:
        return self.eta(max(1, now.round))

    def client_round(self, now, shared, client, message, oracle):
        x, y, eta = shared.x, shared.y, self.rate(now)
        for _ in range(self.K):
            gx, gy = oracle.grad(x, y, oracle.sample())
            x, y = x - eta * gx, y + eta * gy
        update = self.update(now, x - shared.x, y - shared.y)
        message.change = [new - old for new, old in zip(update, client.memory)]
        client.memory = update

    def update_memory(self, now, shared, mean):
        """Update the mean memory over all clients."""
        shared.memory = [m + now.cohort_weight * change for m, change in zip(shared.memory, mean.change)]


@hyperparameters
class FedVARP(_Memory):
    """FedVARP: the server replaces the updates of absent clients by their last ones, as SAGA."""

    eta_g: Rate = Field(default=1.0, description="step size of the server in a round")

    source = "Jhunjhunwala et al. 2022, FedVARP"
    cites = ("jhunjhunwala2022fedvarp",)
    message = Record(change=("x", "y"))

    def update(self, now, dx, dy):
        return dx, dy

    def server_round(self, now, shared, mean):
        dx, dy = (change + m for change, m in zip(mean.change, shared.memory))
        shared.x += self.eta_g(now.round) * dx
        shared.y += self.eta_g(now.round) * dy
        self.update_memory(now, shared, mean)


@hyperparameters
class MIFA(_Memory):
    """MIFA: the server averages the last updates of all clients, as SAG, for arbitrary availability."""

    eta: PositiveRate = Field(description="local step size of both blocks in a round")
    initial_memory: Literal["updates", "zero"] = Field(
        default="updates", description="memory before the first round: updates of all clients, or 0"
    )

    source = "Gu et al. 2021, MIFA"
    cites = ("gu2021mifa",)
    message = Record(change=stored(("x", "y")))

    @property
    def start(self) -> tuple[Phase, ...]:
        if self.initial_memory == "zero":
            return ()
        return (Phase(self.client_round, self.message, self.update_memory),)

    def update(self, now, dx, dy):
        return dx / self.rate(now), dy / self.rate(now)

    def server_round(self, now, shared, mean):
        self.update_memory(now, shared, mean)
        shared.x += self.rate(now) * shared.memory[0]
        shared.y += self.rate(now) * shared.memory[1]
