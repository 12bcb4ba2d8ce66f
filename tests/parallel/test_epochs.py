"""Sampling without replacement and local steps in epochs, compared with plain loops and between layouts.

Tolerance 1e-10 in float64 for the reason given in ``test_references``. Clients have 5 to 9 rows, so that
minibatches of 2 rows divide the rows of some clients only, and clients take different numbers of steps.
"""

import json
import re
from functools import cache

import drawn
import h5py
import numpy as np
import pytest
import torch
from baselines import FIXED, Half
from games import Game, configuration, gradient_on, sizes, start_of, trace
from oracles import prepared
from reference.fedopt import fedopt
from reference.local_sgda import local_sgda
from reference.plain_training import feddyn, fedexp, fednova, fedprox
from reference.variates import scaffold_minimax
from resumed import assert_path, assert_resumed, bits

from mpifed import run
from mpifed.algorithms import SCAFFOLD, FedAvg, FedDyn, FedExP, FedNova, FedProx, LocalSGDA
from mpifed.parallel.comm import CollectiveError
from mpifed.parallel.placement import Placement

pytestmark = pytest.mark.mpi

SEED, BATCH, ROUNDS, CLIENTS, EPOCHS = 1, 2, 3, 5, {"epochs": 2}
FALLING = {"name": "power", "scale": 0.1}


class Generating(Half):
    """Generates its samples."""

    def client_data(self, k):
        return ()

    def draw(self, stream, size):
        return (stream.normal(size, 3),)

    def loss(self, x, batch):
        return (batch[0] @ torch.cat([x["u"], x["v"]])).mean()


class Pairs(Half):
    """A loss on pairs of rows."""

    def loss(self, x, batch):
        first, second = (tuple(column[i] for column in batch) for i in (slice(0, 1), slice(1, 2)))
        if not len(second[0]):
            raise ValueError("expected pairs of rows")
        return super().loss(x, first) + super().loss(x, second)


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
        "record": ("x",) if issubclass(problem, Half) else ("x", "y"),
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


@pytest.mark.dealt
@pytest.mark.parametrize("group, reduction", [(1, "fused"), (2, "exact"), ("all", "exact")])
@pytest.mark.parametrize("drop_last, cohort, weights", [(False, 3, "samples"), (True, None, "uniform")])
@pytest.mark.parametrize("name", CASES)
def test_epochs(comm, out, name, drop_last, cohort, weights, group, reduction):
    method, (problem, _), _ = CASES[name]
    config = job(method, problem, out, drop_last, cohort, weights, group=group, reduction=reduction)
    assert_path(comm, config, lambda: expected(name, drop_last, cohort, weights))


@pytest.mark.dealt
@pytest.mark.parametrize("name, group", [("FedAvg", "all"), ("SCAFFOLD", 1), ("LocalSGDA in steps", "all")])
def test_resumption(comm, out, name, group):
    method, (problem, _), _ = CASES[name]
    settings = dict(group=group, cohort=3, checkpoint_every=2, keep=9)
    assert_resumed(
        comm, out, job(method, problem, out, **settings), lambda: expected(name, False, 3, "uniform")
    )


def test_balanced_placement_by_rows(comm, out):
    """Bitwise identical to even placement, on any number of ranks and for any groups of two or more."""
    method, results = CASES["FedAvg"][0], {}
    for placement, group in (("even", "all"), ("balanced", 2)):
        settings = dict(reduction="exact", group=group, placement=placement)
        results[placement] = run(job(method, Half, f"{out}/{placement}", cohort=4, **settings), comm)
    np.testing.assert_array_equal(bits(results["even"]), bits(results["balanced"]))
    if comm.rank == 0:
        alone, _ = trace(job(method, Half, out, cohort=4, **settings))
        np.testing.assert_array_equal(results["even"].iterates["x"], alone)
        assert results["even"].costs["oracle_calls"][-1] == sum(
            steps(False)[k] for r in range(1, ROUNDS + 1) for k in drawn.cohort(SEED, r, CLIENTS, 4).tolist()
        )
        with h5py.File(results["balanced"].path) as file:
            layout = json.loads(file.attrs["layout"])
        assert layout["clients"] == Placement.balanced(sizes(game()), comm.size).counts


@pytest.mark.parametrize("method, oracle, words", [
    (FedAvg(K=EPOCHS, eta=0.1), {}, "algorithm.K in epochs needs the rows of clients, but Generating has no"),
    (FedAvg(K=2, eta=0.1), {"sampling": "without_replacement"},
     "oracle.sampling = 'without_replacement' needs the rows of clients, but Generating has no client_data"),
])  # fmt: skip
def test_problems_without_rows_are_refused(comm, out, method, oracle, words):
    config = configuration(
        method, Generating(clients=CLIENTS), out, sections={"oracle": oracle, "record": ()}
    )
    with pytest.raises(CollectiveError, match=re.escape(words)):
        run(config, comm)


def test_a_loss_that_fails_on_a_short_batch_is_refused(comm, out):
    """The shortest minibatch of any client is evaluated before the first round."""
    with pytest.raises(
        CollectiveError, match="client 0 on the last minibatch of an epoch, of 1 instead of 2"
    ):
        run(job(FedAvg(K=EPOCHS, eta=0.1), Pairs, out), comm)
    assert run(job(FedAvg(K=EPOCHS, eta=0.1), Pairs, out, drop_last=True), comm)
