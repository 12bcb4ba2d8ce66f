"""Fixtures for all tests. This folder is on the path: tests import ``games``, ``launch`` and ``reference``."""

import pytest

from mpifed.comm import world


@pytest.fixture(scope="session")
def comm():
    """All ranks of the test session: one process under plain pytest, MPI under mpirun."""
    return world()


@pytest.fixture
def out(tmp_path_factory, comm, request):
    """An output folder that all ranks agree on."""
    from mpifed.comm import share

    return share(comm, str(tmp_path_factory.mktemp("run")))
