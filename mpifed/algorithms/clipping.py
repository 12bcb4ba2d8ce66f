"""FAT-Clipping (Yang, Qiu & Liu 2022) and Bi²Clip (Lee, Zaheer & Li 2025): clipping for heavy-tailed noise.

FAT-Clipping is FSGDA in which vectors are clipped to the norm λ: every gradient (per iteration, PI), or the
sum Δ_i of a client's gradients in a round (per round, PR). The λ of PR corresponds to K times that of PI.

Bi²Clip, a member of TailOPT, is FedAvg in which every coordinate of every gradient, and of the average
displacement, keeps its sign and gets an absolute value from d to u::

    BiClip(v)_j = sign(v_j) min(max(|v_j|, d), u)

Readings:

* *Threshold of FAT-Clipping.* λ is a schedule over rounds, equal for both blocks, which are clipped
  separately.
* *Minimax.* FAT-Clipping is stated for minimisation. If the problem has a block y, y ascends in the same way.
* *BiClip of 0* is 0.
* *Lower bounds.* With d > 0 the steps do not vanish at a solution, so constant step sizes do not converge.
* *Sets.* If the problem has sets, points are projected after every local step and at the server. The terms of
  Δ_i are then (x - Π(x - η_l g)) / η_l, which are the gradients g inside of the sets. The papers have no
  sets.
* *Schedules of η_l.* Δ_i of PR is the sum of the gradients for every step size, and the server's step is
  η η_l Δ_i with the mean η_l of the round. Unless η_l is constant in a round, this is not the displacement,
  so that PR with λ = ∞ is then not FSGDA.
* *Unbiased averages* (``availability.unbiased``) of Bi²Clip: a bounded step is not a linear function of the
  average displacement, so its mean over cohorts is not the step of all clients. The combination is refused if
  the server has bounds. ``participation.weights`` only defines the average that is bounded.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field

from mpifed.algorithms.smoothed import GlobalSteps
from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm
from mpifed.core.directions import clip
from mpifed.core.records import Record
from mpifed.core.schedules import Rate, Threshold

__all__ = ["Bi2Clip", "FATClipping"]


@hyperparameters
class FATClipping(GlobalSteps):
    """FAT-Clipping: FSGDA with clipped gradients (PI), or clipped sums of a client's gradients (PR)."""

    lam: Threshold = Field(kw_only=True, description="clipping threshold λ in round t; inf: FSGDA")
    per: Literal["iteration", "round"] = Field(
        default="iteration", description="clip every gradient (PI), or each client's sum of a round (PR)"
    )

    source = "Yang, Qiu & Liu 2022, FAT-Clipping-PI and FAT-Clipping-PR"
    cites = ("yang2022fatclipping",)
    shared = Record(x="x", y="y")

    def client_round(self, now, shared, client, message, oracle):
        x, y, lam, delta_x, delta_y = shared.x, shared.y, self.lam(now.round), 0.0, 0.0
        for k in range(1, self.K + 1):
            eta_x, eta_y = self.eta_xl(now.step(k)), self.eta_yl(now.step(k))
            gx, gy = oracle.grad(x, y, oracle.sample())
            if self.per == "iteration":
                gx, gy = clip(gx, lam), clip(gy, lam)
            step_x, step_y = x - eta_x * gx, y + eta_y * gy
            x, y = oracle.sets.x(step_x), oracle.sets.y(step_y)
            if self.per == "round":
                delta_x = delta_x + gx + _ratio(step_x - x, eta_x)
                delta_y = delta_y + gy + _ratio(y - step_y, eta_y)
        if self.per == "iteration":
            message.dx, message.dy = x - shared.x, y - shared.y
        else:
            message.dx = -now.total(self.eta_xl) / self.K * clip(delta_x, lam)
            message.dy = now.total(self.eta_yl) / self.K * clip(delta_y, lam)

    def server_round(self, now, shared, mean):
        self.global_step(now, shared, mean)


@hyperparameters
class Bi2Clip(Algorithm):
    """Bi²Clip: FedAvg with bounds of the coordinates of gradients and of the server's step."""

    K: int = Field(ge=1, description="local steps per round")
    eta: Rate = Field(description="local step size")
    u: float = Field(
        gt=0, allow_inf_nan=True, description="upper bound u of a coordinate of a gradient; inf: none"
    )
    u_g: float = Field(
        gt=0, allow_inf_nan=True, description="upper bound ũ for the average displacement; inf: none"
    )
    d: float | None = Field(
        default=None, ge=0, description="lower bound d of a coordinate of a gradient; default: none"
    )
    d_g: float | None = Field(
        default=None, ge=0, description="lower bound d̃ for the average displacement; default: none"
    )
    eta_g: Rate = Field(default=1.0, description="server step size η̃ in a round")

    source = "Lee, Zaheer & Li 2025, Bi²Clip"
    cites = ("lee2025tailopt",)
    family = "minimisation"
    paper_cost = "up D; down D; 1 phase; 1 gradient per step"
    steps = "K"
    shared = Record(x="x")
    message = Record(dx="x")

    def __post_init__(self):
        for d, u, name in ((self.d, self.u, "d"), (self.d_g, self.u_g, "d_g")):
            if d is not None and d > u:
                raise ValueError(f"{name}: expected at most the upper bound {u}, got {d}")

    @property
    def bias(self) -> str:
        bounds = self.u_g < math.inf or self.d_g
        return "it bounds the average: set u_g = inf and leave d_g out" if bounds else ""

    def client_round(self, now, shared, client, message, oracle):
        x = shared.x
        for k in range(1, self.K + 1):
            g = _bi_clip(oracle.grad(x, oracle.sample()), self.d, self.u)
            x = oracle.sets.x(x - self.eta(now.step(k)) * g)
        message.dx = x - shared.x

    def server_round(self, now, shared, mean):
        shared.x = now.sets.x(shared.x + self.eta_g(now.round) * _bi_clip(mean.dx, self.d_g, self.u_g))


def _ratio(change: torch.Tensor, eta: float) -> torch.Tensor | float:
    """Return a change by a projection, divided by the step size; 0 for a step of 0."""
    return change / eta if eta else 0.0


def _bi_clip(v: torch.Tensor, d: float | None, u: float) -> torch.Tensor:
    return v.sign() * v.abs().clamp(d or 0.0, u)
