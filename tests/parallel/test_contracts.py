"""Properties of every method on every compatible problem, over a few rounds."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from everything import METHODS, PAIRS, method, problem
from games import configuration, started
from resumed import bits

from mpifed import resume, run
from mpifed.algorithms import ALGORITHMS
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.simulation import Observer, Simulation

pytestmark = pytest.mark.mpi


def job(method_, problem_, out, **settings):
    settings |= dict(noise=0.05, reduction="exact", sections={"record": ()})
    return configuration(method_, problem_, out, **settings)


@pytest.mark.parametrize(
    "group", [pytest.param(1, id="loop"), pytest.param(2, id="pairs", marks=pytest.mark.dealt)]
)
@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_layout_and_resumption(comm, out, names, group):
    """The result is finite, and bitwise identical to one process, and to a run resumed after the first
    round.

    The ranks divide the pairs without waiting for each other.
    """
    method_, problem_ = method(names[0]), problem(names[1])
    point = bits(run(job(method_, problem_, out, group=group, checkpoint_every=1, keep=9), comm))
    assert np.isfinite(point).all()
    if PAIRS.index(names) % comm.size != comm.rank:
        return
    alone = run(job(method_, problem_, f"{out}/alone", group=group), SerialComm())
    np.testing.assert_array_equal(point, bits(alone))
    Path(out, "part").mkdir()
    shutil.copy(f"{out}/checkpoint-00000001.h5", f"{out}/part")
    np.testing.assert_array_equal(bits(resume(f"{out}/part", comm=SerialComm())), bits(alone))


@pytest.mark.dealt
@pytest.mark.parametrize("name", [name for name, (_, still) in METHODS.items() if not any(still.values())])
def test_zero_steps_keep_the_point(comm, out, name):
    """An average of N equal numbers may differ from them in the last bit."""
    for _, other in [pair for pair in PAIRS if pair[0] == name]:
        simulation = started(job(method(name, **METHODS[name][1]), problem(other), out), comm=comm)
        before = simulation.point().clone()
        simulation.step()
        torch.testing.assert_close(simulation.point(), before, rtol=1e-15, atol=0)


class Unchanged(Observer):
    """Record whether client functions leave the state of the server unchanged."""

    def __init__(self):
        self.same = []

    def _others(self):
        rounds = self.simulation.rounds
        return self.simulation.shared.buffer, rounds.coordinator.moments.buffer

    def before_clients(self, stage, cohort, members):
        self.before = [buffer.clone() for buffer in self._others()]

    def after_clients(self, stage, cohort, members):
        self.same += [torch.equal(*pair) for pair in zip(self.before, self._others())]


@pytest.mark.dealt
@pytest.mark.parametrize("name", ALGORITHMS)
def test_clients_write_their_own_records_only(comm, out, name):
    other = next(pair[1] for pair in PAIRS if pair[0] == name)
    observer = Unchanged()
    observer.simulation = Simulation.from_settings(
        job(method(name), problem(other), out), comm, observers=[observer]
    )
    observer.simulation.start()
    observer.simulation.step()
    assert all(observer.same)
    assert bool(observer.same) == bool(len(observer.simulation.hosted))  # a rank may host no clients
