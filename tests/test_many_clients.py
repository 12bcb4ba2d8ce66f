"""The work of one of a thousand ranks for a cohort of a million clients, and the expected memory of a run."""

import re
import tracemalloc
from pathlib import Path

import h5py
import pytest
from launch import launch

from mpifed import Config
from mpifed.algorithms import FedAvg
from mpifed.parallel.one_rank import OneRankOf
from mpifed.simulation.simulation import Simulation

CLIENTS = 10**6
#: MiB of the state of all clients of this job.
STATE = 120
JOB = """
rounds = 4
algorithm = { name = "SCAFFOLD", K = 3, eta_l = 0.1 }
participation = { cohort = 90 }
oracle = { batch_size = 1 }
[problem]
name = "Classification"
dataset = "digits"
model = { name = "mlp", hidden = [300] }
clients = 1400
"""


@pytest.mark.parametrize("model", ["uniform", {"name": "bernoulli", "probability": 0.5},
                                   {"name": "markov", "p_off": 0.5, "p_on": 0.5}], ids=str)  # fmt: skip
def test_a_round_has_no_array_over_all_clients(model, monkeypatch):
    """Two collectives; the arrays of NumPy and Python have less than a byte per client."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "scripts/bench")
    from clients import Logistic

    comm = OneRankOf(1024)
    config = Config(
        algorithm=FedAvg(K=5, eta=0.1),
        problem=Logistic(clients=CLIENTS),
        participation={"cohort": 1000, "availability": model},
        oracle={"batch_size": 4},
        run={"transport": "host", "dtype": "float32"},
    )
    with Simulation.from_settings(config, comm) as simulation:
        simulation.start()
        assert comm.calls < 40
        for _ in range(3):
            simulation.step()
        calls = comm.calls
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(3):
                simulation.step()
            assert tracemalloc.get_traced_memory()[1] - before < CLIENTS
        finally:
            tracemalloc.stop()
        assert comm.calls - calls == 2 * 3


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_expected_memory_is_that_of_a_run(ranks, tmp_path):
    """The state of 1,400 clients of SCAFFOLD has 120 MiB. Temporary tensors are not expected, the set-up of
    one client by `mpifed info` takes as much or more: the peak memory of a rank is met to 10 %. Of state
    that ranks share, the system counts for a rank the rows that it has touched, own and others'."""
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    shown = launch(0, ["-m", "mpifed", "info", job, "--ranks", ranks])[1]
    expected = max(
        float(re.search(rf"{row} +([\d.]+) MiB", shown)[1]) for row in ("sum", "peak during set-up")
    )
    launch(ranks, ["-m", "mpifed", "run", job, f"run.out={tmp_path}/run", "--no-report"])
    with h5py.File(tmp_path / "run" / "run.h5") as file:
        measured = file["ranks/peak_host_bytes"][:].max() / 2**20
    untouched, of_others = (STATE / ranks, STATE - STATE / ranks) if ranks > 1 else (0, 0)
    assert 0.9 * (expected - untouched) < measured < 1.1 * (expected + of_others), (measured, shown)
