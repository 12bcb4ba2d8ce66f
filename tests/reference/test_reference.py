"""Checks of the reference loops themselves: identities, limits and numbers worked out by hand.

Tolerances: 1e-12 where both sides are the same real numbers reached by different float64 operations on
quantities of order 1 (tens of steps, so some 1e-14 of rounding); wider tolerances are explained next to them.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

from .fgda import fgda
from .local_sgda import local_sgda
from .matrices import AdaBelief, AdaGradNorm, Adam, AMSGrad, BarzilaiBorwein, Identity, Norm

ROUNDING = 1e-12
READINGS = ("stem", "local", "mean_after")
DX, DY = 2, 3
GAMMA, LAM = 0.3, 0.5
X1, Y1 = torch.tensor([0.7, -0.4], dtype=torch.float64), torch.tensor([0.2, 0.5, -0.3], dtype=torch.float64)
FACTORIES = {
    "identity": Identity,
    "adam": lambda: Adam(0.2, 0.9),
    "adam_corrected": lambda: Adam(0.2, 0.9, bias_correction=True),
    "belief_zero": lambda: AdaBelief(0.2, 0.9),
    "belief_initial": lambda: AdaBelief(0.2, 0.9, reference="initial"),
    "norm": lambda: Norm(0.2, 0.9),
    "norm_root": lambda: Norm(0.2, 0.9, root=True),
    "adagrad_norm": lambda: AdaGradNorm(0.2),
    "amsgrad": lambda: AMSGrad(0.2, 0.9),
    "bb": lambda: BarzilaiBorwein(0.2),
}


class Game:
    """f_k = x'P_k x/2 + x'C_k y - y'Q_k y/2 + a_k'x + b_k'y; the noise shifts both gradients and scales
    them."""

    def __init__(self, clients, noise):
        rng = np.random.default_rng(20)
        self.noise, self.F, self.shift = noise, [], []
        for _ in range(clients):
            P, Q = (np.diag(rng.uniform(0.5, 2.0, size=n)) for n in (DX, DY))
            C = rng.normal(size=(DX, DY))
            self.F.append(torch.tensor(np.block([[P, C], [C.T, -Q]])))
            self.shift.append(torch.tensor(rng.normal(size=DX + DY)))

    def grad(self, k, x, y, key):
        address = (1, key[1]) if isinstance(key, tuple) else (2, key)
        sample = torch.tensor(np.random.default_rng([5, k, *address]).normal(size=DX + DY + 1))
        g = (1 + self.noise * sample[0]) * (self.F[k] @ torch.cat([x, y])) + self.shift[k] + self.noise * sample[1:]
        return g[:DX], g[DX:]

    def saddle(self):
        return torch.linalg.solve(sum(self.F), -sum(self.shift))


def eta(t):
    return 0.3 / (1 + t) ** (1 / 3)


def run(game, **options):
    """An FGDA run of 6 rounds on the game with varying schedules, unless the options say otherwise."""
    schedules = dict(eta=eta, alpha=lambda t: 0.4 / t**0.5, beta=lambda t: 0.7 / t**0.5)
    settings = dict(q=3, rounds=6, gamma=GAMMA, lam=LAM, **schedules)
    return fgda(game.grad, len(game.F), X1, Y1, **(settings | options))


def distance(left, right):
    """The largest coordinate difference of two paths of the same length."""
    assert len(left) == len(right)
    return max(float((torch.cat(p) - torch.cat(s)).abs().max()) for p, s in zip(left, right))


def ball(y):
    return y / max(1.0, float(torch.linalg.vector_norm(y)) / 0.5)


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("reading", ["stem", "local"])
def test_full_weights_give_local_sgda(noise, reading):
    game, weights = Game(3, noise), [1.0, 2.0, 0.5]

    def grad(k, x, y, t):
        """Step 1 of FGDA uses the q = 3 initial samples, every later step t uses sample t."""
        pairs = [game.grad(k, x, y, key) for key in ([("init", j) for j in range(3)] if t == 1 else [t])]
        return sum(gx for gx, gy in pairs) / len(pairs), sum(gy for gx, gy in pairs) / len(pairs)

    left = run(game, alpha=lambda t: 1.0, beta=lambda t: 1.0, sync_estimator=reading, weights=weights)
    rates = dict(eta_x=lambda t: GAMMA * eta(t), eta_y=lambda t: LAM * eta(t))
    assert distance(left, local_sgda(grad, 3, X1, Y1, q=3, rounds=6, weights=weights, **rates)) < ROUNDING


def test_local_reading_without_noise_is_local_gda_for_any_weights():
    game = Game(3, 0.0)
    right = local_sgda(game.grad, 3, X1, Y1, q=4, rounds=6, eta_x=lambda t: 0.03, eta_y=lambda t: 0.05)
    for alpha, beta in [(0.0, 1.0), (0.3, 0.05)]:
        options = dict(q=4, eta=lambda t: 0.1, alpha=lambda t: alpha, beta=lambda t: beta)
        assert distance(run(game, sync_estimator="local", **options), right) < ROUNDING
        for other in ("stem", "mean_after", "box"):
            assert distance(run(game, sync_estimator=other, **options), right) > 1e-4  # far above rounding


@pytest.mark.parametrize("matrix", FACTORIES)
@pytest.mark.parametrize(("clients", "q"), [(1, 1), (3, 1), (1, 2), (1, 5)])
def test_one_client_or_one_step_makes_the_readings_coincide(matrix, clients, q):
    game = Game(clients, 0.2)
    options = dict(q=q, matrix=FACTORIES[matrix], project=ball)
    stem, local, mean_after = (run(game, sync_estimator=reading, **options) for reading in READINGS)
    # A quotient of differences (Barzilai-Borwein) enlarges the rounding of the averages.
    assert max(distance(stem, local), distance(stem, mean_after)) < 1e-11
    assert distance(stem, run(game, sync_estimator="box", **options)) > 1e-4


def test_readings_differ_with_several_clients_and_steps():
    paths = [run(Game(3, 0.2), sync_estimator=reading) for reading in (*READINGS, "box")]
    for i in range(4):
        for j in range(i):
            assert distance(paths[i], paths[j]) > 1e-4  # far above rounding


@pytest.mark.parametrize("matrix", FACTORIES)
def test_first_matrix_is_never_used_when_every_step_is_a_sync(matrix):
    """The first synchronisation is before the first step, and refreshes the matrix, whatever it was before."""
    game = Game(3, 0.2)
    options = dict(q=1, matrix=FACTORIES[matrix])
    rule, identity, rho = (run(game, first_matrix=first, **options) for first in ("rule", "identity", "rho"))
    assert distance(identity, rho) == 0.0  # the same operations
    if matrix == "belief_initial":  # the rule's A_1 compares with 0, the sync of the other two with w_1 itself
        assert distance(rule, run(game, first_matrix="rule", q=1, matrix=FACTORIES["belief_zero"])) == 0.0
    else:
        assert distance(rule, identity) == 0.0


def test_box_reading_freezes_the_estimator_when_every_step_is_a_sync():
    game = Game(2, 0.2)
    (w0, v0), (w1, v1) = (game.grad(k, X1, Y1, ("init", 0)) for k in range(2))
    for r, (x, y) in enumerate(run(game, q=1, eta=lambda t: 0.1, sync_estimator="box"), start=1):
        assert float((x - (X1 - r * GAMMA * 0.1 * (w0 + w1) / 2)).abs().max()) < ROUNDING
        assert float((y - (Y1 + r * LAM * 0.1 * (v0 + v1) / 2)).abs().max()) < ROUNDING


# Limits on heterogeneous clients with different Jacobians


def local_gda_limit(game, q, eta_x, eta_y):
    """The fixed point of z -> mean over k of the q-step map z_k + P_k (z - z_k), P_k = (I + D F_k)^q."""
    D = torch.diag(torch.tensor([-eta_x] * DX + [eta_y] * DY, dtype=torch.float64))
    eye = torch.eye(DX + DY, dtype=torch.float64)
    powers = [torch.linalg.matrix_power(eye + D @ F, q) for F in game.F]
    centres = [torch.linalg.solve(F, -shift) for F, shift in zip(game.F, game.shift)]
    pull = sum((eye - P) @ z for P, z in zip(powers, centres)) / len(powers)
    return torch.linalg.solve(eye - sum(powers) / len(powers), pull)


def test_stem_reaches_the_saddle_and_local_stays_at_the_local_gda_limit():
    game = Game(3, 0.0)

    def error(reading, weight, target):
        options = dict(eta=lambda t: 0.2, alpha=lambda t: weight, beta=lambda t: weight, rounds=200)
        return float((torch.cat(run(game, sync_estimator=reading, **options)[-1]) - target).norm())

    saddle, limit = game.saddle(), local_gda_limit(game, 3, 0.2 * GAMMA, 0.2 * LAM)
    floor = float((limit - saddle).norm())
    assert floor > 1e-2  # the drift of these clients is visible at this step size
    assert error("local", 0.01, limit) < 1e-10  # 600 contracting steps leave rounding only
    assert error("stem", 0.0, saddle) < 1e-10
    small, smaller = error("stem", 0.01, saddle), error("stem", 0.001, saddle)
    assert small < 0.1 * floor
    assert 8 < small / smaller < 12  # the bias is proportional to the weight to first order


# By hand: two clients, scalars, start (1, 2), q = 2, gamma = .2, lambda = .4, eta = .5, alpha = .25, beta =
# .5 up to t = 2, then alpha = .75, beta = .3

SAMPLES = {("init", 0): (0.1, -0.2), ("init", 1): (0.3, 0.4), 1: (0.2, 0.1), 2: (0.5, -0.3), 3: (-0.4, 0.2),
           4: (0.6, -0.1), 5: (0.7, 0.9)}


def scalar_grad(k, x, y, key):
    s = SAMPLES[key][k]
    return (x + y + s, x - y + s) if k == 0 else (3 * x - y + s, -x - 2 * y + s)


def by_hand(rounds=1, **options):
    path = fgda(
        scalar_grad, 2, [1.0], [2.0], q=2, rounds=rounds, gamma=0.2, lam=0.4, eta=lambda t: 0.5,
        alpha=lambda t: 0.25 if t < 3 else 0.75, beta=lambda t: 0.5 if t < 3 else 0.3, **options,
    )
    return [pytest.approx((float(x), float(y)), rel=0, abs=ROUNDING) for x, y in path]


def clamp(y):
    return y.clamp(1.2, 1.5)


@pytest.mark.parametrize("reading", [*READINGS, "box"])
def test_first_round_by_hand(reading):
    # t = 1: w = (3.2, 1.1), v = (-.8, -4.9); x = (1 - .32, 1 - .11) = (.68, .89), y = (2 - .16, 2 - .98) =
    # (1.84, 1.02) w = (.68 + 1.84 + .5 + .5 (3.2 - 3.5), 2.67 - 1.02 - .3 + .5 (1.1 - .7)) = (2.87, 1.55)
    # v = (.68 - 1.84 + .5 + .75 (-.8 + .5), -.89 - 2.04 - .3 + .75 (-4.9 + 5.3)) = (-.885, -2.93)
    # t = 2: x = .785 - .1 * 2.21, y = 1.43 - .2 * 1.9075
    assert by_hand(sync_estimator=reading) == [(0.564, 1.0485)]


@pytest.mark.parametrize(
    ("reading", "w", "v"),
    [
        # Client 0: w = .564 + 1.0485 - .4 + .5 (w - 2.12),       v = .564 - 1.0485 - .4 + .75 (v + 1.56)
        # Client 1: w = 1.692 - 1.0485 + .2 + .5 (w - 1.85),      v = -.564 - 2.097 + .2 + .75 (v + 2.73)
        # with their own (2.87, -.885), (1.55, -2.93) on the right, or the averages (2.21, -1.9075)
        ("local", (1.5875, 0.6935), (-0.37825, -2.611)),
        ("stem", (1.2575, 1.0235), (-1.145125, -1.844125)),
        ("mean_after", (1.1405, 1.1405), (-1.494625, -1.494625)),
        ("box", (2.21, 2.21), (-1.9075, -1.9075)),
    ],
)
def test_second_round_by_hand(reading, w, v):
    x0, x1 = 0.564 - 0.1 * w[0], 0.564 - 0.1 * w[1]
    y0, y1 = 1.0485 + 0.2 * v[0], 1.0485 + 0.2 * v[1]
    w0 = (x0 + y0 + 0.6) + 0.7 * (w[0] - (0.564 + 1.0485 + 0.6))
    w1 = (3 * x1 - y1 - 0.1) + 0.7 * (w[1] - (3 * 0.564 - 1.0485 - 0.1))
    v0 = (x0 - y0 + 0.6) + 0.25 * (v[0] - (0.564 - 1.0485 + 0.6))
    v1 = (-x1 - 2 * y1 - 0.1) + 0.25 * (v[1] - (-0.564 - 2 * 1.0485 - 0.1))
    x, y = (x0 + x1) / 2 - 0.1 * (w0 + w1) / 2, (y0 + y1) / 2 + 0.2 * (v0 + v1) / 2
    assert by_hand(rounds=2, sync_estimator=reading) == [(0.564, 1.0485), (x, y)]


def test_weights_and_projection_by_hand():
    # weights: x = (3 * .68 + .89) / 4 - .1 (3 * 2.87 + 1.55) / 4, y = (3 * 1.84 + 1.02) / 4 - .2 (3 * .885 +
    # 2.93) / 4
    assert by_hand(weights=[3.0, 1.0]) == [(0.7325 - 0.254, 1.635 - 0.27925)]
    # mixed: y_2 = (1.84, 1.02) -> (1.5, 1.2), w_2 = (2.53, 1.37), v_2 = (-.545, -3.29); 1.35 - .2 * 1.9175 ->
    # 1.2
    assert by_hand(project=clamp) == [(0.785 - 0.195, 1.2)]
    # step: y^_2 = (1.68, .04) -> (1.5, 1.2), y_2 = (1.75, 1.6), w_2 = (2.78, .97), v_2 = (-.795, -4.09);
    # y^_3 = 1.675 - .4 * 2.4425 -> 1.2
    assert by_hand(project=clamp, project_where="step") == [(0.785 - 0.1875, (1.675 + 1.2) / 2)]


# Adam and belief with the reference 0 part at the second sync only
@pytest.mark.parametrize(
    ("matrix", "reference"), [(Adam, (0, 0)), (AdaBelief, (0, 0)), (partial(AdaBelief, reference="initial"), (2.15, -2.85))]
)
@pytest.mark.parametrize(
    ("first", "A", "B", "a", "b"),
    [
        # The averages are 2.15 and -2.85, the decay .75: a_1 = (2.15 / 2)^2, b_1 = (2.85 / 2)^2
        ("rule", 1.175, 1.525, 1.075**2, 1.425**2),
        ("identity", 1.0, 1.0, 0.0, 0.0),
        ("rho", 0.1, 0.1, 0.0, 0.0),
    ],
)
def test_adaptive_round_by_hand(matrix, reference, first, A, B, a, b):
    x0, x1, y0, y1 = 1 - 0.32 / A, 1 - 0.11 / A, 2 - 0.16 / B, 2 - 0.98 / B
    w_bar = (x0 + y0 + 0.5 + 0.5 * (3.2 - 3.5) + 3 * x1 - y1 - 0.3 + 0.5 * (1.1 - 0.7)) / 2
    v_bar = (x0 - y0 + 0.5 + 0.75 * (-0.8 + 0.5) - x1 - 2 * y1 - 0.3 + 0.75 * (-4.9 + 5.3)) / 2
    w_change, v_change = w_bar - reference[0], v_bar - reference[1]
    A, B = math.sqrt(0.75 * a + 0.25 * w_change**2) + 0.1, math.sqrt(0.75 * b + 0.25 * v_change**2) + 0.1
    expected = ((x0 + x1) / 2 - 0.1 * w_bar / A, (y0 + y1) / 2 + 0.2 * v_bar / B)
    assert by_hand(matrix=lambda: matrix(0.1, 0.75), first_matrix=first) == [expected]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # After step 1 x = (.68, .89), y = (1.84, 1.02); step 2 subtracts .1 (3.02, 1.35), adds .2 (-.66,
        # -3.23)
        ({}, ((0.378 + 0.755) / 2, (1.708 + 0.374) / 2)),
        ({"weights": [3.0, 1.0]}, ((3 * 0.378 + 0.755) / 4, (3 * 1.708 + 0.374) / 4)),
        ({"cohorts": [[1]], "weights": [3.0, 1.0]}, (0.755, 0.374)),
        # y = (1.5, 1.2); step 2 subtracts .1 (2.68, 1.17), adds .2 (-.32, -3.59), and .482 goes to 1.2
        ({"project": clamp}, ((0.412 + 0.773) / 2, (1.436 + 1.2) / 2)),
    ],
)
def test_local_sgda_round_by_hand(options, expected):
    # Step 1 on the same samples as FGDA's averages: s = (.2, .1)
    ((x, y),) = local_sgda(
        scalar_grad, 2, [1.0], [2.0], q=2, rounds=1, eta_x=lambda t: 0.1, eta_y=lambda t: 0.2, **options
    )
    assert (float(x), float(y)) == pytest.approx(expected, rel=0, abs=ROUNDING)


@pytest.mark.parametrize(
    ("matrix", "power", "expected"),
    [
        # (diag - rho)^power after averages (3, -4), (1, 2), (1, 0) at the start and two syncs, q > 1
        (Adam(0.1, 0.75), 2, [(2.25, 4), (1.9375, 4), (1.703125, 3)]),
        (Adam(0.1, 0.75, True), 2, [(9, 16), (1.9375 / 0.4375, 4 / 0.4375), (1.703125 / 0.578125, 3 / 0.578125)]),
        (AdaBelief(0.1, 0.75), 2, [(2.25, 4), (1.9375, 4), (1.453125, 4)]),
        (AdaBelief(0.1, 0.75, reference="initial"), 2, [(2.25, 4), (2.6875, 12), (2.015625, 10)]),
        (Norm(0.1, 0.75), 1, [1.25, 0.9375 + math.sqrt(5) / 4, 0.953125 + 3 * math.sqrt(5) / 16]),
        (Norm(0.1, 0.75, root=True), 2, [6.25, 5.9375, 4.703125]),
        # Decays 3/4, 1/2, 0 at t = 1, 2, 3
        (Adam(0.1, {1: 0.75, 2: 0.5, 3: 0.0}.get), 2, [(2.25, 4), (1.625, 4), (1, 0)]),
        (Norm(0.1, {1: 0.75, 2: 0.5, 3: 0.0}.get, root=True), 2, [6.25, 5.625, 1]),
        (AdaGradNorm(0.1), 2, [25, 30, 31]),
        (AMSGrad(0.1, 0.75), 2, [(2.25, 4), (2.25, 4), (2.25, 4)]),
        (BarzilaiBorwein(0.1), 1, [0, 4, 4]),  # |(-2, 6) (1, -1)| / 2; the third point is the second
    ],
)
def test_matrices_by_hand(matrix, power, expected):
    w = [torch.tensor(value, dtype=torch.float64) for value in ([3, -4], [1, 2], [1, 0])]
    points = [torch.tensor(value, dtype=torch.float64) for value in ([0, 0], [1, -1], [1, -1])]
    matrix.start(w[0], points[0])
    for i in range(3):
        matrix.refresh(w[i], points[i], 1 + i, at_sync=i > 0, first=i == 0)
        value = torch.as_tensor(expected[i], dtype=torch.float64)
        assert float(((matrix.diag - 0.1) ** power - value).abs().max()) < ROUNDING
