"""Identities of the methods for variational inequalities; labels B... and D... are those of the lists of
identities.

All runs are in float64 and one process. Samples are minibatches and noise wherever both sides ask for them at
the same addresses, those of plain baselines come from ``fields``; ``Timed`` noise serves where rounds differ
in length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from fields import D, Field
from games import DX, Game, configuration
from identity_games import BINDING, ROUNDING, VISIBLE, Renamed, Timed, distance

from mpifed import Blocks
from mpifed.algorithms import (
    LESGD,
    LIPPAX,
    LSGD,
    SLIPPAX,
    ExtraSGD,
    ExtraStepLocalSGD,
    FedDualAvg,
    FeDualEx,
    LocalDualExtrapolation,
    LocalSGDA,
)
from mpifed.core.noise import Gaussian
from mpifed.core.problem import Operator
from mpifed.core.sets import L1, Box, Indicator, Zero
from mpifed.core.streams import generator
from mpifed.parallel.comm import SerialComm
from mpifed.problems import Saddle
from mpifed.simulation.simulation import Simulation

SEED, NOISE, ETA = 1, Gaussian(scale=0.3), 0.05
GROUPS = [1, "all"]


def methods(K=3, delta=0.2):
    """Every method and both readings of those that have two."""
    rates, inner, local = dict(K=K, eta=ETA), dict(H=2, L=3.0), dict(sync_extrapolation=False)
    return {
        "LSGD": LSGD(**rates),
        "LESGD": LESGD(**rates),
        "LESGD z-only": LESGD(**rates, **local),
        "LIPPAX": LIPPAX(**rates, **inner),
        "SLIPPAX": SLIPPAX(**rates, **inner, delta=delta),
        "LDE": LocalDualExtrapolation(**rates),
        "LDE z-only": LocalDualExtrapolation(**rates, **local),
        "extra-step": ExtraStepLocalSGD(**rates),
        "ExtraSGD": ExtraSGD(eta=ETA, b=2),
        "FedDualAvg": FedDualAvg(K=K, eta_c=ETA),
        "FeDualEx": FeDualEx(K=K, eta_c=ETA),
    }


NAMES = list(methods())
COMPOSITE = [name for name, method in methods().items() if method.composite]


def simulate(method, problem, *, noise=NOISE, field="z", rounds=4, **settings):
    """The iterates and the outputs after every round, two arrays ``[rounds, d]``."""
    config = configuration(method, problem, "unused", rounds=rounds, seed=SEED, noise=noise, **settings)
    simulation = Simulation.from_settings(config, SerialComm())
    simulation.start()
    points, outputs = np.empty((2, rounds, getattr(simulation.shared, field).numel()))
    for r in range(rounds):
        simulation.step()
        points[r], outputs[r] = getattr(simulation.shared, field), simulation.output.buffer[: points.shape[1]]
    return points, outputs


def gap(left, right):
    """The largest difference of two results of ``simulate``, iterates and outputs together."""
    return max(distance(*pair) for pair in zip(left, right))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("sync", [True, False])
def test_b1_one_local_step_of_lesgd_is_minibatch_extra_sgd(sync, group):
    """B1 for the printed method; B1b: with z averaged alone a client's second call is at its own point."""
    methods = LESGD(K=1, eta=ETA, sync_extrapolation=sync), ExtraSGD(eta=ETA)
    difference = gap(*(simulate(one, Field(clients=4), rounds=6, group=group) for one in methods))
    assert difference < ROUNDING if sync else difference > VISIBLE


@pytest.mark.parametrize("group", GROUPS)
def test_b2_lippax_without_inner_steps_has_the_iterates_of_lsgd(group):
    """The output of LIPPAX averages z_0 .. z_(T-1), that of LSGD z_1 .. z_T."""
    problem, K = Field(), 3
    points, outputs = simulate(LIPPAX(K=K, eta=ETA, H=0), problem, group=group)
    other, shifted = simulate(LSGD(K=K, eta=ETA), problem, group=group)
    assert np.array_equal(points, other)  # the same operations on the same samples
    steps = K * np.arange(1, len(points) + 1)[:, None]
    start = problem.initial(generator(SEED, "initial"))["z"].numpy()
    assert distance(steps * (shifted - outputs), points - start) < ROUNDING
    assert distance(outputs, shifted) > VISIBLE


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("sync", [True, False])
def test_b3_one_inner_step_of_lippax_is_lesgd(sync, clients):
    """With γ = η the inner step is the extrapolation. B3b: not where x is averaged; B3c: one client has no
    means."""
    problem = Field(clients=clients)
    left = simulate(LIPPAX(K=3, eta=ETA, H=1, gamma=ETA), problem)
    assert gap(left, simulate(ExtraStepLocalSGD(K=3, eta=ETA), problem)) < ROUNDING
    difference = gap(left, simulate(LESGD(K=3, eta=ETA, sync_extrapolation=sync), problem))
    assert difference > VISIBLE if sync and clients > 1 else difference < ROUNDING


