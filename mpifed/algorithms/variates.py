"""SAGDA (Yang et al. 2022), FedGDA-GT, K-GT-Minimax and SCAFFOLD: local steps corrected by control variates.

Client i takes steps along g_i - c_i + c. Its control variate c_i estimates its gradient; the server's c
estimates the mean gradient. Line numbers in the margin are those of Algorithm 1 of SCAFFOLD, whose local
point y_i is (x_i, y_i) here. ``shared.cx`` and ``shared.cy`` are c; ``client.cx`` and ``client.cy`` are c_i.

Readings:

* *Variates of SAGDA.* ``fresh``: every client of the cohort computes a gradient at the round's starting
  point, and c is the average over the same cohort. The variates are not stored, and a round has two phases.
  ``stored``: the variates of SCAFFOLD, option II, for both blocks, in one phase.
* *Option I* of SCAFFOLD sets c_i to the gradient at the round's starting point, on all local data or on one
  further sample after the K samples of the local steps.
* *Minimax.* SCAFFOLD is stated for minimisation. If the problem has a block y, y ascends simultaneously, with
  the same step sizes and a separate control variate.
* *Cohorts.* The averaged change of the c_i is added to c with the cohort's share of the total weight, |S| / N
  for equal weights.
* *Start.* Stored variates start at 0, so the first round is a round of FSGDA. With ``first_variates =
  "gradient"``, they start at the gradients at the starting point, which an additional phase averages.
* *FedGDA-GT* (Sun & Wei 2022) is SAGDA with fresh variates, exact gradients and projection at the server. It
  has one step size, ``eta_xl`` = ``eta_yl``.
* *K-GT-Minimax* (Li 2024) is stated for a network of clients. Here the mixing matrix is the average over all
  clients. Its c_i is c - c_i here. Messages contain the changes of the c_i, too, as in SCAFFOLD, although the
  averaged points determine c. The paper has full participation.
* *Sets.* If the problem has sets, both blocks are projected after every local step and at the server, or
  with ``projection = "server"`` at the server only, as in FedGDA-GT; the other papers have no sets. Option II
  uses the projected displacement, so c_i lacks the part of the gradient that the projection removes. Steps
  depend on c - c_i only. If no client moves, c = 0 and the average step (descent in x, ascent in y) points
  out of the set, so a limit is a stationary point of the constrained problem.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from mpifed.algorithms.unequal_steps import local_steps, total_step_size
from mpifed.base.settings import hyperparameters
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.epochs import Epochs, LocalSteps
from mpifed.core.records import Record, stored, within_round
from mpifed.core.schedules import PositiveRate, Rate
from mpifed.core.sets import Sets

__all__ = ["SAGDA", "SCAFFOLD", "FedGDAGT", "KGTMinimax"]

_STEPS, _VARIATES = Record(dx="x", dy="y"), Record(cx="x", cy="y")
_CHANGES = Record(dcx=stored("x"), dcy=stored("y"))  # changes of a client's variates


@hyperparameters
class _Corrected(Algorithm):
    """Base class: local steps corrected by c - c_i, and the server's step with stored variates."""

    K: LocalSteps = Field(description="local steps per round")

    steps = "K"
    shared = Record(x="x", y="y") | _VARIATES
    message = _STEPS | _CHANGES

    def local_steps(self, now, shared, client, message, oracle, sample):
        """Take the local steps, each with the sample that ``sample()`` returns."""
        x, y = shared.x, shared.y                                                           # line 7
        bx, by = shared.cx - client.cx, shared.cy - client.cy
        sets = oracle.sets if self.projects == "clients" else Sets()
        for k, active in local_steps(oracle, self.K):                                       # line 8
            t = now.step(k)
            gx, gy = oracle.grad(x, y, sample())                                            # line 9
            new_x = sets.x(x - self.eta_xl(t) * (gx + bx))                                  # line 10
            new_y = sets.y(y + self.eta_yl(t) * (gy + by))
            x = new_x if active is None else torch.where(active, new_x, x)
            y = new_y if active is None else torch.where(active, new_y, y)
        message.dx, message.dy = x - shared.x, y - shared.y                                 # line 13

    def server_steps(self, now, shared, mean):
        shared.x = now.sets.x(shared.x + self.eta_xg(now.round) * mean.dx)                  # line 17
        shared.y = now.sets.y(shared.y + self.eta_yg(now.round) * mean.dy)

    def server_round(self, now, shared, mean):
        self.server_steps(now, shared, mean)
        shared.cx += now.cohort_weight * mean.dcx                                           # line 17
        shared.cy += now.cohort_weight * mean.dcy

    def change(self, now, shared, message, oracle):
        """Return c_i⁺ - c_i for the variate of option II, c_i⁺ = c_i - c - dx / (K η_l), in y with + dy."""
        mean_x = -message.dx / total_step_size(now, oracle, self.K, self.eta_xl)
        mean_y = message.dy / total_step_size(now, oracle, self.K, self.eta_yl)
        return mean_x - shared.cx, mean_y - shared.cy                                       # line 12 (ii)

    def store(self, client, message, change):
        """Send the change of the variates, and add it to c_i."""
        message.dcx, message.dcy = change                                                   # line 13
        client.cx += message.dcx                                                            # line 14
        client.cy += message.dcy


