"""SimFBO and ShroFBO (Yang, Xiao & Ji 2023): federated bilevel optimisation with one communication per round.

x, y and z take local steps at the same time. y descends along ∇_y g, and x along the hypergradient
∇_x f - ∇²_xy g z. z solves the linear system ∇²_yy g z = ∇_y f by descent. Clients send the sums of their
directions, with which the server steps.

Readings:

* *Samples.* Each step uses one sample ζ for ∇_y g and the products with its second derivatives, and another
  sample ξ for ∇f.
* *Weights.* The server multiplies the weighted sum of the cohort's directions by N / |S|, as in
  Fed-Norm-SGDA. The weights of the steps at a client are 1.
* *ShroFBO* (``normalized``): the directions of client i are divided by τ_i / τ_eff, where τ_eff is the mean
  of the τ_i by default, so that clients with many steps do not dominate.
* *Radius.* The server projects z onto the ball of this radius.
* *Sets.* The method has no projection of x and y; problems with sets are refused.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from mpifed.algorithms.unequal_steps import UnequalSteps, sampling_scale, step_masks
from mpifed.base.settings import hyperparameters
from mpifed.core.device import to_device
from mpifed.core.records import Record
from mpifed.core.schedules import Rate
from mpifed.core.sets import Ball

__all__ = ["ShroFBO", "SimFBO"]


@hyperparameters
class SimFBO(UnequalSteps):
    """SimFBO: simultaneous local steps of x, y and z, and server steps along the sums of their directions."""

    eta_x: Rate = Field(description="local step size of x")
    eta_y: Rate = Field(description="local step size of y")
    eta_z: Rate = Field(description="local step size of z")
    gamma_x: Rate = Field(description="server step size of x in a round")
    gamma_y: Rate = Field(description="server step size of y in a round")
    gamma_z: Rate = Field(description="server step size of z in a round")
    radius: float | None = Field(
        default=None, gt=0, description="radius of the ball that contains z; default: no projection"
    )
    normalized: bool = Field(default=False, description="divide directions by τ_i / τ_eff, as in ShroFBO")
    tau_eff: float | None = Field(
        default=None, gt=0, description="effective steps τ_eff with normalized; default: the mean of tau"
    )

    needs = {"tau_eff": ("normalized = true", lambda method: method.normalized)}
    source = "Yang, Xiao & Ji 2023, SimFBO and ShroFBO"
    cites = ("yang2023simfbo",)
    family = "bilevel"
    paper_cost = "up and down |x| + 2|y|; 1 phase; 1 of ∇f, 1 of ∇_y g and 1 of its products per step"
    calls_per_step = 3
    constrained = False
    shared = Record(x="x", y="y", z="y")
    message = Record(hx="x", hy="y", hz="y")

    def client_round(self, now, shared, client, message, oracle):
        x, y, z, tau = shared.x, shared.y, shared.z, self.steps_of(now, oracle)
        for k, active in enumerate(step_masks(oracle, tau), start=1):
            zeta, xi = oracle.sample(of="g"), oracle.sample(of="f")
            hy = oracle.lower_grad(x, y, zeta)
            product_x, product_y = oracle.lower_products(x, y, z, zeta)
            fx, fy = oracle.upper_grad(x, y, xi)
            hx, hz = fx - product_x, product_y - fy
            if active is not None:
                hx, hy, hz = (torch.where(active, h, 0.0) for h in (hx, hy, hz))
            t = now.step(k)
            x, y, z = x - self.eta_x(t) * hx, y - self.eta_y(t) * hy, z - self.eta_z(t) * hz
            message.hx += hx
            message.hy += hy
            message.hz += hz
        if self.normalized:
            scale = (self.tau_eff or float(np.mean(self.tau))) / tau[:, None]
            scale = to_device(scale, x.device, x.dtype)
            message.hx *= scale
            message.hy *= scale
            message.hz *= scale

    def server_round(self, now, shared, mean):
        scale = sampling_scale(now)
        shared.x = shared.x - scale * self.gamma_x(now.round) * mean.hx
        shared.y = shared.y - scale * self.gamma_y(now.round) * mean.hy
        z = shared.z - scale * self.gamma_z(now.round) * mean.hz
        shared.z = Ball(radius=self.radius)(z) if self.radius else z


@hyperparameters
class ShroFBO(SimFBO):
    """ShroFBO: SimFBO with normalized directions."""

    normalized: bool = Field(default=True, init=False)
