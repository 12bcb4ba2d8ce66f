"""Fed-NSGDA-M, FedMuon-DA and FedSGDA-Clip (Zhang & Gao, Algorithms 1 and 3, eq. 21): heavy-tailed noise.

The methods differ in the direction of the local step: u/‖u‖, the polar factor of u, or the clipped u.

Line numbers in the margin are those of Algorithm 1. Algorithm 3 differs only in line 6, which is its lines
6-9; its line 11 is line 8 here, and its lines 13-15 are lines 10-12. Round r is t = r - 1 in the paper. At
the start of a round, ``shared.gx`` is g_{x,t-1}, ``shared.u`` is u_{t-1}, and ``client.gx`` is g_{x,t-1}^(n).

Readings:

* *Momentum.* β is the weight of the fresh gradient, and 1 - β of the global momentum of the previous round,
  which is constant during a round.
* *Control variates.* They are averages of the gradients of the round, not of the momenta.
* *Misprint.* X_{t+1,i} in FedMuon-DA is read as X_{t,i+1}.
* *Global step.* It is γ / (η p) times the averaged displacement (line 11). If η is a schedule, η p is the sum
  of the round's local step sizes, so that γ multiplies a weighted mean of the directions.
* *Blocks.* x and y are normalised, clipped or orthogonalised separately. The direction of u = 0 is 0.
* *First round.* The paper does not specify u_{-1} and g_{-1}; ``first_round`` selects them:

  * ``beta_one`` (default): β = 1 in the first round and zero variates, as in the proof;
  * ``zero``: all are zero, with the usual β;
  * ``gradient``: momentum and variates are computed from p gradients of every client at the starting point.

* *Sets.* If the problem has sets, every new point is projected, at the clients and at the server. The paper
  has no sets.

u and v are not communicated, because clients can compute them from g_x and g_y.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.directions import Clip, Normalize, NormOver, Orthogonalize
from mpifed.core.records import Record, not_sent
from mpifed.core.schedules import PositiveRate, Rate, Weight

__all__ = ["FedNSGDAM", "FedMuonDA", "FedSGDAClip"]

_VARIATES = Record(gx="x", gy="y")


@hyperparameters
class _HeavyTailed(Algorithm):
    p: int = Field(ge=1, description="local steps per round")
    eta_x: PositiveRate = Field(description="local step size of x (descent)")
    eta_y: PositiveRate = Field(description="local step size of y (ascent)")
    gamma_x: Rate = Field(description="global step size of x in a round")
    gamma_y: Rate = Field(description="global step size of y in a round")
    beta_x: Weight = Field(
        default=0.9, description="weight of the fresh gradient in the momentum of x in a round"
    )
    beta_y: Weight = Field(
        default=0.9, description="weight of the fresh gradient in the momentum of y in a round"
    )
    first_round: Literal["beta_one", "zero", "gradient"] = Field(
        default="beta_one", description="momentum and variates before the first round (see Readings)"
    )

    example = {"gamma_x": 0.1, "gamma_y": 0.1}
    paper_cost = "up 2D (displacement and gradient); down 2D; 1 phase; 1 gradient per step"
    partial_participation = False
    steps = "p"
    shared = Record(x="x", y="y", u=not_sent("x"), v=not_sent("y")) | _VARIATES
    client = _VARIATES
    message = Record(dx="x", dy="y") | _VARIATES

    @property
    def start(self) -> tuple[Phase, ...]:
        if self.first_round != "gradient":
            return ()
        return (Phase(self.client_start, _VARIATES, self.server_start),)

    def _betas(self, now):
        is_first = now.round == 1 and self.first_round == "beta_one"
        return (1.0, 1.0) if is_first else (self.beta_x(now.round), self.beta_y(now.round))

    def client_start(self, now, shared, client, message, oracle):
        for _ in range(self.p):
            gx, gy = oracle.grad(shared.x, shared.y, oracle.sample())
            message.gx += gx / self.p
            message.gy += gy / self.p
        client.gx, client.gy = message.gx, message.gy

    def server_start(self, now, shared, mean):
        shared.gx, shared.gy, shared.u, shared.v = mean.gx, mean.gy, mean.gx, mean.gy

    def client_round(self, now, shared, client, message, oracle):
        x, y = shared.x, shared.y                                                           # line 3
        beta_x, beta_y = self._betas(now)
        for k in range(1, self.p + 1):                                                      # line 4
            t = now.step(k)
            gx, gy = oracle.grad(x, y, oracle.sample())
            u = beta_x * (gx + shared.gx - client.gx) + (1 - beta_x) * shared.u             # line 5
            v = beta_y * (gy + shared.gy - client.gy) + (1 - beta_y) * shared.v
            x = oracle.sets.x(x - self.eta_x(t) * self.direction(u, oracle.blocks["x"]))    # line 6
            y = oracle.sets.y(y + self.eta_y(t) * self.direction(v, oracle.blocks.get("y", {})))
            message.gx += gx / self.p                                                       # line 8
            message.gy += gy / self.p
        message.dx, message.dy = x - shared.x, y - shared.y                                 # for line 11
        client.gx, client.gy = message.gx, message.gy

    def server_round(self, now, shared, mean):
        beta_x, beta_y = self._betas(now)
        shared.gx, shared.gy = mean.gx, mean.gy                                             # line 10
        gamma_x, gamma_y = self.gamma_x(now.round), self.gamma_y(now.round)
        shared.x = now.sets.x(shared.x + gamma_x / now.total(self.eta_x) * mean.dx)         # line 11
        shared.y = now.sets.y(shared.y + gamma_y / now.total(self.eta_y) * mean.dy)
        shared.u = beta_x * shared.gx + (1 - beta_x) * shared.u                             # line 12
        shared.v = beta_y * shared.gy + (1 - beta_y) * shared.v


@hyperparameters
class FedNSGDAM(_HeavyTailed):
    """Fed-NSGDA-M: normalised local steps with global momentum and control variates."""

    norm_over: NormOver = Field(
        default="block", description="normalise the whole block, or every parameter tensor"
    )
    source = "Zhang & Gao n.d., Algorithm 1"
    cites = ("zhang_nd_fednsgdam",)

    @property
    def direction(self):
        return Normalize(self.norm_over)


@hyperparameters
class FedMuonDA(_HeavyTailed):
    """FedMuon-DA: local steps along the polar factor of matrix-shaped parameters; vectors are normalised."""

    orthogonalize: Literal["auto", "svd", "newton_schulz", "newton_schulz_cubic"] = Field(
        default="auto",
        description="polar factor by SVD, Jordan's quintic or the cubic iteration; auto: svd on CPUs, and on "
        "GPUs, where the SVD is slow, newton_schulz, which gives different results",
    )
    iterations: int = Field(default=5, ge=1, description="iterations of a Newton-Schulz method")

    needs = {
        "iterations": ("a Newton-Schulz method", lambda method: method.orthogonalize != "svd"),
    }
    source = "Zhang & Gao n.d., Algorithm 3"
    cites = ("zhang_nd_fednsgdam", "jordan2024muon")

    @property
    def direction(self):
        return Orthogonalize(self.orthogonalize, self.iterations)


@hyperparameters
class FedSGDAClip(_HeavyTailed):
    """FedSGDA-Clip: local steps along the momentum clipped to norm τ."""

    tau: float = Field(
        default=0.1,
        gt=0,
        allow_inf_nan=True,
        description="clipping threshold τ of both blocks; inf: no clipping",
    )
    norm_over: NormOver = Field(
        default="block", description="clip the whole block, or every parameter tensor"
    )
    source = "Zhang & Gao n.d., eq. 21"
    cites = ("zhang_nd_fednsgdam",)

    @property
    def direction(self):
        return Clip(self.tau, self.norm_over)
