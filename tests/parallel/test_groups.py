"""What ``run.group = "auto"`` chooses is the same on all ranks, whatever a single rank sees."""

import json

import pytest
from games import Game, configuration

from mpifed.algorithms import LocalSGDA
from mpifed.parallel.comm import SerialComm, share
from mpifed.problems import Saddle
from mpifed.simulation import grouping
from mpifed.simulation.simulation import Simulation

pytestmark = pytest.mark.mpi


def choices(comm, of) -> list[grouping.Choice]:
    """The choices of all ranks, on each of them."""
    config = configuration(LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), of, "unused", batch_size=1)
    choice = Simulation(config, comm).rounds.choice
    return [grouping.Choice(*json.loads(share(comm, json.dumps(choice), rank))) for rank in range(comm.size)]


def test_the_size_is_that_whose_slowest_rank_is_the_fastest(comm, monkeypatch):
    """All are fast with 4 but for the last rank; a rank that ran out of time has timed fewer sizes."""
    slow = comm.rank == comm.size - 1
    monkeypatch.setattr(grouping, "SHORT", 0)
    monkeypatch.setattr(grouping, "_times", lambda *_: iter([9, 2, 1] if slow else [1, 2]))
    found = choices(comm, Saddle(clients=40 * comm.size, d=3))
    assert {choice.group for choice in found} == ({16} if comm.size == 1 else {8})


def test_a_function_that_one_rank_cannot_map_sends_all_into_the_loop(comm, monkeypatch):
    def evaluate(oracle, point, rows):
        if comm.rank == comm.size - 1:
            raise RuntimeError("vmap: no. More of it")

    monkeypatch.setattr(grouping, "_evaluate", evaluate)
    said = (
        "clients go one after another, their functions cannot be mapped over them: RuntimeError: 'vmap: no'"
    )
    assert set(choices(comm, Saddle(clients=9, d=3))) == {(1, said)}


def test_a_lone_client_of_a_rank_goes_together_with_its_copy(comm, monkeypatch):
    """As it would with others on fewer ranks; a rank without clients chooses alike."""
    monkeypatch.setattr(grouping, "MEMBERS_BY_HAND", 1)
    monkeypatch.setattr(grouping, "SHORT", 0)
    assert {choice.group for choice in choices(comm, Saddle(clients=1, d=3))} == {2}


def test_the_loop_and_its_reason_do_not_depend_on_the_ranks(comm):
    alone = Simulation(
        configuration(LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), Game(clients=5), "unused"), SerialComm()
    )
    assert set(choices(comm, Game(clients=5))) == {alone.rounds.choice}
