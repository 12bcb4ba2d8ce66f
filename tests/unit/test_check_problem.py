"""``mpifed check`` on a user's problem: right ones and nonsense of every family, by the words it says."""

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
    """``verdicts(source, old, new, ...)``: whether a source with replacements is sound, and the lines."""
    return partial(verdict_of, capsys, tmp_path / "plugin.py", "Problem", HEADER)


@pytest.mark.parametrize("source", [BILINEAR, LOSS, PLAIN, OPERATOR, COMPOSITION, DRAWN])
def test_sound_problems(verdicts, source):
    sound, lines = verdicts(source)
    assert sound, "\n".join(lines)
    assert "float64 and float32 on the CPU" in lines[0] and "temporary folders" in lines[0]
    assert all(line.startswith(("holds        ", "not checked  ")) for line in lines[1:])
    assert any("clients stepped together agree" in line for line in lines)


def test_derivatives_by_hand_are_called_so(verdicts):
    _, lines = verdicts(COMPOSITION)
    assert "holds        Jacobians by hand agree with finite differences of inner" in lines
    assert "holds        outer gradients by hand agree with finite differences of outer" in lines
    _, lines = verdicts(COMPOSITION, "def jacobian", "def other", "def outer_gradient", "def another")
    assert "holds        Jacobians agree with finite differences of inner" in lines
    assert "holds        outer gradients agree with finite differences of outer" in lines
    _, lines = verdicts(COMPOSITION, "def outer_gradient", "def another")
    assert "holds        Jacobians by hand agree with finite differences of inner" in lines
    assert "holds        outer gradients agree with finite differences of outer" in lines


def test_what_is_not_checked_is_said(verdicts):
    _, lines = verdicts(BILINEAR)
    assert "not checked  the values of the gradients: there is no loss to compare them with" in lines
    _, lines = verdicts(OPERATOR, "monotone = True", "")
    assert "not checked  the values of the operator: there is nothing to compare them with" in lines
    assert any(
        "not checked  the operator is monotone" in line and "it is not claimed" in line for line in lines
    )
    _, lines = verdicts(COMPOSITION, "def outer(self", "def other(self")
    assert "not checked  the values of the outer gradient: there is no outer to compare them with" in lines


NONSENSE = [
    (BILINEAR, "c * x - 0.1 * y", "-c * x - 0.1 * y", "∂gx/∂y and the transpose of ∂gy/∂x differ"),
    (BILINEAR, "c * y + 0.1 * x", "c * y + x.roll(1, -1)", "∂gx/∂x and the transpose of ∂gx/∂x differ"),
    (BILINEAR, "c * x - 0.1 * y", "c * x - y * y.roll(1, -1)", "∂gy/∂y and the transpose of ∂gy/∂y differ"),
    (LOSS, '(x["w"] ** 2).sum()', '(x["w"].detach() ** 2).sum()', "∂f/∂x along w["),
    (PLAIN, "** 2).mean()", '** 2).mean() + x["w"].detach().sum()', "∂f/∂x along w["),
    (OPERATOR, "2 * z", "-2 * z", "< 0 for a pair of points"),
    (COMPOSITION, "2 * (score", "(score", "∂g/∂x along w["),
    (
        COMPOSITION,
        "(score**2).mean(1)], dim",
        "(score**3).mean(1)], dim",
        "u of jacobian() differs from inner()",
    ),
    (COMPOSITION, "u + torch", "-u + torch", "∂f/∂u along u["),
]


@pytest.mark.parametrize("source, old, new, words", NONSENSE)
def test_nonsense_derivatives(verdicts, source, old, new, words):
    assert any(words in line for line in failures(verdicts(source, old, new)))


def test_rounding_counts_by_the_larger_gradient(verdicts):
    """Differences of gx, which is rounded by 1e-16 · 1e9, are divided by a step of 1e-5."""
    _, lines = verdicts(BILINEAR, "c * y + 0.1 * x", "c * y + 0.1 * x + 1e9")
    assert "holds        gradients by hand are those of some function" in lines


def test_gradients_by_hand_are_compared_with_a_loss(verdicts):
    gradients = """
    def gradients(self, x, batch):
        rows = batch[0]
        errors = (rows @ x.unsqueeze(-1)).squeeze(-1) - 1
        return 2 * (errors.unsqueeze(-1) * rows).mean(1)
"""
    sound, lines = verdicts(PLAIN + gradients)
    assert sound and "holds        gradients by hand agree with finite differences of the loss" in lines
    (line,) = failures(verdicts(PLAIN + gradients, "return 2 *", "return 2.001 *"))
    assert "gradients by hand agree with finite differences of the loss: ∂f/∂x along w[" in line


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
def test_less_precise_numbers_are_found_with_their_line(verdicts, source, replaced):
    lines = failures(verdicts(source, *replaced))
    found = [line for line in lines if "float64 stays float64: plugin.py, line " in line]
    assert len(found) == 1 and "float32" in found[0] and "where the run has float64" in found[0]


