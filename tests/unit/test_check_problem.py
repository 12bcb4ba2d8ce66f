"""``mpifed check`` on valid and invalid user-defined problems of every family."""

from __future__ import annotations

from functools import partial

import pytest
from verdicts import failures, verdict_of

HEADER = """
import numpy as np
import torch
from dataclasses import dataclass
from mpifed.core.problem import Composition, Minimax, Minimisation, Operator
from mpifed.core.records import Blocks
from mpifed.core.sets import Ball, Sets
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


@pytest.fixture
def verdicts(tmp_path, capsys):
    """``verdicts(source, old, new, ...)``: whether the source with replacements passes, and the lines."""
    return partial(verdict_of, capsys, tmp_path / "plugin.py", "Problem", HEADER)


GRADIENTS = """
    def gradients(self, x, batch):
        rows = batch[0]
        errors = (rows @ x.unsqueeze(-1)).squeeze(-1) - 1
        return 2 * (errors.unsqueeze(-1) * rows).mean(1)
"""
JACOBIANS, OUTER = (
    "Jacobians agree with finite differences of inner",
    "gradients agree with finite differences of outer",
)
VALID = [
    (
        (BILINEAR,),
        "holds        analytic gradients are the gradients of a function",
        "not checked  the values of the gradients: the problem defines no loss to compare them with",
    ),
    ((LOSS,), "holds        gradients agree with finite differences of the loss"),
    ((PLAIN,), "holds        gradients agree with finite differences of the loss"),
    ((PLAIN + GRADIENTS,), "holds        analytic gradients agree with finite differences of the loss"),
    ((OPERATOR,), "holds        the operator is monotone on pairs of points"),
    (
        (OPERATOR, "monotone = True", ""),
        "not checked  the values of the operator: there is nothing to compare them with",
        "not checked  the operator is monotone on pairs of points: expected monotone = True, the problem has "
        "monotone = None",
    ),
    (
        (COMPOSITION,),
        f"holds        analytic {JACOBIANS}",
        f"holds        analytic outer {OUTER}",
    ),
    (
        (COMPOSITION, "def jacobian", "def other", "def outer_gradient", "def another"),
        f"holds        {JACOBIANS}",
        f"holds        outer {OUTER}",
    ),
    (
        (COMPOSITION, "def outer(self", "def other(self"),
        "not checked  the values of the outer gradient: the problem defines no outer to compare them with",
    ),
    ((DRAWN,), "holds        a sample depends only on its address"),
    # The rounding error of gx, 1e-16 · 1e9, is divided by the step 1e-5.
    (
        (BILINEAR, "c * y + 0.1 * x", "c * y + 0.1 * x + 1e9"),
        "holds        analytic gradients are the gradients of a function",
    ),
    # Constants in the precision of the run, and masks
    ((LOSS, "errors = batch[0]", "errors = torch.as_tensor(0.1) * batch[0]"),),
    ((LOSS, "errors = batch[0]", "errors = (batch[0] > 0).to(torch.float32) * batch[0]"),),
]


@pytest.mark.parametrize("source, expected", [(source, lines) for source, *lines in VALID])
def test_valid_problems(verdicts, source, expected):
    sound, lines = verdicts(*source)
    if "+ 1e9" not in source[-1]:  # whose steps are too large for runs
        assert sound, "\n".join(lines)
        assert "float64 and float32 on the CPU" in lines[0] and "temporary folders" in lines[0]
        assert all(line.startswith(("holds        ", "not checked  ")) for line in lines[1:])
        assert "holds        vectorised clients agree with looped clients" in lines
    assert {*expected} <= {*lines}


SYMMETRY = "expected ∂g{0}/∂{1} to be the transpose of ∂g{1}/∂{0}"
INVALID = [
    # derivatives
    (BILINEAR, "c * x - 0.1 * y", "-c * x - 0.1 * y", SYMMETRY.format("x", "y")),
    (BILINEAR, "c * y + 0.1 * x", "c * y + x.roll(1, -1)", SYMMETRY.format("x", "x")),
    (BILINEAR, "c * x - 0.1 * y", "c * x - y * y.roll(1, -1)", SYMMETRY.format("y", "y")),
    (LOSS, '(x["w"] ** 2).sum()', '(x["w"].detach() ** 2).sum()', "∂f/∂x along w["),
    (PLAIN, "** 2).mean()", '** 2).mean() + x["w"].detach().sum()', "∂f/∂x along w["),
    (
        PLAIN + GRADIENTS,
        "return 2 *",
        "return 2.001 *",
        "analytic gradients agree with finite differences of the loss: ∂f/∂x along w[",
    ),
    (OPERATOR, "2 * z", "-2 * z", "expected ⟨V(z) - V(z'), z - z'⟩ >= 0, got -"),
    (COMPOSITION, "2 * (score", "(score", "∂g/∂x along w["),
    (
        COMPOSITION,
        "(score**2).mean(1)], dim",
        "(score**3).mean(1)], dim",
        "the value u returned by jacobian() differs from inner()",
    ),
    (COMPOSITION, "u + torch", "-u + torch", "∂f/∂u along u["),
    # held-out rows and metrics
    (
        LOSS,
        "self.tests[rows].to",
        "(self.tests[rows] - self.tests[rows].mean(0)).to",
        "the scores of parts and of all rows differ",
    ),
    (
        LOSS,
        'return self.tests[rows].to(x["w"]) @ x["w"]',
        'return (self.tests.to(x["w"]) @ x["w"])[:4]',
        "predict(): expected 10 scores for 10 rows, got 4",
    ),
    (
        LOSS,
        "predictions.mean()",
        "predictions.mean() * float('nan')",
        "score: expected a finite number near the start, got nan",
    ),
    (
        LOSS,
        'frozenset({"score"})',
        'frozenset({"accuracy"})',
        "maximised: expected names of metrics (score), got accuracy",
    ),
    (
        LOSS,
        'return {"score": predictions.mean()}',
        'vars(self).setdefault("met", []).append(0)\n        return {"score": 0, f"at{len(self.met)}": 0}',
        "expected the same names at every evaluation, with NaN for missing values",
    ),
    (LOSS, '{"score": predictions.mean()}', '{"a/b": predictions.mean()}', "'a/b'"),
    # arguments, samples, preparation, projections
    (
        OPERATOR,
        "return 2 * z",
        "batch[0].mul_(2)\n        return 2 * z",
        "functions do not change their arguments: a function writes to its point or its batch in place",
    ),
    (
        DRAWN,
        "stream.normal(size, 2)",
        "np.random.default_rng().normal(size=(len(stream.clients), stream.count, size, 2))",
        "draw all random numbers from `stream`",
    ),
    (
        DRAWN,
        "stream.normal(size, 2)",
        "stream.normal(size, 2) + len(stream.clients)",
        "draw all random numbers from `stream`",
    ),
    (
        LOSS.replace("(Rows, Minimax)", "(Random, Minimax)"),
        "@dataclass",
        """class Random:
    def client_data(self, client):
        return (torch.from_numpy(np.random.default_rng().standard_normal((5, 3))),)

