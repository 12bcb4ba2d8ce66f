"""Checks of the loops for Zhang & Gao n.d.: rounds worked out by hand, identities, and the properties of a polar factor.

Tolerance: 1e-12 of the larger of 1 and the largest entry, where both sides are the same real numbers reached
by different float64 operations (tens of steps, so some 1e-14 of rounding); other tolerances are explained next to them.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from .heavy_tailed import direction_of, fed_nsgda_m, newton_schulz, polar_factor
from .test_reference import scalar_grad

ROUNDING = 1e-12
SERVER = ("x", "y", "u", "v", "gx", "gy")
VISIBLE = 1e-3  # far above rounding, for what must differ
SHAPE = (2, 3)
TENSORS = dict(shapes_x=[SHAPE], shapes_y=[(4, 1), (2,)])
X1, Y1 = torch.linspace(-1, 1, 6, dtype=torch.float64), torch.linspace(0.5, 2, 6, dtype=torch.float64)
RATES = dict(p=3, rounds=4, eta_x=0.05, eta_y=0.07, gamma_x=0.2, gamma_y=0.3, beta_x=0.4, beta_y=0.7)
STEPS = {
    "block": {},
    "tensor": dict(norm_over="tensor"),
    "clip": dict(direction="clip", tau=3.0),
    "clip tensor": dict(direction="clip", tau=3.0, norm_over="tensor"),
    "svd": dict(direction="orthogonalize"),
    "newton_schulz": dict(direction="orthogonalize", svd="newton_schulz"),
    "newton_schulz_cubic": dict(direction="orthogonalize", svd="newton_schulz_cubic"),
}


def grad(n, x, y, key):
    """f_n = c_n |x|^2 / 2 + a_n'x + x'y - d_n |y|^2 / 2 + b_n'y with noise whose variance is infinite."""
    client = np.random.default_rng([1, n])
    (c, d), a, b = client.uniform(0.5, 2, size=2), client.normal(size=6), client.normal(size=6)
    address = (1, key[1]) if isinstance(key, tuple) else (2, key)
    noise = torch.tensor(np.random.default_rng([2, n, *address]).standard_t(1.5, size=12))
    return c * x + y + torch.tensor(a) + noise[:6], x - d * y + torch.tensor(b) + noise[6:]


def run(clients=3, oracle=grad, **options):
    return fed_nsgda_m(oracle, clients, X1, Y1, **(RATES | TENSORS | options))


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def close(*values):
    return pytest.approx(values, rel=0, abs=ROUNDING)


def flat(state):
    return torch.cat([state[name] for name in SERVER] + state["gx_clients"] + state["gy_clients"]).tolist()


def distance(left, right, names=("x", "y")):
    """The largest difference of an entry, relative to the largest entry if that exceeds 1."""
    assert len(left) == len(right)
    pairs = [(one[name], other[name]) for one, other in zip(left, right) for name in names]
    return float(torch.stack([(a - b).abs().max() / b.abs().max().clamp(min=1) for a, b in pairs]).max())


