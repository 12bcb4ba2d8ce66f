"""Gradients of the minimax and learning problems."""

from __future__ import annotations

from typing import Any

import everything  # noqa: F401  (registers the sentences)
import numpy as np
import pytest
import torch
from oracles import oracle_of, prepared
from patches import patches_of
from printed import value
from test_quadratic import QUADRATICS, TWO_SIDED

from mpifed.problems import (
    WGAN,
    AdversarialTraining,
    AffineShift,
    Classification,
    ClientMixture,
    DeepAUC,
    FairClassification,
    FiniteMax,
    GroupParity,
    OneWayPAUC,
    QuadraticMixture,
    RobustRegression,
    Saddle,
    TextAUC,
    TwoWayPAUC,
)

#: A smooth network, so that differences do not meet a kink.
SMOOTH: Any = {"name": "mlp", "hidden": [5], "activation": "tanh"}
#: Problems with analytic gradients, and the tolerance of clients alone: some ulps of numbers of about 10.
ANALYTIC = {
    "saddle": (Saddle(d=3, clients=4, s=2.0, t_max=1.0, tau=3.0), 0.0),
    "mixture": (QuadraticMixture(clients=4, d=3, rho=0.7), 1e-13),
    **{f"quadratic {number}": (one, 1e-13) for number, one in enumerate(QUADRATICS)},
    **{f"two-sided {number}": (one, 1e-13) for number, one in enumerate(TWO_SIDED)},
    "finite max": (FiniteMax(d=5, clients=3, heterogeneity=0.5), 1e-13),
}
PATCHES: Any = dict(dataset="patches", clients=2, model=SMOOTH)
GROUPS: Any = dict(dataset="two-groups", groups="group", clients=3, model=SMOOTH)
TEXTS: Any = dict(dataset="sentences", clients=2, vectors="random", model={"name": "rnn", "hidden": 3})
DIRICHLET: Any = {"name": "dirichlet", "alpha": 1.0}
#: Problems with losses: the size of the images, the problem, the spread of the point around the start.
LOSSES = {
    "wgan": (4, lambda: WGAN(clients=3, lam=0.05, s=0.5, latent="fresh"), 0.3),
    "fair": (4, lambda: FairClassification(**PATCHES), 0.3),
    "adversarial": (
        4, lambda: AdversarialTraining(**PATCHES, epsilon=0.1, step=0.04, random_start=True), 0.3
    ),
    "fair by group": (4, lambda: FairClassification(**GROUPS), 0.3),
    "parity": (4, lambda: GroupParity(**GROUPS, criterion="equal_opportunity"), 0.3),
    "robust": (4, lambda: RobustRegression(**PATCHES, weight_decay=0.2), 0.3),
    "affine": (4, lambda: AffineShift(**PATCHES, lambda_1=0.3, lambda_2=0.4), 0.3),
    "diagonal": (4, lambda: AffineShift(**PATCHES, diagonal=True), 0.3),
    "classification": (4, lambda: Classification(**PATCHES), 0.3),
    "mixture": (4, lambda: ClientMixture(**PATCHES, rho=0.3, weight_decay=0.2), 0.3),
    "class weights": (
        4, lambda: Classification(**PATCHES, class_weights=(1, 2, 3, 4), label_smoothing=0.2), 0.3
    ),
    "decay": (4, lambda: Classification(**PATCHES, weight_decay=0.3), 0.3),
    "auc": (28, lambda: DeepAUC(**PATCHES | {"model": "linear"}), 0.1),
    "auc, p per client": (
        28, lambda: DeepAUC(**PATCHES | {"model": "mlp"}, p="client", partition=DIRICHLET), 0.1
    ),
    "auc, sigmoid": (
        28, lambda: DeepAUC(**PATCHES | {"model": "lenet5"}, score="sigmoid", imbalance=0.3), 0.1
    ),
    "auc, hinge": (28, lambda: DeepAUC(**PATCHES | {"model": "linear"}, margin=0.5, hinge=True), 0.1),
    "auc, sampling rate": (28, lambda: DeepAUC(**PATCHES | {"model": "linear"}, sampling_rate=0.3), 0.1),
    "soft partial auc": (4, lambda: OneWayPAUC(**PATCHES, temperature=1.5, imbalance=0.3), 0.1),
    "one-way partial auc": (4, lambda: OneWayPAUC(**PATCHES, s_speed=4.0, imbalance=0.3), 0.1),
    "two-way partial auc": (4, lambda: TwoWayPAUC(**PATCHES, weight_decay=0.2), 0.1),
    "auc of texts": (4, lambda: TextAUC(**TEXTS, dimension=4, length=5, weight_decay=0.2), 0.3),
}  # fmt: skip


