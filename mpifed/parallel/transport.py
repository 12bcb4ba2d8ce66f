"""How messages travel between the ranks.

============  ================================================================================================
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
algorithm by the size, on the chunks. ``run.reduction = "exact"`` depends on neither and works in host memory.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from mpifed.parallel.channels import (
    Channel,
    CudaCopies,
    DirectChannel,
    HostChannel,
    LoneChannel,
    StagedChannel,
)
from mpifed.parallel.comm import CollectiveError, SerialComm, agree, share, together
from mpifed.parallel.devices import identity

__all__ = ["Transport", "Alone", "Host", "CudaMpi", "Nccl", "choose_transport", "probe"]

#: Seconds after which ranks that do not find each other give up, and the probe's child process.
PATIENCE = 120
#: What a child process does to find out whether MPI can read and write GPU memory. Not in place: MPI alone
#: would do nothing.
PROBE = """
import sys, torch
from mpi4py import MPI
one, two = torch.ones(1, device=sys.argv[1]), torch.zeros(1, device=sys.argv[1])
float(two)
MPI.COMM_SELF.Allreduce(one, two)
sys.exit(None if float(two) == 1 else f"the sum of 1 was {float(two)}")
"""
#: What a launcher leaves in the environment of a rank; without it a process is alone.
_LAUNCHER = (
    "OMPI_COMM_WORLD_",
    "OMPI_MCA_ess",
    "OMPI_MCA_orte_",
    "PMI_",
    "PMIX_",
    "PRTE_",
    "HYDRA_",
    "MV2_COMM_",
    "MPI_LOCALRANKID",
    "PALS_",
    "FLUX_",
    "ALPS_",
    "SLURM_",
)


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


def choose_transport(comm: SerialComm, device: torch.device, wanted: str, exact: bool) -> Transport:
    """The transport for this run, the same on all ranks. Collective.

    ``auto``: ``none`` for one rank, ``host`` on CPUs and for ``exact``, on GPUs ``nccl`` where every rank has
    its own and torch is built with it, else ``host``.

    Args:
        wanted: "auto" or the name of a transport.
        exact: sums are made by ``reduction = "exact"``.

    Raises:
        CollectiveError: on all ranks together: this transport does not suit the devices or the reduction.
    """
    rows = np.empty(2 * comm.size, dtype=np.int64)
    mine = [identity(device), dist.is_available() and dist.is_nccl_available()]
    comm.allgatherv(np.array(mine, dtype=np.int64), rows, [2] * comm.size)
    gpus, built = rows[::2].tolist(), bool(rows[1::2].all())
    error = _unsuitable(wanted, gpus, built, exact)
    if wanted == "cuda-mpi" and error is None and comm.local_rank == 0:
        error = probe(device, comm.mpi)
    agree(comm, error)
    if wanted == "auto" and comm.size == 1:
        return Alone(comm, device)
    if wanted == "nccl" or (wanted == "auto" and _unsuitable("nccl", gpus, built, exact) is None):
        return Nccl(comm, device)
    if wanted == "cuda-mpi":
        return CudaMpi(comm, device)
    return Host(comm, device, CudaCopies(device) if device.type == "cuda" else None)


def _unsuitable(wanted: str, gpus: list[int], built: bool, exact: bool) -> str | None:
    """Why a transport cannot be used; ``gpus``: the :func:`identity` of each rank's device."""
    if wanted in ("auto", "host"):
        return None
    options = "options: auto, host"
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


def probe(device: torch.device, mpi: str) -> str | None:
    """Try in a child process whether MPI can sum one number in the device's memory; why not, or ``None``.

    A library that cannot, crashes; it must not take the rank along.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_LAUNCHER)}
    try:
        child = subprocess.run(
            [sys.executable, "-c", PROBE, str(device)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        end = f"did not end within {PATIENCE} s"
    else:
        if child.returncode == 0:
            return None
        lines = child.stderr.strip().splitlines()
        end = f"failed: {lines[-1] if lines else f'exit code {child.returncode}'}"
        if child.returncode < 0:
            end = f"was killed by {signal.Signals(-child.returncode).name}"
    return (
        f"run.transport = 'cuda-mpi' needs a CUDA-aware MPI, got {mpi}: an Allreduce of one number in GPU "
        f"memory, tried in a child process, {end}. Switch it on (Cray MPICH: MPICH_GPU_SUPPORT_ENABLED=1; "
        "MPICH: MPIR_CVAR_ENABLE_GPU=1; Open MPI: a build with CUDA), or choose another run.transport "
        "(options: auto, host, nccl)"
    )
