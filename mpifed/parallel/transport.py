"""Transports of messages between ranks, and their choice.

============  ================================================================================================
``shm``       Memory shared by the ranks of a node, where their sums are stored. Only on CPUs. Across nodes
              the first rank of each node exchanges the sums of its node by MPI.
``host``      MPI on host memory. A message on the CPU is reduced in place. A message on a GPU is copied to a
              pinned buffer, reduced there, and copied back; a long one in chunks, of which one is reduced
              while others are copied.
``cuda-mpi``  MPI on GPU memory, if the job asks for it and the MPI library is CUDA-aware.
``nccl``      NCCL between GPUs, one rank per GPU. The ranks find each other through MPI.
``none``      A single rank: nothing is sent.
============  ================================================================================================

All ranks receive bitwise identical sums. With ``run.reduction = "fused"`` these depend on the transport; with
"exact" they do not: it adds in host memory in a prescribed order (:mod:`mpifed.parallel.exchange`).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from mpifed.base.log import warning
from mpifed.parallel.comm import (
    CollectiveError,
    SerialComm,
    broadcast_text,
    collective_errors,
    gather_rows,
)
from mpifed.parallel.devices import gpu_id, recorded, wait_for
from mpifed.parallel.exchange import AllreduceExchange, Exchange, MessageExchange, SharedExchange, padded
from mpifed.parallel.nodes import Nodes
from mpifed.parallel.placement import Placement
from mpifed.parallel.shared_memory import share_memory

__all__ = ["Transport", "SingleRank", "Host", "CudaMpi", "Nccl", "Shm", "choose_transport"]

#: Maximum size in bytes for which messages are faster than the barriers of shared memory.
SHORT = 2**15
#: Maximum size in bytes of messages of a GPU that are copied to the host as a whole, and whose checksum is
#: computed there. Longer messages are copied and reduced in chunks of this size.
CHUNK = 2**22
#: Time limits in seconds for setting up NCCL, and for connecting to one address.
SETUP_TIMEOUT, CONNECT_TIMEOUT = 120, 10
#: Time limit of a single NCCL call. Ranks may wait while rank 0 writes a long checkpoint; the watchdog of the
#: run terminates calls that hang.
UNLIMITED = timedelta(days=365)


class Transport:
    """Base class of transports.

    Attributes:
        name: the value of ``run.transport``.
        device: device of the tensors that are sent.
        nodes: the first rank of each node, then the number of ranks.
        seconds: total time of communication, including copies through host memory.
        wire_bytes: total number of bytes that this rank has sent and received.
        checksum: the sum of the elements of the last :meth:`sum_`, if it is known without another wait for
            the device, otherwise ``None``.
    """

    name = ""
    checksum: float | None = None

    def __init__(self, comm: SerialComm, device: torch.device):
        self.comm, self.device = comm, device
        self.nodes: tuple[int, ...] = (0, comm.size)
        self.seconds, self.wire_bytes = 0.0, 0
        self._on_device: list[tuple] = []  # events around queued work whose time has not been counted yet

    def sum_(self, tensor: torch.Tensor, control: float) -> float:
        """Replace ``tensor``, contiguous ``[size]``, by its sum over the ranks. Collective.

        Args:
            control: value that replaces the last element on this rank.

        Returns:
            The sum of the ranks' control values.
        """
        raise NotImplementedError

    def bcast_(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor``, contiguous ``[size]``, by the tensor of rank 0. Collective."""
        raise NotImplementedError

    def fused_exchange(self, size: int, dtype: torch.dtype) -> Exchange:
        """Return the exchange for ``run.reduction = "fused"``, one partial sum per rank. Collective."""
        return AllreduceExchange(self, size, dtype)

    def exact_exchange(self, placement: Placement, size: int, dtype: torch.dtype) -> Exchange:
        """Return the exchange for ``run.reduction = "exact"``, a sum along the tree. Collective."""
        slots = placement.max_partial_sums(self.comm.rank, self.comm.rank + 1)
        pinned = self.device.type == "cuda"
        rows = torch.zeros(slots, padded(size), dtype=dtype, pin_memory=pinned)
        # A single rank overwrites its first partial sum, which is read first.
        alone = self.comm.size == 1
        result = rows[0, :size] if alone else torch.zeros(size, dtype=dtype, pin_memory=pinned)
        return MessageExchange(self.comm, rows.numpy(), result.numpy(), self.count)

    def count(self, start: float, wire_bytes: int) -> None:
        """Add the time since ``start`` (of ``time.perf_counter``) and the bytes sent and received."""
        self.seconds += time.perf_counter() - start
        self.wire_bytes += wire_bytes

    def _sum_bytes(self, nbytes: int) -> int:
        """Return the number of bytes that this rank sends and receives to sum ``nbytes``."""
        return 2 * nbytes if self.comm.size > 1 else 0

    def _bcast_bytes(self, nbytes: int) -> int:
        """Return the number of bytes that this rank sends or receives to broadcast ``nbytes``."""
        return nbytes * (1 if self.comm.rank else self.comm.size - 1)

    @contextlib.contextmanager
    def queued(self):
        """Measure the time that the device spends on the work queued in this block, for :meth:`waited`."""
        if self.device.type != "cuda":
            start = time.perf_counter()
            yield
            self.count(start, 0)
            return
        events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
        events[0].record()
        yield
        events[1].record()
        self._on_device.append(events)

    def waited(self) -> None:
        """Count the time of queued work. Call this after the host has waited for the device."""
        for begin, end in self._on_device:
            self.seconds += begin.elapsed_time(end) / 1000
        self._on_device.clear()

    def close(self) -> None:
        """Release the resources of the transport. Collective."""

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, kind, error, trace) -> None:
        # After an error on this rank only, closing would wait for the other ranks.
        if kind is None or issubclass(kind, CollectiveError):
            self.close()


