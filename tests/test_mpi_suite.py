"""Run ``tests/parallel`` on several ranks under Open MPI and MPICH; test_one_rank.py runs it on one.

The end of the report has the number of passed tests per rank (conftest.py).
"""

from pathlib import Path

import h5py
import numpy as np
import pytest
from launch import PARALLEL, launch, suite

SADDLE = Path(__file__).parents[1] / "jobs" / "saddle.toml"


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_parallel_suite(ranks, tmp_path, record_property):
    """The contracts compare a layout with one process. Two layouts suffice, one of them vectorised."""
    contracts = {2: "not (test_contracts and pairs)", 3: "not (test_contracts and loop)"}
    record_property("mpi", suite(ranks, tmp_path, PARALLEL, "-k", contracts.get(ranks, "not test_contracts")))


def test_library_dependent_tests_under_mpich(tmp_path, record_property):
    """On two ranks, since waiting ranks of MPICH use a core each."""
    files = [PARALLEL / f"test_{name}.py" for name in ("comm", "exact", "layouts")]
    record_property("mpi", suite(2, tmp_path, *files, mpi="mpich"))


def test_exact_on_seven_ranks(tmp_path, record_property):
    record_property("mpi", suite(7, tmp_path, PARALLEL / "test_exact.py"))


@pytest.mark.parametrize("capability, ranks", [("avx2", 2), ("default", 3)])
def test_networks_with_other_instructions(capability, ranks, tmp_path, monkeypatch, record_property):
    """Torch reads the permitted instruction set at startup."""
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    record_property("mpi", suite(ranks, tmp_path, PARALLEL / "test_exact.py", "-k", "networks_of_odd"))


def test_a_run_moves_from_open_mpi_to_mpich(tmp_path):
    """Three rounds under Open MPI and three under MPICH are bitwise identical to six in one process."""

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
