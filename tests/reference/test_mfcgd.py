"""Checks of the MFCGD loop: identities, limits and numbers worked out by hand.

Tolerance 1e-12 where both sides are the same real numbers reached by different float64 operations on
quantities of order 1 (tens of steps, so some 1e-14 of rounding).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from .fgda import fgda
from .matrices import AdaBelief, AdaGradNorm, Adam, AMSGrad, BarzilaiBorwein, Identity, Norm
from .mfcgd import mfcgd

ROUNDING = 1e-12
APART = 1e-4  # methods that differ do so far above rounding
P, D, GAMMA = 3, 2, 0.4
X1 = torch.tensor([0.7, -0.4], dtype=torch.float64)
FACTORIES = {
    "identity": Identity,
    "adam": lambda: Adam(0.2, 0.9),
    "belief": lambda: AdaBelief(0.2, 0.9),
    "norm": lambda: Norm(0.2, 0.9),
    "adagrad_norm": lambda: AdaGradNorm(0.2),
    "amsgrad": lambda: AMSGrad(0.2, 0.9),
    "bb": lambda: BarzilaiBorwein(0.2),
}


class Composition:
    """g_k(x) = tanh(W_k x) + W_k x and f_k(u) = u'Q_k u / 2 + c_k'u, both with noise that scales and shifts
    them."""

    def __init__(self, clients, noise):
        rng = np.random.default_rng(50)
        self.clients, self.noise = clients, noise
        self.W = [torch.tensor(rng.normal(size=(P, D))) for _ in range(clients)]
        self.Q = [torch.tensor(np.diag(rng.uniform(0.5, 2.0, size=P))) for _ in range(clients)]
        self.c = [torch.tensor(rng.normal(size=P)) for _ in range(clients)]

    def sample(self, kind, k, key, *shape):
        """``kind`` distinguishes zeta from xi, which have the same keys in line 2."""
        name, number = key
        assert name == "init" or name == kind and number >= 2
        rng = np.random.default_rng([9, kind == "xi", k, name == "init", number])
        return self.noise * torch.tensor(rng.normal(size=shape))

    def inner(self, k, x, key):
        s = self.sample("zeta", k, key, P, D + 2)
        return (1 + s[0, 0]) * (torch.tanh(self.W[k] @ x) + self.W[k] @ x) + s[:, 2:] @ x + s[:, 1]

    def jacobian(self, k, x, key):
        s = self.sample("zeta", k, key, P, D + 2)
        return (1 + s[0, 0]) * torch.diag(2 - torch.tanh(self.W[k] @ x) ** 2) @ self.W[k] + s[:, 2:]

    def outer_grad(self, k, u, key):
        s = self.sample("xi", k, key, len(u) + 1)
        return (1 + s[0]) * (self.Q[k] @ u + self.c[k]) + s[1:]

    def run(self, method, **options):
        """A run of 6 rounds with varying schedules, unless the options say otherwise."""
        schedules = dict(alpha=lambda t: 0.4 / t**0.5, beta=lambda t: 0.7 / t**0.5, varrho=lambda t: 0.9 / t**0.5)
        settings = dict(q=3, rounds=6, gamma=GAMMA, eta=eta, **schedules) | options
        return method(self.inner, self.jacobian, self.outer_grad, self.clients, X1, **settings)


class Plain(Composition):
    """g_k(x) = x without noise: F is the mean of the f_k (here of D variables)."""

    def __init__(self, clients, noise):
        super().__init__(clients, noise)
        self.Q, self.c = [Q[:D, :D] for Q in self.Q], [c[:D] for c in self.c]

    def inner(self, k, x, key):
        return x

    def jacobian(self, k, x, key):
        return torch.eye(D, dtype=torch.float64)


def eta(t):
    return 0.3 / (1 + t) ** (1 / 3)


ONES = dict(alpha=lambda t: 1.0, beta=lambda t: 1.0, varrho=lambda t: 1.0)


def distance(left, right):
    """The largest coordinate difference of two paths of the same length."""
    assert len(left) == len(right)
    return max(float((p - s).abs().max()) for p, s in zip(left, right))


def comfedl(inner, jacobian, outer_grad, clients, x1, *, q, rounds, gamma, eta, weights=None, **momenta):
    """ComFedL with step size gamma eta(t), averaged every q steps, on MFCGD's samples: q in step 1, then one per
    step."""
    weights = [1.0] * clients if weights is None else weights
    x_bar, path, t = x1, [], 0
    for _ in range(rounds):
        x = [x_bar for k in range(clients)]
        for _ in range(q):
            t = t + 1
            zetas = [("init", j) for j in range(q)] if t == 1 else [("zeta", t)]
            xis = [("init", j) for j in range(q)] if t == 1 else [("xi", t)]
            for k in range(clients):
                g = sum(inner(k, x[k], key) for key in zetas) / len(zetas)
                J = sum(jacobian(k, x[k], key) for key in zetas) / len(zetas)
                w = J.T @ sum(outer_grad(k, g, key) for key in xis) / len(xis)
                x[k] = x[k] - gamma * eta(t) * w
        x_bar = sum(c * x_k for c, x_k in zip(weights, x)) / sum(weights)
        path.append(x_bar)
    return path


@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_c1_full_weights_give_comfedl(q, noise):
    game, options = Composition(3, noise), dict(q=q, weights=[1.0, 2.0, 0.5])
    right = game.run(comfedl, **options)
    assert distance(game.run(mfcgd, **ONES, **options), right) < ROUNDING
    for name in ONES:  # with noise every weight matters
        other = distance(game.run(mfcgd, **(ONES | {name: lambda t: 0.5}), **options), right)
        assert other > APART if noise else other < ROUNDING


@pytest.mark.parametrize("weights", [(0.0, 0.0, 0.0), (0.3, 0.05, 0.8), (1.0, 0.0, 0.5)])
def test_c2_without_noise_it_is_comfedl_for_any_weights(weights):
    """The estimators are not averaged, so they remain the exact values, also after synchronisations."""
    game = Composition(3, 0.0)
    alpha, beta, varrho = weights
    left = game.run(mfcgd, alpha=lambda t: alpha, beta=lambda t: beta, varrho=lambda t: varrho)
    assert distance(left, game.run(comfedl)) < ROUNDING


def test_without_noise_and_local_steps_it_is_gradient_descent():
    game, x, right = Composition(3, 0.0), X1, []

    def F(x):
        values = [torch.tanh(W @ x) + W @ x for W in game.W]
        return sum(u @ Q @ u / 2 + c @ u for u, Q, c in zip(values, game.Q, game.c)) / 3

    for t in range(1, 7):
        x = x - GAMMA * eta(t) * torch.func.grad(F)(x)
        right.append(x)
    assert distance(game.run(mfcgd, q=1), right) < ROUNDING


def test_identity_inside_gives_fedavg():
    game = Plain(3, 0.3)
    x, right = [X1, X1, X1], []
    for t in range(1, 19):
        keys = [("init", j) for j in range(3)] if t == 1 else [("xi", t)]
        x = [x[k] - GAMMA * eta(t) * sum(game.outer_grad(k, x[k], key) for key in keys) / len(keys) for k in range(3)]
        if t % 3 == 0:
            x = [sum(x) / 3] * 3
            right.append(x[0])
    # Exact inner values and Jacobians stay exact, so alpha and beta do not matter; varrho does.
    assert distance(game.run(mfcgd, varrho=lambda t: 1.0), right) < ROUNDING
    assert distance(game.run(mfcgd), right) > APART


@pytest.mark.parametrize("matrix", FACTORIES)
@pytest.mark.parametrize("first", ["rule", "identity", "rho"])
@pytest.mark.parametrize("q", [1, 3])
def test_identity_inside_gives_fgda_with_local_estimators_and_no_y(matrix, first, q):
    game, y = Plain(3, 0.3), torch.zeros(0, dtype=torch.float64)
    options = dict(q=q, matrix=FACTORIES[matrix], first_matrix=first, weights=[1.0, 2.0, 0.5])
    right = fgda(
        lambda k, x, y, key: (game.outer_grad(k, x, key if isinstance(key, tuple) else ("xi", key)), y), 3, X1, y,
        rounds=6, gamma=GAMMA, lam=1.0, eta=eta, alpha=lambda t: 1.0, beta=lambda t: 0.9 / t**0.5,
        sync_estimator="local", **options,
    )
    # A quotient of differences (Barzilai-Borwein) enlarges the rounding of the estimators.
    assert distance(game.run(mfcgd, **options), [x for x, y in right]) < 1e-11


@pytest.mark.parametrize("name", ["C_g", "C_f"])
def test_a_wide_ball_changes_nothing_and_a_narrow_one_does(name):
    game = Composition(2, 0.2)
    free = game.run(mfcgd)
    assert distance(game.run(mfcgd, **{name: 1e6}), free) == 0.0  # the same operations
    assert distance(game.run(mfcgd, **{name: 0.5}), free) > APART


def test_every_step_asks_for_one_new_sample_of_each_kind_at_both_points():
    """2q samples in line 2 and two per step (Huang n.d., Remark 1); those of step T + 1 are drawn too."""
    game, asked = Composition(2, 0.2), {"inner": [], "jacobian": [], "outer_grad": []}

    def noted(name):
        def call(k, point, key):
            asked[name].append((k, key))
            return getattr(game, name)(k, point, key)

        return call

    mfcgd(*(noted(name) for name in asked), 2, X1, q=3, rounds=2, gamma=GAMMA, eta=eta, **ONES)
    for name, kind in [("inner", "zeta"), ("jacobian", "zeta"), ("outer_grad", "xi")]:
        keys = [("init", j) for j in range(3)] + [(kind, s) for s in range(2, 8) for _ in range(2)]
        assert sorted(asked[name]) == sorted((k, key) for k in range(2) for key in keys)


# By hand: two clients, scalars, g_0 = x^2 + z x, g_1 = 3 x + z, f_0' = u + s, f_1' = 2 u - s, x_1 = 1, q = 2,
# gamma = .2, eta = .5, alpha = .5, beta = .25, varrho = .8 up to t = 2, then .75, .4, .3

ZETA = {("init", 0): (0.1, -0.2), ("init", 1): (0.3, 0.4), ("zeta", 2): (0.5, -0.5), ("zeta", 3): (-0.4, 0.2),
        ("zeta", 4): (0.6, -0.1), ("zeta", 5): (9.0, 9.0)}
XI = {("init", 0): (0.2, 0.4), ("init", 1): (-0.6, 0.2), ("xi", 2): (0.3, -0.1), ("xi", 3): (-0.2, 0.7),
      ("xi", 4): (0.1, 0.5), ("xi", 5): (9.0, 9.0)}


def g(k, x, key):
    return x**2 + ZETA[key][k] * x if k == 0 else 3 * x + ZETA[key][k]


def dg(k, x, key):
    return (2 * x + ZETA[key][k] if k == 0 else torch.full_like(x, 3.0)).reshape(1, 1)


def df(k, u, key):
    return u + XI[key][k] if k == 0 else 2 * u - XI[key][k]


def by_hand(rounds=1, **options):
    schedules = dict(eta=lambda t: 0.5, alpha=lambda t: 0.5 if t < 3 else 0.75, beta=lambda t: 0.25 if t < 3 else 0.4,
                     varrho=lambda t: 0.8 if t < 3 else 0.3)
    path = mfcgd(g, dg, df, 2, [1.0], q=2, rounds=rounds, gamma=0.2, **schedules, **options)
    return [float(x) for x in path]


# Line 2: h = (1.2, 3.1), u = (2.2, 3), v = (1.2 - .2, 6.2 - .3) = (1, 5.9), w = (2.2, 17.7)
W1 = (2.2, 17.7)


def estimators_of_step_2(x0, x1, C_g=math.inf, C_f=math.inf):
    """Return (h, u, v) of both clients at their points x0, x1, from x_1 = 1 with alpha = .5, beta = .25, varrho
    = .8."""
    h0, h1 = x0**2 + 0.5 * x0 + 0.5 * (1.2 - 1.5), 3 * x1 - 0.5 + 0.5 * (3.1 - 2.5)
    u0, u1 = min(2 * x0 + 0.5 + 0.75 * (2.2 - 2.5), C_g), min(3.0, C_g)
    v0, v1 = h0 + 0.3 + 0.2 * (1.0 - (1.2 + 0.3)), 2 * h1 + 0.1 + 0.2 * (5.9 - (2 * 3.1 + 0.1))
    return (h0, u0, max(-C_f, min(v0, C_f))), (h1, u1, max(-C_f, min(v1, C_f)))


def test_first_round_by_hand():
    # t = 1: x = (1 - .22, 1 - 1.77) = (.78, -.77)
    # h = (.6084 + .39 - .15, -2.31 - .5 + .3) = (.8484, -2.51), u = (1.56 + .5 - .225, 3) = (1.835, 3)
    # v = (1.1484 - .1, -4.92 - .08) = (1.0484, -5), w = (1.835 * 1.0484, -15); t = 2: x = .005 - .05 (w_0 -
    # 15)
    assert by_hand() == pytest.approx([0.005 - 0.05 * (1.835 * 1.0484 - 15)], rel=0, abs=ROUNDING)


def test_second_round_by_hand():
    (h0, u0, v0), (h1, u1, v1) = estimators_of_step_2(0.78, -0.77)
    a = 0.005 - 0.05 * (u0 * v0 + u1 * v1)  # t = 2
    # The step at t = 2 makes the estimators of t = 3 from the clients' own points .78, -.77 and own h, u, v.
    H0 = a**2 - 0.4 * a + 0.5 * (h0 - (0.78**2 - 0.4 * 0.78))
    H1 = 3 * a + 0.2 + 0.5 * (h1 - (-3 * 0.77 + 0.2))
    U0 = 2 * a - 0.4 + 0.75 * (u0 - (2 * 0.78 - 0.4))
    V0, V1 = H0 - 0.2 + 0.2 * (v0 - (h0 - 0.2)), 2 * H1 - 0.7 + 0.2 * (v1 - (2 * h1 - 0.7))
    b0, b1 = a - 0.1 * U0 * V0, a - 0.1 * 3 * V1  # t = 3, which makes those of t = 4
    h0, h1 = b0**2 + 0.6 * b0 + 0.25 * (H0 - (a**2 + 0.6 * a)), 3 * b1 - 0.1 + 0.25 * (H1 - (3 * a - 0.1))
    u0 = 2 * b0 + 0.6 + 0.6 * (U0 - (2 * a + 0.6))
    v0, v1 = h0 + 0.1 + 0.7 * (V0 - (H0 + 0.1)), 2 * h1 - 0.5 + 0.7 * (V1 - (2 * H1 - 0.5))
    expected = [a, (b0 + b1) / 2 - 0.05 * (u0 * v0 + 3 * v1)]  # t = 4
    assert by_hand(rounds=2) == pytest.approx(expected, rel=0, abs=ROUNDING)


@pytest.mark.parametrize("limits", [{"C_g": 1.5}, {"C_f": 0.8}, {"C_g": 2.5, "C_f": 3.0}])
def test_balls_by_hand(limits):
    """u_1 and v_1 are used as computed in line 2, outside the balls; in one dimension a ball is an interval."""
    (h0, u0, v0), (h1, u1, v1) = estimators_of_step_2(0.78, -0.77, **limits)
    expected = 0.005 - 0.05 * (u0 * v0 + u1 * v1)
    assert by_hand(**limits) == pytest.approx([expected], rel=0, abs=ROUNDING)


def test_ball_of_a_jacobian_is_in_the_frobenius_norm():
    """g(x) = B x, f'(u) = 1, x_1 = 0, q = 2: u_1 = B and u_2 = B C_g / |B|, with |B|^2 = 4 + 1 + 4 + 16 =
    25."""
    B, one = torch.tensor([[2.0, 1.0], [2.0, -4.0]], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    (x,) = mfcgd(
        lambda k, x, key: B @ x, lambda k, x, key: B, lambda k, u, key: one, 1, [0.0, 0.0],
        q=2, rounds=1, gamma=1.0, eta=lambda t: 0.5, **ONES, C_g=2.0, C_f=1.0,
    )
    # The first step uses v_1 = (1, 1), the second v_2 = (1, 1) / sqrt 2
    expected = -0.5 * B.T @ one * (1 + 2 / 5 / math.sqrt(2))
    assert float((x - expected).abs().max()) < ROUNDING


# The average of w_1 is 9.95, the decay .75
@pytest.mark.parametrize(
    ("first", "A", "a"), [("rule", 9.95 / 2 + 0.1, 9.95**2 / 4), ("identity", 1.0, 0.0), ("rho", 0.1, 0.0)]
)
def test_adaptive_round_by_hand(first, A, a):
    x0, x1 = 1 - 0.1 * W1[0] / A, 1 - 0.1 * W1[1] / A
    (h0, u0, v0), (h1, u1, v1) = estimators_of_step_2(x0, x1)
    w_bar = (u0 * v0 + u1 * v1) / 2
    A = math.sqrt(0.75 * a + 0.25 * w_bar**2) + 0.1
    path = by_hand(matrix=lambda: Adam(0.1, 0.75), first_matrix=first)
    assert path == pytest.approx([(x0 + x1) / 2 - 0.1 * w_bar / A], rel=1e-13, abs=ROUNDING)  # x_2 is 17 for rho
