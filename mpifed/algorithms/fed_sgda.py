"""FedSGDA+ and FedSGDA-M (Wu et al. 2023): a snapshot with server steps, and STORM with averaged estimators.

Readings:

* *FedSGDA+.* Local steps are those of Local-SGDA+. S is a number of rounds, and x̃ is updated before the
  local steps of the paper's rounds t = r - 1 with S | t. Points are projected in every local step and at the
  server; the paper has a set for y only.
* *Weights of FedSGDA-M.* α is the weight of the fresh gradient in u, the estimator of x, and β in v, that of
  y. (In FGDA they are exchanged.)
* *Order of STORM and averaging.* ``stem`` (default): after the last step of a round, clients average the new
  points and the old estimators. Each client then computes its estimators at the averaged point, from the
  averaged estimators and its own point before that step. The limiting error then vanishes with α and β.
  ``after``: clients update their estimators first and average points and estimators, which leaves the client
  drift of Local-SGDA for all α and β.
* *Samples.* The first estimators use sample 0 of round 0. STORM after step k uses sample k - 1 of that step's
  round, even if it is evaluated in the next round.
* *Start.* The first estimators are averaged, or remain local without ``average_start``.
* *Sets.* Points are projected after each step; the paper has no sets for FedSGDA-M.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from mpifed.algorithms.snapshots import gradients, snapshot_of, store_snapshot
from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record
from mpifed.core.schedules import Rate, StormWeight

__all__ = ["FedSGDAM", "FedSGDAPlus"]


@hyperparameters
class FedSGDAPlus(Algorithm):
    """FedSGDA+: Local-SGDA+ with global step sizes and a snapshot that is updated every S rounds."""

    K: int = Field(ge=1, description="local steps per round")
    S: int = Field(ge=1, description="rounds between two snapshots of x")
    eta_x: Rate = Field(description="local step size of x (descent)")
    eta_y: Rate = Field(description="local step size of y (ascent)")
    gamma_x: Rate = Field(default=1.0, description="global step size of x in a round; 1: plain averaging")
    gamma_y: Rate = Field(default=1.0, description="global step size of y in a round; 1: plain averaging")

    source = "Wu et al. 2023, FedSGDA+"
    cites = ("wu2023fedsgdam",)
    paper_cost = "up D; down D, and x̃ after an update; 1 phase; 2 gradients per step, of one block each"
    calls_per_step = 2
    steps = "K"
    shared = Record(x="x", y="y", snapshot="x")
    message = Record(dx="x", dy="y")

    def client_round(self, now, shared, client, message, oracle):
        x, y, snapshot = shared.x, shared.y, snapshot_of(now, shared, self.S)
        for k in range(1, self.K + 1):
            t = now.step(k)
            gx, gy = gradients(oracle, x, y, snapshot, oracle.sample())
            x, y = oracle.sets.x(x - self.eta_x(t) * gx), oracle.sets.y(y + self.eta_y(t) * gy)
        message.dx, message.dy = x - shared.x, y - shared.y

    def server_round(self, now, shared, mean):
        store_snapshot(now, shared, self.S)
        shared.x = now.sets.x(shared.x + self.gamma_x(now.round) * mean.dx)
        shared.y = now.sets.y(shared.y + self.gamma_y(now.round) * mean.dy)


@hyperparameters
class FedSGDAM(Algorithm):
    """FedSGDA-M: local steps along STORM estimators, which are averaged together with the points."""

    Q: int = Field(ge=1, description="local steps per round")
    eta_x: Rate = Field(description="step size of x (descent)")
    eta_y: Rate = Field(description="step size of y (ascent)")
    alpha: StormWeight = Field(default=0.1, description="weight of the fresh gradient in u (x)")
    beta: StormWeight = Field(default=0.1, description="weight of the fresh gradient in v (y)")
    order: Literal["stem", "after"] = Field(
        default="stem", description="average the estimators before or after the STORM update (see Readings)"
    )
    average_start: bool = Field(default=True, description="average the first estimators (see Readings)")

    source = "Wu et al. 2023, FedSGDA-M"
    cites = ("wu2023fedsgdam",)
    paper_cost = "up 2D (points and estimators); down 2D; 1 phase; 2 gradients per step"
    calls_per_step = 2
    partial_participation = False
    steps = "Q"
    shared = Record(x="x", y="y", u="x", v="y")
    message = Record(x="x", y="y", u="x", v="y")

    @property
    def client(self) -> Record:
        """The point before the last step of a round, for ``stem``."""
        return Record(x="x", y="y") if self.order == "stem" else Record()

    @property
    def start(self) -> tuple[Phase, ...]:
        return (Phase(self.client_start, Record(u="x", v="y")),) if self.average_start else ()

    def client_start(self, now, shared, client, message, oracle):
        message.u, message.v = oracle.grad(shared.x, shared.y, oracle.sample(number=0))

    def client_round(self, now, shared, client, message, oracle):
        new, (u, v) = (shared.x, shared.y), self.after_average(now, shared, client, oracle)
        for k in range(1, self.Q + 1):
            t, old = now.step(k), new
            x = oracle.sets.x(torch.sub(old[0], u, alpha=self.eta_x(t)))
            y = oracle.sets.y(torch.add(old[1], v, alpha=self.eta_y(t)))
            new = x, y
            if k < self.Q or self.order == "after":
                u, v = self.storm(t, oracle, oracle.sample(number=k - 1), new, old, u, v)
        message.x, message.y = new
        message.u, message.v = u, v
        if self.order == "stem":
            client.x, client.y = old

    def after_average(self, now, shared, client, oracle):
        """Return the estimators for the first step of a round."""
        if now.round == 1 and not self.average_start:
            return oracle.grad(shared.x, shared.y, oracle.sample(number=0, round=0))
        if now.round == 1 or self.order == "after":
            return shared.u, shared.v
        xi = oracle.sample(number=now.previous_steps - 1, round=now.round - 1)
        new, old = (shared.x, shared.y), (client.x, client.y)
        return self.storm(now.step(0), oracle, xi, new, old, shared.u, shared.v)

    def storm(self, t, oracle, xi, new, old, u, v):
        """Return the estimators after step t, with one sample at the points before and after the step."""
        gx, gy = oracle.grad(*new, xi)
        old_gx, old_gy = oracle.grad(*old, xi)
        u = torch.add(gx, u - old_gx, alpha=1 - self.alpha(t, self.eta_x(t)))
        return u, torch.add(gy, v - old_gy, alpha=1 - self.beta(t, self.eta_y(t)))
