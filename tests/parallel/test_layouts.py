"""Placement by cost: results are bitwise identical, runs move between layouts, and a phase is one
Allreduce."""

import functools
import itertools
import json
import shutil
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from everything import FITTING, METHODS, method, problem
from games import Game, configuration, started
from nodes import two_nodes
from resumed import bits

from mpifed import resume, run
from mpifed.algorithms import SCAFFOLD, AdaFGDA, LocalSGDA
from mpifed.core.algorithm import updated_matrices
from mpifed.core.streams import generator
from mpifed.parallel.comm import CollectiveError, MpiComm, SerialComm
from mpifed.parallel.placement import Placement
from mpifed.problems import Saddle
from mpifed.simulation.state import ClientRows
from mpifed.storage import checkpoint, client_rows

pytestmark = pytest.mark.mpi

#: With these costs no number of ranks between 2 and 4 hosts five clients as ``even`` does.
COSTS = [1, 1, 1, 1, 100]
ADA = AdaFGDA(q=3, gamma=0.02, lam=0.02, matrix="adam")


class Skewed(Game):
    """Client k has 4 (k + 1)² rows: full batches of 4 to 100."""

    def prepare(self, seed, data_dir=None):
        super().prepare(seed, data_dir)
        self.rows = [
            torch.from_numpy(generator(seed, "game", k).standard_normal((4 * (k + 1) ** 2, 5)))
            for k in range(self.clients)
        ]


@pytest.fixture
def forced(monkeypatch):
    """Use given costs instead of numbers of samples."""

    def place_clients(config, problem, comm):
        if config.run.placement == "even":
            return Placement(problem.clients, comm.size)
        return Placement.balanced(np.array(COSTS), comm.size)

    monkeypatch.setattr("mpifed.simulation.simulation.place_clients", place_clients)


def layout(result) -> dict:
    with h5py.File(result.path) as file:
        return json.loads(file.attrs["layout"])


def assert_same(one, other):
    np.testing.assert_array_equal(bits(one), bits(other))


@pytest.mark.parametrize("group", [1, 2, "all"])
@pytest.mark.parametrize("cohort, weights", [(None, "uniform"), (2, "samples")])
def test_balanced_is_bitwise_identical_to_even(comm, out, forced, group, cohort, weights):
    """Costs put most clients on one rank."""
    method_ = ADA if cohort is None else LocalSGDA(q=3, eta_x=0.02, eta_y=0.02)
    results = {}
    for kind in ("even", "balanced"):
        settings = dict(group=group, cohort=cohort, weights=weights, dtype="float32", eval_every=1)
        settings |= dict(reduction="exact", placement=kind)
        results[kind] = run(configuration(method_, Game(clients=5), f"{out}/{kind}", **settings), comm)
    assert_same(results["balanced"], results["even"])
    if comm.rank == 0:
        assert results["balanced"].history == results["even"].history
        even, balanced = layout(results["even"]), layout(results["balanced"])
        assert (even["placement"], even["clients"]) == ("even", Placement(5, comm.size).counts)
        assert balanced["placement"] == "balanced" and sum(balanced["clients"]) == 5
        assert (balanced["clients"] != even["clients"]) == (comm.size > 1)


def test_full_batches_of_unequal_sizes(comm, out):
    settings = dict(batch_size=0, noise=None, reduction="exact")
    even = run(configuration(ADA, Skewed(clients=5), f"{out}/even", **settings), comm)
    balanced = run(
        configuration(ADA, Skewed(clients=5), f"{out}/balanced", placement="balanced", **settings), comm
    )
    assert_same(balanced, even)
    if comm.rank == 0:
        rows = np.array([4, 16, 36, 64, 100])
        assert layout(balanced)["clients"] == Placement.balanced(rows, comm.size).counts


def halted(folder, r: int, name: str) -> str:
    """Copy the run as of round ``r`` on rank 0, and return its folder."""
    Path(folder, name).mkdir()
    shutil.copy(f"{folder}/checkpoint-{r:08d}.h5", f"{folder}/{name}")
    return f"{folder}/{name}"


def test_resumed_on_other_rank_counts(comm, out, forced):
    """From one rank to all, from all to one, and from all to all but one."""
    settings = dict(
        rounds=4, reduction="exact", placement="balanced", checkpoint_every=1, keep=9, batch_size=1
    )
    whole = run(configuration(ADA, Saddle(clients=5, d=4), out, **settings), comm)
    if comm.rank == 0:
        run(configuration(ADA, Saddle(clients=5, d=4), f"{out}/alone", **settings), SerialComm())
        halted(f"{out}/alone", 2, "all")
        halted(out, 1, "fewer")
    comm.barrier()
    again = resume(f"{out}/alone/all", comm=comm)
    assert_same(again, whole)
    if comm.rank == 0:
        assert_same(resume(halted(out, 2, "one"), comm=SerialComm()), whole)
        assert layout(again)["clients"] == Placement.balanced(np.array(COSTS), comm.size).counts
    if comm.size > 1:
        from mpi4py import MPI

        some = MPI.COMM_WORLD.Split(0 if comm.rank < comm.size - 1 else 1)
        if comm.rank < comm.size - 1:
            fewer = resume(f"{out}/fewer", comm=MpiComm(some))
            assert_same(fewer, whole)
            assert (
                comm.rank
                or layout(fewer)["clients"] == Placement.balanced(np.array(COSTS), comm.size - 1).counts
            )
        some.Free()


