"""Blocks that every client has its own of: the iterate is their average, and a resumed run has it at once."""

import torch
from games import DX, Game, configuration

from mpifed.algorithms import FLRA
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.simulation import Simulation


def started(tmp_path, name):
    method = FLRA(tau=2, eta_1=0.05, eta_2=0.04)
    simulation = Simulation.from_settings(
        configuration(method, Game(clients=3), tmp_path / name), SerialComm()
    )
    simulation.start()
    return simulation


def test_the_average_is_the_iterate_before_and_after_a_restart(tmp_path):
    one, other = started(tmp_path, "one"), started(tmp_path, "other")
    for _ in range(2):
        one.step()
    point = one.point()
    torch.testing.assert_close(point[DX:], one.clients.buffer.mean(dim=0))
    other.shared.buffer.copy_(one.shared.buffer)
    other.clients.buffer.copy_(one.clients.buffer)
    assert not torch.equal(other.point(), point)
    other.restore(2, [])
    assert torch.equal(other.point(), point) and other.round == 2
