"""A rank that hangs: the watchdog ends the job and names the ranks that arrived and those that did not.

``run.watchdog = 2``: two seconds without progress, twenty for what has not been done before.
"""

import launch
import pytest
from processes import all_ranks, wait_for_the_end
from small_job import LIMIT, STEP, command, end, saved

SETTINGS = ["run.watchdog=2"]
#: Seconds from the end of the launcher to that of the last rank.
PATIENCE = 10


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
    assert wait_for_the_end(pids.values(), PATIENCE), "a rank has outlived the job"
    assert (
        output.count("mpifed: no progress for ") == 1
        and "s in the round after round 3 (run.watchdog = 2). " in output
    ), output
    for text in says:
        assert text in output, (text, output)
    assert saved(tmp_path) == 3


def test_all_ranks_hang_where_no_python_can_run(tmp_path, whole):
    """Only faulthandler's timer is left: it shows the stacks and ends the process; then the job resumes."""
    code, output = launch.finish(
        launch.start(2, command(tmp_path, f"0 gil {STEP} 5", f"1 gil {STEP} 5", settings=SETTINGS)), LIMIT
    )
    assert code not in (0, 75) and "Timeout (" in output and "in hang_in_c" in output, output
    assert (end(tmp_path) == whole).all()
