"""A rank that fails where the others go on: all ranks raise the error, and none is left waiting for it."""

import contextlib
import importlib
import linecache
import sys
import threading
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from user_code import JOB, PLUGIN, REPORTED

import mpifed
from mpifed.base.errors import ConfigError, ContractError
from mpifed.cli import check, selftest
from mpifed.config.job import Config
from mpifed.config.tuning import tuning
from mpifed.diagnostics.assumptions import Options, estimate
from mpifed.parallel import comm as comm_module
from mpifed.parallel.comm import CollectiveError
from mpifed.storage import checkpoint
from mpifed.tuning import tuner

pytestmark = pytest.mark.mpi

#: Seconds after which a hang ends the job, so that the launcher starts the remaining tests again.
LIMIT = 60
SEARCH = """
rounds = 3
problem = {{ name = "Saddle", clients = 3, d = 2 }}
run = {{ out = "{out}", overwrite = true }}
tune = {{ runs = 2, seeds = 1, methods = [{{ name = "LocalSGDA", q = 2, eta_y = 0.05 }}] }}
"""


def job(out, rounds=2) -> dict:
    return {
        "rounds": rounds,
        "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": 0.01, "eta_y": 0.01},
        "problem": {"name": "Saddle", "clients": 4, "d": 2},
        "oracle": {"batch_size": 0},
        "message": {"compression": {"name": "top-k", "ratio": 0.5}},
        "regularize": {"x": 0.1},
        "run": {"progress": False, "checkpoint_every": 1, "out": f"{out}/run", "watchdog": 0},
    }


def started_over(out) -> dict:
    return job(out) | {"run": job(out)["run"] | {"overwrite": True}}


def search(comm, out):
    file = Path(out, f"search-{comm.rank}.toml")
    file.write_text(SEARCH.format(out=f"{out}/search"))
    tuner.tune(tuning(file), comm)


def checked(comm, out):
    report, method = check.Report(None, printed=False), mpifed.algorithms.FedAvg(K=1, eta=0.1)
    check._check_ranks(method, True, comm, report)
    if not report.sound:
        raise CollectiveError("the check fails")


def tested(comm, out):
    if not selftest.run_checks(comm):
        raise CollectiveError("a check fails")


class Progress:
    """A callback."""

    def on_round(self, event):
        pass


def all_parts(comm, out):
    """A run with most parts that a run can have."""
    table = job(out)
    table["problem"] = {"name": "FairClassification", "dataset": "digits", "model": "linear", "clients": 5}
    table["problem"]["validation"] = 0.2
    table["measures"] = {"of": ["stationarity", "phi", "tail"], "ell": 10.0}
    table["personalize"] = {"steps": 1, "step_size": 0.1}
    table["oracle"] = {"batch_size": 4, "clip": 1.0}
    table["participation"] = {"cohort": 3}
    table["stop"] = {"metric": "worst_accuracy", "at_most": 0.0}
    table["run"] |= {
        "evaluate_on": ["train", "clients"],
        "keep_best": "worst_accuracy",
        "placement": "balanced",
    }
    table["run"] |= {"placement": "balanced", "group": 2, "overwrite": True}
    mpifed.run(Config.from_table(table), comm, callbacks=[Progress()])


