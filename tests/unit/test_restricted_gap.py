"""The restricted gap of composite affine inequalities: bounds against grids, closed forms and solutions."""

import numpy as np
import pytest
import torch
from oracles import prepared

from mpifed.core.sets import L1, Ball, Box, Indicator, L1Box, Nuclear, Simplex, Zero
from mpifed.problems import AffineGame, Bilinear, L1BoxBilinear
from mpifed.problems.restricted_gap import OUTSIDE, maximize_on_ball, restricted_gap

TOLERANCE = 1e-6  # default tolerance of the bounds
PHIS = {
    "zero": Zero(),
    "l1": L1(lam=0.8),
    "l1 box": L1Box(lam=0.3, bound=0.7),
    "nuclear": Nuclear(shape=(1, 2), lam=0.8),
    "ball": Indicator(Ball(0.9)),
    "box": Indicator(Box(-0.5, 0.8)),
    "simplex": Indicator(Simplex()),
}


ANGLES, LENGTHS = np.meshgrid(np.linspace(0, 2 * np.pi, 181), np.linspace(0, 1, 41))
GRID = np.stack([LENGTHS * np.cos(ANGLES), LENGTHS * np.sin(ANGLES)], axis=-1).reshape(-1, 2)


def jacobian(kind, d, rng):
    W, S = rng.standard_normal((2, d, d))
    if kind == "singular":
        S[:, d // 2 :] = 0
    return W - W.T + (0 if kind == "skew" else 1) * S @ S.T / d


def gap_at(J, c, phi, z, w):
    """⟨V(w), z - w⟩ + φ(z) - φ(w) for every row w."""
    values = ((w @ J.T + c) * (z - w)).sum(1)
    return values + phi.value(torch.from_numpy(z)).numpy() - phi.value(torch.from_numpy(w)).numpy()


@pytest.mark.parametrize("radius", [0.6, 1.5, 20.0])
@pytest.mark.parametrize("kind", ["skew", "monotone", "singular"])
@pytest.mark.parametrize("name", PHIS)
def test_no_point_of_a_grid_is_above_and_one_is_near(name, kind, radius):
    rng, phi = np.random.default_rng(7), PHIS[name]
    J, c = jacobian(kind, 2, rng), rng.standard_normal(2)
    z = phi(torch.from_numpy(rng.standard_normal(2)), 0.5).numpy()
    centre = phi(torch.from_numpy(rng.standard_normal(2) / 2), 0.0).numpy() + 0.1
    low, high = restricted_gap(J, c, phi, z, centre, radius)
    assert low <= high <= low + TOLERANCE * max(1, abs(high))
    best, middle = -np.inf, centre
    for size in (radius, radius / 15):  # the whole ball, then about the best of it
        w = phi(torch.from_numpy(middle + size * GRID), 0.0).numpy()  # onto φ's set
        w = w[np.linalg.norm(w - centre, axis=1) <= radius]
        values = gap_at(J, c, phi, z, w)
        best, middle = max(best, values.max()), w[values.argmax()]
    # Neighbours are within radius / 400 of each other; the slope along the ball grows with its radius.
    slope = 2 * np.linalg.norm(J, 2) * (radius + 3) + np.linalg.norm(c) + 2
    assert best <= high + 1e-12 * abs(high) and low <= best + slope * radius / 200


@pytest.mark.parametrize("radius", [0.5, 3.0, 30.0])
@pytest.mark.parametrize("kind", ["skew", "monotone", "singular"])
def test_without_phi_it_is_the_trust_region_problem(kind, radius):
    rng = np.random.default_rng(3)
    J, (c, z, centre) = jacobian(kind, 6, rng), rng.standard_normal((3, 6))
    low, high = restricted_gap(J, c, Zero(), z, centre, radius)
    V, u = J @ centre + c, z - centre
    exact = V @ u + maximize_on_ball(-(J + J.T), J.T @ u - V, radius)[0]
    rounding = 1e-12 * max(1, abs(exact))
    assert low - rounding <= exact <= high + rounding and high - low <= TOLERANCE * max(1, high)


@pytest.mark.parametrize("lam", [0.0, 0.3, 2.0])
def test_gap_agrees_with_the_closed_form_if_the_ball_contains_the_box(lam):
    game = prepared(L1BoxBilinear(dx=7, dy=4, clients=3, bound=0.3, lam=lam, heterogeneity=0.2), 1)
    for z in np.random.default_rng(3).uniform(-0.3, 0.3, (5, 11)):
        low, high = restricted_gap(game._J, game._c, game.phi, z, z, 5.0)
        assert low - 1e-12 <= game.err_c(z) <= high + 1e-12 and high - low < 1e-6 < low
    game.prepare(2)
    assert restricted_gap(game._J, game._c, game.phi, z, z, 0.1)[1] < game.err_c(z)


GAMES = {
    "affine": AffineGame(d=6, clients=3, phi=L1(lam=0.5), heterogeneity=0.5),
    "strong": AffineGame(d=6, clients=3, strong=0.2, phi=Nuclear(shape=(2, 3), lam=0.4)),
    "box": AffineGame(d=5, clients=2, phi=Indicator(Box(-0.2, 0.2))),
    "bilinear": Bilinear(dx=3, dy=2, clients=2, phi=L1(lam=0.5), heterogeneity=0.5),
}


@pytest.mark.parametrize("name", GAMES)
def test_gap_is_zero_at_the_solution_of_a_composite_game(name):
    game = prepared(GAMES[name], 1)
    star = game.solution()
    figures = game.metrics({"z": star}, None)
    # Numbers of about 10 in double precision, and bounds within their tolerance.
    assert figures["residual"] < 1e-13 and figures["distance"] == 0
    assert -1e-12 < figures["err_D"] < 2 * TOLERANCE and figures["err_D_slack"] < 2 * TOLERANCE
    mean = game.mean_operator(star.numpy())
    assert np.linalg.norm(mean) > 0.1  # φ matters
    away = game.phi(star + 0.3, 0.0)
    assert game.metrics({"z": away}, None)["err_D"] > 1e-3


def test_gap_is_infinite_outside_the_set_of_phi():
    """Their gap is infinite but for rounding; a ball without any of the set is no region."""
    J, c, zero = np.eye(2), np.ones(2), np.zeros(2)
    phi = Indicator(Box(-1.0, 1.0))
    assert restricted_gap(J, c, phi, np.array([1.1, 0.0]), zero, 1.0) == (np.inf, np.inf)
    assert np.isfinite(restricted_gap(J, c, phi, np.array([1 + OUTSIDE / 2, 0.0]), zero, 1.0)).all()
    with pytest.raises(ValueError, match="infinite on the ball of radius 1 around the start"):
        restricted_gap(J, c, phi, zero, np.array([3.0, 0.0]), 1.0)
    game = prepared(Bilinear(dx=2, dy=1, clients=2, phi=phi), 1)
    figures = game.metrics({"z": torch.tensor([3.0, 0.0, 0.0]).double()}, None)
    assert figures["err_D"] == np.inf and figures["err_D_slack"] == 0
