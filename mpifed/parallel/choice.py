"""Which way messages take: by the devices and by what the job asks for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import torch
import torch.distributed as dist

from mpifed.core.telling import warn
from mpifed.parallel.channels import CudaCopies
from mpifed.parallel.comm import CollectiveError, SerialComm, agree
from mpifed.parallel.devices import identity
from mpifed.parallel.nodes import Nodes
from mpifed.parallel.transport import Alone, CudaMpi, Host, Nccl, Shm, Transport

__all__ = ["choose_transport", "probe"]

#: Seconds after which the probe's child process is given up.
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


def choose_transport(comm: SerialComm, device: torch.device, wanted: str, exact: bool) -> Transport:
    """The transport for this run, the same on all ranks. Collective.

    ``auto``: ``none`` for one rank; on CPUs ``shm`` where ranks share a node, and the system lets them share
    memory; on GPUs ``nccl`` where every rank has its own and torch is built with it; else ``host``, as for
    ``exact`` on GPUs.

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
    if wanted == "shm" or (wanted == "auto" and not any(gpus)):
        return _shared(comm, device, wanted)
    if wanted == "nccl" or (wanted == "auto" and _unsuitable("nccl", gpus, built, exact) is None):
        return Nccl(comm, device)
    if wanted == "cuda-mpi":
        return CudaMpi(comm, device)
    return Host(comm, device, CudaCopies(device) if device.type == "cuda" else None)


def _shared(comm: SerialComm, device: torch.device, wanted: str) -> Transport:
    """Shared memory; with "auto" MPI in its place where no ranks share a node, or the system refuses."""
    nodes = Nodes.of(comm)
    if wanted == "auto" and not 1 < len(nodes.firsts) <= comm.size:
        return Host(comm, device)
    if not nodes.firsts:
        agree(
            comm,
            "run.transport = 'shm' needs ranks that are numbered node by node, got nodes that take turns "
            "(options: auto, host, or mpirun --map-by slot)",
        )
    try:
        return Shm(comm, device)
    except CollectiveError as refusal:
        error = f"the ranks of a node cannot share memory: {refusal}"
    agree(comm, f"run.transport = 'shm': {error} (options: auto, host)" if wanted == "shm" else None)
    if comm.rank == 0:
        warn(f"messages go through MPI: {error}")
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
