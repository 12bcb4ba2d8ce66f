"""The work of one of a thousand ranks for a cohort of a million clients."""

import tracemalloc
from pathlib import Path

import pytest

from mpifed import Config
from mpifed.algorithms import FedAvg
from mpifed.simulation.simulation import Simulation

CLIENTS = 10**6


@pytest.mark.parametrize("model", ["uniform", {"name": "bernoulli", "probability": 0.5},
                                   {"name": "markov", "p_off": 0.5, "p_on": 0.5}], ids=str)  # fmt: skip
def test_a_round_has_no_array_over_all_clients(model, monkeypatch):
    """Two collectives; the arrays of NumPy and Python have less than a byte per client."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "scripts/bench")
    from clients import Logistic, OneOf

    comm = OneOf(1024)
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
