"""Minibatches of different sizes in a group: values, bits and masks, for every family of problems."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from baselines import Half
from fields import Chain, Field
from games import Game, configuration, started
from levels import Levels
from oracles import oracle_of, prepared, random_point

from mpifed.algorithms import FedAvg
from mpifed.base.nested import leaves
from mpifed.core.oracle import EVALUATIONS
from mpifed.parallel.comm import CollectiveError

CLIENTS = 5


def evaluations(problem, batched, clients, step=0, active=None):
    """Return the results of all evaluations of a client's step on the sample of a step, by client.

    Args:
        active: numbers of steps of the clients; only those that take the step are evaluated.
    """
    oracle = oracle_of(problem, 3, batched, clients, sampling="without_replacement")
    point = [block.repeat(len(clients), 1) for block in random_point(problem)]
    if active is None:
        xi = [oracle.sample() for _ in range(step + 1)][-1]
        return leaves(EVALUATIONS[problem.family](oracle, *point, xi)), oracle
    for k, _ in enumerate(oracle.steps(np.array(active))):
        xi = oracle.sample()
        if k == step:
            results = leaves(EVALUATIONS[problem.family](oracle, *point, xi))
    return results, oracle


@pytest.mark.parametrize("kind", [Game, Half, Field, Chain, Levels])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_values_and_bits(kind, step):
    """Clients of 5 to 9 rows: alone, looped over, and in groups; 1e-12, because sums of a few rows differ by
    some 1e-16."""
    problem = prepared(kind(clients=CLIENTS))
    together, _ = evaluations(problem, True, [*range(CLIENTS)], step)
    for clients in ([0, 1], [2, 3, 4], [1, 4], [0, 0]):
        parts, _ = evaluations(problem, True, clients, step)
        assert all(torch.equal(part, whole[clients]) for part, whole in zip(parts, together))
    for client in range(CLIENTS):
        alone, _ = evaluations(problem, False, [client], step)
        for one, whole in zip(alone, together):
            torch.testing.assert_close(one[0], whole[client], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [Game, Chain])
def test_finished_clients_are_left_out(kind):
    """The function is evaluated for the clients that take the step, which keep their bits."""
    problem, tau = prepared(kind(clients=CLIENTS)), [4, 1, 3, 4, 2]
    everyone, _ = evaluations(problem, True, [*range(CLIENTS)], 2)
    active, oracle = evaluations(problem, True, [*range(CLIENTS)], 2, tau)
    for whole, part in zip(everyone, active):
        assert torch.equal(whole[[0, 2, 3]], part[[0, 2, 3]])
    calls = {Game: 1, Chain: 2}[kind]
    assert oracle.calls.tolist() == [calls * (steps > 2) for steps in tau]


def test_the_sizes_of_the_evaluated_batches():
    problem, sizes = prepared(Game(clients=CLIENTS)), []
    loss = problem.loss

    def recorded(x, y, batch):
        sizes.append(len(batch[0]))
        return loss(x, y, batch)

    problem.loss = recorded
    evaluations(problem, True, [*range(CLIENTS)], 1, [2, 2, 1, 2, 1])  # of 5, 6, -, 8 and - rows
    assert sorted(sizes) == [2, 3]


def test_compiled_gradients_need_minibatches_of_one_size(tmp_path):
    oracle = {"batch_size": 3, "sampling": "without_replacement"}
    sections = {"oracle": oracle, "record": ()}
    config = configuration(
        FedAvg(K=2, eta=0.1), Half(clients=CLIENTS), tmp_path, compile="default", sections=sections
    )
    with pytest.raises(CollectiveError, match="of fewer than 3 rows at the end of an epoch: set oracle"):
        started(config)
