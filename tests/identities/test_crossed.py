"""Every method, and options of its local steps, crossed with cohorts, compression, weights, sets and groups:
right, or refused with a reason.

Where a plain loop exists, ``tests/parallel`` compares the points. Here, points are finite and in the sets,
the uploaded bytes are counted from the declared fields, results and costs do not depend on the group, and the
mean of a step over all cohorts is the step of all clients.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from baselines import Half
from bounded import Bounded, within
from everything import METHODS, method
from fields import Chain
from games import Game, configuration, started
from levels import Levels
from mixtures import LogCosh

from mpifed import ConfigError
from mpifed.algorithms import ALGORITHMS
from mpifed.core.algorithm import communicated_fields
from mpifed.core.records import Compressed
from mpifed.core.sets import Ball, Box
from mpifed.parallel.comm import CollectiveError

CLIENTS, ROUNDS = 3, 2
#: A step size that falls from round to round.
FALLING = {"name": "exponential", "value": 0.02, "factor": 0.5, "per": "round"}
DECAYED = {"name": "sgd", "momentum": 0.6, "nesterov": True, "weight_decay": 0.4}
#: Options of local steps: method and settings that are added to its small ones.
OPTIONS = {
    "FedAvg decayed": ("FedAvg", dict(server="average", eta=FALLING, local=DECAYED)),
    "FedProx decayed": ("FedProx", dict(eta=FALLING, local=DECAYED)),
    "FedDyn decayed": ("FedDyn", dict(local=DECAYED)),
    "FedExP decayed": ("FedExP", dict(local=DECAYED)),
    "LocalSGDA alternating": ("LocalSGDA", dict(alternating=True, eta_x=FALLING)),
    "FSGDA alternating": ("FSGDA", dict(alternating=True, eta_yl=FALLING)),
    "FESSGDA alternating": ("FESSGDA", dict(alternating=True, eta_xl=FALLING)),
    "SCAFFOLD by round": ("SCAFFOLD", dict(eta_l=FALLING)),
    "FGDA by round": ("FGDA", dict(eta=FALLING)),
    "FedAvg in epochs": ("FedAvg", dict(server="average", K={"epochs": 2}, local=DECAYED)),
    "SCAFFOLD in epochs": ("SCAFFOLD", dict(K={"epochs": 2})),
    "FedNova in epochs": ("FedNova", dict(tau={"epochs": 2})),
    "LocalSGDA in epochs": ("LocalSGDA", dict(q={"epochs": 2}, alternating=True)),
}
#: Name of a case → method and changed settings.
CASES = {name: (name, {}) for name in METHODS} | OPTIONS

#: Family → a problem without sets (a mixture always has one), and a problem with sets that bind.
PROBLEMS = {
    "minimax": (Game, lambda clients: Bounded(clients=clients, set_x=Box(-0.45, 0.3), set_y=Ball(0.1))),
    "minimisation": (Half, within(Half, Box(0.05, 0.6))),
    "composition": (Chain, within(Chain, Ball(0.5))),
    "bilevel": (Levels, within(Levels, Ball(0.5))),
    "mixture": (LogCosh, lambda clients: LogCosh(clients=clients, set_x=Ball(0.5))),
}
PROBLEMS["operator"] = PROBLEMS["minimax"]
BERNOULLI = {"name": "bernoulli", "probability": [0.4, 0.9, 0.6]}
WEIGHTED = {"name": "weighted", "weights": [1.0, 2.0, 5.0], "unbiased": True}
#: Name → participation, and the number of members if it is known.
MEMBERS = {
    "all": ({}, CLIENTS),
    "cohort": ({"cohort": 2}, 2),
    "weighted": ({"cohort": 2, "availability": WEIGHTED}, 2),
    "bernoulli": ({"availability": BERNOULLI}, None),
    "dropout": ({"cohort": 2, "dropout": 0.4}, None),
}
MESSAGES = {
    "plain": {},
    "top-k": {"compression": {"name": "top-k", "ratio": 0.4}, "error_feedback": True},
    "qsgd": {"compression": {"name": "qsgd", "levels": 3}},
}
#: All pairs of members and messages; weights and sets vary such that every pair of values occurs.
ROWS = [
    (members, message, ("uniform", "samples")[(i + j) % 2], (i // 2 + j) % 2 == 1)
    for (i, members), (j, message) in itertools.product(enumerate(MEMBERS), enumerate(MESSAGES))
]
ROUNDING = 1e-12  # of projections of points of about 1
#: Of sums of some numbers of about 1, and of their cancellation in variates divided by a step of 0.01.
DIGITS = dict(rtol=1e-9, atol=1e-9)


def start(case, bound, members, message, weights, group, **settings):
    """Return a simulation after its start."""
    name, changes = CASES[case]
    kind = "mixture" if ALGORITHMS[name].mixture else ALGORITHMS[name].family
    problem = PROBLEMS[kind][bound](clients=CLIENTS)
    sections = {"participation": {**MEMBERS[members][0], "weights": weights}, "message": MESSAGES[message]}
    settings |= dict(rounds=ROUNDS, group=group, sections=sections | {"record": ()})
    return started(configuration(method(name, **changes), problem, "unused", **settings))


def blocks_of(simulation) -> list[str]:
    """Return the blocks of the problem whose point the server stores; in FLRA, clients store y."""
    return [block for block in simulation.problem.variables() if block in simulation.shared]


@pytest.mark.parametrize("case", CASES)
def test_a_combination_is_right_or_refused(case):
    name, ran = CASES[case][0], 0
    for number, (members, message, weights, bound) in enumerate(ROWS):
        row = (bound, members, message, weights)
        try:
            runs = [start(case, *row, group) for group in ((1, "all") if number % 2 == 0 else (1,))]
        except (ConfigError, CollectiveError) as error:
            assert number and "Traceback" not in str(error), row
            assert ALGORITHMS[name].__name__ in str(error) or name in str(error), (row, error)
            continue
        ran += 1
        first = runs[0]
        before = dataclasses.replace(first.rounds.costs)
        starts = {block: getattr(first.shared, block).clone() for block in blocks_of(first)}
        for _ in range(ROUNDS):
            for run in runs:
                run.step()
            assert torch.isfinite(first.point()).all(), row
            for block, initial in starts.items():  # may be outside of the set until clients participate
                value = getattr(first.shared, block)
                projected = getattr(first.problem.sets, block)(value)
                moved = not torch.equal(value, initial)
                assert not moved or (projected - value).norm() < ROUNDING, (row, block)
        if MEMBERS[members][1]:
            costs = first.rounds.costs
            sent = MEMBERS[members][1] * bytes_per_client(first, costs.phases - before.phases)
            assert moved and costs.bytes_up - before.bytes_up == sent, row
        for second in runs[1:]:
            point = first.point()
            torch.testing.assert_close(second.point(), point, **DIGITS, msg=lambda text: f"{row}: {text}")
            for cost in ("bytes_up", "bytes_down", "oracle_calls"):
                assert getattr(second.rounds.costs, cost) == getattr(first.rounds.costs, cost), (row, cost)
    assert ran


def bytes_per_client(simulation, phases: int) -> int:
    """Return the bytes that a client uploads in all rounds, from the declared fields of the messages.

    Args:
        phases: number of phases in all rounds, including those with a condition that have taken place.
    """
    always, sometimes = [], []
    for stage in simulation.rounds._stages:
        layout, total = stage.messages.layout, 0
        own = layout.record.fields_of_type(Compressed)
        for field in communicated_fields(layout.record):
            rule = simulation.config.message.compression
            rule = getattr(simulation.config.algorithm, own[field].by) if field in own else rule
            first, last = layout.span(field)
            total += (rule.bytes(last - first, 8) if rule else 8 * (last - first)) if last > first else 0
        (sometimes if stage.phase.when else always).append(total)
    return ROUNDS * sum(always) + (phases - ROUNDS * len(always)) * sum(sometimes)


#: Methods without an unbiased step although ``availability.unbiased`` is accepted, with the reason.
BIASED = {
    "FedAvg": "the server step of Yogi is no linear function of the average",
    **dict.fromkeys(("FedDyn", "FedDyn decayed"), "one message serves both x and the stored gradients"),
    "MIFA": "the step is the mean of the memories of all clients, for any probabilities",
    "DRFA": "the losses are no linear functions of the snapshot at which they are evaluated",
}


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("case", CASES)
def test_the_mean_of_a_step_over_all_cohorts(case, weights, monkeypatch):
    """With ``unbiased``, the mean over all cohorts of the point after a round is that of all clients."""
    chances = np.array(BERNOULLI["probability"])
    law = {"availability": BERNOULLI | {"unbiased": True}}

    def after_a_round(there, participation):
        monkeypatch.setitem(MEMBERS, "these", (participation, None))
        simulation = start(case, False, "these", "plain", weights, 1, noise=0, batch_size=0)
        drawn = simulation.rounds.coordinator.participants
        monkeypatch.setattr(drawn, "selected", lambda r, number: np.flatnonzero(there))
        simulation.step()
        return torch.cat([getattr(simulation.shared, block).clone() for block in blocks_of(simulation)])

    try:
        cohorts = itertools.product([False, True], repeat=CLIENTS)
        mean = sum(
            np.where(there, chances, 1 - chances).prod() * after_a_round(there, law) for there in cohorts
        )
    except ConfigError as error:
        assert "availability.unbiased" in str(error) or "full participation" in str(error)
        return
    whole = after_a_round([True] * CLIENTS, {})
    close = torch.allclose(mean, whole, rtol=0, atol=1e-12)
    assert close == (case not in BIASED), (
        f"declare why in {CASES[case][0]}.bias, or here in BIASED: differs by {float((mean - whole).norm())}"
    )
