"""Quadratic and two-sided PL problems: gradients, stated constants, Φ and its gradient, stationary points."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import oracle_of, prepared
from printed import value

from mpifed.cli.catalogue import example
from mpifed.problems.quadratic import QuadraticNCPL, TwoSidedPL

QUADRATICS = [
    QuadraticNCPL(dx=6, dy=5, rank=3, clients=3, kappa=20.0, ell=2.0, heterogeneity=0.4),
    QuadraticNCPL(dx=3, dy=4, rank=4, clients=2, kappa=1.5, heterogeneity=0.4, shared_hessian=True),
    QuadraticNCPL(dx=2, dy=5, rank=4, clients=1, kappa=100.0),  # fewer x than directions of y
]
TWO_SIDED = [TwoSidedPL(clients=3), TwoSidedPL(d=3, clients=4, scaling=0.5, shift=2.0)]


for _problem in QUADRATICS + TWO_SIDED:
    _problem.prepare(1)


def points(problem, *lead, seed=0):
    rng, sizes = np.random.default_rng(seed), problem.variables().sizes
    return tuple(torch.from_numpy(2 * rng.standard_normal((*lead, sizes[block]))) for block in "xy")


def mean_gradients(problem, x, y):
    oracle = oracle_of(problem)
    return tuple(grad.mean(0) for grad in oracle.grad(x, y, oracle.sample(number=0)))


def mean_value(problem, x, y) -> float:
    return np.mean([value(problem, n, x, y).item() for n in range(problem.clients)])


def pl_quotient(problem, x, y) -> float:
    """‖∇_y f‖² / (2 (Φ - f)), at least μ."""
    _, gy = mean_gradients(problem, x, y)
    return float(gy @ gy) / (2 * (problem.phi(x.numpy()) - mean_value(problem, x, y)))


@pytest.mark.parametrize("problem", QUADRATICS)
def test_quadratic_constants(problem):
    H = np.mean([problem.client_data(n)[0][0].numpy() for n in range(problem.clients)], axis=0)
    P, S = H[: problem.dx, : problem.dx], -H[problem.dx :, problem.dx :]
    # Products of orthogonal matrices: some ulps.
    assert np.linalg.norm(H, 2) == pytest.approx(problem.ell, rel=1e-12)
    curvatures = np.linalg.eigvalsh(S)
    flat, curved = np.split(curvatures, [problem.dy - problem.rank])
    np.testing.assert_allclose(flat, 0, atol=1e-13)
    assert curved[0] == pytest.approx(problem.mu, rel=1e-11) and problem.ell / problem.mu == problem.kappa
    assert np.linalg.eigvalsh(P)[0] < -0.1 * problem.ell  # nonconvex in x
    largest = max(np.linalg.norm(problem.client_data(n)[0][0].numpy(), 2) for n in range(problem.clients))
    assert problem.ell_clients == pytest.approx(largest, rel=1e-14)


@pytest.mark.parametrize("problem", QUADRATICS)
def test_quadratic_satisfies_the_pl_condition_and_no_better(problem):
    """‖∇_y f‖² ≥ 2μ (Φ - f), with equality along one direction of y (Shen et al. 2024, Assumption 3.1)."""
    sharpest = min(pl_quotient(problem, *points(problem, seed=seed)) for seed in range(50))
    assert sharpest > problem.mu * (1 - 1e-9)  # rounding of Φ - f, which is of about 1
    H = np.mean([problem.client_data(n)[0][0].numpy() for n in range(problem.clients)], axis=0)
    least = np.linalg.eigh(-H[problem.dx :, problem.dx :])[1][:, problem.dy - problem.rank]
    x = points(problem)[0]
    y = torch.from_numpy(problem.y_star(x.numpy()) + least)
    assert pl_quotient(problem, x, y) == pytest.approx(problem.mu, rel=1e-8)


@pytest.mark.parametrize("problem", QUADRATICS)
def test_phi_is_the_maximum_and_its_gradient_by_differences(problem):
    x = points(problem)[0].numpy()

    def maximum(x):
        """max_y f by least squares on ∇_y f = 0, which is affine in y; the mean's value by its clients."""
        x = torch.from_numpy(x)
        base = mean_gradients(problem, x, torch.zeros(problem.dy).double())[1]
        columns = [mean_gradients(problem, x, e)[1] - base for e in torch.eye(problem.dy).double()]
        y = torch.from_numpy(np.linalg.lstsq(torch.stack(columns, 1).numpy(), -base.numpy(), rcond=1e-10)[0])
        # The maximum is attained, although S is singular.
        assert mean_gradients(problem, x, y)[1].norm() < 1e-11
        return mean_value(problem, x, y)

    assert problem.phi(x) == pytest.approx(maximum(x), rel=1e-10)  # conditioning κ of the least squares
    gradient = problem.grad_phi(x)
    for j, e in enumerate(np.eye(problem.dx)):
        # Exact for a quadratic up to rounding: 1e-16 κ of values of about 1000.
        assert (maximum(x + e) - maximum(x - e)) / 2 == pytest.approx(gradient[j], rel=1e-9, abs=1e-9)
    figures = problem.metrics({"x": torch.from_numpy(x)}, {}, None)
    assert figures["grad_phi"] == pytest.approx(np.linalg.norm(gradient), rel=1e-14)
    star = problem.solution()[0].numpy()
    assert figures["phi_gap"] == pytest.approx(problem.phi(x) - problem.phi(star), rel=1e-9)
    assert figures["x_error"] == pytest.approx(np.linalg.norm(x - star), rel=1e-14)


