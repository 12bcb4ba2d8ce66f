"""Identities of the methods for variational inequalities: labels B... and D... are those of the lists of known identities.

All runs are in float64 and one process. Samples are real ones (minibatches and noise) wherever both sides ask for them at
the same addresses, and those of plain baselines come from ``fields``; ``Timed`` noise serves where rounds differ in length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from fields import D, Field, reference_operator
from games import DX, Game, configuration
from identity_games import BINDING, ROUNDING, VISIBLE, Renamed, Timed, distance
from mpifed import Blocks, Minimax, Sets
from mpifed.algorithms import LESGD, LIPPAX, LSGD, SLIPPAX, LocalDualExtrapolation, LocalSGDA
from mpifed.comm import SerialComm
from mpifed.noise import Gaussian
from mpifed.problem import Operator
from mpifed.problems import Saddle
from mpifed.projections import Box, Simplex
from mpifed.proximal import L1, Indicator, Zero
from mpifed.simulation import Simulation
from mpifed.streams import generator

SEED, NOISE, ETA = 1, Gaussian(scale=0.3), 0.05
EXECUTORS = ["loop", "batched"]


def methods(K=3, eta=ETA, H=2, delta=0.2):
    """Every method and both readings of those that have two."""
    inner = dict(K=K, eta=eta, H=H, L=3.0)
    return {
        "LSGD": LSGD(K=K, eta=eta),
        "LESGD": LESGD(K=K, eta=eta),
        "LESGD z-only": LESGD(K=K, eta=eta, sync_extrapolation=False),
        "LIPPAX": LIPPAX(**inner),
        "SLIPPAX": SLIPPAX(**inner, delta=delta),
        "LDE": LocalDualExtrapolation(K=K, eta=eta),
        "LDE z-only": LocalDualExtrapolation(K=K, eta=eta, sync_extrapolation=False),
    }


NAMES = list(methods())


def simulate(method, problem, *, noise=NOISE, field="z", rounds=4, **settings):
    """The iterates and the outputs after every round, two arrays ``[rounds, d]``."""
    config = configuration(method, problem, "unused", rounds=rounds, seed=SEED, noise=None, **settings)
    config = config.model_copy(update={"oracle": config.oracle.model_copy(update={"noise": noise})})
    simulation = Simulation(config, SerialComm())
    simulation.start()
    points, outputs = [], []
    for _ in range(rounds):
        simulation.step()
        points.append(getattr(simulation.shared, field).numpy().copy())
        outputs.append(simulation.output.buffer.numpy().copy())
    return np.array(points), np.array(outputs)


def gap(left, right):
    """The largest difference of two results of :func:`simulate`, iterates and outputs together."""
    return max(distance(*pair) for pair in zip(left, right))


def extra_sgd(operator, clients, z, steps, eta):
    """Minibatch ExtraSGD: both points of a step come from means over all clients. Iterates and running averages of x."""
    points, outputs, total = [], [], 0.0
    for t in range(1, steps + 1):
        x = z - eta * sum(operator(k, z, (t, 0)) for k in range(clients)) / clients
        z = z - eta * sum(operator(k, x, (t, 1)) for k in range(clients)) / clients
        total = total + x
        points.append(z.numpy())
        outputs.append((total / t).numpy())
    return np.array(points), np.array(outputs)


def start_of(problem):
    return problem.initial(generator(SEED, "initial"))["z"]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("sync", [True, False])
def test_b1_one_local_step_of_lesgd_is_minibatch_extra_sgd(sync, executor):
    """B1 for the printed method; B1b: with z averaged alone a client's second call is at its own point."""
    problem = Field(clients=4)
    left = simulate(LESGD(K=1, eta=ETA, sync_extrapolation=sync), problem, rounds=6, executor=executor)
    operator = reference_operator(problem, SEED, 1, 2, 2, NOISE)
    distance = gap(left, extra_sgd(operator, 4, start_of(problem), 6, ETA))
    assert distance < ROUNDING if sync else distance > VISIBLE