def test_two_normalized_rounds_by_hand():
    """N = p = 2. The table has the points worked out by hand, and gradients for which u is a multiple of (3,
    4) etc.

    Round 0 has u_i = g. In round 1 (u, v) = ((-.75, 2.5), -.75), and line 5 is, with beta = .5 and .25,
    client 0: u_i = g / 2 + (0, -.5),   v_i = g / 4 - .875;
    client 1: u_i = g / 2 + (-.75, 3),  v_i = g / 4 - .25.
    """
    script = {
        (0, 1): ((1, 2, 3), (3, 4, 2)),  # (.6, .8), 1
        (0, 2): ((0.7, 1.6, 3.25), (-6, 8, -1)),  # (-.6, .8), -1, and so to (1, 1.2, 3)
        (1, 1): ((1, 2, 3), (0, 0, 0)),  # 0 / 0 is 0
        (1, 2): ((1, 2, 3), (0, -2, -4)),  # (0, -1), -1, and so to (1, 2.5, 2.75)
        (0, 3): ((1, 1.97, 2.925), (6, 9, 3)),  # u_i = (3, 4), v_i = -.125
        (0, 4): ((0.7, 1.57, 2.675), (-8, 7, 4)),  # u_i = (-4, 3), v_i = .125, and so to (1.1, 1.27, 2.925)
        (1, 3): ((1, 1.97, 2.925), (1.5, -6, 1)),  # u_i = 0, v_i = 0
        (1, 4): ((1, 1.97, 2.925), (13.5, 10, 5)),  # u_i = (6, 8), v_i = 1, and so to (.7, 1.57, 3.175)
    }
    called = []

    def oracle(n, x, y, key):
        point, (gx0, gx1, gy) = script[n, key]
        called.append((n, key))
        assert torch.cat([x, y]).tolist() == close(*point)
        return tensor([gx0, gx1]), tensor([gy])

    rates = dict(eta_x=0.5, eta_y=0.25, gamma_x=0.2, gamma_y=0.3, beta_x=0.5, beta_y=0.25)
    first, second = fed_nsgda_m(oracle, 2, [1, 2], [3], p=2, rounds=2, **rates)
    assert sorted(called) == sorted(script)
    # Means of the last points (1, 1.85), 2.875; the factors of line 11 are .2 / (.5 * 2) = .2, .3 / (.25 * 2)
    # = .6
    x, y, gx, gy = (1, 2 - 0.2 * 0.15), 3 - 0.6 * 0.125, (-0.75, 2.5), -0.75
    assert flat(first) == close(*x, y, *gx, gy, *gx, gy, -1.5, 6, 0, -1, 0.5, -2)
    # Means of the last points (.9, 1.42), 3.05
    x, y, gx, gy = (1 - 0.2 * 0.1, 1.97 - 0.2 * 0.55), 2.925 + 0.6 * 0.125, (3.25, 5), 3.25
    u, v = (0.5 * 3.25 - 0.5 * 0.75, 0.5 * 5 + 0.5 * 2.5), 0.25 * 3.25 - 0.75 * 0.75
    assert flat(second) == close(*x, y, *u, v, *gx, gy, -1, 8, 7.5, 2, 3.5, 3)


@pytest.mark.parametrize(
    ("first_round", "last_x", "last_y", "gx", "gy", "u", "v"),
    [
        # beta_one: u_i = (3.2 -> 2.75, 3.065 -> 2.75), (1.1, .92);  v_i = (-.8, -.615), (-4.9 -> -2.75, -4.09
        # -> -2.75)
        ("beta_one", (0.45, 0.798), (1.717, 0.9), (3.1325, 1.01), (-0.7075, -4.495), 2.07125, -2.60125),
        # zero: u_i = (1.6, 1.65), (.55, .39);  v_i = (-.2, -.155), (-1.225, -1.18875)
        ("zero", (0.675, 0.906), (1.929, 1.51725), (3.25, 0.94), (-0.71, -4.8275), 1.0475, -0.6921875),
        # gradient: g_{-1} = (3.2, 1.1), (-.8, -4.9), of mean u_{-1} = 2.15, v_{-1} = -2.85;
        # u_i = (2.15, 1.9175), (2.15, 1.9025);  v_i = (-2.85 -> -2.75, -2.69125), (-2.85 -> -2.75, -2.62125)
        ("gradient", (0.59325, 0.59475), (0.91175, 0.92575), (2.9675, 0.8525), (-0.4825, -4.4425), 2.03, -2.753125),
    ],
)
def test_first_clipped_round_by_hand(first_round, last_x, last_y, gx, gy, u, v):
    """Scalars from (1, 2), beta = .5 and .25, local steps .1 and .2, factors of line 11 .3 / .4 and .5 /
    .8."""
    rates = dict(eta_x=0.1, eta_y=0.2, gamma_x=0.3, gamma_y=0.5, beta_x=0.5, beta_y=0.25, direction="clip", tau=2.75)
    (path,) = fed_nsgda_m(scalar_grad, 2, [1.0], [2.0], p=2, rounds=1, first_round=first_round, **rates)
    x, y = 1 + 0.75 * (last_x[0] - 1 + last_x[1] - 1), 2 + 0.625 * (last_y[0] - 2 + last_y[1] - 2)
    assert flat(path) == close(x, y, u, v, sum(gx) / 2, sum(gy) / 2, *gx, *gy)


