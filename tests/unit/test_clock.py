"""The federated clock: manually computed times, distributions, and independence of ranks and resumption."""

import numpy as np
import pytest
import torch

from mpifed.config.job import Config, ConfigError
from mpifed.core.streams import Stream
from mpifed.parallel.comm import SerialComm
from mpifed.running.run import run
from mpifed.simulation.costs import FederatedClock, Volume, member_seconds
from mpifed.simulation.options import Clock

PLAIN = dict(bandwidth_down=512.0, bandwidth_up=1024.0, gradients_per_second=4.0)
VOLUME = Volume(up=256, down=1024)
RANDOM = ["clock.stragglers=0.7", "clock.jitter=0.3", "clock.dropout=0.4", "clock.timeout=5.0"]
RANDOM += ["clock.server_seconds=0.1"]
#: 5 clients, 2 of which participate, so that some of 3 ranks have no member in most rounds.
JOB = """
rounds = 6
algorithm = { name = "LocalSGDA", q = 3, eta_x = 0.01, eta_y = 0.01 }
problem = { name = "Saddle", clients = 5, d = 4 }
participation.cohort = 2
clock = { bandwidth_down = 1e3, bandwidth_up = 3e2, gradients_per_second = 7.0, latency = 0.01 }
run = { progress = false, checkpoint_every = 2 }
"""


def test_time_of_a_client():
    """1024 / 512 down, 256 / 1024 up, calls at 4 per second times two lognormal factors of median 1, one per
    client and one per phase, and a timeout for each of the first attempts that are lost, with probability
    1/4."""
    clock = Clock(**PLAIN, latency=0.125, stragglers=0.5, jitter=0.3, dropout=0.25, timeout=8.0)
    clients, calls, expected, losses = np.arange(60)[::-1], np.arange(60), [], set()
    for client, count in zip(clients, calls):
        slowness = Stream(7, "clock-slowness", [client], 0, 1, 0).normal()[0, 0]
        jitter = Stream(7, "clock-jitter", [client], 4, 1, 1).normal()[0, 0]
        uniform = Stream(7, "clock-dropout", [client], 4, 1, 1).uniform()[0, 0]
        lost = sum(uniform < 0.25**attempts for attempts in range(1, 30))
        losses.add(lost)
        compute = count / 4 * np.exp(0.5 * slowness + 0.3 * jitter)
        expected.append(2.0 + 0.25 + 2 * 0.125 + compute + 8.0 * lost)
    np.testing.assert_allclose(member_seconds(clock, 7, 4, 1, clients, calls, VOLUME), expected, rtol=1e-14)
    assert {0, 1, 2} <= losses
    seconds = member_seconds(Clock(**PLAIN), 7, 4, 1, clients[:1], np.array([6]), VOLUME)
    assert seconds.tolist() == [2.0 + 0.25 + 1.5]


def test_a_phase_takes_as_long_as_its_slowest_member_and_a_round_is_the_sum_of_its_phases():
    clock, comm = FederatedClock(Clock(**PLAIN, server_seconds=0.5), 0), SerialComm()
    clock.begin_round()
    clock.record_phase(1, np.array([10, 12]), np.array([2, 6]), VOLUME)  # 2.25 + 1.5
    clock.record_phase(1, np.array([10, 12]), np.array([4, 2]), VOLUME)  # 2.25 + 1, by the other client
    clock.begin_round()
    clock.record_phase(2, np.zeros(0, dtype=int), np.zeros(0, dtype=int), VOLUME)  # a rank without members
    clock.begin_round()
    assert clock.collect(comm).tolist() == [3.75 + 3.25 + 2 * 0.5, 0.5, 0.0]
    assert clock.collect(comm).tolist() == []
    clock = FederatedClock(None, 0)  # without [clock]
    clock.begin_round()
    clock.record_phase(1, np.arange(3), np.arange(3), VOLUME)
    assert clock.collect(comm).tolist() == [0.0]


def run_here(job, *overrides):
    return run(Config.load(job, [*overrides, "run.overwrite=true"]), SerialComm())


@pytest.mark.parametrize("group", [1, 2, "all"])
def test_a_run(job, tmp_path, group):
    """d = 4 in float32: 8 numbers, 32 bytes in each direction; 3 gradients."""
    speeds = ["clock.bandwidth_down=32.0", "clock.bandwidth_up=64.0", "clock.gradients_per_second=12.0"]
    result = run_here(job, f"run.out={tmp_path}/a", f"run.group={group}", "clock.latency=0.0", *speeds)
    assert result.costs["federated_seconds"].tolist() == [1.75 * r for r in range(7)]


def test_a_method_with_two_phases(job, tmp_path):
    """5 equal clients without randomness."""
    config = Config.load(job)
    algorithm = {"name": "LESGD", "K": 2, "eta": 0.01}
    table, clock = config.table() | {"algorithm": algorithm, "participation": {}}, config.clock
    table["run"] |= {"out": str(tmp_path / "a")}
    costs = {name: values[-1] for name, values in run(Config.from_table(table), SerialComm()).costs.items()}
    transfer = costs["bytes_up"] / clock.bandwidth_up + costs["bytes_down"] / clock.bandwidth_down
    compute = costs["oracle_calls"] / clock.gradients_per_second
    expected = (transfer + compute) / 5 + costs["phases"] * 2 * clock.latency
    assert costs["phases"] >= 12 and costs["federated_seconds"] == pytest.approx(expected, rel=1e-12)


def test_the_clock_changes_no_iterate(job, tmp_path):
    with_clock = run_here(job, f"run.out={tmp_path / 'a'}", *RANDOM)
    table = Config.load(job, [f"run.out={tmp_path / 'b'}"]).table()
    del table["clock"]
    without = run(Config.from_table(table), SerialComm())
    assert all(torch.equal(with_clock.point[block], without.point[block]) for block in "xy")
    assert (np.diff(with_clock.costs["federated_seconds"]) > 0).all()
    assert not without.costs["federated_seconds"].any()


@pytest.mark.parametrize("change, error", [
    ("clock.dropout=0.1", "dropout needs timeout"),
    ("clock.dropout=1.0", "clock.dropout"),
    ("clock.bandwidth_up=0", "clock.bandwidth_up"),
    ("clock.jitter=1e5", "less than or equal to 100"),  # times would overflow
    ("clock.bandwidth_up=inf", "clock.bandwidth_up"),
    ("clock.bandwith_up=1e6", "did you mean 'bandwidth_up'"),
    ("clock={latency=1.0}", "clock.bandwidth_down is missing"),
])  # fmt: skip
def test_invalid_settings(job, change, error):
    with pytest.raises(ConfigError, match=error):
        Config.load(job, [change])
