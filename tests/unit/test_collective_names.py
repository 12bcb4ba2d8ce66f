"""The name of the collective in which a rank waits, which the watchdog reads from its thread."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mpifed.parallel.comm import MpiComm, SerialComm
from mpifed.parallel.transport import CudaMpi

NUMBERS = np.arange(3.0)
#: Name → a call, and the arguments that the library receives in addition to arrays.
CALLS = {
    "Allreduce": (lambda comm: comm.allreduce_(NUMBERS.copy(), "max"), ["in place", "max"]),
    "Bcast": (lambda comm: comm.bcast_(NUMBERS.copy(), 1), [1]),
    "Alltoallv": (lambda comm: comm.alltoallv(NUMBERS, [1, 2], NUMBERS.copy(), [2, 1]), [[1, 2], [2, 1]]),
    "Allgatherv": (lambda comm: comm.allgatherv(NUMBERS, NUMBERS.copy(), [3, 0]), [[3, 0]]),
    "Send to rank 7": (lambda comm: comm.send(NUMBERS, 7), [7]),
    "Recv from rank 5": (lambda comm: comm.receive(NUMBERS.copy(), 5), [5]),
    "Barrier": (lambda comm: comm.barrier(), []),
}


class Library:
    """Replaces mpi4py's communicator: records each call and the name set during it."""

    def __init__(self, comm):
        self.comm, self.seen = comm, []

    def __getattr__(self, name):
        return lambda *arguments: self.seen.append((name, self.comm.calling, arguments))


@pytest.mark.parametrize("name", CALLS)
def test_collectives_have_a_name_while_they_run(name):
    comm = MpiComm.__new__(MpiComm)
    comm._comm = library = Library(comm)
    comm._mpi = SimpleNamespace(SUM="sum", MAX="max", MIN="min", IN_PLACE="in place")
    assert comm.calling == ""
    call, expected = CALLS[name]
    call(comm)
    ((function, calling, arguments),) = library.seen
    assert calling == name and function == name.split()[0] and comm.calling == ""
    parts = [part for item in arguments for part in (item if isinstance(item, list) else [item])]
    assert [part for part in parts if not isinstance(part, np.ndarray)] == expected


def test_collectives_of_a_transport_have_its_name_as_well():
    comm, seen = SerialComm(), []
    comm.size = 2
    comm.allreduce_ = lambda tensor: (seen.append(comm.calling), tensor.mul_(2))
    comm.bcast_ = lambda tensor: seen.append(comm.calling)
    transport, tensor = CudaMpi(comm, torch.device("cpu")), torch.tensor([1.0, 2.0, 0.0])
    assert transport.sum_(tensor, 5.0) == 10.0 and comm.calling == "" and transport.wire_bytes == 2 * 3 * 4
    assert transport.bcast_(tensor) is None and comm.calling == ""
    # An Allreduce sends and receives, a Bcast goes to the other rank.
    assert transport.wire_bytes == 3 * 3 * 4
    assert seen == ["cuda-mpi Allreduce", "cuda-mpi Bcast"] and tensor.tolist() == [2.0, 4.0, 10.0]