@pytest.mark.parametrize("problem", QUADRATICS)
def test_quadratic_solution_is_stationary_and_minimises_phi(problem):
    x, y = problem.solution()
    gx, gy = mean_gradients(problem, x, y)
    # Rounding of sums of numbers of about 1, times κ for ∇Φ.
    assert gx.norm() < 1e-13 and gy.norm() < 1e-13
    assert np.linalg.norm(problem.grad_phi(x.numpy())) < 1e-12
    base = problem.grad_phi(np.zeros(problem.dx))
    hessian = np.stack([problem.grad_phi(e) - base for e in np.eye(problem.dx)])
    assert np.linalg.eigvalsh(hessian)[0] > 0.05, "strongly convex"


def test_curvatures_of_phi_are_those_of_the_docstring():
    problem = prepared(QuadraticNCPL(dx=5, dy=4, rank=3, clients=1, kappa=27.0, ell=2.0))
    base = problem.grad_phi(np.zeros(5))
    hessian = np.stack([problem.grad_phi(e) - base for e in np.eye(5)])
    # σ/ℓ is 1/27, 1/9, 1/3 in the pairs, the two other directions have μ and ℓ.
    expected = np.sort([26.0, 8.0, 2.0, 2.0 / 27, 2.0])
    # κ times rounding.
    np.testing.assert_allclose(np.linalg.eigvalsh((hessian + hessian.T) / 2), expected, rtol=1e-11)


def test_heterogeneity_of_the_quadratic():
    problem = QuadraticNCPL(dx=40, dy=40, rank=20, clients=30, ell=2.0, heterogeneity=0.3)
    shared = QuadraticNCPL(dx=40, dy=40, rank=20, clients=30, ell=2.0, heterogeneity=0.3, shared_hessian=True)
    for one in (problem, shared):
        one.prepare(0)
        oracle = oracle_of(one, batched=True)
        grads = torch.cat(oracle.grad(*one.solution(), oracle.sample(number=0)), dim=1)
        # Five standard errors of 2400 normal numbers, less one degree of freedom in 30.
        deviation = grads.std(dim=0).pow(2).mean().sqrt().item()
        assert deviation == pytest.approx(0.3, abs=5 * 0.3 / np.sqrt(2 * 2320))
    H = np.stack([problem.client_data(n)[0][0].numpy() for n in range(30)])
    norms = np.linalg.norm(H - H.mean(axis=0), 2, axis=(1, 2))
    # About h ℓ; the edge of the spectrum is not sharp.
    assert norms.min() > 0.7 * 0.6 and norms.max() < 1.3 * 0.6
    assert torch.equal(shared.client_data(0)[0], shared.client_data(29)[0])


