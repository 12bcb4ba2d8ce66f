"""CDMA-NC, CDMA-ONE and CDMA-ADA (Xie et al. 2023): cross-device minimax optimisation in two phases per
round.

In the *collection* clients send gradients of all their data, whose average is the direction (u, v); in the
*update* they take K steps with it in the form of SVRG. CDMA-NC has no collection and no correction.

The margin names the two phases. Round r is the paper's t = r - 1.

Readings:

* *Whose gradients.* The published code takes the gradient of all of a client's data. They carry no noise and
  no sample. ``large_batch`` takes a minibatch of so many rows instead, with the noise of one sample; CDMA-ADA
  evaluates it at both points.
* *Who updates.* The clients that were sampled in the collection, or with ``fresh_cohort`` others.
* *First round.* CDMA-ADA has no gradient to compare with: u_0, v_0 are the averages alone.
* *Schedules.* CDMA-ADA's two step sizes share one exponent, η_t = η_0 / (t+1)^a.
* *Sets.* Where the problem has sets, both blocks are projected after every local step, which leaves their
  averages in the sets. The paper has none.

A client of CDMA-ADA sends g_t - (1 - α_t) g_{t-1}, so it sends no more than one of CDMA-ONE.
"""

from __future__ import annotations

from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record

__all__ = ["CDMAADA", "CDMANC", "CDMAONE"]

_GRADIENT = Record(u="x", v="y")


@hyperparameters
class CDMANC(Algorithm):
    """CDMA-NC: no collection; K local steps, then the average of the cohort."""

    K: int = Field(ge=1, description="local steps per round")
    eta_x: float = Field(ge=0, description="step size of x (descent)")
    eta_y: float = Field(ge=0, description="step size of y (ascent)")

    source = "Xie et al. 2023, CDMA-NC"
    cites = ("xie2023cdma",)
    paper_cost = "up D; down D; 1 phase; 1 gradient a step"
    steps = "K"
    shared = Record(x="x", y="y")
    message = Record(x="x", y="y")

    def client_round(self, now, shared, client, message, oracle):
        x, y = shared.x, shared.y
        eta_x, eta_y = self.rates(now)
        for _ in range(self.K):
            gx, gy = self.direction(shared, x, y, oracle)
            x, y = oracle.sets.x(x - eta_x * gx), oracle.sets.y(y + eta_y * gy)             # update
        message.x, message.y = x, y

    def rates(self, now) -> tuple[float, float]:
        """The step sizes of x and y in this round."""
        return self.eta_x, self.eta_y

    def direction(self, shared, x, y, oracle):
        """Directions of a local step at (x, y), ``[C, dx]`` and ``[C, dy]``."""
        return oracle.grad(x, y, oracle.sample())


@hyperparameters
class CDMAONE(CDMANC):
    """CDMA-ONE: every step is corrected by the averaged gradients of one collection."""

    large_batch: int | None = Field(
        default=None, ge=1, description="rows of a collected gradient; left out, all data of the client"
    )
    fresh_cohort: bool = Field(default=False, description="draw other clients for the update")

    source = "Xie et al. 2023, CDMA-ONE"
    paper_cost = "up 2D; down 2D; 2 phases; 2 gradients a step and 1 of all data"
    calls_per_step = 2
    shared = Record(x="x", y="y") | _GRADIENT
    collected_fields = _GRADIENT

    @property
    def minibatch_alternative(self) -> str:
        return "" if self.large_batch else "large_batch"

    @property
    def phases(self) -> tuple[Phase, ...]:
        collect = Phase(self.client_collect, self.collected_fields, self.server_collect)
        return collect, Phase(self.client_round, self.message, new_cohort=self.fresh_cohort)

    def client_collect(self, now, shared, client, message, oracle):
        message.u, message.v = oracle.grad(shared.x, shared.y, self.collected(oracle))      # collection

    def server_collect(self, now, shared, mean):
        shared.u, shared.v = mean.u, mean.v

    def collected(self, oracle):
        """The sample whose gradient is collected."""
        return oracle.sample(size=self.large_batch) if self.large_batch else oracle.full_batch

    def direction(self, shared, x, y, oracle):
        xi = oracle.sample()
        (gx, gy), (start_gx, start_gy) = oracle.grad(x, y, xi), oracle.grad(shared.x, shared.y, xi)
        return gx - start_gx + shared.u, gy - start_gy + shared.v


@hyperparameters
class CDMAADA(CDMAONE):
    """CDMA-ADA: (u, v) is a recursive estimate, which a small cohort corrects from round to round."""

    alpha: float = Field(
        default=0.95, gt=0, description="α_0 of the weight α_t = min(1, α_0 / (t+1)^b) of fresh gradients"
    )
    a: float = Field(
        default=1 / 3, ge=0, description="exponent of the step sizes η_t = η_0 / (t+1)^a, t from 0"
    )
    b: float | None = Field(default=None, ge=0, description="exponent of α_t; left out, 2a")

    source = "Xie et al. 2023, CDMA-ADA"
    paper_cost = "up 2D; down 3D (the previous point); 2 phases; 2 gradients a step and 2 of all data"
    shared = Record(x="x", y="y", old_x="x", old_y="y") | _GRADIENT
    collected_fields = Record(du="x", dv="y")

    def rates(self, now) -> tuple[float, float]:
        return self.eta_x / now.round**self.a, self.eta_y / now.round**self.a

    def rest(self, now) -> float:
        """1 - α_t, the weight of the estimate of the round before."""
        return 1 - min(1.0, self.alpha / now.round ** (2 * self.a if self.b is None else self.b))

    def client_collect(self, now, shared, client, message, oracle):
        xi, rest = self.collected(oracle), self.rest(now)
        message.du, message.dv = oracle.grad(shared.x, shared.y, xi)                        # collection
        if now.round > 1:
            old_gx, old_gy = oracle.grad(shared.old_x, shared.old_y, xi)
            message.du -= rest * old_gx
            message.dv -= rest * old_gy

    def server_collect(self, now, shared, mean):
        rest = self.rest(now)  # in the first round u and v are 0
        shared.u, shared.v = mean.du + rest * shared.u, mean.dv + rest * shared.v
        shared.old_x, shared.old_y = shared.x, shared.y
