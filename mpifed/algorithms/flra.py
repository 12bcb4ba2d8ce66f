"""FLRA (Reisizadeh et al. 2020): each client has a separate adversary, which it does not send.

The problem is min over w of the mean of max over ψ_i of f_i(w, ψ_i). The block y of the problem is the ψ_i of
one client, which stores it between rounds. The problem of the paper is ``AffineShift``.

Readings:

* *Local steps.* They are simultaneous, with one sample for both gradients. If the problem has sets, both
  blocks are projected after every step.
* *Cohorts.* Clients that do not participate keep ψ_i. The paper has full participation.
* *Reported y.* Metrics and results use the average of the clients' ψ_i.
"""

from __future__ import annotations

from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm
from mpifed.core.records import Record
from mpifed.core.schedules import Rate

__all__ = ["FLRA"]


@hyperparameters
class FLRA(Algorithm):
    """FLRA: local descent in w and ascent in the client's ψ, then the average of w."""

    tau: int = Field(ge=1, description="local steps τ per round")
    eta_1: Rate = Field(description="step size η_1 of w, the block x (descent)")
    eta_2: Rate = Field(description="step size η_2 of ψ, the block y (ascent); 0 gives FedAvg")

    source = "Reisizadeh et al. 2020, FLRA"
    cites = ("reisizadeh2020flra",)
    paper_cost = "up |x|; down |x|; 1 phase; 1 gradient per step"
    steps = "tau"
    shared = Record(x="x")
    client = Record(y="y")
    message = Record(x="x")

    def client_round(self, now, shared, client, message, oracle):
        w, psi = shared.x, client.y
        for k in range(1, self.tau + 1):
            t = now.step(k)
            gw, gpsi = oracle.grad(w, psi, oracle.sample())
            w, psi = oracle.sets.x(w - self.eta_1(t) * gw), oracle.sets.y(psi + self.eta_2(t) * gpsi)
        message.x, client.y = w, psi
