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
    """The contracts compare a layout with one process; two layouts will do, one for each executor."""
    contracts = {2: ["-k", "not (test_contracts and batched)"], 3: ["-k", "not (test_contracts and loop)"]}
    chosen = contracts.get(ranks, ["-k", "not test_contracts"])
    code, output = launch(ranks, [FOLDER / "main.py", tmp_path, FOLDER, *chosen], limit=600, mpi=mpi)
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
        code, output = launch(ranks, ["-m", "mpifed", "run", SADDLE, "--no-report", *settings], mpi=mpi)
        assert code == 0, output
        with h5py.File(tmp_path / name / "run.h5") as file:
            used = file.attrs["versions"]
            assert {"openmpi": "Open MPI", "mpich": "MPICH"}[mpi] in used or not ranks, used
            return np.concatenate([file["final/x"][...], file["final/y"][...]])

    whole = point("whole", 6, 0)
    point("moved", 3, 2, "openmpi")
    np.testing.assert_array_equal(point("moved", 6, 3, "mpich"), whole)
