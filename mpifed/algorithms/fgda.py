"""FGDA, AdaFGDA (Huang et al. 2024, Algorithm 1) and STEM: STORM estimators, local steps, adaptive matrices.

Lines of Algorithm 1 in the margins of this file:

* Line 2 is the start: the estimators from q samples at the common point, from which A_1 and B_1 are computed.
* Lines 3, 4 and 9 are the rounds. Round r covers t = (r-1) q + 1 .. r q: q - 1 local steps, then the
  aggregated step at t = r q.
* Line 5 is the average of the messages. Line 6 is ``refresh`` in ``mpifed.core.adaptive``, between the
  average and lines 7-8. Line 13 is implicit: A and B are kept until they are recomputed.
* Lines 14-16 are ``storm``. For t = r q they need the new point, so clients execute them at the start of
  round r + 1, in ``after_sync``. Sample ξ_{t+1} has the number t mod q in its round; sample 0 of round 1 is
  unused.
* Line 20 is a setting of the job: ``output = "uniform"`` returns the point x̄, ȳ after a random round.

Readings:

* *Estimators at a synchronisation.* With the printed line numbers, no STORM line follows a synchronisation,
  so no fresh gradients enter the estimators there. ``stem`` (default): every client starts from the averages
  w̄_t, v̄_t and executes lines 15-16 with its own point x_t^k, y_t^k before averaging, and one sample at both
  points. Of the readings with one Allreduce per round, only this one has an error that vanishes with α and β.
  ``local``: clients execute lines 15-16 from their own estimators at every t; without noise and matrices this
  is Local-GDA. ``mean_after``: the same, and then w_{t+1} and v_{t+1} are averaged, as in Lemma 11, in an
  additional phase at the start of the next round; in round 1 the initial estimators remain local. ``box``:
  the box as printed; clients continue with w̄_t, v̄_t, so that for q = 1 the estimators never change. The
  experiments of the paper only need the default.
* *First estimators.* They remain local, as in line 2. ``first_estimators = "average"`` averages them before
  the first step, as in STEM.
* *STEM* (Khanduri et al. 2021) is FGDA for problems without y. Its step size η_t is ``eta``, its a_{t+1} is
  ``beta``, and its start batch consists of q samples of every client.
* *Signs.* Descent in x, ascent in y. The minus sign in ŷ in section 4 is a misprint.
* *Letters.* α is the weight in v (y), β the weight in w (x). ``alpha`` and ``beta`` at t are α_{t+1} and
  β_{t+1}.
* *Line 6.* a_{t-1} is the moment of the previous synchronisation, because a is only computed there.
* *Sets.* Points are projected after the convex combinations of lines 8 and 12. The paper has no set for x.
  ``project_y = "step"`` projects ŷ before the convex combination, which is feasible for η_t ≤ 1.
"""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.adaptive import FirstMatrix, Matrix, adaptive
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record
from mpifed.core.schedules import Rate, StormWeight, largest

__all__ = ["FGDA", "STEM", "AdaFGDA"]

_ESTIMATORS = Record(w="x", v="y")


