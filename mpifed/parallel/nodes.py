"""The grouping of ranks by node."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from mpifed.parallel.comm import SerialComm, gather_rows

__all__ = ["Nodes"]


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
    def from_comm(comm: SerialComm) -> Nodes:
        """Group the ranks of ``comm``. The first call is collective."""
        first = gather_rows(comm, np.array([[comm.node]]))[:, 0]
        firsts = (*np.unique(first).tolist(), comm.size)
        if len(firsts) == 2:
            return Nodes(comm, comm, None, firsts)
        node, leaders = comm.split(comm.node), comm.split(0 if comm.rank == comm.node else None)
        assert node is not None
        return Nodes(comm, node, leaders, firsts if (np.diff(first) >= 0).all() else ())
