"""pytest inside an MPI job: ``mpirun -n RANKS python mpi_main.py RANKS TEMPORARY_FOLDER TESTS...``.

A test that fails on one rank leaves the others in a collective, so a failure is printed and ends the job. The
last line says how many tests passed on each rank: ``passed on 2 ranks: 35 35``.
"""

import os
import sys

import numpy as np
import pytest

from mpifed.parallel.world import world


class Ranks:
    """Counts the tests that pass on each rank; prints the report of a failed one and ends all ranks."""

    def __init__(self, comm):
        self.comm = comm
        self.passed = np.zeros(comm.size, dtype=np.int64)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            print(
                f"rank {self.comm.rank} of {self.comm.size}: {report.nodeid} failed\n{report.longreprtext}",
                file=sys.__stderr__,
                flush=True,
            )
            self.comm.abort(1)
        self.passed[self.comm.rank] += report.when == "call" and report.passed


if __name__ == "__main__":
    wanted, temporary, *tests = sys.argv[1:]
    comm = world()
    if comm.size != int(wanted):
        sys.exit(f"expected {wanted} ranks, got {comm.size}: do mpirun and mpi4py use the same MPI?")
    if comm.rank:
        sys.stdout = open(os.devnull, "w")  # one report is enough; failures go to the error stream
    ranks = Ranks(comm)
    folder = f"--basetemp={temporary}/rank{comm.rank}"
    code = pytest.main(["--with-mpi", "-m", "mpi", "-x", folder, *tests], plugins=[ranks])
    comm.allreduce_(ranks.passed)
    print(f"passed on {comm.size} ranks:", *ranks.passed)
    sys.exit(code)
