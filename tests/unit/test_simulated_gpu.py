"""The tests of tests/gpu on a simulated GPU in another process; test_mpi_suite.py has those of two ranks."""

import pytest
import simulated_gpu
from launch import PARALLEL, launch


def test_on_one_rank(monkeypatch, tmp_path):
    variables, reason = simulated_gpu.build(tmp_path)
    for name, value in (variables or pytest.skip(reason)).items():
        monkeypatch.setenv(name, value)
    options = ["-p", "simulated_gpu", "-p", "no:cacheprovider", "-q", f"--basetemp={tmp_path}/gpu"]
    code, output = launch(0, ["-m", "pytest", *options, PARALLEL.with_name("gpu")], limit=300)
    assert code == 0, output
