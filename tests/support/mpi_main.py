"""pytest inside an MPI job: ``mpirun -n N python mpi_main.py TEMPORARY_FOLDER TESTS...``.

A test that fails on one rank leaves the others in a collective, so a failure is printed and ends the job.
"""

import os
import sys

import pytest

from mpifed.parallel.world import world


class AbortOnFailure:
    """Prints the report of a failed test and ends all ranks."""

    def __init__(self, comm):
        self.comm = comm

    def pytest_runtest_logreport(self, report):
        if report.failed:
            print(
                f"rank {self.comm.rank} of {self.comm.size}: {report.nodeid} failed\n{report.longreprtext}",
                file=sys.__stderr__,
                flush=True,
            )
            self.comm.abort(1)


if __name__ == "__main__":
    temporary, *tests = sys.argv[1:]
    comm = world()
    if comm.rank:
        sys.stdout = open(os.devnull, "w")  # one report is enough; failures go to the error stream
    code = pytest.main(
        [
            "--with-mpi",
            "-m",
            "mpi",
            "-x",
            "-p",
            "no:cacheprovider",
            f"--basetemp={temporary}/rank{comm.rank}",
            *tests,
        ],
        plugins=[AbortOnFailure(comm)],
    )
    sys.exit(code)
