"""``mpifed selftest`` under mpirun: the checks of all ranks, and a failure on one of them."""

import numpy as np
import pytest

from mpifed.cli import selftest
from mpifed.cli.selftest import run_checks
from mpifed.parallel.comm import SerialComm

pytestmark = pytest.mark.mpi


@pytest.fixture
def outcome(comm, out, capsys, monkeypatch):
    """Return a function that runs the checks; returns the outcome of all ranks and the lines of this rank."""
    if comm.size == 1:
        pytest.skip("in one process, the command starts two ranks itself")
    monkeypatch.chdir(out)

    def run() -> tuple[bool, list[str]]:
        passed = run_checks(comm)
        count = np.array([int(passed)], dtype=np.int64)
        comm.allreduce_(count)
        assert count[0] in (0, comm.size)
        return passed, capsys.readouterr().out.splitlines()[1:]

    return run


def test_all_checks_pass(outcome, comm):
    passed, lines = outcome()
    names = ["ok      MPI", "ok      Allreduce", "ok      files", "ok      reproducibility", "ok      GPU"]
    assert passed and [line.partition(":")[0] for line in lines] == (names if comm.rank == 0 else [])
    if comm.rank == 0:
        assert f", 1 node(s), {comm.threads}" in lines[0]


def test_the_last_rank_has_other_results(outcome, comm, monkeypatch):
    run = selftest._run

    def disturbed(by, *arguments, **settings):
        return run(by, *arguments, **settings) + float(type(by) is SerialComm and comm.rank == comm.size - 1)

    monkeypatch.setattr(selftest, "_run", disturbed)
    passed, lines = outcome()
    assert not passed
    if comm.rank == 0:
        last = comm.size - 1
        expected = (
            f"failed  reproducibility: {comm.size} ranks and one rank differ by up to 1 (on rank {last})"
        )
        assert lines[3:5] == [expected, f"        {selftest.NODES}"]
