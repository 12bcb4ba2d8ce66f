"""User-defined tables and functions as data on several ranks: bitwise identical, and differing samples are
refused."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from games import configuration

from mpifed import run
from mpifed.algorithms import LocalSGDA
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import DeepAUC, Saddle

pytestmark = pytest.mark.mpi

METHOD = LocalSGDA(q=3, eta_x=0.02, eta_y=0.02)


def config(dataset, out, **settings):
    problem = DeepAUC(dataset=dataset, model="linear", clients=3, **settings)
    return configuration(METHOD, problem, out, batch_size=4, noise=None, reduction="exact", eval_every=1)


def samples(seed: int) -> dict:
    drawn = np.random.default_rng(seed).standard_normal((30, 4))
    labels = (drawn.sum(1) > 0).astype(int)
    return {"train": (drawn, labels), "test": (drawn, labels)}


def assert_same_as_alone(comm, out, dataset, **settings):
    result = run(config(dataset, out, **settings), comm)
    if comm.rank == 0:
        alone = run(config(dataset, f"{out}/serial", **settings), SerialComm())
        np.testing.assert_array_equal(result.point["x"].numpy(), alone.point["x"].numpy())
        np.testing.assert_array_equal(result.history["auc"], alone.history["auc"])


def test_a_table_is_bitwise_identical_to_one_process(comm, out):
    file = Path(out).parent / f"{Path(out).name}-mine.csv"
    if comm.rank == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = [f"{i * 0.37 % 1:.3f},{'rgb'[i % 3]},{'xyz'[i % 3]},{i % 2}" for i in range(40)]
        file.write_text("\n".join(["a,colour,site,label", *rows]))
    comm.barrier()
    dataset = {"name": "table", "file": str(file), "test": 0.25, "client": "site", "standardize": True}
    assert_same_as_alone(comm, out, dataset, partition="natural")


def test_a_function_is_bitwise_identical_to_one_process(comm, out):
    def load():
        return samples(0)

    assert_same_as_alone(comm, out, load)


def test_differing_samples_of_a_rank_are_refused_on_all(comm, out):
    def load():
        return samples(comm.rank)

    if comm.size == 1:
        return
    with pytest.raises(
        CollectiveError, match="differs between ranks: .*, or seed the functions that draw samples"
    ):
        run(config(load, out), comm)


def test_a_function_that_raises_on_one_rank_ends_all(comm, out):
    def load():
        if comm.rank == comm.size - 1:
            raise OSError("no such disk")
        return samples(0)

    with pytest.raises(CollectiveError, match="failed: OSError: no such disk"):
        run(config(load, out), comm)


@pytest.mark.parametrize("function", ["client_data(0)", "initial()"])
def test_differing_values_of_a_problem_are_refused_on_all(comm, out, function):
    """As if a problem numbers words in the order of a set, which depends on the process."""

    class Words(Saddle):
        def client_data(self, client):
            columns = super().client_data(client)
            return [column + comm.rank * (function == "client_data(0)") for column in columns]

        def initial(self, rng):
            return {"x": torch.ones(self.d) + comm.rank * (function == "initial()")}

    settings = configuration(METHOD, Words(clients=3, d=4), out, batch_size=1, noise=None)
    if comm.size == 1:
        return
    words = f"Words.{re.escape(function)} differs between ranks: .*sort sets and os.listdir"
    with pytest.raises(CollectiveError, match=words):
        run(settings, comm)
