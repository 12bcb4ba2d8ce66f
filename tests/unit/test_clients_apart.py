"""Clients stepped together stay apart; records, placements and costs are what they are called."""

import numpy as np
import pytest
import torch
from fields import Chain
from games import Game, configuration

from mpifed.algorithms import FSGDA, MFCGD
from mpifed.algorithms.composition import _bounded
from mpifed.config.sections import Clock
from mpifed.core.records import Record
from mpifed.core.streams import Stream
from mpifed.parallel.comm import SerialComm
from mpifed.simulation import preparation
from mpifed.simulation.federated_clock import member_seconds
from mpifed.simulation.simulation import Simulation
from mpifed.simulation.traffic import Costs, Sent


@pytest.mark.parametrize("axes", [1, 2])
def test_bounds_are_each_clients_own(axes):
    """Norms 5 and 0.5 of two clients, the bound 1: the first is scaled to it, the second left alone."""
    shape = (2, *[1] * (axes - 1), 2)
    value = torch.tensor([[3.0, 4.0], [0.3, 0.4]]).reshape(shape)
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4]]).reshape(shape)
    torch.testing.assert_close(_bounded(value, 1.0, axes), expected)


def test_bounded_estimators_of_clients_together_are_those_of_one_after_another(tmp_path):
    method = MFCGD(q=3, gamma=0.06, alpha=0.3, beta=0.6, varrho=0.45, C_g=0.8, C_f=0.5, project_init=True)
    points = []
    for group in (1, "all"):
        config = configuration(method, Chain(clients=3), tmp_path, group=group, noise=0)
        simulation = Simulation(config, SerialComm())
        simulation.start()
        simulation.step()
        simulation.step()
        points.append(simulation.point())
    torch.testing.assert_close(
        points[1], points[0], rtol=1e-12, atol=0
    )  # batched kernels add in another order


def test_records_are_equal_by_their_fields():
    assert Record(x="x", u="y") == Record(x="x", u="y")
    for other in (Record(x="x"), Record(x="x", u="x"), {"x": "x", "u": "y"}, None):
        assert Record(x="x", u="y") != other


def test_balanced_placement_measures_what_is_not_known(tmp_path, monkeypatch):
    asked = []

    def client_costs(problem, comm, seed, oracle, dtype, device):
        asked.append((type(problem).__name__, seed, oracle.batch_size, dtype))
        return np.array([5, 1, 1], dtype=np.int64)

    monkeypatch.setattr(preparation, "client_costs", client_costs)
    comm, problem = SerialComm(), Game(clients=3)
    comm.size = 2
    method = FSGDA(K=1, eta_xl=0.1, eta_yl=0.1)
    for placement, known, counts, costs in (
        ("balanced", np.zeros(0), [1, 2], [5, 1, 1]),
        ("balanced", np.array([1, 1, 5]), [2, 1], [1, 1, 5]),
        ("even", np.zeros(0), [1, 2], []),
    ):
        config = configuration(method, problem, tmp_path, placement=placement, seed=7, batch_size=4)
        found, used = preparation.place(config, problem, comm, known, torch.float64, torch.device("cpu"))
        assert found.counts == counts and used.tolist() == costs
    assert asked == [("Game", 7, 4, torch.float64)]


def test_slow_clients_and_slow_phases_are_those_with_large_normals():
    """The law is symmetric about 1, so only the clients themselves can tell e^ν from e^-ν."""
    clients, calls = np.arange(5), np.full(5, 3)
    for name, round, index in (("stragglers", 0, 0), ("jitter", 4, 1)):
        purpose = {"stragglers": "slowness", "jitter": "jitter"}[name]
        clock = Clock(gradients_per_second=3, bandwidth_down=1, bandwidth_up=1, latency=0, **{name: 0.5})
        seconds = member_seconds(clock, 7, 4, 1, clients, calls, Sent(0, 0))
        normals = Stream(7, f"clock-{purpose}", clients, round, 1, index).normal()[:, 0]
        np.testing.assert_allclose(seconds, np.exp(0.5 * normals), rtol=1e-14)


def test_costs_begin_at_nothing():
    assert {type(value) for value in vars(Costs()).values()} == {int, float}
    assert not any(vars(Costs()).values())
