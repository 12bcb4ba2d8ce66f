"""Fed-Norm-SGDA and Fed-Norm-SGDA+ (Sharma et al. 2023): clients with different numbers of local steps. AFL
(Mohri, Sivek & Suresh 2019) is the case of one local step.

Every client sends the weighted mean G_i of its gradients, so its weight w_i does not depend on its number of
steps τ_i. Plain averaging of points would solve a problem in which clients are weighted by τ_i.

Readings:

* *Weights of clients.* w_i are the weights of the job (``participation.weights``). If P of n clients are
  sampled, the server uses the unbiased estimate Σ w_i (n / P) G_i, whose weights do not sum to 1. If the
  averages of the job are unbiased (``availability.unbiased``), it uses Σ w_i G_i / π_i, where π_i is the
  probability that client i is sampled.
* *Weights of steps.* a^(k) depends only on the step: r^k, or a list. The paper allows it to depend on the
  client.
* *τ_eff* is the mean of τ_i over all n clients by default.
* *Sets.* Points are projected at the server only.
* *Schedules.* Step k of round r is step t = (r - 1) max τ_i + k.
* *"+".* x̃ is updated before the local steps of the paper's rounds t = r - 1 with S | t.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from mpifed.algorithms.snapshots import gradients, snapshot_of, store_snapshot
from mpifed.algorithms.unequal_steps import UnequalSteps, sampling_scale, step_masks
from mpifed.base.errors import short_repr
from mpifed.base.settings import hyperparameters
from mpifed.core.device import to_device
from mpifed.core.records import Record
from mpifed.core.schedules import Rate
from mpifed.core.sets import BlockMirror, Entropy, IndicatorOf

__all__ = ["AFL", "FedNormSGDA", "FedNormSGDAPlus"]

_ENTROPY = Entropy()


@hyperparameters
class _FedNorm(UnequalSteps):
    """Base class: normalised sums of the gradients of τ_i local steps, and the server's step."""

    eta_x: Rate = Field(description="local step size of x (descent)")
    eta_y: Rate = Field(description="local step size of y (ascent)")
    gamma_x: Rate = Field(description="global step size of x in a round; η_x is plain averaging")
    gamma_y: Rate = Field(description="global step size of y in a round; η_y is plain averaging")
    a: float | tuple[float, ...] = Field(
        default=1.0, description="weights of the local steps: r for 1, r, r², ..., or a list"
    )
    tau_eff: float | None = Field(default=None, gt=0, description="effective steps; default: mean of τ_i")
    mirror: BlockMirror = Field(default="euclidean", init=False)

    cites = ("sharma2023fednorm",)
    projects = "server"
    message = Record(gx="x", gy="y")

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.a, float) and not 0 < self.a <= 1:
            raise ValueError(f"a: expected a ratio r in (0, 1], or a list of weights, got {self.a}")
        if isinstance(self.a, tuple) and (len(self.a) < self.longest or min(self.a) <= 0):
            got = short_repr(self.a)
            raise ValueError(f"a: expected {self.longest} weights > 0, one per local step, got {got}")

    def local_steps(self, now, shared, message, oracle, snapshot):
        """Take the local steps with y's gradient at x = ``snapshot``; ``None``: at the client's x."""
        x, y, tau = shared.x, shared.y, self.steps_of(now, oracle)
        a = self.a if isinstance(self.a, tuple) else [self.a**k for k in range(self.longest)]
        for k, (active, weight) in enumerate(zip(step_masks(oracle, tau), a), start=1):
            gx, gy = (weight * g for g in gradients(oracle, x, y, snapshot, oracle.sample()))
            if active is not None:
                gx, gy = torch.where(active, gx, 0.0), torch.where(active, gy, 0.0)
            x, y = x - self.eta_x(now.step(k)) * gx, y + self.eta_y(now.step(k)) * gy
            message.gx += gx
            message.gy += gy
        total = to_device(np.cumsum(a)[tau - 1, None], message.gx.device, message.gx.dtype)
        message.gx /= total
        message.gy /= total

    def global_step(self, now, shared, mean):
        scale = sampling_scale(now) * (self.tau_eff or float(np.mean(self.tau)))
        shared.x = now.sets.x(shared.x - scale * self.gamma_x(now.round) * mean.gx)
        step = scale * self.gamma_y(now.round) * mean.gy
        if self.mirror == "entropy":
            simplex = IndicatorOf(now.sets.y)
            shared.y = _ENTROPY(_ENTROPY.dual(shared.y, simplex) + step, 1.0, simplex)
        else:
            shared.y = now.sets.y(shared.y + step)


