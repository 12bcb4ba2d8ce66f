"""Identities of SAGDA, SCAFFOLD, CODA+, CODASCA and FedAvg: labels A... and D... as in the other files here.

All runs are the package against itself, in float64 and one process. ``timed`` gives two methods the same
noise in the same local step where the numbers of their samples differ.
"""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from baselines import Half
from games import DX, Game, configuration, trace
from identity_games import (
    ROUNDING,
    VISIBLE,
    Affine,
    Exchanged,
    Rearranged,
    Renamed,
    Swapped,
    Timed,
    distance,
)

from mpifed import hyperparameters
from mpifed.algorithms import CODASCA, FSGDA, SAGDA, SCAFFOLD, CODAPlus, FedAvg, FedSGDAClip, LocalSGDA
from mpifed.core.noise import Gaussian
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.simulation import Simulation

SAMPLED = {"batch_size": 2, "noise": Gaussian(scale=0.3)}
K, ETA = 3, 0.04
RATES = dict(K=K, eta_xl=0.03, eta_yl=0.02, eta_xg=1.3, eta_yg=0.9)
ROLES = dict(K=K, eta_xl=0.02, eta_yl=0.03, eta_xg=0.9, eta_yg=1.3)
EQUAL = dict(K=K, eta_xl=ETA, eta_yl=ETA)
STAGES = dict(K=K, eta=ETA, T=1, growth=2, prox=1.3)
ONE_STAGE = dict(K=K, eta=ETA, T=999, prox=0.0)
VARIATES = pytest.mark.parametrize("variates", ["fresh", "stored"])
SAMPLING = pytest.mark.parametrize(
    "sampling", [dict(weights="samples"), dict(cohort=2), dict(cohort=2, weights="samples")], ids=str
)


def points(method, problem, out, **settings) -> np.ndarray:
    """The point after every round, ``[rounds, d]``, by default with exact local gradients."""
    settings = dict(rounds=4, batch_size=0, noise=None) | settings
    return trace(configuration(method, problem, out, **settings), SerialComm())[0]


def timed(first=0, steps=K):
    """Noise of the local steps of rounds whose first local step takes the sample ``first``."""
    return Timed(scale=0.3, q=steps, offset=-first)


@hyperparameters
class NoVariates(SAGDA):
    """SAGDA with v = 0."""

    def client_variates(self, now, shared, client, message, oracle):
        super().client_variates(now, shared, client, message, oracle)
        message.cx, message.cy, client.cx, client.cy = 0.0, 0.0, 0.0, 0.0


@hyperparameters
class Frozen(CODASCA):
    """CODASCA whose variates stay 0."""

    def client_round(self, now, shared, client, message, oracle):
        super().client_round(now, shared, client, message, oracle)
        message.dcx, message.dcy, client.cx, client.cy = 0.0, 0.0, 0.0, 0.0


@dataclass
class Alike(Game):
    """All clients have the data of the first."""

    def prepare(self, seed, data_dir=None):
        super().prepare(seed)
        self.h, self.C, self.rows = ([part[0]] * self.clients for part in (self.h, self.C, self.rows))


@hyperparameters
class Common(Timed):
    """The noise of the first client for all."""

    def __call__(self, stream, size):
        stream = copy.copy(stream)
        stream.clients = np.zeros_like(stream.clients)
        return super().__call__(stream, size)


@SAMPLING
def test_a5_sagda_without_variates_is_fsgda(tmp_path, sampling):
    right = points(FSGDA(**RATES), Game(), tmp_path, noise=timed(), **sampling)
    none, some = (
        points(cls(**RATES), Game(), tmp_path, noise=timed(1), **sampling) for cls in (NoVariates, SAGDA)
    )
    assert distance(none, right) < ROUNDING
    assert distance(some, right) > VISIBLE


@SAMPLING
@VARIATES
def test_a6_one_local_step_makes_fsgda(tmp_path, variates, sampling):
    """Variates cancel in the average over the clients that c averages: the cohort where they are fresh,
    everybody where they are stored."""
    rates, fresh = RATES | {"K": 1}, variates == "fresh"
    left = points(
        SAGDA(**rates, variates=variates), Game(), tmp_path, noise=timed(fresh, steps=1), **sampling
    )
    gap = distance(left, points(FSGDA(**rates), Game(), tmp_path, noise=timed(steps=1), **sampling))
    assert gap < ROUNDING if fresh or "cohort" not in sampling else gap > VISIBLE


