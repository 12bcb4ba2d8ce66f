"""FedNest and LFedNest (Tarzanagh et al. 2022) for bilevel problems.

A round has T inner calls (FedInn), which move y towards the minimiser of g at fixed x, a series (FedIHGP) for
p ≈ (∇²_yy g)⁻¹ ∇_y f at the new y, and one outer call (FedOut), in which x descends along the mean of

    h_i(x) = ∇_x f_i(x, y) - ∇²_xy g_i(x, y) p.

With the terms c_0 = ∇_y f and c_{j+1} = c_j - ℓ ∇²_yy g c_j, each a mean over the clients, p = ℓ (c_0 + ... +
c_J) tends to the exact product for ℓ < 2 / L_g. Calls of the forms "svrg" and "sgd" are those of
:class:`~mpifed.algorithms.fednest.FedNest`.

Readings:

* *Step sizes.* They are not divided by the number of local steps. In the paper's theory they are.
* *Series.* The paper draws a random length N' from 0 to J and sets p = (J + 1) ℓ c_{N'}, which is unbiased
  (``truncation = "random"``). The default here is the sum of all terms. The reference implementation FedNest
  computes every client's c_j with its own second derivatives. By default it averages p over its earlier
  iterates too if J > 1, which gives c_j, j ≥ 1, the weight 1 / j.
* *Samples.* Every evaluation has a separate sample, except that a corrected local step evaluates the same
  samples at both points.
* *LFedNest* (``separate``): every client computes a series from its own functions and takes uncorrected
  local steps, in one phase. Where the clients' second derivatives differ, the mean of these hypergradients is
  not the hypergradient of the mean. The reference implementation computes the series again at every outer
  step.
* *Sets.* The method has no projection; problems with sets are refused.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field

from mpifed.algorithms.fednest import Form, in_sequence
from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record
from mpifed.core.schedules import Rate

__all__ = ["FedNestBilevel", "LFedNestBilevel"]


@hyperparameters
class FedNestBilevel(Algorithm):
    """FedNest: variance-reduced local steps of y, a series for the hypergradient, local steps of x."""

    T: int = Field(ge=1, description="inner calls per round")
    tau: int = Field(ge=1, description="local steps τ per call")
    alpha: Rate = Field(description="step size α of x in a round")
    beta: Rate = Field(description="step size β of y in a round")
    J: int = Field(ge=0, description="last term J of the series for the hypergradient")
    ell: float = Field(gt=0, description="factor ℓ of the series, at most 1 / L for an L-smooth g")
    tau_outer: int | None = Field(
        default=None, ge=1, description="local steps of the outer call; default: tau"
    )
    inner: Form = Field(default="svrg", description="form of the inner calls")
    outer: Form = Field(default="svrg", description="form of the outer call")
    truncation: Literal["sum", "random"] = Field(
        default="sum", description="sum of the series, or one term whose number is random"
    )
    separate: bool = Field(default=False, description="a separate series at every client, as in LFedNest")
    fresh_cohort: bool = Field(default=False, description="sample a new cohort for every call and the series")

    source = "Tarzanagh et al. 2022, FedNest for bilevel problems"
    cites = ("tarzanagh2022fednest",)
    example = {"J": 5, "ell": 0.1}
    family = "bilevel"
    paper_cost = (
        "up and down 2T|y| + (1 + J)|y| + 2|x|; 2T + J + 3 phases; 2 of ∇_y g per inner step, 2 of ∇f and of "
        "products with second derivatives of g per outer step, J products, T + 3 more evaluations"
    )
    steps = "tau"
    calls_per_step = 2
    constrained = False

    def __post_init__(self):
        if self.separate and (self.outer, self.truncation) != ("sgd", "sum"):
            raise ValueError(
                f'separate: expected outer = "sgd" and truncation = "sum", got {self.outer!r} and '
                f"{self.truncation!r}"
            )

    @property
    def shared(self) -> Record:
        q = Record(q="y") if self.inner == "svrg" else Record()
        series = Record() if self.separate else Record(c="y", p="y")
        h = Record(h="x") if self.outer == "svrg" else Record()
        return Record(x="x", y="y") | q | series | h

    @property
    def phases(self) -> tuple[Phase, ...]:
        gather_y = [Phase(self.gather_y, Record(q="y"))] if self.inner == "svrg" else []
        inner = [*gather_y, Phase(self.descend_y, Record(y="y"))]
        if self.separate:
            alone = [Phase(self.descend_alone, Record(x="x"))]
            return in_sequence([*[inner] * self.T, alone], self.fresh_cohort)
        term = Record(term="y")
        series = [Phase(self.begin, term, partial(self.add_term, 0))]
        series += [Phase(self.extend, term, partial(self.add_term, j)) for j in range(1, self.J + 1)]
        gather_x = [Phase(self.gather_x, Record(h="x"))] if self.outer == "svrg" else []
        outer = [*gather_x, Phase(self.descend_x, Record(x="x"))]
        return in_sequence([*[inner] * self.T, series, outer], self.fresh_cohort)

    def gather_y(self, now, shared, client, message, oracle):
        message.q = oracle.lower_grad(shared.x, shared.y, oracle.sample(of="g"))

    def descend_y(self, now, shared, client, message, oracle):
        y = shared.y
        for _ in range(self.tau):
            zeta = oracle.sample(of="g")
            direction = oracle.lower_grad(shared.x, y, zeta)
            if self.inner == "svrg":
                direction = direction - oracle.lower_grad(shared.x, shared.y, zeta) + shared.q
            y = y - self.beta(now.round) * direction
        message.y = y

    def begin(self, now, shared, client, message, oracle):
        message.term = oracle.upper_grad(shared.x, shared.y, oracle.sample(of="f"))[1]

    def extend(self, now, shared, client, message, oracle):
        product = oracle.lower_products(shared.x, shared.y, shared.c, oracle.sample(of="g"))[1]
        message.term = shared.c - self.ell * product

    def add_term(self, j, now, shared, mean):
        shared.c = mean.term
        if self.truncation == "random":
            drawn = int(now.stream("length of the series").uniform().item() * (self.J + 1))
            if j == drawn:
                shared.p = (self.J + 1) * self.ell * mean.term
        elif j == 0:
            shared.p = self.ell * mean.term
        else:
            shared.p = self.ell * mean.term + shared.p

    def gather_x(self, now, shared, client, message, oracle):
        xi, zeta = oracle.sample(of="f"), oracle.sample(of="g")
        message.h = self.hypergradient(oracle, shared.x, shared.y, shared.p, xi, zeta)

    def descend_x(self, now, shared, client, message, oracle):
        x = shared.x
        for _ in range(self.tau_outer or self.tau):
            xi, zeta = oracle.sample(of="f"), oracle.sample(of="g")
            direction = self.hypergradient(oracle, x, shared.y, shared.p, xi, zeta)
            if self.outer == "svrg":
                before = self.hypergradient(oracle, shared.x, shared.y, shared.p, xi, zeta)
                direction = direction - before + shared.h
            x = x - self.alpha(now.round) * direction
        message.x = x

    def descend_alone(self, now, shared, client, message, oracle):
        c = oracle.upper_grad(shared.x, shared.y, oracle.sample(of="f"))[1]
        p = self.ell * c
        for _ in range(self.J):
            c = c - self.ell * oracle.lower_products(shared.x, shared.y, c, oracle.sample(of="g"))[1]
            p = p + self.ell * c
        x = shared.x
        for _ in range(self.tau_outer or self.tau):
            xi, zeta = oracle.sample(of="f"), oracle.sample(of="g")
            x = x - self.alpha(now.round) * self.hypergradient(oracle, x, shared.y, p, xi, zeta)
        message.x = x

    def hypergradient(self, oracle, x, y, p, xi, zeta):
        """Return h_i(x), ``[C, dx]``."""
        return oracle.upper_grad(x, y, xi)[0] - oracle.lower_products(x, y, p, zeta)[0]


@hyperparameters
class LFedNestBilevel(FedNestBilevel):
    """LFedNest: FedNest without corrections, with a separate series at every client."""

    inner: Form = Field(default="sgd", init=False)
    outer: Form = Field(default="sgd", init=False)
    separate: bool = Field(default=True, init=False)

    paper_cost = (
        "up and down T|y| + |x|; T + 1 phases; 1 of ∇_y g per inner step, 1 of ∇f and of products with "
        "second derivatives of g per outer step, 1 of ∇f and J products per round"
    )
