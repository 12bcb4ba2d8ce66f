"""LocalAdaSEG (Liao et al. 2024): local extragradient steps with adaptive step sizes.

In step t, client i has the step size η_i = D α / √(G_0² + Σ (Z_i)²), where the sum is over its earlier steps
in all rounds::

    x = Π[z - η_i V(z; ξ)]    z⁺ = Π[z - η_i V(x; ξ')]    (Z_i)² = (‖x - z‖² + ‖x - z⁺‖²) / (5 η_i²)

Rounds start at the average of the z_i with weights proportional to 1/η_i. Here x is z_t of the paper and z is
z̃_t.

Readings:

* *Average.* Clients send (z_i - z)/η_i and 1/η_i, with the η_i of their next step and the z at the start of
  the round: a change, of which compression removes less than of z_i/η_i.
* *α* is 1 by default. The theory has 1/√N for nonsmooth problems, and a power of the number of steps for
  smooth problems.
* *Minimax.* There is one step size for both blocks, z = (x, y).
* *Output.* The average of x over clients and steps.
"""

from __future__ import annotations

import torch
from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm
from mpifed.core.records import Record, not_sent

__all__ = ["LocalAdaSEG"]


@hyperparameters
class LocalAdaSEG(Algorithm):
    """LocalAdaSEG: extragradient with a step size per client that adapts to its operator values."""

    K: int = Field(ge=1, description="local steps per round")
    G_0: float = Field(gt=0, description="initial guess G_0 of the norm of V")
    D: float = Field(gt=0, description="diameter D of the set")
    alpha: float = Field(default=1.0, gt=0, description="factor α of the step sizes")

    example = {"G_0": 1.0, "D": 1.0}
    source = "Liao et al. 2024, LocalAdaSEG"
    cites = ("liao2024localadaseg",)
    family = "operator"
    paper_cost = "up D + 1; down D; 1 phase; 2 operator values per step"
    calls_per_step = 2
    partial_participation = False
    output = "average"
    averages = {"z": "average"}
    steps = "K"
    shared = Record(z="z", average=not_sent("z"))
    client = Record(squares="scalar")
    message = Record(step="z", inverse_eta="scalar", x_sum=not_sent("z"))

    def step_size(self, squares):
        """Return η_i for the sum of the earlier (Z_i)², ``[C, 1]``."""
        return self.D * self.alpha / (self.G_0**2 + squares).sqrt()

    def client_round(self, now, shared, client, message, oracle):
        z, squares, eta = shared.z, client.squares, self.step_size(client.squares)
        for _ in range(self.K):
            start = z
            x = oracle.sets.z(start - eta * oracle.operator(start, oracle.sample()))
            z = oracle.sets.z(start - eta * oracle.operator(x, oracle.sample()))
            squares = squares + (_square(x - start) + _square(x - z)) / (5 * eta**2)
            eta = self.step_size(squares)
            message.x_sum += x
        client.squares = squares
        message.step, message.inverse_eta = (z - shared.z) / eta, 1 / eta

    def server_round(self, now, shared, mean):
        shared.z = now.sets.z(shared.z + mean.step / mean.inverse_eta)
        shared.average += (mean.x_sum / self.K - shared.average) / (now.step(self.K) / self.K)


def _square(v: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(v, dim=-1, keepdim=True) ** 2