class SingleRank(Transport):
    """A single rank, without communication."""

    name = "none"

    def sum_(self, tensor, control):
        return control

    def bcast_(self, tensor):
        pass


class Host(Transport):
    """MPI on host memory; tensors on a GPU are copied.

    Attributes:
        copies: whether tensors are copied to a pinned buffer and back.
    """

    name = "host"

    def __init__(self, comm: SerialComm, device: torch.device):
        super().__init__(comm, device)
        self.copies = device.type == "cuda"
        self._pinned: dict[tuple, torch.Tensor] = {}

    def sum_(self, tensor, control):
        if self.copies and tensor.nbytes > CHUNK:
            return self._sum_in_chunks(tensor, control)
        host = self._on_host(tensor, send=True)
        start, array = time.perf_counter(), host.numpy()
        array[-1] = control
        self.comm.allreduce_(array)
        self.count(start, self._sum_bytes(array.nbytes))
        if self.copies:
            self.checksum = float(array.sum())
            with self.queued():
                tensor.copy_(host, non_blocking=True)
        return float(array[-1])

    def _sum_in_chunks(self, tensor: torch.Tensor, control: float) -> float:
        """Reduce each chunk while the following ones are copied to the host, and the preceding ones back."""
        host, step = self._buffer(tensor), CHUNK // tensor.itemsize
        first, *others = chunks = [slice(start, start + step) for start in range(0, len(tensor), step)]
        with self.queued():
            host[first].copy_(tensor[first], non_blocking=True)
        waits = [recorded(self.device)]
        for chunk in others:
            host[chunk].copy_(tensor[chunk], non_blocking=True)
            waits.append(recorded(self.device))
        waits[0]()  # also for the work of the clients, so its time is not counted
        self.waited()
        start = time.perf_counter()
        for wait, chunk in zip(waits[1:], chunks):
            self.comm.allreduce_(host[chunk].numpy())
            tensor[chunk].copy_(host[chunk], non_blocking=True)
            wait()
        host[-1] = control
        self.comm.allreduce_(host[chunks[-1]].numpy())
        self.count(start, self._sum_bytes(tensor.nbytes))
        with self.queued():
            tensor[chunks[-1]].copy_(host[chunks[-1]], non_blocking=True)
        self.checksum = None
        return float(host[-1])

    def bcast_(self, tensor):
        root = self.comm.rank == 0
        host = self._on_host(tensor, send=root)
        start = time.perf_counter()
        self.comm.bcast_(host.numpy())
        self.count(start, self._bcast_bytes(host.nbytes))
        if self.copies and not root:
            with self.queued():
                tensor.copy_(host, non_blocking=True)

    def _on_host(self, tensor: torch.Tensor, send: bool) -> torch.Tensor:
        """Return the tensor itself, or a pinned buffer, with the tensor's values if ``send``."""
        if not self.copies:
            return tensor
        host = self._buffer(tensor)
        if send:
            with self.queued():
                host.copy_(tensor, non_blocking=True)
        wait_for(self.device)  # earlier copies from the buffer are done, too
        self.waited()
        return host

    def _buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the pinned buffer for tensors of this size and type."""
        key = tensor.numel(), tensor.dtype
        if key not in self._pinned:
            self._pinned[key] = torch.empty(len(tensor), dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return self._pinned[key]


class Shm(Host):
    """Memory shared by the ranks of a node, and MPI for short messages and between nodes.

    Raises:
        CollectiveError: on all ranks: memory cannot be shared.
    """

    name = "shm"

    def __init__(self, comm: SerialComm, device: torch.device):
        super().__init__(comm, device)
        self._nodes, self._warned = Nodes.from_comm(comm), False
        self.nodes = self._nodes.firsts
        share_memory(comm, self._nodes.node, 1)

    def fused_exchange(self, size, dtype):
        return self._shared(size, dtype, 1, 1) or super().fused_exchange(size, dtype)

    def exact_exchange(self, placement, size, dtype):
        rank, here = self.comm.rank, self.nodes.index(self.comm.node)
        slots = placement.max_partial_sums(rank, rank + 1)
        of_node = placement.max_partial_sums(*self.nodes[here : here + 2])
        return self._shared(size, dtype, slots, of_node) or super().exact_exchange(placement, size, dtype)

    def _shared(self, size: int, dtype: torch.dtype, slots: int, of_node: int) -> SharedExchange | None:
        """Return an exchange in shared memory, or ``None`` if messages are faster or sharing fails."""
        if size * dtype.itemsize < SHORT:
            return None
        try:
            numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
            return SharedExchange(self._nodes, slots, of_node, size, numpy_dtype, self.count)
        except CollectiveError as refusal:
            if self.comm.rank == 0 and not self._warned:
                warning(f"some messages are sent by MPI instead of shared memory: {refusal}")
            self._warned = True
            return None


class _Direct(Transport):
    """Base class of transports whose library reads and writes the tensors themselves."""

    def sum_(self, tensor, control):
        tensor[-1:].fill_(control)
        self.comm.calling = f"{self.name} Allreduce"
        self._allreduce(tensor)
        # One wait for the device, for the control values and the checksum.
        controls, self.checksum = torch.stack([tensor[-1], tensor.sum()]).tolist()
        self.comm.calling = ""
        self.waited()
        self.wire_bytes += self._sum_bytes(tensor.nbytes)
        return controls

    def bcast_(self, tensor):
        self.comm.calling = f"{self.name} Bcast"
        self._bcast(tensor)
        wait_for(self.device)  # here, so that the watchdog names the call if it hangs
        self.comm.calling = ""
        self.waited()
        self.wire_bytes += self._bcast_bytes(tensor.nbytes)

    def _allreduce(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the ranks and count the time."""
        raise NotImplementedError

    def _bcast(self, tensor: torch.Tensor) -> None:
        """Broadcast a tensor from rank 0 and count the time."""
        raise NotImplementedError


