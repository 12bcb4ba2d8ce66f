"""Identities of Local-SGDA+, Momentum-Local-SGDA, FedSGDA+, FedSGDA-M and Fed-Norm-SGDA.

Labels A..., D... and E... are those of the lists of known identities and structural properties.

Runs are in float64 and one process, with exact local gradients unless said otherwise.
"""

import numpy as np
import pytest
import torch
from games import DX, Game, reference_gradient, start_of
from identity_games import (
    ROUNDING,
    VISIBLE,
    Exchanged,
    Rearranged,
    Renamed,
    Started,
    Swapped,
    Timed,
    distance,
    path,
)

from mpifed.algorithms import (
    FGDA,
    FSGDA,
    FedNormSGDA,
    FedNormSGDAPlus,
    FedSGDAM,
    FedSGDAPlus,
    LocalSGDA,
    LocalSGDAPlus,
    MomentumLocalSGDA,
    MomentumLocalSGDAPlus,
)
from mpifed.core.noise import Gaussian
from mpifed.simulation.setup import default_dtype

Q, ROUNDS, CLIENTS = 3, 4, 3
RATES = dict(eta_x=0.05, eta_y=0.04)
HALVED = dict(eta_x=0.1, eta_y=0.08, alpha=0.5, beta_x=2.0, beta_y=2.0)  # αη are RATES, and βα = 1
POWER = {"name": "power", "scale": 1.5, "offset": 2.0}
NOISE = Gaussian(scale=0.3)
NOISY = dict(noise=NOISE, batch_size=2)

noises = pytest.mark.parametrize("scale", [0.0, 0.3])


def timed(scale, **settings):
    return Timed(scale=scale, q=Q, **settings) if scale else None


def local_sgda(q=Q):
    return LocalSGDA(q=q, **RATES)


def momentum(q=Q, **settings):
    return MomentumLocalSGDA(q=q, **HALVED | settings)


def fresh(**settings):
    """FedSGDA-M whose estimators are fresh gradients."""
    return FedSGDAM(Q=Q, alpha=1.0, beta=1.0, **RATES | settings)


def local_sgda_averaging_after(averages, out, scale) -> np.ndarray:
    """Means of the clients' points after Q, 2Q, ... steps of a Local-SGDA that averages after other ones."""
    game, done, points = Game(), 0, []

    def go(steps):
        return path(local_sgda(steps), game, out, rounds=1, noise=timed(scale, offset=done))[0]

    for until in sorted({*averages, *range(Q, ROUNDS * Q + 1, Q)}):
        if until % Q == 0:
            points.append(go(until - done))
        if until in averages:
            game, done = Started(start=tuple(go(until - done))), until
    return np.array(points)


LATE = [n * Q + 1 for n in range(1, ROUNDS)]
#: Method with fresh gradients → the steps after which a Local-SGDA of the same means averages.
AVERAGED_AFTER = {
    "Momentum-Local-SGDA": (momentum(), LATE),
    "Momentum-Local-SGDA, averaged start": (momentum(average_start=True), [1, *LATE]),
    "FedSGDA-M, stem": (fresh(average_start=False), [n * Q for n in range(1, ROUNDS)]),
    "FedSGDA-M, stem, averaged start": (fresh(), [1, *(n * Q for n in range(1, ROUNDS))]),
    "FedSGDA-M, after": (fresh(order="after", average_start=False), LATE),
    "FedSGDA-M, after, averaged start": (fresh(order="after"), [1, *LATE]),
}


@noises
@pytest.mark.parametrize("name", AVERAGED_AFTER)
def test_a11_a11c_e4_e5_full_weights_make_a_local_sgda_with_shifted_averages(tmp_path, name, scale):
    """The gradient that a step uses was taken before the average that the step follows. Only FedSGDA-M's
    default order, started at each client's own gradients, averages as Local-SGDA does."""
    method, averages = AVERAGED_AFTER[name]
    left = path(method, Game(), tmp_path, rounds=ROUNDS, noise=timed(scale, offset=1))
    right = local_sgda_averaging_after(averages, tmp_path, scale)
    assert distance(left, right) < ROUNDING
    ordinary = path(local_sgda(), Game(), tmp_path, rounds=ROUNDS, noise=timed(scale))
    gap = distance(left, ordinary)  # A11b, E5b
    assert gap < ROUNDING if name == "FedSGDA-M, stem" else gap > VISIBLE


