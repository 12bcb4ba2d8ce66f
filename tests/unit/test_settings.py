"""Schedules, sets and adaptive matrices as settings and as functions, and signatures of classes."""

import dataclasses
import inspect
import pydoc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from refusals import refusal

from mpifed.algorithms import ALGORITHMS, AdaFGDA
from mpifed.base.settings import hyperparameters, type_hints
from mpifed.core.adaptive import MATRICES, AdaBelief, BarzilaiBorwein, refresh
from mpifed.core.schedules import Constant, Rate
from mpifed.core.sets import Ball, Box, L1Ball, Simplex
from mpifed.problems import PROBLEMS

VECTORS = arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 6)), elements=st.floats(-5, 5)).map(
    torch.from_numpy
)


def test_defaults_are_converted_like_values():
    @hyperparameters
    class Method:
        eta: Rate = 0.25

    assert Method().eta == Constant(0.25) == Method(eta=0.25).eta


@pytest.mark.parametrize(
    "set_", [Ball(1.5), Ball(0.5, center=1.0), Box(-1, 2), Simplex(), Simplex(2.5), L1Ball(1.5)]
)
@given(VECTORS, VECTORS)
def test_projections(set_, point, other):
    """Feasible, idempotent, and no feasible point is nearer (1e-9: a few roundings of numbers up to 5)."""
    projected = set_(point)
    torch.testing.assert_close(set_(projected), projected, rtol=0, atol=1e-9)
    if isinstance(set_, Simplex):
        assert (projected >= 0).all()
        total = torch.full(point.shape[:1], set_.total, dtype=torch.float64)
        torch.testing.assert_close(projected.sum(-1), total)
    if point.shape[-1] == other.shape[-1]:  # the obtuse-angle criterion
        feasible = set_(other)[:1]
        assert (((point - projected) * (feasible - projected)).sum(-1) <= 1e-9).all()


@pytest.mark.parametrize("name", MATRICES)
@given(st.lists(st.integers(-3, 3), min_size=3, max_size=3), st.integers(1, 4))
def test_matrices_dominate_rho(name, values, refreshes):
    matrix = MATRICES[name]()
    w = torch.tensor(values, dtype=torch.float64)
    kinds = {"x": 3, "scalar": 1}
    moments = tuple(torch.zeros(kinds[kind], dtype=torch.float64) for kind in matrix.fields("x"))
    moments = matrix.set_reference(moments, w, w)
    for step in range(refreshes):
        moments, A = matrix(moments, w * step, w + step, 1 + step)
        assert A.shape == (kinds[matrix.shape("x")],) and (A >= matrix.rho).all()


@pytest.mark.parametrize("setting, says", [
    (dict(varrho=1), "expected a decay below 1 at every step, got 1.0"),
    (dict(varrho=-0.1), "expected a finite number >= 0 or a schedule, got -0.1"),
    (dict(varrho={"name": "power", "scale": 1.5}), "expected a decay below 1 at every step, got 1.5"),
    (dict(varrho={"name": "steps", "value": 0.5, "boundaries": [3], "factor": 2.0}),
     "expected a decay below 1 at every step, got 1.0"),
    (dict(varrho={"name": "squared", "c": 0.5}), "which this setting does not have: expected another"),
    (dict(varrho={"name": "power", "scale": 0.5}, bias_correction=True),
     "expected a constant varrho, got a schedule"),
])  # fmt: skip
def test_a_decay_stays_below_one(setting, says):
    assert says in refusal(lambda: AdaFGDA(q=2, matrix={"name": "adam", **setting}))


@pytest.mark.parametrize("name, decay", [("adam", "varrho"), ("adabelief", "varrho"), ("norm", "vartheta")])
def test_a_constant_schedule_is_bitwise_identical_to_the_number(name, decay):
    constant = {"name": "steps", "value": 0.8, "boundaries": []}
    number, schedule = (MATRICES[name](**{decay: value}) for value in (0.8, constant))
    w, kinds = torch.tensor([0.3, -1.7, 0.02]), {"x": 3, "scalar": 1}
    left = right = tuple(torch.zeros(kinds[kind]) for kind in number.fields("x"))
    for t in (1, 4, 8):
        (left, A), (right, B) = number(left, w / t, w, t), schedule(right, w / t, w, t)
        assert torch.equal(A, B)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("first", ["rule", "identity"])
