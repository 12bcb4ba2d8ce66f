"""Local AMSGrad (Chen, Li & Li 2020): adaptive local steps with the same second moment at all clients.

m and v are moving averages of a client's gradients and of their squares; v̂ scales the steps. If each client
had its own v̂, clients with large gradients would have less weight, and the fixed point would not be the
solution. Hence v̂ is the same at all clients and is updated at synchronisations only.

Step t of a client, with K steps per round::

    m ← β_1 m + (1 - β_1) g    v ← β_2 v + (1 - β_2) g²
    if t mod K = 0:  v̂ ← max(v̂, average of v)
    x ← x - η m / √v̂
    if t mod K = 0:  x ← average of x

Readings:

* *Order.* The step of a synchronisation uses the v̂ of the same t, so that the method is AMSGrad for one
  client and K = 1. This requires two phases: v is averaged before the step, points after it. Other
  implementations use the old v̂ in this step.
* *Averaged fields.* Points and v are averaged. Clients keep their own m and v.
* *Start.* m = v = 0 and v̂ = ε, which is also a lower bound of v̂. There is no bias correction.
* *Minimax.* The paper minimises. Here y ascends in the same way, with its own moments.
* *Sets.* If the problem has sets, both blocks are projected after every local step. The paper has no sets.
"""

from __future__ import annotations

import torch
from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record, within_round
from mpifed.core.schedules import Rate

__all__ = ["LocalAMSGrad"]


@hyperparameters
class LocalAMSGrad(Algorithm):
    """Local AMSGrad: K local steps m / √v̂. v is averaged before the last step, points after it."""

    K: int = Field(ge=1, description="local steps per round")
    eta_x: Rate = Field(description="step size of x (descent)")
    eta_y: Rate = Field(description="step size of y (ascent)")
    beta_1: float = Field(default=0.9, ge=0, lt=1, description="decay β_1 of the first moment m")
    beta_2: float = Field(default=0.99, ge=0, lt=1, description="decay β_2 of the second moment v")
    epsilon: float = Field(
        default=0.01, gt=0, description="initial v̂: a step is at most η / √ε times the moment m"
    )

    source = "Chen, Li & Li 2020, Local AMSGrad"
    cites = ("chen2020localamsgrad",)
    paper_cost = "up 2D (point and second moment); down 2D; 2 phases; 1 gradient per step"
    partial_participation = False
    steps = "K"
    shared = Record(x="x", y="y", v_hat=("x", "y"))
    client = Record(m=("x", "y"), v=("x", "y"), point=within_round(("x", "y")))

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase(self.client_moments, Record(v=("x", "y")), self.server_maximum),
            Phase(self.client_step, Record(x="x", y="y"), self.server_points),
        )

    def initialize(self, shared):
        shared.v_hat = self.epsilon, self.epsilon

    def client_moments(self, now, shared, client, message, oracle):
        """Take K - 1 steps with the v̂ of the previous synchronisation, and compute the moments of step K."""
        x, y, m, v = shared.x, shared.y, client.m, client.v
        for k in range(1, self.K + 1):
            gradient = oracle.grad(x, y, oracle.sample())
            m = [self.beta_1 * old + (1 - self.beta_1) * g for old, g in zip(m, gradient)]
            v = [self.beta_2 * old + (1 - self.beta_2) * g**2 for old, g in zip(v, gradient)]
            if k < self.K:
                x, y = self._step(now.step(k), x, y, m, shared, oracle)
        message.v = v
        client.m, client.v, client.point = m, v, (x, y)

    def server_maximum(self, now, shared, mean):
        shared.v_hat = [torch.maximum(old, new) for old, new in zip(shared.v_hat, mean.v)]

    def client_step(self, now, shared, client, message, oracle):
        message.x, message.y = self._step(now.step(self.K), *client.point, client.m, shared, oracle)

    def server_points(self, now, shared, mean):
        shared.x, shared.y = now.sets.x(mean.x), now.sets.y(mean.y)

    def _step(self, t, x, y, m, shared, oracle):
        scale_x, scale_y = (v_hat.sqrt() for v_hat in shared.v_hat)
        return (
            oracle.sets.x(x - self.eta_x(t) * m[0] / scale_x),
            oracle.sets.y(y + self.eta_y(t) * m[1] / scale_y),
        )
