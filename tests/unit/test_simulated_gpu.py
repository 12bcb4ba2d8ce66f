"""The tests of tests/gpu on a simulated GPU in another process, and those of two ranks on two GPUs."""

import pytest
import simulated_gpu
from launch import PARALLEL, launch, suite


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    variables, reason = simulated_gpu.build(tmp_path_factory.mktemp("gpu"))
    return variables or pytest.skip(reason)


def test_on_one_rank(environment, monkeypatch, tmp_path):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = ["-p", "simulated_gpu", "-p", "no:cacheprovider", "-q", f"--basetemp={tmp_path}/gpu"]
    code, output = launch(0, ["-m", "pytest", *options, PARALLEL.with_name("gpu")], limit=300)
    assert code == 0, output


def test_two_ranks_on_two_gpus(environment, monkeypatch, tmp_path, record_property):
    """The tests of tests/parallel for GPUs, without Triton; gloo replaces NCCL."""
    for name, value in (environment | {"MPIFED_SIMULATED_GPUS": "2"}).items():
        monkeypatch.setenv(name, value)
    chosen = "(gpu_agrees or bfloat16 or reproducible or large or nccl_or) and not reduce-overhead"
    line = suite(2, tmp_path, PARALLEL / "test_devices.py", "-p", "simulated_gpu", "-k", chosen)
    record_property("mpi", line)