@VARIATES
def test_a7_identical_clients_with_identical_samples_make_fsgda(tmp_path, variates):
    """Then every client has the variate of the server. With a noise or with data of its own it has not."""

    def gap(game, law, scale=0.3):
        first = int(variates == "fresh")
        laws = law(scale=scale, q=K, offset=-first), law(scale=scale, q=K)
        methods = SAGDA(**RATES, variates=variates), FSGDA(**RATES)
        return distance(*(points(one, game, tmp_path, noise=noise) for one, noise in zip(methods, laws)))

    assert gap(Alike(), Common) < ROUNDING
    assert gap(Alike(), Timed, scale=10.0) > VISIBLE
    assert gap(Game(), Common) > VISIBLE


def test_a18_clipping_nothing_without_momentum_is_scaffold(tmp_path):
    """γ = η_g η p. SAGDA with stored variates takes other rates for the other block, too."""
    clip = FedSGDAClip(
        p=K, eta_x=0.03, eta_y=0.02, gamma_x=1.3 * 0.03 * K, gamma_y=0.9 * 0.02 * K,
        beta_x=1.0, beta_y=1.0, tau=1e9,
    )  # fmt: skip
    left = points(clip, Game(), tmp_path, **SAMPLED)
    assert distance(left, points(SAGDA(**RATES, variates="stored"), Game(), tmp_path, **SAMPLED)) < ROUNDING
    assert distance(left, points(SAGDA(**RATES), Game(), tmp_path, **SAMPLED)) > VISIBLE


@SAMPLING
@pytest.mark.parametrize("eta_g", [1.0, 0.8])
def test_three_names_of_scaffold_in_both_blocks(tmp_path, sampling, eta_g):
    """SAGDA with stored variates and equal rates, CODASCA without a proximal term in one stage."""
    settings = SAMPLED | sampling
    stored = SAGDA(**EQUAL, eta_xg=eta_g, eta_yg=eta_g, variates="stored")
    left = points(stored, Game(), tmp_path, **settings)
    for method in (SCAFFOLD(K=K, eta_l=ETA, eta_g=eta_g), CODASCA(**ONE_STAGE, eta_g=eta_g)):
        assert distance(left, points(method, Game(), tmp_path, **settings)) < ROUNDING
    for change in (dict(prox=1.3), dict(T=1), dict(T=1, decay=1.0)):
        other = CODASCA(**ONE_STAGE | change, eta_g=eta_g)
        assert distance(left, points(other, Game(), tmp_path, **settings)) > VISIBLE
    for option in ("I", "I_sample"):
        other = SCAFFOLD(K=K, eta_l=ETA, eta_g=eta_g, option=option)
        assert distance(left, points(other, Game(), tmp_path, **settings)) > VISIBLE


@SAMPLING
def test_without_y_the_two_are_scaffold_and_fedavg(tmp_path, sampling):
    """The rates of y do not matter."""
    settings = SAMPLED | sampling
    rates = dict(K=K, eta_xl=ETA, eta_xg=0.8)
    scaffold = points(SCAFFOLD(K=K, eta_l=ETA, eta_g=0.8), Half(), tmp_path, **settings)
    stored = SAGDA(**rates, eta_yl=0.7, eta_yg=0.3, variates="stored")
    assert distance(points(stored, Half(), tmp_path, **settings), scaffold) < ROUNDING
    fedavg = points(FedAvg(K=K, eta=ETA, eta_g=0.8), Half(), tmp_path, **settings)
    assert distance(points(FSGDA(**rates, eta_yl=0.7), Half(), tmp_path, **settings), fedavg) < ROUNDING
    assert distance(scaffold, fedavg) > VISIBLE


@SAMPLING
@pytest.mark.parametrize(
    "method",
    [
        SAGDA(**EQUAL, eta_xg=0.8, eta_yg=0.8, variates="stored"),
        *(SCAFFOLD(K=K, eta_l=ETA, eta_g=0.8, option=option) for option in ("II", "I", "I_sample")),
        CODASCA(**ONE_STAGE, eta_g=0.8),
    ],
)
def test_d12_the_first_round_of_zero_variates_is_fsgda(tmp_path, method, sampling):
    settings = SAMPLED | sampling
    left = points(method, Game(), tmp_path, **settings)
    right = points(FSGDA(**EQUAL, eta_xg=0.8, eta_yg=0.8), Game(), tmp_path, **settings)
    assert distance(left[:1], right[:1]) < ROUNDING
    assert distance(left[1:2], right[1:2]) > VISIBLE


def test_a25_coda_plus_in_one_stage_without_a_proximal_term_is_local_sgda(tmp_path):
    right = points(LocalSGDA(q=K, eta_x=ETA, eta_y=ETA), Game(), tmp_path, **SAMPLED)
    assert distance(points(CODAPlus(**ONE_STAGE), Game(), tmp_path, **SAMPLED), right) < ROUNDING
    for change in (dict(prox=1.3), dict(T=1)):
        assert distance(points(CODAPlus(**ONE_STAGE | change), Game(), tmp_path, **SAMPLED), right) > VISIBLE


