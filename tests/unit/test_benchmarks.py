"""Benchmarks compare results before times; ``scripts/bench/checkpoints.py`` measures the files of a run."""

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpifed.parallel.comm import SerialComm

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts/bench"


@pytest.fixture
def bench(monkeypatch):
    """Return a function that imports a benchmark."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module


@pytest.fixture
def small(bench, monkeypatch):
    """Return ``peers.py`` with a small workload, without pfl-research and without times."""
    peers = bench("peers")
    work = replace(peers.WORKLOADS["logistic-60-10"], clients=6, steps=2, batch=3, cohort=4)
    monkeypatch.setattr(peers, "WORKLOADS", {"small": work})
    monkeypatch.setattr(peers, "PEERS", {"bare": ("torch", peers.bare)})
    return peers


class Alike(SerialComm):
    """The first of two processes that do the same work and do not communicate."""

    size = 2

    def allgatherv(self, send, receive, counts):
        receive[...] = np.concatenate([send, send])


def skips_a_client(loop):
    train = loop.train
    loop.train = lambda client, rows: train(client, rows) if client else None


def trains_a_client_twice(loop):
    train, load = loop.train, loop.load
    first = []
    loop.load = lambda point: (first.clear(), load(point))

    def twice(client, rows):
        if first:
            return train(client, rows)
        first.append(train(client, rows))
        train(client, rows)

    loop.train = twice


def samples_other_rows(loop):
    train = loop.train
    loop.train = lambda client, rows: train(client, None)


def keeps_its_start(loop):
    loop.point = lambda: 0 * loop.shared


@pytest.mark.parametrize(
    "fault", [skips_a_client, trains_a_client_twice, samples_other_rows, keeps_its_start]
)
def test_a_wrong_rival_is_not_timed(small, monkeypatch, capsys, fault):
    def faulty(work, made):
        loop = small.bare(work, made)
        fault(loop)
        return loop

    monkeypatch.setattr(small, "PEERS", {"faulty": ("torch", faulty)})
    monkeypatch.setattr(small, "WORKLOADS", {"small": replace(small.WORKLOADS["small"], cohort=None)})
    with pytest.raises(SystemExit, match="faulty: expected .* no times are measured"):
        small.measure("small", 0.0)
    assert capsys.readouterr().out == ""


def test_a_right_rival_is_timed(small):
    rows = small.measure("small", 0.0)
    assert [row["simulator"] for row in rows] == ["mpifed", "bare"]


def test_processes_that_all_do_the_whole_work_are_not_timed(bench):
    agreement = bench("agreement")
    agreement.expect_divided("rival", 4, 8, Alike())
    with pytest.raises(SystemExit, match=r"expected 8 gradients, divided .*, got 8 \+ 8"):
        agreement.expect_divided("rival", 8, 8, Alike())


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1 + 2e-5])
def test_results_are_compared(bench, wrong):
    agreement = bench("agreement")
    agreement.expect_equal("rival", np.array([1 + 5e-6, 2.0]), np.array([1.0, 2.0]), SerialComm())
    with pytest.raises(SystemExit, match="rival: expected the same result to 1e-05"):
        agreement.expect_equal("rival", np.array([wrong, 1.0]), np.ones(2), SerialComm())


def test_torchrun_variables_connect_the_processes_of_pfl(bench):
    class World:
        rank, size = 1, 2

        def bcast(self, port):
            return port

    variables = bench("peers").torchrun_variables(World())
    assert (variables["RANK"], variables["WORLD_SIZE"]) == ("1", "2")
    assert variables["TORCHELASTIC_RUN_ID"] and int(variables["MASTER_PORT"]) > 0


def test_a_wrong_sum_is_not_timed(bench):
    reduction, comm = bench("reduction"), SerialComm()
    placement = reduction.Placement(2, 1)
    halved = lambda message: message / 2  # noqa: E731
    with pytest.raises(SystemExit, match="exact: expected the same result"):
        reduction.expect_right_sums({"exact": halved}, comm, placement, 10)
    reduction.expect_right_sums({"Allreduce": lambda message: message}, comm, placement, 10)


def test_a_wrong_floor_is_not_timed(bench, monkeypatch):
    floor = bench("floor")
    monkeypatch.setattr("sys.argv", ["floor.py", "--workloads", "saddle"])
    options = floor.parse()
    floor.expect_same_gradient("saddle", 2, options)
    gradients = floor.Floor._analytic

    def doubled(self, x, y):
        return lambda batch: tuple(2 * one for one in gradients(self, x, y)(batch))

    monkeypatch.setattr(floor.Floor, "_analytic", doubled)
    with pytest.raises(SystemExit, match="floor of saddle: expected the same result"):
        floor.expect_same_gradient("saddle", 2, options)


def test_other_bits_on_several_ranks_end_the_benchmark(bench):
    agreement = bench("agreement")
    agreement.expect_same_bits(2, "ab", "ab")
    with pytest.raises(SystemExit, match="2 ranks: expected the bits"):
        agreement.expect_same_bits(2, "cd", "ab")


@pytest.mark.parametrize("recorded", [0, 100])
def test_checkpoints(bench, tmp_path, recorded):
    row = bench("checkpoints").measure(recorded, tmp_path / "run")
    assert row["recorded"] == recorded and 0 < row["median_bytes"] <= row["end_bytes"]


def test_checkpoints_of_client_rows(bench, tmp_path):
    one, part, some = bench("checkpoints").measure_rows(tmp_path, 3000)
    assert 3_000_000 < one["bytes"] < part["bytes"] < 3.1e6 and 1e6 < some["bytes"] < 1.1e6
