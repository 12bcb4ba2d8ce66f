"""FedDualAvg (Yuan, Zaheer & Reddi 2021) and FeDualEx (Bai & Bullins 2024): local steps in the dual.

Round r = 0, 1, ... and its steps k = 0 .. K-1, from the server's dual μ. A client of FedDualAvg takes::

    w = ∇h*_{r,k}(μ)        μ ← μ - η_c V(w; ξ)

and one of FeDualEx::

    z  = ∇h*_{r,k}(μ)       μ½ = μ - η_c V(z; ξ)
    z½ = ∇h*_{r,k+1}(μ½)    μ  ← μ - η_c V(z½; ξ')

with h_{r,k} = h + (η_s r K + k) η_c φ. Then the server's μ ← μ + η_s (mean of the clients' μ - μ). ``z`` is
the server's primal point, the mirror image of μ with the weight η_s η_c K of φ for each round done.

Readings:

* *Problem.* FedDualAvg is printed for F + φ with V = ∇F; on a variational inequality it is the same text.
* *Signs.* FeDualEx is printed with a dual ς that starts at 0 and is taken from a fixed origin: μ = ς̄ - ς. The
  origin is ∇h of the problem's starting point, as is FedDualAvg's first μ.
* *First mirror map.* Its weight of φ is 0; for an indicator it projects all the same.
* *Samples.* The two operator values of a step of FeDualEx use fresh independent samples.
* *A cohort.* The code of FedDualAvg samples clients, FeDualEx is printed for all of them. Both average the
  duals of the cohort. A round in which no client participates is not one of the rounds r.
* *Output.* FedDualAvg returns its last primal point; its analysis has the average over all steps of the
  mirror images of the clients' mean dual. FeDualEx returns such an average: of the images, at the weight of
  k + 1, of the mean μ½. That adds K duals of every client to the averages made here. A federated server
  would not be sent them, and they are not counted. ``shadow = false`` averages the clients' own points z½
  instead, which is another point where the mirror map is not linear.
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
    eta_c: float = Field(ge=0, description="client step size η_c")
    eta_s: float = Field(default=1.0, ge=0, description="server step size η_s")
    mirror: Mirror = Field(default=Euclidean(), description="the mirror map, of the distance generator h")

    #: ``rounds`` counts those that are done.
    shared = Record(z=not_sent("z"), dual="z", rounds=not_sent("scalar"))
    message = Record(dual="z")

    def begin(self, now, shared, phi):
        return self.mirror.dual(shared.dual, phi) if shared.rounds == 0 else shared.dual

    def image(self, shared, k, dual, phi):
        """The primal point of a dual, with the weight of φ at step ``k`` of the round."""
        return self.mirror(dual, (self.eta_s * float(shared.rounds) * self.K + k) * self.eta_c, phi)

    def server_round(self, now, shared, mean):
        dual = self.begin(now, shared, now.prox)
        shared.dual = dual + self.eta_s * (mean.dual - dual)
        shared.z = self.image(shared, self.eta_s * self.K, shared.dual, now.prox)
        shared.rounds += 1


@hyperparameters
class FedDualAvg(_ServerRate):
    """Federated dual averaging with the problem's φ."""

    source = "Yuan, Zaheer & Reddi 2021"
    cites = ("yuan2021fedualavg",)
    paper_cost = "up D; down D; 1 phase; 1 operator value a step"

    def client_round(self, now, shared, client, message, oracle):
        dual = self.begin(now, shared, oracle.prox)
        for k in range(self.K):
            w = self.image(shared, k, dual, oracle.prox)
            dual = dual - self.eta_c * oracle.operator(w, oracle.sample())
        message.dual = dual


@hyperparameters
class FeDualEx(_ServerRate):
    """Federated dual extrapolation with the problem's φ and a server step size."""

    shadow: bool = Field(
        default=True,
        description="output from the clients' mean duals, as printed; false: from the clients' own points",
    )
    source = "Bai & Bullins 2024"
    cites = ("bai2024composite",)
    paper_cost = "up D; down D; 1 phase; 2 operator values a step"
    calls_per_step = 2
    output = "average"
    averages = {"z": "average"}

    shared = _ServerRate.shared | Record(average=not_sent("z"))

    @property
    def phases(self) -> tuple[Phase, ...]:
        output = Record(halves=not_sent(("z",) * self.K)) if self.shadow else Record(points=not_sent("z"))
        return (Phase(self.client_round, self.message | output, self.server_round),)

    def client_round(self, now, shared, client, message, oracle):
        dual = self.begin(now, shared, oracle.prox)
        halves, points = [], 0.0 * dual
        for k in range(self.K):
            z = self.image(shared, k, dual, oracle.prox)
            half = dual - self.eta_c * oracle.operator(z, oracle.sample())
            z_half = self.image(shared, k + 1, half, oracle.prox)
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
            points = sum(self.image(shared, k, half, now.prox) for k, half in enumerate(mean.halves, start=1))
        else:
            points = mean.points
        shared.average += (points / self.K - shared.average) / (shared.rounds + 1)
        super().server_round(now, shared, mean)
