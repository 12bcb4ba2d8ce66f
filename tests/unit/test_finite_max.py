"""The finite-max problem: its solution, and its gradients as gradients of F(x)ᵀy."""

import numpy as np
import pytest
import torch
from games import configuration
from oracles import oracle_of

from mpifed.algorithms import FESSGDA
from mpifed.base.errors import ConfigError
from mpifed.parallel.comm import SerialComm
from mpifed.problems import FiniteMax
from mpifed.simulation.simulation import Simulation

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


@pytest.mark.parametrize("problem", PROBLEMS)
def test_gradients_equal_those_of_autograd(problem):
    rng = np.random.default_rng(3)
    x, y = (torch.from_numpy(rng.standard_normal(size)) for size in (problem.d, problem.functions))
    oracle = oracle_of(problem)
    gx, gy = oracle.grad(x, y, oracle.sample(number=0))
    for n in range(problem.clients):
        P, linear, star = (column[0] for column in problem.client_data(n))
        point, weights = x.clone().requires_grad_(), y.clone().requires_grad_()
        v = point - star
        F = torch.stack([v @ P[i] @ v / 2 + linear[i, :-1] @ v + linear[i, -1] for i in range(len(P))])
        expected = torch.autograd.grad(F @ weights, (point, weights))
        torch.testing.assert_close((gx[n], gy[n]), expected, rtol=1e-12, atol=1e-12)  # another order of sums


def test_fess_gda_converges_to_the_solution():
    """y stays in the simplex, and the metrics, distances from (x*, y*), vanish."""
    problem = FiniteMax(d=4, clients=3)
    method = FESSGDA(K=5, eta_xl=0.02, eta_yl=0.02, p=2.0, beta=0.3)
    simulation = Simulation.from_settings(
        configuration(method, problem, "unused", rounds=800, noise=0.0, batch_size=0), SerialComm()
    )
    simulation.start()
    first = simulation.evaluate(simulation.shared)
    for _ in range(800):
        simulation.step()
    last = simulation.evaluate(simulation.shared)
    assert float(simulation.shared.y.sum()) == pytest.approx(1) and float(simulation.shared.y.min()) >= 0
    assert first["phi_gap"] > 0.1 and 0 <= last["phi_gap"] < 1e-3 * first["phi_gap"]
    assert last["x_error"] < 1e-3 and last["y_error"] < 1e-3


def test_more_active_functions_than_functions():
    with pytest.raises(ConfigError, match="expected active <= functions, got 9 > 8"):
        FiniteMax(active=9)
