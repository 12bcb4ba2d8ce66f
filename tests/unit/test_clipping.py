"""Gradient clipping by ``[oracle] clip``: what the oracle returns, and the share of clipped gradients."""

import math

import numpy as np
import pytest
import torch
from fields import Chain, Field
from games import Game, configuration, started
from oracles import oracle_of, prepared

import mpifed
from mpifed import ConfigError
from mpifed.algorithms import FedNormSGDA, LocalSGDA
from mpifed.core.noise import OracleOptions
from mpifed.core.problem import Game as AsOperator
from mpifed.parallel.comm import SerialComm

CLIENTS = 5


def parts(oracle, full) -> tuple[torch.Tensor, ...]:
    """The results of an oracle at a fixed point that are clipped, one after another."""
    blocks = [torch.linspace(-1, 2, size, dtype=torch.float64) for size in oracle.blocks.sizes.values()]
    xi = oracle.full_batch if full else oracle.sample()
    if "minimax" in oracle.problem.family:
        return tuple(oracle.grad(*blocks, xi))
    if oracle.problem.family == "operator":
        value = oracle.operator(*blocks, xi)
        split = getattr(oracle.problem, "split", None)
        return tuple(value.split(split, -1)) if split else (value,)
    g, jacobian = oracle.g_and_jacobian(*blocks, xi)
    return jacobian.flatten(1), oracle.grad_f(g, xi)


PROBLEMS = {
    "minimax": lambda: Game(clients=CLIENTS),
    "game": lambda: AsOperator(prepared(Game(clients=CLIENTS))),
    "operator": lambda: Field(clients=CLIENTS),
    "composition": lambda: Chain(clients=CLIENTS),
}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("jointly", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_results_are_scaled_down_to_the_norm(name, jointly, full):
    """The threshold is between the norms, so that some are clipped; the others keep their bits."""
    problem = prepared(PROBLEMS[name]())
    plain = parts(oracle_of(problem, batch_size=2, batched=True), full)
    oracle = oracle_of(problem, batch_size=2, batched=True)
    calls = [plain] if name in ("minimax", "game", "operator") else [(part,) for part in plain]
    norms = [[[math.hypot(*row) for row in part.tolist()] for part in call] for call in calls]
    if jointly:
        norms = [[[math.hypot(*row) for row in zip(*call)]] * len(call) for call in norms]
    oracle.clip, oracle.clip_jointly = float(np.mean(sorted(norms[0][0])[1:3])), jointly
    oracle.select_clients(slice(0, CLIENTS))
    clipped, found = np.zeros(CLIENTS, dtype=int), iter(parts(oracle, full))
    for call, of_call in zip(calls, norms):
        clipped += (np.array(of_call) > oracle.clip).any(0)
        for part, of_part, result in zip(call, of_call, found):
            for row, norm, ours in zip(part, of_part, result):
                if norm <= oracle.clip:
                    assert torch.equal(ours, row)
                else:
                    # The norms differ in their last bits.
                    torch.testing.assert_close(ours, row * (oracle.clip / norm), rtol=1e-14, atol=0)
    assert oracle.clipped.tolist() == clipped.tolist() and 0 < clipped.sum()


class Steep(Game):
    """A game with gradients of the size 1e200, whose squares overflow."""

    def loss(self, x, y, batch):
        return 1e200 * super().loss(x, y, batch)


@pytest.mark.parametrize("jointly", [False, True])
def test_large_gradients_are_not_taken_for_zero(jointly):
    """1e-14: some rounding errors."""
    oracle = oracle_of(prepared(Steep(clients=CLIENTS)), batch_size=2, batched=True)
    small = [part / 1e200 for part in parts(oracle, True)]
    oracle.clip, oracle.clip_jointly = 0.5, jointly
    oracle.select_clients(slice(0, CLIENTS))
    norms = [part.norm(dim=1, keepdim=True) for part in small]
    norms = [torch.hypot(*norms)] * 2 if jointly else norms
    for part, norm, ours in zip(small, norms, parts(oracle, True)):
        torch.testing.assert_close(ours, part * (0.5 / norm), rtol=1e-14, atol=0)


def simulation(clip, method=None, **run):
    method = method or LocalSGDA(q=2, eta_x=0.05, eta_y=0.05)
    sections = {"oracle": {"batch_size": 2, "clip": clip}}
    return started(configuration(method, Game(clients=CLIENTS), "unused", sections=sections, **run), 1)


@pytest.mark.parametrize("group", [1, 2, "all"])
def test_the_share_of_clipped_gradients(group):
    """Clients that are evaluated twice, or that have finished their steps, are not counted."""
    for clip, share in ((1e9, 0.0), (1e-9, 1.0)):
        method = FedNormSGDA(tau=(1, 2, 3, 1, 2), eta_x=0.05, eta_y=0.05, gamma_x=0.05, gamma_y=0.05)
        found = simulation(clip, method, group=group)
        assert found.evaluate()["clipped"] == share
    found = simulation(3.5, group=group)
    assert found.rounds.executor.calls_in_round == 2 * CLIENTS
    assert found.evaluate()["clipped"] == simulation(3.5, group=1).evaluate()["clipped"] not in (0, 1)
    assert "clipped" not in simulation(None).evaluate(simulation(None).shared)


@pytest.mark.parametrize("settings, message", [
    ({"clip": 0.0}, "greater than 0"),
    ({"clip_over": "all"}, "clip_over has no effect without clip"),
])  # fmt: skip
def test_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        mpifed.Simulation(Game(), LocalSGDA(q=1, eta_x=0.1, eta_y=0.1), oracle=settings, comm=SerialComm())
    assert OracleOptions().clip is None
