"""A rank that raises, exits or computes non-finite values ends the job with one readable message; the job
can be resumed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from launch import launch
from small_job import LIMIT, STEP, command, end, final, job, logs, saved

FAULTY = Path(__file__).parents[1] / "support" / "faulty.py"
#: Exit codes of MPI_Abort(1); MPICH's launcher may return that of a rank that it has killed.
ENDS = {"openmpi": [1], "mpich": [1, 9]}


@pytest.mark.parametrize(
    "fault, says, logged, mpi",
    [
        ("raise", "RuntimeError: the dog ate my gradient", "the dog ate my gradient", "openmpi"),
        ("exit:0", "user code called sys.exit(0) during a run", "SystemExit: 0", "mpich"),
    ],
)
def test_one_rank_fails(tmp_path, whole, fault, says, logged, mpi):
    code, output = launch(3, command(tmp_path, f"1 {fault} {STEP} 5"), LIMIT, mpi=mpi)
    assert code in ENDS[mpi], output
    assert output.count("rank 1 of 3 failed:") == 1 and says in output and "rank 0 of" not in output, output
    assert saved(tmp_path) == 3
    first, second = logs(tmp_path)
    assert "critical: the run has ended on this rank with an error:\nTraceback " in second
    assert logged in second and logged not in first
    np.testing.assert_array_equal(end(tmp_path), whole)


@pytest.mark.parametrize(
    "where", ["mpifed.core.records:Layout.state 2", f"{STEP} 5"], ids=["set-up", "round"]
)
def test_one_rank_has_no_memory(tmp_path, where):
    """That rank reports its failed allocation in one sentence, and no rank is left waiting."""
    code, output = launch(2, command(tmp_path, f"1 allocate {where}"), LIMIT)
    assert code == 2 and "Traceback" not in output, output
    sentence = "mpifed: rank 1 has not enough memory for 1,125,899,906,842,624 bytes: use"
    assert output.count(sentence) == 1, output


@pytest.mark.parametrize(
    "fault, says",
    [
        ("nan", "round 5: client 3, field 'y' of `message`"),
        ("server", "round 5: field 'y' of `shared`"),
    ],
)
def test_non_finite_values_stop_all_ranks(tmp_path, fault, says):
    method = f"algorithm={{name='{FAULTY}:Faulty', fault='{fault}'}}"
    code, output = launch(2, ["-m", "mpifed", "run", job(tmp_path), method], LIMIT)
    assert code == 3, output
    assert output.count(says) == 1 and "Traceback" not in output, output


def test_damaged_checkpoints_on_several_ranks(tmp_path, whole):
    """The newest checkpoint is truncated and the one before has a flipped bit; a run whose checkpoints are
    all damaged does not start over."""
    end(tmp_path, "never", rounds=9)
    paths = sorted((tmp_path / "run").glob("checkpoint-*.h5"))
    content = bytearray(paths[1].read_bytes())
    content[5000] ^= 4
    paths[1].write_bytes(content)
    paths[2].write_bytes(paths[2].read_bytes()[:-100])
    code, output = launch(3, command(tmp_path), LIMIT)
    assert code == 0 and "from round 3" in output, output
    assert re.findall(r"warning: checkpoint-0*(\d+).h5 cannot be used", output) == ["9", "6"], output
    np.testing.assert_array_equal(final(tmp_path), whole)
    for path in (tmp_path / "run").glob("checkpoint-*.h5"):
        path.write_bytes(b"")
    (tmp_path / "run" / "run.h5").unlink()  # it records that the run is complete
    code, output = launch(2, command(tmp_path), LIMIT)
    assert (
        code == 2 and "none of the checkpoints in" in output and "run.overwrite=true starts over" in output
    ), output
    assert output.count("mpifed: ") == 1 and "Traceback" not in output, output


def test_incompatible_launcher():
    """If the launcher announces four ranks and the MPI library finds one, the run is refused instead of run
    four times."""
    announced = {**os.environ, "PMI_SIZE": "4", "PMI_RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "mpifed", "run", "no.toml"],
        env=announced,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 71, done.stderr
    assert "the launcher started 4 processes" in done.stderr