class CudaMpi(_Direct):
    """MPI on GPU memory. MPI ignores streams, so it is called after the GPU has computed the tensor."""

    name = "cuda-mpi"

    def _allreduce(self, tensor):
        self._timed(self.comm.allreduce_, tensor)

    def _bcast(self, tensor):
        self._timed(self.comm.bcast_, tensor)

    def _timed(self, collective, tensor) -> None:
        wait_for(self.device)
        start = time.perf_counter()
        collective(tensor)
        self.count(start, 0)


class Nccl(_Direct):
    """The default process group of torch.distributed, which is created and destroyed here. Collective.

    A small Allreduce tests the group, because a network interface without a route to the other ranks shows
    as a wait without end.

    Args:
        backend: "nccl", or another backend for another device.

    Raises:
        CollectiveError: on all ranks: the ranks cannot connect, their test fails or takes longer than
            ``SETUP_TIMEOUT``, or a default process group exists already.
    """

    name = "nccl"

    def __init__(self, comm: SerialComm, device: torch.device, backend: str = "nccl"):
        super().__init__(comm, device)
        store, port = self._attempt(self._open_store)
        addresses = broadcast_text(comm, f"{port} {' '.join(_addresses(comm))}")
        store = self._attempt(lambda: store or self._connect(addresses))
        # Destroys the group when the process exits, at the latest.
        self._leave = weakref.finalize(self, _leave_group)
        try:
            self._attempt(lambda: self._join(backend, store))
        except CollectiveError:
            if group := dist.group.WORLD:
                group.abort()  # otherwise leaving waits for a message that does not arrive
            self._leave()
            raise

    def close(self) -> None:
        self._leave()

    def _attempt(self, action):
        with collective_errors(self.comm, ValueError):
            try:
                return action()
            except (RuntimeError, ValueError, OSError) as error:
                raise ValueError(
                    f"run.transport = {self.name!r} cannot be set up: {error}; set run.transport = 'host', "
                    "or find the cause with NCCL_DEBUG=INFO and select a network by NCCL_SOCKET_IFNAME"
                ) from error

    def _open_store(self) -> tuple[dist.TCPStore | None, int]:
        """Open rank 0's store on a free port.

        Returns:
            The store and its port on rank 0; ``None`` and 0 on the other ranks.
        """
        if dist.is_initialized():
            raise ValueError("this process already uses torch.distributed")
        if self.comm.rank:
            return None, 0
        limit = timedelta(seconds=SETUP_TIMEOUT)
        store = dist.TCPStore("127.0.0.1", 0, self.comm.size, True, limit, wait_for_workers=False)
        return store, store.port

    def _connect(self, addresses: str) -> dist.TCPStore:
        port, *hosts = addresses.split()
        host, limit = _reachable(hosts, int(port)), timedelta(seconds=SETUP_TIMEOUT)
        return dist.TCPStore(host, int(port), self.comm.size, False, limit, wait_for_workers=False)

    def _join(self, backend: str, store: dist.TCPStore) -> None:
        # float64, because the sum of several thousand ranks has more digits than float32.
        message = torch.full((2,), self.comm.rank + 1.0, dtype=torch.float64, device=self.device)
        _within(SETUP_TIMEOUT, lambda: self._send(backend, store, message))
        expected, found = self.comm.size * (self.comm.size + 1) // 2, message.tolist()
        if found != [expected, expected]:
            raise ValueError(f"a test message gives the sums {found}, expected {expected}")

    def _send(self, backend: str, store: dist.TCPStore, message: torch.Tensor) -> None:
        dist.init_process_group(
            backend,
            store=store,
            rank=self.comm.rank,
            world_size=self.comm.size,
            timeout=UNLIMITED,
            device_id=self.device if self.device.type == "cuda" else None,
        )
        dist.all_reduce(message)
        wait_for(self.device)

    def _allreduce(self, tensor):
        with self.queued():
            dist.all_reduce(tensor)

    def _bcast(self, tensor):
        with self.queued():
            dist.broadcast(tensor, 0)


