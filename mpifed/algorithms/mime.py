"""Mime and MimeLite (Karimireddy et al. 2021): local steps of a base optimiser with fixed global statistics.

The statistics s of the base optimiser, such as its momentum, are constant during the local steps. The server
then updates them with c, the average over the cohort of the exact local gradients at the round's starting
point x_t. A local step of MimeLite uses g_i(x_i; ξ); Mime corrects it to g_i(x_i; ξ) - g_i(x_t; ξ) + c.

With the gradient g of a local step, the step size multiplies

* ``momentum``: (1 - β) g + β m, with m ← (1 - β) c + β m at the server; for ``mix = "sum"`` g + β m, with
  m ← c + β m;
* ``rmsprop``: g / (√v + ε) coordinatewise, with v ← (1 - β_2) c² + β_2 v;
* ``adam``: ((1 - β_1) g + β_1 m) / (√v + ε), with m ← (1 - β_1) c + β_1 m and the same v.

Readings:

* *Mix.* ``ema`` is that of the paper. ``sum`` is the momentum of common libraries and of the reference
  implementation FedJAX, with steps that are 1 / (1 - β) times as large.
* *Start.* The paper takes the statistics as an input. Here, they start at 0, so the steps of ``rmsprop`` and
  ``adam`` in the first round are divided by ε. There is no bias correction.
* *Fixed v.* In FedJAX, the v by which a local step of ``rmsprop`` or ``adam`` is divided includes g. In the
  paper and here, it does not.
* *Collected gradients.* ``large_batch`` uses a minibatch with this number of rows and the noise of one sample
  instead of all data of a client.
* *Cohorts.* c is the average over the round's cohort, which also takes the local steps.
* *Sets.* If the problem has a set, every new point is projected, at the clients and at the server. The paper
  has no sets.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from mpifed.base.settings import choice, hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record
from mpifed.core.schedules import Rate

__all__ = ["BASES", "Adam", "Base", "Mime", "MimeLite", "Momentum", "RMSprop"]

_GRADIENT = Record(c="x")


@hyperparameters
class Momentum:
    """SGD with momentum; β = 0 is SGD."""

    beta: float = Field(default=0.9, ge=0, lt=1, description="decay β of the momentum")
    mix: Literal["ema", "sum"] = Field(
        default="ema", description="weight of a new gradient in the momentum: ema: 1 - β, sum: 1"
    )

    statistics = ("m",)

    def __call__(self, shared, g: torch.Tensor) -> torch.Tensor:
        """Return the direction of a step for the gradient ``g`` and fixed statistics."""
        return (1 - self.beta if self.mix == "ema" else 1.0) * g + self.beta * shared.m

    def update(self, shared, c: torch.Tensor):
        """Update the statistics with the gradient ``c``, ``[d]``."""
        shared.m = self(shared, c)


@hyperparameters
class RMSprop:
    """RMSprop: steps are divided by the root of the mean square v of the gradients, coordinatewise."""

    beta_2: float = Field(default=0.99, ge=0, lt=1, description="decay β_2 of the mean square")
    epsilon: float = Field(default=1e-3, gt=0, description="offset ε; smaller values are more adaptive")

    statistics = ("v",)

    def __call__(self, shared, g):
        return g / (shared.v.sqrt() + self.epsilon)

    def update(self, shared, c):
        shared.v = (1 - self.beta_2) * c.square() + self.beta_2 * shared.v


@hyperparameters
class Adam:
    """Adam: RMSprop along the momentum."""

    beta_2: float = Field(default=0.99, ge=0, lt=1, description="decay β_2 of the mean square")
    epsilon: float = Field(default=1e-3, gt=0, description="offset ε; smaller values are more adaptive")
    beta_1: float = Field(default=0.9, ge=0, lt=1, description="decay β_1 of the momentum")

    statistics = ("m", "v")

    def __call__(self, shared, g):
        return self.mixed(shared, g) / (shared.v.sqrt() + self.epsilon)

    def update(self, shared, c):
        shared.m = self.mixed(shared, c)
        shared.v = (1 - self.beta_2) * c.square() + self.beta_2 * shared.v

    def mixed(self, shared, g: torch.Tensor) -> torch.Tensor:
        """Return (1 - β_1) g + β_1 m."""
        return (1 - self.beta_1) * g + self.beta_1 * shared.m


BASES = {"momentum": Momentum, "rmsprop": RMSprop, "adam": Adam}

#: A base optimiser by name, table or instance.
Base = choice("base optimiser", BASES)


@hyperparameters
class _Mime(Algorithm):
    """Base class: local steps of a base optimiser, and the gradient that updates its statistics."""

    K: int = Field(ge=1, description="local steps per round")
    eta: Rate = Field(description="local step size")
    base: Base = Field(default=Momentum(), description="base optimiser of the local steps")
    eta_g: Rate = Field(default=1.0, description="server step size in a round; 1: plain averaging")
    large_batch: int | None = Field(
        default=None, ge=1, description="rows of the minibatch of a collected gradient; default: all data"
    )

    cites = ("karimireddy2021mime",)
    family = "minimisation"
    steps = "K"

    @property
    def point(self) -> Record:
        """The fields x and the statistics of the base optimiser."""
        return Record(x="x", **dict.fromkeys(self.base.statistics, "x"))

    @property
    def minibatch_alternative(self) -> str:
        return "" if self.large_batch else "large_batch"

    def displacement(self, now, shared, gradient, oracle):
        """Return x_i - x_t after K local steps, where ``gradient(x)`` is the gradient of a step."""
        x = shared.x
        for k in range(1, self.K + 1):
            x = oracle.sets.x(x - self.eta(now.step(k)) * self.base(shared, gradient(x)))
        return x - shared.x

    def collected(self, shared, oracle):
        """Return the gradient at x_t on all data or on a large minibatch."""
        xi = oracle.sample(size=self.large_batch) if self.large_batch else oracle.full_batch
        return oracle.grad(shared.x, xi)

    def update(self, now, shared, dx, c):
        """Update x with the average displacement, and the statistics with c."""
        shared.x = now.sets.x(shared.x + self.eta_g(now.round) * dx)
        self.base.update(shared, c)


@hyperparameters
class MimeLite(_Mime):
    """MimeLite: local steps of a base optimiser whose statistics are those of the server."""

    source = "Karimireddy et al. 2021, MimeLite"
    paper_cost = "up 2D; down D and the statistics; 1 phase; 1 gradient per step and 1 of all data"
    message = Record(dx="x") | _GRADIENT

    @property
    def shared(self) -> Record:
        return self.point

    def client_round(self, now, shared, client, message, oracle):
        def gradient(x):
            return oracle.grad(x, oracle.sample())

        message.dx = self.displacement(now, shared, gradient, oracle)
        message.c = self.collected(shared, oracle)

    def server_round(self, now, shared, mean):
        self.update(now, shared, mean.dx, mean.c)


@hyperparameters
class Mime(_Mime):
    """Mime: MimeLite whose local gradients are corrected by the averaged gradient, as in SVRG."""

    source = "Karimireddy et al. 2021, Mime"
    paper_cost = "up 2D; down 2D and the statistics; 2 phases; 2 gradients per step and 1 of all data"
    calls_per_step = 2

    @property
    def shared(self) -> Record:
        return self.point | _GRADIENT

    @property
    def phases(self) -> tuple[Phase, ...]:
        collect = Phase(self.client_collect, _GRADIENT)
        return collect, Phase(self.client_steps, Record(dx="x"), self.server_steps)

    def client_collect(self, now, shared, client, message, oracle):
        message.c = self.collected(shared, oracle)

    def client_steps(self, now, shared, client, message, oracle):
        def gradient(x):
            xi = oracle.sample()
            return oracle.grad(x, xi) - oracle.grad(shared.x, xi) + shared.c

        message.dx = self.displacement(now, shared, gradient, oracle)

    def server_steps(self, now, shared, mean):
        self.update(now, shared, mean.dx, shared.c)
