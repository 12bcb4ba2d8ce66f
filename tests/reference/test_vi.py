"""Checks of the loops of Wang & Kale n.d.: identities between the methods, limits and numbers worked out by
hand.

Tolerance 1e-12 where both sides are the same real numbers reached by different float64 operations on
quantities of order 1 to 100 (tens of steps, so some 1e-14 of rounding relative to them); wider tolerances are explained next to them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from .dual import fed_dual_avg, fedualex
from .extragradient import extra_sgd, extra_step_local_sgd
from .local_sgda import local_sgda
from .proximal import ball, box, entropy, l1, nuclear, simplex, zero
from .test_reference import distance
from .vi import inner_step_size, lesgd, lippax, local_dual_extrapolation, lsgd, slippax, smoothing_radius

ROUNDING = 1e-12
APART = 1e-4  # methods that differ do so far above rounding
D, ETA, INNER = 4, 0.2, 0.15
Z0 = torch.tensor([0.7, -0.4, 0.2, 0.5], dtype=torch.float64)
RUN = dict(K=3, rounds=5, eta=ETA)
Z_ONLY = dict(sync_extrapolation=False)
PROXES = {"zero": zero, "l1": l1(0.1), "nuclear": nuclear(0.1, (2, 2)), "ball": ball(0.6), "box": box(-0.2, 0.3),
          "simplex": simplex}


class Field:
    """V_k(z) = F_k z + a_k + tanh(z), F_k positive diagonal plus antisymmetric; the noise scales and shifts
    V_k."""

    def __init__(self, clients, noise):
        rng = np.random.default_rng(30)
        self.clients, self.noise, self.F, self.shift = clients, noise, [], []
        for _ in range(clients):
            C = rng.normal(size=(D, D))
            self.F.append(torch.tensor(np.diag(rng.uniform(0.5, 2.0, size=D)) + C - C.T))
            self.shift.append(torch.tensor(rng.normal(size=D)))

    def operator(self, k, z, key):
        sample = self.normal(k, *key)
        return (1 + self.noise * sample[0]) * (self.F[k] @ z + torch.tanh(z)) + self.shift[k] + self.noise * sample[1:]

    @staticmethod
    def normal(k, t, j, size=D + 1):
        return torch.tensor(np.random.default_rng([8, k, t, j, size]).normal(size=size))

    def run(self, method, **options):
        return method(self.operator, self.clients, Z0, **(RUN | options))


def points(path):
    return [(z,) for z, output in path]


@pytest.mark.parametrize("clients", [1, 3])
def test_b2_lippax_without_inner_steps_is_lsgd_with_the_output_shifted_by_one_index(clients):
    field = Field(clients, 0.3)
    left, right = field.run(lippax, H=0, gamma=INNER), field.run(lsgd)
    assert distance(points(left), points(right)) < ROUNDING
    for r, ((z, shifted), (_, output)) in enumerate(zip(left, right), start=1):
        assert float((3 * r * shifted - (3 * r * output - z + Z0)).abs().max()) < ROUNDING


def test_b3_lippax_with_one_inner_step_is_lesgd_that_averages_z_only():
    field = Field(3, 0.3)
    left = field.run(lippax, H=1, gamma=ETA)
    assert distance(left, field.run(lesgd, **Z_ONLY)) < ROUNDING
    assert distance(left, field.run(lesgd)) > APART  # B3b
    alone = Field(1, 0.3)
    assert distance(alone.run(lippax, H=1, gamma=ETA), alone.run(lesgd)) < ROUNDING  # B3c


def test_b4_slippax_without_smoothing_is_lippax():
    field = Field(3, 0.3)
    right = field.run(lippax, H=3, gamma=INNER)
    smooth = partial(field.normal, size=D)
    assert distance(field.run(slippax, H=3, gamma=INNER, delta=0.0, smooth=smooth), right) == 0.0  # adds zeros
    assert distance(field.run(slippax, H=3, gamma=INNER, delta=0.1, smooth=smooth), right) > APART


def test_slippax_is_lippax_on_inner_calls_at_shifted_points():
    field = Field(2, 0.3)

    def shifted(k, z, key):
        return field.operator(k, z + 0.1 * field.normal(k, *key, size=D) if key[1] < 3 else z, key)

    left = field.run(slippax, H=3, gamma=INNER, delta=0.1, smooth=partial(field.normal, size=D))
    assert distance(left, lippax(shifted, 2, Z0, **RUN, H=3, gamma=INNER)) == 0.0  # the same operations


@pytest.mark.parametrize("start", [torch.zeros(D, dtype=torch.float64), Z0])
@pytest.mark.parametrize("options", [{}, Z_ONLY])
def test_b5_dual_extrapolation_without_regulariser_is_lesgd(start, options):
    """The Euclidean mirror map is the identity, so z_0 need not be 0."""
    field = Field(3, 0.3)
    left = local_dual_extrapolation(field.operator, 3, start, prox=zero, **RUN, **options)
    right = lesgd(field.operator, 3, start, **RUN, **options)
    assert distance(left, right) == 0.0  # the same operations


@pytest.mark.parametrize("prox", PROXES)
def test_b6_b7_dual_extrapolation_that_averages_z_only_is_fedualex(prox):
    """With global step size 1; the points of FeDualEx are the mirror images of the duals, at the next weight."""
    field, map = Field(3, 0.3), PROXES[prox]
    left = field.run(local_dual_extrapolation, prox=map, **Z_ONLY)
    images = [(map(dual, 3 * r * ETA), output) for r, (dual, output) in enumerate(left, start=1)]
    right = fedualex(
        field.operator, 3, Z0, K=3, rounds=5, eta_c=ETA, eta_s=1.0, mirror=map, shadow=False
    )
    assert distance(images, right) < ROUNDING
    assert distance(left, field.run(local_dual_extrapolation, prox=map)) > APART


def test_b1_lesgd_with_one_step_per_round_is_minibatch_extra_sgd():
    field = Field(3, 0.3)
    right = extra_sgd(field.operator, 3, Z0, b=1, rounds=12, eta=ETA)
    assert distance(field.run(lesgd, K=1, rounds=12), right) < ROUNDING
    assert distance(field.run(lesgd, K=1, rounds=12, **Z_ONLY), right) > APART  # B1b


@pytest.mark.parametrize("K", [1, 2, 4])
def test_b9_lesgd_of_one_machine_is_extra_sgd_for_any_period(K):
    field = Field(1, 0.3)
    right = extra_sgd(field.operator, 1, Z0, b=1, rounds=12, eta=ETA)[K - 1 :: K]
    for options in ({}, Z_ONLY):
        assert distance(field.run(lesgd, K=K, rounds=12 // K, **options), right) < ROUNDING


def test_b8_dual_averaging_without_regulariser_is_lsgd():
    field = Field(3, 0.3)
    right = points(field.run(lsgd))
    left = [fed_dual_avg(field.operator, 3, Z0, K=3, rounds=5, eta_c=ETA, eta_s=rate, mirror=zero) for rate in (1, 0.9)]
    assert distance([(z,) for z in left[0]], right) < ROUNDING
    assert distance([(z,) for z in left[1]], right) > APART


def test_extra_step_local_sgd_is_lesgd_that_averages_z_only():
    field = Field(3, 0.3)
    left = extra_step_local_sgd(field.operator, 3, Z0, K=3, rounds=5, eta=ETA)
    assert distance(left, field.run(lesgd, **Z_ONLY)) < ROUNDING
    assert distance(left, field.run(lesgd)) > APART


@pytest.mark.parametrize(
    "method", [lsgd, partial(lippax, H=2, gamma=INNER), partial(local_dual_extrapolation, prox=box(-0.2, 0.3))]
)
def test_the_period_is_irrelevant_for_one_machine_and_matters_for_three(method):
    one, three = (distance(f.run(method, K=1, rounds=12)[3::4], f.run(method, K=4, rounds=3))
                  for f in (Field(1, 0.3), Field(3, 0.3)))
    assert one < ROUNDING and three > APART


def test_b10_lsgd_on_a_game_is_local_sgda():
    field = Field(3, 0.3)

    def grad(k, x, y, t):
        V = field.operator(k, torch.cat([x, y]), (t, 0))
        return V[:1], -V[1:]

    right = local_sgda(grad, 3, Z0[:1], Z0[1:], q=3, rounds=5, eta_x=lambda t: ETA, eta_y=lambda t: ETA)
    assert distance(points(field.run(lsgd)), [(torch.cat(pair),) for pair in right]) < ROUNDING


@pytest.mark.parametrize("K", [1, 3])
def test_d9_many_inner_steps_reach_the_proximal_points_of_the_mean_operator(K):
    """With one Jacobian the mean of the machines' proximal points is that of the mean operator, and z_t = x_t
    there."""
    field = Field(3, 0.0)
    F, L = field.F[0], float(torch.linalg.matrix_norm(field.F[0], 2))
    z, right, outputs = Z0, [], []
    for t in range(1, 7):
        z = torch.linalg.solve(torch.eye(D, dtype=F.dtype) + F / L, z - sum(field.shift) / 3 / L)
        outputs.append(z)
        right.append((z, sum(outputs) / t))
    # At eta L = 1 an inner step shortens the error by sqrt(3/4) or more: 250 of them leave 1e-15.
    left = lippax(lambda k, z, key: F @ z + field.shift[k], 3, Z0, K=K, rounds=6 // K, eta=1 / L, H=250, L=L)
    assert distance(left, right[K - 1 :: K]) < ROUNDING


def multiplier(method, eta, gamma, H=0):
    """(x_t, z_t) / z_{t-1} on the rotation, as complex numbers: V(a, b) = (b, -a) is the product by -i."""
    if method is lsgd:
        return 1 + 1j * eta, 1 + 1j * eta
    x = 1 + 1j * eta if method is lesgd else 1 + 0j
    for _ in range(H):
        x = x - gamma * (-1j * x + (x - 1) / eta)
    return x, 1 + 1j * eta * x


@pytest.mark.parametrize(("method", "options"), [(lsgd, {}), (lesgd, {}), (lippax, {"H": 2}), (lippax, {"H": 4})])
def test_on_a_rotation_lsgd_diverges_while_lesgd_and_lippax_converge(method, options):
    """The saddle of f(a, b) = a b: the length changes by |multiplier| in every step, whatever K.

    One inner step with the gamma of the theorems is not enough here: |multiplier| = 1.02.
    """
    extra = options | {"L": 1.0} if method is lippax else {}
    path = method(lambda k, z, key: torch.stack([z[1], -z[0]]), 2, [3.0, -1.0], K=4, rounds=10, eta=0.5, **extra)
    x, z = multiplier(method, 0.5, inner_step_size(0.5, 1.0), **options)
    assert abs(z) > 1.1 if method is lsgd else abs(z) < 0.96
    point, total = 3 - 1j, 0j
    for r in range(10):
        for _ in range(4):
            total, point = total + x * point, z * point
        expected = [point.real, point.imag, total.real / (4 * r + 4), total.imag / (4 * r + 4)]
        assert torch.cat(path[r]).tolist() == pytest.approx(expected, rel=0, abs=100 * ROUNDING)  # lengths up to 273
    length = [float(torch.linalg.vector_norm(point)) for point, output in path]
    assert length[-1] > 80 * 10**0.5 if method is lsgd else length[-1] < 0.2 * 10**0.5


def test_dual_extrapolation_finds_the_composite_solution():
    """0 in V(z) + d phi(z), for the mean of two operators and K = 1, means z = prox(z - V(z), 1)."""
    field = Field(2, 0.0)
    prox = l1(0.6)
    path = field.run(local_dual_extrapolation, K=1, rounds=400, prox=prox)
    v = 400 * path[-1][1] - 399 * path[-2][1]  # the last v_t
    V = sum(field.operator(k, v, (1, 0)) for k in range(2)) / 2
    # On the coordinates that stay away from 0 this is the extragradient method on V + .6 sign(z), which
    # contracts to rounding within the 400 steps; the two factors 400 enlarge the rounding.
    assert float((v - prox(v - V, 1.0)).abs().max()) < 1e-10
    assert 0 < int((v.abs() < 1e-10).sum()) < D  # the regulariser holds some coordinates at 0, and not all


# By hand: two machines, scalars, V_0(z) = z + s, V_1(z) = 2 z - 1 + s, z_0 = 1, K = 2, eta = .5

SAMPLES = {(1, 0): (0.2, -0.4), (1, 1): (-0.2, 0.6), (1, 2): (0.275, -0.2),
           (2, 0): (0.4, 0.2), (2, 1): (1.0, -0.6), (2, 2): (-0.26875, 0.2)}


def scalar(k, z, key):
    s = SAMPLES[key][k]
    return z + s if k == 0 else 2 * z - 1 + s


def by_hand(method, K=2, **options):
    ((z, output),) = method(scalar, 2, [1.0], K=K, rounds=1, eta=0.5, **options)
    return pytest.approx((float(z), float(output)), rel=0, abs=ROUNDING)


def test_lsgd_and_lesgd_by_hand():
    # t = 1: V = (1.2, .6), z = (.4, .7);  t = 2: V = (.8, .6), z = (0, .4), mean .2
    assert by_hand(lsgd) == (0.2, (0.55 + 0.2) / 2)
    # t = 1: x = (.4, .7), V(x) = (.2, 1), z = (.9, .5)
    # t = 2: V(z) = (1.3, .2), x = (.25, .4), mean .325; V(.325) = (1.325, -.95), z = (.2375, .975)
    assert by_hand(lesgd) == (0.60625, (0.55 + 0.325) / 2)
    # z only: V(x) = (1.25, -.8), z = (.275, .9)
    assert by_hand(lesgd, **Z_ONLY) == (0.5875, (0.55 + 0.325) / 2)


@pytest.mark.parametrize("step", [{"gamma": 0.25}, {"L": 8**0.5 - 2}])  # 1 / (.5 * 8) = .25
def test_lippax_by_hand(step):
    # t = 1: V = (1.2, .6), x = (.7, .85); V = (.5, 1.3), (x - z) / eta = (-.6, -.3), x = (.725, .6)
    #        V(x) = (1, 0), z = (.5, 1)
    # t = 2: V = (.9, 1.2), x = (.275, .7); V = (1.275, -.2), (x - z) / eta = (-.45, -.6), x = (.06875, .9)
    #        V(x) = (-.2, 1), z = (.6, .5)
    assert by_hand(lippax, H=2, **step) == (0.55, ((0.725 + 0.6) / 2 + (0.06875 + 0.9) / 2) / 2)


def test_dual_extrapolation_by_hand():
    # t = 1: u = 1, x = (.4, .7), v_1 = (.2, .5) with the threshold .4 eta; V(v) = (0, .6), z = (1, .7)
    # t = 2: u = (.8, .5), V(u) = (1.2, .2), x = (.4, .6), mean .5, v_2 = .1 with twice the threshold;
    #        V(v) = (1.1, -1.4), z = (.45, 1.4)
    assert by_hand(local_dual_extrapolation, prox=l1(0.4)) == (0.925, (0.35 + 0.1) / 2)
    # z only: v_2 = (0, .2), V(v) = (1, -1.2), z = (.5, 1.3)
    assert by_hand(local_dual_extrapolation, prox=l1(0.4), **Z_ONLY) == (0.9, (0.35 + 0.1) / 2)


def test_first_mirror_point():
    # u = .8, V(u) = (1, .2), x = (.5, .9), mean .7 = v; V(v) = (.5, 1), z = (.75, .5)
    options = dict(K=1, prox=box(-0.6, 0.8))
    assert by_hand(local_dual_extrapolation, **options) == (0.625, 0.7)
    # u = 1, x = (.4, .7), mean .55 = v; V(v) = (.35, .7), z = (.825, .65)
    assert by_hand(local_dual_extrapolation, t0_mirror="identity", **options) == (0.7375, 0.55)
    # For a finite regulariser u_0 is z_0 either way.
    run = partial(Field(3, 0.3).run, local_dual_extrapolation, prox=nuclear(0.1, (2, 2)))
    assert distance(run(), run(t0_mirror="identity")) < ROUNDING  # the singular value decomposition rounds


def test_derived_numbers_of_the_theorems():
    assert inner_step_size(0.5, 3.0) == pytest.approx(0.08, rel=0, abs=ROUNDING)
    assert smoothing_radius(0.5, 0.2, 16) == pytest.approx(0.05, rel=0, abs=ROUNDING)
    assert smoothing_radius(0.5, 0.2, 16, theorem=True) == pytest.approx(0.025, rel=0, abs=ROUNDING)


ONE = torch.ones(1, dtype=torch.float64)
HALF = dict(operator=scalar, clients=2, dual0=ONE, K=2, rounds=1, eta_c=0.5, eta_s=0.5)


def test_dual_averaging_by_hand():
    # k = 0: w = 1, V = (1.2, .6), mu = (.4, .7)
    # k = 1: w = (.2, .5) with the threshold .4 eta; V = (.6, .2), mu = (.1, .6), mean .35
    # half the way from 1 to .35 is .675; the threshold of the round is .5 * .5 * 2 * .4
    (w,) = fed_dual_avg(**HALF, mirror=l1(0.4))
    assert float(w) == pytest.approx(0.475, rel=0, abs=ROUNDING)
    # of the second client alone: half the way from 1 to .6
    (w,) = fed_dual_avg(**HALF, mirror=l1(0.4), cohorts=[[1]])
    assert float(w) == pytest.approx(0.6, rel=0, abs=ROUNDING)
    # three times the weight on the first: .1 * .75 + .6 * .25 = .225
    (w,) = fed_dual_avg(**HALF, mirror=l1(0.4), weights=[3, 1])
    assert float(w) == pytest.approx(0.6125 - 0.2, rel=0, abs=ROUNDING)


@pytest.mark.parametrize("shadow", [True, False])
def test_fedualex_by_hand(shadow):
    # k = 0: z = 1, halves (.4, .7), points (.2, .5), of the mean .35; V(points) = (0, .6), s = (0, .3)
    # k = 1: z = (.8, .5), V(z) = (1.2, .2), halves (.4, .6), points (0, .2), of the mean .1;
    #        V(points) = (1, -1.2), s = (.5, -.3), mean .1, half of it is .05
    ((z, output),) = fedualex(**HALF, mirror=l1(0.4), shadow=shadow)
    assert (float(z), float(output)) == pytest.approx((0.95 - 0.2, (0.35 + 0.1) / 2), rel=0, abs=ROUNDING)


def test_the_two_outputs_of_fedualex_differ_where_a_client_is_cut_to_zero():
    # With the threshold .9 of a step the points of k = 0 are (0, 0.25), mean .125; of the mean half .55 it is .1
    shadows, own = (fedualex(**HALF | dict(K=1), mirror=l1(0.9), shadow=shadow)[0][1] for shadow in (True, False))
    assert (float(shadows), float(own)) == pytest.approx((0.1, 0.125), rel=0, abs=ROUNDING)


def test_extragradient_by_hand():
    # V(1) = (1.2, .6), mean .9, x = .55; V(.55) = (.35, .7), mean .525, z = .7375
    ((z, x),) = extra_sgd(scalar, 2, ONE, b=1, rounds=1, eta=0.5)
    assert (float(z), float(x)) == pytest.approx((0.7375, 0.55), rel=0, abs=ROUNDING)
    # as LESGD that averages z only
    ((z, x),) = extra_step_local_sgd(scalar, 2, ONE, K=2, rounds=1, eta=0.5)
    assert (float(z), float(x)) == pytest.approx((0.5875, 0.4375), rel=0, abs=ROUNDING)
    # two samples at each point: V(1) of (0, 1) = (1.2, .6), (.8, 1.6), mean 1.05, x = .475, projected to .6;
    # of (2, 3) = (.875, 0), (.6, .2), mean .41875, z = .790625
    samples = {(1, 0): (0.2, -0.4), (1, 1): (-0.2, 0.6), (1, 2): (0.275, -0.2), (1, 3): (0.0, 0.0)}
    box_ = lambda z: z.clamp(0.6, 2.0)  # noqa: E731
    ((z, x),) = extra_sgd(
        lambda k, z, key: z + samples[key][k] if k == 0 else 2 * z - 1 + samples[key][k],
        2, ONE, b=2, rounds=1, eta=0.5, project=box_,
    )
    assert (float(z), float(x)) == pytest.approx((0.790625, 0.6), rel=0, abs=ROUNDING)


def test_entropy_by_hand():
    """exp(log 3), exp(log 1) and exp(0) in the ratio 3 : 1 : 1 sum to the total 2.5 as 1.5, .5, .5."""
    v = 2.5 * torch.tensor([3.0, 1.0, 1.0], dtype=torch.float64).log() + 7.0
    assert entropy(2.5)(v, 0.3).tolist() == pytest.approx([1.5, 0.5, 0.5], rel=0, abs=ROUNDING)
