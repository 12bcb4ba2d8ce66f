"""Fixtures for all tests, which import modules from this folder and from ``support`` by their names."""

import os
import signal

# Only scripts/gpu_check.sh tests GPUs; all other tests use the CPU, also on a node with GPUs. CUDA reads
# the variable when torch first uses it.
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("MPIFED_TEST_GPUS", "")

import hypothesis
import pytest

from mpifed.parallel.comm import broadcast_text
from mpifed.parallel.world import world
from mpifed.simulation.simulation import Simulation

# Reproducible examples without time limits, since the machine may be busy
hypothesis.settings.register_profile(
    "mpifed", deadline=None, derandomize=True, database=None, max_examples=50
)
hypothesis.settings.load_profile("mpifed")

#: Files that take half a minute or more, in the order in which they are started.
LONGEST = (
    "test_slurm.py",
    "test_torture.py",
    "test_job_files.py",
    "test_readme.py",
    "test_one_rank.py",
    "test_gpu_check.py",
    "test_signals.py",
    "test_hangs.py",
    "test_faults.py",
    "test_kills.py",
    "test_disk.py",
    "test_own_data.py",
    "test_command_line.py",
)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    """Tables have the width without a terminal, also if libraries have set the width of one."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def signals_as_before():
    """Restore signal handlers: a command that ends ignores signals, and shells of later tests would inherit
    that."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def comm():
    """Return the communicator of the test session: one process without mpirun, else all ranks."""
    return world()


@pytest.fixture
def out(tmp_path_factory, comm):
    """Return an output folder that is the same on all ranks."""
    return broadcast_text(comm, str(tmp_path_factory.mktemp("run")))


@pytest.fixture
def at(monkeypatch):
    """Return ``at(round, action)``, which calls ``action`` during a round."""
    actions, step = {}, Simulation.step

    def stepped(self, *arguments):
        result = step(self, *arguments)
        actions.pop(self.round, lambda: None)()
        return result

    monkeypatch.setattr(Simulation, "step", stepped)
    return actions.__setitem__


def pytest_collection_modifyitems(config, items):
    """Deselect MPI tests without mpirun, and run the longest files first so that parallel workers end
    together. Without pytest-mpi, the option is unknown."""
    if not config.getoption("--with-mpi", False) and not config.option.markexpr:
        alone = [item for item in items if not item.get_closest_marker("mpi")]
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("mpi")])
        items[:] = alone
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_terminal_summary(terminalreporter):
    """Print the number of passed tests on each rank of the jobs under mpirun."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, line in report.user_properties:
            if name == "mpi":
                terminalreporter.write_line(f"{report.nodeid}: {line}")
