"""CDMA's gradients of all data of a client, and what stands for them on a problem that draws its samples."""

from dataclasses import dataclass

import pytest
from baselines import Half
from games import Game, configuration, trace

from mpifed import Blocks, Minimax
from mpifed.algorithms import CDMAADA, CDMANC, CDMAONE
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.simulation.simulation import Simulation

STEPS = dict(K=2, eta_x=0.01, eta_y=0.01)


@dataclass
class Draws(Minimax):
    """A game whose rows are drawn, and of which no exact gradient is known."""

    clients: int = 3

    def variables(self):
        return Blocks(x={"x": (2,)}, y={"y": (2,)})

    def draw(self, stream, size):
        return (stream.normal(size),)

    def loss(self, x, y, batch):
        return ((x["x"] - y["y"]) * batch[0].mean()).sum() + (x["x"] * y["y"]).sum()


@pytest.mark.parametrize("cls", [CDMAONE, CDMAADA], ids=lambda cls: cls.__name__)
def test_a_problem_that_draws_wants_a_large_batch(tmp_path, cls):
    """Said before any work."""
    said = (
        f"Draws: {cls.__name__} takes gradients of all data of a client, and it draws its samples: "
        "set algorithm.large_batch"
    )
    with pytest.raises(CollectiveError, match=said):
        Simulation.from_settings(configuration(cls(**STEPS), Draws(), tmp_path), SerialComm())
    for method in (cls(**STEPS, large_batch=7), CDMANC(**STEPS)):
        path, _ = trace(configuration(method, Draws(), tmp_path, noise=0), SerialComm())
        assert path.shape == (3, 4)


@pytest.mark.parametrize("problem", [Game, Half])
def test_a_problem_with_data_wants_none(tmp_path, problem):
    path, _ = trace(configuration(CDMAONE(**STEPS), problem(clients=3), tmp_path), SerialComm())
    assert len(path) == 3


def test_a_large_batch_has_rows():
    with pytest.raises(ValueError, match="large_batch"):
        CDMAONE(**STEPS, large_batch=0)
