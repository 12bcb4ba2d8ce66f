"""Bounds with constants on random minimax and compositional problems that satisfy their assumptions.

The bounds on gradients are far above the measured values: these tests show that formulas, methods and
constants are consistent. The last test shows that a wrong step exceeds a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from games import configuration, simulated
from oracles import prepared

from mpifed import Blocks, Composition, Minimax, Sets
from mpifed.algorithms import FESSGDA, FGDA, MFCGD, FedMuonDA, FedNSGDAM, SmoothedGDA
from mpifed.core.sets import Ball
from mpifed.core.streams import generator
from mpifed.theory import prescribe

DX, DY, CLIENTS, STEPS, ROUNDS = 3, 3, 3, 3, 20
#: Eigenvalues of P and S and singular values of R. Φ = max_y f is convex in every kind.
SPECTRA = {
    "nonconvex-PL": ((-0.4, -0.3, 0.6), (0.9, 0.8, 0.0), (1.0, 0.5, 0.0)),
    "nonconvex-strongly-concave": ((-0.4, -0.3, 0.6), (0.9, 0.8, 0.4), (1.0, 0.5, 0.25)),
    "two-sided": ((0.5, 0.25, 0.0), (0.9, 0.8, 0.0), (1.0, 0.5, 0.25)),
    "convex": ((0.5, 0.25, 0.3), (0.9, 0.8, 0.4), (1.0, 0.5, 0.25)),
    "turning": ((0.3, 0.3, 0.3), (1.0, 1.0, 1.0), (0.2, 0.2, 0.2)),
}
KINDS = ("nonconvex-PL", "nonconvex-strongly-concave", "two-sided")
CONVEX = ("two-sided", "convex", "turning")


@dataclass
class Quadratic(Minimax):
    """xᵀPx/2 + xᵀRy - yᵀSy/2 and linear parts that differ between clients by ``apart``."""

    kind: str
    seed: int = 1
    apart: float = 0.0
    ball: float | None = None
    clients: int = CLIENTS

    def prepare(self, seed, data_dir=None):
        rng = generator(self.seed, self.kind)
        self.sets = Sets(y=Ball(self.ball)) if self.ball else Sets()
        X, Y = (np.linalg.qr(rng.standard_normal((3, 3)))[0] for _ in range(2))
        p, r, s = map(np.array, SPECTRA[self.kind])
        P, R, S = X * p @ X.T, X * r @ Y.T, Y * s @ Y.T
        self.H = np.block([[P, R], [R.T, -S]])
        shift = rng.standard_normal((CLIENTS, DX + DY))
        # Clients differ in the ranges of R and S only, so that f has a maximiser in y.
        point = rng.standard_normal(DX + DY)
        own = self.apart * (shift - shift.mean(0)) @ np.linalg.pinv(self.H) @ self.H
        self.g = own - self.H @ point
        self.start, self.point, self.pinv = rng.standard_normal(DX + DY), point, np.linalg.pinv(S)
        self.mu, self.l = s[s > 0].min(), np.linalg.norm(self.H, 2)
        self.mu_x = p[p > 0].min()

    def variables(self):
        return Blocks(x={"x": (DX,)}, y={"y": (DY,)})

    def initial(self, rng):
        y = self.sets.y(torch.from_numpy(self.start[DX:]))
        return {"x": torch.from_numpy(self.start[:DX]), "y": y}

    def client_data(self, k):
        return (torch.from_numpy(self.g[k][None]),)

    def gradients(self, x, y, batch):
        H = torch.from_numpy(self.H)
        return ((torch.cat([x, y], dim=-1) @ H) + batch[0][:, 0]).split((DX, DY), dim=-1)

    # The mean f, in NumPy

    def value(self, x, y):
        z = np.concatenate([x, y])
        return z @ self.H @ z / 2 + self.g.mean(0) @ z

    def gradient(self, x, y):
        return np.split(self.H @ np.concatenate([x, y]) + self.g.mean(0), [DX])

    def best(self, x):
        return self.pinv @ (self.H[DX:, :DX] @ x + self.g.mean(0)[DX:])

    def top(self, x):
        """Return Φ(x) and ∇Φ(x)."""
        return self.value(x, self.best(x)), self.gradient(x, self.best(x))[0]

    @property
    def floor(self):
        """min Φ: (x, y) = ``point`` is a saddle point of the quadratic, up to directions in which f is
        constant."""
        return self.top(self.point[:DX])[0]

    def potential(self):
        """Return V_0 - min Φ for z_0 = x_0, f̂ = f + l‖x - z‖² and y in the whole space."""
        x, y, l = self.start[:DX], self.start[DX:], self.l
        curved = self.H[:DX, :DX] + self.H[:DX, DX:] @ self.pinv @ self.H[DX:, :DX]
        low = (
            self.value(x, y)
            - self.gradient(x, y)[0]
            @ np.linalg.solve(self.H[:DX, :DX] + 2 * l * np.eye(DX), self.gradient(x, y)[0])
            / 2
        )
        top, slope = self.top(x)
        proximal = top - slope @ np.linalg.solve(curved + 2 * l * np.eye(DX), slope) / 2
        return self.value(x, y) - 2 * low + 2 * proximal - self.floor


def path(method, problem, rounds, sigma, size, blocks="xy"):
    """Return (x, y) at the start and after every round."""
    config = configuration(
        method, problem, "unused", rounds=rounds, noise=sigma / size**0.5, batch_size=0, group="all"
    )
    return [
        [simulation.rounds.block(block).numpy().copy() for block in blocks]
        for simulation in simulated(config)
    ]


def game(kind, **settings):
    return prepared(Quadratic(kind, **settings), 1)


def spread(problem):
    """Return the largest distances between two clients' gradients in x and in y, and from the mean."""
    pairs = problem.g[:, None] - problem.g[None]
    sizes = [np.linalg.norm(part, axis=-1).max() for part in (pairs[..., :DX], pairs[..., DX:])]
    return *sizes, np.linalg.norm(problem.g - problem.g.mean(0), axis=1).max()


