"""How messages travel between the ranks.

============  ================================================================================================
``shm``       Memory that the ranks of a node share, where their sums lie. Only on CPUs. Across nodes the
              first rank of each exchanges by MPI what its node has added up.
``host``      MPI on host memory. The message of a rank on the CPU is reduced where it lies. That of a GPU
              goes through a pinned buffer, above 8 MB in chunks: while MPI reduces one, the next comes from
              the GPU and the one before goes back.
``cuda-mpi``  MPI on GPU memory. Only on request, and only where a child process has done it without a crash.
              Such libraries stage reductions through the host themselves, so ``host`` loses nothing.
``nccl``      NCCL between GPUs of which no two ranks share one. The ranks find each other through MPI.
``none``      One rank alone: nothing travels.
============  ================================================================================================

A transport gives each persistent tensor a *channel*, which sums it over the ranks or broadcasts it in place.
All ranks get the same bits. Those of a sum depend on the transport and, with MPI libraries that choose an
algorithm by the size, on the chunks. ``run.reduction = "exact"`` depends on neither: it adds up in host
memory, in an order that no transport changes (:mod:`mpifed.parallel.exchange`).
"""

from __future__ import annotations

import socket
import time
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

from mpifed.core.telling import warn
from mpifed.parallel.channels import (
    Channel,
    CudaCopies,
    DirectChannel,
    HostChannel,
    LoneChannel,
    SharedChannel,
    StagedChannel,
)
from mpifed.parallel.comm import CollectiveError, SerialComm, share, together
from mpifed.parallel.exchange import Exchange, MessageExchange, SharedExchange, padded
from mpifed.parallel.nodes import Nodes
from mpifed.parallel.placement import Placement
from mpifed.parallel.segments import share_memory
from mpifed.parallel.tree import Sums

__all__ = ["Transport", "Alone", "Host", "CudaMpi", "Nccl", "Shm"]

#: Bytes up to which messages take less time than meeting in shared memory.
SHORT = 2**15
#: Seconds after which ranks that do not find each other give up.
PATIENCE = 120


class Transport:
    """The way of this rank's messages.

    Attributes:
        name: as in ``run.transport``.
        device: where the tensors lie.
        seconds: time spent in communication so far, copies through the host included.
        wire_bytes: bytes that this rank has sent and received so far.
    """

    name = ""

    def __init__(self, comm: SerialComm, device: torch.device):
        self.comm, self.device = comm, device
        self.seconds, self.wire_bytes = 0.0, 0

    def channel(self, tensor: torch.Tensor) -> Channel:
        """A channel for ``tensor`` ``[size]``, contiguous and on :attr:`device`."""
        raise NotImplementedError

    def sums(self, size: int, dtype: torch.dtype) -> Channel:
        """A channel for a tensor of zeros, which it makes itself, of ``size`` elements and the control value.
        Collective.
        """
        return self.channel(torch.zeros(size + 1, dtype=dtype, device=self.device))

    def exchange(self, placement: Placement, size: int, dtype: torch.dtype) -> Exchange:
        """What adds up the partial sums ``[size]`` of ranks with these clients. Collective."""
        slots = placement.most_sums(self.comm.rank, self.comm.rank + 1)
        rows = torch.zeros(slots, padded(size), dtype=dtype)
        # A rank alone adds up where its first partial sum lies, which is taken in first.
        result = rows[0, :size] if self.comm.size == 1 else torch.zeros(size, dtype=dtype)
        return MessageExchange(self.comm, rows.numpy(), result.numpy(), self.count)

    def count(self, start: float, wire_bytes: int) -> None:
        """Add the time since ``start`` (of ``time.perf_counter``) and what has been sent and received."""
        self.seconds += time.perf_counter() - start
        self.wire_bytes += wire_bytes

    def close(self) -> None:
        """Give up what the transport holds. Collective."""

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, kind, error, trace) -> None:
        # An error of this rank alone must reach the launcher at once; the others would not answer.
        if kind is None or issubclass(kind, CollectiveError):
            self.close()


class Alone(Transport):
    """One rank."""

    name = "none"

    def channel(self, tensor):
        return LoneChannel(self, tensor)