@noises
def test_a11d_a11e_one_step_a_round_is_parallel_sgda_from_an_averaged_start_alone(tmp_path, scale):
    def noise(**settings):
        return Timed(scale=scale, q=1, **settings) if scale else None

    right = path(local_sgda(1), Game(), tmp_path, rounds=6, noise=noise())
    for averaged in (True, False):
        method = momentum(1, average_start=averaged)
        gap = distance(path(method, Game(), tmp_path, rounds=6, noise=noise(offset=1)), right)
        assert gap < ROUNDING if averaged else gap > VISIBLE


def exact(game):
    """``grad(k, x, y)`` on all of a client's data, and the starting point."""
    with default_dtype(torch.float64):  # as a float64 run prepares it
        game.prepare(1)
    gradient = reference_gradient(game, 1, 1, 0, None)
    return (lambda k, x, y: gradient(k, x, y, 1)), start_of(game, 1)


def mean(values):
    return sum(values) / len(values)


def shifted_local_sgda_plus(S) -> np.ndarray:
    """Local-SGDA+ that averages after steps Q + 1, 2Q + 1, ... and then sees the mean x of a step before."""
    grad, (x, y) = exact(Game())
    xs, ys, snapshot, points = [x] * CLIENTS, [y] * CLIENTS, x, []
    for t in range(ROUNDS * Q):
        due, new = mean(xs), []
        for k in range(CLIENTS):
            gx, gy = grad(k, xs[k], ys[k])[0], grad(k, snapshot, ys[k])[1]
            new.append((xs[k] - RATES["eta_x"] * gx, ys[k] + RATES["eta_y"] * gy))
        xs, ys = map(list, zip(*new))
        if t and t % Q == 0:
            xs, ys = [mean(xs)] * CLIENTS, [mean(ys)] * CLIENTS
        if t % S == 0:
            snapshot = due
        if (t + 1) % Q == 0:
            points.append(torch.cat([mean(xs), mean(ys)]).numpy())
    return np.array(points)


@pytest.mark.parametrize("S", [Q, 2 * Q])
def test_d13_full_weights_shift_the_averages_and_snapshots_of_local_sgda_plus(tmp_path, S):
    left = path(MomentumLocalSGDAPlus(q=Q, S=S, **HALVED), Game(), tmp_path, rounds=ROUNDS)
    assert distance(left, shifted_local_sgda_plus(S)) < ROUNDING
    for other in (LocalSGDAPlus(q=Q, S=S, **RATES), momentum()):
        assert distance(left, path(other, Game(), tmp_path, rounds=ROUNDS)) > VISIBLE


def fgda_mean_before(*, alpha, beta) -> np.ndarray:
    """FGDA with steps counted from 0, by plain loops: it averages points and estimators before the step at
    t = 0, Q, ..., and STORM at such a step starts from the averages."""
    game = Game()
    _, (x, y) = exact(game)
    grad = reference_gradient(game, 1, Q, 2, NOISE)
    clients, points = range(CLIENTS), []
    state = [(x, y, *grad(k, x, y, ("init", 0))) for k in clients]
    for t in range(ROUNDS * Q + 1):
        if t % Q == 0:
            state = [tuple(map(mean, zip(*state)))] * CLIENTS
            points.append(torch.cat(state[0][:2]).numpy())
        for k in clients:
            x, y, w, v = state[k]
            x1, y1 = x - RATES["eta_x"] * w, y + RATES["eta_y"] * v
            (gx, gy), (old_gx, old_gy) = grad(k, x1, y1, t + 1), grad(k, x, y, t + 1)
            state[k] = x1, y1, gx + (1 - beta) * (w - old_gx), gy + (1 - alpha) * (v - old_gy)
    return np.array(points[1:])


def test_a14_averaging_after_storm_is_fgda_averaging_before_the_step(tmp_path):
    left = path(
        FedSGDAM(Q=Q, order="after", alpha=0.5, beta=0.3, **RATES), Game(), tmp_path, rounds=ROUNDS, **NOISY
    )
    assert distance(left, fgda_mean_before(alpha=0.3, beta=0.5)) < ROUNDING
    stem = FedSGDAM(Q=Q, alpha=0.5, beta=0.3, **RATES)
    assert distance(left, path(stem, Game(), tmp_path, rounds=ROUNDS, **NOISY)) > VISIBLE


