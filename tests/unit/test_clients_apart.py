"""Clients stepped together stay apart; records and costs are what they are called."""

import numpy as np
import pytest
import torch
from fields import Chain
from games import configuration

from mpifed.algorithms import MFCGD
from mpifed.algorithms.composition import _bounded
from mpifed.core.records import Record
from mpifed.core.streams import Stream
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.communication_cost import Costs, Sent
from mpifed.simulation.federated_clock import Clock, member_seconds
from mpifed.simulation.simulation import Simulation


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
        simulation = Simulation.from_settings(config, SerialComm())
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
