"""Runs the tests of ``tests/parallel`` under real MPI on several rank counts."""

from pathlib import Path

import pytest
from launch import launch

FOLDER = Path(__file__).parent / "parallel"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parallel_suite(ranks, tmp_path):
    """Everything but the contracts, which compare a layout with one process and get by with two of them."""
    skip = [] if ranks in (2, 3) else [f"--ignore={FOLDER / 'test_contracts.py'}"]
    code, output = launch(ranks, [FOLDER / "main.py", tmp_path, FOLDER, *skip], limit=300)
    assert code == 0, output
    assert " passed" in output, output


def test_exact_on_seven_ranks(tmp_path):
    code, output = launch(7, [FOLDER / "main.py", tmp_path, FOLDER / "test_exact.py"], limit=240)
    assert code == 0, output
    assert " passed" in output, output
