"""CDMA-NC, CDMA-ONE and CDMA-ADA (Xie et al. 2023): cross-device minimax optimisation.

A round has two phases. In the *collection*, clients send gradients on all their data; the average is (u, v).
In the *update*, clients take K local steps whose gradients are corrected by (u, v) as in SVRG. CDMA-NC has no
collection and no correction. The margin names the phases. Round r is t = r - 1 in the paper.

Readings:

* *Collected gradients.* The reference implementation of CDMA computes gradients on all data of a client,
  which have no noise. ``large_batch`` uses a minibatch with this number of rows and the noise of one sample
  instead. CDMA-ADA evaluates the same minibatch at the current and the previous point.
* *Cohorts.* The update has the cohort of the collection, or a new one with ``fresh_cohort``.
* *First round.* CDMA-ADA has no previous gradient, so u_0 and v_0 are the averaged gradients.
* *Schedules.* Both step sizes of CDMA-ADA have the same exponent, η_t = η_0 / (t+1)^a.
* *Sets.* If the problem has sets, both blocks are projected after every local step, so their averages are in
  the sets. The paper has no sets.

Clients of CDMA-ADA send g_t - (1 - α_t) g_{t-1}, so the messages are no larger than those of CDMA-ONE.
"""

from __future__ import annotations

from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record
from mpifed.core.schedules import Rate

__all__ = ["CDMAADA", "CDMANC", "CDMAONE"]

_GRADIENT = Record(u="x", v="y")


@hyperparameters
class CDMANC(Algorithm):
    """CDMA-NC: K local steps, then the average over the cohort."""

    K: int = Field(ge=1, description="local steps per round")
    eta_x: Rate = Field(description="step size of x (descent)")
    eta_y: Rate = Field(description="step size of y (ascent)")

    source = "Xie et al. 2023, CDMA-NC"
    cites = ("xie2023cdma",)
    paper_cost = "up D; down D; 1 phase; 1 gradient per step"
    steps = "K"
    shared = Record(x="x", y="y")
    message = Record(x="x", y="y")

    def client_round(self, now, shared, client, message, oracle):
        x, y = shared.x, shared.y
        for k in range(1, self.K + 1):
            t = now.step(k)
            gx, gy = oracle.grad(x, y, oracle.sample())
            x = oracle.sets.x(x - self.eta_x(t) * gx)                                       # update
            y = oracle.sets.y(y + self.eta_y(t) * gy)
        message.x, message.y = x, y


@hyperparameters
class _Collecting(Algorithm):
    """Base class: a collection of gradients, then local steps that are corrected by (u, v)."""

    K: int = Field(ge=1, description="local steps per round")
    eta_x: Rate = Field(description="step size of x (descent)")
    eta_y: Rate = Field(description="step size of y (ascent)")
    large_batch: int | None = Field(
        default=None, ge=1, description="rows of the minibatch of a collected gradient; default: all data"
    )
    fresh_cohort: bool = Field(default=False, description="sample a new cohort for the update")

    cites = ("xie2023cdma",)
    calls_per_step = 2
    steps = "K"
    message = Record(x="x", y="y")

    @property
    def minibatch_alternative(self) -> str:
        return "" if self.large_batch else "large_batch"

    @property
    def phases(self) -> tuple[Phase, ...]:
        collect = Phase(self.client_collect, self.collected, self.server_collect)
        return collect, Phase(self.client_round, self.message, new_cohort=self.fresh_cohort)

    def collection_sample(self, oracle):
        """Return the sample whose gradient is collected."""
        return oracle.sample(size=self.large_batch) if self.large_batch else oracle.full_batch

    def client_round(self, now, shared, client, message, oracle):
        x, y = shared.x, shared.y
        for k in range(1, self.K + 1):
            eta_x, eta_y = self.rates(now, k)
            xi = oracle.sample()
            gx, gy = oracle.grad(x, y, xi)
            start_gx, start_gy = oracle.grad(shared.x, shared.y, xi)
            x = oracle.sets.x(x - eta_x * (gx - start_gx + shared.u))                       # update
            y = oracle.sets.y(y + eta_y * (gy - start_gy + shared.v))
        message.x, message.y = x, y


@hyperparameters
class CDMAONE(_Collecting):
    """CDMA-ONE: local steps are corrected by averaged gradients, which are collected once per round."""

    source = "Xie et al. 2023, CDMA-ONE"
    paper_cost = "up 2D; down 2D; 2 phases; 2 gradients per step and 1 of all data"
    shared = Record(x="x", y="y") | _GRADIENT
    collected = _GRADIENT

    def rates(self, now, k) -> tuple[float, float]:
        return self.eta_x(now.step(k)), self.eta_y(now.step(k))

    def client_collect(self, now, shared, client, message, oracle):
        xi = self.collection_sample(oracle)
        message.u, message.v = oracle.grad(shared.x, shared.y, xi)                          # collection

    def server_collect(self, now, shared, mean):
        shared.u, shared.v = mean.u, mean.v


@hyperparameters
class CDMAADA(_Collecting):
    """CDMA-ADA: (u, v) is a recursive (STORM) estimator, updated by the cohort of each round."""

    eta_x: float = Field(ge=0, description="step size η_0 of x, a number because of the schedule η_t")
    eta_y: float = Field(ge=0, description="step size η_0 of y, a number because of the schedule η_t")
    alpha: float = Field(
        default=0.95,
        gt=0,
        description="α_0 of the weight α_t = min(1, α_0 / (t+1)^b) of fresh gradients, a number, because α_t "
        "is a schedule",
    )
    a: float = Field(
        default=1 / 3, ge=0, description="exponent of the step sizes η_t = η_0 / (t+1)^a, t from 0"
    )
    b: float | None = Field(default=None, ge=0, description="exponent of α_t; default: 2a")

    source = "Xie et al. 2023, CDMA-ADA"
    paper_cost = "up 2D; down 3D (the previous point); 2 phases; 2 gradients per step and 2 of all data"
    shared = Record(x="x", y="y", old_x="x", old_y="y") | _GRADIENT
    collected = Record(du="x", dv="y")

    def rates(self, now, k) -> tuple[float, float]:
        return self.eta_x / now.round**self.a, self.eta_y / now.round**self.a

    def old_weight(self, now) -> float:
        """Return 1 - α_t, the weight of the previous round's estimator."""
        b = 2 * self.a if self.b is None else self.b
        return 1 - min(1.0, self.alpha / now.round**b)

    def client_collect(self, now, shared, client, message, oracle):
        xi, old_weight = self.collection_sample(oracle), self.old_weight(now)
        message.du, message.dv = oracle.grad(shared.x, shared.y, xi)                        # collection
        if now.round > 1:
            old_gx, old_gy = oracle.grad(shared.old_x, shared.old_y, xi)
            message.du -= old_weight * old_gx
            message.dv -= old_weight * old_gy

    def server_collect(self, now, shared, mean):
        old_weight = self.old_weight(now)  # u and v are 0 in the first round
        shared.u, shared.v = mean.du + old_weight * shared.u, mean.dv + old_weight * shared.v
        shared.old_x, shared.old_y = shared.x, shared.y
