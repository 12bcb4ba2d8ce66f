"""FedExP (Jhunjhunwala, Wang & Joshi 2023): FedAvg with a server step size that is computed in each round.

With the displacements Δ_i of the cohort S and their average Δ, the server's step size is the larger of 1 and
Σ_S ‖Δ_i‖² / (2 |S| (‖Δ‖² + ε)). It exceeds 1 if the displacements are nearly orthogonal.

Readings:

* *Norm.* It is that of the whole block x.
* *Output.* As in the paper, the output is the mean of the last two points. ``output = "last"`` returns the
  last point.
* *ε.* The reference implementation FedExP uses |S| ε in place of ε (``epsilon_scaled``). In each round, it
  also multiplies the local step size by 0.998 and ε by 0.998², and it clips local gradients at norm 10.
* *Local optimiser.* The paper has plain SGD. Momentum starts at 0 in every round.
* *Weights of clients.* Both averages have the weights of the job (``participation.weights``).
* *Unbiased averages* (``availability.unbiased``) do not make the step unbiased, because it is a product of
  dependent averages, so the combination is refused.
* *Sets.* If the problem has a set, every new point is projected, at the clients and at the server. The paper
  has no sets.
"""

from __future__ import annotations

import torch
from pydantic import Field

from mpifed.algorithms.local_optimisers import SGD, LocalOptimiser
from mpifed.algorithms.unequal_steps import local_steps
from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm
from mpifed.core.epochs import LocalSteps
from mpifed.core.records import Record, not_sent
from mpifed.core.schedules import Rate

__all__ = ["FedExP"]


@hyperparameters
class FedExP(Algorithm):
    """FedExP: local steps, then an extrapolated server step along the average displacement."""

    K: LocalSteps = Field(description="local steps per round")
    eta: Rate = Field(description="local step size")
    epsilon: float = Field(default=1e-3, gt=0, description="offset ε of the server's step size")
    epsilon_scaled: bool = Field(
        default=False, description="multiply ε by the number of participating clients"
    )
    local: LocalOptimiser = Field(default=SGD(), description="optimiser of the local steps")

    source = "Jhunjhunwala, Wang & Joshi 2023, Algorithm 1"
    cites = ("jhunjhunwala2023fedexp",)
    family = "minimisation"
    paper_cost = "up D and 1 scalar; down D; 1 phase; 1 gradient per step"
    output = "average"
    averages = {"x": "last_two"}
    bias = "it is a product of dependent averages: use another method"
    steps = "K"
    shared = Record(x="x", last_two=not_sent("x"))
    message = Record(dx="x", square="scalar")

    def client_round(self, now, shared, client, message, oracle):
        x, v = shared.x, None
        for k, active in local_steps(oracle, self.K):
            d, v = self.local(oracle.grad(x, oracle.sample()), x, v)
            new = oracle.sets.x(x.sub(d, alpha=self.eta(now.step(k))))
            x = new if active is None else torch.where(active, new, x)
        message.dx = x - shared.x
        message.square = message.dx.square().sum(-1, keepdim=True)

    def server_round(self, now, shared, mean):
        epsilon = self.epsilon * (now.cohort if self.epsilon_scaled else 1)
        eta_g = (mean.square / (2 * (mean.dx.square().sum() + epsilon))).clamp(min=1)
        x = now.sets.x(shared.x + eta_g * mean.dx)
        shared.last_two = (shared.x + x) / 2
        shared.x = x
