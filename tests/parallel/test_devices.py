"""Transports between ranks, and runs on GPUs. Without a GPU, transports of GPUs run on the CPU with gloo."""

import time

import numpy as np
import pytest
import simulated_gpu
import torch
import torch.distributed as dist
from device_rounds import SIMULATED
from games import Game, configuration, started
from nodes import two_nodes
from resumed import bits

import mpifed.parallel.exchange
import mpifed.parallel.transport
import mpifed.simulation.simulation
from mpifed import resume, run
from mpifed.algorithms import AdaFGDA
from mpifed.parallel import reproducibility
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.parallel.devices import choose_device
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.reduction import ExactReduction, FusedReduction
from mpifed.parallel.transport import CudaMpi, Host, Nccl, Shm, SingleRank, choose_transport
from mpifed.simulation import client_batching

pytestmark = pytest.mark.mpi
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
CPU = torch.device("cpu")


class Copied(Host):
    """Copies tensors to a buffer, as on a GPU."""

    def __init__(self, comm, device):
        super().__init__(comm, device)
        self.copies = True


TRANSPORTS = {
    "host": lambda comm: Host(comm, CPU),
    "copied": lambda comm: Copied(comm, CPU),
    "cuda-mpi": lambda comm: CudaMpi(comm, CPU),
    "nccl": lambda comm: Nccl(comm, CPU, "gloo"),
    "nccl on two nodes": lambda comm: Nccl(two_nodes(comm), CPU, "gloo"),
    "shm": lambda comm: Shm(comm, CPU),
    "shm on two nodes": lambda comm: Shm(two_nodes(comm), CPU),
}


@pytest.fixture(params=TRANSPORTS)
def transport(request, comm, monkeypatch):
    monkeypatch.setattr(mpifed.parallel.transport, "SHORT", 0)  # use shared memory for short messages, too
    with TRANSPORTS[request.param](comm) as transport:
        yield transport
    assert not dist.is_initialized()


@pytest.mark.parametrize("kind", [FusedReduction, ExactReduction])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("members", [[0, 2, 4], [3]])
def test_average_and_control_value(transport, comm, kind, weighted, members):
    """A mean known in closed form; with one member, most ranks have no messages."""
    clients, size, members = 5, 7, np.array(members)
    placement = Placement(clients, comm.size)
    weights = np.arange(1.0, clients + 1) if weighted else None
    cohort = Cohort(members, placement, comm.rank, weights)
    hosted = placement.counts[comm.rank]
    reduction = kind(transport, max(1, hosted), placement, size, torch.float64)
    for repetition in range(2):
        reduction.begin(cohort)
        for row, client in enumerate(placement.clients_of(comm.rank)[cohort.local]):
            reduction.rows[row] = torch.arange(size) * 10.0 + client
        if len(cohort.local):
            reduction.add(slice(0, len(cohort.local)))
        controls = reduction.finish(repetition * (comm.rank + 1.0))
        mean = np.average(members, weights=None if weights is None else weights[members])
        # Three additions and a division.
        np.testing.assert_allclose(reduction.mean.numpy(), np.arange(size) * 10.0 + mean, rtol=1e-14)
        assert controls == repetition * comm.size * (comm.size + 1) / 2
    assert (transport.wire_bytes > 0) == (comm.size > 1) and transport.seconds > 0


@pytest.mark.parametrize("reduction", ["fused", "exact"])
def test_a_control_value_counts_once_in_a_round_of_several_sums(comm, monkeypatch, reduction):
    """Two phases, and chunks of one element with ``exact``."""
    monkeypatch.setattr(mpifed.parallel.exchange, "CHUNK", 1)
    algorithm = AdaFGDA(q=2, gamma=0.02, lam=0.02, matrix="norm", sync_estimator="mean_after")
    config = configuration(algorithm, Game(clients=5), "unused", reduction=reduction)
    simulation = started(config, comm=comm)
    assert len(simulation.config.algorithm.phases) > 1
    sums = [simulation.step(value * (comm.rank + 1)) for value in (0.0, 2.0, 0.0)]
    assert sums == [0.0, comm.size * (comm.size + 1.0), 0.0]


def test_broadcast(transport, comm):
    tensor = torch.arange(5.0) + comm.rank
    for _ in range(2):
        transport.bcast_(tensor[1:4])
        assert tensor[1:4].tolist() == [1.0, 2.0, 3.0] and tensor[0] == comm.rank
        tensor[1:4] += comm.rank


