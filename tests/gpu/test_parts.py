"""Copies, random numbers, transports and reductions on a GPU."""

import numpy as np
import pytest
import simulated_gpu
import torch
from device_rounds import SIMULATED, TOLERANCE, counted
from games import Game, configuration
from simulated_gpu import device as gpu

import mpifed.parallel.transport
from mpifed.algorithms import LocalSGDA
from mpifed.base.errors import ConfigError
from mpifed.cli import selftest
from mpifed.core.device import PINNED, DeviceStream, to_device
from mpifed.core.directions import Orthogonalize
from mpifed.core.streams import Stream
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.devices import choose_device, gpu_id, ranks_on
from mpifed.parallel.placement import Cohort, Placement
from mpifed.parallel.reduction import ExactReduction, FusedReduction
from mpifed.parallel.transport import Host, Nccl, SingleRank
from mpifed.simulation import state

CUDA = torch.device("cuda", 0)


def expect_waits(found, number: int):
    """On a real GPU at most, because torch does not report all of them."""
    assert found.total() == number or (not SIMULATED and found.total() < number), found


class Several(SerialComm):
    """One of three ranks with equal arrays."""

    size = 3

    def __init__(self, identities=(1, 1, 1)):
        self.identities = identities

    def allreduce_(self, array, op="sum"):
        assert np.isfinite(array).all(), "read before it arrived"
        if op == "sum":
            array *= 3

    def bcast_(self, array, root=0):
        assert np.isfinite(array).all(), "sent before it arrived"

    def allgatherv(self, send, receive, counts):
        assert np.isfinite(send).all(), "sent before it arrived"
        receive[...] = self.identities if len(receive) == 3 else np.resize(send, len(receive))


def test_selftest_runs_on_the_gpu(tmp_path, monkeypatch, capsys):
    """The checks of files and GPUs; those of MPI would start a process without the simulated GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(selftest, "_library", lambda: 1 / 0)
    selftest.run_checks(SerialComm())
    lines = capsys.readouterr().out.splitlines()
    name, number = torch.cuda.get_device_name(), torch.cuda.device_count()
    assert lines[2] == f"ok      GPU: {name}, the first of {number} on the node of rank 0"


def test_the_words_of_a_stream_are_the_same_on_the_gpu():
    host, other = (Stream(7, "noise", [5, 2, 9], np.array([1, 4, 1]), 4, 3) for _ in range(2))
    stream = DeviceStream(other, CUDA)
    for draw in ("words", "uniform", "permutation", "normal"):
        found = getattr(stream, draw)(5)
        assert found.is_cuda
        expected = torch.from_numpy(getattr(host, draw)(5).astype(found.cpu().numpy().dtype))
        # SciPy and torch compute the inverse of the normal distribution with rounding errors of a few units.
        rounding = 0.0 if draw != "normal" else 1e-13 if SIMULATED else TOLERANCE
        torch.testing.assert_close(found.cpu(), expected, rtol=rounding, atol=0)
    assert stream.integers([3, 8, 2**31 - 1], 6).tolist() == host.integers([3, 8, 2**31 - 1], 6).tolist()


def test_copies_to_the_gpu_do_not_wait():
    with counted() as waits:
        values = to_device(np.arange(3), CUDA, torch.float32)
    assert not waits and (not SIMULATED or gpu.copies == {"to device": 1})
    assert values.dtype == torch.float32 and values.tolist() == [0.0, 1.0, 2.0]
    with counted() as waits:
        to_device(np.zeros(PINNED + 1, np.uint8), CUDA)
    assert waits.total() == 1 and (not SIMULATED or gpu.copies == {"to device, waiting": 1})


@pytest.mark.skipif(not SIMULATED, reason="on a real GPU the copies may arrive earlier")
def test_copies_and_times_before_a_wait():
    """What the simulated GPU shows if the package reads too early."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first, second = torch.zeros(2).pin_memory(), torch.zeros(2).pin_memory()
    begin.record()
    first.copy_(torch.ones(2, device=CUDA), non_blocking=True)
    end.record()
    second.copy_(torch.ones(2, device=CUDA), non_blocking=True)
    with pytest.raises(RuntimeError, match="completed before"):
        begin.elapsed_time(end)
    assert first.isnan().all()
    end.synchronize()
    assert begin.elapsed_time(end) >= 0 and first.tolist() == [1.0, 1.0] and second.isnan().all()
    torch.cuda.synchronize()
    assert second.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("chunk, chunks", [(80, 1), (32, 3), (40, 2)])
