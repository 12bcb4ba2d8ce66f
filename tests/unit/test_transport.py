"""Devices, transports and their choice, in one process."""

import itertools
import os
import socket
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mpifed.parallel import devices, transport, world
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.parallel.devices import assign_devices, offered_devices, peak_memory
from mpifed.parallel.reproducibility import deterministic, float32_precision
from mpifed.parallel.transport import choose_transport
from mpifed.report.tables import describe_memory

CPU = torch.device("cpu")


class Several(SerialComm):
    """One of ``size`` ranks with equal arrays; an allgatherv returns ``gathered``, or ``nodes``."""

    def __init__(self, size, rank=0, gathered=(), nodes=0):
        self.size, self.rank, self.gathered, self.nodes = size, rank, gathered, nodes

    def allgatherv(self, send, receive, counts):
        receive[...] = self.gathered if len(receive) == len(self.gathered) else self.nodes


def test_bytes_on_the_wire():
    for rank, broadcast in ((0, 2 * 40), (1, 40)):
        way = transport.Host(Several(3, rank), CPU)
        way.sum_(torch.zeros(10), 0.0)
        assert way.wire_bytes == 2 * 40
        way.bcast_(torch.zeros(10))
        assert way.wire_bytes == 2 * 40 + broadcast


#: What the ranks of some nodes see, as letters for the UUIDs; their local ranks; the devices they get.
TOPOLOGIES = {
    "all ranks see all devices": ("ABCD ABCD ABCD ABCD", "0123", "ABCD"),
    "more ranks than devices": ("ABC ABC ABC ABC ABC", "01234", "ABCAB"),
    "fewer ranks than devices": ("ABCD ABCD", "01", "AB"),
    "one visible device per rank": ("A B C D", "0123", "ABCD"),
    "the same device for all ranks": ("A A A", "012", "AAA"),
    "two nodes, numbered node by node": ("AB AB CD CD", "0101", "ABCD"),
    "two nodes, numbered cyclically": ("AB CD AB CD", "0011", "ACBD"),
    "closest devices of two sockets": ("AB AB CD CD", "0123", "ABCD"),
    "closest devices, ranks bound to sockets cyclically": ("AB CD AB CD", "0123", "ADBC"),
    "closest devices overlap": ("AB A BC B", "0123", "BACB"),
    "a rank moves over for one that sees less": ("AB A", "00", "BA"),
    "a chain of ranks moves over": ("AB BC CD A", "0000", "BCDA"),
    "lists of UUIDs in different orders": ("BA AB", "00", "BA"),
    "MIG instances, one per rank": ("a b c", "012", "abc"),
    "a split communicator, ranks 2 and 3 of a node": ("ABCD ABCD", "23", "CD"),
}


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_devices_are_matched_to_ranks(topology):
    seen, local_ranks, _ = TOPOLOGIES[topology]
    seen = [[ord(device) for device in devices] for devices in seen.split()]
    positions = assign_devices(seen, [int(rank) for rank in local_ranks])
    assigned = [chr(devices[position]) for devices, position in zip(seen, positions)]
    assert "".join(assigned) == TOPOLOGIES[topology][2]


def test_ranks_are_distributed_as_evenly_as_possible():
    """Against all assignments, by the sum of the squared numbers of ranks per device."""
    random = np.random.default_rng(0)
    for _ in range(100):
        seen = [random.permutation(4)[: random.integers(1, 4)].tolist() for _ in range(5)]
        positions = assign_devices(seen, list(range(5)))
        assigned = [devices[position] for devices, position in zip(seen, positions)]
        loads = [(np.bincount(choice) ** 2).sum() for choice in itertools.product(*seen)]
        assert (np.bincount(assigned) ** 2).sum() == min(loads)


