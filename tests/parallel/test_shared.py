"""Sums in memory shared by the ranks of one or two nodes, bitwise identical to the definition of the tree."""

import os
import resource

import numpy as np
import pytest
import torch
from games import configuration
from nodes import two_nodes
from trees import average_by_definition

import mpifed.simulation.simulation
from mpifed import run
from mpifed.algorithms import AdaFGDA
from mpifed.parallel import exchange, transport
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.parallel.nodes import Nodes
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.reduction import ExactReduction
from mpifed.parallel.shared_memory import share_memory
from mpifed.parallel.transport import Host, Shm
from mpifed.problems import Saddle

pytestmark = pytest.mark.mpi
CPU = torch.device("cpu")
WAYS = {
    "host": lambda comm: Host(comm, CPU),
    "shm": lambda comm: Shm(comm, CPU),
    "shm on two nodes": lambda comm: Shm(two_nodes(comm), CPU),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [1, 37, 20_000])
def test_random_cohorts_placements_and_groups(comm, monkeypatch, way, size):
    """Every rank samples the same numbers."""
    monkeypatch.setattr(transport, "SHORT", 0)
    monkeypatch.setattr(exchange, "BLOCK", 2**12)  # several blocks
    rng = np.random.default_rng(size)
    for _ in range(12):
        clients, group = int(rng.integers(1, 71)), int(rng.choice([1, 2, 3, 7, 70]))
        edges = [0, *np.sort(rng.integers(0, clients + 1, comm.size - 1)).tolist(), clients]
        dtype = (torch.float32, torch.float64)[rng.integers(2)]
        weights = rng.random(clients) if rng.integers(2) else None
        placement = Placement(clients, comm.size, edges)
        reduction = ExactReduction(WAYS[way](comm), group, placement, size, dtype)
        for r in range(3):
            members = np.sort(rng.choice(clients, rng.integers(1, clients + 1), replace=False))
            values = torch.from_numpy(rng.standard_normal((clients, size))).to(dtype)
            cohort = Cohort(members, placement, comm.rank, weights)
            mine = placement.clients_of(comm.rank)[cohort.local]
            reduction.begin(cohort)
            for start in range(0, len(mine), group):
                part = mine[start : start + group]
                reduction.rows[: len(part)] = values[part]
                reduction.add(slice(start, start + len(part)))
            assert reduction.finish(r * (comm.rank + 1.0)) == r * comm.size * (comm.size + 1) / 2
            expected = average_by_definition(members, values, weights)
            assert torch.equal(reduction.mean, expected), (edges, members, group)


@pytest.mark.parametrize("way", ["shm", "shm on two nodes"])
def test_a_run_is_bitwise_identical_to_one_process(comm, out, monkeypatch, way):
    monkeypatch.setattr(transport, "SHORT", 0)
    method = AdaFGDA(q=2, gamma=0.02, lam=0.02, matrix="norm", sync_estimator="mean_after")

    def job(folder):
        of = Saddle(clients=5, d=40)
        return configuration(method, of, folder, batch_size=1, rounds=4, reduction="exact", dtype="float32")

    with monkeypatch.context() as patch:
        patch.setattr(mpifed.simulation.simulation, "choose_transport", lambda *_: WAYS[way](comm))
        result = run(job(out), comm)
    if comm.rank == 0:
        alone = run(job(f"{out}/alone"), SerialComm())
        assert all(torch.equal(result.point[name], alone.point[name]) for name in alone.point)


def test_shared_memory_has_no_name_and_is_freed(comm):
    """/dev/shm has no entry, and no file or mapping is left after the arrays are deleted."""

    def here():
        with open("/proc/self/maps") as maps:
            mapped = sum("memfd:mpifed" in line for line in maps)
        return mapped, len(os.listdir("/proc/self/fd"))

    before, names = here(), set(os.listdir("/dev/shm"))
    node = Nodes.from_comm(comm).node
    memory = share_memory(comm, node, 10_000)
    assert here() == (before[0] + node.size, before[1])
    assert not [name for name in set(os.listdir("/dev/shm")) - names if "mpifed" in name]
    memory[node.rank][:] = comm.rank + 1
    comm.barrier()
    assert [int(one[-1]) for one in memory] == [rank + 1 for rank in range(comm.size)]
    comm.barrier()
    del memory
    assert here() == before


def test_all_ranks_use_mpi_if_one_has_no_shared_memory(comm, capfd, monkeypatch):
    """The last rank cannot create files above 4 KiB: a warning is printed once, and the sum is the same."""
    monkeypatch.setattr(transport, "SHORT", 0)
    shm, placement, size = Shm(comm, CPU), Placement(4, comm.size), 5000
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if comm.rank == comm.size - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(CollectiveError, match="File too large"):
            share_memory(comm, Nodes.from_comm(comm).node, 10_000)
        reductions = [ExactReduction(shm, 4, placement, size, torch.float32) for _ in range(2)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    logged, warning = capfd.readouterr().err, "by MPI instead of shared memory: [Errno 27] File too large"
    assert logged.count(warning) == (comm.rank == 0), logged
    for reduction in reductions:
        cohort = Cohort(np.arange(4), placement, comm.rank)
        reduction.begin(cohort)
        reduction.rows[:] = 2.0
        if len(cohort.local):
            reduction.add(slice(0, len(cohort.local)))
        reduction.finish()
        assert torch.equal(reduction.mean, torch.full((size,), 2.0))


def test_several_ranks_of_a_machine_use_shm(comm):
    name = transport.choose_transport(comm, CPU, "auto", True).name
    assert name == ("shm" if comm.size > 1 else "none")
    assert transport.choose_transport(two_nodes(comm), CPU, "shm", True).name == "shm"
