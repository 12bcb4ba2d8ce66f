"""Runs the tests of ``tests/parallel`` under real MPI, Open MPI and MPICH, on several rank counts."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from launch import launch

FOLDER = Path(__file__).parent / "parallel"
SADDLE = FOLDER.parents[1] / "jobs" / "saddle.toml"


@pytest.mark.parametrize("ranks, mpi", [(1, "openmpi"), (2, "mpich"), (3, "openmpi"), (4, "mpich")])
def test_parallel_suite(ranks, mpi, tmp_path):
    """Everything but the contracts, which compare a layout with one process and get by with two of them."""
    skip = [] if ranks in (2, 3) else [f"--ignore={FOLDER / 'test_contracts.py'}"]
    code, output = launch(ranks, [FOLDER / "main.py", tmp_path, FOLDER, *skip], limit=600, mpi=mpi)
    assert code == 0, output
    assert " passed" in output, output


def test_exact_on_seven_ranks(tmp_path):
    code, output = launch(7, [FOLDER / "main.py", tmp_path, FOLDER / "test_exact.py"], limit=500)
    assert code == 0, output
    assert " passed" in output, output


def test_a_run_moves_between_the_libraries(tmp_path):
    """Three rounds under Open MPI and three under MPICH end in the bits of one process."""

    def point(name, rounds, ranks, mpi="openmpi"):
        settings = [f"rounds={rounds}", f"run.out={tmp_path / name}", "run.reduction=exact", "run.progress=false"]
        code, output = launch(ranks, ["-m", "mpifed", "run", SADDLE, *settings], mpi=mpi)
        assert code == 0, output
        with h5py.File(tmp_path / name / "run.h5") as file:
            used = file.attrs["versions"]
            assert {"openmpi": "Open MPI", "mpich": "MPICH"}[mpi] in used or not ranks, used
            return np.concatenate([file["final/x"][...], file["final/y"][...]])

    whole = point("whole", 6, 0)
    point("moved", 3, 2, "openmpi")
    np.testing.assert_array_equal(point("moved", 6, 3, "mpich"), whole)