@pytest.mark.parametrize("problem", TWO_SIDED)
def test_two_sided_clients_average_to_the_function(problem):
    x, y = points(problem)
    h = x**2 + 3 * torch.sin(x) ** 2 * torch.sin(y) ** 2 - 4 * y**2 - 10 * torch.sin(y) ** 2
    # Rounding of numbers of about 100.
    assert mean_value(problem, x, y) == pytest.approx(h.sum().item(), abs=1e-12)
    zero = torch.zeros(problem.d).double()
    gx, gy = mean_gradients(problem, zero, zero)
    assert gx.norm() < 1e-14 and gy.norm() < 1e-14
    alone = oracle_of(problem, clients=[0])
    # No client has its own saddle there.
    assert alone.grad(zero, zero, alone.sample(number=0))[0].norm() > 0.01


def test_two_sided_constants_on_a_grid():
    """ℓ bounds the Hessian and is attained; μ_x and μ_y are within 6 % and 1 % of the sharp PL constants."""
    problem = TWO_SIDED[0]
    x, y = (part.reshape(-1, 1) for part in np.meshgrid(np.linspace(-6, 6, 481), np.linspace(-6, 6, 481)))
    x, y = (torch.from_numpy(part).requires_grad_() for part in (x, y))
    batch = (torch.ones(1, 1, 1).double(), torch.zeros(1, 1, 2).double())
    gx, gy = problem.gradients(x, y, batch)
    (gxx, gxy), (_, gyy) = (torch.autograd.grad(g.sum(), (x, y), retain_graph=True) for g in (gx, gy))
    hessian = torch.stack([torch.cat([gxx, gxy], 1), torch.cat([gxy, gyy], 1)], 1)
    norms = torch.linalg.eigvalsh(hessian).abs().amax(1)
    assert norms.max().item() == pytest.approx(problem.ell, rel=1e-12)  # at 0, a point of the grid
    with torch.no_grad():
        # min_x f is at x = 0, max_y f at y = 0.
        above = x**2 + 3 * torch.sin(x) ** 2 * torch.sin(y) ** 2
        below = 4 * y**2 + 10 * torch.sin(y) ** 2 - 3 * torch.sin(x) ** 2 * torch.sin(y) ** 2
        for g, gap, mu, slack in ((gx, above, problem.mu_x, 1.06), (gy, below, problem.mu_y, 1.01)):
            assert gap.min() >= 0
            sharpest = (g[gap > 1e-12] ** 2 / (2 * gap[gap > 1e-12])).min().item()
            assert mu <= sharpest < slack * mu


def test_two_sided_metrics():
    x, y = torch.tensor([3.0, 0.0, 0.0]), torch.tensor([0.0, -4.0, 0.0])
    figures = TWO_SIDED[1].metrics({"x": x}, {"y": y}, None)
    assert figures == {"x_error": 3.0, "y_error": 4.0, "error": 5.0}


def test_starts_have_the_scale_and_constants_depend_on_the_seed():
    for cls, settings in ((QuadraticNCPL, dict(dx=1000, dy=1000)), (TwoSidedPL, dict(d=1000))):
        start = example(cls, {"scale": 2.0, **settings}).initial(np.random.default_rng(0))
        # Five standard errors.
        assert all(abs(start[block].std() - 2.0) < 5 * 2.0 / np.sqrt(2000) for block in "xy")
        first, again, other = (example(cls, {"clients": 2}) for _ in range(3))
        for problem, seed in ((first, 5), (again, 5), (other, 6)):
            problem.prepare(seed)
        assert torch.equal(first.client_data(1)[1], again.client_data(1)[1])
        assert not torch.equal(first.client_data(1)[1], other.client_data(1)[1])


def test_rank_is_checked():
    with pytest.raises(ValueError, match="rank = 5, dy = 3"):
        QuadraticNCPL(dy=3)