@pytest.mark.parametrize("executor", EXECUTORS)
def test_b2_lippax_without_inner_steps_has_the_iterates_of_lsgd(executor):
    """The output of LIPPAX averages z_0 .. z_(T-1), that of LSGD z_1 .. z_T."""
    problem, K = Field(), 3
    points, outputs = simulate(LIPPAX(K=K, eta=ETA, H=0), problem, executor=executor)
    other, shifted = simulate(LSGD(K=K, eta=ETA), problem, executor=executor)
    assert np.array_equal(points, other)  # the same operations on the same samples
    steps = K * np.arange(1, len(points) + 1)[:, None]
    assert distance(steps * (shifted - outputs), points - start_of(problem).numpy()) < ROUNDING
    assert distance(outputs, shifted) > VISIBLE


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("sync", [True, False])
def test_b3_one_inner_step_of_lippax_is_lesgd(sync, clients):
    """With γ = η the inner step is the extrapolation. B3b: not where x is averaged; B3c: one client has no means."""
    problem = Field(clients=clients)
    left = simulate(LIPPAX(K=3, eta=ETA, H=1, gamma=ETA), problem)
    distance = gap(left, simulate(LESGD(K=3, eta=ETA, sync_extrapolation=sync), problem))
    assert distance > VISIBLE if sync and clients > 1 else distance < ROUNDING


@pytest.mark.parametrize("settings, same", [
    (dict(delta=0.0), True), (dict(sigma=0.0), True), (dict(delta="theorem", sigma=0.0), True), (dict(sigma=9.0), False),
])
def test_b4_slippax_without_smoothing_is_lippax(settings, same):
    rates = dict(K=2, eta=0.2, H=3, L=3.0)
    distance = gap(simulate(SLIPPAX(**rates, **settings), Field()), simulate(LIPPAX(**rates), Field()))
    assert distance == 0 if same else distance > VISIBLE