@pytest.mark.parametrize("reference", ["last", "average"])
def test_a26_a27_codasca_and_coda_plus(tmp_path, reference):
    """With variates frozen at 0, or with one local step, in which they cancel."""

    def gap(cls, **changes):
        stages = STAGES | dict(eta=0.1, T=2, reference=reference) | changes
        left = points(cls(**stages), Game(), tmp_path, **SAMPLED)
        return distance(left, points(CODAPlus(**stages), Game(), tmp_path, **SAMPLED))

    assert gap(Frozen) < ROUNDING
    assert gap(CODASCA, K=1) < ROUNDING
    assert gap(CODASCA) > VISIBLE


def test_a_stage_begins_where_the_one_before_has_ended(tmp_path):
    """The two rules put x_ref elsewhere at the end of a stage of several rounds, and move nothing else."""
    last, average = (
        points(CODAPlus(**STAGES | dict(T=2), reference=rule), Game(), tmp_path, **SAMPLED)
        for rule in ("last", "average")
    )
    assert np.array_equal(last[:2], average[:2])
    assert distance(last[2:3], average[2:3]) > VISIBLE / 10  # 1/γ of half a step, times three steps


@dataclass
class AtSaddle(Affine):
    """The affine game with other Jacobians at other clients, started at its saddle point."""

    common: bool = False

    def saddle(self) -> torch.Tensor:
        F = torch.cat([torch.cat([self.H, self.C], dim=1), torch.cat([self.C.T, -self.G], dim=1)])
        rows = torch.stack([rows.mean(0) for rows in self.rows]).mean(0)
        return torch.linalg.solve(F * float(np.mean(self.s)), -rows)

    def initial(self, rng):
        return {"x": self.saddle()[:DX], "y": self.saddle()[DX:]}


def saddle() -> np.ndarray:
    """Where the game of seed 1 starts."""
    game = AtSaddle()
    game.prepare(1)
    return game.saddle().numpy()


def test_a31_fresh_variates_of_everybody_leave_the_saddle_alone(tmp_path):
    """With a cohort their average is not 0 there, and without variates the local steps lead away."""

    def moved(method, **settings):
        return np.abs(points(method, AtSaddle(), tmp_path, **settings) - saddle()).max()

    assert moved(SAGDA(**RATES)) < ROUNDING
    assert moved(SAGDA(**RATES), cohort=2) > VISIBLE
    assert moved(LocalSGDA(q=K, eta_x=0.03, eta_y=0.02)) > VISIBLE
    assert moved(SAGDA(**RATES, variates="stored")) > VISIBLE  # which start at 0, not at ∇f_i(z*)


