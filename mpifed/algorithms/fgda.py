"""FGDA and AdaFGDA (Huang et al. 2024, Algorithm 1): STORM estimators, local steps, adaptive matrices.

The lines of the box, which number the margins of this file:

* line 2 is the start: the estimators from q samples at the common point. A_1 and B_1 are made right after it.
* lines 3, 4 and 9 are the rounds. Round r covers t = (r-1) q + 1 .. r q: q - 1 local steps, then the
  aggregated step at t = r q.
* line 5 is the average of the messages, line 6 is ``refresh`` of ``mpifed.core.adaptive``, between the
  average and the server's lines 7-8. Line 13 is implicit: A and B stay until they are recomputed, after a
  synchronisation too.
* lines 14-16 are ``storm``. Those of t = r q need the new point, so each client runs them at the start
  of round r + 1, in ``after_sync``. Sample ξ_{t+1} has the number t mod q in its round; sample 0 of round 1
  stays unused.
* line 20 is a setting of the job: ``output = "uniform"`` takes one of the points x̄, ȳ that rounds end with.

Readings:

* *Estimators at a synchronisation.* By the printed line numbers no STORM line follows one, and the estimators
  get no fresh gradients there. Here every client first takes the averages w̄_t, v̄_t. Then it runs lines
  15-16 with its own pre-average point x_t^k, y_t^k and one sample at both points. Of the readings with one
  Allreduce a round, only this one has an error that vanishes with α and β. ``sync_estimator`` selects others,
  which no experiment of the paper needs: ``local`` runs lines 15-16 from the client's own estimator at every
  t (without noise and matrices this is Local-GDA); ``mean_after`` does the same and then averages w_{t+1},
  v_{t+1} (as Lemma 11 has it) in a phase of their own, the first of the next round, where the initial
  estimators stay local; ``box`` takes the printed line numbers, by which clients continue with w̄_t, v̄_t, so
  that for q = 1 the estimator never changes.
* *Signs.* Descent in x, ascent in y. The minus in section 4's ŷ is a misprint.
* *Letters.* α drives v and y, β drives w and x. ``alpha`` and ``beta`` at t are α_{t+1} and β_{t+1}.
* *Line 6.* a_{t-1} is the moment of the synchronisation before, as a is computed at synchronisations only.
* *Sets.* The problem's sets act after the convex combination of lines 8 and 12. The paper has none for x.
  ``project_y = "step"`` projects ŷ before the convex combination, which stays feasible as η_t ≤ 1.
"""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from pydantic import Field

from mpifed.base.settings import Preset, hyperparameters
from mpifed.core.adaptive import FirstMatrix, Identity, Matrix, adaptive
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record
from mpifed.core.schedules import Rate, Weight, largest

__all__ = ["FGDA", "AdaFGDA"]

_ESTIMATORS = Record(w="x", v="y")


