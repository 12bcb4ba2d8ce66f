"""How messages travel between the ranks, and which way a run takes.

============  ================================================================================================
``shm``       Memory shared by the ranks of a node, where their sums are stored. Only on CPUs. Across nodes
              the first rank of each node exchanges the sums of its node by MPI.
``host``      MPI on host memory. A message on the CPU is reduced in place. A message on a GPU is copied to a
              pinned buffer, reduced there, and copied back.
``cuda-mpi``  MPI on GPU memory, if the job asks for it: the MPI library must be CUDA-aware.
``nccl``      NCCL between GPUs, one rank per GPU. The ranks find each other through MPI.
``none``      A single rank: nothing is sent.
============  ================================================================================================

All ranks get the same bits. Those of ``run.reduction = "fused"`` depend on the transport. Those of "exact" do
not: it adds in host memory, in an order that no transport changes (:mod:`mpifed.parallel.exchange`).
"""

from __future__ import annotations

import contextlib
import socket
import time
import weakref
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from mpifed.base.log import warning
from mpifed.parallel.comm import CollectiveError, SerialComm, broadcast_text, collective_errors, raise_if_any
from mpifed.parallel.devices import identity, wait_for
from mpifed.parallel.exchange import AllreduceExchange, Exchange, MessageExchange, SharedExchange, padded
from mpifed.parallel.placement import Placement
from mpifed.parallel.shared_memory import Nodes, share_memory

__all__ = ["Transport", "Alone", "Host", "CudaMpi", "Nccl", "Shm", "choose_transport"]

#: Bytes up to which messages take less time than a meeting in shared memory.
SHORT = 2**15
#: Seconds in which ranks that set up NCCL must find each other, and seconds for each address that they try.
PATIENCE, ATTEMPT = 120, 10
#: Limit of a single NCCL call. Ranks may wait as long as rank 0 writes a checkpoint; the run's own watchdog
#: ends calls that hang.
UNLIMITED = timedelta(days=365)


