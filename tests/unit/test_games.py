"""Affine games: operators, solutions, monotonicity, exact errors, and the trust-region problem behind
them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import oracle_of, prepared

from mpifed.base.errors import ConfigError
from mpifed.cli.catalogue import example
from mpifed.core.sets import L1, Box, Indicator, L1Box
from mpifed.core.streams import generator
from mpifed.problems.games import AffineGame, Bilinear, L1BoxBilinear
from mpifed.problems.restricted_gap import maximize_on_ball, restricted_gap

GAMES = [
    AffineGame(d=5, clients=3, strong=0.2, heterogeneity=0.7),
    AffineGame(d=4, clients=3, heterogeneity=0.7, shared_jacobian=True),
    AffineGame(d=5, clients=2, smooth=0.0, skew=2.0, start="zero"),  # rotation only, and singular: d is odd
    Bilinear(dx=3, dy=2, clients=4, heterogeneity=0.5),
    Bilinear(dx=2, dy=3, clients=2, phi={"name": "l1", "lam": 1.0}, heterogeneity=0.5, shared_jacobian=True),
    Bilinear(dx=3, dy=3, clients=2, phi=Indicator(Box(low=-1.0, high=1.0))),
    L1BoxBilinear(dx=4, dy=3, clients=3, heterogeneity=0.3, bound=0.5),
]
for _game in GAMES:
    _game.prepare(1)
SOLVED = GAMES[:-1]
SMOOTH = GAMES[:4]
size = lambda problem: problem.variables().sizes["z"]  # noqa: E731


def named(problem, z: np.ndarray):
    return problem.variables().unflatten("z", torch.from_numpy(np.array(z)))


def saddle_value(problem, n, x, y) -> torch.Tensor:
    """f_n of a bilinear game as its docstring has it: the constant part of V_n is (a_n, -b_n)."""
    C, offset = (column[0] for column in problem.client_data(n))
    return x @ C @ y + offset[: len(x)] @ x - offset[len(x) :] @ y


@pytest.mark.parametrize("problem", GAMES[3:], ids=lambda p: f"{type(p).__name__}-{type(p.phi).__name__}")
def test_bilinear_operators_by_automatic_differentiation(problem):
    z = torch.from_numpy(np.random.default_rng(0).standard_normal(size(problem)))
    V = oracle_of(problem).operator(z, oracle_of(problem).sample(number=0))
    for n in range(problem.clients):
        x, y = (part.clone().requires_grad_() for part in z.split((problem.dx, problem.dy)))
        gx, gy = torch.autograd.grad(saddle_value(problem, n, x, y), (x, y))
        # The same products of a few numbers of about 1, summed in another order.
        torch.testing.assert_close(V[n], torch.cat([gx, -gy]), rtol=0, atol=1e-14)


@pytest.mark.parametrize("batch_size", [0, 3])
@pytest.mark.parametrize("problem", GAMES)
def test_vectorised_operators_equal_the_loop_and_average_to_the_mean(problem, batch_size):
    points = torch.from_numpy(np.random.default_rng(1).standard_normal((problem.clients, size(problem))))
    every = oracle_of(problem, batched=True, batch_size=batch_size)
    xi = every.sample(number=0)
    own, shared = every.operator(points, xi), every.operator(points[0], xi)
    assert own.shape == shared.shape == points.shape
    for n in range(problem.clients):
        one = oracle_of(problem, clients=[n], batch_size=batch_size)
        for z, V in ((points[n], own[n]), (points[0], shared[n])):
            # Batched products may add in another order: some ulps of numbers of about 10.
            torch.testing.assert_close(one.operator(z, one.sample(number=0))[0], V, rtol=0, atol=1e-14)
    # The same, after averaging.
    np.testing.assert_allclose(shared.mean(0), problem.mean_operator(points[0].numpy()), rtol=0, atol=1e-13)


def test_affine_operator_is_its_matrix_and_vector():
    problem = GAMES[0]
    z = np.random.default_rng(2).standard_normal(5)
    V = oracle_of(problem).operator(torch.from_numpy(z), oracle_of(problem).sample(number=0))
    for n in range(problem.clients):
        A, b = (column[0].numpy() for column in problem.client_data(n))
        np.testing.assert_allclose(V[n], A @ z + b, rtol=0, atol=1e-14)  # five products of numbers of about 1


@pytest.mark.parametrize("problem", GAMES)
def test_every_client_is_monotone_and_L_is_attained(problem):
    d = size(problem)
    oracle = oracle_of(problem)
    xi = oracle.sample(number=0)
    zero = oracle.operator(torch.zeros(d).double(), xi)
    J = torch.stack([oracle.operator(e, xi) - zero for e in torch.eye(d).double()], dim=2)
    # Entries of about 1 with rounding of some 1e-16; d of them add up in an eigenvalue.
    assert torch.linalg.eigvalsh((J + J.mT) / 2).min() > -1e-14
    assert torch.linalg.matrix_norm(J, 2).max().item() == pytest.approx(problem.L, rel=1e-12)


def test_affine_game_has_the_constants_that_it_is_given():
    problem = prepared(AffineGame(d=6, clients=5, strong=0.3, smooth=2.0, skew=4.0, heterogeneity=0.8), 3)
    A = np.stack([problem.client_data(n)[0][0].numpy() for n in range(5)])
    mean = A.mean(axis=0)
    values = np.linalg.eigvalsh((mean + mean.T) / 2)
    # Averages of matrices of norm 10 or less: some ulps of it.
    np.testing.assert_allclose(values, np.linspace(0.3, 2.0, 6), rtol=0, atol=1e-13)
    assert np.linalg.norm((mean - mean.T) / 2, 2) == pytest.approx(4.0, abs=1e-13)
    distances = np.linalg.norm(A - mean, 2, axis=(1, 2))
    assert 0.5 < distances.min() and distances.max() < 10  # about 0.8 · 4, nowhere near 0
    shared = prepared(AffineGame(d=6, clients=5, heterogeneity=0.8, shared_jacobian=True), 3)
    rows = [shared.client_data(n) for n in range(5)]
    assert all(torch.equal(A, rows[0][0]) for A, _ in rows) and not torch.equal(rows[0][1], rows[1][1])


def test_heterogeneity_is_the_spread_of_the_operators_at_the_solution():
    settings = {"clients": 50, "heterogeneity": 0.5}
    for problem in (AffineGame(d=100, **settings), Bilinear(dx=60, dy=40, **settings)):
        problem.prepare(0)
        oracle = oracle_of(problem, batched=True)
        values = oracle.operator(problem.solution(), oracle.sample(number=0))
        # Five standard errors of 5000 normal numbers, less one degree of freedom in 50.
        assert values.std(dim=0).pow(2).mean().sqrt().item() == pytest.approx(
            0.5, abs=5 * 0.5 / np.sqrt(2 * 4900)
        )


@pytest.mark.parametrize("problem", SOLVED)
def test_solutions_have_no_error(problem):
    star = problem.solution().numpy()
    figures = problem.metrics(named(problem, star), None)
    # The constant part is minus a product of the same numbers: rounding of numbers of about 10.
    assert figures["residual"] < 1e-13 and figures["distance"] == 0
    if "err_D" in figures:
        # At most ‖V(z*)‖ (‖z* - z_0‖ + D), and a solution has no negative error on a ball around it.
        assert np.linalg.norm(star - problem.initial(None)["z"].numpy()) < problem.radius
        # With φ it is a bound, this far above another one.
        slack = figures.get("err_D_slack", 0.0)
        assert abs(figures["err_D"]) < 1e-11 + slack and slack < 1e-6


@pytest.mark.parametrize("problem", SOLVED[4:], ids=lambda p: type(p.phi).__name__)
def test_composite_solutions_solve_the_composite_inequality(problem):
    """⟨V(z*), z - z*⟩ + φ(z) - φ(z*) ≥ 0, the definition, at many z; and φ matters: V(z*) is not 0."""
    star = problem.solution()
    V = problem.mean_operator(star.numpy())
    z = problem.phi(torch.from_numpy(3 * np.random.default_rng(0).standard_normal((500, size(problem)))), 0.5)
    values = (z - star).numpy() @ V + (problem.phi.value(z) - problem.phi.value(star)).numpy()
    assert values.min() > -1e-13 and np.linalg.norm(V) > 0.1  # rounding of numbers of about 10


def test_distance_is_to_the_set_of_solutions():
    problem = GAMES[3]  # dx = 3, dy = 2: one direction of x is free
    C = np.mean([problem.client_data(n)[0][0].numpy() for n in range(4)], axis=0)
    free = np.concatenate([np.linalg.svd(C)[0][:, 2], np.zeros(2)])
    star = problem.solution().numpy()
    # An orthonormal projection of numbers of about 5.
    assert problem.distance(star + 5 * free) == pytest.approx(0, abs=1e-13)
    assert problem.residual(star + 5 * free) == pytest.approx(0, abs=1e-13)
    other = np.concatenate([np.zeros(3), [3.0, 4.0]])
    assert problem.distance(star + 7 * free + other) == pytest.approx(5.0, abs=1e-13)


@pytest.mark.parametrize("offset", [0.3, 2.0, 30.0], ids=["near", "inside", "outside"])
@pytest.mark.parametrize("problem", SMOOTH)
def test_err_D_is_the_restricted_gap(problem, offset):
    """z̄ near the solution, within the ball, and far outside of it."""
    z = problem.solution().numpy() + offset * np.random.default_rng(4).standard_normal(size(problem)) / 2
    start = problem.initial(None)["z"].numpy()
    low, high = restricted_gap(problem._J, problem._c, problem.phi, z, start, problem.radius, 1e-7)
    exact = problem.metrics(named(problem, z), None)["err_D"]
    rounding = 1e-10 * (1 + abs(exact))
    assert low - rounding <= exact <= high + rounding and high - low <= 1e-7 * max(1, high)
    assert exact > 0 or offset == 30.0


def test_err_D_may_be_negative_outside_the_ball():
    problem = prepared(AffineGame(d=3, clients=1, strong=1.0, smooth=1.0, skew=0.0, radius=1.0))
    start, star = problem.initial(None)["z"].numpy(), problem.solution().numpy()
    z = star + 1000 * (star - start) / np.linalg.norm(star - start)
    # V(w) = w - z*, and all w of the ball lie on the other side of z* than z: ⟨w - z*, z - w⟩ < 0.
    assert np.linalg.norm(start - star) > 1 and problem.err_D(z) < 0


def without_last(rng, d: int, zeros: int) -> np.ndarray:
    return rng.standard_normal(d) * (np.arange(d) < d - zeros)


QUADRATICS = {
    "concave inside": lambda rng, d: (-np.diag(np.arange(1.0, d + 1)), 0.1 * rng.standard_normal(d)),
    "concave boundary": lambda rng, d: (-np.diag(np.arange(1.0, d + 1)), 10 * rng.standard_normal(d)),
    "singular concave": lambda rng, d: (-np.diag(np.arange(0.0, d)), rng.standard_normal(d)),
    "indefinite": lambda rng, d: (np.diag(np.linspace(-2, 3, d)), rng.standard_normal(d)),
    "convex": lambda rng, d: (np.diag(np.linspace(0.5, 3, d)), rng.standard_normal(d)),
    "linear": lambda rng, d: (np.zeros((d, d)), rng.standard_normal(d)),
    "hard": lambda rng, d: (np.diag(np.linspace(-2, 3, d)), 0.3 * without_last(rng, d, 1)),
    "hard, double": lambda rng, d: (np.diag([-1.0] * (d - 2) + [2.0] * 2), 0.3 * without_last(rng, d, 2)),
    "hard but full": lambda rng, d: (np.diag(np.linspace(-2, 3, d)), 30 * without_last(rng, d, 1)),
    "nearly hard": lambda rng, d: (np.diag(np.linspace(-2, 3, d)),
     0.3 * np.where(np.arange(d) < d - 1, 1.0, 1e-13)),
    "no linear part": lambda rng, d: (np.diag(np.linspace(-2, 3, d)), np.zeros(d)),
}  # fmt: skip


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("radius", [0.2, 1.5])
@pytest.mark.parametrize("kind", QUADRATICS)
def test_trust_region_satisfies_the_optimality_conditions(kind, radius, rotated):
    """Feasible, (mI - Q) v = c with mI ⪰ Q, m ≥ 0, m (radius - ‖v‖) = 0: these hold at global maximisers
    alone."""
    rng, d = np.random.default_rng(7), 6
    Q, c = QUADRATICS[kind](rng, d)
    U = np.linalg.qr(rng.standard_normal((d, d)))[0] if rotated else np.eye(d)
    Q, c = U @ Q @ U.T, U @ c
    Q = (Q + Q.T) / 2
    value, v = maximize_on_ball(Q, c, radius)
    scale = 1 + np.linalg.norm(Q) + np.linalg.norm(c)
    norm = np.linalg.norm(v)
    assert value == pytest.approx(c @ v + v @ Q @ v / 2, abs=1e-14 * scale * 10)  # the same sum in two bases
    assert norm <= radius * (1 + 1e-13)
    gradient = c + Q @ v
    m = gradient @ v / norm**2 if norm > 0 else 0.0
    # Rounding of matrix products of this scale, divided by a radius of at least 0.2.
    assert m >= max(0.0, np.linalg.eigvalsh(Q)[-1]) - 1e-12 * scale
    np.testing.assert_allclose(gradient, m * v, rtol=0, atol=1e-12 * scale)
    assert abs(m) * (radius - norm) < 1e-12 * scale


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_trust_region_scales(scale):
    rng = np.random.default_rng(1)
    Q = rng.standard_normal((5, 5))
    Q, c = Q + Q.T, rng.standard_normal(5)
    value, v = maximize_on_ball(Q, c, 2.0)
    # Relative rounding only: v scales with the radius, the value with Q and c.
    assert maximize_on_ball(scale * Q, scale * c, 2.0)[0] == pytest.approx(scale * value, rel=1e-12)
    np.testing.assert_allclose(maximize_on_ball(Q, scale * c, 2.0 * scale)[1], scale * v, rtol=1e-10)


@pytest.mark.parametrize("Q, c, radius, message", [
    (np.eye(3), np.ones(2), 1.0, r"expected Q \[d, d\] and c \[d\], got \[3, 3\] and \[2\]"),
    (np.eye(2), np.ones(2), 0.0, "expected a radius > 0, got 0.0"),
    (np.array([[0.0, 1.0], [0.0, 0.0]]), np.ones(2), 1.0, "symmetric"),
    (np.eye(2), np.array([1.0, np.nan]), 1.0, "finite"),
])  # fmt: skip
def test_trust_region_refuses(Q, c, radius, message):
    with pytest.raises(ValueError, match=message):
        maximize_on_ball(Q, c, radius)


def test_composite_gap_vanishes_at_the_solution_alone():
    problem = prepared(L1BoxBilinear(dx=4, dy=3, clients=2, lam=0.2, bound=0.5))
    z, eta = problem.initial(None)["z"], 0.5 / problem.L
    step = lambda z, at: problem.phi(z - eta * torch.from_numpy(problem.mean_operator(at.numpy())), eta)  # noqa: E731
    first = problem.err_c(z.numpy())
    for _ in range(4000):  # the extragradient method with the proximal map
        z = step(z, step(z, z))
    figures = problem.metrics(named(problem, z.numpy()), None)
    # Linear convergence has ended in rounding of numbers of about 1.
    assert first > 0.1 and abs(figures["err_c"]) < 1e-12 and figures["residual"] < 1e-12
    assert 0 < figures["nonzero"] < 1  # the ℓ1 norms act


def test_l1_box_is_the_proximal_map_of_its_function():
    """prox_{wφ}(v) minimises ½(u - v)² + wλ|u| over |u| ≤ D, coordinate by coordinate: here on a grid."""
    phi, grid = L1Box(lam=0.7, bound=0.5), np.linspace(-0.5, 0.5, 10001)
    for v in (-3.0, -1.0, -0.4, 0.1, 0.62, 0.9, 2.0):
        for weight in (0.0, 0.5, 1.5):
            best = grid[np.argmin((grid - v) ** 2 / 2 + weight * 0.7 * abs(grid))]
            got = phi(torch.tensor([v], dtype=torch.float64), weight).item()
            assert got == pytest.approx(best, abs=0.51e-4)  # half of the grid's step
    values = phi.value(torch.tensor([[0.5, -0.5], [0.1, 0.0]]))
    assert values.tolist() == pytest.approx([0.7, 0.07])  # float32


def test_constants_depend_on_the_seed_and_runs_can_be_built_from_names():
    for cls in (AffineGame, Bilinear, L1BoxBilinear):
        first, again, other = (example(cls, {"clients": 2, "heterogeneity": 0.1}) for _ in range(3))
        for problem, seed in ((first, 5), (again, 5), (other, 6)):
            problem.prepare(seed)
        for mine, same, different in zip(first.client_data(1), again.client_data(1), other.client_data(1)):
            assert torch.equal(mine, same) and not torch.equal(mine, different)
        assert torch.equal(first.initial(None)["z"], again.initial(np.random.default_rng(0))["z"])
    assert Bilinear(phi="l1").phi == L1()
    with pytest.raises(ValueError, match="strong = 2.0, smooth = 1.0"):
        AffineGame(strong=2.0)


def test_residual_much_smaller_than_the_point():
    """V of 1e-20 at a point of size 1: z - (z - V) would be 0."""
    problem = AffineGame(d=3, clients=2)
    problem._set_mean_operator(np.zeros((3, 3)), np.array([3e-20, 0.0, 4e-20]), np.zeros(3))
    assert problem.residual(np.ones(3)) == pytest.approx(5e-20, rel=1e-15, abs=0)


@pytest.mark.parametrize("radius", [1e-320, 1e308, 0.0])
@pytest.mark.parametrize("game", [AffineGame, Bilinear])
def test_radius_with_overflowing_square_is_refused(game, radius):
    with pytest.raises(ConfigError, match="radius: Input should be (greater|less) than or equal to "):
        game(radius=radius)


@pytest.mark.parametrize("radius", [1e-12, 1e12])
def test_extreme_radii_give_finite_errors(radius):
    problem = prepared(AffineGame(clients=2, d=3, strong=0.1, radius=radius))
    assert all(np.isfinite(float(value)) for value in problem.metrics({"z": torch.zeros(3)}, None).values())


def uniform(values, low, high):
    """Mean and mean square are within five standard errors, and the extremes near both ends."""
    values = np.ravel(values)
    unit, five = (2 * values - low - high) / (high - low), 5 / np.sqrt(len(values))
    assert abs(unit).max() <= 1 and unit.max() > 1 - 2 * five and unit.min() < 2 * five - 1
    assert abs(unit.mean()) < five / np.sqrt(3) and abs((unit**2).mean() - 1 / 3) < five * np.sqrt(4 / 45)


def normal(values, deviation):
    values = np.ravel(values) / deviation
    five = 5 / np.sqrt(len(values))
    assert abs(values.mean()) < five and abs((values**2).mean() - 1) < five * np.sqrt(2)


def test_the_bilinear_game_on_a_box_is_uniform():
    problem = prepared(L1BoxBilinear(dx=400, dy=300, clients=1, bound=0.2))
    c = problem.mean_operator(np.zeros(700))
    assert not c[:400].any()
    uniform(c[400:], -1, 1)
    uniform([problem.mean_operator(row)[400:] - c[400:] for row in np.eye(700)[:400]], -1, 1)
    uniform(problem.initial(generator(0, "initial"))["z"].numpy(), -0.2, 0.2)
    assert problem.phi.lam == problem.lam and problem.phi.bound == 0.2


@pytest.mark.parametrize(
    "kind, deviation", [(Bilinear(dx=300, dy=200, clients=1), 2), (AffineGame(d=300, clients=1), 1)]
)
def test_starting_points_and_solutions_are_normal(kind, deviation):
    problem = prepared(kind)
    normal(problem.initial(generator(0, "initial"))["z"].numpy(), 1)
    normal(problem.solution().numpy(), deviation)