@hyperparameters
class AdaFGDA(Algorithm):
    """AdaFGDA: STORM with adaptive matrices refreshed at every synchronisation."""

    q: int = Field(ge=1, description="steps per round: q - 1 local ones and the aggregated one")
    gamma: float = Field(default=0.1, ge=0, description="step size γ of x")
    lam: float = Field(default=0.1, ge=0, description="step size λ of y")
    eta: Rate = Field(default=1.0, validate_default=True, description="mixing step η_t of both blocks")
    alpha: Weight = Field(
        default=0.1, validate_default=True, description="weight α_{t+1} of the fresh gradient in v (y)"
    )
    beta: Weight = Field(
        default=0.1, validate_default=True, description="weight β_{t+1} of the fresh gradient in w (x)"
    )
    sync_estimator: Literal["stem", "local", "mean_after", "box"] = Field(
        default="stem", description="the estimators at a synchronisation (see Readings)"
    )
    project_y: Literal["mixed", "step"] = Field(
        default="mixed", description="where the problem's set of y acts (see Readings)"
    )
    matrix: Matrix = Field(default="adam", validate_default=True, description="generator of A_t and B_t")
    first_matrix: FirstMatrix = Field(
        default="rule", description="A_1, B_1: the rule applied to the averaged initial estimators, I, or ρI"
    )

    source = "Huang et al. 2024, Algorithm 1"
    cites = ("huang2024adafgda",)
    paper_cost = (
        "up 2D; down D (stem: 2D; mean_after: 2D and a second phase), AdaFGDA + D; 2 gradients a step"
    )
    calls_per_step = 2
    partial_participation = False
    steps = "q"
    shared = Record(x="x", y="y", w="x", v="y", A=adaptive("x", of="w"), B=adaptive("y", of="v"))  # line 6
    client = Record(x="x", y="y", w="x", v="y")
    message = Record(x="x", y="y", w="x", v="y")

    def __post_init__(self):
        if self.sync_estimator == "box" and self.q == 1:
            warnings.warn("sync_estimator = 'box' with q = 1 never evaluates a fresh gradient", stacklevel=2)
        if self.project_y == "step" and (eta := largest(self.eta)) > 1:
            raise ValueError(
                "project_y = 'step' projects before the mixing step: expected eta ≤ 1 at every step, or "
                f"project_y = 'mixed', got eta = {eta:g}"
            )

    @property
    def start(self) -> tuple[Phase, ...]:
        return (Phase(self.client_start, _ESTIMATORS),)

    @property
    def phases(self) -> tuple[Phase, ...]:
        if self.sync_estimator == "mean_after":
            estimates = Phase(self.client_estimate, Record(w_after="x", v_after="y"), self.server_estimate)
            return (estimates, *super().phases)
        return super().phases

    def client_start(self, now, shared, client, message, oracle):
        for _ in range(self.q):                                                             # line 2
            gx, gy = oracle.grad(shared.x, shared.y, oracle.sample())
            message.w += gx / self.q
            message.v += gy / self.q
        client.w, client.v = message.w, message.v

    def client_round(self, now, shared, client, message, oracle):
        x, y = shared.x, shared.y
        w, v = self.after_sync(now, shared, client, oracle)
        for k in range(1, self.q):                                                          # lines 9-10
            old, t = (x, y), now.step(k)
            x, y = self.step(t, x, y, w, v, shared, now.sets)                               # lines 11-12
            w, v = self.storm(t, oracle, oracle.sample(), (x, y), old, w, v)                # lines 14-16
        message.x, message.y, message.w, message.v = x, y, w, v                             # line 5
        client.x, client.y, client.w, client.v = x, y, w, v

    def server_round(self, now, shared, mean):
        t = now.step(self.q)
        shared.w, shared.v = mean.w, mean.v
        y = now.sets.y(mean.y) if self.project_y == "step" else mean.y  # compression may leave the set
        shared.x, shared.y = self.step(t, mean.x, y, mean.w, mean.v, shared, now.sets)      # lines 7-8

    def client_estimate(self, now, shared, client, message, oracle):
        message.w_after, message.v_after = self.storm_after_sync(now, shared, client, client, oracle)

    def server_estimate(self, now, shared, mean):
        shared.w, shared.v = mean.w_after, mean.v_after

    def after_sync(self, now, shared, client, oracle):
        """w_t, v_t for t = (r-1) q + 1, the first step of round r: lines 14-16 of the step before it."""
        if self.sync_estimator in ("stem", "local"):
            before = shared if self.sync_estimator == "stem" else client
            return self.storm_after_sync(now, shared, client, before, oracle)
        if self.sync_estimator == "box":
            oracle.sample()  # that of the synchronisation, which this reading does not use
        return (client.w, client.v) if now.round == 1 else (shared.w, shared.v)

    def storm_after_sync(self, now, shared, client, before, oracle):
        """Lines 14-16 from the estimators of ``before`` (``shared`` or ``client``); line 2 in round 1."""
        xi = oracle.sample()
        if now.round == 1:
            return client.w, client.v
        new, old = (shared.x, shared.y), (client.x, client.y)
        return self.storm(now.step(0), oracle, xi, new, old, before.w, before.v)

    def step(self, t, x, y, w, v, shared, sets):
        """x_{t+1}, y_{t+1} from the point and the estimators at t: lines 7-8 and 11-12, x̂ and ŷ put in."""
        eta = self.eta(t)
        x = sets.x(torch.addcdiv(x, w, shared.A, value=-eta * self.gamma))
        if self.project_y == "step":
            return x, y + eta * (sets.y(torch.addcdiv(y, v, shared.B, value=self.lam)) - y)
        return x, sets.y(torch.addcdiv(y, v, shared.B, value=eta * self.lam))

    def storm(self, t, oracle, xi, new, old, w, v):
        """w_{t+1}, v_{t+1}, with the sample ξ_{t+1} at the new and at the old point: lines 16 and 15."""
        eta = self.eta(t)
        gx, gy = oracle.grad(*new, xi)
        old_gx, old_gy = oracle.grad(*old, xi)
        w = torch.add(gx, w - old_gx, alpha=1 - self.beta(t, eta))
        return w, torch.add(gy, v - old_gy, alpha=1 - self.alpha(t, eta))


FGDA = Preset(
    "FGDA", AdaFGDA, "FGDA: AdaFGDA with A_t = I, B_t = I.", matrix=Identity(), first_matrix="identity"
)
