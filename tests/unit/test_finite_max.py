"""The finite-max problem: its solution, and its gradients as gradients of F(x)ᵀy."""

import math

import numpy as np
import pytest
import torch
from oracles import oracle_of

from mpifed.base.errors import ConfigError
from mpifed.problems import FiniteMax

PROBLEMS = [
    FiniteMax(d=5, clients=3, heterogeneity=0.5),
    FiniteMax(d=3, functions=4, active=4, clients=2),
    FiniteMax(d=2, functions=3, active=1, clients=1, bend=3.0),
]
for _problem in PROBLEMS:
    _problem.prepare(1)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_solution_is_stationary(problem):
    """Shen et al. 2024, section 3.2.4: ∇F(x*) y* = 0, and by strict complementarity only the active functions
    are largest."""
    x, y = (part.numpy() for part in problem.solution())
    values, active = problem.values(x), y > 0
    assert active.sum() == problem.active and y.sum() == pytest.approx(1)
    assert np.ptp(values[active]) == 0
    assert active.all() or values[~active].max() <= values.max() - 0.5 + 1e-12
    oracle = oracle_of(problem)
    gx, gy = oracle.grad(torch.from_numpy(x), torch.from_numpy(y), oracle.sample(number=0))
    # Sums of tens of numbers of about 1.
    torch.testing.assert_close(gx.mean(0), torch.zeros(problem.d).double(), rtol=0, atol=1e-14)
    np.testing.assert_allclose(gy.mean(0).numpy(), values, rtol=0, atol=1e-14)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_point_is_better(problem):
    """At any distance; max_i F_i has at least the curvature ``convex``."""
    x, _ = (part.numpy() for part in problem.solution())
    rng = np.random.default_rng(0)
    for size in (1e-3, 0.1, 1.0, 10.0):
        for _ in range(200):
            v = size * rng.standard_normal(problem.d)
            gap = problem.values(x + v).max() - problem.values(x).max()
            assert gap >= problem.convex * (v @ v) / 2 - 1e-12 * size**2 * 10 - 1e-14


def test_a_function_is_not_convex():
    assert min(np.linalg.eigvalsh(P).min() for P in PROBLEMS[0]._P) < -0.1


def test_metrics_are_distances_from_the_solution():
    problem = PROBLEMS[0]
    x, y = problem.solution()
    found = problem.metrics(
        {"x": x + torch.tensor([3.0, 0, 4, 0, 0])}, {"y": y[[1, 0, *range(2, len(y))]]}, None
    )
    assert found["x_error"] == pytest.approx(5) and found["phi_gap"] > 0.1
    assert found["y_error"] == pytest.approx(math.sqrt(2) * abs(float(y[0] - y[1])))
    assert problem.metrics({"x": x}, {"y": y}, None) == {"phi_gap": 0, "x_error": 0, "y_error": 0}


def test_more_active_functions_than_functions():
    with pytest.raises(ConfigError, match="expected active <= functions, got 9 > 8"):
        FiniteMax(active=9)