def test_the_belief_of_the_start_is_compared_with_zero(first, steps):
    """ϱ = 3/4: A_1 = w_1 / 2 + ρ by the rule. The reference is used at the first synchronisation, which is
    the start itself if rounds have one step and the first matrix follows the rule.
    """
    w, x, zeros = torch.tensor([4.0]), torch.zeros(1), (torch.zeros(1), torch.zeros(1))
    after = {}
    for reference in ("zero", "initial"):
        matrix = AdaBelief(varrho=0.75, rho=0.5, belief_reference=reference)
        method = AdaFGDA(q=steps, gamma=0.1, lam=0.1, first_matrix=first, matrix=matrix)
        moments, A = refresh(method, steps, 0, zeros, w, x)
        assert A.item() == 2.5 if first == "rule" else A is None
        after[reference] = [moment.item() for moment in moments]
    belief = 4.0 if first == "rule" else 0.0
    known = 4.0 if first == "rule" and steps == 1 else 0.0
    assert after == {"zero": [belief, known], "initial": [belief, 4.0]}


def test_barzilai_borwein_measures_curvature():
    """For w = H x with H = 3 I the quotient is 3; it does not change if x does not."""
    matrix = BarzilaiBorwein(rho=0.5)
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    zeros = torch.zeros(2), torch.zeros(2), torch.zeros(1, dtype=torch.float64), torch.zeros(1)
    moments = matrix.set_reference(zeros, 3 * x, x)
    moments, A = matrix(moments, 3 * x, x, 1)
    assert A.item() == 0.5
    moments, A = matrix(moments, 6 * x, 2 * x, 2)
    assert A.item() == 3.5
    _, A = matrix(moments, 6 * x, 2 * x + 1e-17, 3)
    assert A.item() == 3.5


@pytest.mark.parametrize("dtype, small", [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_small_steps_are_used_and_rounding_errors_ignored(dtype, small):
    """w = 3 x: a relative step of ``small`` gives 3 to eps / ``small``; one of 4 eps the last quotient."""
    matrix, eps = BarzilaiBorwein(rho=0.5), torch.finfo(dtype).eps
    x = torch.tensor([1.0, 2.0], dtype=dtype)
    seven = torch.tensor([7.0], dtype=dtype)
    start = matrix.set_reference((0 * x, 0 * x, seven, torch.zeros_like(seven)), 3 * x, x)
    _, A = matrix(start, 3 * (x * (1 + small)), x * (1 + small), 1)
    assert A.item() == pytest.approx(3.5, rel=20 * eps / small)
    moved = x * (1 + 4 * eps)
    assert not torch.equal(moved, x)
    moments, A = matrix(start, 3 * moved, moved, 1)
    assert A.item() == 7.5
    assert torch.equal(moments[1], moved)  # the next step is measured from here


def test_the_box_reading_warns_if_no_new_gradient_is_evaluated():
    with pytest.warns(UserWarning, match="never evaluates a fresh gradient"):
        AdaFGDA(q=1, sync_estimator="box")


BUILT_IN = ALGORITHMS | PROBLEMS


@pytest.mark.parametrize("name", BUILT_IN)
def test_signatures_name_the_settings_with_types_and_defaults(name):
    cls = BUILT_IN[name]
    fields = [field for field in dataclasses.fields(cls) if field.init]
    parameters = inspect.signature(cls).parameters
    assert sorted(parameters) == sorted(field.name for field in fields)
    for field in fields:
        shown = parameters[field.name]
        assert shown.annotation == field.type
        assert shown.kind is (shown.KEYWORD_ONLY if field.kw_only else shown.POSITIONAL_OR_KEYWORD)
        assert shown.default == (shown.empty if field.default.is_required() else field.default.get_default())
    assert f"{fields[0].name}: {fields[0].type!r}" in pydoc.plain(pydoc.render_doc(cls))


def test_annotations_that_cannot_be_evaluated():
    class Local:
        step: "Unknown"  # noqa: F821

    assert type_hints(Local) == {}
