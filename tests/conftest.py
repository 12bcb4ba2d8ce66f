"""Fixtures for all tests. This folder and ``support`` are on the path: tests import ``reference``, ``games``,
``launch``."""

import os
import signal

# Only scripts/gpu_check.sh tests GPUs: all other tests compute on the CPU, also on a node with GPUs. CUDA
# reads the variable when torch first uses it.
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("MPIFED_TEST_GPUS", "")

import hypothesis
import pytest

from mpifed.parallel.comm import broadcast_text
from mpifed.parallel.world import world
from mpifed.simulation.simulation import Simulation

# The same examples every time, and no verdict on time: the machine may be busy.
hypothesis.settings.register_profile(
    "mpifed", deadline=None, derandomize=True, database=None, max_examples=50
)
hypothesis.settings.load_profile("mpifed")

#: Files that take half a minute or more, in the order in which they are begun.
LONGEST = (
    "test_slurm.py",
    "test_torture.py",
    "test_job_files.py",
    "test_readme.py",
    "test_one_rank.py",
    "test_signals.py",
    "test_hangs.py",
    "test_faults.py",
    "test_kills.py",
    "test_disk.py",
    "test_own_data.py",
    "test_command_line.py",
    "test_problem_gradients.py",
)


@pytest.fixture(autouse=True)
def signals_as_before():
    """A command that ends ignores signals; shells of later tests would inherit that, and trap none."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def comm():
    """All ranks of the test session: one process under plain pytest, MPI under mpirun."""
    return world()


@pytest.fixture
def out(tmp_path_factory, comm):
    """An output folder that all ranks agree on."""
    return broadcast_text(comm, str(tmp_path_factory.mktemp("run")))


@pytest.fixture
def at(monkeypatch):
    """``at(round, action)``: do something in the course of a round."""
    actions, step = {}, Simulation.step

    def stepped(self, *arguments):
        result = step(self, *arguments)
        actions.pop(self.round, lambda: None)()
        return result

    monkeypatch.setattr(Simulation, "step", stepped)
    return actions.__setitem__


def pytest_collection_modifyitems(config, items):
    """Tests of several ranks wait for mpirun; the longest files first: with some workers, the rest fits
    behind them."""
    if not config.getoption("--with-mpi") and not config.option.markexpr:
        alone = [item for item in items if not item.get_closest_marker("mpi")]
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("mpi")])
        items[:] = alone
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_terminal_summary(terminalreporter):
    """What has passed on each rank of the jobs under mpirun."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, line in report.user_properties:
            if name == "mpi":
                terminalreporter.write_line(f"{report.nodeid}: {line}")
