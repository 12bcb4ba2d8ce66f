"""``mpifed check`` on valid and invalid user-defined methods of every family."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from verdicts import failures, verdict_of

from mpifed.algorithms import LSGD, LocalDualExtrapolation
from mpifed.cli.check import Report, _Means, _Writes, check_method, problems_for
from mpifed.core.records import Blocks, Record, State

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


@pytest.fixture
def verdicts(tmp_path, capsys):
    """``verdicts(source, old, new, ...)``: whether the source with replacements passes, and the lines."""
    return partial(verdict_of, capsys, tmp_path / "plugin.py", "Method", HEADER)


GROUPS = "groups of 2, 3 and all clients give bitwise the same result"


@pytest.mark.parametrize("source", [AVERAGING, EXTRA, OPERATOR, COMPOSITION])
def test_valid_methods(verdicts, source):
    sound, lines = verdicts(source)
    assert sound, "\n".join(lines)
    assert "float64 and float32 on the CPU" in lines[0] and "temporary folders" in lines[0]
    assert all(line.startswith(("holds        ", "not checked  ")) for line in lines[1:])
    for statement in (
        "vectorised clients agree with looped clients",
        f"{GROUPS}, float64",
        f"{GROUPS}, float32",
        "a second run gives bitwise the same result",
        "a resumed run gives bitwise the same result",
        "points stay in the problem's sets",
    ):
        assert f"holds        {statement}" in lines
    average = "averages over 3 of 5 clients equal plain sums"
    if source is OPERATOR:  # partial_participation = False
        assert f"not checked  {average}: the method needs every client in every round" in lines
    else:
        assert f"holds        {average}, weights = uniform" in lines
        assert f"holds        {average}, weights = samples" in lines
    if source is AVERAGING:  # a method of x alone
        assert "holds        4 rounds on a problem without y stay finite, float32" in lines
        refused = "not checked  rounds on a minimax problem: Method has no field 'y'"
        assert any(line.startswith(refused) for line in lines)


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


MEAN = "client.gx = gx.mean(0, keepdim=True) * torch.ones_like(gx)"
VECTORISED = "vectorised clients agree with looped clients: the results differ"
INVALID = [
    (
        OPERATOR,
        "eta: float = 0.01",
        "eta: float = 0.01\n    __hash__ = None",
        "the hyperparameters are a frozen dataclass: TypeError: unhashable type",
    ),
    (EXTRA, "x, y = shared.x, shared.y\n", "x, y = shared.x, shared.y\n        x -= 1\n", "changed shared.x"),
    (EXTRA, "client.gx = gx", MEAN, VECTORISED),
    (AVERAGING, "message.x = x", "message.x = x + torch.rand(())", "a second run gives bitwise the same"),
    (AVERAGING, "message.x = x", "pass", "never fills message.x"),
    (AVERAGING, "message.x = x", "message.x = x / 0", "non-finite value in round 1"),
    (
        AVERAGING,
        "message.x = x",
        "message.x = x + self.missing",
        "has no attribute 'missing' (plugin.py, line ",
    ),
    (
        AVERAGING,
        "- self.eta *",
        "- torch.tensor(0.01, dtype=torch.float32) *",
        "float64 stays float64: plugin.py, line ",
    ),
    (
        AVERAGING,
        'Record(x="x")\n    message',
        'Record(z="z")\n    message',
        "FAILS        the method runs on a minimax problem",
    ),
    (COMPOSITION, "(J.mT @", "((J + J.sum(0)).mT @", VECTORISED),
]


@pytest.mark.parametrize("source, old, new, message", INVALID)
def test_invalid_methods(verdicts, source, old, new, message):
    lines = failures(verdicts(source, old, new))
    assert any(message in line for line in lines), "\n".join(lines)


def test_results_that_depend_on_the_size_of_a_group(verdicts):
    """To rounding, the results of the loop and of all clients together agree."""
    lines = failures(verdicts(AVERAGING, "message.x = x", "message.x = x * (1 + 1e-14 * len(x))"))
    assert len(lines) == 1 and f"{GROUPS}, float64" in lines[0]
    assert "the results of groups of 3 and of 2 differ by up to" in lines[0]
    _, lines = verdicts(EXTRA, "client.gx = gx", MEAN)
    assert f"not checked  {GROUPS}: vectorised and looped clients do not agree" in lines


def test_only_composite_methods_run_on_a_convex_part():
    for method in (LSGD(K=1, eta=0.1), LocalDualExtrapolation(K=1, eta=0.1)):
        assert ("a game with a convex part" in problems_for(method)) == method.composite


def test_a_method_without_a_source_file(capsys):
    report = Report(None, printed=True)
    check_method(LocalDualExtrapolation(K=1, eta=0.01), report)
    expected = "not checked  float64 stays float64: the source code is not in a file"
    assert expected in capsys.readouterr().out and report.sound


def test_precision_of_functions_in_other_files_is_not_checked(verdicts, tmp_path, monkeypatch):
    (tmp_path / "helping.py").write_text(
        "import torch\n\ndef half(x):\n    return x * torch.tensor(0.3, dtype=torch.float32)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    _, lines = verdicts(AVERAGING, "message.x = x", "from helping import half\n        message.x = half(x)")
    assert "holds        float64 stays float64" in lines


def test_state_outside_the_records(verdicts):
    memory = "MEMORY = {}\n\n@dataclass"
    keep = "MEMORY[now.round] = shared.x.clone()\n        message.x = x + MEMORY.pop(now.round - 1, 0)"
    lines = failures(verdicts(AVERAGING, "@dataclass", memory, "message.x = x", keep))
    message = "a resumed run gives bitwise the same result: the results differ"
    assert any(message in line for line in lines)


STAGE = SimpleNamespace(phase=SimpleNamespace(name="round"))
LAYOUT = Record(x="x", u="x").layout(Blocks(x={"w": (2,)}))


@pytest.mark.parametrize("client, field, message", [
    (1, None, None),  # the client that is stepped
    (0, None, "records of clients outside its group"),
    (2, None, "records of clients outside its group"),
    (None, 3, "changed shared.u"),
    (None, 0, "changed shared.x"),
])  # fmt: skip
def test_writes_to_other_records(client, field, message):
    shared, clients = State(LAYOUT, torch.zeros(4)), SimpleNamespace(buffer=torch.zeros(3, 2))
    observer, cohort = _Writes(), SimpleNamespace(local=np.array([1]))
    observer.simulation = SimpleNamespace(shared=shared, clients=clients)
    observer.before_clients(STAGE, cohort, slice(0, 1))
    if client is not None:
        clients.buffer[client, 1] = 1
    if field is not None:
        shared.buffer[field] = 1
    if message is None:
        observer.after_clients(STAGE, cohort, slice(0, 1))
    else:
        with pytest.raises(AssertionError, match=message):
            observer.after_clients(STAGE, cohort, slice(0, 1))


@pytest.mark.parametrize("weights, average", [("uniform", 2.0), ("samples", 2.5)])
@pytest.mark.parametrize("error, sound", [(0.0, True), (1e-13, True), (1.5e-12, False), (1.0, False)])
def test_wrong_averages(weights, average, error, sound):
    """The messages of clients with 5 and 15 samples are 1 and 3. The third row belongs to no client."""
    observer, cohort = _Means(), SimpleNamespace(local=np.array([0, 1]), members=np.array([4, 7]))
    observer.simulation = SimpleNamespace(
        problem=SimpleNamespace(client_size={4: 5, 7: 15}.get),
        config=SimpleNamespace(participation=SimpleNamespace(weights=weights)),
    )
    messages = SimpleNamespace(buffer=torch.tensor([[1.0], [3.0], [99.0]]).double())
    observer.after_clients(SimpleNamespace(messages=messages), cohort, slice(0, 2))
    mean = SimpleNamespace(buffer=torch.tensor([average * (1 + error)], dtype=torch.float64))
    stage = SimpleNamespace(mean=mean, phase=STAGE.phase)
    if sound:
        observer.after_mean(stage, cohort)
    else:
        with pytest.raises(AssertionError, match="the average of phase 'round'"):
            observer.after_mean(stage, cohort)
