"""A rank is killed (SIGKILL) at a given moment: the job ends with a message, and resumed runs are bitwise
identical.

Each chain kills the same job repeatedly at different moments.
"""

import json
import re
import time

import h5py
import launch
import numpy as np
import pytest
from processes import alive, all_ranks, segments, wait_for_the_end
from small_job import ALLREDUCE, LIMIT, ROUNDS, STEP, command, end, final, job, logs, saved

from mpifed import load, run
from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm
from mpifed.storage.files import checkpoints

BCAST, SEAL, SEND = (
    "mpifed.parallel.comm:MpiComm.bcast_",
    "mpifed.storage.hdf5:add_digest",
    "mpifed.parallel.comm:MpiComm.send",
)
REPLACE = "os:replace"
#: Seconds between the death of a rank and the end of the job.
PATIENCE = 10
#: Number of ranks, fault (see driver.py), and round of the newest checkpoint afterwards.
OPEN_MPI = [
    (2, f"1 kill {STEP} 5", 3),  # while rank 0 waits in the Allreduce
    (3, f"2 kill {ALLREDUCE} 4", 6),  # while others are in the Allreduce
    (2, f"1 kill {BCAST} 17", 9),  # in the broadcast of the adaptive matrices
    (2, f"0 kill {REPLACE} 2", 9),  # the checkpoint of round 12 is synced and not yet renamed
    (2, f"0 kill {REPLACE} 3", 12),  # it is renamed, the results file is that of round 9
]
MPICH = [
    (2, f"1 kill {ALLREDUCE} 5", 3),
    (2, f"0 kill {SEAL} 1", 3),  # the data of round 6 are written, their seal is not
    (2, f"0 kill-after {REPLACE} 2", 6),  # the renaming is not synced
    (2, f"1 kill {SEND} 1", 6),  # client rows of round 9 are being sent to rank 0
]


def killed(folder, size, fault, mpi, settings=()) -> str:
    """Run the job with a fault and return its output."""
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
    assert wait_for_the_end(pids.values(), PATIENCE), "a rank is still alive"
    assert "Traceback" not in output, output
    return output


@pytest.mark.parametrize("mpi, chain", [("openmpi", OPEN_MPI), ("mpich", MPICH)])
def test_kills_at_named_moments(tmp_path, whole, mpi, chain):
    for size, fault, newest in chain:
        output = killed(tmp_path, size, fault, mpi)
        assert saved(tmp_path) == newest, (fault, output)
        if mpi == "mpich":
            # There is no other message: the remaining ranks are killed at once.
            assert "EXIT STRING: Killed (signal 9)" in output, output
        else:
            assert re.search(
                rf"process rank {fault[0]} with PID \d+ on node \S+ exited on\s+signal 9", output
            ), output
            if fault[0] != "0":  # rank 0 lives long enough to report the newest checkpoint
                words = rf"SIGTERM received in round \d+: .*; the newest checkpoint is of round {newest}\n"
                assert re.search(words, output), output
    np.testing.assert_array_equal(end(tmp_path), whole)
    assert not list((tmp_path / "run").glob("*.tmp.*")), "an incomplete file remains"


#: 64 KB of iterates per round.
LONG = ['record=["x", "y"]', "problem.d=4000"]
ADD, WRITE = "mpifed.storage.history:_with_checksums", "mpifed.storage.checkpoint:write"
HISTORY = [
    (f"0 kill {WRITE} 2", 3),  # the rows of rounds 4 to 6 are stored, but no checkpoint uses them
    (f"0 kill {ADD} 3", 9),  # the rows of rounds 10 to 12 are not yet written
    (f"0 kill {REPLACE} 2", 9),  # the history is rewritten, the checkpoint is not yet renamed
    (f"0 kill-after {WRITE} 2", 15),
]


def test_kills_while_a_long_history_is_written(tmp_path):
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
    assert not list((tmp_path / "run").glob("*.tmp.*")), "an incomplete file remains"


#: A cohort of two of the six clients, so that checkpoints contain only rows that have changed.
COHORT = """
rounds = 12
[algorithm]
name = "SCAFFOLD"
K = 2
eta_l = 0.05
[problem]
name = "Saddle"
clients = 6
d = 5
[participation]
cohort = 2
[run]
reduction = "exact"
checkpoint_every = 1
keep = 2
progress = false
watchdog = 20
"""
#: A checkpoint completes and renames three files: its part, itself, and the results file.
PARTS = [
    (f"0 kill {SEAL} 4", 1),  # the data of the part of round 2 are written, its seal is not
    (f"0 kill {REPLACE} 6", 2),  # the part of round 3 is renamed, the checkpoint that lists it is not
    (f"0 kill-after {REPLACE} 6", 4),  # the checkpoint of round 4 is renamed
    ("0 kill mpifed.storage.checkpoint:_remove_unlisted 3", 6),  # old checkpoints are removed, parts are not
    (f"1 kill {SEND} 3", 10),  # rows of round 11 are being sent to rank 0
]


def test_kills_while_changed_rows_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr("small_job.JOB", COHORT)
    (tmp_path / "whole").mkdir()
    run(Config.load(job(tmp_path / "whole")), SerialComm(), "never")
    for fault, newest in PARTS:
        output = killed(tmp_path, 2, fault, "openmpi")
        assert saved(tmp_path) == newest, (fault, output)
    np.testing.assert_array_equal(end(tmp_path, rounds=12), final(tmp_path / "whole", 12))
    listed = {part for path in checkpoints(tmp_path / "run") for part in parts_of(path)}
    assert listed == {path.name for path in (tmp_path / "run").glob("*-part-*.h5")} and len(listed) > 1
    assert not list((tmp_path / "run").glob("*.tmp.*")), "an incomplete file remains"


def parts_of(path) -> list[str]:
    with h5py.File(path) as file:
        return [name for name, *_ in json.loads(file["parts"][...].tobytes())["files"]]


def test_the_log_of_a_killed_rank_is_kept_and_extended_by_the_resumed_run(tmp_path):
    code, _ = launch.launch(2, [*command(tmp_path, f"1 kill {STEP} 8"), "-v"], LIMIT)
    assert code
    first, second = logs(tmp_path)
    for rank, said in enumerate((first, second)):
        assert said.startswith(f"mpifed log of rank {rank} of 2, process ")
        assert f"clients {3 * rank} to {3 * rank + 2} (3 of 6)" in said and " round 6: " in said
    assert " round 7: " not in second
    code, output = launch.launch(2, command(tmp_path), LIMIT)
    assert code == 0, output
    for before, after in zip((first, second), logs(tmp_path)):
        assert after.startswith(before) and after.count("mpifed log of rank") == 2
        assert "continuing " in after and "ended: all 20 rounds done" in after
    assert output.count("continuing") == 1, "other ranks are quiet"
