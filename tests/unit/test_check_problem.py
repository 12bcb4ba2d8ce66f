"""``mpifed check`` on valid and invalid user-defined problems of every family."""

from __future__ import annotations

import math

import pytest
from commands import output_of
from verdicts import failures

from mpifed.cli.check import SAME_IN_GROUPS
from mpifed.core.derivative_checks import DERIVATIVES
from mpifed.core.validation import Case, NotChecked
from mpifed.simulation import setup

HEADER = """
import numpy as np
import torch
from dataclasses import dataclass
from mpifed.core.problem import Composition, Minimax, Minimisation, Operator
from mpifed.core.records import Blocks
from mpifed.core.sets import Ball, Box, Sets
from mpifed.core.streams import generator

class Rows:
    def client_data(self, client):
        rows = generator(0, "rows", client).standard_normal((5 + client, 3))
        return (torch.from_numpy(rows),)
"""
BILINEAR = """
@dataclass
class Problem(Minimax):
    clients: int = 3

    def variables(self):
        return Blocks(x={"x": (3,)}, y={"y": (3,)})

    def initial(self, rng):
        return {"x": torch.ones(3), "y": torch.ones(3)}

    def client_data(self, client):
        return (torch.tensor([1.0 + client]),)

    def gradients(self, x, y, batch):
        c = batch[0][:, :1]
        return c * y + 0.1 * x, c * x - 0.1 * y
"""
LOSS = """
@dataclass
class Problem(Rows, Minimax):
    clients: int = 3
    test_rows = 10
    maximised = frozenset({"score"})

    def prepare(self, seed, data_dir=None):
        self.sets = Sets(y=Ball(1.0))
        self.tests = torch.from_numpy(generator(seed, "tests").standard_normal((10, 3)))

    def variables(self):
        return Blocks(x={"w": (3,)}, y={"y": (1,)})

    def loss(self, x, y, batch):
        errors = batch[0] @ x["w"] - 1
        return (errors**2).mean() * (1 + y["y"].sum()) + 0.05 * (x["w"] ** 2).sum()

    def predict(self, x, y, rows):
        return self.tests[rows].to(x["w"]) @ x["w"]

    def metrics(self, x, y, predictions):
        return {"score": predictions.mean()}
"""
PLAIN = """
@dataclass
class Problem(Rows, Minimisation):
    clients: int = 3

    def variables(self):
        return Blocks(x={"w": (3,)})

    def loss(self, x, batch):
        return ((batch[0] @ x["w"] - 1) ** 2).mean()
"""
OPERATOR = """
@dataclass
class Problem(Rows, Operator):
    clients: int = 3
    monotone = True

    def variables(self):
        return Blocks(z={"z": (3,)})

    def operator(self, z, batch):
        return 2 * z + batch[0].mean(1)
"""
COMPOSITION = """
@dataclass
class Problem(Rows, Composition):
    clients: int = 3
    inner_size = 2

    def variables(self):
        return Blocks(x={"w": (3,)})

    def inner(self, x, batch):
        score = batch[0] @ x["w"]
        return torch.stack([score.mean(), (score**2).mean()])

    def outer(self, u, batch):
        return (u**2).sum() / 2 + u[0]

    def jacobian(self, x, batch):
        score = (batch[0] @ x.unsqueeze(-1)).squeeze(-1)
        u = torch.stack([score.mean(1), (score**2).mean(1)], dim=1)
        J = torch.stack([batch[0].mean(1), 2 * (score.unsqueeze(-1) * batch[0]).mean(1)], dim=1)
        return u, J

    def outer_gradient(self, u, batch):
        return u + torch.tensor([1.0, 0.0])
"""
WEIGHTS = """
@dataclass
class Problem(Rows, Minimax):
    clients: int = 3
    sets = Sets(y=Ball(1.0))
    separate_coordinates = True

    def variables(self):
        return Blocks(x={"w": (3,)}, y={"y": (3,)})

    def client_data(self, client):
        rows = super().client_data(client)[0]
        return rows, torch.full((len(rows),), client)

    def loss(self, x, y, batch):
        return 3 * y["y"][batch[1][:1]].sum() * ((batch[0] @ x["w"] - 1) ** 2).mean()
"""
DRAWN = """
@dataclass
class Problem(Minimax):
    clients: int = 3

    def variables(self):
        return Blocks(x={"w": (2,)}, y={"y": (2,)})

    def draw(self, stream, size):
        return (stream.normal(size, 2),)

    def loss(self, x, y, batch):
        return (batch[0] @ x["w"]).mean() ** 2 + x["w"] @ y["y"] - (y["y"] ** 2).sum()
"""


