"""CODA+ and CODASCA (Yuan et al. 2021): stagewise proximal methods, made for AUC maximisation.

A stage s solves a subproblem with the proximal term ‖x - x_ref‖² / (2γ), from where the stage before has
ended, by T_s rounds with the step η_s. CODA+ averages, CODASCA corrects its local steps by the control
variates of SCAFFOLD, option II.

Readings:

* *Lengths.* T_s counts rounds, not steps: T_s = T growthˢ⁻¹, rounded, and η_s = η / decayˢ⁻¹. The theory has
  one ratio for both, ``growth = decay``, nearer to 1 the worse the problem is conditioned; the experiments
  have 3. In the theory the local steps grow too, as 1 / √η_s; here K is constant, as in the experiments.
* *The proximal term* covers all of x; for AUC maximisation these are the network and both thresholds a, b.
  y has none.
* *The reference point* x_ref of a stage is the point that the stage before has ended with, or the average of
  the points that its rounds have ended with: ``reference``. The first one is the starting point. Neither
  moves x, and y is carried on, where CODA without the plus would estimate it again.
* *Variates* contain the proximal term's gradient, which is another one in the next stage. They start every
  stage at 0, also for a client that is sampled for the first time in the middle of it, unless
  ``keep_variates``.
* *A cohort* moves CODASCA's c by its share of all weight. CODA+ is printed for all clients; with a cohort the
  average is the cohort's, as CODASCA's is.
* *Sets.* Where the problem has sets, both blocks are projected after every local step and at the server. The
  paper has none. Variates are made of the projected displacements, as in ``mpifed.algorithms.variates``.
* *Letters.* K is the paper's I, the local steps.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm
from mpifed.core.records import Record, stored

__all__ = ["CODAPlus", "CODASCA"]


@hyperparameters
class CODAPlus(Algorithm):
    """CODA+: Local-SGDA with one step size for both blocks, in stages with a proximal term."""

    K: int = Field(ge=1, description="local steps per round")
    eta: float = Field(gt=0, description="step size η of both blocks in the first stage")
    T: int = Field(ge=1, description="rounds of the first stage")
    growth: float = Field(
        default=3.0, ge=1, description="how many times as long the next stage is, in rounds, rounded"
    )
    decay: float = Field(default=3.0, ge=1, description="how many times smaller the next stage's step is")
    prox: float = Field(default=0.002, ge=0, description="weight 1/γ of the proximal term; 0 leaves it out")
    reference: Literal["last", "average"] = Field(
        default="last", description="x_ref of the next stage: the stage's last point, or its rounds' average"
    )

    source = "Yuan et al. 2021, CODA+"
    cites = ("yuan2021codasca",)
    paper_cost = "up D; down D, and x_ref in a new stage; 1 phase; 1 gradient a step"
    steps = "K"
    message = Record(dx="x", dy="y")

    @property
    def shared(self) -> Record:
        average = {"average": "x"} if self.reference == "average" else {}
        return Record(x="x", y="y", ref="x", **average)

    def initialize(self, shared):
        shared.ref = shared.x

    def stage(self, number: int) -> tuple[int, int, int]:
        """The number of a round's stage, from 0; the round's number in it, from 1; how many it has."""
        stage, rounds = 0, self.T
        while number > rounds:
            stage, number = stage + 1, number - rounds
            rounds = round(self.T * self.growth**stage)
        return stage, number, rounds

    def step(self, now) -> float:
        """η_s."""
        return self.eta / self.decay ** self.stage(now.round)[0]

    def displacements(self, now, shared, oracle, bx=0.0, by=0.0):
        """How far K steps lead, each along the gradient, the proximal term and a correction."""
        x, y, eta = shared.x, shared.y, self.step(now)
        for _ in range(self.K):
            gx, gy = oracle.grad(x, y, oracle.sample())
            x = oracle.sets.x(x - eta * (gx + self.prox * (x - shared.ref) + bx))
            y = oracle.sets.y(y + eta * (gy + by))
        return x - shared.x, y - shared.y

    def client_round(self, now, shared, client, message, oracle):
        message.dx, message.dy = self.displacements(now, shared, oracle)

    def server_round(self, now, shared, mean):
        shared.x = now.sets.x(shared.x + mean.dx)
        shared.y = now.sets.y(shared.y + mean.dy)
        self.end_round(now, shared)

    def end_round(self, now, shared) -> bool:
        """Note the point for x_ref, and put x_ref in its place at the end of a stage.

        Returns:
            Whether a stage ends here.
        """
        _, round, rounds = self.stage(now.round)
        if self.reference == "average":
            shared.average += (shared.x - shared.average) / round
        if round == rounds:
            shared.ref = shared.average if self.reference == "average" else shared.x
        return round == rounds


@hyperparameters
class CODASCA(CODAPlus):
    """CODASCA: CODA+ with control variates in both blocks and a global step size."""

    eta_g: float = Field(default=1.0, ge=0, description="global step size; 1 is plain averaging")
    keep_variates: bool = Field(default=False, description="carry the variates on into the next stage")

    source = "Yuan et al. 2021, CODASCA"
    cites = ("yuan2021codasca", "karimireddy2020scaffold")
    paper_cost = "up 2D; down 2D, and x_ref in a new stage; 1 phase; 1 gradient a step"
    client = Record(cx="x", cy="y", stage="scalar")
    message = Record(dx="x", dy="y", dcx=stored("x"), dcy=stored("y"))

    @property
    def shared(self) -> Record:
        return super().shared | Record(cx="x", cy="y")

    def client_round(self, now, shared, client, message, oracle):
        if not self.keep_variates:
            stage = self.stage(now.round)[0]
            of_this_stage = client.stage == stage
            client.cx *= of_this_stage
            client.cy *= of_this_stage
            client.stage = stage
        corrections = shared.cx - client.cx, shared.cy - client.cy
        dx, dy = self.displacements(now, shared, oracle, *corrections)
        scale = self.K * self.step(now)
        message.dx, message.dy = dx, dy
        message.dcx, message.dcy = -dx / scale - shared.cx, dy / scale - shared.cy  # c_i⁺ - c_i
        client.cx += message.dcx
        client.cy += message.dcy

    def server_round(self, now, shared, mean):
        shared.x = now.sets.x(shared.x + self.eta_g * mean.dx)
        shared.y = now.sets.y(shared.y + self.eta_g * mean.dy)
        shared.cx += now.cohort_weight * mean.dcx
        shared.cy += now.cohort_weight * mean.dcy
        if self.end_round(now, shared) and not self.keep_variates:
            shared.cx, shared.cy = 0.0, 0.0
