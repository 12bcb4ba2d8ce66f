"""The ranks by node, and memory that the ranks of a node share.

Each rank creates a file in memory without a name, which the others open through ``/proc``. So nothing is left
behind however a rank ends, and a system that refuses reports it at once to the rank that asks. An
``MPI_Win_allocate_shared`` that is refused on one rank leaves the others waiting under Open MPI 5.
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
    """The ranks by the nodes on which they run.

    Attributes:
        comm: all ranks; ``node``: those of this rank's node, in their order.
        leaders: the first ranks of the nodes, on these; ``None`` elsewhere, and where there is one node.
        firsts: the numbers of these ranks, and the number of all ranks. Empty where the ranks of a node have
            no neighbouring numbers.
    """

    comm: SerialComm
    node: SerialComm
    leaders: SerialComm | None
    firsts: tuple[int, ...]

    @staticmethod
    @functools.cache  # once a communicator: MPI has a bounded number of them
    def of(comm: SerialComm) -> Nodes:
        """Collective, the first time."""
        first = np.empty(comm.size, dtype=np.int64)
        comm.allgatherv(np.array([comm.node]), first, [1] * comm.size)
        firsts = (*np.unique(first).tolist(), comm.size)
        if len(firsts) == 2:
            return Nodes(comm, comm, None, firsts)
        node, leaders = comm.split(comm.node), comm.split(0 if comm.rank == comm.node else None)
        assert node is not None
        return Nodes(comm, node, leaders, firsts if (np.diff(first) >= 0).all() else ())


def share_memory(comm: SerialComm, node: SerialComm, nbytes: int) -> list[np.ndarray]:
    """Memory of this rank, and that of the other ranks of its node. Collective.

    It goes back to the system when no rank holds an array of it any more.

    Args:
        comm: all ranks; ``node``: those of this rank's node.
        nbytes: how much this rank gives, at least 1.

    Returns:
        Bytes of each rank of the node, in their order, zeros.

    Raises:
        CollectiveError: on all ranks of ``comm``: a rank gets no memory, or does not see that of another.
    """
    with collective_errors(comm, OSError), contextlib.ExitStack() as undo:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no files in memory without a name (memfd_create)")
        own = os.memfd_create("mpifed")
        undo.callback(os.close, own)
        os.posix_fallocate(own, 0, nbytes)
        undo.pop_all()
    try:
        place = np.array([os.getpid(), own, nbytes, os.fstat(own).st_ino], dtype=np.int64)
        places = np.empty(4 * node.size, dtype=np.int64)
        node.allgatherv(place, places, [4] * node.size)
        with collective_errors(comm, OSError, RuntimeError):  # when it is left, all have opened all
            return [_mapped(*one) for one in places.reshape(-1, 4).tolist()]
    finally:
        os.close(own)


def _mapped(process: int, number: int, nbytes: int, key: int) -> np.ndarray:
    """The file that ``process`` has open as ``number``."""
    path = f"/proc/{process}/fd/{number}"
    if os.stat(path).st_ino != key:  # a process of this number in another container
        raise OSError(f"process {process} is another one here")
    return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8).numpy()  # holds no file open