def test_runs_resumed_with_another_placement(comm, out, forced):
    settings = dict(rounds=4, reduction="exact", checkpoint_every=1, keep=9, batch_size=1)
    whole = run(configuration(ADA, Saddle(clients=5, d=4), out, **settings), comm)
    if comm.rank == 0:
        halted(out, 1, "balanced")
    comm.barrier()
    balanced = resume(f"{out}/balanced", ["run.placement=balanced", "run.checkpoint_every=3"], comm)
    if comm.rank == 0:
        halted(f"{out}/balanced", 3, "even")
    comm.barrier()
    even = resume(f"{out}/balanced/even", ["run.placement=even"], comm)
    for result, kind in (
        (balanced, Placement.balanced(np.array(COSTS), comm.size)),
        (even, Placement(5, comm.size)),
    ):
        assert_same(result, whole)
        assert comm.rank or layout(result)["clients"] == kind.counts


@pytest.mark.parametrize("width", [0, 3])
def test_client_rows_of_any_blocks(comm, out, monkeypatch, width):
    """Rows are written with one placement and read with others, with empty ranks and several blocks per
    rank."""
    monkeypatch.setattr(client_rows, "MAX_BLOCK", 2 * 3 * 8)
    clients, last = 7, comm.size - 1
    placements = [
        Placement(clients, comm.size),
        Placement(clients, comm.size, [0] * comm.size + [clients]),  # all clients on the last rank
        Placement(clients, comm.size, [0] + [clients] * comm.size),  # all clients on rank 0
        Placement(
            clients, comm.size, [0, *[min(5, clients * last)] * last, clients]
        ),  # the ranks between them are empty
    ]
    table = np.arange(clients * width, dtype=np.float64).reshape(clients, width)
    for number, source in enumerate(placements):
        folder = Path(out, f"{number}")
        folder.mkdir(exist_ok=True)
        own = ClientRows([torch.from_numpy(table[source.clients_of(comm.rank)])])
        checkpoint.write(folder, 1, {"round": 1}, {}, own, comm, source)
        for target in placements:
            rows = np.full((len(target.clients_of(comm.rank)), width), -1.0)
            path = folder / "checkpoint-00000001.h5" if comm.rank == 0 else None
            checkpoint.read_clients(path, ClientRows([torch.from_numpy(rows)]), comm, target)
            np.testing.assert_array_equal(rows, table[target.clients_of(comm.rank)])


@pytest.mark.parametrize("width", [1, 4])
def test_parts_of_two_nodes(comm, out, monkeypatch, width):
    """The first rank of each node writes the rows of its node that have changed; any placement reads them."""
    monkeypatch.setattr(client_rows, "MAX_BLOCK", 2 * 3 * 8)
    clients, last, nodes, folder = 9, comm.size - 1, two_nodes(comm), Path(out)
    source = Placement(clients, comm.size, [0, *[min(5, clients * last)] * last, clients])
    table = np.arange(clients * width, dtype=np.float64).reshape(clients, width)
    parts = checkpoint.Parts(nodes, folder)
    for r, changed in enumerate([range(9), (0, 8), (3,), (8,)], start=1):
        table[[*changed]] += r
        mask = np.isin(np.arange(clients), changed)
        own = ClientRows([torch.from_numpy(table[source.clients_of(comm.rank)])])
        checkpoint.write(folder, 2, {"round": r}, {}, own, nodes, source, parts, mask)
    comm.barrier()
    written = Counter(path.name[:19] for path in folder.glob("*-part-*.h5"))
    several = 2 if comm.size > 1 else 1
    assert written == {
        f"checkpoint-0000000{r}": count for r, count in zip((1, 2, 3, 4), (several, several, 1, 1))
    }
    for target in (
        source,
        Placement(clients, comm.size),
        Placement(clients, comm.size, [0] * comm.size + [9]),
    ):
        rows = np.full((len(target.clients_of(comm.rank)), width), -1.0)
        path = checkpoint.newest(folder)[0] if comm.rank == 0 else None
        checkpoint.read_clients(path, ClientRows([torch.from_numpy(rows)]), comm, target)
        np.testing.assert_array_equal(rows, table[target.clients_of(comm.rank)])
    comm.barrier()


