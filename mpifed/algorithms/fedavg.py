"""FedAvg (McMahan et al. 2017), with the servers of Reddi et al. 2021: Adagrad, Adam and Yogi.

Clients take K local steps. The server takes a step of size η_g along a direction that is computed from the
average Δ of the clients' displacements:

* ``average``: Δ, which for η_g = 1 is plain averaging;
* ``momentum``, FedAvgM (Hsu et al. 2019): m ← β m + Δ;
* ``adagrad`` (Reddi et al. 2021, Algorithm 2): m / (√v + τ) coordinatewise, with m ← β_1 m + (1 - β_1) Δ and
  v ← v + Δ²;
* ``adam``: the same with v ← β_2 v + (1 - β_2) Δ²;
* ``yogi``: the same with v ← v - (1 - β_2) Δ² sign(v - Δ²).

Readings:

* *Bias correction.* There is none, as in the paper. Implementations that divide m and v by 1 - β^t differ in
  the first steps.
* *Start.* m starts at 0, and v at τ², the smallest value that the paper allows.
* *Local optimiser.* The local steps are plain SGD in the papers. Momentum and weight decay are those of
  ``torch.optim.SGD``. Momentum starts at 0 in every round.
* *Sets.* If the problem has a set, every new point is projected, at the clients and at the server. The papers
  have no sets.
"""

from __future__ import annotations

import torch
from pydantic import Field

from mpifed.algorithms.local_optimisers import SGD, LocalOptimiser
from mpifed.algorithms.unequal_steps import local_steps
from mpifed.base.settings import choice, hyperparameters
from mpifed.core.algorithm import Algorithm
from mpifed.core.epochs import LocalSteps
from mpifed.core.records import Record
from mpifed.core.schedules import Rate

__all__ = ["SERVERS", "Adagrad", "Adam", "Average", "FedAvg", "Momentum", "Server", "Yogi"]


@hyperparameters
class Average:
    """Plain averaging: the direction is Δ."""

    moments = ()

    def __call__(self, shared, delta: torch.Tensor) -> torch.Tensor:
        """Update the moments and return the direction ``[d]`` for the average displacement ``[d]``."""
        return delta


@hyperparameters
class Momentum:
    """Momentum on the server: m ← β m + Δ (Hsu et al. 2019)."""

    beta: float = Field(default=0.9, ge=0, lt=1, description="decay β of the momentum")

    moments = ("m",)

    def __call__(self, shared, delta):
        shared.m = self.beta * shared.m + delta
        return shared.m


@hyperparameters
class _Adaptive:
    """Base class: the direction m / (√v + τ), where v is updated by ``second(v, Δ²)``."""

    beta_1: float = Field(default=0.9, ge=0, lt=1, description="decay β_1 of the first moment")
    tau: float = Field(default=1e-3, gt=0, description="offset τ; smaller values are more adaptive")

    moments = ("m", "v")

    def __call__(self, shared, delta):
        shared.m = self.beta_1 * shared.m + (1 - self.beta_1) * delta
        shared.v = self.second(shared.v, delta**2)
        return shared.m / (shared.v.sqrt() + self.tau)


@hyperparameters
class Adagrad(_Adaptive):
    """Adagrad on the server: v ← v + Δ² (Reddi et al. 2021)."""

    beta_1: float = Field(default=0.0, ge=0, lt=1, description="decay β_1 of the first moment")

    def second(self, v, square):
        return v + square


@hyperparameters
class Adam(_Adaptive):
    """Adam on the server: v ← β_2 v + (1 - β_2) Δ², without bias correction (Reddi et al. 2021)."""

    beta_2: float = Field(default=0.99, ge=0, lt=1, description="decay β_2 of the second moment")

    def second(self, v, square):
        return self.beta_2 * v + (1 - self.beta_2) * square


@hyperparameters
class Yogi(_Adaptive):
    """Yogi on the server: v ← v - (1 - β_2) Δ² sign(v - Δ²) (Reddi et al. 2021)."""

    beta_2: float = Field(default=0.99, ge=0, lt=1, description="decay β_2 of the second moment")

    def second(self, v, square):
        return v - (1 - self.beta_2) * square * torch.sign(v - square)


SERVERS = {"average": Average, "momentum": Momentum, "adagrad": Adagrad, "adam": Adam, "yogi": Yogi}

#: A server by name, table or instance.
Server = choice("server", SERVERS)


@hyperparameters
class FedAvg(Algorithm):
    """FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi: local steps, then a server step along their average."""

    K: LocalSteps = Field(description="local steps per round")
    eta: Rate = Field(description="local step size")
    eta_g: Rate = Field(default=1.0, description="server step size in a round; 1: plain averaging")
    server: Server = Field(default=Average(), description="the server's update from the average displacement")
    local: LocalOptimiser = Field(default=SGD(), description="optimiser of the local steps")

    source = "McMahan et al. 2017, FederatedAveraging; Reddi et al. 2021, Algorithms 1 and 2"
    cites = ("mcmahan2017fedavg", "reddi2021fedopt", "hsu2019fedavgm")
    family = "minimisation"
    paper_cost = "up D; down D; 1 phase; 1 gradient per step"
    steps = "K"
    message = Record(dx="x")

    @property
    def shared(self) -> Record:
        return Record(x="x", **dict.fromkeys(self.server.moments, "x"))

    def initialize(self, shared):
        if "v" in self.server.moments:
            shared.v = self.server.tau**2

    def client_round(self, now, shared, client, message, oracle):
        x, v = shared.x, None
        for k, active in local_steps(oracle, self.K):
            d, v = self.local(oracle.grad(x, oracle.sample()), x, v)
            new = oracle.sets.x(x.sub(d, alpha=self.eta(now.step(k))))
            x = new if active is None else torch.where(active, new, x)
        message.dx = x - shared.x

    def server_round(self, now, shared, mean):
        shared.x = now.sets.x(shared.x + self.eta_g(now.round) * self.server(shared, mean.dx))
