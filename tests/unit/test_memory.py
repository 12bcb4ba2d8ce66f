"""The memory that a run needs is estimated, compared with the available memory before it is allocated, and
released when the run ends."""

import contextlib
import gc
import re
import resource
import tracemalloc

import numpy as np
import pytest
import scipy.special  # noqa: F401  before memory is traced: normal numbers load it
import torch
from commands import error_of
from everything import PAIRS, SETTINGS, method, problem
from games import configuration, started
from saddle_job import config as saddle_job

from mpifed import Config, run
from mpifed.algorithms import MFCGD, AdaFGDA, LocalSGDA
from mpifed.base import memory
from mpifed.base.settings import build
from mpifed.cli.check import check_class
from mpifed.core import sampling
from mpifed.core.oracle import Oracle
from mpifed.core.sampling import Sampler
from mpifed.core.streams import BYTES_PER_DRAW
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import PROBLEMS, LinearMAML, Saddle
from mpifed.simulation import state
from mpifed.simulation.simulation import NonFiniteError, Simulation
from mpifed.simulation.state import memory_needs

METHOD = LocalSGDA(q=2, eta_x=0.01, eta_y=0.01)
#: Problem → settings for constants of several MB.
LARGE = {
    "Saddle": {"d": 1000, "clients": 100},
    "WGAN": {"clients": 50_000},
    "TwoSidedPL": {"d": 500, "clients": 100},
    "FiniteMax": {"d": 60, "functions": 20, "clients": 100, "heterogeneity": 1.0},
    "QuadraticNCPL": {"dx": 40, "dy": 40, "clients": 50, "heterogeneity": 1.0},
    "AffineGame": {"d": 60, "clients": 50, "heterogeneity": 1.0},
    "Bilinear": {"dx": 60, "dy": 60, "clients": 50, "heterogeneity": 1.0},
    "L1BoxBilinear": {"dx": 60, "dy": 60, "clients": 50, "heterogeneity": 1.0},
    "LinearMAML": {"d": 50, "clients": 100, "samples": 10},
    "SinusoidMAML": {"clients": 100, "samples": 500, "tests": 1000},
}


