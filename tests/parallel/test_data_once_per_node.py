"""Data that are read once per node and held once per node."""

import re
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from games import configuration
from nodes import two_nodes
from tiny_data import TINY, write_tiny

from mpifed import run
from mpifed.algorithms import LocalSGDA
from mpifed.data import DATASETS, sources
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.parallel.shared_memory import read_once_per_node
from mpifed.problems import FairClassification

pytestmark = pytest.mark.mpi
NODES = {"one node": lambda comm: comm, "two nodes": two_nodes}
#: Larger than any block that the C library keeps after it is freed.
SIZE = 2**26


def total(comm, number: float) -> float:
    numbers = np.array([float(number)])
    comm.allreduce_(numbers)
    return float(numbers[0])


def memory() -> int:
    """The memory of this process in bytes; pages that n processes map count as 1 / n."""
    found = re.findall(r"^Pss_(?:Anon|Shmem): +(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.M)
    if not found:
        pytest.skip("the system does not report proportional set sizes by type of page")
    return 1024 * sum(map(int, found))


def test_tensors_of_any_strides_are_shared(comm):
    rows = torch.arange(24.0).reshape(4, 6)
    given = [
        rows[:, 0],
        rows.t(),
        rows[0, 0],
        rows[::2, ::3],
        torch.arange(8)[::2],
        rows[:0],
        rows.expand(2, 4, 6),
    ]
    values = read_once_per_node(comm, lambda: given)
    assert len(values) == len(given) and all(map(torch.equal, values, given))


def test_every_rank_reads_what_cannot_be_pickled(comm, capfd):
    calls = []

    def read():
        calls.append(comm.rank)
        return lambda: 3

    assert read_once_per_node(comm, read)() == 3
    assert calls == [comm.rank]
    warned = (
        "every rank reads the data, since the ranks of a node cannot share them" in capfd.readouterr().err
    )
    assert warned == (comm.rank == 0 and comm.size > 1)


@pytest.mark.parametrize("nodes", NODES)
def test_the_first_rank_of_each_node_reads_and_its_ranks_share_the_memory(comm, nodes):
    on_nodes, calls = NODES[nodes](comm), []
    first = on_nodes.node

    def read():
        calls.append(comm.rank)
        return {"from": comm.rank, "rows": np.full(SIZE, 1 + comm.rank, np.uint8)}

    comm.barrier()
    before = memory()
    comm.barrier()
    value = read_once_per_node(on_nodes, read)
    assert value["from"] == first and value["rows"].min() == value["rows"].max() == 1 + first
    assert calls == ([comm.rank] if comm.rank == first else [])
    comm.barrier()  # all ranks have read all pages
    grown = total(comm, memory() - before)
    held = 1 if nodes == "one node" or comm.size == 1 else 2
    assert 0.9 * held * SIZE < grown < held * SIZE + comm.size * 2**21, (
        grown
    )  # 2 MB per rank for other objects
    comm.barrier()
    value["rows"][:8] = 7 + comm.rank
    comm.barrier()
    assert value["rows"][:8].tolist() == [7 + comm.rank] * 8


@pytest.mark.parametrize("nodes", NODES)
def test_an_error_of_the_first_rank_of_a_node_is_raised_on_all_ranks(comm, nodes):
    on_nodes = NODES[nodes](comm)
    wrong = max(set(range(comm.size)) & {0, (comm.size + 1) // 2}) if nodes == "two nodes" else 0

    def read():
        if comm.rank == wrong:
            raise OSError("no such disk")
        return comm.rank

    where = f" \\(on rank {wrong}\\)" if wrong else ""
    with pytest.raises(CollectiveError, match=f"^no such disk{where}\n"):
        read_once_per_node(on_nodes, read)


def test_every_rank_reads_if_a_node_has_no_shared_memory(comm, capfd):
    calls, limits = [], resource.getrlimit(resource.RLIMIT_FSIZE)
    if comm.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        value = read_once_per_node(comm, lambda: calls.append(0) or np.arange(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(value) == 10_000 and len(calls) == 1
    warning = (
        "every rank reads the data, since the ranks of a node cannot share them: [Errno 27] File too large"
    )
    assert capfd.readouterr().err.count(warning) == (comm.rank == 0 and comm.size > 1)


@pytest.mark.parametrize("nodes", NODES)
def test_a_run_opens_each_data_file_once_per_node_and_is_bitwise_identical(comm, out, monkeypatch, nodes):
    folder, opened = Path(out).parent / f"{Path(out).name}-data" / "tiny", []
    if comm.rank == 0:
        write_tiny(folder)
    comm.barrier()
    monkeypatch.setitem(DATASETS, "tiny", TINY)
    monkeypatch.setenv("MPIFED_DATA", str(folder.parent))

    def job(out):
        problem = FairClassification(dataset="tiny", clients=5)
        method = LocalSGDA(q=3, eta_x=0.02, eta_y=0.02)
        return configuration(method, problem, out, batch_size=2, noise=None, reduction="exact")

    with monkeypatch.context() as patch:
        patch.setattr(sources, "open", lambda *of: opened.append(of) or open(*of), raising=False)
        on_nodes = NODES[nodes](comm)
        result = run(job(out), on_nodes)
        assert total(comm, len(opened)) == 4 * (1 if nodes == "one node" or comm.size == 1 else 2)
    if comm.rank == 0:
        alone = run(job(f"{out}/alone"), SerialComm())
        assert all(torch.equal(result.point[name], alone.point[name]) for name in alone.point)