@dataclass""",
        "client_data(0) differs between two copies with the same seed",
    ),
    (LOSS, "Ball(1.0)", "lambda v: v / 2", "the projection of 'y' moves a projected point"),
]


@pytest.mark.parametrize("source, old, new, message", INVALID)
def test_invalid_problems(verdicts, source, old, new, message):
    lines = failures(verdicts(source, old, new))
    assert any(message in line for line in lines), "\n".join(lines)


PRECISION = [
    (LOSS, "errors = batch[0]", "errors = torch.tensor(0.1, dtype=torch.float32) * batch[0]"),
    (
        LOSS,
        "clients: int = 3",
        "clients: int = 3\n    factor = torch.full((3,), 0.1)",
        "errors = batch[0]",
        "errors = batch[0] * self.factor",
    ),
    (OPERATOR, "2 * z +", "2 * z.float() +"),
    (COMPOSITION, "score = batch[0] @ x", "score = torch.tensor(0.7, dtype=torch.float32) * batch[0] @ x"),
]


@pytest.mark.parametrize("source, replaced", [(source, replaced) for source, *replaced in PRECISION])
def test_less_precise_numbers_are_reported_with_their_line(verdicts, source, replaced):
    lines = failures(verdicts(source, *replaced))
    found = [line for line in lines if "float64 stays float64: plugin.py, line " in line]
    assert len(found) == 1 and "float32" in found[0] and "expected float64" in found[0]


def test_errors_in_float32_alone(verdicts):
    lines = failures(verdicts(LOSS, '.to(x["w"])', ""))
    scores = "scores of held-out rows do not depend on the other rows of a call, "
    assert any(f"{scores}float32: RuntimeError" in line for line in lines)
    assert not any(f"{scores}float64" in line for line in lines)
    assert any("(plugin.py, line " in line for line in lines)


def test_results_that_depend_on_the_size_of_a_group(verdicts):
    """A run would loop over the clients, but the author of analytic gradients can remove the cause."""
    lines = failures(verdicts(BILINEAR, "c * y + 0.1 * x", "(1 + 1e-10 * len(c)) * (c * y + 0.1 * x)"))
    assert len(lines) == 1 and "groups of 2, 3 and all clients give bitwise the same result" in lines[0]
    assert "depend on its position" in lines[0]


def test_a_violated_contract_ends_the_check(verdicts):
    (line,) = failures(verdicts(LOSS, "(errors**2).mean()", "errors**2"))
    assert "Problem: loss() has the shape [2], expected a scalar" in line