class Host(Transport):
    """MPI on host memory.

    Args:
        copies: copies between device and host, as :class:`CudaCopies`; ``None`` where tensors lie in host
            memory.
    """

    name = "host"

    def __init__(self, comm: SerialComm, device: torch.device, copies: CudaCopies | None = None):
        super().__init__(comm, device)
        self._copies = copies

    def channel(self, tensor):
        return StagedChannel(self, tensor, self._copies) if self._copies else HostChannel(self, tensor)


class Shm(Host):
    """Memory that the ranks of a node share, and MPI for what is short or lies elsewhere.

    Raises:
        CollectiveError: on all ranks together: the system shares no memory between them.
    """

    name = "shm"

    def __init__(self, comm: SerialComm, device: torch.device):
        super().__init__(comm, device)
        self._nodes, self._told = Nodes.of(comm), False
        share_memory(comm, self._nodes.node, 1)

    def sums(self, size, dtype):
        shared = self._shared(size, dtype, 1, 1)
        if shared is None:
            return super().sums(size, dtype)
        return SharedChannel(self, shared, Sums.of_ranks(self._nodes.firsts))

    def exchange(self, placement, size, dtype):
        rank, firsts = self.comm.rank, self._nodes.firsts
        here = firsts.index(self.comm.node)
        slots, of_node = placement.most_sums(rank, rank + 1), placement.most_sums(*firsts[here : here + 2])
        shared = self._shared(size, dtype, slots, of_node)
        return super().exchange(placement, size, dtype) if shared is None else shared

    def _shared(self, size: int, dtype: torch.dtype, slots: int, of_node: int) -> SharedExchange | None:
        """``None`` where messages take less time, or the system refuses."""
        if size * dtype.itemsize < SHORT:
            return None
        try:
            kind = torch.empty(0, dtype=dtype).numpy().dtype
            return SharedExchange(self._nodes, slots, of_node, size, kind, self.count)
        except CollectiveError as refusal:
            if self.comm.rank == 0 and not self._told:
                warn(f"some messages go through MPI: {refusal}")
            self._told = True
            return None


class CudaMpi(Transport):
    """MPI on device memory."""

    name = "cuda-mpi"

    def channel(self, tensor):
        return DirectChannel(self, tensor, self.comm.allreduce_, self.comm.bcast_)


class Nccl(Transport):
    """torch.distributed's default process group, made and unmade here. Collective.

    Args:
        backend: "nccl", or another one for tensors of another device.

    Raises:
        CollectiveError: on all ranks together: they cannot find each other, or the group is in use already.
    """

    name = "nccl"

    def __init__(self, comm: SerialComm, device: torch.device, backend: str = "nccl"):
        super().__init__(comm, device)
        store, place = self._attempt(self._open_store)
        place = share(comm, place)
        self._attempt(lambda: self._join(backend, store, place))
        # At the exit of the process at the latest.
        self._leave = weakref.finalize(self, dist.destroy_process_group)

    def close(self) -> None:
        self._leave()

    def _attempt(self, action):
        with together(self.comm, ValueError):
            try:
                return action()
            except (RuntimeError, ValueError, OSError) as fault:
                raise ValueError(
                    f"run.transport = {self.name!r} cannot be set up: {fault} (options: auto, host)"
                ) from fault

    def _open_store(self) -> tuple[dist.TCPStore | None, str]:
        """Rank 0's store on a free port, and where the others find it."""
        if dist.is_initialized():
            raise ValueError("this process uses torch.distributed already")
        if self.comm.rank:
            return None, ""
        host = "127.0.0.1" if self.comm.local_size == self.comm.size else socket.gethostname()
        store = dist.TCPStore(
            host, 0, self.comm.size, True, timedelta(seconds=PATIENCE), wait_for_workers=False
        )
        return store, f"{host} {store.port}"

    def _join(self, backend: str, store: dist.TCPStore | None, place: str) -> None:
        patience, (host, port) = timedelta(seconds=PATIENCE), place.split()
        store = store or dist.TCPStore(
            host, int(port), self.comm.size, False, patience, wait_for_workers=False
        )
        dist.init_process_group(
            backend,
            store=store,
            rank=self.comm.rank,
            world_size=self.comm.size,
            timeout=patience,
            device_id=self.device if self.device.type == "cuda" else None,
        )

    def channel(self, tensor):
        return DirectChannel(self, tensor, dist.all_reduce, lambda part: dist.broadcast(part, 0))
