"""A rank is killed (SIGKILL) at a named moment: the job ends, somebody says so, and the same command goes on
to the same bits.

Each chain kills the same job again and again, at another moment each time.
"""

import re
import time

import launch
import numpy as np
import pytest
from processes import alive, all_ranks, segments, wait_for_the_end
from small_job import ALLREDUCE, LIMIT, ROUNDS, STEP, command, end, job, saved

from mpifed import load, run
from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm

BCAST, SEAL, SEND = (
    "mpifed.parallel.comm:MpiComm.bcast_",
    "mpifed.storage.checkpoint:seal",
    "mpifed.parallel.comm:MpiComm.send",
)
REPLACE = "os:replace"
#: Seconds from the death of a rank to the end of the job.
PATIENCE = 10
#: Number of ranks, the fault (on which rank, see driver.py), and the round of the newest checkpoint
#: afterwards.
OPEN_MPI = [
    (2, f"1 kill {STEP} 5", 3),  # while rank 0 waits in the Allreduce
    (3, f"2 kill {ALLREDUCE} 4", 6),  # while others are in the Allreduce
    (2, f"1 kill {BCAST} 14", 9),  # of the adaptive matrices
    (2, f"0 kill {REPLACE} 2", 9),  # the checkpoint of round 12 is synced and has no name
    (2, f"0 kill {REPLACE} 3", 12),  # it has its name, the results file is of round 9
]
MPICH = [
    (2, f"1 kill {ALLREDUCE} 5", 3),
    (
        2,
        f"0 kill {SEAL} 1",
        3,
    ),  # the data of round 6 are written, their seal is not
    (2, f"0 kill-after {REPLACE} 2", 6),  # the name is not synced
    (2, f"1 kill {SEND} 1", 6),  # client rows of round 9 are on their way to rank 0
]


def killed(folder, size, fault, mpi, settings=()) -> str:
    """Run the job into a fault; what was said."""
    process = launch.start(size, command(folder, fault, settings=settings), mpi=mpi)
    rank = int(fault.split()[0])
    pids = all_ranks(process, size)
    left: set = set()
    while alive(pids[rank]):
        left |= segments(pids.values())
        time.sleep(0.1)
    died = time.monotonic()
    code, output = launch.finish(process, LIMIT)
    for path in left:
        path.unlink(missing_ok=True)
    assert time.monotonic() - died < PATIENCE, output
    assert code != 0, output
    assert wait_for_the_end(pids.values(), PATIENCE), "a rank has outlived the job"
    assert "Traceback" not in output, output
    return output


@pytest.mark.parametrize("mpi, chain", [("openmpi", OPEN_MPI), ("mpich", MPICH)])
def test_kills_at_named_moments(tmp_path, whole, mpi, chain):
    for size, fault, newest in chain:
        output = killed(tmp_path, size, fault, mpi)
        assert saved(tmp_path) == newest, (fault, output)
        if mpi == "mpich":
            assert "EXIT STRING: Killed (signal 9)" in output, (
                output
            )  # it is all that is said: the others die at once, too
        else:
            assert re.search(
                rf"process rank {fault[0]} with PID \d+ on node \S+ exited on\s+signal 9", output
            ), output
            if fault[0] != "0":  # rank 0 lives long enough to say where the run stands
                assert re.search(
                    rf"mpifed: SIGTERM received in round \d+: .*; the newest is of round {newest}\n", output
                ), output
    np.testing.assert_array_equal(end(tmp_path), whole)
    assert not list((tmp_path / "run").glob("*.tmp.*")), "half a file is left"


#: 64 KB of iterates a round.
LONG = ['record=["x", "y"]', "problem.d=4000"]
ADD, WRITE = "mpifed.storage.history:_checked", "mpifed.storage.checkpoint:write"
HISTORY = [
    (f"0 kill {WRITE} 2", 3),  # the rows of rounds 4 to 6 lie there, and no checkpoint needs them
    (f"0 kill {ADD} 3", 9),  # those of rounds 10 to 12 are to come
    (f"0 kill {REPLACE} 2", 9),  # the file is written anew, the checkpoint has no name yet
    (f"0 kill-after {WRITE} 2", 15),
]


def test_kills_about_a_long_history(tmp_path):
    (tmp_path / "whole").mkdir()
    run(Config.load(job(tmp_path / "whole"), LONG), SerialComm(), "never")
    for fault, newest in HISTORY:
        output = killed(tmp_path, 2, fault, "openmpi", LONG)
        assert saved(tmp_path) == newest, (fault, output)
    run(Config.load(job(tmp_path), LONG), SerialComm(), "must")
    one, other = load(tmp_path / "run"), load(tmp_path / "whole" / "run")
    for block in "xy":
        np.testing.assert_array_equal(one.iterates[block], other.iterates[block])
        assert one.point[block].equal(other.point[block]) and len(one.iterates[block]) == ROUNDS
    assert one.history == other.history
    assert not list((tmp_path / "run").glob("*.tmp.*")), "half a file is left"
