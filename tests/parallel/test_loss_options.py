"""Options of losses compared with plain loops, looped and vectorised, on any number of ranks.

Tolerance 1e-10 in float64: a few local steps on numbers of about 1 in another order.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from games import configuration
from oracles import prepared
from reference import losses
from reference.fedopt import fedopt
from reference.local_sgda import local_sgda
from resumed import assert_path, flat

from mpifed.algorithms import FedAvg, LocalSGDA
from mpifed.core.streams import Stream, generator
from mpifed.problems import Classification, DeepAUC, OneWayPAUC

pytestmark = pytest.mark.mpi

SEED, ROUNDS, STEPS, BATCH, CLIENTS, WIDTH = 1, 3, 2, 5, 4, 3
groups = pytest.mark.parametrize("group", [1, "all"])


def data(classes=3):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), 12 * np.arange(1, classes + 1))
    samples = rng.standard_normal((len(labels), WIDTH)) + labels[:, None] / 2
    return {"train": (samples, labels), "test": (samples, labels)}


def two_classes():
    return data(2)


def columns_of(problem, client) -> list[np.ndarray]:
    return [column.double().numpy() if column.is_floating_point() else column.numpy()
            for column in problem.client_data(client)]  # fmt: skip


def start_of(problem) -> torch.Tensor:
    return problem.initial(generator(SEED, "initial"))["x"].double()


def stream(client: int, round: int, step: int) -> Stream:
    return Stream(SEED, "sample", [client], round, first=step)


def job(problem, method, out, group):
    return configuration(
        method, problem, out, rounds=ROUNDS, seed=SEED, batch_size=BATCH, noise=None, group=group,
        reduction="exact",
    )  # fmt: skip


def assert_minimised(comm, out, group, problem, gradient, moves=1e-5):
    """Compare FedAvg; ``gradient(x, columns)`` takes and returns flat vectors."""
    own = prepared(copy.copy(problem), SEED)
    held = [columns_of(own, client) for client in range(CLIENTS)]

    def grad(client, x, address):
        chosen = stream(client, *address).integers([len(held[client][0])], BATCH)[0, 0]
        return torch.from_numpy(gradient(x.numpy(), [column[chosen] for column in held[client]]))

    def expected():
        cohorts = [list(range(CLIENTS))] * ROUNDS
        path = fedopt(grad, start_of(own), cohorts, np.ones(CLIENTS), K=STEPS, eta=lambda t: 0.1)
        return flat([(x,) for x in path])

    assert_path(comm, job(problem, FedAvg(K=STEPS, eta=0.1), out, group), expected, moves=moves)


@groups
@pytest.mark.parametrize("weights", [None, "balanced", (0.5, 1.0, 2.0)], ids=str)
def test_class_weights_and_label_smoothing(comm, out, group, weights):
    counts = np.array([12, 24, 36])
    given = {None: np.ones(3), "balanced": 1 / counts}.get(weights, np.array(weights))
    scaled = given * counts.sum() / (given @ counts)

    def gradient(x, columns):
        W, c = x[: 3 * WIDTH].reshape(3, WIDTH), x[3 * WIDTH :]
        gW, gc = losses.cross_entropy(W, c, columns[0], columns[1], scaled, 0.2)
        return np.concatenate([gW.flatten(), gc])

    problem = Classification(
        dataset=data, clients=CLIENTS, class_weights=weights, label_smoothing=0.2,
        partition={"name": "dirichlet", "alpha": 2.0},
    )  # fmt: skip
    assert_minimised(comm, out, group, problem, gradient)


@groups
def test_soft_partial_auc(comm, out, group):
    def gradient(x, columns):
        w, c, s = np.split(x, [WIDTH, WIDTH + 1])
        return np.concatenate(losses.soft_partial_auc(w, c, s, columns, 0.8, 1.5))

    problem = OneWayPAUC(dataset=two_classes, model="linear", clients=CLIENTS, margin=0.8, temperature=1.5)
    # The bias cancels in pairs and does not move.
    assert_minimised(comm, out, group, problem, gradient, moves=-1)


@groups
@pytest.mark.parametrize(
    ("p", "rate", "positives"), [("pooled", None, 0), ("client", 0.4, 2), ("pooled", 0.01, 1)]
)
def test_margin_hinge_and_sampling_rate(comm, out, group, p, rate, positives):
    settings = dict(
        dataset=two_classes, model="linear", clients=CLIENTS, margin=0.1, hinge=True,
        p=p, sampling_rate=rate, partition={"name": "dirichlet", "alpha": 5.0},
    )  # fmt: skip
    own = prepared(DeepAUC(**settings), SEED)
    held = [columns_of(own, client) for client in range(CLIENTS)]
    counts = [int(columns[1].sum()) for columns in held]

    def grad(client, x, y, t):
        size, count = len(held[client][0]), counts[client]
        drawn = stream(client, (t - 1) // STEPS + 1, (t - 1) % STEPS)
        if rate is None:
            chosen = drawn.integers([size], BATCH)[0, 0]
        else:  # positive rows come first
            assert held[client][1][:count].all()
            above = drawn.integers([count], positives)[0, 0]
            below = count + drawn.integers([size - count], BATCH - positives)[0, 0]
            chosen = np.concatenate([above, below])
        w, (c, a, b) = x[:WIDTH].numpy(), x[WIDTH:].tolist()
        samples, positive = (column[chosen] for column in held[client][:2])
        fraction = count / size if p == "client" else 24 / 36
        share = None if rate is None else count / size
        *gx, gy = losses.auc(w, c, a, b, float(y[0]), samples, positive, fraction, 0.1, share)
        return torch.tensor(np.hstack(gx)), torch.tensor([gy])

    def path(project):
        rates = {"eta_x": lambda t: 0.05, "eta_y": lambda t: 2.0}
        start = start_of(own), torch.zeros(1, dtype=torch.float64)
        return flat(local_sgda(grad, CLIENTS, *start, q=STEPS, rounds=ROUNDS, project=project, **rates))

    def expected():
        found = path(lambda y: y.clamp(min=-0.1))
        assert np.abs(found - path(None)).max() > 1e-3  # the set binds
        return found

    method = LocalSGDA(q=STEPS, eta_x=0.05, eta_y=2.0)
    assert_path(comm, job(DeepAUC(**settings), method, out, group), expected, moves=1e-5)
