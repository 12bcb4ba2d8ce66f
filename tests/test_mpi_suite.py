"""Run ``tests/parallel`` on several ranks under Open MPI and MPICH; test_one_rank.py runs it on one.

The end of the report has the number of passed tests per rank (conftest.py).
"""

import numpy as np
import pytest
import simulated_gpu
from launch import PARALLEL, saddle_point, suite


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_parallel_suite(ranks, tmp_path, record_property):
    """Pairs of a method and a problem are compared with one process in two layouts: in the loop on two ranks,
    vectorised on the number of ranks to which they are dealt."""
    record_property(
        "mpi", suite(ranks, tmp_path, PARALLEL, "-k", "" if ranks == 2 else "not (test_contracts and loop)")
    )


def test_library_dependent_tests_under_mpich(tmp_path, record_property):
    """On two ranks, since waiting ranks of MPICH use a core each."""
    files = [PARALLEL / f"test_{name}.py" for name in ("comm", "exact", "layouts")]
    record_property("mpi", suite(2, tmp_path, *files, "-k", "not network and not a_phase", mpi="mpich"))


def test_exact_on_seven_ranks(tmp_path, record_property):
    files = PARALLEL / "test_exact.py", PARALLEL / "test_client_store_on_ranks.py"
    record_property("mpi", suite(7, tmp_path, *files, "-k", "not network"))


@pytest.mark.parametrize("capability, ranks", [("avx2", 2), ("default", 3)])
def test_networks_with_other_instructions(capability, ranks, tmp_path, monkeypatch, record_property):
    """Torch reads the permitted instruction set at startup."""
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    record_property("mpi", suite(ranks, tmp_path, PARALLEL / "test_exact.py", "-k", "networks_of_odd"))


def test_two_ranks_on_two_simulated_gpus(tmp_path, monkeypatch, record_property):
    """The tests of tests/parallel for GPUs, without Triton; gloo replaces NCCL."""
    variables, reason = simulated_gpu.build(tmp_path)
    for name, value in ((variables or pytest.skip(reason)) | {"MPIFED_SIMULATED_GPUS": "2"}).items():
        monkeypatch.setenv(name, value)
    chosen = "(not_finite or gpu_agrees or bfloat16 or reproducible or large or nccl_or)"
    options = ["-p", "simulated_gpu", "-k", f"{chosen} and not reduce-overhead"]
    files = [PARALLEL / f"test_{name}.py" for name in ("devices", "not_finite")]
    record_property("mpi", suite(2, tmp_path, *files, *options))


def test_a_run_moves_from_open_mpi_to_mpich(tmp_path):
    """Three rounds under Open MPI and three under MPICH are bitwise identical to six in one process."""
    whole = saddle_point(tmp_path / "whole", 0, 6)
    saddle_point(tmp_path / "moved", 2, 3, "openmpi")
    np.testing.assert_array_equal(saddle_point(tmp_path / "moved", 3, 6, "mpich"), whole)
