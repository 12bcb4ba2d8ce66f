"""A short job under mpirun, end to end."""

import numpy as np
from launch import saddle_point


def test_two_ranks_are_bitwise_identical_to_one_process(tmp_path):
    alone, together = (saddle_point(tmp_path / str(ranks), ranks, 3) for ranks in (0, 2))
    np.testing.assert_array_equal(together, alone)
