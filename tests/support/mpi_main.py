"""pytest inside an MPI job: ``mpirun -n RANKS python mpi_main.py RANKS FOLDER TESTS...``.

All ranks agree on the outcome of each test before the next one begins, so a failed test does not end the
job. If the other ranks do not arrive within ``PATIENCE`` seconds, because the failed rank has left them in
a collective, the job is aborted. ``FOLDER/done.txt`` lists the completed tests with their outcomes and
``FOLDER/current.txt`` the running one, so that another job can run the rest (``launch.suite``). The last
line has the number of passed tests per rank: ``passed on 2 ranks: 35 35``.
"""

import os
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

#: Seconds for which a rank with a failed test waits for the others.
PATIENCE = 60


class Ranks:
    """Count the passed tests per rank, and synchronise the ranks after each test.

    Args:
        done: the file that lists the completed tests.
        skipped: tests that an earlier job has run.
    """

    def __init__(self, done: Path, skipped: set[str]):
        self.comm, self.done, self.skipped = MPI.COMM_WORLD.Dup(), done, skipped
        self.passed = np.zeros(self.comm.size, dtype=np.int64)
        self.failed = False

    def pytest_collection_modifyitems(self, config, items):
        """Of tests marked ``dealt``, keep one of each three consecutive cases, depending on the number of
        ranks."""
        kept, counts = [], Counter()
        for item in items:
            number = counts[item.parent.nodeid, item.originalname]
            counts[item.parent.nodeid, item.originalname] += 1
            turn = number + number // 9  # varies the choice for parameters with three values
            other = self.comm.size in (2, 3, 4) and turn % 3 != self.comm.size % 3
            if not (other and item.get_closest_marker("dealt")) and item.nodeid not in self.skipped:
                kept.append(item)
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept

    def pytest_runtest_logstart(self, nodeid):
        if self.comm.rank == 0:
            self.done.with_name("current.txt").write_text(nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed = True
            print(
                f"rank {self.comm.rank} of {self.comm.size}: {report.nodeid} failed\n{report.longreprtext}",
                file=sys.__stderr__,
                flush=True,
            )
        self.passed[self.comm.rank] += report.when == "call" and report.passed
        if report.when == "teardown":
            self._agree(report.nodeid)

    def _agree(self, test: str):
        """Wait for all ranks and record the test's outcome."""
        failed = np.array([self.failed], dtype=np.int64)
        request, since = self.comm.Iallreduce(MPI.IN_PLACE, failed, MPI.MAX), time.monotonic()
        while not request.Test():
            if self.failed and time.monotonic() - since > PATIENCE:
                self._note(test, True)
                self.comm.Abort(1)
            time.sleep(1e-4)
        if self.comm.rank == 0:
            self._note(test, bool(failed[0]))
        self.failed = False

    def _note(self, test: str, failed: bool):
        with self.done.open("a") as file:
            file.write(f"{'failed' if failed else 'passed'} {test}\n")


def main() -> int:
    wanted, temporary, *tests = sys.argv[1:]
    if MPI.COMM_WORLD.size != int(wanted):
        sys.exit(
            f"expected {wanted} ranks, got {MPI.COMM_WORLD.size}: do mpirun and mpi4py use the same MPI?"
        )
    if MPI.COMM_WORLD.rank:
        sys.stdout = open(os.devnull, "w")  # one report is enough; failures are printed to the error stream
    done = Path(temporary) / "done.txt"
    before = done.read_text().splitlines() if done.exists() else []
    ranks = Ranks(done, {line.partition(" ")[2] for line in before})
    folder = f"--basetemp={temporary}/rank{ranks.comm.rank}"
    plugin = ["--with-mpi"] if find_spec("pytest_mpi") else []  # which skips tests of MPI by default
    code = pytest.main([*plugin, "-m", "mpi", folder, *tests], plugins=[ranks])
    ranks.comm.Allreduce(MPI.IN_PLACE, ranks.passed)
    print(f"passed on {ranks.comm.size} ranks:", *ranks.passed)
    # A rank may have passed all tests while another failed some, and a later job may have no tests left.
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED and before else int(code)


if __name__ == "__main__":
    sys.exit(main())
