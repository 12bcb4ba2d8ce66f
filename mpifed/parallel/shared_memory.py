"""Memory shared by the ranks of a node, and data that a node reads once.

A rank creates an anonymous file in memory, which the other ranks open through ``/proc``. Nothing remains
after the processes have ended, and failures are reported on the rank where they occur. With Open MPI 5, a
failure of ``MPI_Win_allocate_shared`` on one rank would block the others.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from mpifed.base.log import warning
from mpifed.parallel.comm import CollectiveError, SerialComm, collective_errors, gather_rows
from mpifed.parallel.nodes import Nodes

__all__ = ["read_once_per_node", "share_memory"]

T = TypeVar("T")

#: Bytes to which the start of an array in shared memory is aligned, as torch aligns tensors.
_ALIGNMENT = 64
#: Errors of pickle.
_NOT_PICKLED = pickle.PicklingError, AttributeError, TypeError


def share_memory(
    comm: SerialComm, node: SerialComm, nbytes: int, folder: str | None = None
) -> list[np.ndarray]:
    """Allocate zeroed memory on each rank of a node that all of them can access. Collective.

    The memory is released when no rank refers to it any more.

    Args:
        comm: all ranks; ``node``: the ranks of this rank's node.
        nbytes: size of this rank's memory, at least 1.
        folder: map a temporary file in this folder, instead of memory.

    Returns:
        One array of bytes per rank of the node.

    Raises:
        CollectiveError: on all ranks of ``comm``: a rank cannot allocate memory, or not access that of
            another rank.
    """
    with contextlib.ExitStack() as stack:
        with collective_errors(comm, OSError):
            own = _anonymous_file(folder)
            stack.callback(os.close, own)
            os.posix_fallocate(own, 0, nbytes)
        places = gather_rows(node, np.array([[os.getpid(), own, nbytes, os.fstat(own).st_ino]]))
        with collective_errors(comm, OSError, RuntimeError):  # all ranks open all files before any is closed
            return [_mapped(*place) for place in places.tolist()]


def _anonymous_file(folder: str | None = None) -> int:
    """Create a file without a name, by default in memory; return its descriptor."""
    if folder is not None:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.dup(file.fileno())
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no anonymous files in memory (memfd_create)")
    return os.memfd_create("mpifed")


def _mapped(process: int, number: int, nbytes: int, key: int, *, shared: bool = True) -> np.ndarray:
    """Map the file that ``process`` has opened with the descriptor ``number``.

    Args:
        shared: whether other processes see what this one writes; otherwise it writes to its own copy.
    """
    path = f"/proc/{process}/fd/{number}"
    if os.stat(path).st_ino != key:  # the ranks run in different containers
        raise OSError(f"process {process} is a different process in this container")
    return torch.from_file(path, shared=shared, size=nbytes, dtype=torch.uint8).numpy()  # keeps no file open


def read_once_per_node(comm: SerialComm, read: Callable[[], T]) -> T:
    """Call ``read`` on the first rank of each node and return its result on the node's ranks. Collective.

    The ranks of a node share the memory of the arrays and tensors in the result. A rank that writes to an
    array changes only its own copy. If the value cannot be pickled, or the ranks of a node cannot share
    memory, every rank calls ``read``.

    Raises:
        CollectiveError: on all ranks of ``comm``: ``read`` has raised a ValueError or an OSError.
    """
    nodes = Nodes.from_comm(comm)
    value: Any = None
    with collective_errors(comm, ValueError, OSError):
        if nodes.node.rank == 0:
            value = read()
    if len(nodes.firsts) == comm.size + 1:  # one rank per node
        return value
    try:
        return _shared_value(comm, nodes.node, value)
    except CollectiveError as error:
        if comm.rank == 0:
            warning(f"every rank reads the data, since the ranks of a node cannot share them: {error}")
    with collective_errors(comm, ValueError, OSError):
        return value if nodes.node.rank == 0 else read()


def _shared_value(comm: SerialComm, node: SerialComm, value: Any) -> Any:
    """Return the ``value`` of the first rank of a node on all of its ranks, in shared memory. Collective.

    The memory starts with a pickled pair: the pickled value without its arrays, and the sizes of the arrays.
    The first rank, too, uses the shared arrays, so that its own are freed.

    Raises:
        CollectiveError: on all ranks of ``comm``: the value cannot be pickled, or a rank cannot write or
            access the memory.
    """
    with contextlib.ExitStack() as stack:
        place = np.zeros(5, dtype=np.int64)
        with collective_errors(comm, OSError, *_NOT_PICKLED):
            if node.rank == 0:
                own = _anonymous_file()
                stack.callback(os.close, own)
                head, size = _write(own, value)
                place[:] = head, os.getpid(), own, size, os.fstat(own).st_ino
        node.bcast_(place)
        head, process, number, size, key = place.tolist()
        with collective_errors(comm, OSError, RuntimeError):  # all ranks open the file before it is closed
            memory = _mapped(process, number, size, key, shared=False)
    stream, sizes = pickle.loads(memory[:head].tobytes())
    ends = np.cumsum([_aligned(head), *map(_aligned, sizes)]).tolist()
    return pickle.loads(stream, buffers=[memory[end : end + size] for end, size in zip(ends, sizes)])


def _write(file: int, value: Any) -> tuple[int, int]:
    """Write a value to a file; return the sizes of the pickled pair and of the file."""
    arrays: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=arrays.append).dump(value)
    parts = [array.raw() for array in arrays]
    head = pickle.dumps((stream.getvalue(), [part.nbytes for part in parts]))
    with open(file, "wb", closefd=False) as output:
        for part in (memoryview(head), *parts):
            output.write(part)
            output.write(bytes(_aligned(part.nbytes) - part.nbytes))
        return len(head), output.tell()


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays of bytes, which are stored outside of the stream."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            return NotImplemented
        content = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (content, value.dtype, value.shape)


def _tensor(content: np.ndarray, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    return torch.from_numpy(content).view(dtype).view(shape)