def final(comm, out, **settings) -> np.ndarray:
    """Return the output point of AdaFGDA on five clients."""
    return bits(
        run(configuration(AdaFGDA(q=3, gamma=0.02, lam=0.02), Game(clients=5), out, **settings), comm)
    )


@pytest.mark.parametrize("name", ["copied", "cuda-mpi", "nccl", "shm", "shm on two nodes"])
def test_runs_agree_with_the_host(comm, out, monkeypatch, name):
    """1e-12 in float64: the sums of up to four ranks in another order, three rounds."""
    points = []
    monkeypatch.setattr(mpifed.parallel.transport, "SHORT", 0)
    for kind in ("host", name):
        monkeypatch.setattr(
            mpifed.simulation.simulation, "choose_transport", lambda *_: TRANSPORTS[kind](comm)
        )
        points.append(final(comm, f"{out}/{kind}", device="cpu"))
        assert not dist.is_initialized()
    np.testing.assert_allclose(points[1], points[0], rtol=1e-12, atol=1e-12)


def test_automatic_transport(comm):
    assert type(choose_transport(comm, CPU, "auto", False)) is (Shm if comm.size > 1 else SingleRank)
    assert type(choose_transport(comm, CPU, "host", True)) is Host


def test_an_existing_process_group_is_an_error(comm):
    """It exists on the last rank only; all ranks raise the error, and no rank waits."""
    last = comm.rank == comm.size - 1
    if last:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(CollectiveError, match="already uses torch.distributed"):
            Nccl(comm, CPU, "gloo")
    finally:
        if last:
            dist.destroy_process_group()


def test_a_rank_that_cannot_reach_rank_0(comm, monkeypatch):
    """All ranks raise an error, no rank waits, and the process group is destroyed."""

    def refuse(hosts, port):
        if comm.rank == comm.size - 1:
            raise OSError("rank 0 cannot be reached")
        return "127.0.0.1"

    if comm.size == 1:
        pytest.skip("a single rank connects to itself")
    monkeypatch.setattr(mpifed.parallel.transport, "_reachable", refuse)
    with pytest.raises(CollectiveError, match=f"rank 0 cannot be reached.*on rank {comm.size - 1}"):
        Nccl(comm, CPU, "gloo")
    assert not dist.is_initialized()


@pytest.mark.parametrize("fault", ["sum", "silence"])
def test_nccl_is_tested_by_a_message(comm, monkeypatch, fault):
    """The last rank receives another sum, or does not answer; all ranks raise an error."""
    real = dist.all_reduce

    def all_reduce(tensor):
        if comm.rank == comm.size - 1:
            if fault == "silence":
                time.sleep(3)
            tensor[1] += 1
        real(tensor)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(mpifed.parallel.transport, "SETUP_TIMEOUT", 60 if fault == "sum" else 1)
    reason = {"sum": "gives the sums", "silence": "no answer from the other ranks within 1 s"}[fault]
    with pytest.raises(CollectiveError, match=f"{reason}.*NCCL_DEBUG=INFO.*NCCL_SOCKET_IFNAME"):
        Nccl(comm, CPU, "gloo")
    assert not dist.is_initialized()


