"""Run ``tests/parallel`` on one rank, where no rank waits for another, so that other tests may run at the
same time."""

from launch import PARALLEL, suite


def test_parallel_suite_on_one_rank(tmp_path, record_property):
    record_property("mpi", suite(1, tmp_path, PARALLEL, "-k", "not test_contracts"))