ACTIONS = {
    "run": lambda comm, out: mpifed.run(started_over(out), comm),
    "continue": lambda comm, out: mpifed.run(job(out, rounds=3), comm),
    "estimate": lambda comm, out: estimate(
        comm, Config.from_table(job(out)), Options(points=1, samples=10, of=("noise",))
    ),
    "search": search,
    "check": checked,
    "selftest": tested,
    "all parts": all_parts,
}
SIMULATION, ROUNDS = "mpifed.simulation.simulation:", "mpifed.simulation.rounds:"
CHECKPOINTS = "mpifed.running.checkpointing:"
#: Action, function that fails, its error, and whether it fails on rank 0 or on the last rank.
PLACES = [
    ("run", f"{SIMULATION}Feasibility", ContractError, "last"),
    ("run", f"{SIMULATION}InitialWeights.expect_fit", ContractError, "last"),
    ("run", f"{SIMULATION}Allocation", ContractError, "last"),
    ("run", f"{SIMULATION}Regularizer", ContractError, "last"),
    ("run", f"{ROUNDS}Traffic", ContractError, "last"),
    ("run", f"{ROUNDS}Coordinator", ContractError, "last"),
    ("run", f"{ROUNDS}MessageCompressor", ContractError, "last"),
    ("run", f"{ROUNDS}Sampler", ContractError, "last"),
    ("run", "mpifed.running.loop:Recorder", ValueError, "last"),
    ("run", "mpifed.simulation.simulation:ScoredProblem", ContractError, "last"),
    ("run", f"{CHECKPOINTS}CheckpointManager._write_history", OSError, "first"),
    ("run", f"{CHECKPOINTS}Snapshot.take", RuntimeError, "last"),
    ("run", "mpifed.simulation.state:ClientRows.read", RuntimeError, "last"),
    ("run", "mpifed.simulation.state:ClientRows.read", MemoryError, "first"),
    ("run", "mpifed.storage.checkpoint:create", OSError, "first"),
    ("run", "mpifed.running.recorder:Recorder.write", OSError, "first"),
    ("continue", "mpifed.simulation.state:ClientRows.write_at", RuntimeError, "last"),
    ("continue", "mpifed.storage.history:read", OSError, "first"),
    ("estimate", f"{SIMULATION}Allocation", ContractError, "last"),
    ("estimate", "mpifed.diagnostics.assumptions:_Estimator._local_clients", ValueError, "last"),
    ("search", "mpifed.tuning.tuner:discard", OSError, "first"),
    ("search", "mpifed.tuning.tuner:preview", OSError, "first"),
    ("search", "mpifed.tuning.tuner:store", OSError, "first"),
    ("check", "mpifed.cli.check:differ", AssertionError, "last"),
    ("check", "mpifed.cli.check:tempfile.TemporaryDirectory", OSError, "last"),
    ("selftest", "mpifed.cli.selftest:_point", KeyError, "last"),
]


#: Blocks that an action has tested, and where; the next actions enter most of them as well.
TESTED: set[tuple[str, str]] = set()


@contextlib.contextmanager
def time_limit(comm):
    timer = threading.Timer(LIMIT, comm.abort, (1,))
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


@pytest.fixture
def limited(comm):
    with time_limit(comm):
        yield


class Blocks:
    """Replaces ``collective_errors`` in all modules, and lets the last rank fail in one block.

    Attributes:
        entered: the blocks that this rank has entered since :meth:`fail_in`, by module, function and line.
    """

    def __init__(self, comm, monkeypatch):
        self.comm, self.entered, self.failing = comm, [], None
        original = comm_module.collective_errors

        @contextlib.contextmanager
        def replacement(comm, *types):
            frame = sys._getframe(2)
            place = f"{frame.f_globals['__name__']}.{frame.f_code.co_name}:{frame.f_lineno}"
            is_first = place not in self.entered
            with original(comm, *types):
                if comm.size < self.comm.size:  # a simulation of this rank alone
                    yield
                    return
                self.entered += [place] if is_first else []
                fails = is_first and self.comm.rank == self.comm.size - 1 and self.failing
                if fails == (place, "begins"):
                    raise types[0]("the dog ate it")
                yield
                if fails == (place, "ends"):
                    raise types[0]("the dog ate it")

        for name, module in [*sys.modules.items()]:
            if name.startswith("mpifed.") and getattr(module, "collective_errors", None) is original:
                monkeypatch.setattr(module, "collective_errors", replacement)

    def fail_in(self, place, when):
        self.entered, self.failing = [], (place, when)