@pytest.mark.parametrize("fails", ["_write_part", "_write_head", "Gathering", "unshared"])
def test_a_part_cannot_be_written(comm, out, monkeypatch, fails):
    """All ranks raise the error of a rank, no part remains, and the previous checkpoint is valid."""
    nodes, folder, placement = two_nodes(comm), Path(out), Placement(5, comm.size)
    rows = ClientRows([torch.ones(len(placement.clients_of(comm.rank)), 3)])
    parts, changed = checkpoint.Parts(nodes, folder), np.ones(5, dtype=bool)
    checkpoint.write(folder, 2, {"round": 1}, {}, rows, nodes, placement, parts, changed)
    comm.barrier()
    before = {path.name for path in folder.iterdir()}
    comm.barrier()
    last = parts.comm.rank == 0 and comm.rank + parts.comm.size == comm.size

    def fail(*arguments, **_):
        if fails != "_write_part":
            raise OSError(5, "Input/output error")
        gathering = arguments[1]
        for _ in gathering.receive() if gathering.receives else [gathering.send()]:
            pass
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        if fails == "unshared":
            patched.setattr(checkpoint, "_has_size", lambda *_: False)
        elif fails == "Gathering" and last:
            patched.setattr(client_rows.np, "empty", no_memory)
        elif last or (fails == "_write_head" and comm.rank == 0):
            patched.setattr(checkpoint, fails, fail)
        with pytest.raises(CollectiveError, match="Input/output|memory|all nodes share"):
            checkpoint.write(folder, 2, {"round": 2}, {}, rows, nodes, placement, parts, changed)
    comm.barrier()
    assert {path.name for path in folder.iterdir()} == before
    comm.barrier()
    checkpoint.write(folder, 1, {"round": 2}, {}, rows, nodes, placement, parts, changed)
    assert comm.rank or checkpoint.newest(folder)[1]["round"] == 2
    comm.barrier()


def no_memory(*_, **__):
    raise MemoryError("no memory for a block")


def test_nodes_with_different_folders(comm, out):
    """Rank 0 writes the rows of all ranks."""
    nodes = two_nodes(comm)
    folder = Path(out, "shared" if comm.rank == 0 or nodes.node == 0 else "local")
    folder.mkdir(exist_ok=True)
    parts = checkpoint.Parts(nodes, folder)
    assert parts.comm.size == comm.size and parts.ranks == [*range(comm.size)]


def test_a_cohort_on_two_nodes_is_resumed_on_any_number_of_ranks(comm, out):
    """From two nodes to one process, and from there to two nodes; bitwise identical."""
    settings = dict(rounds=9, cohort=2, reduction="exact", checkpoint_every=1, keep=2, batch_size=1)
    settings |= dict(placement="even", noise=None)
    job = functools.partial(configuration, SCAFFOLD(K=2, eta_l=0.02), Saddle(clients=7, d=4), **settings)
    whole = run(job(f"{out}/whole"), comm)
    run(job(f"{out}/run", rounds=4), two_nodes(comm))
    assert comm.rank or len([*Path(out, "run").glob("*-part-*.h5")]) >= 4
    if comm.rank == 0:
        resume(f"{out}/run", ["rounds=6"], comm=SerialComm())
    comm.barrier()
    assert_same(resume(f"{out}/run", ["rounds=9"], comm=two_nodes(comm)), whole)


class Counting:
    """Forward all calls to a communicator and count the collectives."""

    COLLECTIVES = ("allreduce_", "bcast_", "alltoallv", "allgatherv", "send", "receive", "barrier")

    def __init__(self, comm):
        self.comm, self.calls = comm, Counter()

    def __getattr__(self, name):
        if name in self.COLLECTIVES:
            self.calls[name] += 1
        return getattr(self.comm, name)


@pytest.mark.dealt
@pytest.mark.parametrize("reduction, call", [("fused", "allreduce_"), ("exact", "allgatherv")])
@pytest.mark.parametrize("name, placement", zip(METHODS, itertools.cycle(["even", "balanced"])))
def test_a_phase_is_one_sum(comm, out, name, placement, reduction, call):
    """A round also has one broadcast if rank 0 computes the matrices, and one sum of blocks stored per
    client. One process has no communication."""
    problem_ = problem(next(other for one, other in FITTING if one == name))  # a small message
    counting = Counting(comm)
    run = {"placement": placement, "reduction": reduction}
    simulation = started(configuration(method(name), problem_, out, noise=None, **run), comm=counting)
    phases = simulation.config.algorithm.phases
    stored = "y" in method(name).client.fields and "y" not in method(name).shared.fields
    for _ in range(2):
        counting.calls.clear()
        before = simulation.rounds.costs.phases
        simulation.step()
        sums = simulation.rounds.costs.phases - before  # without phases whose condition does not hold
        assert sums >= sum(phase.when is None for phase in phases)
        expected = Counter(
            {call: sums + stored},
            bcast_=sum(map(bool, updated_matrices(simulation.config.algorithm, phases))),
        )
        assert counting.calls == (expected if comm.size > 1 else Counter())


class Unreadable(Game):
    """The last client has no readable data."""

    def client_data(self, k):
        if k == self.clients - 1:
            raise ValueError(f"client {k} has lost its data")
        return super().client_data(k)


def test_a_client_without_readable_data_stops_all_ranks(comm, out):
    with pytest.raises(CollectiveError, match="client 4 has lost its data"):
        run(configuration(ADA, Unreadable(clients=5), out, placement="balanced"), comm)
