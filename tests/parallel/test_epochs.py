"""Sampling without replacement and local steps in epochs, compared with plain loops and between layouts.

Tolerance 1e-10 in float64 for the reason given in ``test_references``. Clients have 5 to 9 rows, so that
minibatches of 2 rows divide the rows of some clients only, and clients take different numbers of steps.
"""

from functools import cache

import drawn
import numpy as np
import pytest
import torch
from baselines import FIXED, Half
from games import Game, configuration, gradient_on, sizes, start_of
from oracles import prepared
from reference.fedopt import fedopt
from reference.local_sgda import local_sgda
from reference.plain_training import feddyn, fedexp, fednova, fedprox
from reference.variates import scaffold_minimax
from resumed import assert_path

from mpifed.algorithms import SCAFFOLD, FedAvg, FedDyn, FedExP, FedNova, FedProx, LocalSGDA

pytestmark = pytest.mark.mpi

SEED, BATCH, ROUNDS, CLIENTS, EPOCHS = 1, 2, 3, 5, {"epochs": 2}
FALLING = {"name": "power", "scale": 0.1}

game = cache(lambda: prepared(Game(clients=CLIENTS), SEED))


def steps(drop_last, epochs=2):
    """Return the number of steps of each client, counted batch by batch."""
    return {
        k: epochs * sum(1 for i in range(0, n, BATCH) if i + BATCH <= n or not drop_last)
        for k, n in enumerate(sizes(game()).tolist())
    }


def gradient(drop_last):
    """Return ``grad(k, x, y, (r, j))`` on sample j of round r: minibatches in the order of permutations."""

    def grad(k, x, y, key):
        r, j = key
        n, per_epoch = len(game().rows[k]), steps(drop_last, 1)[k]
        order = drawn.permutation(SEED, k, r, j // per_epoch, n).tolist()
        batches = [order[i : i + BATCH] for i in range(0, n, BATCH)]
        return gradient_on(game(), k, x, y, game().rows[k][batches[j % per_epoch]])

    return grad


def fall(t):
    return 0.1 / t ** (1 / 3)


def without_y(reference):
    def path(drop_last, cohorts, weights, **settings):
        grad = gradient(drop_last)
        x = start_of(game(), SEED)[0]
        return [
            (x,)
            for x in reference(lambda k, x, key: grad(k, x, FIXED, key)[0], x, cohorts, weights, **settings)
        ]

    return Half, path


def scaffolds(drop_last, cohorts, weights, **settings):
    pairs = [(cohort,) for cohort in cohorts]
    return scaffold_minimax(gradient(drop_last), *start_of(game(), SEED), pairs, weights, **settings)


def local_sgdas(drop_last, cohorts, weights, *, q, **settings):
    grad, most = gradient(drop_last), max(q.values()) if isinstance(q, dict) else q

    def at_step(k, x, y, t):
        return grad(k, x, y, ((t - 1) // most + 1, (t - 1) % most))

    return local_sgda(
        at_step,
        CLIENTS,
        *start_of(game(), SEED),
        q=q,
        rounds=ROUNDS,
        weights=weights,
        cohorts=cohorts,
        **settings,
    )


#: Name → method, problem and reference, and the settings of the reference for the numbers of steps.
CASES = {
    "FedAvg": (FedAvg(K=EPOCHS, eta=FALLING), without_y(fedopt), lambda K: dict(K=K, eta=fall)),
    # Seven steps end within an epoch of every client.
    "FedAvg in steps": (FedAvg(K=7, eta=FALLING), without_y(fedopt), lambda K: dict(K=7, eta=fall)),
    "FedProx": (
        FedProx(K=EPOCHS, eta=FALLING, mu=0.5, stragglers=0.5), without_y(fedprox),
        lambda K: dict(
            K=K, eta=fall, mu=0.5, stragglers=0.5, numbers=lambda k, r: drawn.straggler(SEED, k, r)
        ),
    ),
    "FedNova": (
        FedNova(tau=EPOCHS, eta=0.05, rho=0.6), without_y(fednova), lambda K: dict(tau=K, eta=0.05, rho=0.6)
    ),
    "FedExP": (
        FedExP(K=EPOCHS, eta=FALLING), without_y(fedexp), lambda K: dict(K=K, eta=fall, epsilon=1e-3)
    ),
    "FedDyn": (
        FedDyn(K=EPOCHS, eta=FALLING, alpha=0.3), without_y(feddyn), lambda K: dict(K=K, eta=fall, alpha=0.3)
    ),
    "SCAFFOLD": (
        SCAFFOLD(K=EPOCHS, eta_l=FALLING, eta_g=0.9), (Game, scaffolds),
        lambda K: dict(K=K, eta_l=fall, eta_g=0.9),
    ),
    "LocalSGDA": (
        LocalSGDA(q=EPOCHS, eta_x=FALLING, eta_y=0.04), (Game, local_sgdas),
        lambda K: dict(q=K, eta_x=fall, eta_y=lambda t: 0.04),
    ),
    "LocalSGDA in steps": (
        LocalSGDA(q=5, eta_x=FALLING, eta_y=0.04), (Game, local_sgdas),
        lambda K: dict(q=5, eta_x=fall, eta_y=lambda t: 0.04),
    ),
}  # fmt: skip


def job(method, problem, out, drop_last=False, cohort=None, weights="uniform", rounds=ROUNDS, **settings):
    oracle = {"batch_size": BATCH, "sampling": "without_replacement", "drop_last": drop_last}
    sections = {
        "oracle": oracle,
        "participation": {"cohort": cohort, "weights": weights},
        "record": ("x",) if problem is Half else ("x", "y"),
        "output": "last",
    }
    return configuration(
        method, problem(clients=CLIENTS), out, seed=SEED, rounds=rounds, sections=sections, **settings
    )


def expected(name, drop_last, cohort, weights):
    _, (_, reference), settings = CASES[name]
    cohorts = [drawn.cohort(SEED, r, CLIENTS, cohort or CLIENTS).tolist() for r in range(1, ROUNDS + 1)]
    n = sizes(game()).tolist() if weights == "samples" else [1.0] * CLIENTS
    path = reference(drop_last, cohorts, n, **settings(steps(drop_last)))
    return np.array([torch.cat(point).numpy() for point in path])


@pytest.mark.parametrize("group, reduction", [(1, "fused"), (2, "exact"), ("all", "exact")])
@pytest.mark.parametrize("drop_last, cohort, weights", [(False, 3, "samples"), (True, None, "uniform")])
@pytest.mark.parametrize("name", CASES)
def test_epochs(comm, out, name, drop_last, cohort, weights, group, reduction):
    method, (problem, _), _ = CASES[name]
    config = job(method, problem, out, drop_last, cohort, weights, group=group, reduction=reduction)
    assert_path(comm, config, lambda: expected(name, drop_last, cohort, weights))
