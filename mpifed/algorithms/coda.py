"""CODA+ and CODASCA (Yuan et al. 2021): stagewise proximal methods for AUC maximisation.

Stage s solves a subproblem with the proximal term ‖x - x_ref‖² / (2γ) by T_s rounds with the step size η_s,
starting at the last point of the previous stage. CODA+ averages local steps. CODASCA corrects them with the
control variates of SCAFFOLD, option II.

Readings:

* *Length of stages.* T_s is a number of rounds: T_s = T growthˢ⁻¹, rounded, and η_s = η / decayˢ⁻¹. In the
  theory both ratios are equal, ``growth = decay``, and closer to 1 for worse conditioned problems. The
  experiments use 3. In the theory the number of local steps grows as 1 / √η_s; here K is constant, as in the
  experiments.
* *Proximal term.* It applies to all of x, which in AUC maximisation consists of the network and the
  thresholds a and b, and not to y.
* *Reference point.* x_ref of a stage is the last point of the previous stage, or the average of the points
  after each of its rounds (``reference``). The first x_ref is the starting point. x itself does not change
  between stages. y does not change either, whereas CODA estimates it again.
* *Control variates.* They contain the gradient of the proximal term, which changes with the stage. Hence they
  are 0 at the start of every stage, also for clients that are sampled later, unless ``keep_variates``.
* *Cohorts.* c of CODASCA is updated by the cohort's share of the total weight. The paper states CODA+ for all
  clients; here the average is over the cohort, as in CODASCA.
* *Sets.* If the problem has sets, both blocks are projected after every local step and at the server. The
  paper has no sets. Variates are computed from projected displacements, see ``mpifed.algorithms.variates``.
* *Letters.* K is the paper's I, the number of local steps.
* *Script of the authors* for CODASCA on CIFAR-100: the variates are means of gradients without the proximal
  term and before the clipping of their coordinates, and are kept between stages. The first x_ref is random
  with the standard deviation .01; the next ones are averages over the local steps of each client, which the
  clients do not share. The gradient in α is the closed form 2 (m + b - a - α), with the thresholds after
  their step, and α is clipped to [0, 999].
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm
from mpifed.core.records import Record, stored
from mpifed.core.schedules import Rate

__all__ = ["CODAPlus", "CODASCA"]


@hyperparameters
class _Stages(Algorithm):
    """Base class: the stages, and local steps with a proximal term."""

    K: int = Field(ge=1, description="local steps per round")
    eta: float = Field(
        gt=0, description="step size η of both blocks in the first stage, a number: stages are its schedule"
    )
    T: int = Field(ge=1, description="rounds of the first stage")
    growth: float = Field(
        default=3.0, ge=1, description="ratio of the numbers of rounds of successive stages"
    )
    decay: float = Field(default=3.0, ge=1, description="ratio of the step sizes of successive stages")
    prox: float = Field(default=0.002, ge=0, description="weight 1/γ of the proximal term")
    reference: Literal["last", "average"] = Field(
        default="last", description="x_ref of the next stage: last point, or average of the rounds' points"
    )

    steps = "K"

    @property
    def points(self) -> Record:
        """The fields (x, y), x_ref and, if needed, the average of x over the rounds of a stage."""
        average = {"average": "x"} if self.reference == "average" else {}
        return Record(x="x", y="y", ref="x", **average)

    def initialize(self, shared):
        shared.ref = shared.x

    def stage(self, number: int) -> tuple[int, int, int]:
        """Return the stage of a round, from 0, the number of the round in it, from 1, and its length."""
        stage, rounds = 0, self.T
        while number > rounds:
            stage, number = stage + 1, number - rounds
            rounds = round(self.T * self.growth**stage)
        return stage, number, rounds

    def step(self, now) -> float:
        """Return the step size η_s of the current stage."""
        return self.eta / self.decay ** self.stage(now.round)[0]

    def displacements(self, now, shared, oracle, bx=0.0, by=0.0):
        """Return the displacements of x and y after K local steps.

        Args:
            bx, by: corrections that are added to the gradients.
        """
        x, y, eta = shared.x, shared.y, self.step(now)
        for _ in range(self.K):
            gx, gy = oracle.grad(x, y, oracle.sample())
            x = oracle.sets.x(x - eta * (gx + self.prox * (x - shared.ref) + bx))
            y = oracle.sets.y(y + eta * (gy + by))
        return x - shared.x, y - shared.y

    def end_round(self, now, shared) -> bool:
        """Update the average for x_ref, and x_ref at the end of a stage; return whether a stage ends."""
        _, round, rounds = self.stage(now.round)
        if self.reference == "average":
            shared.average += (shared.x - shared.average) / round
        if round == rounds:
            shared.ref = shared.average if self.reference == "average" else shared.x
        return round == rounds


@hyperparameters
class CODAPlus(_Stages):
    """CODA+: Local-SGDA with one step size for both blocks, in stages with a proximal term."""

    source = "Yuan et al. 2021, CODA+"
    cites = ("yuan2021codasca",)
    paper_cost = "up D; down D, and x_ref in a new stage; 1 phase; 1 gradient per step"
    message = Record(dx="x", dy="y")

    @property
    def shared(self) -> Record:
        return self.points

    def client_round(self, now, shared, client, message, oracle):
        message.dx, message.dy = self.displacements(now, shared, oracle)

    def server_round(self, now, shared, mean):
        shared.x = now.sets.x(shared.x + mean.dx)
        shared.y = now.sets.y(shared.y + mean.dy)
        self.end_round(now, shared)


@hyperparameters
class CODASCA(_Stages):
    """CODASCA: CODA+ with control variates in both blocks and a global step size."""

    eta_g: Rate = Field(default=1.0, description="global step size in a round; 1: plain averaging")
    keep_variates: bool = Field(default=False, description="keep the variates in the next stage")

    source = "Yuan et al. 2021, CODASCA"
    cites = ("yuan2021codasca", "karimireddy2020scaffold")
    paper_cost = "up 2D; down 2D, and x_ref in a new stage; 1 phase; 1 gradient per step"
    client = Record(cx="x", cy="y", stage="scalar")
    message = Record(dx="x", dy="y", dcx=stored("x"), dcy=stored("y"))

    @property
    def shared(self) -> Record:
        return self.points | Record(cx="x", cy="y")

    def client_round(self, now, shared, client, message, oracle):
        if not self.keep_variates:
            stage = self.stage(now.round)[0]
            is_current = client.stage == stage
            client.cx *= is_current
            client.cy *= is_current
            client.stage = stage
        corrections = shared.cx - client.cx, shared.cy - client.cy
        dx, dy = self.displacements(now, shared, oracle, *corrections)
        scale = self.K * self.step(now)
        message.dx, message.dy = dx, dy
        message.dcx, message.dcy = -dx / scale - shared.cx, dy / scale - shared.cy  # c_i⁺ - c_i
        client.cx += message.dcx
        client.cy += message.dcy

    def server_round(self, now, shared, mean):
        eta_g = self.eta_g(now.round)
        shared.x = now.sets.x(shared.x + eta_g * mean.dx)
        shared.y = now.sets.y(shared.y + eta_g * mean.dy)
        shared.cx += now.cohort_weight * mean.dcx
        shared.cy += now.cohort_weight * mean.dcy
        if self.end_round(now, shared) and not self.keep_variates:
            shared.cx, shared.cy = 0.0, 0.0
