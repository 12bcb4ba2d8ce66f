"""The NCCL transport on one rank of many, with torch's process group that sends nothing."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from games import Game, configuration, started

import mpifed.simulation.simulation
from mpifed.algorithms import AdaFGDA
from mpifed.parallel.comm import CollectiveError
from mpifed.parallel.one_rank import OneRankOf
from mpifed.parallel.transport import CHUNK, Nccl

# Importing it registers the process group "fake".
pytest.importorskip("torch.testing._internal.distributed.fake_pg")

CPU = torch.device("cpu")


@pytest.fixture
def calls(monkeypatch):
    """Return a list of collectives and their numbers of elements. The first sum is that of R ranks, added one
    after another in the precision of the message."""
    made, real = [], {"all_reduce": dist.all_reduce, "broadcast": dist.broadcast}

    def all_reduce(tensor):
        real["all_reduce"](tensor)
        if not made:
            numbers = np.arange(1, dist.get_world_size() + 1, dtype=tensor.numpy().dtype)
            tensor.fill_(np.add.accumulate(numbers)[-1].item())
        made.append(("all_reduce", tensor.numel()))

    def broadcast(tensor, source):
        real["broadcast"](tensor, source)
        made.append(("broadcast", tensor.numel()))

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "broadcast", broadcast)
    return made


@pytest.mark.parametrize("ranks", [1024, 10_000])
def test_set_up(calls, ranks):
    """The sum of 10,000 ranks exceeds 2^24, beyond which float32 does not have all integers."""
    comm = OneRankOf(ranks)
    with Nccl(comm, CPU, "fake"):
        assert dist.get_world_size() == ranks and comm.calls < 20
    assert calls == [("all_reduce", 2)] and not dist.is_initialized()


def test_a_wrong_sum():
    """Without the fixture every rank receives its own number."""
    with pytest.raises(CollectiveError, match=r"gives the sums \[1.0, 1.0\], expected 524800"):
        Nccl(OneRankOf(1024), CPU, "fake")
    assert not dist.is_initialized()


def test_calls_of_a_round(calls, monkeypatch):
    """One sum per phase, with a control value, and one broadcast of the matrices; nothing by MPI."""
    comm = OneRankOf(1024)
    monkeypatch.setattr(mpifed.simulation.simulation, "choose_transport", lambda *_: Nccl(comm, CPU, "fake"))
    method = AdaFGDA(q=2, gamma=0.02, lam=0.02, matrix="norm", sync_estimator="mean_after")
    job = configuration(method, Game(clients=8), "unused", reduction="fused", device="cpu")
    with started(job, comm=comm) as simulation:
        before = comm.calls, len(calls)
        simulation.step()
    # x and y have 5 numbers, w and v as many, the norms of x and y are 2; each message has a control value.
    assert calls[before[1] :] == [("all_reduce", 5 + 1), ("all_reduce", 10 + 1), ("broadcast", 2)]
    assert comm.calls == before[0]


def test_a_long_message_is_one_call(calls):
    with Nccl(OneRankOf(1024), CPU, "fake") as transport:
        message = torch.zeros(CHUNK)
        assert transport.sum_(message, 2.0) == 2.0
        assert transport.wire_bytes == 2 * message.nbytes
    assert calls[1:] == [("all_reduce", CHUNK)]
