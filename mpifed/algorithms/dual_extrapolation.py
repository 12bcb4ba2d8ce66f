"""Local dual extrapolation for composite variational inequalities (Wang & Kale, eq. 13).

Step t of a client, with the duals z and x and the primal points u and v::

    u = ∇h*_{t-1}(z)    x = z - η V(u; ξ)
    v = ∇h*_t(x)        z ← z - η V(v; ξ')

h_t = h + t η φ, t counts the steps of all rounds, and h = ½‖·‖², so that ∇h*_t = prox_{tηφ}. u, z and x here
are u_{t-1}, z_{t-1} and x_t of eq. 13. Averages are of duals, which keeps sparsity and rank.

Readings:

* *Start.* The dual z_0 is the problem's starting point, as ∇h is the identity.
* *First mirror map.* At t = 1 the weight of φ is 0. For an indicator φ the map still projects
  (``t0_mirror = "prox"``), or is the identity.
* *Synchronisation.* Both duals are averaged, x before v is made from it: two phases. ``sync_extrapolation =
  false`` averages z only.
* *Output.* The average of v_t over clients and steps.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record, between, kept
from mpifed.core.settings import hyperparameters

__all__ = ["LocalDualExtrapolation"]


@hyperparameters
class LocalDualExtrapolation(Algorithm):
    """Local dual extrapolation with the problem's φ."""

    K: int = Field(ge=1, description="local steps per round")
    eta: float = Field(ge=0, description="step size η")
    sync_extrapolation: bool = Field(
        default=True,
        description="average the dual x before the second call of a synchronising step (a second phase)",
    )
    t0_mirror: Literal["prox", "identity"] = Field(
        default="prox", description="the mirror map of the first step"
    )

    source = "Wang & Kale n.d., eq. 13"
    cites = ("wang_nd_slippax", "bai2024composite")
    family = "operator"
    composite = True
    output = "average"
    averages = {"z": "average"}
    paper_cost = "up 2D; down 2D; 2 phases; 2 operator values a step"
    calls_per_step = 2
    partial_participation = False

    steps = "K"
    #: ``z`` is the primal point v of the last synchronisation, ``dual`` the averaged dual z.
    shared = Record(z=kept("z"), average=kept("z"), dual="z", x="z")
    client = Record(dual=between("z"), v_sum=between("z"))
    message = Record(dual="z", v=kept("z"), v_sum=kept("z"))

    @property
    def phases(self) -> tuple[Phase, ...]:
        if not self.sync_extrapolation:
            return super().phases
        return (
            Phase(self.client_extrapolate, Record(x="z")),
            Phase(self.client_update, self.message, self.server_round),
        )

    def initialize(self, shared):
        shared.dual = shared.z

    def _extrapolate(self, t, z, oracle):
        """The dual x_t from the dual z_{t-1}: the first line of eq. 13, by way of u_{t-1}."""
        u = z if t == 1 and self.t0_mirror == "identity" else oracle.prox(z, (t - 1) * self.eta)
        return z - self.eta * oracle.operator(u, oracle.sample())

    def _update(self, t, z, x, oracle):
        """v_t from the dual x_t, and the dual z_t from z_{t-1}: the second line of eq. 13."""
        v = oracle.prox(x, t * self.eta)
        return v, z - self.eta * oracle.operator(v, oracle.sample())

    def _steps(self, now, number, z, oracle):
        """The last primal point, the dual and the sum of the primal points after ``number`` steps."""
        v, v_sum = z, 0.0 * z
        for k in range(1, number + 1):
            t = now.step(k)
            v, z = self._update(t, z, self._extrapolate(t, z, oracle), oracle)
            v_sum = v_sum + v
        return v, z, v_sum

    def client_round(self, now, shared, client, message, oracle):
        message.v, message.dual, message.v_sum = self._steps(now, self.K, shared.dual, oracle)

    def server_round(self, now, shared, mean):
        shared.z, shared.dual = mean.v, mean.dual
        shared.average += (mean.v_sum / self.K - shared.average) / now.round

    def client_extrapolate(self, now, shared, client, message, oracle):
        _, client.dual, client.v_sum = self._steps(now, self.K - 1, shared.dual, oracle)
        message.x = self._extrapolate(now.step(self.K), client.dual, oracle)

    def client_update(self, now, shared, client, message, oracle):
        message.v, message.dual = self._update(now.step(self.K), client.dual, shared.x, oracle)
        message.v_sum = client.v_sum + message.v
