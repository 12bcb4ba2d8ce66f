"""The ranks by the nodes on which they run."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from mpifed.parallel.comm import SerialComm

__all__ = ["Nodes"]


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