CASES = [(kind, sigma, apart) for kind in KINDS for sigma, apart in ((0.0, 0.0), (0.2, 0.3))]


@pytest.mark.parametrize("kind, sigma, apart", CASES)
def test_fgda_fed_nsgda_m_and_fedmuon_da(kind, sigma, apart):
    """Huang et al. 2024, Theorem 2, at the ends of rounds, and Zhang & Gao n.d., (58) and (76): the mean of
    ‖∇Φ‖."""
    problem = game(kind, apart=apart)
    x, y = problem.start[:DX], problem.start[DX:]
    gap, inner = problem.top(x)[0] - problem.floor, problem.top(x)[0] - problem.value(x, y)
    delta_x, delta_y, _ = spread(problem)
    common = dict(L=problem.l, mu=problem.mu, sigma=sigma, gap=gap, inner=inner)
    advice = prescribe(
        "huang-2024-2", **common, delta_x=delta_x, delta_y=delta_y, K=CLIENTS, q=STEPS, T=STEPS * ROUNDS
    )
    fgda = FGDA(q=STEPS, sync_estimator="mean_after", **advice.steps)
    assert mean_slope(problem, path(fgda, problem, ROUNDS, sigma, DX + DY)[1:]) <= advice.bound
    for name, cls in (("zhang-gao-58", FedNSGDAM), ("zhang-gao-76", FedMuonDA)):
        advice = prescribe(name, **common, s=2, N=CLIENTS, p=STEPS, T=ROUNDS)
        points = path(cls(p=STEPS, **advice.steps), problem, ROUNDS, sigma, DX + DY)[:-1]
        assert mean_slope(problem, points) <= advice.bound


def mean_slope(problem, points):
    return np.mean([np.linalg.norm(problem.top(x)[1]) for x, _ in points])


