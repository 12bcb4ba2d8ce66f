"""FedNova (Wang et al. 2020): clients with different numbers of local steps send normalised displacements.

The displacement of client i is -η times its gradients, weighted by a vector a_i that follows from its number
of steps, the momentum and the proximal term. Client i sends d_i = displacement / ‖a_i‖_1, so that its
influence does not depend on its number of steps. Without momentum and proximal term, a_i consists of τ_i
ones.

Readings:

* *Momentum.* The buffer v starts at 0 in every round. Nesterov's variant steps along g + ρ v. Its ‖a_i‖_1 is
  exact here; the reference implementation FedNova uses that of the plain momentum.
* *τ_eff* is the weighted mean of the ‖a_i‖_1 of the cohort, or, as in the reference implementation FedNova,
  of the τ_i if there is a proximal term. With unbiased averages (``availability.unbiased``), the product of
  this mean and the mean of the d_i would be biased, so the combination is refused unless ``tau_eff`` is a
  number.
* *Momentum and proximal term.* The reference implementation FedNova multiplies their recursions if both are
  given; here, this is an error.
* *Weights of clients* are those of the job (``participation.weights``), which sum to 1 over the cohort. In
  the paper all clients participate.
* *Sets.* If the problem has a set, every new point is projected, at the clients and at the server. The paper
  has no sets.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from mpifed.algorithms.unequal_steps import UnequalSteps, step_masks
from mpifed.base.settings import hyperparameters
from mpifed.core.device import to_device
from mpifed.core.epochs import LocalSteps
from mpifed.core.records import Record

__all__ = ["FedNova"]


@hyperparameters
class FedNova(UnequalSteps):
    """FedNova: client i takes τ_i local steps and sends its normalised displacement."""

    tau: LocalSteps | tuple[int, ...] = Field(
        description="local steps τ_i: one number, in epochs, or one per client"
    )
    eta: float = Field(ge=0, description="local step size, a number, because ‖a_i‖_1 depends on η μ")
    rho: float | None = Field(
        default=None, ge=0, lt=1, description="decay ρ of the local momentum; default: no momentum"
    )
    nesterov: bool = Field(default=False, description="Nesterov's variant of the local momentum")
    mu: float | None = Field(
        default=None, ge=0, description="weight μ of a local proximal term, as in FedProx; default: no term"
    )
    beta: float = Field(default=0.0, ge=0, lt=1, description="decay β of the momentum of the server")
    tau_eff: float | None = Field(
        default=None, gt=0, description="effective steps; default: weighted mean over the cohort"
    )

    needs = {"nesterov": ("rho > 0", lambda method: method.rho)}
    source = "Wang et al. 2020, FedNova"
    cites = ("wang2020fednova",)
    family = "minimisation"
    paper_cost = "up D and 1 scalar; down D; 1 phase; 1 gradient per step"

    def __post_init__(self):
        super().__post_init__()
        if self.rho and self.mu:
            raise ValueError(
                f"rho and mu: expected a local momentum or a proximal term, got rho = {self.rho} and "
                f"mu = {self.mu}: leave one of them out"
            )
        if self.mu and self.eta * self.mu > 1:
            raise ValueError(f"mu: expected eta * mu <= 1, got {self.eta * self.mu:g}")

    @property
    def bias(self) -> str:
        return "" if self.tau_eff else "it is a product of two averages: set algorithm.tau_eff"

    @property
    def shared(self) -> Record:
        return Record(x="x", m="x") if self.beta else Record(x="x")

    @property
    def message(self) -> Record:
        return Record(d="x") if self.tau_eff else Record(d="x", tau="scalar")

    def client_round(self, now, shared, client, message, oracle):
        rho, mu, tau = self.rho or 0.0, self.mu or 0.0, self.steps_of(now, oracle)
        x, v = shared.x, 0.0
        for active in step_masks(oracle, tau):
            g = oracle.grad(x, oracle.sample())
            v = rho * v + g
            step = g + rho * v if self.nesterov else v
            new = oracle.sets.x(x - self.eta * (step + mu * (x - shared.x)))
            x = new if active is None else torch.where(active, new, x)
        norms = self.norms(int(tau.max()))[tau - 1, None]
        message.d = (shared.x - x) / to_device(norms, x.device, x.dtype)
        if not self.tau_eff:
            message.tau = to_device(tau[:, None] if mu else norms, x.device, x.dtype)

    def server_round(self, now, shared, mean):
        step = (self.tau_eff or mean.tau) * mean.d
        if self.beta:
            step = self.beta * shared.m + step
            shared.m = step
        shared.x = now.sets.x(shared.x - step)

    def norms(self, longest: int) -> np.ndarray:
        """Return ‖a‖_1 of 1, 2, ..., ``longest`` local steps."""
        k = np.arange(longest)
        if self.mu:
            return np.cumsum((1 - self.eta * self.mu) ** k)
        rho = self.rho or 0.0
        norms = np.cumsum(np.cumsum(rho**k))
        return k + 1 + rho * norms if self.nesterov else norms