@pytest.mark.parametrize("gpus, expected", [([2], [2, 2, 2]), ([2, 0], [2, 0, 2])])
def test_gpus_of_the_job_are_assigned_round_robin(monkeypatch, gpus, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for wanted in ("auto", "cuda"):
        offered = [offered_devices(wanted, gpus, rank) for rank in range(3)]
        assert [device.index for (device,) in offered] == expected
        assert [device.index for device in offered_devices(wanted, None, 1)] == [0, 1, 2]
    assert offered_devices("cpu", None, 1) == []


@pytest.mark.parametrize("wanted, exact, variable, expected", [
    (None, False, None, 2), (None, False, "8", 8), (None, True, "8", 1), (3, True, "8", 3),
])  # fmt: skip
def test_threads_of_four_ranks_on_eight_cores(monkeypatch, wanted, exact, variable, expected):
    monkeypatch.setattr(devices, "_THREADS", 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert devices.threads(wanted, exact, 4) == expected


class Ranks(SerialComm):
    """Rank 0 of several, of which each sees the given GPUs."""

    def __init__(self, *seen):
        self.size = len(seen)
        counts = [(len(gpus), rank) for rank, gpus in enumerate(seen)]
        self.gathered = iter([np.ravel(counts), np.concatenate(seen)])

    def allreduce_(self, array, op="sum"):
        array *= self.size if op == "sum" else 1

    def allgatherv(self, send, receive, counts):
        receive[...] = next(self.gathered)


@pytest.mark.parametrize("seen, warned", [
    (([1, 2], [3], [3]), "the ranks 1 and 2 share a GPU, although 1 of the GPUs that other ranks see are"),
    (([1, 2], [1, 2], [1, 2]), ""),
    (([1, 2, 3], [1, 2, 3]), ""),
])  # fmt: skip
def test_a_shared_gpu_beside_an_unused_one_is_reported(monkeypatch, capsys, seen, warned):
    for name in world._LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(seen[0]))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(devices, "gpu_id", lambda device: seen[0][device.index])
    assert devices.choose_device(Ranks(*seen), "auto").index == 0
    error = capsys.readouterr().err
    assert warned in error and error.count("\n") == bool(warned)


def test_a_missing_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"run.gpus = \[0, 2, 7\]: expected numbers from 0 to 1.*got 2, 7"):
        offered_devices("auto", [0, 2, 7], 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match="run.device = 'cuda' requires .* CUDA_VISIBLE_DEVICES is ''; set"):
        offered_devices("cuda", None, 0)
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(ValueError, match=r"run.gpus = \[0\] requires .* for CUDA 12.9 .* is not set"):
        offered_devices("auto", [0], 0)
    assert offered_devices("auto", None, 0) == []


OWN, SHARED, NO_NCCL = [[11, 1], [12, 1], [13, 1]], [[11, 1], [12, 1], [11, 1]], [[11, 1], [12, 0], [13, 1]]


@pytest.mark.parametrize("ranks, nodes, exact, expected", [
    (OWN, 0, False, "nccl"),
    (SHARED, 0, False, "host"),
    (NO_NCCL, 0, False, "host"),
    (OWN, 0, True, "host"),
    ([[11, 1]], 0, False, "none"),
    ([[0, 1]], 0, False, "none"),
    ([[0, 1]] * 3, 0, False, "shm"),
    ([[0, 1]] * 3, 0, True, "shm"),
    ([[0, 1]] * 3, [0, 0, 2], True, "shm"),
    ([[0, 1]] * 3, [0, 1, 2], True, "host"),
    ([[0, 1]] * 3, [0, 1, 0], True, "host"),
])  # fmt: skip
def test_automatic_transport(monkeypatch, ranks, nodes, exact, expected):
    for name in ("nccl", "shm"):
        made = SimpleNamespace(name=name)
        monkeypatch.setattr(transport, name.capitalize(), lambda comm, device, made=made: made)
    comm = Several(len(ranks), gathered=sum(ranks, []), nodes=nodes)
    assert choose_transport(comm, CPU, "auto", exact).name == expected


@pytest.mark.parametrize("name, ranks, warning, error", [
    ("shm", [[0, 1]] * 3, "messages are sent by MPI",
     "run.transport = 'shm': .*refused on rank 1; set run.transport = 'auto' or 'host'"),
    ("nccl", OWN, "sent through host memory", "refused on rank 1"),
])  # fmt: skip
def test_a_transport_that_cannot_be_set_up_is_replaced(monkeypatch, capsys, name, ranks, warning, error):
    """With one warning; an error if the job requires it."""

    def refuse(comm, device):
        raise CollectiveError("refused on rank 1")

    monkeypatch.setattr(transport, name.capitalize(), refuse)
    comm, exact = Several(3, gathered=sum(ranks, [])), name == "shm"
    assert choose_transport(comm, CPU, "auto", exact).name == "host"
    warned = capsys.readouterr().err
    assert warned.count("\n") == 1 and warning in warned and "refused on rank 1" in warned
    with pytest.raises(CollectiveError, match=error):
        choose_transport(comm, CPU, name, exact)


