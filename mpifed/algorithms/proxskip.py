"""ProxSkip-VIP-FL and ProxSkip-L-SVRGDA-FL (Zhang et al. 2024): local steps with random synchronisations.

In every step, one coin for all clients decides with probability p whether they communicate::

    x̂_i = x_i - γ (g_i - h_i)
    coin = 1:  x ← mean of x̂_i - (γ/p) h_i;  h_i ← h_i + (p/γ)(x - x̂_i);  x_i ← x
    coin = 0:  x_i ← x̂_i

h_i estimates V_i at the solution. On minimisation problems, V_i = ∇f_i and ProxSkip-VIP-FL is Scaffnew
(Mishchenko et al. 2022). The box's x is ``z`` here.

Readings:

* *Rounds.* A round consists of the steps until the coin is 1, so their number is geometric with mean 1/p. It
  is drawn from a stream of the round and is equal for all clients. ``period = "fixed"`` takes 1/p steps in
  every round; then the method is SCAFFOLD, option II, with all clients and a global step size of 1.
* *Message.* Clients send x̂_i and update h_i at the start of the next round. The server computes the mean of
  the h_i, which is 0 without sets and φ.
* *Start.* h_i = 0.
* *Coins of ProxSkip-L-SVRGDA-FL.* Every client replaces its reference point w_i with probability q in every
  step, independently of other clients, by the point before the step. The reference implementation draws one
  coin for all clients.
* *Scale of g_i.* With samples, the reference implementation divides g_i by the number of clients, which
  corresponds to operators V_i / N here.
* *Sets and φ.* The paper's proximal map is the average over the clients, that of the indicator function of
  equal points. With the indicator functions of the set for every client, or φ, the proximal map of the sum
  is the average, followed by the projection or by prox with weight γ/p. Local steps may leave the set.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm
from mpifed.core.records import Record, not_sent

__all__ = ["ProxSkipLSVRGDAFL", "ProxSkipVIPFL"]


@hyperparameters
class _ProxSkip(Algorithm):
    """Base class: the number of local steps of a round, and the control variates h_i."""

    gamma: float = Field(gt=0, description="step size γ, a number, because h_i changes by multiples of p/γ")
    p: float = Field(
        gt=0, le=1, description="probability p of a synchronisation: 1/p steps per round on average"
    )
    period: Literal["random", "fixed"] = Field(
        default="random", description="local steps per round: random with mean 1/p, or always 1/p, an integer"
    )

    example = {"p": 0.25}
    family = "operator"
    partial_participation = False
    composite = True
    projects = "server"
    steps = "mean_steps"
    #: ``h`` is the mean of the h_i.
    shared = Record(z="z", h=not_sent("z"))
    message = Record(z="z")

    def __post_init__(self):
        if self.period == "fixed" and not math.isclose(1 / self.p, self.mean_steps, rel_tol=1e-9):
            raise ValueError(f"p: expected 1/p to be an integer with period = 'fixed', got p = {self.p}")

    @property
    def mean_steps(self) -> int:
        """The mean number of local steps per round, rounded."""
        return round(1 / self.p)

    def length(self, now) -> int:
        """Return the number of local steps of this round, which is equal for all clients."""
        if self.period == "fixed" or self.p == 1:
            return self.mean_steps
        return 1 + int(math.log(now.stream("period").uniform().item()) / math.log1p(-self.p))

    def update_h(self, now, shared, client):
        """Update h_i for the synchronisation at the end of the previous round."""
        if now.round > 1:
            client.h += self.p / self.gamma * (shared.z - client.z)

    def server_round(self, now, shared, mean):
        weight = self.gamma / self.p
        shared.z = now.prox(mean.z - weight * shared.h, weight)
        shared.h += (shared.z - mean.z) / weight


@hyperparameters
class ProxSkipVIPFL(_ProxSkip):
    """ProxSkip-VIP-FL; Scaffnew for minimisation: a random number of steps along V_i - h_i per round."""

    source = "Zhang et al. 2024, ProxSkip-VIP-FL; Mishchenko et al. 2022, Scaffnew"
    cites = ("zhang2024proxskip", "mishchenko2022proxskip")
    paper_cost = "up D; down D; 1 phase; 1 operator value per step, 1/p steps on average"
    client = Record(h="z", z="z")

    def client_round(self, now, shared, client, message, oracle):
        self.update_h(now, shared, client)
        z = shared.z
        for _ in range(self.length(now)):
            z = z - self.gamma * (oracle.operator(z, oracle.sample()) - client.h)
        message.z = client.z = z


@hyperparameters
class ProxSkipLSVRGDAFL(_ProxSkip):
    """ProxSkip-L-SVRGDA-FL: g_i = V_i(x_i; ξ) - V_i(w_i; ξ) + V_i(w_i) with reference points w_i."""

    q: float | None = Field(
        default=None, gt=0, le=1, description="probability of a new reference point per step; default: 1/rows"
    )
    large_batch: int | None = Field(
        default=None, ge=1, description="rows of the minibatch of V_i at a reference point; default: all data"
    )

    source = "Zhang et al. 2024, ProxSkip-L-SVRGDA-FL"
    cites = ("zhang2024proxskip",)
    paper_cost = "up D; down D; 1 phase; 2 operator values per step and q of all data"
    calls_per_step = 2
    client = Record(h="z", z="z", w="z", V="z")

    @property
    def minibatch_alternative(self) -> str:
        return "" if self.large_batch else "large_batch"

    @property
    def rows_alternative(self) -> str:
        return "" if self.q else "q"

    def client_round(self, now, shared, client, message, oracle):
        self.update_h(now, shared, client)
        z, w, V = shared.z, client.w, client.V
        if now.round == 1:
            w, V = z, self.reference_value(z, oracle)
        coins = now.stream("refresh", oracle.client, self.length(now)).uniform()
        for refreshes in (coins < self.probabilities(oracle)).T:
            xi, x = oracle.sample(), z
            z = x - self.gamma * (oracle.operator(x, xi) - oracle.operator(w, xi) + V - client.h)
            for on in oracle.steps(refreshes.astype(int)):  # at most once, for the clients with a new w
                w, V = torch.where(on, x, w), torch.where(on, self.reference_value(x, oracle), V)
        client.w, client.V = w, V
        message.z = client.z = z

    def probabilities(self, oracle) -> np.ndarray:
        """Return q of each client, ``[C, 1]``."""
        return np.broadcast_to(self.q or 1 / oracle.rows, len(oracle.client))[:, None]

    def reference_value(self, x, oracle):
        """Return V_i(x) on all data of each client, or its estimate on a large minibatch, ``[C, d]``."""
        xi = oracle.sample(size=self.large_batch) if self.large_batch else oracle.full_batch
        return oracle.operator(x, xi)
