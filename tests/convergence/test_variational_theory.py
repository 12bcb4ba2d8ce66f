"""Error bounds of Wang & Kale n.d. on affine operators, and zeros of composite solutions.

The error of z̄ is err_D(z̄) = max of ⟨V(z), z̄ - z⟩ over the ball of radius D about the start. For affine V
this is a quadratic on a ball, whose maximum is computed exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from games import completed, configuration

from mpifed import Blocks
from mpifed.algorithms import LESGD, LSGD, LocalDualExtrapolation
from mpifed.core.problem import Operator
from mpifed.core.sets import L1, Zero
from mpifed.core.streams import generator
from mpifed.problems.restricted_gap import maximize_on_ball
from mpifed.theory.wang_kale import theorem_1, theorem_2, theorem_6

DIM = 6
ROTATION = np.array([[0.0, 1.0], [-1.0, 0.0]])


@dataclass
class Affine(Operator):
    """V_k(z) = A z + b_k, started at ``start``; ``b`` has one row per client or is the same for all."""

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
        """Return err_D: with z = z_0 + v and w = z̄ - z_0 it is the maximum of ⟨V(z_0), w⟩ + ⟨v, Aᵀw -
        V(z_0)⟩ - vᵀAv over ‖v‖ ≤ D."""
        V0, w = self.A @ self.start + self.b, point - self.start
        return V0 @ w + maximize_on_ball(-(self.A + self.A.T), self.A.T @ w - V0, radius)[0]


def simulate(method, problem, rounds, *, seed=1, sigma=0.0):
    """Return the simulation after the last round; E‖noise‖² = σ²."""
    noise = sigma / len(problem.start) ** 0.5
    settings = dict(rounds=rounds, seed=seed, noise=noise, batch_size=0, group="all")
    return completed(configuration(method, problem, "unused", **settings))


def random_problem(kind, L, clients, seed):
    """Return a random problem with ‖A‖ = L whose solution is about 3 away from the start.

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


#: (L, σ, K, R, M, D), and whether the start exceeds the bounds, so that they are informative.
CASES = [
    ((1.0, 0.0, 4, 100, 1, 3.0), True),
    ((0.3, 0.005, 8, 60, 8, 3.0), True),
    ((5.0, 0.1, 1, 200, 4, 1.0), False),
]
THEOREMS = [
    *(
        (theorem, LESGD, kind)
        for theorem in (theorem_1, theorem_2)
        for kind in ("monotone", "skew", "strong")
    ),
    *((theorem_6, LSGD, kind) for kind in ("symmetric", "definite")),
]


@pytest.mark.parametrize("case, informative", CASES)
@pytest.mark.parametrize("theorem, cls, kind", THEOREMS)
def test_the_bounds_of_theorems_1_2_and_6(theorem, cls, kind, case, informative):
    """The mean of err_D over the seeds does not exceed the bound."""
    L, sigma, K, R, M, D = case
    advice = theorem(*case)
    eta, bound = advice.steps["eta"], advice.bound
    starts, errors = [], []
    for seed in range(3 if sigma else 1):
        problem = random_problem(kind, L, M, seed)
        starts.append(problem.error(problem.start, D))
        simulation = simulate(cls(K=K, eta=eta), problem, R, seed=seed, sigma=sigma)
        errors.append(problem.error(simulation.output.z.numpy(), D))
    assert np.mean(errors) <= bound
    assert np.mean(starts) > bound or not informative


def test_err_is_exact_on_a_rotation():
    """V(z) = J z about the start 0: ⟨Jz, z̄ - z⟩ = ⟨z, Jᵀz̄⟩, so err_D(z̄) = D ‖z̄‖."""
    problem = Affine(ROTATION, np.zeros(2), np.zeros(2))
    assert problem.error(np.array([3.0, 4.0]), 2.0) == pytest.approx(10.0, rel=1e-14)


def composite(clients=5, lam=0.5):
    """Return V_k(z) = z + b_k with distant b_k and φ = λ‖·‖₁, and its solution: the soft threshold of -b̄."""
    b = 3 * generator(1, "composite").standard_normal((clients, DIM))
    b += np.array([0.0, 2.0, 0.1, -2.0, -0.2, 1.5]) - b.mean(0)
    problem = Affine(np.eye(DIM), b, np.full(DIM, 0.7), clients, L1(lam=lam))
    mean = -b.mean(0)
    return problem, np.sign(mean) * np.maximum(np.abs(mean) - lam, 0)


def primal_averages(problem, eta, K, rounds):
    """Run local proximal gradient steps that average primal points after every K steps."""
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
    simulation = simulate(LocalDualExtrapolation(K=K, eta=eta), problem, rounds)
    point = simulation.shared.z.numpy()
    assert np.array_equal(point == 0, star == 0)
    # The clients share a Jacobian, so that without φ there is no drift; with it, none where the signs agree.
    np.testing.assert_allclose(point, star, atol=0.05)
    primal = primal_averages(problem, eta, K, rounds)
    assert (primal == 0).sum() < 3
    assert np.array_equal(primal_averages(problem, eta, 1, rounds) == 0, np.zeros(DIM, dtype=bool))
