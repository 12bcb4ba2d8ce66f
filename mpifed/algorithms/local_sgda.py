"""Local-SGDA(+) (Deng & Mahdavi 2021) and Momentum-Local-SGDA(+) (Sharma et al. 2022).

Readings:

* *Gradients.* Both blocks use the same point and the same sample.
* *Alternating steps.* The paper has simultaneous steps. With ``alternating`` (Gauss-Seidel), a step of
  Local-SGDA evaluates y's gradient at the new x, on the sample of x, which takes a second evaluation. The
  methods with + have no such variant, because their y does not use the current x.
* *Sets.* If the problem has sets, both blocks are projected after every local step. The papers have no set
  for x.
* *Cohorts.* Without momentum, the average of a sampled cohort replaces (x, y). The methods with momentum need
  full participation.
* *Snapshot.* S is a number of local steps, as in Deng & Mahdavi. x̃ is x_0 at first, is updated at
  synchronisations only, and is used only in the gradient of y.
* *Order of a momentum step.* The step along d comes first. The fresh gradient is evaluated at the client's
  new point before averaging. x, y and both momenta are averaged.
* *Start of the momentum.* d_0 is each client's gradient on sample 0 of round 0. ``average_start`` averages
  d_0 in an additional phase.
* *Momentum-Local-SGDA+.* No source states this method. It is Momentum-Local-SGDA with y's gradient at x̃.
"""

from __future__ import annotations

import torch
from pydantic import Field

from mpifed.algorithms.snapshots import gradients, snapshot_of, store_snapshot
from mpifed.algorithms.unequal_steps import local_steps
from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.epochs import LocalSteps
from mpifed.core.records import Record
from mpifed.core.schedules import Rate, largest

__all__ = ["LocalSGDA", "LocalSGDAPlus", "MomentumLocalSGDA", "MomentumLocalSGDAPlus"]


@hyperparameters
class LocalSGDA(Algorithm):
    """Local stochastic gradient descent ascent: q simultaneous steps, then the average over the cohort."""

    q: LocalSteps = Field(description="local steps per round")
    eta_x: Rate = Field(description="step size of x (descent)")
    eta_y: Rate = Field(description="step size of y (ascent)")
    alternating: bool = Field(
        default=False,
        kw_only=True,
        description="compute y's gradient at the new x (a second gradient per step)",
    )

    source = "Deng & Mahdavi 2021, Local-SGDA"
    cites = ("deng2021localsgda",)
    paper_cost = "up D; down D; 1 phase; 1 gradient per step"
    steps = "q"
    shared = Record(x="x", y="y")
    message = Record(x="x", y="y")

    @property
    def calls_per_step(self) -> int:  # type: ignore[override]
        return 1 + self.alternating

    def client_round(self, now, shared, client, message, oracle):
        x, y = shared.x, shared.y
        for k, active in local_steps(oracle, self.q):
            t, xi = now.step(k), oracle.sample()
            gx, gy = oracle.grad(x, y, xi)
            new_x = oracle.sets.x(x.sub(gx, alpha=self.eta_x(t)))
            if self.alternating:
                gy = oracle.grad(new_x, y, xi)[1]
            new_y = oracle.sets.y(y.add(gy, alpha=self.eta_y(t)))
            x = new_x if active is None else torch.where(active, new_x, x)
            y = new_y if active is None else torch.where(active, new_y, y)
        message.x, message.y = x, y


