"""``mpifed info JOB``: memory, communication and checkpoints before a run.

tests/parallel compares the bytes between ranks with those of a run, test_many_clients.py the memory.
"""

import re

import pytest
from commands import error_of, output_of
from everything import METHODS, PAIRS, method, problem
from games import started

from mpifed import Config
from mpifed.algorithms import ALGORITHMS
from mpifed.parallel.comm import SerialComm
from mpifed.problems import Saddle
from mpifed.simulation.expected_costs import expected_costs
from mpifed.simulation.simulation import Simulation

TUNE = """
[[tune.methods]]
name = "SCAFFOLD"
K = [1, 2]
[[tune.methods]]
name = "SCAFFOLD"
K = 2
"""
#: A problem for each method.
PROBLEM_OF = dict(reversed(PAIRS))
JOB = """
algorithm = { name = "SCAFFOLD", K = 2, eta_l = 0.1 }
problem = { name = "Saddle", d = 1000, clients = 40 }
participation = { cohort = 8 }
"""


def expect_as_measured(config: Config, members: int, rounds: range) -> None:
    """Compare the expected bytes up and down with those of all ``members`` of a cohort in a run."""
    simulation, before, measured = Simulation.from_settings(config, SerialComm()), (0, 0), []
    for r in range(rounds.stop):
        simulation.step() if r else simulation.start()
        now = simulation.costs.bytes_up, simulation.costs.bytes_down
        measured.append((now[0] - before[0], now[1] - before[1]))
        before = now
    expected = [(members * one.up, members * one.down) for one in expected_costs(config).rounds]
    assert expected[rounds.start :] == measured[rounds.start :] and all(up for up, _ in expected[1:])


@pytest.mark.parametrize("name", METHODS)
def test_bytes_up_and_down_are_those_of_a_run(name):
    config = Config(algorithm=method(name), problem=problem(PROBLEM_OF[name]))
    expect_as_measured(config, config.problem.clients, range(4))


@pytest.mark.parametrize("name", [name for name in METHODS if ALGORITHMS[name].partial_participation])
def test_bytes_of_a_cohort(name):
    """All clients take part in the start phases."""
    config = Config(algorithm=method(name), problem=problem(PROBLEM_OF[name]), participation={"cohort": 2})
    expect_as_measured(config, 2, range(1, 4))


def test_bytes_of_compressed_messages():
    message = {"compression": {"name": "top-k", "ratio": 0.1}, "error_feedback": True}
    config = Config(algorithm=method("LocalSGDA"), problem=Saddle(d=50, clients=6), message=message)
    expect_as_measured(config, 6, range(4))
    assert expected_costs(config).client_row == 4 * 2 * 50  # the residuals


def test_memory_of_the_rank_with_most_clients():
    """Forty clients on three ranks are 13, 13 and 14."""
    config = Config(algorithm=method("SCAFFOLD"), problem=problem("Saddle"), run={"dtype": "float64"})
    clients = config.problem.clients
    simulation = started(config)
    costs = expected_costs(config, 3)
    assert costs.clients == -(-clients // 3)
    assert costs.memory["the clients' records"] * clients == simulation.clients.buffer.nbytes * costs.clients
    alone = expected_costs(config)
    data = sum(column.nbytes for column in simulation.rounds.executor.sampler.data)
    assert alone.memory["the clients' data"] == data and alone.group == simulation.rounds.choice.group
    assert alone.server == sum(vector.nbytes for vector in simulation.arrays().values())


def test_the_command(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    output = output_of("info", job, "--ranks", 4, "--nodes", 2)
    assert "4 ranks of 2 nodes" in output and "at most 10 on a rank; 8 in a round" in output
    assert re.search(r"the clients' records +80,000 B +160,000 B", output)
    assert re.search(r"\n 3 +16,000 B +16,000 B ", output) and "exact (this job)" in output
    assert "checkpoint: 344,000 B (8,000 B per client, 24,000 B of the server), every 50 rounds" in output


def test_a_job_that_generates_its_samples_has_costs_but_no_table(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(
        'algorithm = { name = "LocalSGDA", q = 2, eta_x = 0.01, eta_y = 0.01 }\nproblem = "WGAN"\n'
    )
    output = output_of("info", job)
    assert "Expected costs" in output and "median" not in output
    assert not list(tmp_path.glob("*.png"))


def test_impossible_options(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    assert "expected at most --nodes = --ranks = 2, got --nodes 3" in error_of(
        "info", job, "--ranks", 2, "--nodes", 3
    )
    assert "--ranks and --nodes are for job files" in error_of("info", "run", "--ranks", 2)


def test_the_first_run_of_a_sweep_and_of_a_search(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    printed = output_of("info", tmp_path / "job.toml", "sweep.participation.cohort=[4, 8]")
    assert printed.startswith("[sweep] has 2 runs; the first, cohort=4:\n\nExpected costs on 1 rank")
    assert "4 in a round" in printed
    (tmp_path / "tune.toml").write_text("\n".join(JOB.splitlines()[2:]) + TUNE)
    printed = output_of("info", tmp_path / "tune.toml")
    assert printed.startswith("[tune] has 2 searches; the costliest settings of the first, SCAFFOLD:")