class FromZero(Field):
    """The field with z_0 = 0."""

    def initial(self, rng):
        return {}


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("kind", [FromZero, Field])
def test_b5_dual_extrapolation_without_phi_is_lesgd(kind, sync):
    """With φ = 0 and h = ½‖·‖² duals are points, from any start (the list has z_0 = 0)."""
    right = simulate(LESGD(K=3, eta=ETA, sync_extrapolation=sync), kind())
    method = LocalDualExtrapolation(K=3, eta=ETA, sync_extrapolation=sync)
    assert gap(simulate(method, kind(), field="dual"), right) < ROUNDING
    assert gap(simulate(method, kind(phi=L1(lam=0.4)), field="dual"), right) > VISIBLE


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("K", [1, 2, 3, 6])
def test_b9_lesgd_of_one_client_is_extra_sgd(K, sync):
    """However the 12 steps are cut into rounds."""
    noise, problem = Timed(scale=0.3, q=2 * K), Field(clients=1)
    method = LESGD(K=K, eta=ETA, sync_extrapolation=sync)
    left = simulate(method, problem, noise=noise, rounds=12 // K, batch_size=0)
    operator = reference_operator(problem, SEED, K, 2, 0, noise)
    right = extra_sgd(operator, 1, start_of(problem), 12, ETA)
    assert gap(left, [part[K - 1 :: K] for part in right]) < ROUNDING


class NoiseOfX(Gaussian):
    """Noise of the gradient in x alone: in y a noise of V and a noise of ∂_y f differ by a sign."""

    def __call__(self, stream, size):
        noise = super().__call__(stream, size)
        noise[..., DX:] = 0.0
        return noise


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("ball", [None, BINDING])
def test_b10_lsgd_on_a_game_is_local_sgda_with_one_rate(ball, executor):
    settings = dict(executor=executor, noise=NoiseOfX(scale=0.3))

    def local_sgda(eta_x, eta_y):
        method, game = LocalSGDA(q=3, eta_x=eta_x, eta_y=eta_y), Game(ball=ball)
        return np.concatenate([simulate(method, game, field=block, **settings)[0] for block in "xy"], axis=1)

    left, _ = simulate(LSGD(K=3, eta=ETA), Game(ball=ball), **settings)
    assert distance(left, local_sgda(ETA, ETA)) < ROUNDING
    assert distance(left, local_sgda(ETA, 2 * ETA)) > VISIBLE
    assert distance(left, local_sgda(2 * ETA, ETA)) > VISIBLE


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
    """For one Jacobian the mean over the clients of exact proximal points is that of the mean operator, at every step."""
    problem, eta, K, rounds = Affine(spread=spread), 0.2, 3, 4
    problem.prepare(SEED)
    L = float(torch.linalg.matrix_norm(problem.A, 2)) + 2 * spread
    # An inner step leaves at most (1 - 1 / (ηL + 1)²)^(1/2) of the error; that to the power H is below 1e-16.
    H = int(np.ceil(np.log(1e-16) / np.log(1 - 1 / (eta * L + 1) ** 2) * 2))
    points, outputs = simulate(
        LIPPAX(K=K, eta=eta, H=H, L=L), problem, noise=None, rounds=rounds, batch_size=0, executor="batched")
    A, b = problem.mean()
    z, path = start_of(problem), []
    for _ in range(K * rounds):
        z = torch.linalg.solve(eta * A + torch.eye(D, dtype=A.dtype), z - eta * b)
        path.append(z.numpy())
    gaps = distance(points, np.array(path)[K - 1 :: K]), distance(outputs[-1:], np.mean(path, axis=0)[None])
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

    settings = dict(noise=None, batch_size=0)
    distance = gap(simulate(methods()[name], Affine(spread=spread), **settings),
                   simulate(methods()[name], Mean(clients=1), **settings))
    assert distance < ROUNDING if spread == 0 else distance > VISIBLE


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
    """Full batches, and noise that goes with the clients; no smoothing vectors, which belong to their numbers."""
    noise = Renamed(scale=0.3, order=order)
    return simulate(methods(delta=0.0)[name], Rearranged(order=order, phi=phi), noise=noise, batch_size=0, **settings)


@pytest.mark.parametrize("phi", [Zero(), L1(lam=0.4)])
@pytest.mark.parametrize("name", NAMES)
def test_d2_duplicated_clients(name, phi):
    left = rearranged(name, (0, 1, 2), phi)
    assert gap(left, rearranged(name, (0, 1, 2, 0, 1, 2), phi)) < ROUNDING
    assert gap(left, rearranged(name, (0, 1, 2, 0), phi)) > VISIBLE


@pytest.mark.parametrize("phi", [Zero(), L1(lam=0.4)])
@pytest.mark.parametrize("name", NAMES)
def test_d3_permuted_clients(name, phi):
    settings = dict(weights="samples")
    left = rearranged(name, (0, 1, 2), phi, **settings)
    assert gap(left, rearranged(name, (2, 0, 1), phi, **settings)) < ROUNDING
    assert gap(left, rearranged(name, (0, 1, 2), phi)) > VISIBLE  # the weights matter, and must go along


@pytest.mark.parametrize("phi", [Zero(), L1(lam=0.4), Indicator(set=Box(-0.5, 0.4))])
@pytest.mark.parametrize("name", NAMES)
def test_d6_the_period_is_nothing_to_one_client(name, phi):
    """Rounds of 2, 4 and 12 steps; the mirror maps of dual extrapolation count steps, not those of a round."""
    def path(K):
        method = methods(K=K, delta=0.0)[name]
        noise = Timed(scale=0.3, q=method.calls_per_step * K)
        points, outputs = simulate(method, Field(clients=1, phi=phi), noise=noise, rounds=12 // K, batch_size=0)
        return points[-1:], outputs[-1:]

    assert max(gap(path(12), path(K)) for K in (2, 4)) < ROUNDING


@dataclass
class SaddleField(Operator):
    """The saddle problem as an operator, z = (x, y), V_k(z) = (τx - t_k y, y + t_k x - b_k)."""

    saddle: Saddle

    def __post_init__(self):
        self.clients = self.saddle.clients

    def prepare(self, seed, data_dir=None):
        self.saddle.prepare(seed)

    def variables(self):
        return Blocks(z={"z": (2 * self.saddle.d,)})

    def initial(self, rng):
        point = self.saddle.initial(rng)
        return {"z": torch.cat([point["x"], point["y"]])}

    def client_data(self, k):
        return self.saddle.client_data(k)

    def operator(self, z, batch):
        (x, y), t, b = z.chunk(2, dim=-1), batch[0][:, :1], batch[1][:, 0]
        return torch.cat([self.saddle.tau * x - t * y, y + t * x - b], dim=-1)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", NAMES)
def test_the_game_of_a_minimax_problem_keeps_order_and_signs(name, executor):
    settings = dict(noise=NoiseOfX(scale=0.3), batch_size=0, executor=executor)
    saddle = dict(d=DX, clients=3, tau=3.0, t_max=2.0, centred=False)
    left = simulate(methods()[name], Saddle(**saddle), **settings)
    assert gap(left, simulate(methods()[name], SaddleField(Saddle(**saddle)), **settings)) < ROUNDING


def test_the_metrics_of_a_game_are_those_of_the_minimax_problem():
    """Distances to the saddle, x and y apart: the adapter hands the halves of z to the problem by name."""
    problem = Saddle(d=4, clients=3, tau=3.0, t_max=2.0, centred=False)
    simulation = Simulation(configuration(LESGD(K=1, eta=0.2), problem, "unused", noise=None), SerialComm())
    simulation.start()
    for _ in range(200):  # the modulus is 1: less than 0.9^200 = 1e-9 is left
        simulation.step()
    for state in (simulation.shared, simulation.output):
        parts = state.z.split(4)
        errors = [float(torch.dist(part, star)) for part, star in zip(parts, problem.solution())]
        metrics = simulation.evaluate(state)
        assert [metrics["x_error"], metrics["y_error"]] == pytest.approx(errors, abs=1e-15)
    assert simulation.evaluate(simulation.shared)["error"] < 1e-8


@dataclass
class Matching(Minimax):
    """f_k = ‖x‖²/2 + xᵀC_k y with x in a box and y in a simplex; both bind."""

    clients: int = 3
    bounded: bool = True

    def prepare(self, seed, data_dir=None):
        self.sets = Sets(x=Box(-0.2, 0.3), y=Simplex()) if self.bounded else Sets()
        self.C = torch.from_numpy(3 * generator(seed, "matching").standard_normal((self.clients, 2, 3)))

    def variables(self):
        return Blocks(x={"x": (2,)}, y={"y": (3,)})

    def initial(self, rng):
        return {"y": torch.full((3,), 1 / 3, dtype=torch.float64)}

    def client_data(self, k):
        return (self.C[k : k + 1],)

    def loss(self, x, y, batch):
        return 0.5 * x["x"] @ x["x"] + x["x"] @ batch[0][0] @ y["y"]


def infeasibility(points):
    x, y = points[..., :2], points[..., 2:]
    return max((-0.2 - x).max(), (x - 0.3).max(), -y.min(), np.abs(y.sum(-1) - 1).max())


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.xfail(strict=True, reason="uses the problem's φ alone, not its sets"))
    if name.startswith("LDE") else name for name in NAMES
])
def test_minimax_problems_stay_in_their_sets(name):
    """Points and averages, of which means over clients stay in convex sets."""
    method = methods(eta=0.3)[name]
    assert max(map(infeasibility, simulate(method, Matching(bounded=False), rounds=6))) > 0.1
    assert max(map(infeasibility, simulate(method, Matching(), rounds=6))) < ROUNDING
