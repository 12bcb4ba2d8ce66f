"""A short job under mpirun, end to end."""

from pathlib import Path

import h5py
import numpy as np
from launch import launch

SADDLE = Path(__file__).parents[1] / "jobs" / "saddle.toml"


def test_two_ranks_are_bitwise_identical_to_one_process(tmp_path):
    points = []
    for ranks in (0, 2):
        settings = [
            "rounds=3",
            f"run.out={tmp_path / str(ranks)}",
            "run.reduction=exact",
            "run.progress=false",
        ]
        code, output = launch(ranks, ["-m", "mpifed", "run", SADDLE, "--no-report", *settings], limit=240)
        assert code == 0, output
        with h5py.File(tmp_path / str(ranks) / "run.h5") as file:
            points.append([file["final/x/x"][...], file["final/y/y"][...]])
    np.testing.assert_array_equal(*points)