def test_b4_slippax_without_smoothing_is_lippax():
    rates = dict(K=2, eta=0.2, H=3, L=3.0)
    right = simulate(LIPPAX(**rates), Field())
    for settings in (dict(delta=0.0), dict(sigma=0.0), dict(delta="theorem", sigma=0.0)):
        assert gap(simulate(SLIPPAX(**rates, **settings), Field()), right) == 0
    assert gap(simulate(SLIPPAX(**rates, sigma=9.0), Field()), right) > VISIBLE


@pytest.mark.parametrize("sync", [True, False])
def test_b5_dual_extrapolation_without_phi_is_lesgd(sync):
    """With φ = 0 and h = ½‖·‖² duals are points, from any start (the list has z_0 = 0)."""
    right = simulate(LESGD(K=3, eta=ETA, sync_extrapolation=sync), Field())
    method = LocalDualExtrapolation(K=3, eta=ETA, sync_extrapolation=sync)
    assert gap(simulate(method, Field(), field="dual"), right) < ROUNDING
    assert gap(simulate(method, Field(phi=L1(lam=0.4)), field="dual"), right) > VISIBLE


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("K", [1, 2, 3, 6])
def test_b9_lesgd_of_one_client_is_extra_sgd(K, sync):
    """However the 12 steps are cut into rounds."""

    def run(method, q, rounds):
        noise = Timed(scale=0.3, q=q)
        return simulate(method, Field(clients=1), noise=noise, rounds=rounds, batch_size=0)

    left = run(LESGD(K=K, eta=ETA, sync_extrapolation=sync), 2 * K, 12 // K)
    assert gap(left, [part[K - 1 :: K] for part in run(ExtraSGD(eta=ETA), 2, 12)]) < ROUNDING


class NoiseOfX(Gaussian):
    """Noise of the gradient in x alone: in y a noise of V and a noise of ∂_y f differ by a sign."""

    def __call__(self, stream, size):
        noise = super().__call__(stream, size)
        noise[..., DX:] = 0.0
        return noise


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("ball", [None, BINDING])
def test_b10_lsgd_on_a_game_is_local_sgda_with_one_rate(ball, group):
    settings = dict(group=group, noise=NoiseOfX(scale=0.3))

    def local_sgda(eta_x, eta_y):
        method, game = LocalSGDA(q=3, eta_x=eta_x, eta_y=eta_y), Game(ball=ball)
        return np.concatenate([simulate(method, game, field=block, **settings)[0] for block in "xy"], axis=1)

    left, _ = simulate(LSGD(K=3, eta=ETA), Game(ball=ball), **settings)
    assert distance(left, local_sgda(ETA, ETA)) < ROUNDING
    assert min(distance(left, local_sgda(*rates)) for rates in [(ETA, 2 * ETA), (2 * ETA, ETA)]) > VISIBLE


@dataclass
class Affine(Operator):
    """V_k(z) = A_k z + b_k, A_k = A + ``spread`` · k · I for a monotone A."""

    clients: int = 3
    spread: float = 0.0

    def prepare(self, seed, data_dir=None):
        rng = generator(seed, "affine")
        S, W = rng.standard_normal((2, D, D)) / 2
        self.A = torch.from_numpy(S @ S.T / D + W - W.T)
        self.b = torch.from_numpy(rng.standard_normal((self.clients, D)))

    def variables(self):
        return Blocks(z={"z": (D,)})

    def initial(self, rng):
        return {"z": torch.from_numpy(rng.standard_normal(D))}

    def client_data(self, k):
        return (self.A + self.spread * k * torch.eye(D))[None], self.b[k : k + 1]

    def operator(self, z, batch):
        return (batch[0][:, 0] @ z.unsqueeze(-1)).squeeze(-1) + batch[1][:, 0]

    def mean(self):
        """A and b of the mean operator."""
        return torch.stack([self.client_data(k)[0][0] for k in range(self.clients)]).mean(0), self.b.mean(0)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_d9_lippax_with_many_inner_steps_is_the_exact_proximal_point_method(spread):
    """For one Jacobian the mean of the clients' exact proximal points is that of the mean operator, at every
    step."""
    problem, eta, K, rounds = Affine(spread=spread), 0.2, 3, 4
    problem.prepare(SEED)
    L = float(torch.linalg.matrix_norm(problem.A, 2)) + 2 * spread
    # An inner step leaves at most (1 - 1 / (ηL + 1)²)^(1/2) of the error; that to the power H is below 1e-16.
    H = int(np.ceil(np.log(1e-16) / np.log(1 - 1 / (eta * L + 1) ** 2) * 2))
    points, outputs = simulate(
        LIPPAX(K=K, eta=eta, H=H, L=L), problem, noise=None, rounds=rounds, batch_size=0, group="all"
    )
    (A, b), z, path = problem.mean(), problem.initial(generator(SEED, "initial"))["z"], []
    for _ in range(K * rounds):
        z = torch.linalg.solve(eta * A + torch.eye(D, dtype=A.dtype), z - eta * b)
        path.append(z.numpy())
    gaps = distance(points, np.array(path)[K - 1 :: K]), distance(outputs[-1], np.mean(path, axis=0))
    assert max(gaps) < ROUNDING if spread == 0 else min(gaps) > VISIBLE


@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "SLIPPAX"])
def test_d7_clients_with_one_jacobian_are_one_client_with_the_mean_operator(name, spread):
    """The iterates and outputs of one client; without smoothing, for its vectors belong to clients."""
    problem = Affine(spread=spread)
    problem.prepare(SEED)

    class Mean(Affine):
        def client_data(self, k):
            return tuple(part[None] for part in problem.mean())

    problems = Affine(spread=spread), Mean(clients=1)
    difference = gap(*(simulate(methods()[name], one, noise=None, batch_size=0) for one in problems))
    same = spread == 0 or name == "ExtraSGD"  # which takes no local steps
    assert difference < ROUNDING if same else difference > VISIBLE


