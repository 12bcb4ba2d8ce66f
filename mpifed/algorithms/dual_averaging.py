"""FedDualAvg (Yuan, Zaheer & Reddi 2021) and FeDualEx (Bai & Bullins 2024): local steps in the dual.

In round r = 0, 1, ..., clients take the steps k = 0 .. K-1 from the server's dual μ. FedDualAvg::

    w = ∇h*_{r,k}(μ)        μ ← μ - η_c V(w; ξ)

FeDualEx::

    z  = ∇h*_{r,k}(μ)       μ½ = μ - η_c V(z; ξ)
    z½ = ∇h*_{r,k+1}(μ½)    μ  ← μ - η_c V(z½; ξ')

with h_{r,k} = h + (η_s r K + k) η_c φ. The server then updates μ ← μ + η_s (mean of the clients' μ - μ).
``z`` is the server's primal point ∇h*(μ), in which the weight of φ grows by η_s η_c K per round.

Readings:

* *Problem.* The paper states FedDualAvg for F + φ with V = ∇F; here V can be the operator of a variational
  inequality.
* *Signs.* The paper states FeDualEx with a dual ς that starts at 0 and a fixed origin ς̄: μ = ς̄ - ς. The
  origin is ∇h of the problem's starting point, which is also the first μ of FedDualAvg.
* *First mirror map.* At r = k = 0 the weight of φ is 0. If φ is an indicator function, the map still
  projects.
* *Samples.* The two operator values of a step of FeDualEx use independent samples.
* *Cohorts.* The code of FedDualAvg samples clients; FeDualEx is stated for all clients. Both average the
  duals of the cohort. A round in which no client participates is not counted in r.
* *Output.* FedDualAvg returns its last primal point, although the analysis is for the average, over all
  steps, of the primal points of the clients' mean dual. FeDualEx returns such an average: of the primal
  points of the mean μ½, with the weight of step k + 1. This needs the averages of K duals per round. A
  federated server would not receive them, so they are not counted as communication. ``shadow = false``
  averages the clients' points z½ instead, which differs if the mirror map is not linear.
"""

from __future__ import annotations

from pydantic import Field

from mpifed.algorithms.dual_extrapolation import DualMethod
from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Phase
from mpifed.core.records import Record, not_sent
from mpifed.core.sets import Euclidean, Mirror

__all__ = ["FedDualAvg", "FeDualEx"]


@hyperparameters
class _ServerRate(DualMethod):
    K: int = Field(ge=1, description="local steps per round")
    eta_c: float = Field(ge=0, description="client step size η_c, a number, because φ has the weight k η_c")
    eta_s: float = Field(
        default=1.0, ge=0, description="server step size η_s, a number, because φ has the weight η_s r K η_c"
    )
    mirror: Mirror = Field(default=Euclidean(), description="the mirror map, of the distance generator h")

    shared = Record(z=not_sent("z"), dual="z")
    message = Record(dual="z")

    def primal_point(self, now, k, dual, phi):
        """Return the primal point of a dual, with the weight of φ at step ``k`` of this round."""
        r = now.step(0) / self.K  # rounds before, of K steps each
        return self.mirror(dual, (self.eta_s * r * self.K + k) * self.eta_c, phi)

    def server_step(self, now, shared, mean):
        dual = self.starting_dual(now, shared, now.prox)
        shared.dual = dual + self.eta_s * (mean.dual - dual)
        shared.z = self.primal_point(now, self.eta_s * self.K, shared.dual, now.prox)


@hyperparameters
class FedDualAvg(_ServerRate):
    """Federated dual averaging with the problem's φ."""

    source = "Yuan, Zaheer & Reddi 2021"
    cites = ("yuan2021fedualavg",)
    paper_cost = "up D; down D; 1 phase; 1 operator value per step"
    projects = "server"

    def client_round(self, now, shared, client, message, oracle):
        dual = self.starting_dual(now, shared, oracle.prox)
        for k in range(self.K):
            w = self.primal_point(now, k, dual, oracle.prox)
            dual = dual - self.eta_c * oracle.operator(w, oracle.sample())
        message.dual = dual

    def server_round(self, now, shared, mean):
        self.server_step(now, shared, mean)


@hyperparameters
class FeDualEx(_ServerRate):
    """Federated dual extrapolation with the problem's φ and a server step size."""

    shadow: bool = Field(
        default=True,
        description="compute the output from the clients' mean duals, as in the paper, or from their points",
    )
    source = "Bai & Bullins 2024"
    cites = ("bai2024composite",)
    paper_cost = "up D; down D; 1 phase; 2 operator values per step"
    calls_per_step = 2
    output = "average"
    averages = {"z": "average"}

    shared = _ServerRate.shared | Record(average=not_sent("z"))

    @property
    def phases(self) -> tuple[Phase, ...]:
        output = Record(halves=not_sent(("z",) * self.K)) if self.shadow else Record(points=not_sent("z"))
        return (Phase(self.client_round, self.message | output, self.server_round),)

    def client_round(self, now, shared, client, message, oracle):
        dual = self.starting_dual(now, shared, oracle.prox)
        halves, points = [], 0.0 * dual
        for k in range(self.K):
            z = self.primal_point(now, k, dual, oracle.prox)
            half = dual - self.eta_c * oracle.operator(z, oracle.sample())
            z_half = self.primal_point(now, k + 1, half, oracle.prox)
            dual = dual - self.eta_c * oracle.operator(z_half, oracle.sample())
            halves.append(half)
            points = points + z_half
        message.dual = dual
        if self.shadow:
            message.halves = halves
        else:
            message.points = points

    def server_round(self, now, shared, mean):
        if self.shadow:
            halves = enumerate(mean.halves, start=1)
            points = sum(self.primal_point(now, k, half, now.prox) for k, half in halves)
        else:
            points = mean.points
        shared.average += (points / self.K - shared.average) / (now.step(self.K) / self.K)
        self.server_step(now, shared, mean)