GRADIENTS = """
    def gradients(self, x, batch):
        rows = batch[0]
        errors = (rows @ x.unsqueeze(-1)).squeeze(-1) - 1
        return 2 * (errors.unsqueeze(-1) * rows).mean(1)
"""
DIFFERENTIATED = COMPOSITION[: COMPOSITION.index("    def jacobian")]
GRADIENT = "gradients agree with finite differences of the loss"
JACOBIANS = "Jacobians agree with finite differences of inner"
COORDINATES = "clients see the same coordinates of a constrained y"
OUTER = "outer gradients agree with finite differences of outer"
BOUNDARY = "functions have finite values and correct derivatives on the boundary of the sets"
BOXED = (
    "clients: int = 3",
    """clients: int = 3
    sets = Sets(x=Box(0.0, 1e6))

    def initial(self, rng):
        return {"x": torch.ones(3)}
""",
)
MONOTONE = "the operator is monotone on pairs of points"
NUMPY = ('batch[0] @ x["w"]', 'torch.from_numpy(batch[0].numpy() @ x["w"].numpy())')


@pytest.mark.parametrize(
    "source",
    [
        (BILINEAR,),
        (LOSS,),
        (WEIGHTS,),
        (PLAIN + GRADIENTS, *NUMPY),  # without autograd
        (OPERATOR, "return 2 * z", "batch[0].mul_(2)\n        return 2 * z"),  # it gets copies
        (COMPOSITION,),
        (DRAWN,),
    ],
)
def test_valid_problems(verdicts, source):
    sound, lines = verdicts(*source)
    assert sound, "\n".join(lines)
    assert "float64 and float32 on the CPU" in lines[0] and "temporary folders" in lines[0]
    assert all(line.startswith(("holds        ", "not checked  ")) for line in lines[1:])
    assert not any("ranks" in line for line in lines)
    for statement in ("4 rounds stay finite and in the sets", SAME_IN_GROUPS):
        assert all(f"holds        {statement}, {dtype}" in lines for dtype in ("float64", "float32"))


def outcomes(source: str, *replaced: str) -> list[str]:
    """Return the outcomes of the checks of derivatives of a plugin."""
    assert all(old in source for old in replaced[::2])
    for old, new in zip(replaced[::2], replaced[1::2]):
        source = source.replace(old, new)
    exec(HEADER + source, defined := {})
    problem, lines = defined["Problem"](), []
    problem.prepare(0)
    for check in DERIVATIVES[problem.family]:
        try:
            lines.append(f"{check.statement}: {' '.join(check.errors(Case(problem))) or 'holds'}")
        except NotChecked as error:
            lines.append(f"{check.statement}: not checked: {error}")
    return lines


