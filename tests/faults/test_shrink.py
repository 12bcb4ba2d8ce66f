"""``run.on_rank_failure = "shrink"``: ranks die, the others go on from the newest checkpoint and end in the
same bits.
"""

import contextlib
import os
import random
import signal
import time

import numpy as np
import pytest
from launch import finish, launch, start
from processes import all_ranks, wait_until
from small_job import ALLREDUCE, LIMIT, STEP, command, final, saved

ULFM = ("--with-ft", "ulfm")
SHRINK = ["run.on_rank_failure=shrink"]
COMM = "mpifed.running.recovery:SurvivingComm"


@pytest.mark.parametrize(
    "faults, ranks, ranks_left",
    [
        ([f"1 kill {STEP} 1"], 3, 2),  # before the first checkpoint: from the beginning
        ([f"2 kill {ALLREDUCE} 17", f"3 kill {ALLREDUCE} 20"], 4, 2),  # two, one after the other
        ([f"2 kill {COMM}.send 2"], 3, 2),  # client rows on their way into a checkpoint
        ([f"1 kill {COMM}.all_done 1"], 3, 2),  # when all is done
    ],
)
def test_ranks_die_at_named_moments(tmp_path, whole, faults, ranks, ranks_left):
    code, output = launch(ranks, command(tmp_path, *faults, settings=SHRINK), LIMIT, flags=ULFM)
    assert code == 0, output
    np.testing.assert_array_equal(final(tmp_path), whole)
    assert f"going on with {ranks_left} from the newest checkpoint" in output, output


@pytest.mark.parametrize("seed", range(int(os.environ.get("MPIFED_SHRINK_KILLS", 2))))
def test_a_rank_dies_at_a_random_moment(tmp_path, whole, seed):
    """A rank other than 0, some time after the ranks have met; MPIFED_SHRINK_KILLS sets how many seeds are
    tried.
    """
    rng = random.Random(seed)
    process = start(3, command(tmp_path, settings=SHRINK), flags=ULFM)
    pids = all_ranks(process, 3)
    wait_until(lambda: (tmp_path / "run" / "run.lock").exists(), LIMIT)
    time.sleep(rng.uniform(0, 1))
    with contextlib.suppress(ProcessLookupError):  # the job was faster
        os.kill(pids[rng.randrange(1, 3)], signal.SIGKILL)
    code, output = finish(process, LIMIT)
    assert code == 0, output
    np.testing.assert_array_equal(final(tmp_path), whole)


@pytest.mark.parametrize(
    "ranks, mpi, flags, says",
    [
        (2, "openmpi", (), "the job was not started by `mpirun --with-ft ulfm`"),
        (2, "mpich", (), "it needs Open MPI 5, this is MPICH"),
        (0, "openmpi", (), "there is one process only"),
    ],
)
def test_where_it_cannot_be_had(tmp_path, ranks, mpi, flags, says):
    code, output = launch(ranks, command(tmp_path, settings=SHRINK), LIMIT, mpi=mpi, flags=flags)
    assert code == 2, output
    assert output.count("mpifed: ") == 1 and says in output and "(options: abort, shrink)" in output, output
    assert saved(tmp_path) == 0
