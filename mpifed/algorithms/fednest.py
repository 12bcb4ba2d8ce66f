"""FedNest and LFedNest (Tarzanagh et al. 2022) for minimax problems: inner calls ascend y, an outer one x.

The inner problem of their bilevel method is -f here, so y ascends. A round is T inner calls (FedInn) at fixed
x, each from the y that the one before has left, then one outer call (FedOut) at the new y. A call in the form
"svrg" first averages the gradients at its start, and corrects every local step by them; in the form "sgd" it
only takes local steps.

Readings:

* *Step sizes.* The steps are not divided by the number of local steps; the theory divides them.
* *Samples.* A local step evaluates one fresh sample at both points. The gathered gradients are of a minibatch
  of the job's size.
* *Cohorts.* One per round, or with ``fresh_cohort`` one for every call.
* *Sets.* Where the problem has sets, a block is projected after every local step, which leaves its average in
  the set. The paper has no sets; a constrained saddle point stays where it is, as the direction of the first
  step is the same for all clients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from mpifed.base.settings import Preset, hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record

__all__ = ["FedNest", "LFedNest"]

Form = Literal["svrg", "sgd"]


@hyperparameters
class FedNest(Algorithm):
    """FedNest: alternating calls with variance-reduced local steps; y first."""

    T: int = Field(ge=1, description="inner calls a round")
    tau: int = Field(ge=1, description="local steps τ of a call")
    alpha: float = Field(ge=0, description="step size α of x (descent)")
    beta: float = Field(ge=0, description="step size β of y (ascent)")
    tau_outer: int | None = Field(
        default=None, ge=1, description="local steps of the outer call; left out, as many as of an inner one"
    )
    inner: Form = Field(default="svrg", description="form of the inner calls")
    outer: Form = Field(default="svrg", description="form of the outer call")
    fresh_cohort: bool = Field(default=False, description="draw another cohort for every call")

    source = "Tarzanagh et al. 2022, FedNest"
    cites = ("tarzanagh2022fednest",)
    paper_cost = (
        "up and down 2T|y| + 2|x|; 2T + 2 phases; 2 gradients a step and T + 1 more; "
        "LFedNest: T|y| + |x|; T + 1 phases; 1 gradient a step"
    )
    steps = "tau"

    @property
    def shared(self) -> Record:
        q = Record(q="y") if self.inner == "svrg" else Record()
        h = Record(h="x") if self.outer == "svrg" else Record()
        return Record(x="x", y="y") | q | h

    @property
    def calls_per_step(self) -> int:
        return 2 if "svrg" in (self.inner, self.outer) else 1

    @property
    def phases(self) -> tuple[Phase, ...]:
        inner = [Phase(self.gather_y, Record(q="y")), Phase(self.ascend, Record(y="y"))]
        outer = [Phase(self.gather_x, Record(h="x")), Phase(self.descend, Record(x="x"))]
        inner, outer = inner[self.inner == "sgd" :], outer[self.outer == "sgd" :]
        if not self.fresh_cohort:
            return (*inner * self.T, *outer)
        again, outer[0] = [replace(inner[0], new_cohort=True), *inner[1:]], replace(outer[0], new_cohort=True)
        return (*inner, *again * (self.T - 1), *outer)

    def gather_y(self, now, shared, client, message, oracle):
        message.q = oracle.grad(shared.x, shared.y, oracle.sample())[1]

    def ascend(self, now, shared, client, message, oracle):
        y = shared.y
        for _ in range(self.tau):
            xi = oracle.sample()
            direction = oracle.grad(shared.x, y, xi)[1]
            if self.inner == "svrg":
                direction = direction - oracle.grad(shared.x, shared.y, xi)[1] + shared.q
            y = oracle.sets.y(y + self.beta * direction)
        message.y = y

    def gather_x(self, now, shared, client, message, oracle):
        message.h = oracle.grad(shared.x, shared.y, oracle.sample())[0]

    def descend(self, now, shared, client, message, oracle):
        x = shared.x
        for _ in range(self.tau_outer or self.tau):
            xi = oracle.sample()
            direction = oracle.grad(x, shared.y, xi)[0]
            if self.outer == "svrg":
                direction = direction - oracle.grad(shared.x, shared.y, xi)[0] + shared.h
            x = oracle.sets.x(x - self.alpha * direction)
        message.x = x


LFedNest = Preset("LFedNest", FedNest, "LFedNest: FedNest without corrections.", inner="sgd", outer="sgd")
