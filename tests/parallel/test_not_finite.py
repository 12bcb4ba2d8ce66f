"""Errors for non-finite values, the same on all ranks: data before the first round, messages in a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from games import Game, configuration

from mpifed.algorithms import LocalSGDA
from mpifed.core.streams import generator
from mpifed.parallel.comm import CollectiveError
from mpifed.simulation.simulation import NonFiniteError, Simulation

pytestmark = pytest.mark.mpi
GROUPS = pytest.mark.parametrize("group", [1, 2, "all"])


@dataclass
class Edged(Game):
    """The game in which the loss of client ``victim`` is NaN if y is further than ``edge`` from its start,
    or in which the attribute ``holds`` has a non-finite value."""

    clients: int = 5
    victim: int = 3
    edge: float = 1e9
    holds: str = ""

    def prepare(self, seed, data_dir=None):
        super().prepare(seed, data_dir)
        self.begin = self.initial(generator(seed, "initial"))["y"]
        self.rows = [rows[:5] for rows in self.rows]
        self.scale = [torch.ones(5, dtype=torch.float64) for _ in range(self.clients)]
        if self.holds == "rows":
            self.rows[self.victim][4, 1] = torch.nan
        if self.holds == "scale":
            self.scale[self.victim][2] = torch.inf
        if self.holds == "bounds":
            self.bounds = np.array([-np.inf, np.inf])

    def client_data(self, client):
        number = torch.full((5,), client, dtype=torch.float64)
        return *super().client_data(client), number

    def loss(self, x, y, batch):
        *columns, number = batch
        room = self.edge**2 - ((y["y"] - self.begin) ** 2).sum()
        room = torch.where(number[0] == self.victim, room, torch.ones_like(room))
        scale = torch.stack(self.scale)[number[0].long()].mean() if self.holds == "scale" else 1.0
        # The square root and its derivative are NaN beyond the edge.
        return super().loss(x, y, columns) * scale + 0 * torch.sqrt(room)


def verdict(comm, method, problem, rounds=20, **settings) -> str:
    """Return the error message of a run, which is the same on all ranks."""
    simulation = Simulation.from_settings(configuration(method, problem, "unused", **settings), comm)
    with pytest.raises(NonFiniteError) as caught:
        simulation.start()
        for _ in range(rounds):
            simulation.step()
    words = np.frombuffer(str(caught.value).encode()[:100].ljust(100), np.uint8).astype(np.int64)
    total = words.copy()
    comm.allreduce_(total)
    np.testing.assert_array_equal(total, comm.size * words)
    return str(caught.value)


@GROUPS
@pytest.mark.parametrize("cohort", [None, 4])
def test_round_client_and_fields_are_named(comm, group, cohort):
    """With several local steps the NaN of one block has reached the other when the message is filled."""
    method = LocalSGDA(q=4, eta_x=0.1, eta_y=0.1)
    text = verdict(comm, method, Edged(edge=0.1), group=group, cohort=cohort)
    assert "client 3, fields 'x' and 'y' of `message` (phase 'round'): reduce the step sizes" in text


@pytest.mark.parametrize(
    "holds, says",
    [
        (
            "rows",
            "client_data(3) has nan in row 4 of column 0: expected finite numbers. Attributes that are not "
            "finite: nan in row 4 of ",
        ),
        (
            "scale",
            "the gradient of client 3 is not finite at the starting point. Attributes that are not finite: "
            "inf in row 2 of ",
        ),
    ],
)
def test_non_finite_values_of_a_problem_are_reported_before_the_first_round(comm, holds, says):
    with pytest.raises(CollectiveError) as caught:
        Simulation.from_settings(
            configuration(LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), Edged(holds=holds), "unused"), comm
        )
    assert str(caught.value) == f"Edged: {says}self.{holds}[3]"


def test_harmless_non_finite_values_are_accepted(comm):
    problem = Edged(holds="bounds")
    simulation = Simulation.from_settings(
        configuration(LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), problem, "unused"), comm
    )
    simulation.start()
    simulation.step()
    assert torch.isfinite(simulation.point()).all()