@pytest.mark.parametrize(
    "name, settings",
    [*LARGE.items(), ("WGAN", {"clients": 50, "samples": 5000}), ("MatrixGame", {"clients": 10_000})],
)
def test_constants_match_the_estimate(name, settings):
    """An estimate above the peak would reject jobs that fit, and one below half of it would be useless."""
    made = build(PROBLEMS[name], settings, name)
    tracemalloc.start()
    made.prepare(0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.5 * peak <= made.footprint() <= 1.05 * peak  # 5 %: the objects of a list of rows


@pytest.mark.parametrize(
    "work", [METHOD, AdaFGDA(q=2, sync_estimator="local"), MFCGD(q=2)], ids=lambda work: type(work).__name__
)
@pytest.mark.parametrize("reduction", ["fused", "exact"])
@pytest.mark.parametrize("group", [1, 4, "all"])
def test_records_match_the_estimate(work, group, reduction):
    problem_ = LinearMAML(d=40, clients=9) if work.family == "composition" else Saddle(d=3000, clients=9)
    run = {"reduction": reduction, "group": group, "dtype": "float64"}
    config = Config(algorithm=work, problem=problem_, run=run)
    simulation = Simulation.from_settings(config, SerialComm())
    rounds, parts = simulation.rounds, memory_needs(config, simulation.problem, 9, 9)
    stages = [*rounds._stages, *rounds._start]
    held = simulation.shared.buffer.nbytes * 2 + simulation.output.buffer.nbytes
    assert parts["the clients' records"] == simulation.clients.buffer.nbytes
    messages = sum(stage.messages.buffer.nbytes + stage.mean.buffer.nbytes for stage in stages)
    # Nine clients have at most three partial sums at a time; the average of `fused` is one of them.
    messages += (3 if reduction == "exact" else 2) * sum(stage.mean.buffer.nbytes for stage in stages)
    assert parts["messages"] == messages
    assert parts["shared records"] == held + rounds.memory.moments.buffer.nbytes


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("compression", [{"name": "top-k", "ratio": 0.1}, {"name": "top-k", "ratio": 1}])
def test_residuals_match_the_estimate(compression, feedback):
    """One residual per element and client, none for fields that are sent uncompressed."""
    message = {"compression": compression, "error_feedback": feedback}
    config = Config(algorithm=METHOD, problem=Saddle(d=300, clients=9), message=message)
    simulation = Simulation.from_settings(config, SerialComm())
    held = simulation.rounds.memory.residuals.nbytes
    records = memory_needs(config, simulation.problem, 9, 9)["the clients' records"]
    assert records == simulation.clients.buffer.nbytes + held
    assert held == (9 * 600 * 4 if feedback and compression["ratio"] < 1 else 0)


class Rows(Saddle):
    """A problem whose minibatches have ``batch_size`` rows."""

    single_row = False

    def client_sizes(self, clients):
        return np.ones_like(clients)


@pytest.mark.parametrize("drawn", [10**6, 500, 60, 1])
@pytest.mark.parametrize("group", [1, 3, "all"])
@pytest.mark.parametrize("rows", [1, 5])
def test_samples_drawn_at_the_same_time_are_counted(monkeypatch, rows, group, drawn):
    """Nine clients with three steps per round, eight elements of noise, and one or five rows per sample."""
    monkeypatch.setattr(sampling, "MAX_DRAWN", drawn)
    made, plain = {}, sampling.Stream

    def noted(seed, purpose, clients, round, count, first):
        made[purpose] = max(made.get(purpose, 0), len(clients) * count)
        return plain(seed, purpose, clients, round, count, first)

    work, of = LocalSGDA(q=3, eta_x=0.01, eta_y=0.01), (Saddle if rows == 1 else Rows)(d=4, clients=9)
    oracle = {"batch_size": 5, "noise": {"name": "gaussian", "scale": 0.1}}
    config = Config(algorithm=work, problem=of, oracle=oracle, run={"group": group})
    simulation = started(config)
    monkeypatch.setattr(sampling, "Stream", noted)
    for _ in range(3):  # the first round does not know the number of samples
        simulation.step()
    taken = max(8 * made["noise"] * BYTES_PER_DRAW, rows * made["sample"] * state._ROW)
    # The last samples of a client may be drawn together with those of further clients.
    assert 0.5 * taken <= memory_needs(config, of, 9, 9)["samples"] <= taken


def test_noise_and_rows_are_not_drawn_at_the_same_time():
    """An element of noise needs 40 bytes, a row 20; of small samples, several rounds are drawn at once."""

    def samples(d, batch_size, noise):
        oracle = {"batch_size": batch_size} | ({"noise": {"name": "gaussian", "scale": 0.1}} if noise else {})
        work = LocalSGDA(q=2, eta_x=0.01, eta_y=0.01)
        config = Config(algorithm=work, problem=Rows(d=d, clients=4), oracle=oracle, run={"group": "all"})
        return memory_needs(config, config.problem, 4, 4)["samples"]

    rows = 4 * 2 * 3 * (2**14 // (4 * 2 * 3)) * 20
    noise = 4 * 2 * (2 * 5) * (2**14 // (4 * 2 * (2 * 5))) * 40
    assert samples(5, 3, False) == rows < noise == samples(5, 0, True) == samples(5, 3, True)
    assert samples(5000, 3, True) == 4 * 2 * (2 * 5000) * 40


@pytest.mark.parametrize(
    "problem_, settings, error",
    [
        (Saddle(d=2 * 10**9), {}, "74.5 GiB for the problem's constants"),
        (Saddle(clients=10**11), {}, "needs at least"),
        (Saddle(clients=10_000, d=5 * 10**7), {}, "a smaller problem (problem.d = 50,000,000, problem.clie"),
        (Saddle(clients=2**63 - 1, d=2**63 - 1), {}, "TiB of memory with 1 rank on the node"),
        (LinearMAML(), {"oracle": {"batch_size": 10**18}}, "or a smaller oracle.batch_size"),
        *(
            (build(PROBLEMS[name], {"clients": 10**12}, name), {}, "needs at least")
            for name in (*LARGE, "FewShotMAML")
        ),
    ],
    ids=lambda made: type(made).__name__ if hasattr(made, "clients") else "",
)
def test_jobs_that_do_not_fit_are_rejected_before_allocation(problem_, settings, error):
    family = {"minimax": METHOD, "composition": MFCGD(q=2)}
    name = next(made for made, other in PAIRS if other == type(problem_).__name__)
    config = Config(algorithm=family.get(problem_.family) or method(name), problem=problem_, **settings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CollectiveError, match="needs at least .* GiB|needs at least .* TiB") as raised:
        Simulation.from_settings(config, SerialComm())
    assert error in str(raised.value) and len(str(raised.value)) < 900
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


@pytest.mark.parametrize("name", [name for name, settings in SETTINGS.items() if "dataset" in settings])
def test_constants_read_from_files_are_not_overestimated(name):
    made = problem(name)
    made.prepare(0)
    held = sum(column.nbytes for client in range(made.clients) for column in made.client_data(client))
    assert made.footprint() <= held


@pytest.mark.parametrize("name", [name for name, class_ in PROBLEMS.items() if hasattr(class_, "partition")])
def test_more_clients_than_samples_are_rejected_first(name):
    made = build(PROBLEMS[name], SETTINGS[name] | {"clients": 10**11}, name)
    with pytest.raises(ValueError, match="samples for 100000000000 clients|clients: expected at most 4096"):
        made.prepare(0)


JOB = """
algorithm = { name = "MFCGD", q = 2 }
problem = { name = "FewShotMAML", dataset = "digits" }
"""


def test_info_rejects_a_problem_that_does_not_fit(job, tmp_path):
    error = "FewShotMAML with 1,000,000,000,000 clients needs at least .* with 1 rank on this machine"
    assert re.search(error, error_of("info", job, "problem.clients=1000000000000"))
    assert not list(tmp_path.glob("*.png"))
    assert "expected at least ways = 11 classes" in error_of("info", job, "problem.ways=11")


def test_check_rejects_a_problem_that_does_not_fit(capsys):
    assert not check_class("Saddle", ["d=2000000000"], SerialComm())
    (failure,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILS")]
    assert "Saddle with 20 clients needs at least 223.5 GiB of memory with 1 rank on this" in failure


def test_records_of_all_ranks_of_a_node_are_counted(monkeypatch):
    """Dense Jacobians of a large inner map: one rank fits, two do not."""
    of = LinearMAML(d=500, clients=2, samples=1)
    config = Config(algorithm=MFCGD(q=2), problem=of, run={"group": "all"})
    comm, cpu = SerialComm(), torch.device("cpu")
    monkeypatch.setattr(LinearMAML, "footprint", lambda self: 0)
    parts = memory_needs(config, config.problem, 2, 2)
    assert parts["the clients' records"] > 2 * 4 * 500**2  # each has one Jacobian in float32
    monkeypatch.setattr(state, "host_memory", lambda: sum(parts.values()) + 1)
    state.expect_memory(config, comm, cpu)
    comm.local_size = 2
    with pytest.raises(ValueError, match="with 2 ranks on the node, .* MiB for the clients' records"):
        state.expect_memory(config, comm, cpu)


def test_the_memory_of_this_machine(tmp_path, monkeypatch):
    assert 2**28 < memory.host_memory() < 2**50
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._limit(tmp_path) == [] and memory._limit(tmp_path / "none") == []
    (tmp_path / "memory.max").write_text("1048576\n")
    assert memory._limit(tmp_path) == [2**20]


@pytest.mark.parametrize("clients", [-1, 0, True, 2.0, None])
def test_the_number_of_clients_is_validated_without_declared_bounds(clients):
    class Loose(Saddle):
        pass

    loose = Loose()
    loose.clients = clients
    with pytest.raises(ValueError, match=f"problem.clients: expected an integer >= 1, got {clients}"):
        Config(algorithm=METHOD, problem=loose)


def parts_of_simulations() -> int:
    return sum(issubclass(type(value), Simulation | Sampler | Oracle) for value in gc.get_objects())


@contextlib.contextmanager
def everything_is_freed():
    """Sweeps and searches execute hundreds of runs; the collector runs by the number of objects, not by their
    size."""
    gc.collect()
    before = parts_of_simulations()
    gc.disable()
    try:
        yield
        assert parts_of_simulations() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("step", [0.01, 1e30])
def test_a_run_is_freed_without_garbage_collection(tmp_path, step):
    job = saddle_job(tmp_path, algorithm={"name": "LocalSGDA", "q": 2, "eta_x": step, "eta_y": step})
    with everything_is_freed(), contextlib.suppress(*[NonFiniteError] * (step > 1)):
        run(job, SerialComm())


@pytest.mark.parametrize("names", [
    ("FGDA", "RobustRegression"), ("LSGD", "AffineGame"), ("MFCGD", "LinearMAML"), ("MFCGD", "FewShotMAML"),
    ("FedNestBilevel", "DataCleaning"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("group", [1, "all"])
def test_a_simulation_of_every_family_is_freed_without_garbage_collection(tmp_path, names, group):
    config = configuration(method(names[0]), problem(names[1]), tmp_path, group=group)
    with everything_is_freed():
        started(config, 2)
