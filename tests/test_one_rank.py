"""What runs under mpirun without ranks that go in step for long, so that other tests may run beside it."""

from pathlib import Path

import h5py
import numpy as np
from launch import PARALLEL, launch, suite

SADDLE = Path(__file__).parents[1] / "jobs" / "saddle.toml"


def test_parallel_suite_on_one_rank(tmp_path, record_property):
    record_property("mpi", suite(1, tmp_path, PARALLEL, "-k", "not test_contracts"))


def test_a_run_moves_between_the_libraries(tmp_path):
    """Three rounds under Open MPI and three under MPICH end in the bits of one process."""

    def point(name, rounds, ranks, mpi="openmpi"):
        settings = [
            f"rounds={rounds}",
            f"run.out={tmp_path / name}",
            "run.reduction=exact",
            "run.progress=false",
        ]
        code, output = launch(ranks, ["-m", "mpifed", "run", SADDLE, "--no-report", *settings], mpi=mpi)
        assert code == 0, output
        with h5py.File(tmp_path / name / "run.h5") as file:
            used = file.attrs["versions"]
            assert {"openmpi": "Open MPI", "mpich": "MPICH"}[mpi] in used or not ranks, used
            return np.concatenate([file["final/x/x"][...], file["final/y/y"][...]])

    whole = point("whole", 6, 0)
    point("moved", 3, 2, "openmpi")
    np.testing.assert_array_equal(point("moved", 6, 3, "mpich"), whole)
