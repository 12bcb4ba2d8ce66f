"""What Wang & Kale n.d. prove, and where its methods end: error bounds, rates on rotations, zeros of
composite solutions, sets.

The error of z̄ is err_D(z̄) = max of ⟨V(z), z̄ - z⟩ over the ball of radius D about the start, for affine V a
quadratic on a ball, which is maximised exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from fields import Field
from games import configuration
from scipy.optimize import root

from mpifed import Blocks, Minimax, Sets
from mpifed.algorithms import LESGD, LIPPAX, LSGD, SLIPPAX, LocalDualExtrapolation
from mpifed.core.problem import Operator
from mpifed.core.sets import L1, Box, Simplex, Zero
from mpifed.core.streams import generator
from mpifed.parallel.comm import SerialComm
from mpifed.problems import Saddle
from mpifed.problems.restricted_gap import maximize_on_ball
from mpifed.simulation.simulation import Simulation
from mpifed.theory.wang_kale import theorem_1, theorem_2, theorem_6

DIM = 6
ROTATION = np.array([[0.0, 1.0], [-1.0, 0.0]])


@dataclass
class Affine(Operator):
    """V_k(z) = A z + b_k from z_0, with rows b_k of ``b`` or one b for all ``clients``."""

    A: np.ndarray
    b: np.ndarray
    start: np.ndarray
    clients: int = 1
    phi: object = field(default_factory=Zero)

    def variables(self):
        return Blocks(z={"z": self.start.shape})

    def initial(self, rng):
        return {"z": torch.from_numpy(self.start)}

    def client_data(self, k):
        b = np.broadcast_to(self.b, (self.clients, len(self.start)))[k : k + 1].copy()
        return torch.from_numpy(self.A)[None], torch.from_numpy(b)

    def operator(self, z, batch):
        return (batch[0][:, 0] @ z.unsqueeze(-1)).squeeze(-1) + batch[1][:, 0]

    def error(self, point, radius):
        """err_D: with z = z_0 + v and w = z̄ - z_0 it is max of ⟨V(z_0), w⟩ + ⟨v, Aᵀw - V(z_0)⟩ - vᵀAv over
        ‖v‖ ≤ D."""
        V0, w = self.A @ self.start + self.b, point - self.start
        return V0 @ w + maximize_on_ball(-(self.A + self.A.T), self.A.T @ w - V0, radius)[0]


def simulate(method, problem, rounds, *, seed=1, sigma=0.0, **settings):
    """The simulation after every round; E‖noise‖² = σ²."""
    size = sum(problem.variables().sizes.values())
    settings = {"batch_size": 0, "group": "all", **settings}
    noise = sigma / size**0.5
    config = configuration(method, problem, "unused", rounds=rounds, seed=seed, noise=noise, **settings)
    simulation = Simulation.from_settings(config, SerialComm())
    simulation.start()
    for _ in range(rounds):
        simulation.step()
        yield simulation


def output(*args, **settings):
    """The output point after the last round."""
    *_, simulation = simulate(*args, **settings)
    return simulation.output.z.numpy().copy()


def random_problem(kind, L, clients, seed):
    """‖A‖ = L, solution about 3 away from the start.

    A is skew, monotone, strongly monotone, symmetric ⪰ 0 of rank 3, or symmetric and definite.
    """
    rng = generator(seed, kind)
    S, W = rng.standard_normal((2, DIM, DIM))
    S[:, 3:] = 0.0
    symmetric, skew = S @ S.T, W - W.T
    A = {
        "skew": skew,
        "monotone": symmetric / DIM + skew,
        "strong": symmetric / DIM + skew + np.eye(DIM) / 2,
        "symmetric": symmetric,
        "definite": symmetric + np.eye(DIM),
    }[kind]
    A *= L / np.linalg.norm(A, 2)
    start, star = 2 * rng.standard_normal((2, DIM)) / DIM**0.5
    return Affine(A, -A @ star, start, clients)


#: (L, σ, K, R, M, D) and whether the start exceeds the bounds: where it does not, they say little.
CASES = [
    ((1.0, 0.0, 4, 100, 1, 3.0), True),
    ((1.0, 0.02, 4, 100, 2, 3.0), True),
    ((0.3, 0.005, 8, 60, 8, 3.0), True),
    ((5.0, 0.1, 1, 200, 4, 1.0), False),
    ((1.0, 0.1, 8, 60, 8, 1.0), False),
]
THEOREMS = [
    (theorem_1, LESGD, "monotone"),
    (theorem_1, LESGD, "skew"),
    (theorem_1, LESGD, "strong"),
    (theorem_2, LESGD, "monotone"),
    (theorem_2, LESGD, "skew"),
    (theorem_2, LESGD, "strong"),
    (theorem_6, LSGD, "symmetric"),
    (theorem_6, LSGD, "definite"),
]


@pytest.mark.parametrize("case, telling", CASES)
@pytest.mark.parametrize("theorem, cls, kind", THEOREMS)
def test_the_bounds_of_theorems_1_2_and_6(theorem, cls, kind, case, telling):
    """The mean of err_D over seeds."""
    L, sigma, K, R, M, D = case
    said = theorem(*case)
    eta, bound = said.steps["eta"], said.bound
    starts, errors = [], []
    for seed in range(3 if sigma else 1):
        problem = random_problem(kind, L, M, seed)
        starts.append(problem.error(problem.start, D))
        errors.append(problem.error(output(cls(K=K, eta=eta), problem, R, seed=seed, sigma=sigma), D))
    assert np.mean(errors) <= bound
    assert np.mean(starts) > bound or not telling


def test_err_is_exact_on_a_rotation():
    """V(z) = J z about the start 0: ⟨Jz, z̄ - z⟩ = ⟨z, Jᵀz̄⟩, so err_D(z̄) = D ‖z̄‖."""
    problem = Affine(ROTATION, np.zeros(2), np.zeros(2))
    assert problem.error(np.array([3.0, 4.0]), 2.0) == pytest.approx(10.0, rel=1e-14)


@pytest.mark.parametrize("K", [1, 5])
def test_only_lsgd_diverges_on_a_rotation(K):
    """V(z) = J z, J orthogonal and skew, has modulus 1, and J has the eigenvalues ± i: the norms change by
    |1 - iη| (LSGD), |1 - iη - η²| (LESGD), 1 / |1 + iη| (LIPPAX in the limit) a step."""
    problem, eta, R = Affine(ROTATION, np.zeros(2), np.array([1.0, 0.0]), 2), 0.5, 20
    rates = {
        LSGD(K=K, eta=eta): abs(1 - 1j * eta),
        LESGD(K=K, eta=eta): abs(1 - 1j * eta - eta**2),
        LIPPAX(K=K, eta=eta, H=150, L=1.0): 1 / abs(1 + 1j * eta),
    }
    for method, rate in rates.items():
        *_, simulation = simulate(method, problem, R)
        assert float(simulation.shared.z.norm()) == pytest.approx(
            rate ** (K * R), rel=1e-11
        )  # K R steps of 1e-16 each
        assert (rate > 1) == isinstance(method, LSGD)


@pytest.mark.parametrize("eta_L", [1.0, 0.3])
def test_the_inner_loop_of_lippax_is_geometric_at_the_rate_of_the_field(eta_L):
    """On J z the inner map is 1 - γ(1/η + iL) on the error; with γ = 1 / (η (L + 1/η)²) its square is at most
    1 - 1 / (ηL + 1)², which is 3/4 for ηL = 1."""
    L = 2.0
    problem, eta = Affine(L * ROTATION, np.zeros(2), np.array([1.0, 2.0])), eta_L / L
    exact = np.linalg.solve(np.eye(2) + eta * L * ROTATION, problem.start)
    gamma = 1 / (eta * (L + 1 / eta) ** 2)
    rate = abs(1 - gamma * (1 / eta + 1j * L))
    assert rate**2 < 1 - 1 / (eta_L + 1) ** 2 <= 0.75
    first = np.linalg.norm(problem.start - exact)
    for H in (0, 1, 2, 5, 20):
        distance = np.linalg.norm(output(LIPPAX(K=1, eta=eta, H=H, L=L), problem, 1) - exact)
        assert distance == pytest.approx(
            rate**H * first, rel=1e-9
        )  # 1e-16 of numbers of 1 beside 0.6^20 = 1e-4


@pytest.mark.parametrize("eta_L", [1.0, 0.3])
def test_the_inner_loop_of_lippax_is_geometric_on_a_nonlinear_field(eta_L):
    problem = Field(clients=1)
    problem.prepare(1)
    rows, M = problem.client_data(0)
    # V is M z + Σ a (1 + tanh(aᵀz) / 2) / n with slopes of at most 1/2.
    L = float(torch.linalg.matrix_norm(M[0], 2) + torch.linalg.matrix_norm(rows.T @ rows, 2) / len(rows) / 2)
    eta, z = eta_L / L, problem.initial(generator(1, "initial"))["z"]

    def residual(x):
        x = torch.from_numpy(x)
        return (x - z + eta * problem.operator(x, (rows[None], M[None]))[0]).numpy()

    exact = root(residual, z.numpy(), tol=1e-14).x
    assert np.abs(residual(exact)).max() < 1e-12
    distances = [
        np.linalg.norm(output(LIPPAX(K=1, eta=eta, H=H, L=L), problem, 1) - exact) for H in range(0, 40, 4)
    ]
    for before, after in zip(distances, distances[1:]):
        assert after**2 <= (1 - 1 / (eta_L + 1) ** 2) ** 4 * before**2 + 1e-20
    assert distances[-1] < 1e-3 * distances[0]


def composite(clients=5, lam=0.5):
    """V_k(z) = z + b_k with b_k far apart, φ = λ‖·‖₁: the solution is the soft threshold of -b̄, three zeros
    of six."""
    b = 3 * generator(1, "composite").standard_normal((clients, DIM))
    b += np.array([0.0, 2.0, 0.1, -2.0, -0.2, 1.5]) - b.mean(0)
    problem = Affine(np.eye(DIM), b, np.full(DIM, 0.7), clients, L1(lam=lam))
    mean = -b.mean(0)
    return problem, np.sign(mean) * np.maximum(np.abs(mean) - lam, 0)


def primal_averages(problem, eta, K, rounds):
    """Local proximal gradient with averages of primal points after every K steps."""
    z = torch.from_numpy(problem.start).expand(problem.clients, -1)
    for _ in range(rounds):
        for _ in range(K):
            z = problem.phi(z - eta * (z + torch.from_numpy(problem.b)), eta)
        z = z.mean(0).expand(problem.clients, -1)
    return z[0].numpy()


def test_dual_averages_keep_zeros_that_primal_averages_lose():
    problem, star = composite()
    assert (star == 0).sum() == 3
    K, eta, rounds = 5, 0.1, 200
    *_, simulation = simulate(LocalDualExtrapolation(K=K, eta=eta), problem, rounds)
    point = simulation.shared.z.numpy()
    assert np.array_equal(point == 0, star == 0)
    # The clients share a Jacobian, so that without φ there is no drift; with it, none where the signs agree.
    np.testing.assert_allclose(point, star, atol=0.05)
    primal = primal_averages(problem, eta, K, rounds)
    assert (primal == 0).sum() < 3
    assert np.array_equal(primal_averages(problem, eta, 1, rounds) == 0, np.zeros(DIM, dtype=bool))


def test_the_output_of_dual_extrapolation_approaches_the_composite_solution():
    """Without local drift (K = 1) the average over the steps is off by O(1 / T)."""
    problem, star = composite()
    errors = [
        np.linalg.norm(output(LocalDualExtrapolation(K=1, eta=0.1), problem, T) - star) for T in (200, 800)
    ]
    assert errors[1] < 0.3 * errors[0]
    assert errors[1] < 0.05


def test_the_metrics_of_a_game_are_those_of_the_minimax_problem():
    """The adapter hands the halves of z to the problem by name; the modulus is 1, so 0.9^200 of the start is
    left."""
    problem = Saddle(d=4, clients=3, tau=3.0, t_max=2.0, centred=False)
    *_, simulation = simulate(LESGD(K=1, eta=0.2), problem, 200)
    for state in (simulation.shared, simulation.output):
        errors = [float(torch.dist(part, star)) for part, star in zip(state.z.split(4), problem.solution())]
        metrics = simulation.evaluate(state)
        assert [metrics["x_error"], metrics["y_error"]] == pytest.approx(errors, abs=1e-15)
    assert simulation.evaluate(simulation.shared)["error"] < 1e-8


@dataclass
class Matching(Minimax):
    """f = ‖x‖²/2 + xᵀC_k y with x in a box and y in a simplex; both bind."""

    clients: int = 3
    sets: Sets = field(default_factory=lambda: Sets(x=Box(-0.2, 0.3), y=Simplex()))

    def variables(self):
        return Blocks(x={"x": (2,)}, y={"y": (3,)})

    def initial(self, rng):
        return {"y": torch.full((3,), 1 / 3, dtype=torch.float64)}

    def client_data(self, k):
        return (torch.from_numpy(3 * generator(1, "matching", k).standard_normal((1, 2, 3))),)

    def loss(self, x, y, batch):
        return 0.5 * x["x"] @ x["x"] + x["x"] @ batch[0][0] @ y["y"]


INNER = dict(K=3, eta=0.3, H=2, L=3.0)


@pytest.mark.parametrize(
    "method",
    [
        LSGD(K=3, eta=0.3),
        LESGD(K=3, eta=0.3),
        LESGD(K=3, eta=0.3, sync_extrapolation=False),
        LIPPAX(**INNER),
        SLIPPAX(**INNER, delta=0.2),
        LocalDualExtrapolation(K=3, eta=0.3),
    ],
)
def test_games_stay_in_the_sets_of_the_minimax_problem(method):
    """Points and outputs: means of points of a convex set stay in it."""

    def infeasibility(problem):
        states = [
            (step.shared.z.clone(), step.output.z.clone()) for step in simulate(method, problem, 6, sigma=1.0)
        ]
        z = torch.stack([point for pair in states for point in pair])
        x, y = z[:, :2], z[:, 2:]
        return float(
            torch.stack([(-0.2 - x).max(), (x - 0.3).max(), -y.min(), (y.sum(1) - 1).abs().max()]).max()
        )

    assert infeasibility(Matching(sets=Sets())) > 0.1
    assert infeasibility(Matching()) < 1e-14  # rounding of means
