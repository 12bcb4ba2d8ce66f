"""pytest inside an MPI job: ``mpirun -n RANKS python mpi_main.py RANKS TEMPORARY_FOLDER TESTS...``.

A test that fails on one rank leaves the others in a collective, so a failure is printed and ends the job. The
last line says how many tests passed on each rank: ``passed on 2 ranks: 35 35``.
"""

import os
import sys
from collections import Counter

import numpy as np
import pytest

from mpifed.parallel.world import world


class Ranks:
    """Counts the tests that pass on each rank; prints the report of a failed one and ends all ranks."""

    def __init__(self, comm):
        self.comm = comm
        self.passed = np.zeros(comm.size, dtype=np.int64)

    def pytest_collection_modifyitems(self, config, items):
        """Keep this number of ranks' cases of the tests that are ``dealt``: of each three neighbours one."""
        if self.comm.size not in (2, 3, 4):
            return
        kept, counts = [], Counter()
        for item in items:
            number = counts[item.parent.nodeid, item.originalname]
            counts[item.parent.nodeid, item.originalname] += 1
            turn = number + number // 3 + number // 9  # or a parameter of three values is always the same
            if item.get_closest_marker("dealt") is None or turn % 3 == self.comm.size % 3:
                kept.append(item)
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept

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
