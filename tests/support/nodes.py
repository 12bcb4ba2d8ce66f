"""Simulation of two nodes on one machine."""

import functools

from mpifed.parallel.comm import MpiComm, SerialComm


@functools.cache  # once per process, since MPI has a limited number of communicators
def two_nodes(comm: SerialComm) -> SerialComm:
    """Return a communicator of the ranks of ``comm`` whose first half, rounded up, is on one node and the
    rest on another."""
    if comm.size == 1:
        return comm
    made, half = MpiComm(), (comm.size + 1) // 2
    second = made.rank >= half
    made.node = half if second else 0
    made.local_rank = made.rank - made.node
    made.local_size = made.size - half if second else half
    return made