def _within(seconds: float, action: Callable[[], None]) -> None:
    """Call ``action`` in another thread, which is abandoned after this time.

    Raises:
        TimeoutError: it has not ended.
        Exception: an error of ``action``.
    """
    errors: list[Exception] = []

    def call() -> None:
        try:
            action()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer from the other ranks within {seconds:g} s")
    if errors:
        raise errors[0]


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _addresses(comm: SerialComm) -> list[str]:
    """Return the addresses under which other ranks may reach this process.

    The nodes of a cluster often cannot resolve each other's names, so the address of the interface with the
    default route is included.
    """
    if comm.local_size == comm.size:
        return ["127.0.0.1"]
    addresses = [socket.gethostname()]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # an address reserved for documentation; nothing is sent
        addresses.append(probe.getsockname()[0])
    return addresses


def _reachable(hosts: list[str], port: int) -> str:
    """Return the first host that accepts connections on ``port``.

    Raises:
        OSError: no host accepts them.
    """
    errors = []
    for host in hosts:
        try:
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT).close()
            return host
        except OSError as error:
            errors.append(f"{host}: {error}")
    raise OSError(f"rank 0 cannot be reached on port {port} ({'; '.join(errors)})")


def choose_transport(comm: SerialComm, device: torch.device, wanted: str, exact: bool) -> Transport:
    """Return the transport of this run, the same on all ranks. Collective.

    ``auto`` is ``none`` for a single rank. On CPUs it is ``shm`` if ranks share a node and can share memory.
    On GPUs it is ``nccl`` if every rank has its own GPU, torch is built with NCCL, and NCCL can be set up.
    Otherwise, and for ``exact`` on GPUs, it is ``host``.

    Args:
        wanted: "auto" or the name of a transport.
        exact: whether ``run.reduction = "exact"``.

    Raises:
        CollectiveError: on all ranks: the transport does not support the devices or the reduction, or cannot
            be set up, or the MPI library is not CUDA-aware.
    """
    mine = [gpu_id(device), dist.is_available() and dist.is_nccl_available()]
    ranks = gather_rows(comm, np.array([mine], dtype=np.int64))
    gpus, built = ranks[:, 0].tolist(), bool(ranks[:, 1].all())
    if reason := _unsuitable(wanted, gpus, built, exact):
        raise CollectiveError(reason)
    if wanted == "auto" and comm.size == 1:
        return SingleRank(comm, device)
    if wanted == "shm" or (wanted == "auto" and not any(gpus)):
        return _shared(comm, device, wanted)
    if wanted == "nccl":
        return Nccl(comm, device)
    if wanted == "auto" and _unsuitable("nccl", gpus, built, exact) is None:
        try:
            return Nccl(comm, device)
        except CollectiveError as refusal:
            if comm.rank == 0:
                warning(f"messages are sent through host memory: {refusal}")
    if wanted == "cuda-mpi":
        _expect_cuda_aware(comm)
        return CudaMpi(comm, device)
    return Host(comm, device)


