"""How often a run is evaluated where its job does not say."""

import pytest

import mpifed
from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.evaluation import evaluation_interval


def table(folder="run", q=1, batch_size=2, **run) -> dict:
    return {
        "rounds": 70,
        "algorithm": {"name": "LocalSGDA", "q": q, "eta_x": 0.1, "eta_y": 0.1},
        "problem": {"name": "DeepAUC", "dataset": "digits", "model": "linear", "clients": 10},
        "oracle": {"batch_size": batch_size},
        "run": {"progress": False, "out": str(folder), **run},
    }


@pytest.mark.parametrize(
    "settings, expected",
    [
        (dict(), 60),  # 359 held-out rows; a round's 20 gradients are worth 60, of which a tenth is 6
        (dict(q=3), 20),
        (dict(batch_size=200), 10),
        (dict(batch_size=0), 10),
        (dict(eval_every=3), 3),
    ],
)
def test_it_follows_from_the_rows_that_are_scored_and_those_that_gradients_take(settings, expected):
    config = Config.from_table(table(**settings))
    config.problem.prepare(0)
    assert evaluation_interval(config, config.problem.test_rows) == expected


def test_a_cohort_is_what_takes_part():
    config = Config.from_table(table(batch_size=20) | {"participation": {"cohort": 2}})
    config.problem.prepare(0)
    assert evaluation_interval(config, config.problem.test_rows) == 30


def test_the_rounds_that_are_recorded(tmp_path):
    result = mpifed.run(table(tmp_path / "run"), SerialComm())
    assert result.history["round"] == [0, 60, 70]