VALID = [
    ((BILINEAR,), f"{GRADIENT}: not checked: the problem defines no loss; its gradients have symmetric"),
    ((LOSS,), f"{GRADIENT}: holds", f"{COORDINATES}: holds"),
    ((WEIGHTS,), f"{GRADIENT}: holds", f"{COORDINATES}: not checked: separate_coordinates = True"),
    ((BILINEAR,), f"{COORDINATES}: not checked: y has no set"),
    ((PLAIN,), f"{GRADIENT}: holds"),
    ((PLAIN + GRADIENTS,), f"{GRADIENT}: holds"),
    ((BILINEAR,), f"{BOUNDARY}: not checked: the problem has no sets"),
    ((LOSS,), f"{BOUNDARY}: holds"),
    ((PLAIN + GRADIENTS, *BOXED), f"{BOUNDARY}: holds"),
    # Beyond the boundary, differences are not finite.
    (
        (PLAIN + GRADIENTS, *BOXED, "** 2).mean()", '** 2).mean() + 0 * x["w"].sqrt().sum()'),
        f"{BOUNDARY}: holds",
    ),
    ((OPERATOR,), f"{MONOTONE}: holds"),
    ((OPERATOR, "monotone = True", ""), f"{MONOTONE}: not checked: the problem has monotone = None"),
    ((COMPOSITION,), f"{JACOBIANS}: holds", f"{OUTER}: holds"),
    ((DIFFERENTIATED,), f"{JACOBIANS}: holds", f"{OUTER}: holds"),
    ((COMPOSITION, "def outer(", "def other("), f"{OUTER}: not checked: the problem defines no outer"),
]


@pytest.mark.parametrize("source, expected", [(source, lines) for source, *lines in VALID])
def test_valid_derivatives(source, expected):
    lines = outcomes(*source)
    assert all(any(line.startswith(start) for line in lines) for start in expected), lines


SLOPE = "∂loss/∂x of client 0"
SYMMETRY = "expected ∂g{0}/∂{1} to be the transpose of ∂g{1}/∂{0}"
START = """
    def initial(self, rng):
        return {"x": torch.from_numpy(np.random.default_rng().standard_normal(3))}

    def variables"""
LAST = """
    def client_data(self, client):
        rows, = super().client_data(client)
        return (rows + np.random.default_rng().random() if client == 2 else rows,)

    def variables"""
WRONG = [
    (BILINEAR, "c * x - 0.1 * y", "-c * x - 0.1 * y", SYMMETRY.format("x", "y")),
    (BILINEAR, "c * y + 0.1 * x", "c * y + x.roll(1, -1)", SYMMETRY.format("x", "x")),
    (BILINEAR, "c * x - 0.1 * y", "c * x - y * y.roll(1, -1)", SYMMETRY.format("y", "y")),
    (LOSS, '(x["w"] ** 2).sum()', '(x["w"].detach() ** 2).sum()', f"{SLOPE} along w["),
    (PLAIN, "** 2).mean()", '** 2).mean() + x["w"].detach().sum()', f"{SLOPE} along w["),
    (PLAIN, 'batch[0] @ x["w"]', '(batch[0] @ x["w"]).float().double()', SLOPE),
    (PLAIN + GRADIENTS, "return 2 *", "return 2.001 *", f"{GRADIENT}: {SLOPE} along w["),
    (OPERATOR, "2 * z", "-2 * z", "expected ⟨V(z) - V(z'), z - z'⟩ >= 0, got -"),
    (COMPOSITION, "2 * (score", "(score", "∂inner[1]/∂x of client 0 along w["),
    (COMPOSITION, "2).mean(1)], dim", "3).mean(1)], dim", "the value of inner() differ by up to"),
    (COMPOSITION, "u + torch", "-u + torch", "∂outer/∂u of client 0 along u["),
    (
        PLAIN,
        *BOXED,
        "** 2).mean()",
        '** 2).mean() - x["w"].log().sum()',
        "loss() is not finite at a point on the bo",
    ),
    (
        PLAIN,
        *BOXED,
        "** 2).mean()",
        '** 2).mean() + x["w"].sqrt().sum()',
        "∂loss/∂x is not finite at a point",
    ),
    (
        PLAIN + GRADIENTS,
        *BOXED,
        "return 2 *",
        "return 2 * (x > 0) *",
        "boundary of the set of x, ∂loss/∂x of",
    ),
    (WEIGHTS, "separate_coordinates = True", "", f"{COORDINATES}: the gradients of two clients"),
]


@pytest.mark.parametrize(
    "source, replaced, message", [(source, replaced, message) for source, *replaced, message in WRONG]
)
def test_wrong_derivatives(source, replaced, message):
    assert any(message in line for line in outcomes(source, *replaced))


