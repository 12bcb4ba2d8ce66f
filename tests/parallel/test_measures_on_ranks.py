"""Measures and the meter on every number of ranks: the bits of one process, and errors on all ranks."""

import h5py
import numpy as np
import pytest
from everything import problem
from games import Game, configuration

from mpifed import Config, run
from mpifed.algorithms import FESSGDA
from mpifed.diagnostics.assumptions import Options, measure
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


def job(name, weights="samples", **settings) -> Config:
    make, of = JOBS[name]
    config = configuration(METHOD, make(), "unused", weights=weights, reduction="exact", **settings)
    return Config(**dict(config) | {"measures": {"of": of, "ell": 8.0, "evaluations": 20}})


def figures(config, comm) -> dict[str, float]:
    simulation = Simulation.from_settings(config, comm)
    with simulation.transport:
        simulation.start()
        simulation.step()
        before = simulation.transport.wire_bytes
        found = simulation.evaluate(simulation.shared)
        assert simulation.transport.wire_bytes == before
    return found


@pytest.mark.parametrize("group", [1, 2], ids=["loop", "pairs"])
@pytest.mark.parametrize("name", JOBS)
def test_the_bits_of_one_process(comm, name, group):
    found, alone = (figures(job(name, group=group), one) for one in (comm, SerialComm()))
    assert alone == found if comm.rank == 0 else found == {}


def test_the_history_of_a_run(comm, tmp_path_factory):
    """A column a figure; a cohort takes part in a round, and all clients are measured."""
    folder = broadcast_text(comm, str(tmp_path_factory.mktemp("run")))
    config = job("game", cohort=2, eval_every=1)
    run(config.model_copy(update={"run": config.run.model_copy(update={"out": folder})}), comm)
    if comm.rank == 0:
        with h5py.File(f"{folder}/run.h5") as file:
            column = file["metrics/phi_gradient"][...]
            assert len(column) == 4 and np.isfinite(column).all() and len(set(column.tolist())) == 4


@pytest.mark.parametrize("name", ["game", "auc"])
def test_the_meter_in_one_process(comm, name):
    options = Options(points=2, samples=12, iterations=2)
    found, alone = (measure(one, job(name, rounds=2), options) for one in (comm, SerialComm()))
    if comm.rank == 0:
        assert repr(found) == repr(alone)  # in which NaN is NaN
    assert comm.rank == 0 or not found["rows"]


class Failing(Game):
    """Fails for the last client, which one rank alone hosts, when it is asked for all data."""

    def loss(self, x, y, batch):
        if len(batch[0]) == 5 + self.clients - 1:
            raise RuntimeError("too many rows")
        return super().loss(x, y, batch)


def test_an_error_on_one_rank_is_one_of_all(comm):
    config = configuration(METHOD, Failing(clients=5), "unused", group=1)
    config = Config(**dict(config) | {"measures": {"of": ["phi"]}})
    simulation = Simulation.from_settings(config, comm)
    with pytest.raises(CollectiveError, match="Failing failed for client 4: RuntimeError: too many rows"):
        simulation.start()
        simulation.evaluate(simulation.shared)


def test_what_is_refused_is_refused_everywhere(comm):
    config = configuration(METHOD, problem("WGAN"), "unused")
    with pytest.raises(CollectiveError, match="WGAN generates samples"):
        Simulation.from_settings(Config(**dict(config) | {"measures": {"of": ["phi"]}}), comm)
    with pytest.raises(CollectiveError, match="WGAN generates samples"):
        measure(comm, config, Options())
