"""``mpifed check`` on valid and invalid user-defined methods of every family."""

from __future__ import annotations

import pytest
from verdicts import failures

from mpifed.algorithms import LSGD, LocalDualExtrapolation
from mpifed.cli.check import SAME_IN_GROUPS, problems_for

HEADER = """
import torch
from dataclasses import dataclass
from typing import ClassVar
from mpifed.core.algorithm import Algorithm
from mpifed.core.records import Record
"""
AVERAGING = """
@dataclass(frozen=True)
class Method(Algorithm):
    K: int = 2
    eta: float = 0.01

    steps = "K"
    shared = Record(x="x")
    message = Record(x="x")

    def client_round(self, now, shared, client, message, oracle):
        x = shared.x
        for _ in range(self.K):
            x = x - self.eta * oracle.grad(x, oracle.sample())
        message.x = x
"""
EXTRA = """
@dataclass(frozen=True)
class Method(Algorithm):
    K: int = 2
    eta: float = 0.01

    steps = "K"
    shared = Record(x="x", y="y")
    client = Record(gx="x")
    message = Record(dx="x", dy="y")

    def client_round(self, now, shared, client, message, oracle):
        x, y = shared.x, shared.y
        for _ in range(self.K):
            gx, gy = oracle.grad(x, y, oracle.sample())
            x = oracle.sets.x(x - self.eta * (gx + client.gx) / 2)
            y = oracle.sets.y(y + self.eta * gy)
        client.gx = gx
        message.dx, message.dy = x - shared.x, y - shared.y

    def server_round(self, now, shared, mean):
        shared.x, shared.y = shared.x + mean.dx, shared.y + mean.dy
"""
OPERATOR = """
@dataclass(frozen=True)
class Method(Algorithm):
    eta: float = 0.01

    family = "operator"
    partial_participation = False
    shared = Record(z="z")
    message = Record(z="z")

    def client_round(self, now, shared, client, message, oracle):
        z = shared.z
        z = z - self.eta * oracle.operator(z, oracle.sample())
        message.z = oracle.sets.z(z)
"""
COMPOSITION = """
@dataclass(frozen=True)
class Method(Algorithm):
    eta: float = 0.01

    family = "composition"
    shared = Record(x="x")
    message = Record(x="x")

    def client_round(self, now, shared, client, message, oracle):
        u, J = oracle.g_and_jacobian(shared.x, oracle.sample(of="g"))
        slope = oracle.grad_f(u, oracle.sample(of="f"))
        message.x = shared.x - self.eta * (J.mT @ slope.unsqueeze(-1)).squeeze(-1)
"""


@pytest.mark.parametrize("source", [AVERAGING, EXTRA, OPERATOR, COMPOSITION])
def test_valid_methods(verdicts, source):
    sound, lines = verdicts(source)
    assert sound, "\n".join(lines)
    assert "float64 and float32 on the CPU" in lines[0] and "temporary folders" in lines[0]
    assert all(line.startswith(("holds        ", "not checked  ")) for line in lines[1:])
    for statement in (
        f"{SAME_IN_GROUPS}, float64",
        f"{SAME_IN_GROUPS}, float32",
        "two runs give bitwise identical results",
        "a resumed run and an uninterrupted run give bitwise identical results",
        "points stay in the problem's sets",
    ):
        assert f"holds        {statement}" in lines
    partial = "rounds with 3 of the clients stay finite"
    if source is OPERATOR:  # partial_participation = False
        assert f"not checked  {partial}: the method needs every client in every round" in lines
    else:
        assert f"holds        {partial}" in lines
    if source is AVERAGING:  # a method of x alone
        assert "holds        4 rounds on a problem without y stay finite, float32" in lines
        refused = "not checked  4 rounds on a minimax problem stay finite: Method has no field 'y'"
        assert sum(line.startswith(refused) for line in lines) == 1
    elif source is not COMPOSITION:
        refused = (
            "not checked  4 rounds on a problem whose clients see different coordinates of y stay finite: "
        )
        assert sum(line.startswith(f"{refused}Method averages points that clients") for line in lines) == 1


@pytest.mark.parametrize(
    "old, new",
    [
        ("oracle.sets.y(y + self.eta * gy)", "y + self.eta * gy"),
        ("shared.x + mean.dx, shared.y + mean.dy", "shared.x + 3 * mean.dx, shared.y + mean.dy"),
    ],
    ids=["clients", "server"],
)
def test_infeasible_points(verdicts, old, new):
    (line,) = failures(verdicts(EXTRA, old, new))
    assert "points stay in the problem's sets" in line and "after round 1" in line
    assert "oracle.sets.x(x - eta * g)" in line and "constrained = False" in line


def test_a_method_without_support_for_sets(verdicts):
    sound, lines = verdicts(AVERAGING, '    steps = "K"', '    steps, constrained = "K", False')
    assert sound and any(line.startswith("not checked  points stay in the problem's sets") for line in lines)


LOOPED = "float64: the results of vectorised and of looped clients differ"
#: State outside of the records.
MEMORY = "message.x = x + MEMORY.pop(now.round - 1, 0)\n        MEMORY[now.round] = shared.x.clone()"
INVALID = [
    (EXTRA, "client.gx = gx", "client.gx = gx.mean(0, keepdim=True) * torch.ones_like(gx)", LOOPED),
    (COMPOSITION, "(J.mT @", "((J + J.sum(0)).mT @", LOOPED),
    # To rounding, the results of the loop and of all clients together agree.
    (AVERAGING, "message.x = x", "message.x = x * (1 + 1e-14 * len(x))", "float64: the results of groups of"),
    (
        AVERAGING,
        "message.x = x",
        "message.x = x + __import__('random').Random().random()",
        "two runs give bitwise identical results",
    ),
    (
        AVERAGING,
        "message.x = x",
        MEMORY,
        "a resumed run and an uninterrupted run give bitwise identical results",
    ),
    (AVERAGING, "message.x = x", "message.x = x / 0", "non-finite value in round 1"),
    (
        AVERAGING,
        "message.x = x",
        "message.x = x + self.missing",
        "attribute 'missing' (plugin.py, line 22)",
    ),
    (AVERAGING, "message.x = x", "message.x = x / (now.cohort - 3)", "rounds with 3 of the clients"),
    (AVERAGING, 'Record(x="x")\n    message', 'Record(z="z")\n    message', "4 rounds on a minimax problem"),
]


@pytest.mark.parametrize("source, old, new, message", INVALID)
def test_invalid_methods(verdicts, source, old, new, message):
    lines = failures(verdicts("MEMORY = {}\n" + source, old, new))
    assert any(message in line for line in lines), "\n".join(lines)


def test_only_composite_methods_run_on_a_convex_part():
    for method in (LSGD(K=1, eta=0.1), LocalDualExtrapolation(K=1, eta=0.1)):
        assert ("a game with a convex part" in problems_for(method)) == method.composite