INVALID = [
    (LOSS, 'frozenset({"score"})', 'frozenset({"accuracy"})', "names of metrics (score), got accuracy"),
    (LOSS, '{"score": predictions.mean()}', '{"a/b": predictions.mean()}', "'a/b'"),
    (PLAIN, "    def variables", START, "initial() returns another point for block 'x' when it is"),
    (PLAIN, "    def variables", LAST, "two runs with the same seed give bitwise identical results"),
    (LOSS, "Ball(1.0)", "lambda v: v / 2", "projecting a point twice must give the same point"),
    # A run would loop over the clients, but the author of analytic gradients can remove the cause.
    (BILINEAR, "c * y + 0.1 * x", "(1 + 1e-10 * len(c)) * (c * y + 0.1 * x)", "depend on its position"),
    (
        LOSS, "tests[rows].to", "tests[rows].sub(1e-6 * self.tests[rows].mean(0)).to",
        "float64: predict() returns other scores for rows 0 and 1 alone",
    ),
    (
        PLAIN, 'batch[0] @ x["w"]', 'batch[0] @ batch[0] @ x["w"]',
        "functions of a problem get the rows of one client",
    ),
    (LOSS, '.to(x["w"])', "", "float32: Problem.predict failed: RuntimeError"),
]  # fmt: skip


@pytest.mark.parametrize(
    "source, replaced, message", [(source, replaced, message) for source, *replaced, message in INVALID]
)
def test_invalid_problems(verdicts, source, replaced, message):
    lines = failures(verdicts(source, *replaced))
    assert any(message in line for line in lines), "\n".join(lines)


WIDE = """
@dataclass
class Problem(Minimisation):
    clients: int = 3

    def variables(self):
        return Blocks(x={"w": (60,)})

    def client_data(self, client):
        return (torch.full((1, 60), 1.0 + client),)

    def loss(self, x, batch):
        return (batch[0] @ x["w"]).sum()

    def gradients(self, x, batch):
        row = batch[0][:, 0]
        return row + 3 * (row == 3) * (torch.arange(60) == ENTRY)
"""


@pytest.mark.parametrize(
    "entry, message",
    [(1, "along w[1]: expected 3 by finite differences, got 6"), (7, "along a random direction: expected")],
)
def test_one_wrong_entry_of_one_client(entry, message):
    """Derivatives along 32 of 60 coordinates and a random direction are compared."""
    line, *_ = outcomes(WIDE, "ENTRY", str(entry))
    assert f"{GRADIENT}: ∂loss/∂x of client 2 {message}" in line


def test_a_violated_contract_ends_the_check(verdicts):
    (line,) = failures(verdicts(LOSS, "(errors**2).mean()", "errors**2"))
    assert line.endswith("float64: loss() has the shape [2], expected a scalar")


SLOW = """
LOADED = []

@dataclass
class Problem(Minimisation):
    clients: int = 3

    def prepare(self, seed, data_dir=None):
        LOADED.append(1)
        print(f"loaded {len(LOADED)} times")
        self.rows = [torch.from_numpy(np.random.rand(5 + k, 3)) for k in range(self.clients)]

    def variables(self):
        return Blocks(x={"x": (3,)})

    def client_data(self, client):
        return (self.rows[client],)

    def loss(self, x, batch):
        return ((batch[0] @ x["x"] - 1) ** 2).mean()
"""


def test_data_are_read_once_per_precision_and_in_the_second_run(tmp_path, monkeypatch):
    """The second of two equal runs prepares them twice, which finds data that differ between runs."""
    monkeypatch.setattr(setup, "FAST", math.inf)  # also on a busy machine
    (tmp_path / "slow.py").write_text(HEADER + SLOW)
    printed = output_of("check", f"{tmp_path}/slow.py:Problem")
    assert "loaded 4 times" in printed and "loaded 5 times" not in printed and "FAILS" not in printed