def test_a_call_without_an_end_is_given_up():
    waiting = threading.Event()
    with pytest.raises(TimeoutError, match="no answer from the other ranks within 0.05 s"):
        transport._within(0.05, waiting.wait)
    waiting.set()
    with pytest.raises(ZeroDivisionError):
        transport._within(60, lambda: 1 / 0)


def test_nccl_uses_the_first_address_of_rank_0_that_accepts_connections():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert transport._reachable(["no-such-host.invalid", "127.0.0.1"], port) == "127.0.0.1"
    with pytest.raises(OSError, match=f"rank 0 cannot be reached on port {port} .127.0.0.1: .*refused"):
        transport._reachable(["127.0.0.1"], port)
    several = transport._addresses(Several(3, nodes=[0, 0, 2]))
    assert several[0] == socket.gethostname() and transport._addresses(SerialComm()) == ["127.0.0.1"]


@pytest.fixture
def launched(monkeypatch):
    """Return a function that sets the local rank in a launcher's variable; none is set before."""
    for name in world._LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(world, "slurm_job", lambda: None)

    def launch(variable: str, local_rank: str) -> None:
        monkeypatch.setenv(variable, local_rank)
        monkeypatch.setattr(world, "slurm_job", lambda: "12" if variable == "SLURM_LOCALID" else None)

    return launch