@hyperparameters
class FedNormSGDA(_FedNorm):
    """Fed-Norm-SGDA: client i takes τ_i local steps and sends the normalised sum of its gradients."""

    source = "Sharma et al. 2023, Fed-Norm-SGDA"
    paper_cost = "up D; down D; 1 phase; 1 gradient per step"
    shared = Record(x="x", y="y")

    def client_round(self, now, shared, client, message, oracle):
        self.local_steps(now, shared, message, oracle, None)

    def server_round(self, now, shared, mean):
        self.global_step(now, shared, mean)


@hyperparameters
class FedNormSGDAPlus(_FedNorm):
    """Fed-Norm-SGDA+: y's gradient is evaluated at a snapshot of x that is updated every S rounds."""

    S: int = Field(ge=1, kw_only=True, description="rounds between two snapshots of x")

    source = "Sharma et al. 2023, Fed-Norm-SGDA+"
    paper_cost = "up D; down D, and x̃ after an update; 1 phase; 2 gradients per step, of one block each"
    calls_per_step = 2
    shared = Record(x="x", y="y", snapshot="x")

    def client_round(self, now, shared, client, message, oracle):
        self.local_steps(now, shared, message, oracle, snapshot_of(now, shared, self.S))

    def server_round(self, now, shared, mean):
        store_snapshot(now, shared, self.S)
        self.global_step(now, shared, mean)


@hyperparameters
class AFL(FedNormSGDA):
    """AFL: one step of x and of the clients' weights λ (block y) per round, projected at the server.

    AFL is Fed-Norm-SGDA with one local step, on a mixture of the clients' losses such as ``ClientMixture``.
    γ_w and γ_λ are ``gamma_x`` and ``gamma_y``. With a cohort S, the gradient in λ is estimated by
    (N/|S|) ℓ_i for the clients i of S.

    Readings:

    * *Samples.* The gradients in x and in λ have the same sample.
    * *Draw of a domain.* A variant of the paper draws one client by λ for the gradient in x. Here, every
      client of the cohort computes a gradient, which is weighted by λ.
    * *Output.* As in the paper, the averages of x and λ over the rounds.
    * *Exponentiated gradient.* ``mirror = "entropy"`` is mirror ascent on the simplex: λ_i exp(γ_λ g_i),
      normalised, as in AgnosticFedAvg (Ro et al. 2021), whose domains are the clients here.
    * *Other implementations.* FedTorch replaces λ_i ≤ .001 by .001 and does not multiply losses by N/|S|. Its
      program for a single process multiplies γ_λ by 0.9 per round and updates λ with the loss of the last
      client of the cohort only; its program for several processes does neither. None of this is part of the
      paper.
    """

    tau: int = Field(default=1, init=False)
    eta_x: Rate = Field(default=0.0, init=False)
    eta_y: Rate = Field(default=0.0, init=False)
    a: float = Field(default=1.0, init=False)
    tau_eff: None = Field(default=None, init=False)
    mirror: BlockMirror = Field(
        default="euclidean", description="step of λ: projected gradient, or entropy: exponentiated gradient"
    )

    source = "Mohri, Sivek & Suresh 2019"
    cites = ("mohri2019afl", "ro2021agnostic")
    paper_cost = "up |x| and 1 number; down |x| and |λ|; 1 phase; 1 gradient per round"
    output = "average"
    example = {}
