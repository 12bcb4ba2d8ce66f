"""FedProx (Li et al. 2020): local steps on f_i + (μ/2) ‖x - x_t‖², of which stragglers take fewer.

Readings:

* *Inexact solution.* The paper requires a γ-inexact minimiser of the local function. K steps along stochastic
  gradients are those of the reference implementation FedProx.
* *Local optimiser.* The paper has plain SGD. With ``local``, momentum and weight decay act on the gradient of
  f_i + (μ/2) ‖x - x_t‖², and of -f_i + (μ/2) ‖y - y_t‖² in y. Momentum starts at 0 in every round.
* *Stragglers.* Each selected client is a straggler with the given probability, independently in each round,
  and then takes a number of steps that is uniform in 1, ..., K - 1. Its result has the same weight as the
  results of other clients. The reference implementation FedProx draws an exact share of the cohort and
  numbers of epochs. It compares with a FedAvg that leaves stragglers out, which is ``participation.dropout``.
* *Minimax.* The paper minimises. If the problem has a block y, y ascends in the same way on f_i - (μ/2)
  ‖y - y_t‖².
* *Weights of clients* are those of the job (``participation.weights``).
* *Sets.* If the problem has a set, every new point is projected, at the clients and at the server. The paper
  has no sets.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from mpifed.algorithms.local_optimisers import SGD, LocalOptimiser
from mpifed.algorithms.unequal_steps import numbers_of_steps, step_masks
from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm
from mpifed.core.epochs import LocalSteps
from mpifed.core.records import Record
from mpifed.core.schedules import Rate

__all__ = ["FedProx"]


@hyperparameters
class FedProx(Algorithm):
    """FedProx: local steps with a proximal term that pulls to the server's point, then the average."""

    K: LocalSteps = Field(description="local steps per round")
    eta: Rate = Field(description="local step size of both blocks")
    mu: float = Field(default=0.1, ge=0, description="weight μ of the proximal term; 0: FedAvg, FSGDA")
    eta_g: Rate = Field(default=1.0, description="server step size in a round; 1: plain averaging")
    stragglers: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="probability that a client takes 1 to K - 1 steps in a round; default: no stragglers",
    )
    local: LocalOptimiser = Field(default=SGD(), description="optimiser of the local steps")

    source = "Li et al. 2020, Algorithm 2"
    cites = ("li2020fedprox",)
    paper_cost = "up D; down D; 1 phase; 1 gradient per step"
    steps = "K"
    shared = Record(x="x", y="y")
    message = Record(dx="x", dy="y")

    def __post_init__(self):
        if self.stragglers and self.K == 1:
            raise ValueError("stragglers take fewer than K local steps: expected K >= 2, got 1")

    def client_round(self, now, shared, client, message, oracle):
        x, y, vx, vy = shared.x, shared.y, None, None
        for k, active in enumerate(step_masks(oracle, self.steps_of(now, oracle)), 1):
            eta = self.eta(now.step(k))
            gx, gy = oracle.grad(x, y, oracle.sample())
            dx, vx = self.local(gx + self.mu * (x - shared.x), x, vx)
            dy, vy = self.local(self.mu * (y - shared.y) - gy, y, vy)
            new_x, new_y = oracle.sets.x(x - eta * dx), oracle.sets.y(y - eta * dy)
            x = new_x if active is None else torch.where(active, new_x, x)
            y = new_y if active is None else torch.where(active, new_y, y)
        message.dx, message.dy = x - shared.x, y - shared.y

    def server_round(self, now, shared, mean):
        shared.x = now.sets.x(shared.x + self.eta_g(now.round) * mean.dx)
        shared.y = now.sets.y(shared.y + self.eta_g(now.round) * mean.dy)

    def steps_of(self, now, oracle) -> np.ndarray:
        """Return the numbers of local steps of the clients that are stepped together, ``[C]``."""
        tau = numbers_of_steps(oracle, self.K)
        if not self.stragglers:
            return tau
        chance, share = now.stream("stragglers", oracle.client).uniform(2)[:, 0].T
        return np.where(chance < self.stragglers, 1 + (share * (tau - 1)).astype(int), tau)