@pytest.mark.parametrize(
    "method",
    [
        SAGDA(**RATES, variates="stored"),
        *(SCAFFOLD(K=K, eta_l=ETA, option=option) for option in ("II", "I")),
        CODASCA(**ONE_STAGE),
    ],
)
@pytest.mark.parametrize("cohort", [None, 2])
def test_a31_stored_variates_find_the_saddle_and_their_clients_gradients(tmp_path, method, cohort):
    """Whoever takes part; and with ∇f_i(z*) for variates nobody moves."""
    config = configuration(method, AtSaddle(), tmp_path, rounds=200, batch_size=0, noise=None, cohort=cohort)
    simulation = Simulation.from_settings(config, SerialComm())
    simulation.start()
    game = simulation.problem
    x, y = game.saddle().split((DX, 2))
    batches = [game.client_data(k) for k in range(4)]
    gradients = [game.gradients(x, y, [column[None] for column in batch]) for batch in batches]
    own = [torch.cat(block) for block in zip(*gradients)]
    for _ in range(200):
        simulation.step()
    # Rounding of some hundred contracting rounds on numbers of about 1; variates divide it by ηK = 0.06.
    np.testing.assert_allclose(simulation.point().numpy(), saddle(), rtol=0, atol=1e-11)
    for block, mine in zip((simulation.clients.cx, simulation.clients.cy), own):
        torch.testing.assert_close(block, mine, rtol=0, atol=1e-9)
        assert mine.norm(dim=1).min() > VISIBLE
    simulation.clients.cx, simulation.clients.cy = own
    simulation.shared.cx, simulation.shared.cy = 0.0, 0.0
    simulation.shared.x, simulation.shared.y = x, y
    for _ in range(3):
        simulation.step()
        np.testing.assert_allclose(simulation.point().numpy(), saddle(), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(
    "method, swapped",
    [
        (SAGDA(**RATES), SAGDA(**ROLES)),
        (SAGDA(**RATES, variates="stored"), SAGDA(**ROLES, variates="stored")),
        *((one, one) for one in (SCAFFOLD(K=K, eta_l=ETA, option=o) for o in ("II", "I", "I_sample"))),
        (CODASCA(**ONE_STAGE), CODASCA(**ONE_STAGE)),
    ],
)
def test_d1_exchanging_the_roles_of_x_and_y(tmp_path, method, swapped):
    left = points(method, Game(), tmp_path, **SAMPLED)
    settings = {"batch_size": 2, "noise": Exchanged(scale=0.3)}
    right = points(swapped, Swapped(), tmp_path, **settings)
    assert distance(left, np.roll(right, DX, axis=1)) < ROUNDING
    if swapped != method:
        same = points(method, Swapped(), tmp_path, **settings)
        assert distance(left, np.roll(same, DX, axis=1)) > VISIBLE


@pytest.mark.parametrize("cls", [CODAPlus, CODASCA])
def test_d1_a_proximal_term_tells_x_from_y(tmp_path, cls):
    left = points(cls(**STAGES), Game(), tmp_path, **SAMPLED)
    right = points(cls(**STAGES), Swapped(), tmp_path, batch_size=2, noise=Exchanged(scale=0.3))
    assert distance(left, np.roll(right, DX, axis=1)) > VISIBLE


#: One of each kind, with everybody in every round.
ALL = [
    SAGDA(**RATES),
    SAGDA(**RATES, variates="stored"),
    SCAFFOLD(K=K, eta_l=ETA),
    SCAFFOLD(K=K, eta_l=ETA, option="I_sample"),
    CODAPlus(**STAGES),
    CODASCA(**STAGES, eta_g=0.8),
]


@pytest.mark.parametrize("method", ALL)
def test_d2_d3_duplicated_and_permuted_clients(tmp_path, method):
    def run(*order, **settings):
        noise = Renamed(scale=0.3, order=order)
        return points(method, Rearranged(order=order), tmp_path, batch_size=2, noise=noise, **settings)

    assert distance(run(0, 1, 2), run(0, 1, 2, 0, 1, 2)) < ROUNDING
    assert distance(run(0, 1, 2), run(0, 1, 2, 0)) > VISIBLE
    assert distance(run(0, 1, 2, weights="samples"), run(2, 0, 1, weights="samples")) < ROUNDING


@pytest.mark.parametrize("cls, rates", [(SAGDA, {}), (SAGDA, {"variates": "stored"}), (SCAFFOLD, {})])
def test_d6_one_client_is_descent_ascent_whatever_the_period(tmp_path, cls, rates):
    """Its variate is the server's."""

    def after_12_steps(method, steps, first=0):
        return points(method, Game(clients=1), tmp_path, rounds=12 // steps, noise=timed(first, steps))[-1:]

    right = after_12_steps(LocalSGDA(q=1, eta_x=ETA, eta_y=ETA), 1)
    for steps in (1, 2, 3, 6):
        step_sizes = dict(eta_l=ETA) if cls is SCAFFOLD else dict(eta_xl=ETA, eta_yl=ETA)
        method = cls(K=steps, **step_sizes, **rates)
        first = int(cls is SAGDA and not rates)
        assert distance(after_12_steps(method, steps, first), right) < ROUNDING


@pytest.mark.parametrize("method", [one for one in ALL if one.partial_participation] + [FedAvg(K=K, eta=ETA)])
@pytest.mark.parametrize("group, weights", [(1, "samples"), ("all", "uniform")])
def test_d8_a_cohort_of_everybody_is_full_participation(tmp_path, method, group, weights):
    game = Half(clients=5) if isinstance(method, FedAvg) else Game(clients=5)
    full, everybody, fewer = (
        points(method, game, tmp_path, cohort=cohort, group=group, weights=weights, **SAMPLED)
        for cohort in (None, 5, 4)
    )
    assert np.array_equal(full, everybody)
    assert distance(full, fewer) > VISIBLE


def test_servers_that_make_fedavg(tmp_path):
    """No momentum changes no bit. With τ far above all displacements Adagrad's √v + τ is 2τ to the precision
    of 1 / τ²."""
    plain, momentum, adagrad = (
        points(FedAvg(K=K, eta=ETA, **server), Half(), tmp_path, **SAMPLED)
        for server in (
            {},
            dict(server={"name": "momentum", "beta": 0.0}),
            dict(eta_g=2e6, server={"name": "adagrad", "tau": 1e6}),
        )
    )
    assert np.array_equal(plain, momentum)
    assert distance(plain, adagrad) < ROUNDING