@hyperparameters
class SAGDA(_Corrected):
    """SAGDA: FSGDA with control variates that are recomputed in every round or stored by the clients."""

    eta_xl: PositiveRate = Field(description="local step size of x (descent)")
    eta_yl: PositiveRate = Field(description="local step size of y (ascent)")
    eta_xg: Rate = Field(default=1.0, description="global step size of x in a round; 1: plain averaging")
    eta_yg: Rate = Field(default=1.0, description="global step size of y in a round; 1: plain averaging")
    variates: Literal["fresh", "stored"] = Field(
        default="fresh", description="recompute control variates in each round (two phases), or store them"
    )
    first_variates: Literal["zero", "gradient"] = Field(
        default="zero", description="stored variates before the first round: 0, or gradients at the start"
    )
    full_batch: bool = Field(default=False, description="use exact gradients, on all data of a client")
    projection: Literal["clients", "server"] = Field(
        default="clients", description="project after local steps and at the server, or at the server only"
    )

    needs = {"first_variates": ("variates = 'stored'", lambda method: method.variates == "stored")}
    source = "Yang et al. 2022, SAGDA"
    cites = ("yang2022sagda",)
    paper_cost = "up 2D; down 2D; 2 phases (stored: 1); 1 gradient per step, fresh: and 1 per round"

    def __post_init__(self):
        if self.full_batch and isinstance(self.K, Epochs):
            raise ValueError("K: steps with exact gradients have no epochs: expected an integer")

    @property
    def projects(self) -> str:  # type: ignore[override]
        return self.projection

    @property
    def minibatch_alternative(self) -> str:  # type: ignore[override]
        return "full_batch = false (FedGDAGT: with SAGDA)" if self.full_batch else ""

    @property
    def start(self) -> tuple[Phase, ...]:  # type: ignore[override]
        return (Phase(self.client_variates, _VARIATES),) if self.first_variates == "gradient" else ()

    @property
    def client(self) -> Record:
        return _VARIATES if self.variates == "stored" else Record(cx=within_round("x"), cy=within_round("y"))

    @property
    def phases(self) -> tuple[Phase, ...]:
        if self.variates == "stored":
            return super().phases  # client_round and server_round
        return Phase(self.client_variates, _VARIATES), Phase(self.client_steps, _STEPS, self.server_steps)

    def client_variates(self, now, shared, client, message, oracle):
        message.cx, message.cy = oracle.grad(shared.x, shared.y, self.sample(oracle))
        client.cx, client.cy = message.cx, message.cy

    def client_steps(self, now, shared, client, message, oracle):
        self.local_steps(now, shared, client, message, oracle, lambda: self.sample(oracle))

    def client_round(self, now, shared, client, message, oracle):
        self.client_steps(now, shared, client, message, oracle)
        self.store(client, message, self.change(now, shared, message, oracle))

    def sample(self, oracle):
        """Return the sample of a local step or of a variate."""
        return oracle.full_batch if self.full_batch else oracle.sample()


@hyperparameters
class FedGDAGT(SAGDA):
    """FedGDA-GT: SAGDA with fresh variates, exact gradients and projection at the server."""

    variates: Literal["fresh"] = Field(default="fresh", init=False)
    first_variates: Literal["zero"] = Field(default="zero", init=False)
    full_batch: bool = Field(default=True, init=False)
    projection: Literal["server"] = Field(default="server", init=False)
    eta_xg: Rate = Field(default=1.0, init=False)
    eta_yg: Rate = Field(default=1.0, init=False)

    source = "Sun & Wei 2022"
    cites = ("sun2022fedgdagt",)
    paper_cost = "up 2D; down 2D; 2 phases; 1 gradient of all data per step and 1 per round"
    projects = "server"


@hyperparameters
class KGTMinimax(SAGDA):
    """K-GT-Minimax: SAGDA with stored variates that start at the gradients of the starting point."""

    variates: Literal["stored"] = Field(default="stored", init=False)
    first_variates: Literal["gradient"] = Field(default="gradient", init=False)
    full_batch: bool = Field(default=False, init=False)

    source = "Li 2024, K-GT-Minimax; Liu et al. 2023, K-GT"
    cites = ("li2024kgtminimax", "liu2023kgt")
    paper_cost = "up D (here 2D); down D (here 2D); 1 phase; 1 gradient per step, and 1 at the start"


@hyperparameters
class SCAFFOLD(_Corrected):
    """SCAFFOLD, extended to problems with a block y."""

    eta_l: PositiveRate = Field(description="local step size, of both blocks")
    eta_g: Rate = Field(default=1.0, description="global step size in a round; 1: plain averaging")
    option: Literal["II", "I", "I_sample"] = Field(
        default="II",
        description="new variates: II: from the displacement; I: exact local gradient at the start of the "
        "round; I_sample: its estimate on one more sample",
    )

    source = "Karimireddy et al. 2020, Algorithm 1"
    cites = ("karimireddy2020scaffold",)
    paper_cost = "up 2D; down 2D; 1 phase; 1 gradient per step, option I: and 1 per round"
    client = _VARIATES

    @property
    def minibatch_alternative(self) -> str:
        return "option = 'I_sample'" if self.option == "I" else ""

    @property
    def eta_xl(self) -> Rate:
        return self.eta_l

    eta_yl = eta_xl

    @property
    def eta_xg(self) -> Rate:
        return self.eta_g

    eta_yg = eta_xg

    def client_round(self, now, shared, client, message, oracle):
        self.local_steps(now, shared, client, message, oracle, oracle.sample)
        if self.option == "II":
            change = self.change(now, shared, message, oracle)
        else:
            xi = oracle.full_batch if self.option == "I" else oracle.sample()
            gx, gy = oracle.grad(shared.x, shared.y, xi)                                    # line 12 (i)
            change = gx - client.cx, gy - client.cy
        self.store(client, message, change)
