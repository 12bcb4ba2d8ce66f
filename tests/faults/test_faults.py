"""A rank that dies, raises, leaves or hangs ends the job at once, and the job resumes to the same bits.

The limits are for real processes on a busy two-core machine; a hang would take for ever, so anything well below is proof.
"""

from pathlib import Path

import h5py
import numpy as np
import pytest
from launch import launch

FAULTY = Path(__file__).with_name("faulty.py")
LIMIT = 40


def job(folder: Path, **algorithm) -> Path:
    """A job file: 4 clients, exact, a checkpoint every second round, saddle problem."""
    settings = "\n".join(f"{key} = {value!r}" for key, value in algorithm.items())
    path = folder / "job.toml"
    path.write_text(
        f"""
        rounds = 8
        [algorithm]
        name = "{FAULTY}:Faulty"
        {settings}
        [problem]
        name = "Saddle"
        clients = 4
        d = 5
        [oracle]
        batch_size = 0
        noise = {{ name = "gaussian", scale = 0.1 }}
        [run]
        dtype = "float64"
        reduction = "exact"
        checkpoint_every = 2
        progress = false
        watchdog = 4
        out = "{folder / "run"}"
        """
    )
    return path


def final(folder: Path) -> np.ndarray:
    with h5py.File(folder / "run" / "run.h5") as file:
        return np.concatenate([file["final/x"][...], file["final/y"][...]])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    code, output = launch(2, ["-m", "mpifed", "run", job(folder)], LIMIT)
    assert code == 0, output
    return final(folder)


@pytest.mark.parametrize("fault, says", [
    ("kill", "signal 9"),
    ("raise", "the dog ate my gradient"),
    ("exit3", "sys.exit(3)"),
    ("exit0", "sys.exit(0)"),
    ("hang", "in fail"),  # the stacks that the watchdog prints
])
def test_one_rank_fails(tmp_path, uninterrupted, fault, says):
    code, output = launch(4, ["-m", "mpifed", "run", job(tmp_path, fault=fault)], LIMIT)
    assert code != 0, output
    assert says in output, output
    if fault not in ("kill", "hang"):
        assert "rank 2 of 4 failed" in output, output
    code, output = launch(3, ["-m", "mpifed", "resume", tmp_path / "run", "algorithm.fault=none"], LIMIT)
    assert code == 0, output
    np.testing.assert_array_equal(final(tmp_path), uninterrupted)


@pytest.mark.parametrize("fault, says", [
    ("nan", "round 5: client 2, field 'y' of `message`"),
    ("server", "round 5: field 'y' of `shared`"),
])
def test_non_finite_values_stop_all_ranks(tmp_path, fault, says):
    code, output = launch(3, ["-m", "mpifed", "run", job(tmp_path, fault=fault)], LIMIT)
    assert code == 3, output
    assert output.count(says) == 1 and "Traceback" not in output, output


def test_damaged_checkpoint_falls_back(tmp_path, uninterrupted):
    code, output = launch(2, ["-m", "mpifed", "run", job(tmp_path), "rounds=6"], LIMIT)
    assert code == 0, output
    newest = tmp_path / "run" / "checkpoint-00000006.h5"
    newest.write_bytes(newest.read_bytes()[:-100])
    code, output = launch(3, ["-m", "mpifed", "resume", tmp_path / "run", "rounds=8"], LIMIT)
    assert code == 0, output
    assert "checkpoint-00000006.h5 is damaged" in output, output
    np.testing.assert_array_equal(final(tmp_path), uninterrupted)


def test_launcher_that_does_not_fit():
    """A launcher that announces four ranks to a library that sees one: refused, not four runs of one rank."""
    import os
    import subprocess
    import sys

    announced = {**os.environ, "PMI_SIZE": "4", "PMI_RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "mpifed", "run", "no.toml"], env=announced, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 71, done.stderr
    assert "the launcher started 4 processes" in done.stderr
