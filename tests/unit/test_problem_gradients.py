"""Gradients of the minimax problems, and training on all learning problems."""

from __future__ import annotations

from typing import Any

import everything  # noqa: F401  (registers the sentences)
import numpy as np
import pytest
import torch
from games import configuration
from oracles import oracle_of, prepared
from patches import patches_of
from printed import value

from mpifed import run
from mpifed.algorithms import FESSGDA, MFCGD, SCAFFOLD, AdaFGDA, AdaMFCGD, FedAvg, LocalSGDA
from mpifed.parallel.comm import SerialComm
from mpifed.problems import (
    WGAN,
    AdversarialTraining,
    AffineShift,
    Classification,
    ClientMixture,
    DeepAUC,
    DistributionallyRobust,
    FairClassification,
    FewShotMAML,
    FiniteMax,
    GroupParity,
    LinearMAML,
    OneWayPAUC,
    QuadraticMixture,
    QuadraticNCPL,
    RobustRegression,
    Saddle,
    SinusoidMAML,
    TextAUC,
    TwoSidedPL,
    TwoWayPAUC,
)

#: A smooth network, so that differences do not meet a kink.
SMOOTH: Any = {"name": "mlp", "hidden": [5], "activation": "tanh"}
#: Problems with analytic gradients, and the tolerance of clients alone: some ulps of numbers of about 10.
ANALYTIC = {
    "saddle": (Saddle(d=3, clients=4, s=2.0, t_max=1.0, tau=3.0), 0.0),
    "quadratic": (
        QuadraticNCPL(dx=6, dy=5, rank=3, clients=3, kappa=20.0, ell=2.0, heterogeneity=0.4),
        1e-13,
    ),
    "shared Hessian": (
        QuadraticNCPL(dx=3, dy=4, rank=4, clients=2, kappa=1.5, heterogeneity=0.4, shared_hessian=True),
        1e-13,
    ),
    "few x": (QuadraticNCPL(dx=2, dy=5, rank=4, clients=1, kappa=100.0), 1e-13),
    "two-sided": (TwoSidedPL(clients=3), 1e-13),
    "mixture": (QuadraticMixture(clients=4, d=3, rho=0.7), 1e-13),
    "finite max": (FiniteMax(d=5, clients=3, heterogeneity=0.5), 1e-13),
    "two-sided, scaled": (TwoSidedPL(d=3, clients=4, scaling=0.5, shift=2.0), 1e-13),
}
#: Problems with losses: the size of the images, the problem, the spread of the point around the start.
LOSSES = {
    "wgan": (4, lambda: WGAN(clients=3, lam=0.05, s=0.5, latent="fresh"), 0.3),
    "fair": (4, lambda: FairClassification(dataset="patches", clients=3, model=SMOOTH), 0.3),
    "adversarial": (
        4,
        lambda: AdversarialTraining(
            dataset="patches", clients=3, model=SMOOTH, epsilon=0.1, step=0.04, random_start=True
        ),
        0.3,
    ),
    "fair by group": (
        4, lambda: FairClassification(dataset="two-groups", groups="group", clients=3, model=SMOOTH), 0.3
    ),
    "parity": (
        4,
        lambda: GroupParity(
            dataset="two-groups", groups="group", clients=3, model=SMOOTH, criterion="equal_opportunity"
        ),
        0.3,
    ),
    "robust": (4, lambda: RobustRegression(dataset="patches", clients=3, model=SMOOTH), 0.3),
    "affine": (
        4,
        lambda: AffineShift(dataset="patches", clients=3, model=SMOOTH, lambda_1=0.3, lambda_2=0.4),
        0.3,
    ),
    "diagonal": (4, lambda: AffineShift(dataset="patches", clients=3, model=SMOOTH, diagonal=True), 0.3),
    "classification": (4, lambda: Classification(dataset="patches", clients=3, model=SMOOTH), 0.3),
    "mixture": (4, lambda: ClientMixture(dataset="patches", clients=3, model=SMOOTH, rho=0.3), 0.3),
    "decay": (4, lambda: Classification(dataset="patches", clients=3, model=SMOOTH, weight_decay=0.3), 0.3),
    "auc": (28, lambda: DeepAUC(dataset="patches", clients=2, model="linear"), 0.1),
    "auc, p per client": (
        28,
        lambda: DeepAUC(
            dataset="patches", clients=2, model="mlp", p="client",
            partition={"name": "dirichlet", "alpha": 1.0},
        ),
        0.1,
    ),
    "auc, sigmoid": (
        28,
        lambda: DeepAUC(dataset="patches", clients=2, model="lenet5", score="sigmoid", imbalance=0.3),
        0.1,
    ),
    "one-way partial auc": (
        4, lambda: OneWayPAUC(dataset="patches", clients=2, model=SMOOTH, s_speed=4.0, imbalance=0.3), 0.1
    ),
    "two-way partial auc": (4, lambda: TwoWayPAUC(dataset="patches", clients=2, model=SMOOTH), 0.1),
    "auc of texts": (
        4,
        lambda: TextAUC(
            dataset="sentences", clients=2, vectors="random", dimension=4, length=5,
            model={"name": "rnn", "hidden": 3},
        ),
        0.3,
    ),
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
    for x, y in ((shared[0], own[1]), (own[0], shared[1])):  # one shared block
        expected = oracle.grad(
            *(block.expand(problem.clients, -1) for block in (x, y)), xi := oracle.sample(number=0)
        )
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


_ROBUST = dict(dataset="digits", clients=4, model={"name": "mlp", "hidden": [16]}, radius=0.5)
_CLASSES = dict(dataset="digits", partition={"name": "dirichlet", "alpha": 0.3}, weight_decay=1e-4)
_SHOTS = dict(clients=3, dataset="digits", ways=3, samples=6, eta=0.3, tests=5)
_LEARNED = {"accuracy": (0.8, 1), "worst_accuracy": (0.4, 1)}  # guessing gives 0.1 and 0
_RATES = dict(rounds=20, batch_size=10)
#: Problem, methods, settings, and bounds of metrics after the run.
TRAINING: dict[str, tuple] = {
    "wgan": (
        lambda: WGAN(lam=0.5, clients=4, mean=0.5, std=0.8),
        [FESSGDA(K=10, eta_xl=0.05, eta_yl=0.3, p=0.1, beta=0.5)],
        dict(rounds=60),
        # Hundreds of steps of a locally linear method on gradients whose noise vanishes at the optimum.
        {"squared_distance": (0, 1e-4), "grad_norm": (0, 0.1)},
    ),
    "auc": (
        lambda: DeepAUC(dataset="digits", model="linear", clients=1, positive_classes=(0, 6)),
        [LocalSGDA(q=5, eta_x=0.1, eta_y=0.1)],
        dict(rounds=20, batch_size=0),
        {"auc": (0.95, 1)},  # by chance 0.5; with a wrong sign smaller
    ),
    "fair": (
        lambda: FairClassification(dataset="digits"),
        [FESSGDA(K=5, eta_xl=0.1, eta_yl=0.02, p=0.1, beta=0.5)],
        dict(rounds=15, batch_size=10),
        {"mean_accuracy": (0.8, 1), "worst_accuracy": (0.5, 1)},
    ),
    "robust": (
        lambda: RobustRegression(**_ROBUST),
        [FESSGDA(K=10, eta_xl=0.03, eta_yl=0.1, p=0.1), AdaFGDA(q=6, gamma=0.001, lam=0.01)],
        _RATES,
        {"accuracy": (0.5, 1), "perturbed_accuracy": (0.4, 1)},
    ),
    "few classes per client": (
        lambda: Classification(**_CLASSES),
        [FedAvg(K=5, eta=0.2), FedAvg(K=5, eta=0.2, eta_g=0.02, server="adam"), SCAFFOLD(K=5, eta_l=0.2)],
        dict(rounds=40, batch_size=10, cohort=5),
        _LEARNED,
    ),
}
#: Composition, γ of AdaMFCGD and of MFCGD, batch size, and the bound of objective and gradient norm relative
#: to their first values.
COMPOSITIONS = {
    "robust": (lambda: DistributionallyRobust(dataset="digits", clients=3), 0.003, 0.05, 16, 0.5, 0.5),
    "linear": (lambda: LinearMAML(clients=3), 0.03, 0.05, 16, 0.6, 0.6),
    "sinusoid": (
        lambda: SinusoidMAML(
            clients=3, samples=9, model={"name": "mlp", "hidden": [4], "activation": "tanh"}, eta=0.05,
            tests=5,
        ),
        0.01, 0.02, 4, 0.9, None,
    ),
    "few shots": (
        lambda: FewShotMAML(model={"name": "mlp", "hidden": [2], "activation": "tanh"}, **_SHOTS),
        0.01, 0.3, 4, 0.7, None,
    ),
}  # fmt: skip


def trained(method, problem, out, **settings):
    """A noise-free run of all clients together, whose iterates are not stored."""
    config = configuration(method, problem, out, noise=0, group="all", **settings)
    return run(config.model_copy(update={"record": ()}), SerialComm())


@pytest.mark.parametrize("name", TRAINING)
def test_training(tmp_path, name):
    make, methods, settings, bounds = TRAINING[name]
    for number, method in enumerate(methods):
        metrics = trained(method, make(), tmp_path / str(number), **settings).metrics
        for metric, (low, high) in bounds.items():
            assert low <= metrics[metric] <= high, (method, metric)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_training_of_compositions(tmp_path, name):
    make, adaptive, plain, batch_size, objective, slope = COMPOSITIONS[name]
    for number, method in enumerate((MFCGD(q=5, gamma=plain), AdaMFCGD(q=5, gamma=adaptive))):
        result = trained(method, make(), tmp_path / str(number), rounds=12, batch_size=batch_size)
        assert result.metrics["objective"] < objective * result.history["objective"][0], method
        if slope is not None:
            assert result.metrics["grad_norm"] < slope * result.history["grad_norm"][0], method
