"""Errors for non-finite values, the same on all ranks: data before the first round, messages in a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from games import Game, configuration, started

from mpifed.algorithms import LocalSGDA
from mpifed.core.streams import generator
from mpifed.parallel.comm import CollectiveError
from mpifed.simulation.simulation import NonFiniteError, Simulation

pytestmark = pytest.mark.mpi
GROUPS = pytest.mark.parametrize("group", [1, 2, "all"])


@dataclass
class Edged(Game):
    """The game in which the loss of client ``victim`` is NaN if y is further than ``edge`` from its start,
    or whose data have a NaN if ``has_nan``."""

    clients: int = 5
    victim: int = 3
    edge: float = 1e9
    has_nan: bool = False

    def prepare(self, seed, data_dir=None):
        super().prepare(seed, data_dir)
        self.begin = self.initial(generator(seed, "initial"))["y"]
        self.rows = [rows[:5] for rows in self.rows]
        if self.has_nan:
            self.rows[self.victim][4, 1] = torch.nan

    def client_data(self, client):
        number = torch.full((5,), client, dtype=torch.float64)
        return *super().client_data(client), number

    def loss(self, x, y, batch):
        *columns, number = batch
        room = self.edge**2 - ((y["y"] - self.begin.to(y["y"].device)) ** 2).sum()
        room = torch.where(number[0] == self.victim, room, torch.ones_like(room))
        # The square root and its derivative are NaN beyond the edge.
        return super().loss(x, y, columns) + 0 * torch.sqrt(room)


def verdict(comm, method, problem, rounds=20, **settings) -> str:
    """Return the error message of a run, which is the same on all ranks."""
    with pytest.raises(NonFiniteError) as caught:
        started(configuration(method, problem, "unused", **settings), rounds, comm)
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
    assert (
        "client 3, fields 'x' and 'y' of `message` (phase 'round'): reduce the step sizes (eta_x = 0.1, "
        in text
    )


def test_non_finite_data_are_reported_before_the_first_round(comm):
    with pytest.raises(CollectiveError, match=r"^Edged: client_data\(3\) has nan in row 4 of column 0: "):
        Simulation.from_settings(
            configuration(LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), Edged(has_nan=True), "unused"), comm
        )