def test_constants_in_the_precision_of_the_run_and_masks_are_let_pass(verdicts):
    for factor in ("torch.as_tensor(0.1)", "(batch[0] > 0).to(torch.float32)"):
        sound, lines = verdicts(LOSS, "errors = batch[0]", f"errors = {factor} * batch[0]")
        assert sound, "\n".join(lines)


def test_float32_that_fails_is_named(verdicts):
    lines = failures(verdicts(LOSS, '.to(x["w"])', ""))
    assert any(
        "held-out rows are scored alike in parts and as a whole, float32: RuntimeError" in line
        for line in lines
    )
    assert all("float64" not in line for line in lines if "held-out" in line)
    assert any("(plugin.py, line " in line for line in lines)


HELD_OUT = [
    (
        "self.tests[rows].to",
        "(self.tests[rows] - self.tests[rows].mean(0)).to",
        "predict() of parts and of the whole differ",
    ),
    (
        'return self.tests[rows].to(x["w"]) @ x["w"]',
        'return (self.tests.to(x["w"]) @ x["w"])[:4]',
        "gives 4 scores for 10",
    ),
    ("predictions.mean()", "predictions.mean() * float('nan')", "score is nan near the start"),
    ('frozenset({"score"})', 'frozenset({"accuracy"})', "maximised names accuracy, there are score"),
    (
        'return {"score": predictions.mean()}',
        'vars(self).setdefault("met", []).append(0)\n        return {"score": 0, f"at{len(self.met)}": 0}',
        "is there at some evaluations only: expected NaN",
    ),
    ('{"score": predictions.mean()}', '{"a/b": predictions.mean()}', "the metric 'a/b' is a place in the"),
]


@pytest.mark.parametrize("old, new, words", HELD_OUT)
def test_held_out_rows_and_metrics(verdicts, old, new, words):
    assert any(words in line for line in failures(verdicts(LOSS, old, new)))


def test_arguments_written_in_place(verdicts):
    lines = failures(verdicts(OPERATOR, "return 2 * z", "batch[0].mul_(2)\n        return 2 * z"))
    assert any("functions leave their arguments as they are: one of them writes to" in line for line in lines)


def test_samples_that_are_not_of_their_address(verdicts):
    lines = failures(
        verdicts(
            DRAWN,
            "stream.normal(size, 2)",
            "np.random.default_rng().normal(size=(len(stream.clients), stream.count, size, 2))",
        )
    )
    assert any("draw everything from `stream`" in line for line in lines)
    lines = failures(
        verdicts(DRAWN, "stream.normal(size, 2)", "stream.normal(size, 2) + len(stream.clients)")
    )
    assert any("draw everything from `stream`" in line for line in lines)


RANDOM = """class Random:
    def client_data(self, client):
        return (torch.from_numpy(np.random.default_rng().standard_normal((5, 3))),)

@dataclass"""


def test_a_preparation_that_is_not_of_its_seed(verdicts):
    lines = failures(verdicts(LOSS, "(Rows, Minimax)", "(Random, Minimax)", "@dataclass", RANDOM))
    assert any("client_data(0) differs between two copies of the same seed" in line for line in lines)


def test_a_projection_that_goes_on(verdicts):
    lines = failures(verdicts(LOSS, "Ball(1.0)", "lambda v: v / 2"))
    assert any("that of 'y' moves a point that it has projected" in line for line in lines)


def test_last_digits_that_follow_the_group(verdicts):
    """A run would step clients one at a time; whoever wrote the gradients can mend them."""
    lines = failures(verdicts(BILINEAR, "c * y + 0.1 * x", "(1 + 1e-10 * len(c)) * (c * y + 0.1 * x)"))
    assert len(lines) == 1 and "clients in groups of 2, 3 and all have the same bits" in lines[0]
    assert "the results of a client would depend on its position" in lines[0]


def test_a_broken_contract_ends_the_check(verdicts):
    lines = failures(verdicts(LOSS, 'return {"score"', 'return {"score"', "(errors**2).mean()", "errors**2"))
    assert len(lines) == 1 and "Problem: loss() has the shape [2], expected a scalar" in lines[0]
