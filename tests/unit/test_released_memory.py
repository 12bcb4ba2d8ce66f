"""A run releases its memory when it ends, since sweeps and searches execute hundreds in one process."""

import gc

import pytest

from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm
from mpifed.running.run import run
from mpifed.simulation.simulation import NonFiniteError, Simulation


def simulations() -> int:
    return sum(type(one) is Simulation for one in gc.get_objects())


@pytest.mark.parametrize("step", [0.01, 1e30])
def test_simulation_is_freed_without_garbage_collection(tmp_path, step):
    """The collector runs by the number of objects, not by their size."""
    table = {
        "rounds": 3,
        "problem": {"name": "Saddle", "s": 10, "clients": 2},
        "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": step, "eta_y": step},
        "run": {"out": str(tmp_path / "run"), "progress": False},
    }
    gc.collect()
    before = simulations()
    gc.disable()
    try:
        try:
            run(Config.from_table(table), SerialComm())
        except NonFiniteError:
            assert step > 1
        assert simulations() == before
    finally:
        gc.enable()
