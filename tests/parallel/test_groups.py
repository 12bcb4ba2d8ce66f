"""The choice of ``run.group = "auto"`` is the same on all ranks."""

import json

import numpy as np
import pytest
import torch
from games import Game, configuration

from mpifed import resume, run
from mpifed.algorithms import LocalSGDA
from mpifed.parallel.comm import SerialComm, broadcast_text
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.reduction import FusedReduction
from mpifed.parallel.transport import Host
from mpifed.problems import Saddle
from mpifed.simulation import client_batching
from mpifed.simulation.simulation import Simulation
from mpifed.storage.results import load

pytestmark = pytest.mark.mpi


def choices(comm, of) -> list[client_batching.GroupChoice]:
    """Return the choices of all ranks on each rank."""
    config = configuration(LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), of, "unused", batch_size=1)
    choice = Simulation.from_settings(config, comm).rounds.choice
    return [
        client_batching.GroupChoice(*json.loads(broadcast_text(comm, json.dumps(choice), rank)))
        for rank in range(comm.size)
    ]


def test_a_function_that_one_rank_cannot_vectorise_is_looped_on_all(comm, monkeypatch):
    def evaluate(oracle, point, rows):
        if comm.rank == comm.size - 1:
            raise RuntimeError("vmap: no. More of it")

    monkeypatch.setattr(client_batching, "_evaluate", evaluate)
    said = "clients are looped over, their functions cannot be mapped over clients: RuntimeError: 'vmap: no'"
    assert set(choices(comm, Saddle(clients=9, d=3))) == {(1, said)}


def test_a_single_client_of_a_rank_is_vectorised_with_a_copy(comm, monkeypatch):
    """As on fewer ranks with other clients; a rank without clients makes the same choice."""
    monkeypatch.setattr(client_batching, "ANALYTIC", client_batching.Limits(1, 2**17))
    assert {choice.group for choice in choices(comm, Saddle(clients=1, d=3))} == {2}


def test_the_loop_and_its_reason_do_not_depend_on_the_ranks(comm):
    alone = Simulation.from_settings(
        configuration(LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), Game(clients=5), "unused"), SerialComm()
    )
    assert set(choices(comm, Game(clients=5))) == {alone.rounds.choice}


def test_a_run_resumed_on_other_ranks_chooses_the_group_again(comm, out, monkeypatch):
    """The group has all clients of a rank: seven on the single rank of the first start."""
    monkeypatch.setattr(client_batching, "ANALYTIC", client_batching.Limits(1, 2**17))

    def start(folder: str, rounds: int, comm):
        method, of = LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), Saddle(clients=7, d=3)
        settings = dict(rounds=rounds, reduction="exact", checkpoint_every=1, batch_size=1)
        return run(configuration(method, of, f"{out}/{folder}", **settings), comm)

    whole = start("whole", 4, comm)
    if comm.rank == 0:
        assert load(start("moved", 2, SerialComm()).path).layout["group"] == 7
    comm.barrier()
    moved = resume(f"{out}/moved", ["rounds=4"], comm)
    for block, point in whole.point.items():
        assert torch.equal(point, moved.point[block])
    if comm.rank == 0:
        assert load(moved.path).layout["group"] == max(2, *Placement(7, comm.size).counts)


@pytest.mark.parametrize("members", [range(23), [0, 1, 2, 5, 8, 9, 10, 11, 14, 21, 22]], ids=["all", "some"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fused_sum_does_not_depend_on_the_size_of_groups(comm, members, weighted):
    """The size depends on the clients of a rank, which may change when a run is resumed."""
    placement = Placement(23, comm.size)
    values = torch.randn(23, 1000, generator=torch.Generator().manual_seed(1))
    weights = np.linspace(0.1, 2, 23) if weighted else None
    cohort, means = Cohort(np.array(members), placement, comm.rank, weights), []
    mine = placement.clients_of(comm.rank)[cohort.local]
    for group in (1, 2, 3, 7, 23):
        reduction = FusedReduction(Host(comm, torch.device("cpu")), group, placement, 1000, torch.float32)
        reduction.begin(cohort)
        for start in range(0, len(mine), group):
            part = mine[start : start + group]
            reduction.rows[: len(part)] = values[part]
            reduction.add(slice(start, start + len(part)))
        reduction.finish()
        means.append(reduction.mean.clone())
    expected = np.average(
        values.double()[list(members)], 0, None if weights is None else weights[list(members)]
    )
    np.testing.assert_allclose(means[0].numpy(), expected, rtol=0, atol=1e-6)  # some ulps of numbers near 1
    for mean in means[1:]:
        assert torch.equal(mean, means[0])
