"""What is said of values that are not finite, on every rank alike: data before the first round, and where a
value of a round began."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from games import Game, configuration

from mpifed import Algorithm, Record
from mpifed.algorithms import AdaFGDA, LocalSGDA
from mpifed.core.streams import generator
from mpifed.parallel.comm import CollectiveError
from mpifed.simulation.simulation import NonFiniteError, Simulation

pytestmark = pytest.mark.mpi
GROUPS = pytest.mark.parametrize("group", [1, 2, "all"])


@dataclass
class Edged(Game):
    """The game, of which ``victim``'s loss is NaN where ``block`` is further than ``edge`` from its start, or
    of which a value is not finite."""

    clients: int = 5
    victim: int = 3
    block: str = "y"
    edge: float = 1e9
    holds: str = ""

    def prepare(self, seed, data_dir=None):
        super().prepare(seed, data_dir)
        self.begin = self.initial(generator(seed, "initial"))[self.block]
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
        point = y["y"] if self.block == "y" else torch.cat([x["u"], x["v"]])
        room = self.edge**2 - ((point - self.begin) ** 2).sum()
        room = torch.where(number[0] == self.victim, room, torch.ones_like(room))
        scale = torch.stack(self.scale)[number[0].long()].mean() if self.holds == "scale" else 1.0
        # The square root and its derivative are NaN beyond the edge.
        return super().loss(x, y, columns) * scale + 0 * torch.sqrt(room)


@dataclass(frozen=True)
class Remembering(Algorithm):
    """Local steps that also add up, in the client's record, what was seen."""

    lost: bool = False
    wrong: bool = False
    factor: float = 0.1
    shared = Record(x="x", y="y")
    client = Record(x="x", seen="x")
    message = Record(x="x", y="y")

    def client_round(self, now, shared, client, message, oracle):
        x, y, factor = shared.x, shared.y, float("nan") if self.wrong else self.factor
        for _ in range(3):
            gx, gy = oracle.grad(x, y, oracle.sample())
            x, y = x - factor * gx, y + 0.1 * gy
            if self.lost:
                x = x + 0 * client.seen
        client.x = x
        if self.lost:
            client.seen = x
        message.x, message.y = x, y


def verdict(comm, method, problem, rounds=20, **settings) -> str:
    """The sentence of a run that ends on all ranks of ``comm`` in the same one."""
    simulation = Simulation(configuration(method, problem, "unused", **settings), comm)
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
@pytest.mark.parametrize("block, other", [("y", "x"), ("x", "y")])
def test_where_a_value_began(comm, group, cohort, block, other):
    """With several local steps the NaN of one block has reached the other when the message is filled."""
    method = LocalSGDA(q=4, eta_x=0.1, eta_y=0.1)
    text = verdict(comm, method, Edged(block=block, edge=0.1), group=group, cohort=cohort)
    assert "client 3, fields 'x' and 'y' of `message` (phase 'round'): it begins with" in text
    assert f"∂f/∂{block}, nan at a finite point" in text and f"∂f/∂{other}" not in text
    assert "is the problem's function right there?" in text and "step sizes" not in text


@GROUPS
def test_values_that_grow_ask_for_smaller_steps(comm, group):
    method = LocalSGDA(q=40, eta_x=100.0, eta_y=100.0)
    text = verdict(comm, method, Edged(), group=group)
    assert "after values of up to " in text and text.endswith("smaller step sizes?")


@GROUPS
def test_a_client_function_that_is_wrong(comm, group):
    text = verdict(comm, Remembering(wrong=True), Edged(), group=group)
    assert "client 0" in text and "it begins with the point x in the client's evaluation 2" in text
    assert text.endswith("are the step sizes and the client function right?")


@GROUPS
def test_a_record_counts_where_it_is_what_the_phase_began_with(comm, group):
    problem = Edged(edge=0.1)
    text = verdict(comm, Remembering(), problem, group=group, cohort=4)
    assert "it begins with ∂f/∂y, nan at a finite point" in text
    text = verdict(comm, Remembering(lost=True), problem, group=group, cohort=4)
    assert "client 3, field 'y' of `message`" in text and "begins" not in text
    assert text.endswith("smaller step sizes, or is the problem's function not finite somewhere?")
    text = verdict(comm, AdaFGDA(q=3, gamma=0.1, lam=0.3), problem, group=group)
    assert "client 3, fields" in text and "'y'" in text


@GROUPS
def test_a_function_that_is_not_finite_where_a_round_begins(comm, group):
    """True whatever the client's record was."""
    method = Remembering(lost=True, factor=0.0)
    text = verdict(comm, method, Edged(block="x", edge=-0.0), group=group)
    assert "round 1: client 3" in text and "∂f/∂x, nan at a finite point in the client's evaluation 1" in text


@pytest.mark.parametrize(
    "holds, says",
    [
        (
            "rows",
            "client_data(3) has nan in row 4 of column 0: expected finite numbers. It holds nan in row 4 of ",
        ),
        ("scale", "the gradient of client 3 is not finite at the starting point. It holds inf in row 2 of "),
    ],
)
def test_values_that_a_problem_holds_are_told_before_the_first_round(comm, holds, says):
    with pytest.raises(CollectiveError) as caught:
        Simulation(configuration(LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), Edged(holds=holds), "unused"), comm)
    assert str(caught.value) == f"Edged: {says}self.{holds}[3]"


def test_what_is_not_finite_and_does_no_harm_is_let_be(comm):
    problem = Edged(holds="bounds")
    simulation = Simulation(configuration(LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), problem, "unused"), comm)
    simulation.start()
    simulation.step()
    assert torch.isfinite(simulation.point()).all()
