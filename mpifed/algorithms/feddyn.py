"""FedDyn (Acar et al. 2021): local steps on a function whose linear term is updated by every participation.

Client i minimises f_i(x) - ⟨g_i, x⟩ + (α/2) ‖x - x_t‖², where g_i estimates its gradient at the solution. The
server adds -h/α to the average, where h is the mean of the g_i over all clients. At a fixed point, h = 0 and
all clients stay at the minimiser of the mean.

Readings:

* *Local solution.* The paper assumes exact minimisers. K steps along stochastic gradients are those of the
  reference implementation FedDyn, which also clips gradients at norm 10. Its weight decay is that of
  ``local``, which acts on the gradient of the function above; momentum starts at 0 in every round.
* *Sign of h.* In the paper, both g_i and h decrease by α times displacements. In the first round, g_i = h =
  0, and the server moves by (1 + |S| / N) times the average displacement.
* *Weights of clients* are those of the job (``participation.weights``); h changes by the cohort's share of
  the total weight. The reference implementation FedDyn also divides α by the client's relative weight.
* *Unbiased averages* (``availability.unbiased``) do not change the method, because one message serves both x
  and h, and h must be the mean of the g_i. The fixed point does not depend on the probabilities.
* *Sets.* Problems with a set are refused: g_i is a sum of displacements, which a projection would change.
"""

from __future__ import annotations

import torch
from pydantic import Field

from mpifed.algorithms.local_optimisers import SGD, LocalOptimiser
from mpifed.algorithms.unequal_steps import local_steps
from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm
from mpifed.core.epochs import LocalSteps
from mpifed.core.records import Record, stored
from mpifed.core.schedules import Rate

__all__ = ["FedDyn"]


@hyperparameters
class FedDyn(Algorithm):
    """FedDyn: local steps with a proximal term and a stored linear term, then a corrected average."""

    K: LocalSteps = Field(description="local steps per round")
    eta: Rate = Field(description="local step size")
    alpha: float = Field(default=0.1, gt=0, description="weight α of the dynamic regulariser")
    local: LocalOptimiser = Field(default=SGD(), description="optimiser of the local steps")

    source = "Acar et al. 2021, Algorithm 1"
    cites = ("acar2021feddyn",)
    family = "minimisation"
    paper_cost = "up D; down D; 1 phase; 1 gradient per step"
    constrained = False
    steps = "K"
    shared = Record(x="x", h="x")
    client = Record(g="x")
    message = Record(dx=stored("x"))  # -1/α times the change of g

    def client_round(self, now, shared, client, message, oracle):
        x, v = shared.x, None
        for k, active in local_steps(oracle, self.K):
            g = oracle.grad(x, oracle.sample()) - client.g + self.alpha * (x - shared.x)
            d, v = self.local(g, x, v)
            new = x - self.eta(now.step(k)) * d
            x = new if active is None else torch.where(active, new, x)
        message.dx = x - shared.x
        client.g -= self.alpha * message.dx

    def server_round(self, now, shared, mean):
        shared.h -= self.alpha * now.cohort_weight * mean.dx
        shared.x += mean.dx - shared.h / self.alpha
