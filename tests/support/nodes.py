"""Ranks of one machine that believe to be on two."""

import functools

from mpifed.parallel.comm import MpiComm, SerialComm


@functools.cache  # once a process: MPI has a bounded number of communicators
def two_nodes(comm: SerialComm) -> SerialComm:
    """A communicator of the ranks of ``comm``, of which the first half, or one more, share a node and the
    others another. One rank alone has one node."""
    if comm.size == 1:
        return comm
    made, half = MpiComm(), (comm.size + 1) // 2
    second = made.rank >= half
    made.node = half if second else 0
    made.local_rank = made.rank - made.node
    made.local_size = made.size - half if second else half
    return made
