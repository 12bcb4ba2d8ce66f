"""A run that has ended holds no memory: in a sweep or a search hundreds follow each other in one process."""

import gc

import pytest

from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm
from mpifed.running.run import run
from mpifed.simulation.simulation import NonFiniteError, Simulation


def alive() -> int:
    return sum(type(one) is Simulation for one in gc.get_objects())


@pytest.mark.parametrize("step", [0.01, 1e30])
def test_a_run_goes_with_its_data_when_it_ends(tmp_path, step):
    """Without the collector, which comes by the number of objects, not by their size."""
    table = {
        "rounds": 3,
        "problem": {"name": "Saddle", "s": 10, "clients": 2},
        "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": step, "eta_y": step},
        "run": {"out": str(tmp_path / "run"), "progress": False},
    }
    gc.collect()
    before = alive()
    gc.disable()
    try:
        try:
            run(Config.from_table(table), SerialComm())
        except NonFiniteError:
            assert step > 1
        assert alive() == before
    finally:
        gc.enable()
