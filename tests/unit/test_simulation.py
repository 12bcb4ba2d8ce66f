"""A simulation made of objects in Python, without a job file."""

import pytest
import torch

import mpifed
from mpifed.algorithms import LESGD, FedAvg, LocalSGDA
from mpifed.core.noise import OracleOptions
from mpifed.core.participation import Participation
from mpifed.parallel.comm import SerialComm
from mpifed.problems import AffineGame, Saddle
from mpifed.simulation.settings import ExecutionOptions

DOUBLE = {"dtype": "float64"}


def made(**settings) -> mpifed.Simulation:
    method = LocalSGDA(q=2, eta_x=0.01, eta_y=0.01)
    return mpifed.Simulation(Saddle(clients=4, d=3), method, **settings)


def test_rounds_and_metrics_are_those_of_a_run(tmp_path):
    """Bitwise: both compute the same rounds."""
    simulation = made(seed=3, run=DOUBLE, participation={"cohort": 2})
    simulation.start()
    for _ in range(3):
        simulation.step()
    config = mpifed.Config(
        problem=Saddle(clients=4, d=3),
        algorithm=LocalSGDA(q=2, eta_x=0.01, eta_y=0.01),
        seed=3,
        rounds=3,
        participation={"cohort": 2},
        run=DOUBLE | {"out": str(tmp_path / "run"), "progress": False},
    )
    result = mpifed.run(config, SerialComm())
    assert simulation.round == 3
    assert torch.equal(simulation.shared.x, torch.as_tensor(result.point["x"]).flatten())
    assert simulation.evaluate(simulation.output) == result.metrics


def test_the_point_is_all_blocks_in_the_default_precision():
    simulation = made(oracle={"batch_size": 0})
    simulation.start()
    x, y = simulation.shared.x, simulation.shared.y
    assert torch.equal(simulation.point(), torch.cat([x, y])) and x.dtype == torch.float32


def test_sections_are_records_or_dictionaries():
    records = made(
        participation=Participation(cohort=2),
        oracle=OracleOptions(batch_size=2),
        run=ExecutionOptions(dtype="float64"),
    )
    tables = made(participation={"cohort": 2}, oracle={"batch_size": 2}, run=DOUBLE)
    for simulation in (records, tables):
        simulation.start()
        simulation.step()
    assert torch.equal(records.point(), tables.point())


@pytest.mark.parametrize(
    "problem, method, settings, says",
    [
        (
            Saddle(clients=4),
            FedAvg(K=1, eta=0.1),
            {},
            "FedAvg solves minimisation problems, Saddle is a minimax",
        ),
        (
            Saddle(clients=4),
            LESGD(K=1, eta=0.1),
            {"participation": {"cohort": 5}},
            "is more than problem.clients",
        ),
        (Saddle(clients=4), LESGD(K=1, eta=0.1), {"run": {"keep": 3}}, r"\[run\] has no setting 'keep'"),
        (Saddle(clients=4), LESGD(K=1, eta=0.1), {"sede": 3}, "did you mean 'seed'"),
        (
            AffineGame(clients=4),
            LESGD(K=1, eta=0.1),
            {"regularize": {"x": 1.0}},
            "regularize. is for minimax problems",
        ),
    ],
)
def test_settings_are_checked_as_those_of_a_job(problem, method, settings, says):
    with pytest.raises(mpifed.ConfigError, match=says):
        mpifed.Simulation(problem, method, **settings)