@pytest.mark.parametrize("kind, sigma, apart", CASES)
def test_smoothing(kind, sigma, apart):
    """Shen et al. 2024, Theorem 3.1: the mean of ‖∇_x f‖² + κ‖∇_y f‖²; V_0 exceeds min Φ."""
    problem = game(kind, apart=apart)
    kappa, Delta = problem.l / problem.mu, problem.potential()
    advice = prescribe(
        "shen-3.1", l=problem.l, mu=problem.mu, sigma=sigma, sigma_G=spread(problem)[2], K=STEPS, T=ROUNDS,
        M=CLIENTS, m=CLIENTS, Delta=Delta,
    )  # fmt: skip
    points = path(FESSGDA(K=STEPS, **advice.steps), problem, ROUNDS, sigma, DX + DY)[:-1]
    slopes = [problem.gradient(*point) for point in points]
    assert Delta > 0
    assert np.mean([gx @ gx + kappa * gy @ gy for gx, gy in slopes]) <= advice.bound


@pytest.mark.parametrize("kind, sigma", [(kind, sigma) for kind in CONVEX for sigma in (0.0, 0.2)])
def test_smoothing_on_a_ball(kind, sigma):
    """Shen et al. 2024, Theorem E.1, and without noise Corollary E.1. ∇_y becomes l (P_Y(y + ∇_y f / l) - y).

    A larger Δ leaves the theorem true: Ψ ≥ f(x_0, y_0) - ‖∇_x f‖²/(2l), P ≤ Φ, which the whole space makes
    larger, and Φ ≥ f(·, y) for each y of the ball, here 0 or, where P is singular, that of the saddle.
    """
    problem = game(kind, ball=3.0, apart=0.3)
    x, y = (part.numpy() for part in problem.initial(None).values())
    gx, gy = problem.gradient(x, y)
    saddle = problem.point[DX:] if kind == "two-sided" else np.zeros(DY)
    assert np.linalg.norm(saddle) <= 3.0
    slope = problem.gradient(np.zeros(DX), saddle)[0]
    lowest = problem.value(np.zeros(DX), saddle) - slope @ np.linalg.pinv(problem.H[:DX, :DX]) @ slope / 2
    Delta = -problem.value(x, y) + gx @ gx / problem.l + 2 * problem.top(x)[0] - lowest
    steepest = np.linalg.norm(gy) + 9 * problem.l
    kappa = problem.l / problem.mu
    advice = prescribe(
        "shen-E.1", l=problem.l, mu=problem.mu, sigma=sigma, sigma_G=spread(problem)[2], G_y=steepest,
        K=STEPS, T=ROUNDS, M=CLIENTS, m=CLIENTS, Delta=Delta,
    )  # fmt: skip
    tests = [(FESSGDA(K=STEPS, **advice.steps), advice.bound)]
    if not sigma:
        advice = prescribe("shen-corollary-E.1", l=problem.l, mu=problem.mu, T=ROUNDS, Delta=Delta)
        tests.append((SmoothedGDA(**advice.steps), advice.bound))
    for method, bound in tests:
        values = []
        for x, y in path(method, problem, ROUNDS, sigma, DX + DY)[:-1]:
            gx, gy = problem.gradient(x, y)
            moved = problem.l * (problem.sets.y(torch.from_numpy(y + gy / problem.l)).numpy() - y)
            values.append(gx @ gx + kappa * moved @ moved)
        assert np.mean(values) <= bound


@pytest.mark.parametrize("sigma, apart", [(0.0, 0.0), (0.1, 0.2)])
@pytest.mark.parametrize("kind", CONVEX)
def test_two_sided_problems(kind, sigma, apart):
    """Shen et al. 2024, Theorem 3.5, for μ_x ≥ μ_y: W = 2Φ - f - min Φ after T rounds."""
    problem = game(kind, apart=apart)
    assert problem.mu_x >= problem.mu

    def potential(x, y):
        return 2 * problem.top(x)[0] - problem.value(x, y) - problem.floor

    advice = prescribe(
        "shen-3.5", l=problem.l, mu_x=problem.mu_x, mu_y=problem.mu, sigma=sigma,
        sigma_G=spread(problem)[2], K=STEPS, T=ROUNDS, M=CLIENTS, m=CLIENTS,
        W=potential(problem.start[:DX], problem.start[DX:]),
    )  # fmt: skip
    ends = path(FESSGDA(K=STEPS, **advice.steps), problem, ROUNDS, sigma, DX + DY)[-1]
    assert 0 <= potential(*ends) <= advice.bound