@noises
@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("eta", [1.0, POWER])
def test_e3_the_stem_order_is_fgda(tmp_path, eta, weights, scale):
    """α and β have changed their blocks, and clients start with their own gradients. The noise is 0 in round
    0, where FGDA averages q samples."""
    if eta == POWER:
        steps = [POWER | {"scale": rate * 1.5} for rate in (0.05, 0.04)]
        squares = [{"name": "squared", "c": 0.4 / rate**2} for rate in (0.05, 0.04)]
        ours = dict(eta_x=steps[0], eta_y=steps[1], alpha=squares[0], beta=squares[1])
        theirs = dict(alpha={"name": "squared", "c": 0.4}, beta={"name": "squared", "c": 0.4})
    else:
        ours, theirs = dict(alpha=0.5, beta=0.3, **RATES), dict(alpha=0.3, beta=0.5)
    ours["average_start"], settings = False, dict(rounds=ROUNDS, weights=weights)
    left = path(FedSGDAM(Q=Q, **ours), Game(), tmp_path, noise=timed(scale, offset=1), **settings)
    fgda = FGDA(q=Q, gamma=0.05, lam=0.04, eta=eta, **theirs)
    assert distance(left, path(fgda, Game(), tmp_path, noise=timed(scale), **settings)) < ROUNDING
    after = FedSGDAM(Q=Q, order="after", **ours)
    other = path(after, Game(), tmp_path, noise=timed(scale, offset=1), **settings)
    assert distance(left, other) > VISIBLE


def fed_norm(tau=Q, rates=(1.0, 1.0), **settings):
    """Fed-Norm-SGDA with the global step sizes η_g η."""
    gammas = dict(gamma_x=rates[0] * RATES["eta_x"], gamma_y=rates[1] * RATES["eta_y"])
    return (FedNormSGDAPlus if "S" in settings else FedNormSGDA)(tau=tau, **RATES, **gammas, **settings)


def fsgda():
    return FSGDA(K=Q, eta_xl=0.05, eta_yl=0.04, eta_xg=1.3, eta_yg=0.9)


def fed_sgda_plus(S, gamma_x=1.0, gamma_y=1.0):
    return FedSGDAPlus(K=Q, S=S, gamma_x=gamma_x, gamma_y=gamma_y, **RATES)


#: Two names of one method, under noise and with cohorts.
SAME = {
    "A21, Fed-Norm-SGDA is Local-SGDA": (fed_norm(), local_sgda()),
    "A22, Fed-Norm-SGDA is FSGDA": (fed_norm(rates=(1.3, 0.9)), fsgda()),
    "A23, Fed-Norm-SGDA+ is FedSGDA+": (fed_norm(rates=(1.3, 0.9), S=2), fed_sgda_plus(2, 1.3, 0.9)),
    "A24, Local-SGDA+ with a snapshot a step is Local-SGDA": (
        LocalSGDAPlus(q=1, S=1, **RATES),
        local_sgda(1),
    ),
    "FedSGDA+ with global rates 1 is Local-SGDA+": (fed_sgda_plus(2), LocalSGDAPlus(q=Q, S=2 * Q, **RATES)),
    "a list of equal numbers of steps is a number": (fed_norm((Q,) * 5), fed_norm()),
}


@pytest.mark.parametrize("cohort, weights", [(None, "samples"), (2, "uniform")])
@pytest.mark.parametrize("name", SAME)
def test_two_names_of_one_method(tmp_path, name, cohort, weights):
    settings = dict(rounds=ROUNDS, cohort=cohort, weights=weights, **NOISY)
    left, right = (path(method, Game(clients=5), tmp_path, **settings) for method in SAME[name])
    assert distance(left, right) < ROUNDING


def test_equal_weights_of_steps_scale_the_local_steps_alone(tmp_path):
    """The normalised sum does not see them."""
    scaled = FedNormSGDA(tau=Q, eta_x=0.05 / 0.2, eta_y=0.04 / 0.2, gamma_x=0.05, gamma_y=0.04, a=(0.2,) * Q)
    right = path(fed_norm(), Game(), tmp_path, **NOISY)
    assert distance(path(scaled, Game(), tmp_path, **NOISY), right) < ROUNDING
    assert distance(path(fed_norm(a=(0.2,) * Q), Game(), tmp_path, **NOISY), right) > VISIBLE


def test_weights_of_a_sample_are_not_made_to_sum_to_one(tmp_path):
    """With unequal weights w n / P does not; with equal ones it does."""
    settings = dict(rounds=ROUNDS, cohort=2, weights="samples", **NOISY)
    left, right = (path(one, Game(clients=5), tmp_path, **settings) for one in (fed_norm(), local_sgda()))
    assert distance(left, right) > VISIBLE


@pytest.mark.parametrize("S", [Q, 2 * Q])
def test_a_snapshot_is_not_the_point_when_there_are_local_steps(tmp_path, S):
    left = path(LocalSGDAPlus(q=Q, S=S, **RATES), Game(), tmp_path, rounds=ROUNDS)
    assert distance(left, path(local_sgda(), Game(), tmp_path, rounds=ROUNDS)) > VISIBLE
    other = LocalSGDAPlus(q=Q, S=3 * Q - S, **RATES)
    assert distance(left, path(other, Game(), tmp_path, rounds=ROUNDS)) > VISIBLE