@hyperparameters
class AdaFGDA(Algorithm):
    """AdaFGDA: STORM with adaptive matrices that are updated at every synchronisation."""

    q: int = Field(ge=1, description="steps per round: q - 1 local ones and the aggregated one")
    gamma: Rate = Field(default=0.01, description="step size γ of x")
    lam: Rate = Field(default=0.01, description="step size λ of y")
    eta: Rate = Field(default=1.0, description="mixing step η_t of both blocks")
    alpha: StormWeight = Field(default=0.1, description="weight α_{t+1} of the fresh gradient in v (y)")
    beta: StormWeight = Field(default=0.1, description="weight β_{t+1} of the fresh gradient in w (x)")
    sync_estimator: Literal["stem", "local", "mean_after", "box"] = Field(
        default="stem", description="the estimators at a synchronisation (see Readings)"
    )
    first_estimators: Literal["local", "average"] = Field(
        default="local", description="estimators of the first step: each client's own, or their average"
    )
    project_y: Literal["mixed", "step"] = Field(
        default="mixed", description="where y is projected (see Readings)"
    )
    matrix: Matrix = Field(default="adam", description="generator of A_t and B_t")
    first_matrix: FirstMatrix = Field(
        default="rule", description="A_1, B_1: the rule applied to the averaged initial estimators, I, or ρI"
    )

    source = "Huang et al. 2024, Algorithm 1"
    cites = ("huang2024adafgda",)
    paper_cost = (
        "up 2D (mean_after: 3D, 2 phases); down 2D (local: D), AdaFGDA + D; 2 gradients per step"
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
        y = now.sets.y(mean.y) if self.project_y == "step" else mean.y  # compressed averages may be outside
        shared.x, shared.y = self.step(t, mean.x, y, mean.w, mean.v, shared, now.sets)      # lines 7-8

    def client_estimate(self, now, shared, client, message, oracle):
        message.w_after, message.v_after = self.storm_after_sync(now, shared, client, client, oracle)

    def server_estimate(self, now, shared, mean):
        shared.w, shared.v = mean.w_after, mean.v_after

    def after_sync(self, now, shared, client, oracle):
        """Return w_t, v_t for t = (r-1) q + 1, the first step of round r: lines 14-16 for t - 1."""
        if self.sync_estimator in ("stem", "local"):
            before = shared if self.sync_estimator == "stem" else client
            return self.storm_after_sync(now, shared, client, before, oracle)
        if self.sync_estimator == "box":
            oracle.sample()  # the sample of the synchronisation, which this reading does not use
        return self.first(shared, client) if now.round == 1 else (shared.w, shared.v)

    def storm_after_sync(self, now, shared, client, before, oracle):
        """Lines 14-16 with the estimators of ``before`` (``shared`` or ``client``); line 2 in round 1."""
        xi = oracle.sample()
        if now.round == 1:
            return self.first(shared, client)
        new, old = (shared.x, shared.y), (client.x, client.y)
        return self.storm(now.step(0), oracle, xi, new, old, before.w, before.v)

    def first(self, shared, client):
        """Return w_1, v_1."""
        start = shared if self.first_estimators == "average" else client
        return start.w, start.v

    def step(self, t, x, y, w, v, shared, sets):
        """Return x_{t+1}, y_{t+1} for point and estimators at t: lines 7-8, 11-12 with x̂ and ŷ inserted."""
        eta, gamma, lam = self.eta(t), self.gamma(t), self.lam(t)
        x = sets.x(torch.addcdiv(x, w, shared.A, value=-eta * gamma))
        if self.project_y == "step":
            return x, y + eta * (sets.y(torch.addcdiv(y, v, shared.B, value=lam)) - y)
        return x, sets.y(torch.addcdiv(y, v, shared.B, value=eta * lam))

    def storm(self, t, oracle, xi, new, old, w, v):
        """Return w_{t+1}, v_{t+1}, with the sample ξ_{t+1} at the new and the old point: lines 16 and 15."""
        eta = self.eta(t)
        gx, gy = oracle.grad(*new, xi)
        old_gx, old_gy = oracle.grad(*old, xi)
        w = torch.add(gx, w - old_gx, alpha=1 - self.beta(t, eta))
        return w, torch.add(gy, v - old_gy, alpha=1 - self.alpha(t, eta))


@hyperparameters
class FGDA(AdaFGDA):
    """FGDA: AdaFGDA with A_t = I, B_t = I."""

    gamma: Rate = Field(default=0.1, description="step size γ of x")
    lam: Rate = Field(default=0.1, description="step size λ of y")
    matrix: Matrix = Field(default="identity", init=False)
    first_matrix: FirstMatrix = Field(default="identity", init=False)


@hyperparameters
class STEM(FGDA):
    """STEM: local steps along STORM estimators that are averaged with the points; FGDA without y."""

    sync_estimator: Literal["stem"] = Field(default="stem", init=False)
    first_estimators: Literal["average"] = Field(default="average", init=False)
    project_y: Literal["mixed"] = Field(default="mixed", init=False)
    eta: Rate = Field(kw_only=True, description="step size η_t")
    gamma: Rate = Field(default=1.0, init=False)
    lam: Rate = Field(default=0.0, init=False)
    alpha: StormWeight = Field(default=0.1, init=False)

    source = "Khanduri et al. 2021, STEM"
    cites = ("khanduri2021stem",)
    family = "minimisation"
    paper_cost = "up 2D; down 2D; 1 phase; 2 gradients per step, and a batch at the start"
