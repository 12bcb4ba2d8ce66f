"""Properties of every method on every compatible problem, over a few rounds."""

import functools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from everything import METHODS, MISFITS, PAIRS, SETTINGS, method, problem
from games import configuration, started
from resumed import bits

from mpifed import resume, run
from mpifed.algorithms import ALGORITHMS
from mpifed.parallel.comm import SerialComm, broadcast_text
from mpifed.problems import PROBLEMS
from mpifed.simulation.simulation import Observer, Simulation

pytestmark = pytest.mark.mpi


def job(method_, problem_, out, **settings):
    settings |= dict(noise=0.05, reduction="exact", sections={"record": ()})
    return configuration(method_, problem_, out, **settings)


@pytest.fixture(scope="module")
def ran(comm, tmp_path_factory):
    """Return ``ran(names, group)``, a cached run on all ranks: its folder and output point."""

    @functools.cache
    def once(names, group):
        folder = broadcast_text(comm, str(tmp_path_factory.mktemp("run")))
        settings = dict(group=group, checkpoint_every=1, keep=9)
        return folder, bits(run(job(method(names[0]), problem(names[1]), folder, **settings), comm))

    return once


GROUPS = pytest.mark.parametrize(
    "group", [pytest.param(1, id="loop"), pytest.param(2, id="pairs", marks=pytest.mark.dealt)]
)


@GROUPS
@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_finite(ran, names, group):
    assert np.isfinite(ran(names, group)[1]).all()


@GROUPS
@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_layout_and_resumption(comm, ran, names, group):
    """The result is bitwise identical to one process, and to a run resumed after the first round.

    The ranks divide the pairs without waiting for each other.
    """
    out, found = ran(names, group)
    if PAIRS.index(names) % comm.size != comm.rank:
        return
    alone = run(job(method(names[0]), problem(names[1]), f"{out}/alone", group=group), SerialComm())
    np.testing.assert_array_equal(found, bits(alone))
    Path(out, "part").mkdir()
    shutil.copy(f"{out}/checkpoint-00000001.h5", f"{out}/part")
    np.testing.assert_array_equal(bits(resume(f"{out}/part", comm=SerialComm())), bits(alone))


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
    assert bool(observer.same) == bool(len(observer.simulation.rounds.hosted))  # a rank may host no clients


@pytest.mark.parametrize("names", MISFITS, ids="-".join)
def test_incompatible_pairs_are_refused_with_alternatives(names, out):
    with pytest.raises(ValueError, match="expected one of") as error:
        job(method(names[0]), problem(names[1]), out)
    named = str(error.value).split("expected one of")[1].split("[")[0].replace(",", " ").split()
    assert named and names[0] not in named


def test_all_methods_and_problems_are_tested():
    """Each needs a line with small settings in METHODS or SETTINGS of tests/support/everything.py."""
    assert set(METHODS) == set(ALGORITHMS) and set(SETTINGS) == set(PROBLEMS)
