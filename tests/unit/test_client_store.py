"""The default of ``run.client_store``, and a disk without space. The bits are tested in tests/parallel."""

from types import SimpleNamespace

import pytest
from games import Game, configuration

from mpifed.algorithms import SCAFFOLD
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import Saddle
from mpifed.simulation import client_store, state
from mpifed.simulation.simulation import Simulation

METHOD = SCAFFOLD(K=1, eta_l=0.1)


@pytest.mark.parametrize(
    "cohort, row_bytes, gpu_memory, store",
    [
        (None, 10, 0, "device"),
        (4, 10, 0, "memory"),
        (4, 0, 0, "memory"),  # nothing is stored, but any rank of the node may step a client
        (None, 51, 0, "disk"),
        (4, 51, 0, "disk"),
        (4, 10, 200, "device"),
        (4, 21, 200, "memory"),
        (None, 51, 200, "disk"),
    ],
)
def test_the_default_depends_on_participation_and_sizes(monkeypatch, cohort, row_bytes, gpu_memory, store):
    """Ten clients on a node, five on a GPU; a half of 1,000 bytes of the node, and of the GPU's memory."""
    monkeypatch.setattr(client_store, "host_memory", lambda: 1000)
    config = configuration(METHOD, Game(clients=10), "unused", cohort=cohort)
    assert client_store.choose_store(config, row_bytes, 10, 5, gpu_memory) == store
    config = configuration(METHOD, Game(clients=10), "unused", cohort=cohort, client_store="disk")
    assert client_store.choose_store(config, row_bytes, 10, 5, gpu_memory) == "disk"


def test_a_file_that_does_not_fit_on_the_disk_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(state.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(state.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    config = configuration(METHOD, Saddle(clients=10, d=50), "unused", cohort=4, client_store="disk")
    words = rf"of disk space with 1 rank on the disk of {tmp_path} \(TMPDIR\).* for the clients' records"
    with pytest.raises(CollectiveError, match=words):
        Simulation.from_settings(config, SerialComm())