@dataclass
class Rearranged(Field):
    """Client k is client ``order[k]`` of the field."""

    order: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self):
        self.clients = len(self.order)

    def prepare(self, seed, data_dir=None):
        field = Field()
        field.prepare(seed)
        self.rows, self.M = [field.rows[k] for k in self.order], [field.M[k] for k in self.order]


def rearranged(name, order, phi, **settings):
    """Full batches, and noise that goes with the clients; no smoothing vectors, which belong to their
    numbers."""
    settings |= dict(noise=Renamed(scale=0.3, order=order), batch_size=0)
    return simulate(methods(delta=0.0)[name], Rearranged(order=order, phi=phi), **settings)


#: Methods with the convex functions that they handle.
PHIS = [
    (name, phi)
    for name in NAMES
    for phi in [Zero(), *([L1(lam=0.4), Indicator(set=Box(-0.5, 0.4))] if name in COMPOSITE else [])]
]


@pytest.mark.parametrize("name, phi", PHIS)
def test_d2_d3_duplicated_and_permuted_clients(name, phi):
    left = rearranged(name, (0, 1, 2), phi)
    assert gap(left, rearranged(name, (0, 1, 2, 0, 1, 2), phi)) < ROUNDING
    assert gap(left, rearranged(name, (0, 1, 2, 0), phi)) > VISIBLE
    weighted, other = (rearranged(name, order, phi, weights="samples") for order in [(0, 1, 2), (2, 0, 1)])
    assert gap(weighted, other) < ROUNDING
    assert gap(weighted, left) > VISIBLE  # the weights matter, and go along


@pytest.mark.parametrize("name, phi", [pair for pair in PHIS if pair[0] != "ExtraSGD"])
def test_d6_the_period_is_nothing_to_one_client(name, phi):
    """Rounds of 2, 4 and 12 steps; the mirror maps of dual extrapolation count steps, not those of a
    round."""

    def end(K):
        method = methods(K=K, delta=0.0)[name]
        noise = Timed(scale=0.3, q=method.calls_per_step * K)
        points, outputs = simulate(
            method, Field(clients=1, phi=phi), noise=noise, rounds=12 // K, batch_size=0
        )
        return points[-1:], outputs[-1:]

    assert max(gap(end(12), end(K)) for K in (2, 4)) < ROUNDING


@dataclass(init=False)
class SaddleField(Operator):
    """The saddle problem as an operator, z = (x, y), V_k(z) = (τx - t_k y, y + t_k x - b_k)."""

    def __init__(self, saddle):
        self.saddle, self.clients = saddle, saddle.clients
        self.prepare, self.client_data = saddle.prepare, saddle.client_data

    def variables(self):
        return Blocks(z={"z": (2 * self.saddle.d,)})

    def initial(self, rng):
        return {"z": torch.cat(list(self.saddle.initial(rng).values()))}

    def operator(self, z, batch):
        (x, y), t, b = z.chunk(2, dim=-1), batch[0][:, :1], batch[1][:, 0]
        return torch.cat([self.saddle.tau * x - t * y, y + t * x - b], dim=-1)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", NAMES)
def test_the_game_of_a_minimax_problem_keeps_order_and_signs(name, group):
    settings = dict(noise=NoiseOfX(scale=0.3), batch_size=0, group=group)
    saddle = dict(d=DX, clients=3, tau=3.0, t_max=2.0, centred=False)
    left = simulate(methods()[name], Saddle(**saddle), **settings)
    assert gap(left, simulate(methods()[name], SaddleField(Saddle(**saddle)), **settings)) < ROUNDING