def kinds(x, y):
    """Every method with x's settings in ``x``, y's in ``y``: rates, weights, global rates."""
    eta, momenta = dict(eta_x=x[0], eta_y=y[0]), dict(beta_x=x[1], beta_y=y[1])
    gamma = dict(gamma_x=x[2], gamma_y=y[2])
    return {
        "MomentumLocalSGDA": MomentumLocalSGDA(q=Q, **eta, **momenta),
        "FedSGDAM stem": FedSGDAM(Q=Q, alpha=x[1], beta=y[1], **eta),
        "FedSGDAM after": FedSGDAM(Q=Q, alpha=x[1], beta=y[1], order="after", **eta),
        "FedNormSGDA": FedNormSGDA(tau=(3, 1, 2), a=0.8, **eta, **gamma),
        "LocalSGDAPlus": LocalSGDAPlus(q=Q, S=2 * Q, **eta),
        "MomentumLocalSGDAPlus": MomentumLocalSGDAPlus(q=Q, S=2 * Q, **eta, **momenta),
        "FedSGDAPlus": FedSGDAPlus(K=Q, S=2, **eta),
        "FedNormSGDAPlus": FedNormSGDAPlus(tau=(3, 1, 2), S=2, **eta, **gamma),
    }


METHODS, ROLES = kinds((0.05, 0.5, 0.06), (0.04, 0.3, 0.03)), kinds((0.04, 0.3, 0.03), (0.05, 0.5, 0.06))


@pytest.mark.parametrize("name", METHODS)
def test_d1_exchanging_the_roles_of_x_and_y(tmp_path, name):
    """Not so the "+" methods, in which x alone has a snapshot."""
    left = path(METHODS[name], Game(), tmp_path, **NOISY)
    right = path(ROLES[name], Swapped(), tmp_path, batch_size=2, noise=Exchanged(scale=0.3))
    gap = distance(left, np.roll(right, DX, axis=1))
    assert gap > VISIBLE if "Plus" in name else gap < ROUNDING


@pytest.mark.parametrize("name", METHODS)
def test_d2_d3_duplicated_and_permuted_clients(tmp_path, name):
    """Numbers of steps go with the clients."""

    def run(order, weights):
        method, noise = METHODS[name], Renamed(scale=0.3, order=order)
        if "Norm" in name:
            tau = tuple(method.tau[k] for k in order)
            method = type(method)(**vars(method) | {"tau": tau})
        return path(method, Rearranged(order=order), tmp_path, noise=noise, weights=weights)

    left = run((0, 1, 2), "samples")
    assert distance(left, run((2, 0, 1), "samples")) < ROUNDING
    assert distance(left, run((0, 1, 2, 0, 1, 2), "samples")) < ROUNDING
    assert distance(left, run((0, 1, 2, 0), "samples")) > VISIBLE


@pytest.mark.parametrize(
    "method",
    [
        lambda q: MomentumLocalSGDA(q=q, alpha=POWER | {"scale": 0.9}, beta_x=0.5, beta_y=0.3, **RATES),
        lambda q: MomentumLocalSGDAPlus(q=q, S=6, beta_x=0.5, beta_y=0.3, **RATES),
        lambda q: LocalSGDAPlus(q=q, S=6, **RATES),
        lambda q: FedSGDAM(Q=q, **RATES),
        lambda q: FedSGDAM(Q=q, order="after", **RATES),
    ],
)
def test_d6_one_client_does_not_see_the_period(tmp_path, method):
    """As long as snapshots are renewed after as many steps; after 6 and 12 steps."""

    def alone(q):
        noise = Timed(scale=0.3, q=q)
        return path(method(q), Game(clients=1), tmp_path, rounds=12 // q, noise=noise)[6 // q - 1 :: 6 // q]

    first = alone(1)
    for q in (2, 3, 6):
        assert distance(first, alone(q)) < ROUNDING


@pytest.mark.parametrize("group, weights", [(1, "uniform"), ("all", "samples")])
@pytest.mark.parametrize("name", [name for name, one in METHODS.items() if one.partial_participation])
def test_d8_a_cohort_of_everybody_is_full_participation(tmp_path, name, group, weights):
    settings = dict(weights=weights, group=group, **NOISY)
    whole, cohort = (path(METHODS[name], Game(), tmp_path, cohort=size, **settings) for size in (None, 3))
    assert np.array_equal(whole, cohort)
    assert distance(whole, path(METHODS[name], Game(), tmp_path, cohort=2, **settings)) > VISIBLE
