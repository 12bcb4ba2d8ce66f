"""Memory that the ranks of a node share.

Each rank makes a file in memory without a name, which the others open through ``/proc``. So nothing is left
behind however a rank ends, and a system that refuses says so at once to the rank that asks. An
``MPI_Win_allocate_shared`` that is refused on one rank leaves the others waiting under Open MPI 5.
"""

from __future__ import annotations

import contextlib
import os

import numpy as np
import torch

from mpifed.parallel.comm import SerialComm, together

__all__ = ["share_memory"]


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
    with together(comm, OSError), contextlib.ExitStack() as undo:
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
        with together(comm, OSError, RuntimeError):  # when it is left, all have opened all
            return [_mapped(*one) for one in places.reshape(-1, 4).tolist()]
    finally:
        os.close(own)


def _mapped(process: int, number: int, nbytes: int, key: int) -> np.ndarray:
    """The file that ``process`` has open as ``number``."""
    path = f"/proc/{process}/fd/{number}"
    if os.stat(path).st_ino != key:  # a process of this number in another container
        raise OSError(f"process {process} is another one here")
    return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8).numpy()  # holds no file open
