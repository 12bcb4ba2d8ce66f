"""Communicators of one process and of all ranks."""

import numpy as np
import pytest

from mpifed.parallel import comm as communication
from mpifed.parallel.comm import (
    CollectiveError,
    SerialComm,
    broadcast_text,
    collective_errors,
    gather_rows,
    raise_if_any,
)

pytestmark = pytest.mark.mpi


@pytest.fixture(params=["world", "serial"])
def any_comm(request, comm):
    return comm if request.param == "world" else SerialComm()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_allreduce(any_comm, dtype):
    ranks = np.arange(any_comm.size, dtype=dtype)
    for op, expected in (("sum", ranks.sum()), ("max", ranks.max()), ("min", 0)):
        array = np.full(5, any_comm.rank, dtype=dtype)
        any_comm.allreduce_(array, op)
        np.testing.assert_array_equal(array, expected)


def test_long_buffers_are_split(any_comm, monkeypatch):
    monkeypatch.setattr(communication, "MAX_COUNT", 4)
    array = np.arange(11.0) + any_comm.rank
    any_comm.allreduce_(array)
    np.testing.assert_array_equal(array, np.arange(11.0) * any_comm.size + sum(range(any_comm.size)))
    any_comm.bcast_(array)


def test_bcast_from_the_last_rank(any_comm):
    array = np.full(3, float(any_comm.rank))
    any_comm.bcast_(array, any_comm.size - 1)
    np.testing.assert_array_equal(array, any_comm.size - 1.0)


def test_unequal_pieces(any_comm):
    size, rank = any_comm.size, any_comm.rank
    counts = [to + 1 for to in range(size)]
    send = np.concatenate([np.full(count, 10.0 * rank + to) for to, count in enumerate(counts)])
    received = np.empty(size * (rank + 1))
    any_comm.alltoallv(send, counts, received, [rank + 1] * size)
    np.testing.assert_array_equal(received, np.repeat(10.0 * np.arange(size) + rank, rank + 1))
    gathered = np.empty(sum(counts))
    any_comm.allgatherv(np.full(rank + 1, float(rank)), gathered, counts)
    np.testing.assert_array_equal(gathered, np.repeat(np.arange(float(size)), counts))


def test_rows_of_all_ranks(any_comm):
    """On all ranks, or on one."""
    rank, counts = any_comm.rank, [2 * number for number in range(any_comm.size)]
    rows = np.full((counts[rank], 3), float(rank)) + [0.0, 0.25, 0.5]
    expected = np.repeat(np.arange(any_comm.size), counts)[:, None] + [0.0, 0.25, 0.5]
    np.testing.assert_array_equal(gather_rows(any_comm, rows, counts), expected)
    last = any_comm.size - 1
    of_last = gather_rows(any_comm, rows, counts, root=last)
    np.testing.assert_array_equal(of_last, expected if rank == last else np.empty((0, 3)))
    np.testing.assert_array_equal(
        gather_rows(any_comm, np.array([[rank]])), np.arange(any_comm.size)[:, None]
    )


@pytest.mark.parametrize(
    "array, error",
    [
        (np.zeros((4, 3)).T, ValueError),
        (np.zeros(6)[::2], ValueError),
        (np.zeros(3, np.float16), TypeError),
        (np.zeros(3, ">f8"), TypeError),
        (np.zeros(3, complex), TypeError),
    ],
)
def test_unsupported_arrays_are_refused(any_comm, array, error):
    with pytest.raises(error, match="expected a"):
        any_comm.allreduce_(array)


def test_broadcast_text_and_raise_if_any(any_comm):
    last = any_comm.size - 1
    assert broadcast_text(any_comm, f"grüße von {any_comm.rank}", last) == f"grüße von {last}"
    assert broadcast_text(any_comm, "") == ""
    raise_if_any(any_comm, None)
    with pytest.raises(CollectiveError, match="no such file"):
        raise_if_any(any_comm, "no such file" if any_comm.rank == last else None)


def test_an_error_of_one_rank_is_an_error_of_all(any_comm):
    last = any_comm.size - 1
    with collective_errors(any_comm, ValueError):
        pass
    with (
        pytest.raises(CollectiveError, match="no such file") as error,
        collective_errors(any_comm, ValueError, OSError),
    ):
        if any_comm.rank == last:
            raise OSError("no such file")
    assert isinstance(error.value.__cause__, OSError if any_comm.rank == last else type(None))
    with pytest.raises(KeyError), collective_errors(any_comm, ValueError):
        raise KeyError("another type")
