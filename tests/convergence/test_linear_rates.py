"""Linear rates of FedGDA-GT, ProxSkip-VIP-FL and Scaffnew: runs with the prescribed steps and their bounds.

The clients' functions are quadratic with known constants and different solutions; nothing is noisy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from games import completed, configuration

from mpifed import Blocks
from mpifed.algorithms import FedGDAGT, ProxSkipVIPFL
from mpifed.core.problem import Minimax, Minimisation
from mpifed.core.streams import generator
from mpifed.theory import prescribe

D, CLIENTS = 3, 4


@dataclass
class Coupled(Minimax):
    """f_i = ½ xᵀA x + xᵀC_i y - ½ ‖y‖² + b_iᵀx + e_iᵀy: V_i(z) = J_i z + c_i with z = (x, y)."""

    clients: int = CLIENTS

    def prepare(self, seed, data_dir=None):
        rng = generator(seed, "coupled")
        A = np.diag(np.linspace(0.5, 3.0, D))
        C = 0.4 * rng.standard_normal((self.clients, D, D))
        eye = np.eye(D)
        self.J = np.array([np.block([[A, one], [-one.T, eye]]) for one in C])
        self.c = rng.standard_normal((self.clients, 2 * D))
        self.start = rng.standard_normal(2 * D)

    def variables(self):
        return Blocks(x={"x": (D,)}, y={"y": (D,)})

    def initial(self, rng):
        return dict(zip("xy", torch.from_numpy(self.start).split(D)))

    def client_data(self, k):
        return torch.from_numpy(self.J[k : k + 1]), torch.from_numpy(self.c[k : k + 1])

    def gradients(self, x, y, batch):
        J, c = batch[0][:, 0], batch[1][:, 0]
        V = (J * torch.cat([x, y], -1)[..., None, :]).sum(-1) + c
        return V[..., :D], -V[..., D:]


@dataclass
class Convex(Minimisation):
    """f_i = ½ xᵀA_i x + c_iᵀx."""

    clients: int = CLIENTS

    def prepare(self, seed, data_dir=None):
        rng = generator(seed, "convex")
        scales = rng.uniform(0.2, 4.0, (self.clients, D))
        self.J = np.array([np.diag(one) for one in scales])
        self.c, self.start = rng.standard_normal((self.clients, D)), rng.standard_normal(D)

    def variables(self):
        return Blocks(x={"x": (D,)})

    def initial(self, rng):
        return {"x": torch.from_numpy(self.start)}

    def client_data(self, k):
        return torch.from_numpy(self.J[k : k + 1]), torch.from_numpy(self.c[k : k + 1])

    def gradients(self, x, batch):
        return (batch[0][:, 0] * x[..., None, :]).sum(-1) + batch[1][:, 0]


def error_and_bound(problem, theorem, method, rounds, seed, constants):
    """Return the distance from the solution after a run with the steps of a theorem, and its bound."""
    problem.prepare(seed)
    star = -np.linalg.solve(problem.J.mean(0), problem.c.mean(0))
    constants = constants(problem, star) | {"R": rounds, "D_0": float(np.linalg.norm(problem.start - star))}
    said = prescribe(theorem, **constants)
    config = configuration(
        method(said.steps), problem, "unused", rounds=rounds, seed=seed, noise=0, batch_size=0, group="all"
    )
    return float(np.linalg.norm(completed(config).point().numpy() - star)), said.bound


def spread(problem, star) -> float:
    """The root of the mean of ‖V_i(z*)‖²."""
    return float(np.sqrt(((problem.J @ star + problem.c) ** 2).sum(1).mean()))


def symmetric(J):
    return (J + np.swapaxes(J, -1, -2)) / 2


def tracked(problem, star):
    return dict(
        L=float(np.linalg.norm(problem.J, 2, axis=(1, 2)).max()),
        mu_z=float(np.linalg.eigvalsh(symmetric(problem.J.mean(0))).min()),
        K=4,
    )


def skipped(problem, star):
    S = symmetric(problem.J)
    quotients = [np.linalg.eigvals(np.linalg.solve(s, j.T @ j)).real.max() for s, j in zip(S, problem.J)]
    return dict(
        ell=float(max(quotients)), mu_z=float(np.linalg.eigvalsh(S).min()), V_star=spread(problem, star)
    )


def smooth(problem, star):
    values = np.linalg.eigvalsh(problem.J)
    return dict(L=float(values.max()), mu_x=float(values.min()), grad_star=spread(problem, star))


@pytest.mark.parametrize("seed", range(5))
def test_fedgda_gt(seed):
    """After 100 rounds, some percent of the start are left; the bound, of smaller steps than necessary, still
    contracts."""
    error, bound = error_and_bound(
        Coupled(), "sun-wei-linear", lambda steps: FedGDAGT(K=4, **steps), 100, seed, tracked
    )
    start = error_and_bound(Coupled(), "sun-wei-linear", lambda s: FedGDAGT(K=4, **s), 1, seed, tracked)[0]
    assert error <= bound < start and error < 0.5 * start


def mean_logarithms(theorem, problem, constants):
    """Return the means of the logarithms of error and bound over the coins, here of 20 seeds."""
    return np.log([
        error_and_bound(problem(), theorem, lambda steps: ProxSkipVIPFL(**steps), 30, seed, constants)
        for seed in range(20)
    ]).mean(0)  # fmt: skip


@pytest.mark.parametrize("theorem, problem, constants", [
    ("zhang-proxskip", Coupled, skipped), ("mishchenko-scaffnew", Convex, smooth),
])  # fmt: skip
def test_proxskip(theorem, problem, constants):
    error, bound = mean_logarithms(theorem, problem, constants)
    assert error <= bound < np.log(0.1)


def test_a_modulus_that_is_too_large_gives_a_bound_below_the_error():
    def wrong(problem, star):
        known = skipped(problem, star)
        return known | {"mu_z": 4 * known["mu_z"]}

    error, bound = mean_logarithms("zhang-proxskip", Coupled, wrong)
    assert error > bound + 1