def test_two_orthogonalized_rounds_by_hand():
    """One client; gradients [[3, 0, 0], [0, 4, 0]], then [[-2, 0, 0], [0, -4, 0]] in x, a column and a vector
    in y."""
    gradients = {1: ([3, 0, 0, 0, 4, 0], [0, 5, 3, 4]), 2: ([-2, 0, 0, 0, -4, 0], [0, 5, 4, -3])}
    rates = dict(eta_x=0.1, eta_y=0.2, gamma_x=0.3, gamma_y=0.5, beta_x=0.5, beta_y=0.5)
    options = dict(direction="orthogonalize", shapes_x=[(2, 3)], shapes_y=[(2, 1), (2,)])
    first, second = fed_nsgda_m(
        lambda n, x, y, key: map(tensor, gradients[key]), 1, [0.0] * 6, [0.0] * 4, p=1, rounds=2, **rates, **options
    )
    assert first["x"].tolist() == close(-0.3, 0, 0, 0, -0.3, 0)
    assert first["y"].tolist() == close(0, 0.5, 0.5 * 0.6, 0.5 * 0.8)
    # u_1 = (g_0 + g_1) / 2 = [[.5, 0, 0], [0, 0, 0]], of rank one; v_1 = (0, 5), (3.5, .5)
    root = 0.5 / 12.5**0.5
    assert second["x"].tolist() == close(-0.6, 0, 0, 0, -0.3, 0)
    assert second["y"].tolist() == close(0, 1, 0.3 + 3.5 * root, 0.4 + 0.5 * root)


@pytest.mark.parametrize("first_round", ["beta_one", "zero", "gradient"])
def test_variates_cancel_in_the_average(first_round):
    """Without clipping the average of the clients' u_i is the new u, so the server takes a step gamma along u."""
    path = run(direction="clip", tau=float("inf"), first_round=first_round)
    x, y = X1, Y1
    for state in path:
        assert all(float((own - state["gx"]).abs().max()) > VISIBLE for own in state["gx_clients"])
        x, y = x - 0.2 * state["u"], y + 0.3 * state["v"]
        assert distance([state], [dict(x=x, y=y)]) < ROUNDING


@pytest.mark.parametrize("norm_over", ["block", "tensor"])
@pytest.mark.parametrize("first_round", ["beta_one", "zero", "gradient"])
def test_clip_below_all_norms_is_normalization_with_smaller_steps(norm_over, first_round):  # A17
    common, tau = dict(norm_over=norm_over, first_round=first_round), 1e-3
    scaled = {name: tau * RATES[name] for name in ("eta_x", "eta_y", "gamma_x", "gamma_y")}
    assert distance(run(direction="clip", tau=tau, **common), run(**scaled, **common), SERVER) < ROUNDING
    # A threshold in the middle of the norms is something else
    scaled = {name: 4 * RATES[name] for name in scaled}
    assert distance(run(direction="clip", tau=4.0, **common), run(**scaled, **common)) > VISIBLE