def test_staging_through_pinned_memory(monkeypatch, rank, chunk, chunks):
    """The simulated copies arrive as late as possible, and pinned memory must not change before."""
    monkeypatch.setattr(mpifed.parallel.transport, "CHUNK", chunk)
    transport = Host(Several(), CUDA)
    transport.comm.rank = rank
    for repetition in range(3):
        tensor = torch.arange(20.0, device=CUDA) + repetition
        expected = 3 * (torch.arange(20.0) + repetition)
        expected[-1] = 15.0
        with counted() as waits:
            assert transport.sum_(tensor, 5.0) == 15.0
        assert transport.checksum == (expected.sum() if chunks == 1 else None)
        expect_waits(waits, chunks)
        with counted() as waits:
            transport.bcast_(tensor)
        expect_waits(waits, 1)
        assert torch.equal(tensor.cpu(), expected)
    assert transport.seconds > 0


TRANSPORTS = {
    "none": lambda: SingleRank(SerialComm(), CUDA),
    "host": lambda: Host(Several(), CUDA),
    "nccl": lambda: Nccl(SerialComm(), CUDA),
}


@pytest.mark.parametrize("name", TRANSPORTS)
@pytest.mark.parametrize("kind", [FusedReduction, ExactReduction])
def test_a_reduction_waits_at_most_once(name, kind):
    """With the check of the mean, which a single rank leaves to its caller if nothing is copied to the host.
    One of three ranks has three members, and two partial sums."""
    with TRANSPORTS[name]() as transport:
        placement = Placement(9, transport.comm.size)
        reduction = kind(transport, 2, placement, 40, torch.float64)
        cohort = Cohort(np.arange(9), placement, 0)
        for repetition in range(3):
            with counted() as waits:
                reduction.begin(cohort)
                for start in range(0, len(cohort.local), 2):
                    reduction.rows[:] = torch.arange(40.0, dtype=torch.float64, device=CUDA) + repetition
                    reduction.add(slice(start, min(start + 2, len(cohort.local))))
                assert reduction.finish(1.0) == transport.comm.size
                unknown = (name, kind) == ("none", FusedReduction)
                assert reduction.mean_is_finite() is (None if unknown else True)
            expect_waits(waits, 0 if unknown else 1)
            expected = torch.arange(40.0, dtype=torch.float64) + repetition
            torch.testing.assert_close(reduction.mean.cpu(), expected, rtol=1e-15, atol=0)  # one rounding
        assert transport.seconds > 0 or (name, kind) == ("none", FusedReduction)


@pytest.mark.parametrize("kind", [FusedReduction, ExactReduction])
def test_sums_of_irregular_cohorts(kind):
    """Additions whose left rows are at equal distances and right rows are not, and the reverse."""
    generator = np.random.default_rng(0)
    for _ in range(20):
        members = np.sort(generator.choice(40, 13, replace=False))
        placement, means = Placement(40, 1), []
        for device in ("cpu", CUDA):
            reduction = kind(SingleRank(SerialComm(), torch.device(device)), 13, placement, 6, torch.float64)
            reduction.begin(Cohort(members, placement, 0))
            rows = np.random.default_rng(1).standard_normal((13, 6))
            reduction.rows[:13] = torch.from_numpy(rows).to(device)
            reduction.add(slice(0, 13))
            reduction.finish()
            means.append(reduction.mean.cpu())
        assert torch.equal(*means)


def test_ranks_that_share_a_gpu_are_counted():
    device = choose_device(SerialComm(), "auto")
    assert device == CUDA and ranks_on(SerialComm(), device) == 1
    own = gpu_id(device)
    assert ranks_on(Several((own, own, 7)), device) == 2
    assert ranks_on(Several((0, 0, 0)), torch.device("cpu")) == 1


def test_the_polar_factor_by_newton_schulz():
    U = torch.randn(2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(CUDA)
    with counted() as waits:
        factor = Orthogonalize()(U, {"": (3, 4)})
    assert not waits
    rounding = 0.0 if SIMULATED else TOLERANCE
    expected = Orthogonalize("newton_schulz")(U.cpu(), {"": (3, 4)})
    torch.testing.assert_close(factor.cpu(), expected, rtol=rounding, atol=rounding)


@pytest.mark.skipif(not SIMULATED, reason="sets the memory of the simulated GPU")
def test_the_memory_guard_counts_the_ranks_of_a_gpu(monkeypatch):
    problem, method = Game(clients=4), LocalSGDA(q=2, eta_x=0.1, eta_y=0.1)
    config = configuration(method, problem, "unused", reduction="fused")
    needed = sum(state.memory_needs(config, problem, 4, 4).values())
    monkeypatch.setattr(simulated_gpu, "MEMORY", int(1.5 * needed))
    state.expect_memory(config, SerialComm(), CUDA)
    with pytest.raises(ConfigError, match="with 2 ranks on the GPU 0"):
        state.expect_memory(config, SerialComm(), CUDA, sharing=2)
