"""FGDA and AdaFGDA (000, Algorithm 1): STORM estimators, local steps, adaptive matrices made by the server.

Readings. The box prints no STORM line at a synchronisation, which would leave the estimators without fresh gradients
there; ``sync_estimator`` selects what happens:

* ``stem`` (default): every client first takes the averaged estimators w̄_t, v̄_t, then runs the STORM line with its own
  pre-average point x_t^k, y_t^k and one sample at both points. The only reading with one Allreduce a round whose error
  vanishes with α and β.
* ``local``: the STORM line from the client's own estimator at every t.
* ``mean_after``: as ``local``, then w_{t+1}, v_{t+1} are averaged in a second phase (Lemma 11). The initial estimators
  stay local.
* ``box``: the printed line numbers: clients carry on with w̄_t, v̄_t. For q = 1 the estimator never changes.

A round r covers t = (r-1) q + 1 .. r q: q - 1 local steps and the aggregated step at t = r q. The STORM line that follows
a synchronisation runs at the start of the next round, where the client has the new point; its sample is ξ_{t+1}, sample
number t mod q of its round. Descent in x, ascent in y (the minus in section 4's ŷ is a misprint). α drives v and y, β
drives w and x. A and B are carried over after a synchronisation too.

``project_y`` says where the problem's set of y acts: ``mixed`` projects y_{t+1} after the convex combination on both
branches, ``step`` projects ŷ before it (feasible too while η_t ≤ 1), ``none`` leaves y alone.
"""

from __future__ import annotations

import warnings
from typing import ClassVar, Literal

import torch
from pydantic import Field

from mpifed.core.adaptive import Identity, Matrix
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record
from mpifed.core.schedules import Rate
from mpifed.core.settings import hyperparameters

__all__ = ["FGDA", "AdaFGDA"]

_POINT = Record(x="x", y="y")
_ESTIMATORS = Record(w="x", v="y")