class Transport:
    """The way of this rank's messages.

    Attributes:
        name: as in ``run.transport``.
        device: of the tensors that are sent.
        nodes: the first rank of each node, and the number of ranks.
        seconds: time spent in communication so far, copies through the host included.
        wire_bytes: bytes that this rank has sent and received so far.
    """

    name = ""

    def __init__(self, comm: SerialComm, device: torch.device):
        self.comm, self.device = comm, device
        self.nodes: tuple[int, ...] = (0, comm.size)
        self.seconds, self.wire_bytes = 0.0, 0

    def sum_(self, tensor: torch.Tensor, control: float) -> float:
        """Replace ``tensor`` ``[size]``, contiguous, by its sum over the ranks. Collective.

        Args:
            control: replaces the last element of this rank.

        Returns:
            The sum of the ranks' control values.
        """
        raise NotImplementedError

    def bcast_(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` ``[size]``, contiguous, by that of rank 0. Collective."""
        raise NotImplementedError

    def fused_exchange(self, size: int, dtype: torch.dtype) -> Exchange:
        """The sum of one partial sum ``[size]`` per rank, for ``run.reduction = "fused"``. Collective."""
        return AllreduceExchange(self, size, dtype)

    def exact_exchange(self, placement: Placement, size: int, dtype: torch.dtype) -> Exchange:
        """The sum along the tree of the partial sums ``[size]`` of ranks with these clients. Collective."""
        slots = placement.most_sums(self.comm.rank, self.comm.rank + 1)
        rows = torch.zeros(slots, padded(size), dtype=dtype)
        # A single rank adds in place of its first partial sum, which is read first.
        result = rows[0, :size] if self.comm.size == 1 else torch.zeros(size, dtype=dtype)
        return MessageExchange(self.comm, rows.numpy(), result.numpy(), self.count)

    def count(self, start: float, wire_bytes: int) -> None:
        """Add the time since ``start`` (of ``time.perf_counter``) and the bytes sent and received."""
        self.seconds += time.perf_counter() - start
        self.wire_bytes += wire_bytes

    def _count_sum(self, start: float, nbytes: int) -> None:
        self.count(start, 2 * nbytes if self.comm.size > 1 else 0)

    def _count_bcast(self, start: float, nbytes: int) -> None:
        self.count(start, nbytes * (1 if self.comm.rank else self.comm.size - 1))

    def close(self) -> None:
        """Release the resources of the transport. Collective."""

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, kind, error, trace) -> None:
        # An error of this rank alone must reach the launcher at once; the others would not answer.
        if kind is None or issubclass(kind, CollectiveError):
            self.close()


class Alone(Transport):
    """A single rank."""

    name = "none"

    def sum_(self, tensor, control):
        return control

    def bcast_(self, tensor):
        pass


class Host(Transport):
    """MPI on host memory, to which tensors of a GPU are copied.

    Attributes:
        copies: whether tensors are copied to a pinned buffer and back.
    """

    name = "host"

    def __init__(self, comm: SerialComm, device: torch.device):
        super().__init__(comm, device)
        self.copies = device.type == "cuda"
        self._pinned: dict[tuple, torch.Tensor] = {}

    def sum_(self, tensor, control):
        wait_for(self.device)
        start, host = time.perf_counter(), self._on_host(tensor, send=True)
        array = host.numpy()
        array[-1] = control
        self.comm.allreduce_(array)
        if self.copies:
            tensor.copy_(host, non_blocking=True)
        self._count_sum(start, array.nbytes)
        return float(array[-1])

    def bcast_(self, tensor):
        wait_for(self.device)
        start, root = time.perf_counter(), self.comm.rank == 0
        host = self._on_host(tensor, send=root)
        self.comm.bcast_(host.numpy())
        if self.copies and not root:
            tensor.copy_(host, non_blocking=True)
        self._count_bcast(start, host.numel() * host.element_size())

    def _on_host(self, tensor: torch.Tensor, send: bool) -> torch.Tensor:
        """The tensor itself, or a pinned buffer, with the tensor's values if ``send``."""
        if not self.copies:
            return tensor
        key = tensor.numel(), tensor.dtype
        if key not in self._pinned:
            self._pinned[key] = torch.empty(len(tensor), dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        if send:
            self._pinned[key].copy_(tensor)
        return self._pinned[key]


class Shm(Host):
    """Memory shared by the ranks of a node, and MPI for short messages and between nodes.

    Raises:
        CollectiveError: on all ranks together: the system shares no memory between them.
    """

    name = "shm"

    def __init__(self, comm: SerialComm, device: torch.device):
        super().__init__(comm, device)
        self._nodes, self._warned = Nodes.of(comm), False
        self.nodes = self._nodes.firsts
        share_memory(comm, self._nodes.node, 1)

    def fused_exchange(self, size, dtype):
        return self._shared(size, dtype, 1, 1) or super().fused_exchange(size, dtype)

    def exact_exchange(self, placement, size, dtype):
        rank, here = self.comm.rank, self.nodes.index(self.comm.node)
        slots, of_node = (
            placement.most_sums(rank, rank + 1),
            placement.most_sums(*self.nodes[here : here + 2]),
        )
        return self._shared(size, dtype, slots, of_node) or super().exact_exchange(placement, size, dtype)

    def _shared(self, size: int, dtype: torch.dtype, slots: int, of_node: int) -> SharedExchange | None:
        """``None`` if messages take less time, or the system refuses."""
        if size * dtype.itemsize < SHORT:
            return None
        try:
            kind = torch.empty(0, dtype=dtype).numpy().dtype
            return SharedExchange(self._nodes, slots, of_node, size, kind, self.count)
        except CollectiveError as refusal:
            if self.comm.rank == 0 and not self._warned:
                warning(f"some messages go through MPI: {refusal}")
            self._warned = True
            return None


class _Direct(Transport):
    """A library that reads and writes the tensors themselves. MPI does not know of streams: the device is
    waited for, which does not count as communication.
    """

    def sum_(self, tensor, control):
        tensor[-1] = control
        wait_for(self.device)
        start, self.comm.calling = time.perf_counter(), f"{self.name} Allreduce"
        self._allreduce(tensor)
        controls = float(tensor[-1])  # waits for the device
        self.comm.calling = ""
        self._count_sum(start, tensor.numel() * tensor.element_size())
        return controls

    def bcast_(self, tensor):
        wait_for(self.device)
        start, self.comm.calling = time.perf_counter(), f"{self.name} Bcast"
        self._bcast(tensor)
        wait_for(self.device)
        self.comm.calling = ""
        self._count_bcast(start, tensor.numel() * tensor.element_size())

    def _allreduce(self, tensor: torch.Tensor) -> None:
        raise NotImplementedError

    def _bcast(self, tensor: torch.Tensor) -> None:
        raise NotImplementedError


class CudaMpi(_Direct):
    """MPI on device memory. A library that is not CUDA-aware ends the process."""

    name = "cuda-mpi"

    def _allreduce(self, tensor):
        self.comm.allreduce_(tensor)

    def _bcast(self, tensor):
        self.comm.bcast_(tensor)


class Nccl(_Direct):
    """torch.distributed's default process group, created and destroyed here. Collective.

    Args:
        backend: "nccl", or another one for tensors of another device.

    Raises:
        CollectiveError: on all ranks together: they cannot find each other, or the group is in use already.
    """

    name = "nccl"

    def __init__(self, comm: SerialComm, device: torch.device, backend: str = "nccl"):
        super().__init__(comm, device)
        store, port = self._attempt(self._open_store)
        addresses = broadcast_text(comm, f"{port} {' '.join(_addresses(comm))}")
        store = self._attempt(lambda: store or self._connect(addresses))
        # At the exit of the process at the latest.
        self._leave = weakref.finalize(self, _leave_group)
        try:
            self._attempt(lambda: self._join(backend, store))
        except CollectiveError:
            self._leave()
            raise

    def close(self) -> None:
        self._leave()

    def _attempt(self, action):
        with collective_errors(self.comm, ValueError):
            try:
                return action()
            except (RuntimeError, ValueError, OSError) as fault:
                raise ValueError(
                    f"run.transport = {self.name!r} cannot be set up: {fault} (options: auto, host)"
                ) from fault

    def _open_store(self) -> tuple[dist.TCPStore | None, int]:
        """Open rank 0's store on a free port.

        Returns:
            The store and its port on rank 0; ``None`` and 0 on the other ranks.
        """
        if dist.is_initialized():
            raise ValueError("this process uses torch.distributed already")
        if self.comm.rank:
            return None, 0
        patience = timedelta(seconds=PATIENCE)
        store = dist.TCPStore("127.0.0.1", 0, self.comm.size, True, patience, wait_for_workers=False)
        return store, store.port

    def _connect(self, addresses: str) -> dist.TCPStore:
        port, *hosts = addresses.split()
        host, patience = _reachable(hosts, int(port)), timedelta(seconds=PATIENCE)
        return dist.TCPStore(host, int(port), self.comm.size, False, patience, wait_for_workers=False)

    def _join(self, backend: str, store: dist.TCPStore) -> None:
        dist.init_process_group(
            backend,
            store=store,
            rank=self.comm.rank,
            world_size=self.comm.size,
            timeout=UNLIMITED,
            device_id=self.device if self.device.type == "cuda" else None,
        )

    def _allreduce(self, tensor):
        dist.all_reduce(tensor)

    def _bcast(self, tensor):
        dist.broadcast(tensor, 0)


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _addresses(comm: SerialComm) -> list[str]:
    """Return the addresses under which other ranks may reach this process.

    Names of hosts are often not resolved between the nodes of a cluster, so the address of the interface with
    the default route follows the name.
    """
    if comm.local_size == comm.size:
        return ["127.0.0.1"]
    found = [socket.gethostname()]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # an address for documentation: nothing is sent
        found.append(probe.getsockname()[0])
    return found


def _reachable(hosts: list[str], port: int) -> str:
    """Return the first host that accepts connections on ``port``.

    Raises:
        OSError: none does.
    """
    errors = []
    for host in hosts:
        try:
            socket.create_connection((host, port), timeout=ATTEMPT).close()
            return host
        except OSError as error:
            errors.append(f"{host}: {error}")
    raise OSError(f"rank 0 cannot be reached on port {port} ({'; '.join(errors)})")


def choose_transport(comm: SerialComm, device: torch.device, wanted: str, exact: bool) -> Transport:
    """The transport of this run, the same on all ranks. Collective.

    ``auto`` is ``none`` for a single rank. On CPUs it is ``shm`` if ranks share a node and the system lets
    them share memory. On GPUs it is ``nccl`` if every rank has its own GPU, torch is built with NCCL, and
    NCCL can be set up. Otherwise, and for ``exact`` on GPUs, it is ``host``.

    Args:
        wanted: "auto" or the name of a transport.
        exact: whether ``run.reduction = "exact"``.

    Raises:
        CollectiveError: on all ranks together: this transport does not suit the devices or the reduction.
    """
    rows = np.empty(2 * comm.size, dtype=np.int64)
    mine = [identity(device), dist.is_available() and dist.is_nccl_available()]
    comm.allgatherv(np.array(mine, dtype=np.int64), rows, [2] * comm.size)
    gpus, built = rows[::2].tolist(), bool(rows[1::2].all())
    raise_if_any(comm, _unsuitable(wanted, gpus, built, exact))
    if wanted == "auto" and comm.size == 1:
        return Alone(comm, device)
    if wanted == "shm" or (wanted == "auto" and not any(gpus)):
        return _shared(comm, device, wanted)
    if wanted == "nccl":
        return Nccl(comm, device)
    if wanted == "auto" and _unsuitable("nccl", gpus, built, exact) is None:
        try:
            return Nccl(comm, device)
        except CollectiveError as refusal:
            if comm.rank == 0:
                warning(f"messages go through host memory: {refusal}")
    return CudaMpi(comm, device) if wanted == "cuda-mpi" else Host(comm, device)


def _shared(comm: SerialComm, device: torch.device, wanted: str) -> Transport:
    """Shared memory; with "auto" MPI in its place where no ranks share a node, or the system refuses."""
    nodes = Nodes.of(comm)
    if wanted == "auto" and not 1 < len(nodes.firsts) <= comm.size:
        return Host(comm, device)
    if not nodes.firsts:
        raise_if_any(
            comm,
            "run.transport = 'shm' needs ranks that are numbered node by node, got nodes that take turns "
            "(options: auto, host, or mpirun --map-by slot)",
        )
    try:
        return Shm(comm, device)
    except CollectiveError as refusal:
        error = f"the ranks of a node cannot share memory: {refusal}"
    raise_if_any(comm, f"run.transport = 'shm': {error} (options: auto, host)" if wanted == "shm" else None)
    if comm.rank == 0:
        warning(f"messages go through MPI: {error}")
    return Host(comm, device)


def _unsuitable(wanted: str, gpus: list[int], built: bool, exact: bool) -> str | None:
    """Why a transport cannot be used; ``gpus``: the :func:`identity` of each rank's device."""
    if wanted in ("auto", "host"):
        return None
    options = "options: auto, host"
    if wanted == "shm":
        on_gpu = f"run.transport = 'shm' needs run.device = 'cpu', got GPUs ({options}, cuda-mpi, nccl)"
        return on_gpu if any(gpus) else None
    if not all(gpus):
        return f"run.transport = {wanted!r} needs a GPU on every rank, got run.device = the CPU ({options})"
    if exact:
        return (
            f"run.transport = {wanted!r} does not go with run.reduction = 'exact', which sums in host memory "
            f"({options})"
        )
    if wanted == "cuda-mpi":
        return None
    if not built:
        return (
            f"run.transport = 'nccl' needs a torch with NCCL, got torch {torch.__version__} without it "
            f"({options})"
        )
    if len(set(gpus)) < len(gpus):
        second = next(rank for rank, gpu in enumerate(gpus) if gpu in gpus[:rank])
        return (
            f"run.transport = 'nccl' needs a GPU for each rank alone, got {len(gpus)} ranks on "
            f"{len(set(gpus))}: ranks {gpus.index(gpus[second])} and {second} share one "
            f"({options}, or fewer ranks)"
        )
    return None
