"""State and data of clients under partial participation: the same bits on every number of ranks with each
store, and across a resume with another store. With ``memory`` and ``disk``, the ranks of a node divide the
members of a cohort.

Rank 0 compares each job with a run in one process.
"""

import everything
import numpy as np
import pytest
from games import Game, configuration
from resumed import bits
from test_exact import assert_layout_does_not_matter, serial_copy

from mpifed import resume, run
from mpifed.algorithms import CDMAONE, FLRA, SAGDA, SCAFFOLD, LocalSGDA
from mpifed.core import client_data
from mpifed.parallel.comm import SerialComm
from mpifed.simulation import rounds
from mpifed.simulation.simulation import Simulation

pytestmark = pytest.mark.mpi
stores = pytest.mark.parametrize("store", ["device", "memory", "disk"])
STORED = SAGDA(K=2, eta_xl=0.02, eta_yl=0.02, variates="stored", first_variates="gradient")
FRESH = SAGDA(K=2, eta_xl=0.02, eta_yl=0.02)  # fields of a client within a round
COMPRESSED = {"message": {"compression": {"name": "top-k", "ratio": 0.4}, "error_feedback": True}}


def job(method, problem, out, store, **settings):
    return configuration(method, problem, out, reduction="exact", client_store=store, **settings)


@pytest.mark.dealt
@stores
@pytest.mark.parametrize("group", [1, 2, "all"])
@pytest.mark.parametrize("cohort", [1, 4])
def test_variates_of_cohorts(comm, out, store, group, cohort):
    settings = dict(rounds=6, cohort=cohort, group=group, eval_every=1)
    assert_layout_does_not_matter(job(STORED, Game(clients=9), out, store, **settings), comm, out)


@stores
@pytest.mark.parametrize("method", [STORED, FRESH])
def test_error_feedback_and_dropouts(comm, out, store, method):
    """The clients that do not drop out between two phases stay on their ranks."""
    participation = {"oversample": 7, "cohort": 5, "dropout": 0.3, "weights": "samples"}
    sections = COMPRESSED | {"participation": participation}
    settings = dict(rounds=8, sections=sections, group=2)
    assert_layout_does_not_matter(job(method, Game(clients=9), out, store, **settings), comm, out)


@stores
def test_several_cohorts_in_a_round(comm, out, store):
    method = CDMAONE(K=2, eta_x=0.01, eta_y=0.01, large_batch=4, fresh_cohort=True)
    assert_layout_does_not_matter(job(method, Game(clients=7), out, store, cohort=3, rounds=5), comm, out)


@stores
def test_blocks_of_each_client(comm, out, store):
    """Their average, of all clients, follows every round."""
    settings = everything.METHODS["FLRA"][0]
    config = job(FLRA(**settings), everything.problem("AffineShift"), out, store, cohort=2, rounds=4)
    assert_layout_does_not_matter(config, comm, out)


@pytest.mark.dealt
@pytest.mark.parametrize("kept, at_start", [(0, 0), (1e-9, 0), (1, 0), (1, 2**28)])
@pytest.mark.parametrize("batch_size", [0, 2])
def test_data_are_loaded_when_they_are_needed(comm, out, monkeypatch, kept, at_start, batch_size):
    """With space for the current cohort only, for some clients, for all, and with all of them from the start.
    An evaluation of all clients in between does not change the samples of the run."""
    monkeypatch.setattr(rounds, "KEPT", kept)
    monkeypatch.setattr(client_data, "AT_START", at_start)
    settings = dict(rounds=6, cohort=3, batch_size=batch_size, noise=None, eval_every=2)
    sections = {"measures": {"of": ["stationarity"], "ell": 5.0}}
    problem = everything.problem("RobustRegression")
    config = job(LocalSGDA(q=2, eta_x=0.01, eta_y=0.01), problem, out, None, sections=sections, **settings)
    found = run(config, comm)
    monkeypatch.undo()
    if comm.rank == 0:
        expected = run(serial_copy(config, f"{out}/serial"), SerialComm())
        np.testing.assert_array_equal(bits(found), bits(expected))
        for name, values in expected.history.items():
            np.testing.assert_array_equal(found.history[name], values, err_msg=name)


def test_a_run_continues_with_another_store(comm, out):
    settings = dict(rounds=9, cohort=4, sections=COMPRESSED | {"participation": {"cohort": 4}})
    config = job(STORED, Game(clients=9), f"{out}/whole", "device", **settings)
    whole = run(config, comm)
    first = job(STORED, Game(clients=9), f"{out}/parts", "disk", **settings | {"rounds": 3})
    first = first.model_copy(update={"run": first.run.model_copy(update={"checkpoint_every": 1})})
    run(first, comm)
    for last, store in ((6, "memory"), (9, "device")):
        found = resume(f"{out}/parts", [f"rounds={last}", f"run.client_store={store}"], comm)
    np.testing.assert_array_equal(bits(found), bits(whole))


def test_the_members_of_a_cohort_are_divided_equally(comm, out):
    config = job(
        SCAFFOLD(K=1, eta_l=0.1, eta_g=1.0), everything.problem("Classification"), out, None, cohort=2
    )
    simulation = Simulation.from_settings(config, comm)
    simulation.start()
    for _ in range(5):
        simulation.step()
        counts = simulation.rounds.coordinator.cohort(simulation.round).counts
        assert counts.max() - counts.min() <= 1 and counts.sum() == 2
