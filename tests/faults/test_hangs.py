"""A rank that hangs: the watchdog ends the job and names the ranks that arrived and those that did not.

``run.watchdog = 5`` allows five seconds without progress, and fifty for an operation that runs for the
first time.
"""

import os
import signal
import time

import launch
import pytest
from processes import all_ranks, wait_for_the_end, wait_until
from small_job import LIMIT, STEP, command, final, logs, saved

SETTINGS = ["run.watchdog=5"]
#: Seconds between the end of the launcher and of the last rank.
PATIENCE = 60


@pytest.mark.parametrize(
    "size, fault, mpi, says",
    [
        (3, "1 sleep", "openmpi", ["Arrived: 0, 2. Not arrived: rank 1 is at ", "driver.py", "in <lambda>"]),
        (2, "0 gil", "mpich", ["Arrived: 1. Not arrived: rank 0 does not answer\n"]),
        (2, "0 stop", "openmpi", ["Arrived: 1. Not arrived: rank 0 does not answer\n"]),
        (0, "0 sleep", "openmpi", ["Arrived: none. Not arrived: rank 0 is at ", "in <lambda>"]),
    ],
)
def test_a_rank_hangs(tmp_path, size, fault, mpi, says):
    process = launch.start(size, command(tmp_path, f"{fault} {STEP} 5", settings=SETTINGS), mpi=mpi)
    pids = all_ranks(process, size)
    code, output = launch.finish(process, LIMIT)
    assert code == 75, output
    assert wait_for_the_end(pids.values(), PATIENCE), "a rank is still alive"
    assert (
        output.count("mpifed: no progress for ") == 1
        and "s in the round after round 3 (run.watchdog = 5). " in output
    ), output
    for text in says:
        assert text in output, (text, output)
    assert saved(tmp_path) == 3
    if fault == "1 sleep":
        first, second = logs(tmp_path)
        assert "critical: no progress for " in first and "Not arrived: rank 1 is at " in first
        assert "critical: no progress: this rank waits in " in first
        assert "critical: no progress: this rank is at " in second and "driver.py" in second


def test_ranks_that_were_stopped_together_continue(tmp_path, whole):
    """They were stopped for longer than the limit while one waited for the other."""
    faults, settings = f"1 pause:{tmp_path} {STEP} 5", SETTINGS
    process = launch.start(2, command(tmp_path, faults, settings=settings))
    wait_until(lambda: (tmp_path / "arrived-5").exists() or process.poll() is not None, LIMIT)
    pids = all_ranks(process, 2).values()
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, number)
        time.sleep(7.5 if number == signal.SIGSTOP else 1)
    (tmp_path / "go-5").touch()
    code, output = launch.finish(process, LIMIT)
    assert code == 0, output
    assert (final(tmp_path) == whole).all()
