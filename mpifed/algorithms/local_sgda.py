"""Local-SGDA (Deng & Mahdavi 2021), which most papers on federated minimax compare with."""

from __future__ import annotations

from pydantic import Field

from mpifed.core.algorithm import Algorithm
from mpifed.core.records import Record
from mpifed.core.schedules import Rate
from mpifed.core.settings import hyperparameters

__all__ = ["LocalSGDA"]


@hyperparameters
class LocalSGDA(Algorithm):
    """Local stochastic gradient descent ascent: q simultaneous steps, then the average of the cohort.

    Readings: both gradients are taken at the old point with one sample. Both blocks are projected after every
    local step where the problem has sets; the paper has none for x. The average of a sampled cohort replaces
    (x, y).
    """

    q: int = Field(ge=1, description="local steps per round")
    eta_x: Rate = Field(description="step size of x (descent)")
    eta_y: Rate = Field(description="step size of y (ascent)")

    source = "Deng & Mahdavi 2021, Local-SGDA"
    cites = ("deng2021localsgda",)
    paper_cost = "up D; down D; 1 phase; 1 gradient a step"
    steps = "q"
    shared = Record(x="x", y="y")
    message = Record(x="x", y="y")

    def client_round(self, now, shared, client, message, oracle):
        x, y = shared.x, shared.y
        for k in range(1, self.q + 1):
            t = now.step(k)
            gx, gy = oracle.grad(x, y, oracle.sample())
            x = oracle.sets.x(x.sub(gx, alpha=self.eta_x(t)))
            y = oracle.sets.y(y.add(gy, alpha=self.eta_y(t)))
        message.x, message.y = x, y
