"""DRFA (Deng, Kamani & Mahdavi 2020): distributionally robust federated averaging.

The problem is a mixture of the clients' losses, min over x, max over λ of Σ_i λ_i ℓ_i(x), such as
``ClientMixture``. A round has two phases. In the *update*, the clients of a cohort S take τ local steps on
their own losses, without weights; the server averages the new points with the weights λ, and the points after
t' steps, the snapshot. In the *losses*, the clients of a new cohort U evaluate their losses at the snapshot,
from which the server updates λ. The margin names the phases. x is the paper's w.

Readings:

* *Cohorts.* The paper draws S by λ with replacement and averages plainly. Here, as in the reference
  implementation FedTorch, S is drawn uniformly, and the displacement of client i has the weight N λ_i / |S|;
  the expectation is the same. FedTorch's program for several processes replaces |S| by |S| + 1 if client 0,
  which is the server, is not in S; the same applies to U. A cohort that depends on λ is not available.
* *Snapshot.* ``snapshot = "common"``: t' is uniform in 1..τ and the same for all clients, as in the paper.
  ``"client"``: as in FedTorch's program for a single process, every client draws k in 1..τ-1 and takes the
  point before step k. Its program for several processes draws one such k for all clients. A number is a
  fixed t'; 0 is the point at the start of the round. ``snapshot_weights = "uniform"`` averages the points of
  the snapshot plainly, as both programs do.
* *Gradients of losses.* The gradient of f_i(x, λ) = N λ_i ℓ_i(x) at λ_i = 1/N is that of ℓ_i.
* *Sets.* x is projected after every local step and at the server, because the weights of a cohort do not sum
  to 1. λ is projected at the server.
* *Output.* The average of the points x and λ after each round. The analysis in the paper also averages x over
  the local steps and the clients.
* *Other implementations.* FedTorch replaces λ_i ≤ .001 by .001 and multiplies γ by 0.9 per round. DRFA-Prox
  is another method; a regulariser of the problem enters the gradient in λ.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.device import to_device
from mpifed.core.records import Record
from mpifed.core.schedules import Rate

__all__ = ["DRFA"]


@hyperparameters
class DRFA(Algorithm):
    """DRFA: local steps on the clients' losses, averaged with the weights λ; λ ascends at a snapshot of x."""

    tau: int = Field(ge=1, description="local steps τ per round")
    eta: Rate = Field(description="step size η of x")
    gamma: Rate = Field(description="step size γ of λ, the block y, in a round, which takes a step of τγ")
    snapshot: Annotated[int, Field(ge=0)] | Literal["common", "client"] = Field(
        default="common",
        description="local steps t' of the snapshot: drawn for all clients, by each client, or a number",
    )
    snapshot_weights: Literal["lambda", "uniform"] = Field(
        default="lambda", description="weights of the clients in the snapshot"
    )

    needs = {"snapshot_weights": ("a snapshot of a later step", lambda method: method.snapshot != 0)}
    source = "Deng, Kamani & Mahdavi 2020, DRFA"
    cites = ("deng2020drfa",)
    paper_cost = "up 2|x| and 1 number; down 2|x|; 2 phases; 1 gradient per step, and 1 loss per round"
    output = "average"
    mixture = True
    projects = "server"
    steps = "tau"
    shared = Record(x="x", y="y", snapshot="x")

    def __post_init__(self):
        if isinstance(self.snapshot, int) and self.snapshot > self.tau:
            raise ValueError(f"snapshot: expected at most tau = {self.tau} local steps, got {self.snapshot}")
        if self.snapshot == "client" and self.tau == 1:
            raise ValueError("snapshot = 'client' draws a step from 1..tau-1: expected tau >= 2, got 1")

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase(self.client_update, Record(dx="x", ds="x"), self.server_update),
            Phase(self.client_losses, Record(gy="y"), self.server_losses, new_cohort=True),
        )

    def client_update(self, now, shared, client, message, oracle):
        x = snapshot = shared.x
        uniform = torch.full_like(shared.y, 1 / now.clients)
        stop = to_device(self.snapshot_steps(now, oracle), x.device)[:, None]
        for k in range(1, self.tau + 1):
            gradient, _ = oracle.grad(x, uniform, oracle.sample())
            x = oracle.sets.x(x - self.eta(now.step(k)) * gradient)                         # update
            snapshot = torch.where(stop == k, x, snapshot)
        weight = now.clients * shared.y[to_device(oracle.client, x.device)][:, None]
        message.dx = weight * (x - shared.x)
        message.ds = (weight if self.snapshot_weights == "lambda" else 1.0) * (snapshot - shared.x)

    def server_update(self, now, shared, mean):
        shared.snapshot = now.sets.x(shared.x + mean.ds)
        shared.x = now.sets.x(shared.x + mean.dx)                                           # update

    def client_losses(self, now, shared, client, message, oracle):
        _, message.gy = oracle.grad(shared.snapshot, shared.y, oracle.sample())             # losses

    def server_losses(self, now, shared, mean):
        shared.y = now.sets.y(shared.y + self.tau * self.gamma(now.round) * mean.gy)        # losses

    def snapshot_steps(self, now, oracle) -> np.ndarray:
        """Return the number of local steps t' before each client's snapshot, ``[C]``."""
        if self.snapshot == "client":
            return (now.stream("snapshot", oracle.client).uniform()[:, 0] * (self.tau - 1)).astype(np.int64)
        drawn = 1 + int(now.stream("snapshot").uniform().item() * self.tau)
        return np.full(len(oracle.client), drawn if self.snapshot == "common" else self.snapshot)
