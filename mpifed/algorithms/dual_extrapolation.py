"""Local dual extrapolation for composite variational inequalities (Wang & Kale, eq. 13).

Step t of a client, with the duals z and x and the primal points u and v::

    u = ∇h*_{t-1}(z)    x = z - η V(u; ξ)
    v = ∇h*_t(x)        z ← z - η V(v; ξ')

h_t = h + t η φ, where t counts the steps of all rounds. ``mirror`` is h; for h = ½‖·‖² the map ∇h*_t is
prox_{tηφ}. u, z and x here are u_{t-1}, z_{t-1} and x_t of eq. 13. A synchronisation averages duals. The
point of a round is computed from a mean dual by the mirror map, so it has the sparsity or rank that φ
induces.

Readings:

* *Start.* The dual z_0 is ∇h of the problem's starting point; for the Euclidean h this is the point itself.
* *Mirror maps.* The paper allows any h that is 1-strongly convex in some norm. Then L, σ and G are constants
  of V in the dual norm, and D²/2 is a bound of h(u) - h(z_0) - ⟨∇h(z_0), u - z_0⟩ over all u in the error
  metric.
* *First mirror map.* At t = 1 the weight of φ is 0. If φ is an indicator function, the map still projects
  (``t0_mirror = "prox"``), or u_0 is the starting point.
* *Synchronisation.* Both duals are averaged in two phases, x before v is computed from it.
  ``sync_extrapolation = false`` averages only z.
* *Point of a round.* It is v of the synchronising step, ∇h*_t of the mean x. With ``sync_extrapolation =
  false`` there is no mean x, so it is ∇h*_t of the mean z, from which the next step starts.
* *Output.* The average of the points v_t over clients and steps, which is less sparse than the points.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record, not_sent, within_round
from mpifed.core.sets import Euclidean, Mirror

__all__ = ["DualMethod", "LocalDualExtrapolation"]


class DualMethod(Algorithm):
    """Base class of methods that store and average the dual of a point, ``shared.dual``."""

    #: The mirror map, a hyperparameter.
    mirror: Any

    family = "operator"
    composite = True
    steps = "K"

    def initialize(self, shared):
        shared.dual = shared.z

    def starting_dual(self, now, shared, phi):
        """Return the dual at the start of a round.

        Before the first round, ``shared.dual`` is the starting point, because ∇h depends on φ.
        """
        return self.mirror.dual(shared.dual, phi) if now.round == 1 else shared.dual


@hyperparameters
class LocalDualExtrapolation(DualMethod):
    """Local dual extrapolation with the problem's φ."""

    K: int = Field(ge=1, description="local steps per round")
    eta: float = Field(ge=0, description="step size η, a number, because the weight of φ is t η")
    sync_extrapolation: bool = Field(
        default=True,
        description="average the dual x before the second call of a synchronising step (a second phase)",
    )
    t0_mirror: Literal["prox", "identity"] = Field(
        default="prox", description="the mirror map of the first step"
    )
    mirror: Mirror = Field(default=Euclidean(), description="the mirror map, of the distance generator h")

    source = "Wang & Kale n.d., eq. 13"
    cites = ("wang_nd_slippax", "bai2024composite")
    output = "average"
    averages = {"z": "average"}
    paper_cost = "up 2D; down 2D; 2 phases (1 without sync_extrapolation); 2 operator values per step"
    calls_per_step = 2
    partial_participation = False

    #: ``z`` is the primal point of the last synchronisation, ``dual`` the averaged dual z.
    shared = Record(z=not_sent("z"), average=not_sent("z"), dual="z", x="z")
    client = Record(dual=within_round("z"), v_sum=within_round("z"))
    message = Record(dual="z", v_sum=not_sent("z"))

    @property
    def phases(self) -> tuple[Phase, ...]:
        if not self.sync_extrapolation:
            return super().phases
        return (
            Phase(self.client_extrapolate, Record(x="z")),
            Phase(self.client_update, self.message, self.server_round),
        )

    def _extrapolate(self, now, k, z, shared, oracle):
        """Return the dual x_t from the dual z_{t-1}: the first line of eq. 13."""
        t = now.step(k)
        identity = t == 1 and self.t0_mirror == "identity"
        u = shared.dual if identity else self.mirror(z, (t - 1) * self.eta, oracle.prox)
        return z - self.eta * oracle.operator(u, oracle.sample())

    def _update(self, now, k, z, x, oracle):
        """Return v_t and z_t from the duals x_t and z_{t-1}: the second line of eq. 13."""
        v = self.mirror(x, now.step(k) * self.eta, oracle.prox)
        return v, z - self.eta * oracle.operator(v, oracle.sample())

    def _steps(self, now, number, shared, oracle):
        """Return the dual and the sum of the primal points after ``number`` steps."""
        z = self.starting_dual(now, shared, oracle.prox)
        v_sum = 0.0 * z
        for k in range(1, number + 1):
            v, z = self._update(now, k, z, self._extrapolate(now, k, z, shared, oracle), oracle)
            v_sum = v_sum + v
        return z, v_sum

    def client_round(self, now, shared, client, message, oracle):
        message.dual, message.v_sum = self._steps(now, self.K, shared, oracle)

    def server_round(self, now, shared, mean):
        last = shared.x if self.sync_extrapolation else mean.dual
        shared.z = self.mirror(last, now.step(self.K) * self.eta, now.prox)
        shared.dual = mean.dual
        shared.average += (mean.v_sum / self.K - shared.average) / (now.step(self.K) / self.K)

    def client_extrapolate(self, now, shared, client, message, oracle):
        client.dual, client.v_sum = self._steps(now, self.K - 1, shared, oracle)
        message.x = self._extrapolate(now, self.K, client.dual, shared, oracle)

    def client_update(self, now, shared, client, message, oracle):
        v, message.dual = self._update(now, self.K, client.dual, shared.x, oracle)
        message.v_sum = client.v_sum + v
