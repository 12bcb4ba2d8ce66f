"""Stationarity measures and assumption estimates on several ranks, compared with one process."""

import h5py
import numpy as np
import pytest
from everything import problem
from games import Game, configuration, started

from mpifed import Config, run
from mpifed.algorithms import FESSGDA
from mpifed.diagnostics.assumptions import Options, estimate
from mpifed.parallel.comm import CollectiveError, SerialComm, broadcast_text
from mpifed.problems import DeepAUC, FairClassification
from mpifed.simulation.simulation import Simulation

pytestmark = pytest.mark.mpi

METHOD = FESSGDA(K=2, eta_xl=0.02, eta_yl=0.05, p=3.0)
JOBS = {
    "game": (lambda: Game(clients=5), ["stationarity", "phi", "moreau", "potential", "tail"]),
    "auc": (lambda: DeepAUC(clients=3, dataset="digits", model="linear"), ["phi", "nuclear_norm"]),
    "set": (lambda: FairClassification(clients=5, dataset="digits", model="linear"), ["stationarity", "phi"]),
}


def job(name, weights="samples", out="unused", **settings) -> Config:
    make, of = JOBS[name]
    smoothness = {"ell": 8.0} if "stationarity" in of else {}
    sections = {"measures": {"of": of, "evaluations": 20} | smoothness}
    settings |= dict(weights=weights, reduction="exact", sections=sections)
    return configuration(METHOD, make(), out, **settings)


def figures(config, comm) -> dict[str, float]:
    simulation = started(config, 1, comm)
    with simulation:
        before = simulation.rounds.transport.wire_bytes
        found = simulation.evaluate()
        assert simulation.rounds.transport.wire_bytes == before
    return found


@pytest.mark.parametrize("group", [1, 2], ids=["loop", "pairs"])
@pytest.mark.parametrize("name", JOBS)
def test_bitwise_identical_to_one_process(comm, name, group):
    found, alone = (figures(job(name, group=group), one) for one in (comm, SerialComm()))
    assert alone == found if comm.rank == 0 else found == {}


def test_the_history_of_a_run(comm, tmp_path_factory):
    """One column per figure; a cohort participates in a round, and all clients are measured."""
    folder = broadcast_text(comm, str(tmp_path_factory.mktemp("run")))
    run(job("game", out=folder, cohort=2, eval_every=1), comm)
    if comm.rank == 0:
        with h5py.File(f"{folder}/run.h5") as file:
            column = file["metrics/phi_gradient"][...]
            assert len(column) == 4 and np.isfinite(column).all() and len(set(column.tolist())) == 4


@pytest.mark.parametrize("name", ["game", "auc"])
def test_assumption_estimates(comm, name):
    options = Options(points=2, samples=12, iterations=2)
    found, alone = (estimate(one, job(name, rounds=2), options) for one in (comm, SerialComm()))
    if comm.rank == 0:
        assert repr(found) == repr(alone)  # NaN equals NaN in text
    assert comm.rank == 0 or not found["rows"]


PHI = {"of": ["phi"]}


class Failing(Game):
    """Fails for the last client, hosted by one rank, when it is evaluated on all data."""

    def loss(self, x, y, batch):
        if len(batch[0]) == 5 + self.clients - 1:
            raise RuntimeError("too many rows")
        return super().loss(x, y, batch)


def test_an_error_on_one_rank_ends_all(comm):
    config = configuration(METHOD, Failing(clients=5), "unused", sections={"measures": PHI}, group=1)
    simulation = started(config, comm=comm)
    with pytest.raises(CollectiveError, match="Failing failed for client 4: RuntimeError: too many rows"):
        simulation.evaluate()


def test_unsupported_problems_are_refused_on_all_ranks(comm):
    config = configuration(METHOD, problem("WGAN"), "unused", sections={"measures": PHI})
    with pytest.raises(CollectiveError, match="WGAN generates its samples"):
        Simulation.from_settings(config, comm)
    config = configuration(METHOD, problem("WGAN"), "unused")
    with pytest.raises(CollectiveError, match="WGAN generates its samples"):
        estimate(comm, config, Options())