@hyperparameters
class LocalSGDAPlus(Algorithm):
    """Local-SGDA+: Local-SGDA with y's gradient at a snapshot of x that is updated every S steps."""

    q: int = Field(ge=1, description="local steps per round")
    S: int = Field(ge=1, description="local steps between two snapshots of x, a multiple of q; q² is common")
    eta_x: Rate = Field(description="step size of x (descent)")
    eta_y: Rate = Field(description="step size of y (ascent)")

    source = "Deng & Mahdavi 2021, Local-SGDA+"
    cites = ("deng2021localsgda",)
    paper_cost = "up D; down D, and x̃ after an update; 1 phase; 2 gradients per step, of one block each"
    calls_per_step = 2
    steps = "q"
    shared = Record(x="x", y="y", snapshot="x")
    message = Record(x="x", y="y")

    def __post_init__(self):
        _expect_multiple(self)

    def client_round(self, now, shared, client, message, oracle):
        x, y, snapshot = shared.x, shared.y, snapshot_of(now, shared, self.S // self.q)
        for k in range(1, self.q + 1):
            t = now.step(k)
            gx, gy = gradients(oracle, x, y, snapshot, oracle.sample())
            x = oracle.sets.x(x.sub(gx, alpha=self.eta_x(t)))
            y = oracle.sets.y(y.add(gy, alpha=self.eta_y(t)))
        message.x, message.y = x, y

    def server_round(self, now, shared, mean):
        store_snapshot(now, shared, self.S // self.q)
        shared.x, shared.y = now.sets.x(mean.x), now.sets.y(mean.y)


@hyperparameters
class _Momentum(Algorithm):
    """Base class: local steps along an averaged momentum d ← (1 - βα) d + βα ∇f."""

    q: int = Field(ge=1, description="local steps per round, τ in the paper")
    eta_x: Rate = Field(description="step size of x (descent)")
    eta_y: Rate = Field(description="step size of y (ascent)")
    alpha: Rate = Field(default=1.0, description="mixing step α_t, which multiplies η and β")
    beta_x: float = Field(
        default=0.1, ge=0, description="momentum rate β of x, with β α_t ≤ 1; a number: α_t is its schedule"
    )
    beta_y: float = Field(
        default=0.1, ge=0, description="momentum rate β of y, with β α_t ≤ 1; a number: α_t is its schedule"
    )
    average_start: bool = Field(default=False, description="average the first momenta (see Readings)")

    partial_participation = False
    steps = "q"
    message = Record(x="x", y="y", dx="x", dy="y")

    def __post_init__(self):
        for name in ("beta_x", "beta_y"):
            product = getattr(self, name) * largest(self.alpha)
            if product > 1:
                raise ValueError(f"expected {name} alpha ≤ 1 at every step, got {product:.4g}")

    @property
    def start(self) -> tuple[Phase, ...]:
        return (Phase(self.client_start, Record(dx="x", dy="y")),) if self.average_start else ()

    def client_start(self, now, shared, client, message, oracle):
        message.dx, message.dy = oracle.grad(shared.x, shared.y, oracle.sample(number=0))

    def local_steps(self, now, shared, message, oracle, snapshot):
        """Take the local steps with y's gradient at x = ``snapshot``; ``None``: at the client's x."""
        x, y, dx, dy = shared.x, shared.y, shared.dx, shared.dy
        if now.round == 1 and not self.average_start:
            dx, dy = oracle.grad(x, y, oracle.sample(number=0, round=0))
        for k in range(1, self.q + 1):
            t = now.step(k)
            alpha = self.alpha(t)
            x = oracle.sets.x(x - alpha * self.eta_x(t) * dx)
            y = oracle.sets.y(y + alpha * self.eta_y(t) * dy)
            gx, gy = gradients(oracle, x, y, snapshot, oracle.sample(number=k - 1))
            dx = (1 - self.beta_x * alpha) * dx + self.beta_x * alpha * gx
            dy = (1 - self.beta_y * alpha) * dy + self.beta_y * alpha * gy
        message.x, message.y, message.dx, message.dy = x, y, dx, dy


@hyperparameters
class MomentumLocalSGDA(_Momentum):
    """Momentum-Local-SGDA (LocalSGDAM): local steps along an averaged momentum d ← (1 - βα) d + βα ∇f."""

    source = "Sharma et al. 2022, Momentum-Local-SGDA"
    cites = ("sharma2022momentum",)
    paper_cost = "up 2D (points and momenta); down 2D; 1 phase; 1 gradient per step"
    shared = Record(x="x", y="y", dx="x", dy="y")

    def client_round(self, now, shared, client, message, oracle):
        self.local_steps(now, shared, message, oracle, None)


@hyperparameters
class MomentumLocalSGDAPlus(_Momentum):
    """Momentum-Local-SGDA+: y's gradient is evaluated at a snapshot of x, updated every S steps."""

    S: int = Field(
        ge=1,
        kw_only=True,
        description="local steps between two snapshots of x, a multiple of q; q² is common",
    )

    source = "Huang et al. 2024, section 6.3, after Sharma et al. 2022"
    cites = ("huang2024adafgda", "sharma2022momentum")
    paper_cost = (
        "up 2D (points and momenta); down 2D, and x̃ after an update; 1 phase; 2 gradients per step, of one "
        "block each"
    )
    calls_per_step = 2
    shared = Record(x="x", y="y", dx="x", dy="y", snapshot="x")

    def __post_init__(self):
        super().__post_init__()
        _expect_multiple(self)

    def client_round(self, now, shared, client, message, oracle):
        self.local_steps(now, shared, message, oracle, snapshot_of(now, shared, self.S // self.q))

    def server_round(self, now, shared, mean):
        store_snapshot(now, shared, self.S // self.q)
        shared.x, shared.y = now.sets.x(mean.x), now.sets.y(mean.y)
        shared.dx, shared.dy = mean.dx, mean.dy


def _expect_multiple(method) -> None:
    if method.S % method.q:
        raise ValueError(f"expected S as a multiple of q = {method.q}, got S = {method.S}")