@pytest.mark.parametrize("variable", [*world._LOCAL_RANKS, "SLURM_LOCALID"])
def test_split_communicators_use_different_gpus(monkeypatch, launched, variable):
    """Each has one rank, with local rank 0, but the launcher has started several."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(devices, "gpu_id", lambda device: device.index + 1)
    for rank in ("0", "1", ""):
        launched(variable, rank)
        chosen.append(devices.choose_device(SerialComm(), "auto").index)
    assert chosen == [0, 1, 0]


@pytest.mark.parametrize("variable, local_rank, switch, gpus, expected", [
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1", {"OMPI_MCA_opal_cuda_support": "true"}, 4, [1, "MPI"]),
    ("PALS_LOCAL_RANKID", "3", {"MPICH_GPU_SUPPORT_ENABLED": "1"}, 2, [1, "MPI"]),
    ("SLURM_LOCALID", "2", {"MPICH_GPU_SUPPORT_ENABLED": "1"}, 4, [2, "MPI"]),
    ("PALS_LOCAL_RANKID", "1", {"MPICH_GPU_SUPPORT_ENABLED": "0"}, 4, ["MPI"]),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1", {}, 4, ["MPI"]),
    ("MPI_LOCALRANKID", "1", {"MPIR_CVAR_ENABLE_GPU": "1"}, 0, ["MPI"]),
    ("MPI_LOCALRANKID", "", {"MPIR_CVAR_ENABLE_GPU": "1"}, 4, ["MPI"]),
])  # fmt: skip
def test_a_gpu_is_selected_before_a_cuda_aware_mpi_starts(
    monkeypatch, launched, variable, local_rank, switch, gpus, expected
):
    for name in world._CUDA_AWARE:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**switch, "PMI_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    launched(variable, local_rank)
    order = []
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", order.append)
    monkeypatch.setattr(world, "usable_mpi", lambda: order.append("MPI"))
    monkeypatch.setattr(world, "_mpi", lambda: Several(8))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    world.world()
    assert order == expected


@pytest.mark.parametrize(
    "mask, driver, warned", [(None, True, 1), ("0", True, 1), ("", True, 0), (None, False, 0)]
)
def test_a_driver_without_a_usable_gpu_is_reported(monkeypatch, tmp_path, capsys, mask, driver, warned):
    monkeypatch.setattr(devices, "DRIVER", tmp_path / ("" if driver else "none"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    for wanted in ("auto", "cpu"):
        assert devices.choose_device(SerialComm(), wanted) == CPU
    assert capsys.readouterr().err.count("uses the CPU, although this node has a GPU driver") == warned


@pytest.mark.parametrize("wanted, ranks, exact, message", [
    ("nccl", SHARED, False, "got 3 ranks on 2 GPUs .ranks 0 and 2 share one"),
    ("nccl", NO_NCCL, False, "needs a torch with NCCL"),
    ("nccl", OWN, True, "does not support run.reduction = 'exact'"),
    ("cuda-mpi", OWN, True, "does not support run.reduction = 'exact'"),
    ("cuda-mpi", [[0, 1]], False, "needs a GPU on every rank"),
    ("shm", OWN, True, "needs run.device = 'cpu', got GPUs"),
    ("shm", [[0, 1]] * 3, True, "ranks that are numbered node by node"),
])  # fmt: skip
def test_an_unsuitable_transport_is_an_error(wanted, ranks, exact, message):
    comm = Several(len(ranks), gathered=sum(ranks, []), nodes=[0, 1, 0])
    with pytest.raises(CollectiveError, match=f"{message}.*run.transport = 'auto' or 'host'"):
        choose_transport(comm, CPU, wanted, exact)


@pytest.mark.parametrize("answer, warned", [(True, 0), (None, 1)])
def test_cuda_mpi_is_used_if_the_job_selects_it(capsys, answer, warned):
    comm = Several(3, gathered=sum(OWN, []))
    comm.cuda_aware = lambda: answer
    assert type(choose_transport(comm, CPU, "cuda-mpi", False)) is transport.CudaMpi
    assert capsys.readouterr().err.count("does not say whether it is CUDA-aware") == warned


def test_cuda_mpi_needs_a_library_that_is_cuda_aware():
    comm = Several(3, gathered=sum(OWN, []))
    comm.cuda_aware, comm.mpi = lambda: False, "Open MPI v5.0.11, package: Open MPI"
    with pytest.raises(CollectiveError, match="needs a CUDA-aware MPI library, got Open MPI v5.0.11, which"):
        choose_transport(comm, CPU, "cuda-mpi", False)


@pytest.mark.parametrize("workspace", [None, ":16:8"])
def test_deterministic_algorithms_are_temporary(monkeypatch, workspace):
    import torch._inductor.config as compiler

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if workspace:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", workspace)

    def state():
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.allow_tf32,
            compiler.deterministic,
            os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        )

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("high")
    try:
        before = state()
        with deterministic(False):
            assert state() == before
        with pytest.raises(KeyError), deterministic(True):
            assert state() == (True, False, "highest", True, False, False, True, workspace or ":4096:8")
            raise KeyError
        assert state() == before
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("precision, tf32", [("highest", False), ("high", True)])
def test_the_precision_of_products_is_temporary(precision, tf32):
    def state():
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    before = state()
    with float32_precision(precision):
        assert state() == (precision, tf32)
        with deterministic(True):
            assert state() == ("highest", False)
    assert state() == before


def test_peak_memory():
    """5 %: the two counters of the kernel are not read at the same time."""
    memory = peak_memory(SerialComm(), CPU)
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert memory["gpu"].tolist() == [-1] and memory["peak_gpu_bytes"].tolist() == [0]
    np.testing.assert_allclose(memory["peak_host_bytes"], peak * 1024, rtol=0.05)
    ranks = {"peak_host_bytes": np.array([310e6, 322.4e6]), "peak_gpu_bytes": np.array([0, 0])}
    assert describe_memory(ranks) == "host 310-322 MB, GPU 0 MB"


class Sends(SerialComm):
    """Records what this rank sends to the other ranks."""

    def __init__(self):
        self.sent = []

    def allgatherv(self, send, receive, counts):
        self.sent.append(send.tolist())
        super().allgatherv(send, receive, counts)


@pytest.mark.parametrize("available, built, nccl", [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_nccl_requires_torch_distributed_with_nccl(monkeypatch, available, built, nccl):
    monkeypatch.setattr(transport, "gpu_id", lambda device: 11)
    monkeypatch.setattr(transport.dist, "is_available", lambda: available)
    monkeypatch.setattr(transport.dist, "is_nccl_available", lambda: built)
    comm = Sends()
    assert choose_transport(comm, CPU, "auto", False).name == "none"
    assert comm.sent == [[11, nccl]]
