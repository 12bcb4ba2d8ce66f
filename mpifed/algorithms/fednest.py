"""FedNest and LFedNest (Tarzanagh et al. 2022) for minimax problems: alternating calls that update y and x.

The inner problem of the bilevel method is -f, so y ascends. A round has T inner calls (FedInn) at fixed x,
each starting at the y of the previous call, and one outer call (FedOut) at the new y. A call of the form
"svrg" first averages the gradients at its starting point, with which it corrects every local step. A call of
the form "sgd" takes uncorrected local steps.

Readings:

* *Step sizes.* They are not divided by the number of local steps. In the paper's theory they are.
* *Samples.* A corrected local step evaluates one sample at both points. The averaged gradients are computed
  on minibatches.
* *Cohorts.* One cohort is sampled per round, or with ``fresh_cohort`` one per call.
* *Sets.* If the problem has sets, a block is projected after every local step, so its average is in the set.
  The paper has no sets. A constrained saddle point is a fixed point, because the first local step has the
  same direction at all clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record
from mpifed.core.schedules import Rate

__all__ = ["FedNest", "LFedNest", "in_sequence"]

Form = Literal["svrg", "sgd"]


def in_sequence(calls: Sequence[Sequence[Phase]], fresh_cohort: bool) -> tuple[Phase, ...]:
    """Return the phases of successive calls.

    Args:
        fresh_cohort: whether a new cohort is sampled for every call; the first one uses that of the round.
    """
    first, *others = calls
    later = [(replace(call[0], new_cohort=fresh_cohort), *call[1:]) for call in others]
    return tuple(phase for call in (first, *later) for phase in call)


@hyperparameters
class FedNest(Algorithm):
    """FedNest: alternating calls with variance-reduced local steps, starting with y."""

    T: int = Field(ge=1, description="inner calls per round")
    tau: int = Field(ge=1, description="local steps τ per call")
    alpha: Rate = Field(description="step size α of x (descent) in a round")
    beta: Rate = Field(description="step size β of y (ascent) in a round")
    tau_outer: int | None = Field(
        default=None, ge=1, description="local steps of the outer call; default: tau"
    )
    inner: Form = Field(default="svrg", description="form of the inner calls")
    outer: Form = Field(default="svrg", description="form of the outer call")
    fresh_cohort: bool = Field(default=False, description="sample a new cohort for every call")

    source = "Tarzanagh et al. 2022, FedNest"
    cites = ("tarzanagh2022fednest",)
    paper_cost = (
        "up and down 2T|y| + 2|x|; 2T + 2 phases; 2 gradients per step and T + 1 more; "
        "LFedNest: T|y| + |x|; T + 1 phases; 1 gradient per step"
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
        gather_y = [Phase(self.gather_y, Record(q="y"))] if self.inner == "svrg" else []
        gather_x = [Phase(self.gather_x, Record(h="x"))] if self.outer == "svrg" else []
        inner = [*gather_y, Phase(self.ascend, Record(y="y"))]
        outer = [*gather_x, Phase(self.descend, Record(x="x"))]
        return in_sequence([*[inner] * self.T, outer], self.fresh_cohort)

    def gather_y(self, now, shared, client, message, oracle):
        message.q = oracle.grad(shared.x, shared.y, oracle.sample())[1]

    def ascend(self, now, shared, client, message, oracle):
        y = shared.y
        for _ in range(self.tau):
            xi = oracle.sample()
            direction = oracle.grad(shared.x, y, xi)[1]
            if self.inner == "svrg":
                direction = direction - oracle.grad(shared.x, shared.y, xi)[1] + shared.q
            y = oracle.sets.y(y + self.beta(now.round) * direction)
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
            x = oracle.sets.x(x - self.alpha(now.round) * direction)
        message.x = x


@hyperparameters
class LFedNest(FedNest):
    """LFedNest: FedNest without corrections."""

    inner: Form = Field(default="sgd", init=False)
    outer: Form = Field(default="sgd", init=False)