def _expect_cuda_aware(comm: SerialComm) -> None:
    """Refuse an MPI library that says that it cannot read the memory of GPUs: it would crash. Collective."""
    library = comm.mpi.split(",")[0]
    with collective_errors(comm, ValueError):
        answer = comm.cuda_aware()
        if answer is False:
            raise ValueError(
                f"run.transport = 'cuda-mpi' needs a CUDA-aware MPI library, got {library}, which is built "
                "without CUDA, or has it switched off (MPICH_GPU_SUPPORT_ENABLED=1 for Cray MPICH and "
                "MPIR_CVAR_ENABLE_GPU=1 for MPICH switch it on): set run.transport = 'auto' or 'host'"
            )
    if answer is None and comm.rank == 0:
        warning(
            f"run.transport = 'cuda-mpi': {library} does not say whether it is CUDA-aware; if it is not, the "
            "run crashes"
        )


def _shared(comm: SerialComm, device: torch.device, wanted: str) -> Transport:
    """Return :class:`Shm`; with "auto", :class:`Host` if no ranks share a node or memory cannot be shared."""
    nodes = Nodes.from_comm(comm)
    if wanted == "auto" and not 1 < len(nodes.firsts) <= comm.size:
        return Host(comm, device)
    if not nodes.firsts:
        raise CollectiveError(
            "run.transport = 'shm' needs ranks that are numbered node by node, got another order: set "
            "run.transport = 'auto' or 'host', or start with mpirun --map-by slot"
        )
    try:
        return Shm(comm, device)
    except CollectiveError as refusal:
        error = f"the ranks of a node cannot share memory: {refusal}"
    if wanted == "shm":
        raise CollectiveError(f"run.transport = 'shm': {error}; set run.transport = 'auto' or 'host'")
    if comm.rank == 0:
        warning(f"messages are sent by MPI: {error}")
    return Host(comm, device)


def _unsuitable(wanted: str, gpus: list[int], built: bool, exact: bool) -> str | None:
    """Return why a transport cannot be used; ``gpus``: the :func:`gpu_id` of each rank's device."""
    if wanted in ("auto", "host"):
        return None
    setting, remedy = f"run.transport = {wanted!r}", "set run.transport = 'auto' or 'host'"
    if wanted == "shm":
        return f"{setting} needs run.device = 'cpu', got GPUs: {remedy}" if any(gpus) else None
    if not all(gpus):
        return f"{setting} needs a GPU on every rank, got the CPU: {remedy}"
    if exact:
        return f"{setting} does not support run.reduction = 'exact', which sums in host memory: {remedy}"
    if wanted == "cuda-mpi":
        return None
    if not built:
        return f"{setting} needs a torch with NCCL, got torch {torch.__version__} without it: {remedy}"
    if len(set(gpus)) < len(gpus):
        second = next(rank for rank, gpu in enumerate(gpus) if gpu in gpus[:rank])
        return (
            f"{setting} needs a GPU for each rank, got {len(gpus)} ranks on {len(set(gpus))} GPUs (ranks "
            f"{gpus.index(gpus[second])} and {second} share one): {remedy}, or start fewer ranks"
        )
    return None