def points(problem, *lead, seed=0, scale=2.0) -> list[torch.Tensor]:
    """A random point around the start, one flat tensor ``[*lead, d]`` per block."""
    rng, sizes = np.random.default_rng(seed), problem.variables().sizes
    start = problem.initial(np.random.default_rng(seed)) if scale < 1 else {}
    return [
        start.get(block, 0) + torch.from_numpy(scale * rng.standard_normal((*lead, size)))
        for block, size in sizes.items()
    ]


def tuple_of(gradient) -> tuple:
    return gradient if isinstance(gradient, tuple | list) else (gradient,)


def assert_equal_alone(problem, at, batch_size, atol) -> None:
    """Vectorised gradients equal those of each client alone; ``at``: blocks ``[d]`` or ``[C, d]``."""
    together = oracle_of(problem, batch_size, batched=True)
    gradients = tuple_of(together.grad(*at, together.sample(number=0)))
    for k in range(problem.clients):
        alone = oracle_of(problem, batch_size, clients=[k])
        own = alone.grad(*(block[k] if block.dim() > 1 else block for block in at), alone.sample(number=0))
        for mine, all_clients in zip(tuple_of(own), gradients, strict=True):
            torch.testing.assert_close(mine[0], all_clients[k], rtol=0, atol=atol)


@pytest.mark.parametrize("name", ANALYTIC)
def test_analytic_gradients_agree_with_autograd(name):
    problem = prepared(ANALYTIC[name][0], 1)
    x, y = (block.requires_grad_() for block in points(problem))
    oracle = oracle_of(problem)
    gx, gy = oracle.grad(x.detach(), y.detach(), oracle.sample(number=0))
    for n in range(problem.clients):
        expected = torch.autograd.grad(value(problem, n, x, y), (x, y))
        # A few operations on numbers of up to 100, in another order.
        torch.testing.assert_close((gx[n], gy[n]), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch_size", [0, 3])
@pytest.mark.parametrize("name", ANALYTIC)
def test_analytic_gradients_of_a_client_do_not_depend_on_the_others(name, batch_size):
    problem, atol = ANALYTIC[name]
    prepared(problem, 1)
    shared, own = points(problem), points(problem, problem.clients, seed=1)
    for at in (own, shared):
        assert_equal_alone(problem, at, batch_size, atol)
    oracle = oracle_of(problem)
    xi = oracle.sample(number=0)
    for x, y in ((shared[0], own[1]), (own[0], shared[1])):  # one shared block
        expected = oracle.grad(*(block.expand(problem.clients, -1) for block in (x, y)), xi)
        torch.testing.assert_close(tuple(oracle.grad(x, y, xi)), tuple(expected), rtol=0, atol=1e-12)


@pytest.fixture
def case(request, monkeypatch):
    size, make, scale = LOSSES[request.param]
    patches_of(monkeypatch, *((3, 4) if size == 4 else (28, 28)))
    problem = prepared(make())
    return problem, points(problem, scale=scale)


@pytest.mark.parametrize("case", LOSSES, indirect=True)
def test_gradients_by_central_differences(case):
    problem, at = case
    oracle, h, blocks = oracle_of(problem, batch_size=4, batched=True), 1e-6, problem.variables()
    xi = oracle.sample(number=0)
    gradients = tuple_of(oracle.grad(*at, xi))
    for k in range(problem.clients):
        batch = tuple(column[k] for column in xi.batch)

        def loss(block, j, step, batch=batch):
            moved = [flat.clone() for flat in at]
            moved[block][j] += step
            return problem.loss(*map(blocks.unflatten, blocks, moved), batch).item()

        for block, gradient in enumerate(gradients):
            d = gradient.shape[1]
            chosen = {*np.random.default_rng(k).permutation(d)[:12], *range(max(0, d - 2), d)}
            for j in {*map(int, chosen), *gradient[k].abs().topk(min(4, d)).indices.tolist()}:
                # Truncation is of order h² = 1e-12, rounding 1e-16 of values of about 10, over h.
                slope = (loss(block, j, h) - loss(block, j, -h)) / (2 * h)
                assert slope == pytest.approx(gradient[k, j].item(), abs=1e-8)
    assert all(gradient.abs().max() > 1e-3 for gradient in gradients)  # far above the tolerance


@pytest.mark.parametrize("case", LOSSES, indirect=True)
def test_gradients_of_a_client_do_not_depend_on_the_others(case):
    problem, at = case
    # Batched kernels add in another order: some ulps of gradients of about one.
    assert_equal_alone(problem, at, 4, 1e-11 if isinstance(problem, DeepAUC) else 1e-12)
