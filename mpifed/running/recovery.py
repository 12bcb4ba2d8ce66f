"""Going on without a rank that died: ``run.on_rank_failure = "shrink"``, by MPI's failure mitigation (ULFM).

The survivors roll back. Whoever meets the death in a call of MPI revokes the communicator, which ends the
calls of all others with an error, too; the survivors shrink it and continue from the newest checkpoint in
``run.out`` (from the beginning where there is none), as ``mpifed resume`` would on one rank less. So all
clients stay in the federation, those of the lost rank move to others with the state of that checkpoint,
averages keep their weights, and under ``exact`` the run ends in the same bits as one that nobody left. The
price is the rounds since the checkpoint. No agreement is needed call by call, because everybody goes back;
one at the end keeps a rank that is done from leaving while others still have to recover.

It is an offer, not a promise: Open MPI 5 under ``mpirun --with-ft ulfm``, on one node, for a rank other than
0 that dies after the ranks have met. The process ends without ``MPI_Finalize``, in which survivors have been
seen to wait for the dead. Any error of MPI counts as a death, because a call to a dead rank does not always
say so; that nobody has died shows when the communicator shrinks by nobody, and the error is raised then.
Under ``--with-ft ulfm``, mpirun ends with 0 even if every rank is killed: the attribute ``stopped`` of the
results file says whether a run is complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from mpifed.core.telling import say
from mpifed.parallel.comm import FAULT_TOLERANT, MpiComm, SerialComm, agree

__all__ = ["RankFailure", "SurvivingComm", "surviving", "carry_on"]


class RankFailure(Exception):
    """A rank has died; raised by the call of MPI that has met it, or that another rank has revoked."""


def _guarded(name: str):
    plain = getattr(MpiComm, name)

    def call(self, *arguments, **options):
        try:
            return plain(self, *arguments, **options)
        except self._mpi.Exception as error:
            self._comm.Revoke()
            raise RankFailure(f"{name}: {error}") from None

    return call


class SurvivingComm(MpiComm):
    """A communicator whose calls raise RankFailure on all ranks when one has died."""

    allreduce_, bcast_, alltoallv, allgatherv, send, receive, barrier = map(
        _guarded, ("allreduce_", "bcast_", "alltoallv", "allgatherv", "send", "receive", "barrier")
    )

    def all_done(self, done: bool) -> bool:
        """Whether every rank lives and is done: the same answer on all survivors."""
        try:
            if not self._comm.Agree(int(done)):
                return False
        except self._mpi.Exception:
            return False
        with contextlib.suppress(self._mpi.Exception):  # who dies from here on has done its part
            self._comm.Barrier()  # nobody ends its process while another is still agreeing
        return True

    def survivors(self) -> SurvivingComm:
        """A communicator of the ranks that live, in their old order."""
        while True:
            self._comm.Revoke()
            try:
                return SurvivingComm(self._comm.Shrink())
            except self._mpi.Exception:  # one more has died meanwhile
                continue


def surviving(comm: SerialComm, wanted: str) -> SerialComm:
    """The communicator to run on: ``comm``, or one that survives the death of a rank. Collective.

    Args:
        wanted: "abort" or "shrink".

    Raises:
        CollectiveError: "shrink" cannot be had here; says why.
    """
    if wanted == "abort" or isinstance(comm, SurvivingComm):
        return comm
    reasons = {
        "there is one process only": comm.size == 1,
        f"it needs Open MPI 5, this is {comm.mpi}": "Open MPI v5" not in comm.mpi,
        "the job was not started by `mpirun --with-ft ulfm`": os.environ.get(FAULT_TOLERANT) != "1",
        "the ranks are on more than one node, where recovery has been seen to hang": comm.local_size
        < comm.size,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    refused = f'run.on_rank_failure = "shrink" cannot be had: {reason} (options: abort, shrink)'
    agree(comm, reason and refused)
    return SurvivingComm(comm._comm)


def carry_on(comm: SerialComm, attempt: Callable[[SerialComm], object]):
    """Run ``attempt(comm)``; after the death of a rank, again on a communicator of survivors. Collective."""
    if not isinstance(comm, SurvivingComm):
        return attempt(comm)
    while True:
        result, failure = None, None
        try:
            result = attempt(comm)
        except RankFailure as fault:
            failure = fault
        if comm.all_done(failure is None):
            return result
        before = comm.size
        comm = comm.survivors()
        if comm.size == before:
            raise failure or RuntimeError("another rank has met an error of MPI, and no rank has died")
        if comm.rank == 0:
            say(
                f"{before - comm.size} of {before} ranks died: going on with {comm.size} from the "
                "newest checkpoint"
            )
