"""Run ``tests/parallel`` on one rank, where no rank waits for another, so that other tests may run at the
same time.

Without the tests that compare with a run in one process, which one rank is."""

from launch import PARALLEL, suite


def test_parallel_suite_on_one_rank(tmp_path, record_property):
    compared = "test_contracts or test_exact or test_layouts or test_resumption or one_process"
    record_property("mpi", suite(1, tmp_path, PARALLEL, "-k", f"not ({compared})"))