@pytest.mark.parametrize("first_round", ["beta_one", "zero", "gradient"])
@pytest.mark.parametrize("eta", [1e-3, 10.0])
def test_one_client_and_step_is_normalized_momentum_sgda(first_round, eta):  # A19
    path = run(clients=1, p=1, eta_x=eta, eta_y=2 * eta, first_round=first_round)
    x, y = X1, Y1
    u, v = grad(0, x, y, ("init", 0)) if first_round == "gradient" else (0 * x, 0 * y)
    for t, state in enumerate(path):
        bx, by = (1, 1) if t == 0 and first_round == "beta_one" else (0.4, 0.7)
        gx, gy = grad(0, x, y, t + 1)
        u, v = bx * gx + (1 - bx) * u, by * gy + (1 - by) * v
        x, y = x - 0.2 * u / torch.linalg.vector_norm(u), y + 0.3 * v / torch.linalg.vector_norm(v)
        assert distance([state], [dict(x=x, y=y, u=u, v=v)], SERVER[:4]) < ROUNDING


@pytest.mark.parametrize("shape", [(6, 1), (1, 6), (6,)])
def test_matrices_of_one_column_are_normalized(shape):  # A20
    muon = run(direction="orthogonalize", shapes_x=[shape], shapes_y=[shape])
    assert distance(muon, run(), SERVER[:4]) < ROUNDING
    assert distance(run(direction="orthogonalize", shapes_x=[(2, 3)], shapes_y=[(3, 2)]), run()) > VISIBLE


@pytest.mark.parametrize("step", STEPS)
def test_blocks_have_equal_rights(step):
    """(x, y, f) -> (y, x, -f) with exchanged parameters gives the same points with x and y exchanged."""
    def swapped(n, x, y, key):
        gx, gy = grad(n, y, x, key)
        return -gy, -gx

    other = {"x": "y", "y": "x"}
    exchanged = {name[:-1] + other.get(name[-1], name[-1]): value for name, value in (RATES | TENSORS).items()}
    right = fed_nsgda_m(swapped, 3, Y1, X1, **exchanged, **STEPS[step])
    left = [dict(x=state["y"], y=state["x"]) for state in run(**STEPS[step])]
    assert distance(left, right) < ROUNDING


@pytest.mark.parametrize("step", STEPS)
def test_clients_can_be_doubled_and_permuted(step):
    path = run(**STEPS[step], first_round="gradient")
    for clients in (6, 3):
        other = run(clients, lambda n, *call: grad((n + 1) % 3, *call), **STEPS[step], first_round="gradient")
        assert distance(path, other, SERVER) < ROUNDING


@pytest.mark.parametrize("step", STEPS)
def test_scale_of_the_objective(step):
    """Only the length of u changes, on which clipping depends. Newton-Schulz adds 1e-7 to it, hence its wider
    tolerance."""
    gap = distance(run(**STEPS[step]), run(oracle=lambda *call: [8 * g for g in grad(*call)], **STEPS[step]))
    if step.startswith("clip"):
        assert gap > VISIBLE
    else:
        assert gap < (1e-5 if step.startswith("newton") else ROUNDING)


# Directions


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (dict(), [3 / 13, 4 / 13, 0, 12 / 13]),
        (dict(norm_over="tensor"), [0.6, 0.8, 0, 1]),
        (dict(direction="clip", tau=26), [3, 4, 0, 12]),
        (dict(direction="clip", tau=6.5), [1.5, 2, 0, 6]),
        (dict(direction="clip", tau=6, norm_over="tensor"), [3, 4, 0, 6]),
        (dict(direction="clip", tau=2.5, norm_over="tensor"), [1.5, 2, 0, 2.5]),
        (dict(direction="orthogonalize"), [0.6, 0.8, 0, 1]),
        (dict(direction="orthogonalize", svd="newton_schulz"), [0.6, 0.8, 0, 1]),
        (dict(direction="orthogonalize", svd="newton_schulz_cubic"), [0.6, 0.8, 0, 1]),
    ],
)
def test_directions_by_hand(options, expected):
    shapes = [(2,), (1,), ()]  # (3, 4), 0 and 12
    assert direction_of(tensor([3, 4, 0, 12]), shapes, **options).tolist() == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("step", STEPS)
