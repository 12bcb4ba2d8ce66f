"""Runs the tests of ``tests/parallel`` under real MPI, Open MPI and MPICH, on several rank counts."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from launch import launch

FOLDER = Path(__file__).parent / "parallel"
SADDLE = FOLDER.parents[1] / "jobs" / "saddle.toml"


def suite(ranks: int, folder: Path, *arguments: object, mpi: str = "openmpi") -> None:
    code, output = launch(ranks, [FOLDER / "main.py", folder, *arguments], limit=600, mpi=mpi)
    assert code == 0, output
    assert " passed" in output, output


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parallel_suite(ranks, tmp_path):
    """The contracts compare a layout with one process; two layouts will do, one for each executor."""
    contracts = {2: "not (test_contracts and batched)", 3: "not (test_contracts and loop)"}
    suite(ranks, tmp_path, FOLDER, "-k", contracts.get(ranks, "not test_contracts"))


def test_what_depends_on_the_library_under_mpich(tmp_path):
    """Its waiting ranks spin, which two cores feel."""
    suite(2, tmp_path, *(FOLDER / f"test_{name}.py" for name in ("comm", "exact", "layouts")), mpi="mpich")


def test_exact_on_seven_ranks(tmp_path):
    suite(7, tmp_path, FOLDER / "test_exact.py")


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