OUTER = {
    "hyperbola": (lambda u: torch.sqrt(1 + u**2), 1.0),
    "log cosh": (lambda u: torch.log(torch.cosh(u)), 1.0),
    "sine": (torch.sin, 1.0),
}


@dataclass
class Chain(Composition):
    """F(x) = mean of Σ_j s(g_j(x)) with g = A_m sin(x) + x / 2, and s from ``OUTER``, |s'| ≤ 1, |s''| ≤ 1."""

    kind: str
    apart: float = 0.1
    clients: int = CLIENTS

    inner_size = 2

    def prepare(self, seed, data_dir=None):
        rng = generator(seed, "chain")
        shift = rng.standard_normal((CLIENTS, 2, 2))
        self.A = rng.standard_normal((2, 2)) / 2 + self.apart * (shift - shift.mean(0))

    def variables(self):
        return Blocks(x={"x": (2,)})

    def initial(self, rng):
        return {"x": torch.tensor([1.0, -2.0])}

    def client_data(self, k):
        return (torch.from_numpy(self.A[k][None]),)

    def inner(self, x, batch):
        return batch[0].mean(0) @ torch.sin(x["x"]) + x["x"] / 2

    def outer(self, u, batch):
        return OUTER[self.kind][0](u).sum()

    def mean(self, x):
        """Return F(x) and ‖∇F(x)‖."""
        with torch.enable_grad():
            x = torch.from_numpy(x).requires_grad_()
            F = (
                sum(self.outer(self.inner({"x": x}, self.client_data(k)), ()) for k in range(CLIENTS))
                / CLIENTS
            )
            return float(F.detach()), float(torch.autograd.grad(F, x)[0].norm())


@pytest.mark.parametrize("apart", [0.0, 0.1])
@pytest.mark.parametrize("kind", OUTER)
def test_compositions(kind, apart):
    """Huang n.d., Theorem 2, without noise: the mean of ‖∇F‖ at the ends of rounds."""
    problem = prepared(Chain(kind, apart), 1)
    norms = np.linalg.norm(problem.A, axis=(1, 2))
    apart_most = np.linalg.norm(problem.A[:, None] - problem.A[None], axis=(2, 3)).max() * 2**0.5
    advice = prescribe(
        "huang-composition-2", L_f=1.0, L_g=norms.max(), C_f=2**0.5, C_g=norms.max() + 2**-0.5, sigma=0.0,
        delta_f=0.0, delta_g=apart_most, q=STEPS, T=STEPS * ROUNDS,
        gap=problem.mean(np.array([1.0, -2.0]))[0] + 2.0,  # every F here is above -2
    )  # fmt: skip
    points = path(MFCGD(q=STEPS, **advice.steps), problem, ROUNDS, 0.0, 2, "x")[1:]
    assert np.mean([problem.mean(x)[1] for (x,) in points]) <= advice.bound


def test_a_wrong_step_exceeds_a_bound():
    """Without noise, W of a two-sided problem falls as in Theorem 3.5, but not with steps 40 times as
    large."""
    problem = game("two-sided")
    W = 2 * problem.top(problem.start[:DX])[0] - problem.value(problem.start[:DX], problem.start[DX:])
    advice = prescribe(
        "shen-3.5", l=problem.l, mu_x=problem.mu_x, mu_y=problem.mu, sigma=0, sigma_G=0, K=1, T=2000, M=1,
        m=1, W=W - problem.floor,
    )  # fmt: skip
    large = {
        name: value * (40 if name in ("eta_xg", "eta_yg") else 1) for name, value in advice.steps.items()
    }

    def end(steps):
        x, y = path(FESSGDA(K=1, **steps), problem, 60, 0.0, DX + DY)[-1]
        return 2 * problem.top(x)[0] - problem.value(x, y) - problem.floor

    assert end(advice.steps) <= advice.bound < end(large)