def test_zero_has_the_direction_zero(step):
    assert direction_of(torch.zeros(7, dtype=torch.float64), [(2, 3), ()], **STEPS[step]).tolist() == [0.0] * 7


def random_matrix(shape, rank=None, seed=3):
    rng, rank = np.random.default_rng(seed), min(shape) if rank is None else rank
    return tensor(rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1])))


SHAPES = [(3, 3), (5, 3), (3, 5), (1, 4), (4, 1), (1, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("deficiency", [0, 1, 2])
def test_polar_factor(shape, deficiency):
    """O is the polar factor of U = O H exactly if H = O'U is symmetric, positive and O'O projects on its
    range."""
    rank = max(min(shape) - deficiency, 0)
    U = random_matrix(shape, rank)
    O = polar_factor(U)
    H, projector = O.T @ U, O.T @ O
    assert float((O @ H - U).abs().max()) < ROUNDING * 10  # entries up to 10
    assert float((H - H.T).abs().max()) < ROUNDING * 10
    assert float(torch.linalg.eigvalsh(H).min()) > -ROUNDING * 10
    assert float((projector @ projector - projector).abs().max()) < ROUNDING
    assert round(float(torch.trace(projector)), 9) == rank
    assert rank < shape[1] or float((projector - torch.eye(rank)).abs().max()) < ROUNDING


def test_polar_factors_by_hand():
    assert polar_factor(tensor([[0, 2], [-3, 0]])).tolist() == [[0, 1], [-1, 0]]
    rank_one = polar_factor(tensor([[3, 0], [4, 0], [0, 0]]))
    assert float((rank_one - tensor([[0.6, 0], [0.8, 0], [0, 0]])).abs().max()) < ROUNDING
    for small, kept in [(1e-14, 1), (1e-16, 0)]:  # the rank counts singular values above 2 eps of the largest
        assert torch.diag(polar_factor(torch.diag(tensor([1, small])))).tolist() == close(1, kept)


@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonalization_turns_with_its_argument(shape):
    Q, R = (torch.linalg.qr(random_matrix((n, n), seed=n)).Q for n in shape)
    for rule in (polar_factor, lambda U: newton_schulz(U, (3.4445, -4.7750, 2.0315))):
        U = random_matrix(shape)
        assert float((rule(Q @ U @ R) - Q @ rule(U) @ R).abs().max()) < 1e-10  # five quintic steps enlarge rounding
        assert float((rule(U.T) - rule(U).T).abs().max()) < 1e-10


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("svd", "coefficients", "low", "high"),
    [("newton_schulz", (3.4445, -4.7750, 2.0315), 0.68, 1.14), ("newton_schulz_cubic", (1.5, -0.5, 0), 0.9, 1.0)],
)
def test_newton_schulz_works_on_the_singular_values(shape, svd, coefficients, low, high):
    """The bounds are those of five steps of the polynomial for singular values above .18 of the Frobenius norm."""
    P, _, Qt = torch.linalg.svd(random_matrix(shape), full_matrices=False)
    sigma = torch.linspace(1.0, 2.5, min(shape), dtype=torch.float64)
    U = P @ torch.diag(sigma) @ Qt
    values = sigma / (torch.linalg.vector_norm(sigma) + 1e-7)
    assert float(values.min()) > 0.18
    for _ in range(5):
        values = coefficients[0] * values + coefficients[1] * values**3 + coefficients[2] * values**5
    O = direction_of(U.reshape(-1), [shape], "orthogonalize", svd=svd).reshape(shape)
    assert float((O - P @ torch.diag(values) @ Qt).abs().max()) < 1e-10  # five quintic steps enlarge rounding
    assert low < float(values.min()) and float(values.max()) <= high + ROUNDING
    assert float((O - polar_factor(U)).abs().max()) < 0.4
