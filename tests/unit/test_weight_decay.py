"""``weight_decay`` adds (λ/2) ‖w‖² of the network's parameters, and nothing else, to the objective.

Tolerance 1e-12: the same numbers of about one, and their sums with a term, in another order.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from everything import PROBLEMS, SETTINGS
from everything import problem as built
from games import completed, configuration
from oracles import oracle_of, prepared, random_point

from mpifed.algorithms import FedAvg
from mpifed.base.settings import build, settings_of
from mpifed.core.problem import network_parameters
from mpifed.core.sampling import Sample

DECAY = 0.3
close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
WITH_DECAY = [name for name in SETTINGS if "weight_decay" in settings_of(PROBLEMS[name])]
LOSSES = [name for name in WITH_DECAY if name != "DistributionallyRobust"]


def test_the_problems_with_a_network_that_have_the_setting():
    """The regulariser c of DataCleaning is a weight decay above 0. MAML has none: it would need a further
    element of g."""
    networks = {name for name in SETTINGS if prepared(built(name)).network}
    others = {"DataCleaning", "SinusoidMAML", "FewShotMAML"}
    assert networks - {*WITH_DECAY} == others and {*WITH_DECAY} <= networks


def pair(name):
    """Return a problem without and with weight decay, a point, its x with 0 outside of the network, and the
    value of the term."""
    problems = [
        prepared(build(PROBLEMS[name], {**SETTINGS[name], "weight_decay": decay}, name))
        for decay in (0.0, DECAY)
    ]
    blocks, point = problems[0].variables(), random_point(problems[0])
    w = torch.zeros_like(point[0])
    named, inside = (blocks.unflatten("x", flat) for flat in (point[0], w))
    for parameter in network_parameters(problems[0]):
        inside[parameter].copy_(named[parameter])
    return problems, point, w, DECAY / 2 * float(w @ w)


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradients(name):
    problems, point, w, term = pair(name)
    (plain, *plain_y), (decayed, *decayed_y) = (gradients(problem, point) for problem in problems)
    if name != "ClientMixture":
        close(decayed, plain + DECAY * w.expand_as(plain))
        close(decayed_y, plain_y)
        factors = torch.ones(3)
    else:  # every client's loss has the term, and is multiplied by its weight
        factors = 3 * point[1]
        close(decayed, plain + factors[:, None] * DECAY * w)
        close(decayed_y[0], plain_y[0] + 3 * term * torch.eye(3, dtype=w.dtype))
    blocks = problems[0].variables()
    for client, factor in enumerate(factors.tolist()):
        batch = tuple(
            column.double() if column.is_floating_point() else column
            for column in problems[0].client_data(client)
        )
        before, after = (problem.loss(*map(blocks.unflatten, blocks, point), batch) for problem in problems)
        assert float(after - before) == pytest.approx(factor * term, rel=1e-11)


def gradients(problem, point):
    oracle = oracle_of(problem, batch_size=3, batched=True)
    result = oracle.grad(*point, oracle.sample(number=0))
    return result if isinstance(result, tuple) else (result,)


def test_the_composition():
    """The term is in the loss L of a client, and in the value λ exp(L / λ), for λ = 1, and its gradient."""
    problems, (x,), w, term = pair("DistributionallyRobust")
    (value, slope), (decayed, decayed_slope) = (values(problem, x) for problem in problems)
    assert decayed == pytest.approx(value * np.exp(term), rel=1e-12)
    close(decayed_slope, np.exp(term) * (slope + value * DECAY * w))


def values(problem, x):
    """Return f(g(x)) of client 0 and its gradient, from the oracle's Jacobian and gradient of f."""
    oracle = oracle_of(problem, batch_size=3, clients=[0])
    xi = oracle.sample(number=0)
    u, jacobian = oracle.g_and_jacobian(x, xi)
    value = problem.outer(u[0], tuple(column[0] for column in xi.batch))
    return float(value), torch.einsum("p,pd->d", oracle.grad_f(u, xi)[0], jacobian[0].view(len(u[0]), -1))


def test_measures_include_it_and_local_weight_decay_is_not_measured():
    """A local optimiser takes the same steps, but its weight decay is not in the objective."""
    method = FedAvg(K=2, eta=0.1)
    local = dataclasses.replace(method, local={"name": "sgd", "weight_decay": DECAY})
    points = []
    for one, decay in ((method, DECAY), (local, 0.0)):
        problem = build(PROBLEMS["Classification"], {**SETTINGS["Classification"], "weight_decay": decay}, "")
        sections = {"measures": {"of": ["stationarity"]}}
        simulation = completed(configuration(one, problem, "unused", noise=0, sections=sections))
        points.append(x := simulation.point())
        plain = prepared(built("Classification"), simulation.config.seed)
        gradient = oracle_of(plain, batched=True).grad(x, Sample()).mean(0) + decay * x
        assert simulation.evaluate()["gradient_x"] == pytest.approx(float(gradient.norm()), rel=1e-11)
    close(*points)
