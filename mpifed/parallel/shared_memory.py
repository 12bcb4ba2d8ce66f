"""The grouping of ranks by node, and memory shared by the ranks of a node.

Each rank creates an anonymous file in memory, which the other ranks open through ``/proc``. Nothing remains
after the processes have ended, and failures are reported on the rank where they occur. With Open MPI 5, a
failure of ``MPI_Win_allocate_shared`` on one rank would block the others.
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass

import numpy as np
import torch

from mpifed.parallel.comm import SerialComm, collective_errors

__all__ = ["Nodes", "share_memory"]


@dataclass(frozen=True)
class Nodes:
    """The ranks grouped by node.

    Attributes:
        comm: all ranks; ``node``: the ranks of this rank's node.
        leaders: the first ranks of all nodes; ``None`` on other ranks, or if there is only one node.
        firsts: the numbers of the first ranks, then the number of ranks; empty if the ranks of a node are not
            numbered consecutively.
    """

    comm: SerialComm
    node: SerialComm
    leaders: SerialComm | None
    firsts: tuple[int, ...]

    @staticmethod
    @functools.cache  # once per communicator, because MPI limits the number of communicators
    def of(comm: SerialComm) -> Nodes:
        """Group the ranks of ``comm``. The first call is collective."""
        first = np.empty(comm.size, dtype=np.int64)
        comm.allgatherv(np.array([comm.node]), first, [1] * comm.size)
        firsts = (*np.unique(first).tolist(), comm.size)
        if len(firsts) == 2:
            return Nodes(comm, comm, None, firsts)
        node, leaders = comm.split(comm.node), comm.split(0 if comm.rank == comm.node else None)
        assert node is not None
        return Nodes(comm, node, leaders, firsts if (np.diff(first) >= 0).all() else ())


def share_memory(comm: SerialComm, node: SerialComm, nbytes: int) -> list[np.ndarray]:
    """Allocate zeroed memory on each rank of a node that all of them can access. Collective.

    The memory is released when no rank refers to it any more.

    Args:
        comm: all ranks; ``node``: the ranks of this rank's node.
        nbytes: size of this rank's memory, at least 1.

    Returns:
        One array of bytes per rank of the node.

    Raises:
        CollectiveError: on all ranks of ``comm``: a rank cannot allocate memory, or not access that of
            another rank.
    """
    with collective_errors(comm, OSError), contextlib.ExitStack() as undo:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no anonymous files in memory (memfd_create)")
        own = os.memfd_create("mpifed")
        undo.callback(os.close, own)
        os.posix_fallocate(own, 0, nbytes)
        undo.pop_all()
    try:
        place = np.array([os.getpid(), own, nbytes, os.fstat(own).st_ino], dtype=np.int64)
        places = np.empty(4 * node.size, dtype=np.int64)
        node.allgatherv(place, places, [4] * node.size)
        with collective_errors(comm, OSError, RuntimeError):  # all ranks open all files before any is closed
            return [_mapped(*one) for one in places.reshape(-1, 4).tolist()]
    finally:
        os.close(own)


def _mapped(process: int, number: int, nbytes: int, key: int) -> np.ndarray:
    """Map the file that ``process`` has opened with the descriptor ``number``."""
    path = f"/proc/{process}/fd/{number}"
    if os.stat(path).st_ino != key:  # the ranks run in different containers
        raise OSError(f"process {process} is a different process in this container")
    return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8).numpy()  # keeps no file open
