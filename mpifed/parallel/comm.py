"""The communicators: one process, or MPI. The only module that imports mpi4py.

Everything here moves buffers: contiguous NumPy arrays of a known dtype, in place, never pickled objects. The
arrays are host memory; :mod:`mpifed.parallel.transport` sees to GPUs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

import numpy as np

from mpifed.base.errors import message_of

__all__ = [
    "SerialComm",
    "MpiComm",
    "raise_if_any",
    "usable_mpi",
    "broadcast_text",
    "collective_errors",
    "CollectiveError",
]

#: Elements in one call: MPI counts are 32-bit, and some libraries compute byte displacements in 32 bits.
MAX_COUNT = 2**28
#: Bytes of a text for the witnesses.
WITNESS_BYTES = 256


class CollectiveError(RuntimeError):
    """An error that all ranks raise together: they end in order, without an abort, and rank 0 says why."""


def _checked(array: np.ndarray) -> np.ndarray:
    """``array`` as one flat run of memory; a strided or transposed view would be reduced in memory order."""
    if not isinstance(array, np.ndarray):
        return array.view(-1)  # a tensor in GPU memory for a CUDA-aware MPI; view refuses what is not flat
    if array.dtype not in (np.float32, np.float64, np.int64, np.uint8):
        raise TypeError(f"cannot communicate dtype {array.dtype}: use float32, float64, int64 or uint8")
    if not array.flags.c_contiguous:
        raise ValueError("cannot communicate an array that is not contiguous")
    return array.reshape(-1)


class SerialComm:
    """A communicator of one process. Every collective is the identity."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    #: The first rank on this rank's node.
    node = 0
    mpi = "none (one process)"
    #: The collective that this rank is in, "" outside; read by the watchdog's thread.
    calling = ""

    def allreduce_(self, array: np.ndarray, op: str = "sum") -> None:
        """Replace ``array`` on all ranks by its "sum", "max" or "min" over them."""
        _checked(array)

    def bcast_(self, array: np.ndarray, root: int = 0) -> None:
        """Replace ``array`` by that of rank ``root``."""
        _checked(array)

    def alltoallv(
        self, send: np.ndarray, counts: list[int], receive: np.ndarray, from_counts: list[int]
    ) -> None:
        """Send the ranks one piece of ``send`` each (sizes ``counts``), and receive theirs in order."""
        _checked(receive)[...] = _checked(send)

    def allgatherv(self, send: np.ndarray, receive: np.ndarray, counts: list[int]) -> None:
        """Concatenate every rank's ``send`` (sizes ``counts``) into ``receive`` on all ranks."""
        _checked(receive)[...] = _checked(send)

    def send(self, array: np.ndarray, to: int) -> None:
        """Send ``array`` to rank ``to``, which must be receiving."""
        raise RuntimeError("there is no other rank to send to")

    def receive(self, array: np.ndarray, source: int) -> None:
        """Receive an array of this size and dtype from rank ``source``."""
        raise RuntimeError("there is no other rank to receive from")

    def barrier(self) -> None:
        """Wait for all ranks."""

    def split(self, color: int | None) -> SerialComm | None:
        """A communicator of the ranks that give the same ``color``, in their order; ``None`` for ``None``."""
        return None if color is None else self

    def alarmed(self) -> bool:
        """Whether another rank has sent a text by :meth:`witness`; from any thread."""
        return False

    def witness(self, text: str, seconds: float) -> dict[int, str] | None:
        """Tell ranks 0 and 1 a text, and from these all others, from any thread and without waiting for them.

        Returns:
            On ranks 0 and 1 the texts by rank that arrived within ``seconds``, their own among them;
            elsewhere ``None``.
        """
        return {0: text}

    def abort(self, code: int) -> None:
        """End all ranks at once with exit code ``code``."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def usable_mpi():
    """mpi4py's ``MPI``, initialised unless a script has said that it sees to that.

    Raises:
        CollectiveError: the script has not done so, or has finalised MPI.
    """
    from mpi4py import MPI

    if MPI.Is_finalized() or not MPI.Is_initialized():
        state = "has been finalised" if MPI.Is_finalized() else "is not initialised"
        raise CollectiveError(f"MPI {state}: a run needs it between MPI.Init() and MPI.Finalize()")
    return MPI


class MpiComm(SerialComm):
    """A communicator over MPI ranks.

    Args:
        mpi: the communicator of mpi4py to duplicate, ``COMM_WORLD`` when omitted.
    """

    def __init__(self, mpi=None):
        self._mpi = MPI = usable_mpi()
        self._comm = (mpi or MPI.COMM_WORLD).Dup()
        self._witnesses = self._comm.Dup()
        self._threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.rank, self.size = self._comm.rank, self._comm.size
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = node.rank, node.size
        leader = np.array([self.rank])
        node.Bcast(leader)
        self.node = int(leader[0])
        node.Free()
        self.mpi = MPI.Get_library_version().split("\n")[0].strip().rstrip("\0")

    def allreduce_(self, array, op="sum"):
        operation = {"sum": self._mpi.SUM, "max": self._mpi.MAX, "min": self._mpi.MIN}[op]
        self.calling = "Allreduce"
        for piece in _pieces(array):
            self._comm.Allreduce(self._mpi.IN_PLACE, piece, operation)
        self.calling = ""

    def bcast_(self, array, root=0):
        self.calling = "Bcast"
        for piece in _pieces(array):
            self._comm.Bcast(piece, root)
        self.calling = ""

    def alltoallv(self, send, counts, receive, from_counts):
        self.calling = "Alltoallv"
        self._comm.Alltoallv([_checked(send), counts], [_checked(receive), from_counts])
        self.calling = ""

    def allgatherv(self, send, receive, counts):
        self.calling = "Allgatherv"
        self._comm.Allgatherv(_checked(send), [_checked(receive), counts])
        self.calling = ""

    def send(self, array, to):
        self.calling = f"Send to rank {to}"
        for piece in _pieces(array):
            self._comm.Send(piece, to)
        self.calling = ""

    def receive(self, array, source):
        self.calling = f"Recv from rank {source}"
        for piece in _pieces(array):
            self._comm.Recv(piece, source)
        self.calling = ""

    def barrier(self):
        self.calling = "Barrier"
        self._comm.Barrier()
        self.calling = ""

    def split(self, color):
        part = self._comm.Split(self._mpi.UNDEFINED if color is None else color, self.rank)
        if part == self._mpi.COMM_NULL:
            return None
        made = MpiComm(part)
        part.Free()
        return made

    def alarmed(self):
        try:
            return self._threads and self._witnesses.Iprobe()
        except self._mpi.Exception:  # a rank has died, which the main thread will meet
            return False

    def witness(self, text, seconds):
        if not self._threads:
            unknown = "cannot be asked: MPI was initialised without MPI_THREAD_MULTIPLE"
            return dict.fromkeys(range(self.size), unknown) | {self.rank: text}
        letter = np.frombuffer(text.encode()[:WITNESS_BYTES].ljust(WITNESS_BYTES), dtype=np.uint8)
        receivers = range(self.size if self.rank < 2 else 2)
        self._letters = [
            letter,
            *(self._witnesses.Isend(letter, to) for to in receivers if to != self.rank),
        ]
        if self.rank > 1:
            return None
        texts, end = {self.rank: text}, time.monotonic() + seconds
        while time.monotonic() < end and len(texts) < self.size:
            status = self._mpi.Status()
            if self._witnesses.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status):
                arrived = np.empty(WITNESS_BYTES, dtype=np.uint8)
                self._witnesses.Recv(arrived, status.Get_source())
                texts[status.Get_source()] = arrived.tobytes().decode(errors="replace").rstrip()
            else:
                time.sleep(0.01)
        return texts

    def abort(self, code):
        sys.stdout.flush()
        sys.stderr.flush()
        self._comm.Abort(code)


def broadcast_text(comm: SerialComm, text: str | None, root: int = 0) -> str:
    """The text of rank ``root``, on all ranks. Collective. It may name files whose names are no UTF-8."""
    data = np.frombuffer((text or "").encode(errors="surrogatepass"), dtype=np.uint8).copy()
    length = np.array([len(data)], dtype=np.int64)
    comm.bcast_(length, root)
    if comm.rank != root:
        data = np.empty(length[0], dtype=np.uint8)
    comm.bcast_(data, root)
    return data.tobytes().decode(errors="surrogatepass")


def raise_if_any(comm: SerialComm, error: str | None) -> None:
    """Go on only if no rank has met an error. Collective.

    Raises:
        CollectiveError: on all ranks, with the message of the first rank that passed one.
    """
    first = np.array([comm.size if error is None else comm.rank], dtype=np.int64)
    comm.allreduce_(first, "min")
    if first[0] < comm.size:
        message = broadcast_text(comm, error, int(first[0]))
        where = f" (on rank {first[0]})" if first[0] else ""
        sentence, newline, more = message.partition("\n")
        raise CollectiveError(f"{sentence}{where}{newline}{more}")


@contextlib.contextmanager
def collective_errors(comm: SerialComm, *kinds: type[Exception]):
    """Around what every rank does alone: an error of ``kinds`` on one is an error of all. Collective.

    Raises:
        CollectiveError: on all ranks, with the first rank's text; a rank's own error is the cause.
    """
    error = None
    try:
        yield
    except kinds as fault:
        error = fault
    try:
        raise_if_any(comm, message_of(error) if error else None)
    except CollectiveError as common:
        raise common from error


def _pieces(array: np.ndarray):
    flat = _checked(array)
    if len(flat) <= MAX_COUNT:
        return (flat,)
    return (flat[start : start + MAX_COUNT] for start in range(0, len(flat), MAX_COUNT))
