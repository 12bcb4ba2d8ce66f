"""FESS-GDA, FSGDA and Smoothed-GDA (Shen et al. 2024, Algorithms 1 and 2): smoothing by a proximal term.

Line numbers in the margin are those of Algorithm 1 (FESS-GDA; FSGDA without line 15) or Algorithm 2
(Smoothed-GDA). Round r is t = r - 1 in the paper. The simulator samples the clients of line 3 in Algorithm 1
(``participation.cohort``). Clients send the displacement x^{K+1} - x_t, whose average is the bracket in line
13.

Readings:

* *Local steps.* They are those of Local-SGDA. Points are projected in every local step and at the server; the
  paper has a set for y only.
* *Alternating steps.* The papers have simultaneous local steps. With ``alternating`` (Gauss-Seidel), a local
  step of FSGDA and FESS-GDA evaluates y's gradient at the new x, on the sample of x, which takes a second
  evaluation.
* *Smoothing.* The gradient p (x_t - z_t) of the proximal term is applied at the server only, with the weight
  η_xl η_xg K. z moves towards x_{t+1}, and z_0 = x_0.
* *Averages.* The server averages over the sampled clients.
* *Smoothed-GDA.* Updates are simultaneous as in the paper: y uses x_t. With ``alternating``, y uses x_{t+1}
  and the sample of x.
* *Values of p.* The theory uses p = 2ℓ; the experiments use p from {0, .01, .1, 1}.
"""

from __future__ import annotations

from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record
from mpifed.core.schedules import Rate, Weight

__all__ = ["FSGDA", "FESSGDA", "GlobalSteps", "SmoothedGDA"]


@hyperparameters
class GlobalSteps(Algorithm):
    """Base class of methods whose server steps along the average displacement, with global step sizes."""

    K: int = Field(ge=1, description="local steps per round")
    eta_xl: Rate = Field(description="local step size of x (descent)")
    eta_yl: Rate = Field(description="local step size of y (ascent)")
    eta_xg: Rate = Field(default=1.0, description="global step size of x in a round; 1: plain averaging")
    eta_yg: Rate = Field(default=1.0, description="global step size of y in a round; 1: plain averaging")

    paper_cost = "up D; down D; 1 phase; 1 gradient per step"
    steps = "K"
    message = Record(dx="x", dy="y")

    def global_step(self, now, shared, mean):
        shared.x = now.sets.x(shared.x + self.eta_xg(now.round) * mean.dx)
        shared.y = now.sets.y(shared.y + self.eta_yg(now.round) * mean.dy)


@hyperparameters
class _GradientSteps(GlobalSteps):
    """Base class: local steps along stochastic gradients."""

    alternating: bool = Field(
        default=False,
        kw_only=True,
        description="compute y's gradient at the new x in local steps (a second gradient per step)",
    )

    shared = Record(x="x", y="y")

    @property
    def calls_per_step(self) -> int:  # type: ignore[override]
        return 1 + self.alternating

    def client_round(self, now, shared, client, message, oracle):
        x, y = shared.x, shared.y                                                           # line 5
        for k in range(1, self.K + 1):                                                      # line 6
            t, xi = now.step(k), oracle.sample()
            gx, gy = oracle.grad(x, y, xi)
            x = oracle.sets.x(x - self.eta_xl(t) * gx)                                      # lines 7-8
            if self.alternating:
                gy = oracle.grad(x, y, xi)[1]
            y = oracle.sets.y(y + self.eta_yl(t) * gy)
        message.dx, message.dy = x - shared.x, y - shared.y                                 # line 10


@hyperparameters
class FSGDA(_GradientSteps):
    """FSGDA (Yang et al. 2022): Local-SGDA with global step sizes."""

    source = "Yang et al. 2022, FSGDA"
    cites = ("yang2022sagda",)

    def server_round(self, now, shared, mean):
        self.global_step(now, shared, mean)


@hyperparameters
class FESSGDA(_GradientSteps):
    """FESS-GDA: FSGDA with a proximal term (p/2)‖x - z‖² in the server's step, and a smoothing point z."""

    p: float = Field(default=0.0, ge=0, description="smoothing weight p; 0 is FSGDA")
    beta: Weight = Field(default=0.5, description="step size β of the smoothing point z in a round")

    source = "Shen et al. 2024, Algorithm 1"
    cites = ("shen2024fessgda",)
    shared = Record(x="x", y="y", z="x")

    def initialize(self, shared):
        shared.z = shared.x

    def server_round(self, now, shared, mean):
        eta_xg, eta_yg = self.eta_xg(now.round), self.eta_yg(now.round)
        proximal = now.total(self.eta_xl) * eta_xg * self.p * (shared.x - shared.z)
        shared.x = now.sets.x(shared.x + eta_xg * mean.dx - proximal)                       # line 13
        shared.y = now.sets.y(shared.y + eta_yg * mean.dy)                                  # line 14
        shared.z += self.beta(now.round) * (shared.x - shared.z)                            # line 15


@hyperparameters
class SmoothedGDA(Algorithm):
    """Smoothed-GDA: centralised gradient descent ascent on f + (p/2)‖x - z‖², one averaged step per round."""

    eta_x: Rate = Field(description="step size of x (descent)")
    eta_y: Rate = Field(description="step size of y (ascent)")
    p: float = Field(default=0.0, ge=0, description="smoothing weight p; 0 is plain GDA")
    beta: Weight = Field(default=0.5, description="step size β of the smoothing point z")
    alternating: bool = Field(
        default=False, description="compute the gradient of y at the new x (a second phase)"
    )

    source = "Shen et al. 2024, Algorithm 2"
    cites = ("shen2024fessgda", "zhang2020smoothed")
    paper_cost = "central; here up D; down D; 1 phase (2 with alternating); 1 gradient per step"
    partial_participation = False
    projects = "server"
    shared = Record(x="x", y="y", z="x")

    message = Record(gx="x", gy="y")

    @property
    def phases(self) -> tuple[Phase, ...]:
        if self.alternating:
            x = Phase(self.client_x, Record(gx="x"), self.server_x)
            return x, Phase(self.client_y, Record(gy="y"), self.server_y)
        return super().phases

    def initialize(self, shared):
        shared.z = shared.x

    def client_round(self, now, shared, client, message, oracle):
        message.gx, message.gy = oracle.grad(shared.x, shared.y, oracle.sample())

    def server_round(self, now, shared, mean):
        self.server_x(now, shared, mean)
        self.server_y(now, shared, mean)

    def client_x(self, now, shared, client, message, oracle):
        message.gx, _ = oracle.grad(shared.x, shared.y, oracle.sample(number=0))

    def server_x(self, now, shared, mean):
        direction = mean.gx + self.p * (shared.x - shared.z)
        shared.x = now.sets.x(shared.x - self.eta_x(now.round) * direction)                 # line 3
        shared.z += self.beta(now.round) * (shared.x - shared.z)                            # line 5

    def client_y(self, now, shared, client, message, oracle):
        _, message.gy = oracle.grad(shared.x, shared.y, oracle.sample(number=0))  # the same sample as for x

    def server_y(self, now, shared, mean):
        shared.y = now.sets.y(shared.y + self.eta_y(now.round) * mean.gy)                   # line 4
