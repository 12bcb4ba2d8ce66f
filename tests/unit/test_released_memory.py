"""A run releases its memory when it ends, since sweeps and searches execute hundreds in one process."""

import gc

import pytest
from saddle_job import config

from mpifed.parallel.comm import SerialComm
from mpifed.running.run import run
from mpifed.simulation.simulation import NonFiniteError, Simulation


def simulations() -> int:
    return sum(type(value) is Simulation for value in gc.get_objects())


@pytest.mark.parametrize("step", [0.01, 1e30])
def test_simulation_is_freed_without_garbage_collection(tmp_path, step):
    """The collector runs by the number of objects, not by their size."""
    job = config(tmp_path, algorithm={"name": "LocalSGDA", "q": 2, "eta_x": step, "eta_y": step})
    gc.collect()
    before = simulations()
    gc.disable()
    try:
        try:
            run(job, SerialComm())
        except NonFiniteError:
            assert step > 1
        assert simulations() == before
    finally:
        gc.enable()
