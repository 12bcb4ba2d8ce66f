"""FESS-GDA, FSGDA and Smoothed-GDA (004, Algorithms 1 and 2): the smoothing weight of a proximal term at the server.

Readings. The local steps are those of Local-SGDA; the sets act in every local step and again at the server. The proximal term
p (x_t - z_t) acts at the server only, with weight η_xl η_xg K; z uses x_{t+1}, and z_0 = x_0. Averages are over the sampled clients.
Smoothed-GDA is simultaneous (y uses x_t) unless ``alternating``. In theory p = 2ℓ; the experiments use p from {0, .01, .1, 1}.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.records import Record
from mpifed.core.settings import hyperparameters

__all__ = ["FSGDA", "FESSGDA", "SmoothedGDA"]


@hyperparameters
class FSGDA(Algorithm):
    """FSGDA (Yang et al. 2022): Local-SGDA with global step sizes."""

    K: int = Field(ge=1, description="local steps per round")
    eta_xl: float = Field(ge=0, description="local step size of x (descent)")
    eta_yl: float = Field(ge=0, description="local step size of y (ascent)")
    eta_xg: float = Field(default=1.0, ge=0, description="global step size of x; 1 is plain averaging")
    eta_yg: float = Field(default=1.0, ge=0, description="global step size of y; 1 is plain averaging")

    source: ClassVar = "Yang et al. 2022, FSGDA; compared with in 004"
    paper_cost: ClassVar = "up D; down D; 1 phase; 1 gradient a step"
    shared: ClassVar = Record(x="x", y="y")
    message: ClassVar = Record(dx="x", dy="y")

    @property
    def local_steps(self) -> int:
        return self.K

    def client_round(self, r, shared, client, message, oracle):
        x, y = shared.x, shared.y
        for k in range(self.K):
            gx, gy = oracle.grad(x, y, oracle.sample(k))
            x, y = oracle.sets.x(x - self.eta_xl * gx), oracle.sets.y(y + self.eta_yl * gy)
        message.dx, message.dy = x - shared.x, y - shared.y

    def server_round(self, r, shared, mean, sets):
        shared.x = sets.x(shared.x + self.eta_xg * mean.dx)
        shared.y = sets.y(shared.y + self.eta_yg * mean.dy)


@hyperparameters
class FESSGDA(FSGDA):
    """FESS-GDA: FSGDA with a smoothing point z that the server's x is pulled to."""

    p: float = Field(default=0.0, ge=0, description="smoothing weight p; 0 is FSGDA")
    beta: float = Field(default=0.5, ge=0, le=1, description="step β of the smoothing point z")

    source: ClassVar = "004, Algorithm 1"
    shared: ClassVar = Record(x="x", y="y", z="x")

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Phase("round", self.message, down=("x", "y")),)  # z stays at the server

    def initialize(self, shared):
        shared.z = shared.x

    def server_round(self, r, shared, mean, sets):
        pull = self.eta_xl * self.eta_xg * self.K * self.p * (shared.x - shared.z)
        shared.x = sets.x(shared.x + self.eta_xg * mean.dx - pull)
        shared.y = sets.y(shared.y + self.eta_yg * mean.dy)
        shared.z += self.beta * (shared.x - shared.z)


@hyperparameters
class SmoothedGDA(Algorithm):
    """Smoothed-GDA: central gradient descent ascent on f + (p/2)‖x - z‖²; one averaged gradient a round."""

    eta_x: float = Field(ge=0, description="step size of x (descent)")
    eta_y: float = Field(ge=0, description="step size of y (ascent)")
    p: float = Field(default=0.0, ge=0, description="smoothing weight p; 0 is plain GDA")
    beta: float = Field(default=0.5, ge=0, le=1, description="step β of the smoothing point z")
    alternating: bool = Field(default=False, description="take the gradient of y at the new x (a second phase)")

    source: ClassVar = "004, Algorithm 2"
    paper_cost: ClassVar = "central: no communication is counted"
    partial_participation: ClassVar = False
    shared: ClassVar = Record(x="x", y="y", z="x")

    @property
    def phases(self) -> tuple[Phase, ...]:
        if self.alternating:
            return tuple(Phase(name, Record(g=name), down=("x", "y")) for name in "xy")
        return (Phase("round", Record(gx="x", gy="y"), down=("x", "y")),)

    def initialize(self, shared):
        shared.z = shared.x

    def client_round(self, r, shared, client, message, oracle):
        message.gx, message.gy = oracle.grad(shared.x, shared.y, oracle.sample(0))

    def server_round(self, r, shared, mean, sets):
        y = sets.y(shared.y + self.eta_y * mean.gy)
        self._move_x(shared, mean.gx, sets)
        shared.y = y

    def client_x(self, r, shared, client, message, oracle):
        message.g, _ = oracle.grad(shared.x, shared.y, oracle.sample(0))

    def server_x(self, r, shared, mean, sets):
        self._move_x(shared, mean.g, sets)

    def client_y(self, r, shared, client, message, oracle):
        _, message.g = oracle.grad(shared.x, shared.y, oracle.sample(0))

    def server_y(self, r, shared, mean, sets):
        shared.y = sets.y(shared.y + self.eta_y * mean.g)

    def _move_x(self, shared, gx, sets):
        shared.x = sets.x(shared.x - self.eta_x * (gx + self.p * (shared.x - shared.z)))
        shared.z += self.beta * (shared.x - shared.z)