def test_gpus_that_are_missing_on_some_ranks(comm, monkeypatch):
    """The last rank has no GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(comm.rank < comm.size - 1))
    with pytest.raises(
        CollectiveError, match=f"requires a GPU, but none is available to this process.*{comm.size - 1 or ''}"
    ):
        choose_device(comm, "cuda")
    if comm.size == 1:
        assert choose_device(comm, "auto") == CPU
    else:
        with pytest.raises(CollectiveError, match=f"a GPU for {comm.size - 1} of {comm.size} ranks"):
            choose_device(comm, "auto")


@gpu
@pytest.mark.parametrize("reduction", ["fused", "exact"])
@pytest.mark.parametrize("group", [1, 2, "all"])
@pytest.mark.parametrize("matrices", ["coordinator", "replicated"])
def test_gpu_agrees_with_cpu(comm, out, reduction, group, matrices):
    """1e-9 in float64: the same operations with sums in another order."""
    settings = dict(reduction=reduction, group=group, matrices=matrices, checkpoint_every=2)
    here, there = (final(comm, f"{out}/{device}", device=device, **settings) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(there, here, rtol=1e-9, atol=1e-9)
    longer = resume(f"{out}/cuda", ["rounds=4"], comm)
    assert longer.costs["round"][-1] == 4 or comm.rank


@gpu
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("way", ["default", "reduce-overhead"])
def test_compiled_gradients_on_the_device(comm, out, way, group):
    """1e-9 in float64: sums in another order. Enough steps that a graph is captured and replayed."""
    settings = dict(rounds=8, device="cuda", group=group)
    plain, compiled = (final(comm, f"{out}/{one}", compile=one, **settings) for one in ("none", way))
    np.testing.assert_allclose(compiled, plain, rtol=1e-9, atol=1e-9)


@gpu
@pytest.mark.parametrize("compile", ["none", "reduce-overhead"])
def test_gradients_in_bfloat16_on_the_device(comm, out, compile):
    """2**-6 of the point: eight rounding errors of bfloat16 in gradients, multiplied by small step sizes."""
    settings = dict(device="cuda", dtype="float32")
    single = final(comm, f"{out}/single", **settings)
    half = final(comm, f"{out}/half", autocast="bfloat16", compile=compile, **settings)
    assert half.dtype == np.float32 and not np.array_equal(half, single)
    assert np.linalg.norm(half - single) <= 2**-6 * np.linalg.norm(single)


@gpu
def test_exact_is_reproducible_on_the_device(comm, out):
    one, other = (final(comm, f"{out}/{number}", device="cuda", reduction="exact") for number in (1, 2))
    np.testing.assert_array_equal(one, other)


@gpu
@pytest.mark.parametrize("group, is_compared", [("auto", True), ("all", True), ("all", False)])
def test_exact_is_reproducible_on_any_number_of_devices(comm, out, monkeypatch, group, is_compared):
    """Also if the results of vectorised clients depend on the size of the group: they are looped over by
    default, and if a comparison before the first round finds a difference. Only without it, bits differ."""
    if not is_compared:
        if not SIMULATED:
            pytest.skip("a real GPU may give the same bits")
        monkeypatch.setattr(client_batching, "_depends_on_position", lambda *_: False)
    settings = dict(device="cuda", reduction="exact", group=group)
    with simulated_gpu.rounding_by_shape():
        found = final(comm, f"{out}/ranks", **settings)
        if comm.rank == 0:
            alone = final(SerialComm(), f"{out}/alone", **settings)
            assert np.array_equal(found, alone) == (is_compared or comm.size == 1)
            np.testing.assert_allclose(found, alone, rtol=1e-12, atol=1e-12)  # in the last bits only


@gpu
def test_large_messages_of_the_device(comm):
    """12 MB of integers, whose sums are exact in any order."""
    device = choose_device(comm, "cuda")
    with choose_transport(comm, device, "host", False) as transport:
        tensor = (torch.arange(3_000_000.0, device=device) % 1000) * (comm.rank + 1)
        factor = comm.size * (comm.size + 1) // 2
        for _ in range(3):
            tensor[:-1] = (torch.arange(2_999_999.0, device=device) % 1000) * (comm.rank + 1)
            assert transport.sum_(tensor, 1.0) == comm.size
            assert torch.equal(tensor[:-1], (torch.arange(2_999_999.0, device=device) % 1000) * factor)


@gpu
def test_nccl_or_an_error(comm):
    """NCCL sums if every rank has its own GPU, otherwise it is an error."""
    device = choose_device(comm, "cuda")
    if comm.size > torch.cuda.device_count():
        with pytest.raises(CollectiveError, match="ranks 0 and . share one"):
            choose_transport(comm, device, "nccl", False)
        assert type(choose_transport(comm, device, "auto", False)) is Host
        return
    with choose_transport(comm, device, "nccl", False) as transport:
        tensor = torch.ones(1000, device=device)
        assert transport.sum_(tensor, 3.0) == 3.0 * comm.size
        assert torch.equal(tensor[:-1].cpu(), torch.full((999,), float(comm.size)))


@pytest.mark.parametrize("reduction", ["exact", "fused"])
def test_different_machines_are_reported_with_exact(comm, out, monkeypatch, capsys, reduction):
    """The last rank has another version of torch."""
    config = configuration(AdaFGDA(q=2), Game(clients=5), out, rounds=1, reduction=reduction)
    run(config, comm)
    assert "same type" not in capsys.readouterr().err
    here = reproducibility.machine(CPU)
    elsewhere = here | ({"torch": "9.9"} if comm.rank == comm.size - 1 else {})
    monkeypatch.setattr(reproducibility, "machine", lambda device: elsewhere)
    run(config, comm)
    logged = capsys.readouterr().err
    expected = (
        "run.reduction = 'exact' is reproducible only on machines of the same type, but "
        f"torch is {torch.__version__} on rank 0 and 9.9 on rank {comm.size - 1}\n"
    )
    assert ("same type" in logged) == (comm.rank == 0 and comm.size > 1 and reduction == "exact"), logged
    assert "same type" not in logged or expected in logged, logged