@hyperparameters
class _FGDA(Algorithm):
    q: int = Field(ge=1, description="steps per round: q - 1 local ones and the aggregated one")
    gamma: float = Field(default=0.1, ge=0, description="step size γ of x")
    lam: float = Field(default=0.1, ge=0, description="step size λ of y")
    eta: Rate = Field(default=1.0, validate_default=True, description="mixing step η_t of both blocks")
    alpha: Rate = Field(default=0.1, validate_default=True, description="weight α_{t+1} of the fresh gradient in v (y)")
    beta: Rate = Field(default=0.1, validate_default=True, description="weight β_{t+1} of the fresh gradient in w (x)")
    sync_estimator: Literal["stem", "local", "mean_after", "box"] = Field(
        default="stem", description="the estimators at a synchronisation (see Readings)"
    )
    project_y: Literal["mixed", "step", "none"] = Field(
        default="mixed", description="where the problem's set of y acts (see Readings)"
    )

    source: ClassVar = "000, Algorithm 1"
    paper_cost: ClassVar = "up 2D; down D (stem: 2D; mean_after: 2D and a second phase), AdaFGDA + D; 2 gradients a step"
    calls_per_step: ClassVar = 2
    partial_participation: ClassVar = False
    client: ClassVar = _POINT | _ESTIMATORS
    coordinated: ClassVar = ("A", "B")
    start: ClassVar = (Phase("start", _ESTIMATORS, down=("x", "y"), coordinate=True),)

    def __post_init__(self):
        if self.sync_estimator == "box" and self.q == 1:
            warnings.warn("sync_estimator = 'box' with q = 1 never evaluates a fresh gradient", stacklevel=2)

    @property
    def shared(self) -> Record:
        carried = Record() if self.sync_estimator == "local" else _ESTIMATORS
        return _POINT | carried | Record(A=self.matrix.shape("x"), B=self.matrix.shape("y"))

    @property
    def coordinator(self) -> Record:
        return Record(a=self.matrix.fields("x"), b=self.matrix.fields("y"))

    @property
    def phases(self) -> tuple[Phase, ...]:
        update = Phase("round", _POINT | _ESTIMATORS, coordinate=True)
        if self.sync_estimator == "mean_after":
            return update, Phase("estimate", _ESTIMATORS, down=("x", "y"))
        return (update,)

    @property
    def local_steps(self) -> int:
        return self.q

    def initialize(self, shared):
        first = self.matrix.rho if self.first_matrix == "rho" else 1.0
        shared.A, shared.B = first, first

    def client_start(self, r, shared, client, message, oracle):
        for j in range(self.q):                                                             # line 2
            gx, gy = oracle.grad(shared.x, shared.y, oracle.sample(j))
            message.w += gx / self.q
            message.v += gy / self.q
        client.w, client.v = message.w, message.v

    def server_start(self, r, shared, mean, sets):
        pass  # the averaged initial estimators only feed A_1 and B_1

    def client_round(self, r, shared, client, message, oracle):
        x, y = shared.x, shared.y
        w, v = self._estimators_after_sync(r, shared, client, oracle)
        for k in range(1, self.q):                                                          # lines 9-13
            old, t = (x, y), (r - 1) * self.q + k
            x, y = self._step(t, x, y, w, v, shared, oracle.sets)
            w, v = self._storm(t, oracle, oracle.sample(k), (x, y), old, w, v)              # lines 14-16
        message.x, message.y, message.w, message.v = x, y, w, v                             # line 5
        client.x, client.y = x, y
        if self.sync_estimator in ("local", "mean_after"):
            client.w, client.v = w, v

    def coordinate(self, r, shared, coordinator, mean):
        if r == 1 and self.q == 1 and self.first_matrix == "rule":
            return {}  # the first synchronisation averages the very estimators that made A_1
        x, y = (mean.x, mean.y) if r else (shared.x, shared.y)
        coordinator.a, A = self.matrix.refresh(r, coordinator.a, mean.w, x, self.first_matrix, self.q)      # line 6
        coordinator.b, B = self.matrix.refresh(r, coordinator.b, mean.v, y, self.first_matrix, self.q)
        return dict(A=A, B=B) if r > 0 or self.first_matrix == "rule" else {}

    def server_round(self, r, shared, mean, sets):
        if self.sync_estimator != "local":
            shared.w, shared.v = mean.w, mean.v
        t = r * self.q
        shared.x, shared.y = self._step(t, mean.x, mean.y, mean.w, mean.v, shared, sets)    # lines 7-8

    def client_estimate(self, r, shared, client, message, oracle):
        new, old = (shared.x, shared.y), (client.x, client.y)
        xi = oracle.sample(0, round=r + 1)
        message.w, message.v = self._storm(r * self.q, oracle, xi, new, old, client.w, client.v)

    def server_estimate(self, r, shared, mean, sets):
        shared.w, shared.v = mean.w, mean.v

    def _estimators_after_sync(self, r, shared, client, oracle):
        """w_t, v_t for t = (r-1) q + 1, the first step of round r."""
        if r == 1:
            return client.w, client.v
        if self.sync_estimator in ("box", "mean_after"):
            return shared.w, shared.v
        w, v = (shared.w, shared.v) if self.sync_estimator == "stem" else (client.w, client.v)
        new, old = (shared.x, shared.y), (client.x, client.y)
        return self._storm((r - 1) * self.q, oracle, oracle.sample(0), new, old, w, v)

    def _step(self, t, x, y, w, v, shared, sets):
        """x_{t+1}, y_{t+1} from the point and the estimators at t: lines 7-8 and 11-12."""
        eta = self.eta(t)
        x = torch.addcdiv(x, w, shared.A, value=-eta * self.gamma)
        if self.project_y == "step":
            return x, y + eta * (sets.y(torch.addcdiv(y, v, shared.B, value=self.lam)) - y)
        y = torch.addcdiv(y, v, shared.B, value=eta * self.lam)
        return x, sets.y(y) if self.project_y == "mixed" else y

    def _storm(self, t, oracle, xi, new, old, w, v):
        """w_{t+1}, v_{t+1}: the same sample at the new and at the old point."""
        eta = self.eta(t)
        gx, gy = oracle.grad(*new, xi)
        old_gx, old_gy = oracle.grad(*old, xi)
        w = torch.add(gx, w - old_gx, alpha=1 - self.beta(t, eta))
        return w, torch.add(gy, v - old_gy, alpha=1 - self.alpha(t, eta))


@hyperparameters
class FGDA(_FGDA):
    """FGDA: Algorithm 1 of 000 with A_t = I, B_t = I."""

    matrix: ClassVar = Identity()
    first_matrix: ClassVar = "identity"
    coordinated: ClassVar = ()
    start: ClassVar = (Phase("start", _ESTIMATORS, down=("x", "y")),)

    @property
    def phases(self) -> tuple[Phase, ...]:
        travels = tuple(name for name in self.shared.fields if name not in ("A", "B"))
        return tuple(Phase(phase.name, phase.message, phase.down or travels) for phase in super().phases)


@hyperparameters
class AdaFGDA(_FGDA):
    """AdaFGDA: Algorithm 1 of 000 with adaptive matrices refreshed at every synchronisation."""

    matrix: Matrix = Field(default="adam", validate_default=True, description="generator of A_t and B_t")
    first_matrix: Literal["rule", "identity", "rho"] = Field(
        default="rule", description="A_1, B_1: the rule applied to the averaged initial estimators, I, or ρI"
    )
