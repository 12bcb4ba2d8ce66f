"""The bytes that ``mpifed info JOB`` expects are those that the ranks of a run count."""

import numpy as np
import pytest
from nodes import two_nodes

from mpifed import Config
from mpifed.algorithms import SAGDA, SCAFFOLD, AdaFGDA
from mpifed.problems import Saddle
from mpifed.simulation.expected_costs import expected_costs
from mpifed.simulation.simulation import Simulation

pytestmark = pytest.mark.mpi
RATES = dict(K=2, eta_xl=0.01, eta_yl=0.01)
#: Short messages, which MPI sends, and long messages, which are added in shared memory or by slices.
JOBS = {
    "start phase and matrices": (AdaFGDA(q=2, gamma=0.01, lam=0.01), Saddle(d=6000, clients=11), {}),
    "two phases": (SAGDA(**RATES), Saddle(d=20, clients=9), {"cohort": 5}),
    "dropouts": (SCAFFOLD(K=2, eta_l=0.01), Saddle(d=6000, clients=20), {"cohort": 9, "dropout": 0.3}),
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("reduction", ["exact", "fused"])
@pytest.mark.parametrize("transport, nodes", [("auto", 1), ("auto", 2), ("host", 1)])
def test_bytes_of_rank_0(comm, name, reduction, transport, nodes):
    nodes, algorithm, problem, participation = min(nodes, comm.size), *JOBS[name]
    run = {"reduction": reduction, "transport": transport, "group": 1}
    config = Config(algorithm=algorithm, problem=problem, participation=participation, run=run)
    wire, before = [], 0
    with Simulation.from_settings(config, two_nodes(comm) if nodes == 2 else comm) as simulation:
        for r in range(4):
            simulation.step() if r else simulation.start()
            wire.append(simulation.costs.wire_bytes - before)
            before += wire[-1]
    expected = [one.wire[reduction] for one in expected_costs(config, comm.size, nodes).rounds]
    assert comm.rank or wire == expected
    assert comm.size == 1 or np.all(expected[1:])