def begins_with_an_exchange(place: str) -> bool:
    """Whether a block begins with the exchange of client rows, in which every rank takes part even if it
    fails: nothing can fail before it."""
    name, _, line = place.rpartition(":")
    file = sys.modules[name.rpartition(".")[0]].__file__
    begin = "".join(linecache.getline(file, int(line) + further) for further in (1, 2))
    return "checkpoint.write(" in begin or "checkpoint.read_clients(" in begin


@pytest.mark.parametrize("when", ["begins", "ends"])
@pytest.mark.parametrize("action", ACTIONS)
def test_the_ranks_agree_in_every_block(comm, out, monkeypatch, action, when):
    """An action is repeated with an error in each block of ``collective_errors`` that it enters: when the
    block begins, so that the rank misses all that the others do in it, or when it ends."""
    if action in ("check", "selftest") and comm.size == 1:
        pytest.skip("compares ranks")
    monkeypatch.chdir(out)
    blocks = Blocks(comm, monkeypatch)

    def fails(place: str) -> bool:
        """Return whether the action with an error in this block ends with an error of all ranks."""
        if action == "continue":
            blocks.fail_in("nowhere", when)
            mpifed.run(started_over(out), comm)
        blocks.fail_in(place, when)
        try:
            ACTIONS[action](comm, out)
        except (CollectiveError, ConfigError):
            return True
        return False

    assert not fails("nowhere")
    assert len(blocks.entered) > 5
    for place in [place for place in blocks.entered if (place, when) not in TESTED]:
        TESTED.add((place, when))
        if when == "begins" and begins_with_an_exchange(place):
            continue
        with time_limit(comm):
            failed = np.array([fails(place)], dtype=np.int64)
            comm.allreduce_(failed)  # the ranks are still in step
        # With fewer files or by MPI instead of shared memory, a run goes on after some errors.
        assert failed[0] in (0, comm.size), place


@pytest.mark.parametrize(
    "action, place, error, who", PLACES, ids=lambda value: getattr(value, "__name__", value)
)
def test_all_ranks_end_with_the_error(comm, out, monkeypatch, limited, action, place, error, who):
    if action in ("check", "selftest") and comm.size == 1:
        pytest.skip("compares ranks")
    monkeypatch.chdir(out)
    if action == "continue":
        mpifed.run(job(out), comm)
    module, _, path = place.partition(":")
    *outer, name = path.split(".")
    owner = reduce(getattr, outer, importlib.import_module(module))

    def fail(*_, **__):
        raise error("the dog ate it")

    comm.barrier()
    if comm.rank == (0 if who == "first" else comm.size - 1):
        is_property = isinstance(getattr(owner, name), property)
        monkeypatch.setattr(owner, name, property(fail) if is_property else fail)
    with pytest.raises(CollectiveError):
        ACTIONS[action](comm, out)
    count = np.ones(1)
    comm.allreduce_(count)  # the ranks are still in step
    assert count[0] == comm.size


def test_rank_0_cannot_read_the_client_rows(comm, out, monkeypatch, limited):
    """The other ranks wait for their rows."""
    mpifed.run(job(out), comm)
    read = checkpoint.read_clients
    if comm.rank == 0:
        monkeypatch.setattr(checkpoint, "read_clients", lambda path, *rest: read(Path(out, "lost.h5"), *rest))
    with pytest.raises(CollectiveError, match="lost.h5"):
        ACTIONS["continue"](comm, out)


@pytest.mark.parametrize("fault", ["prepare", "client_data of 3", "predict", "metrics"])
def test_code_of_a_user_fails_on_one_rank(comm, out, limited, fault):
    """On the last rank, or on rank 0 if it alone computes the metrics."""
    path, rank = Path(out, "job.toml"), 0 if fault == "metrics" else comm.size - 1
    if comm.rank == 0:
        path.with_name("faulty.py").write_text(PLUGIN.format(fault=fault, ranks=str(rank)))
        path.write_text(JOB.format(folder=out))
    comm.barrier()
    with pytest.raises(CollectiveError, match=f"{REPORTED[fault]}ZeroDivisionError: on purpose"):
        mpifed.run(Config.load(path), comm)
