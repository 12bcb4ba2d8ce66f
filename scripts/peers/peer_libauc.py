#!/usr/bin/env python3
"""Losses, methods and metrics of LibAUC and of mpifed; ``agreement.py`` runs this program and describes its
output."""

from __future__ import annotations

import math

import numpy as np
import torch
from libauc.losses import AUCMLoss, pAUC_CVaR_Loss, pAUCLoss
from libauc.metrics import pauc_roc_score
from libauc.optimizers import PESG, SOPA, STACO
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from values import compare, simulate

from mpifed import algorithms, problems
from mpifed.core.ranking import TwoWayPartialAUC

PACKAGE, ROUNDS = "libauc", 6
#: One client with all training samples of two classes of the digits, a fifth of which are positive.
DATA = {
    "dataset": "digits", "model": "linear", "clients": 1, "imbalance": 0.2,
    "positive_classes": (1,), "negative_classes": (7,),
}  # fmt: skip
PROBLEM = "linear model, digits 1 and 7, 1 client, all data"
WEIGHTS = 65  # of the linear model


def model_at(point: torch.Tensor) -> nn.Linear:
    """Return the linear model with the first coordinates of a point."""
    model = nn.Linear(64, 1).double()
    vector_to_parameters(point[:WEIGHTS].clone(), model.parameters())
    return model


def flat(model: nn.Linear) -> torch.Tensor:
    return parameters_to_vector(model.parameters()).detach()


def auc_margin() -> None:
    """CODAPlus with one client and one local step is PESG; a stage has three rounds."""
    eta, prox, length, decay = 0.1, 0.02, 3, 2.0
    method = algorithms.CODAPlus(
        K=1, eta=eta, T=length, growth=1.0, decay=decay, prox=prox, reference="average"
    )
    simulation, points = simulate(problems.DeepAUC(**DATA), method, ROUNDS)
    samples, labels = simulation.problem.client_data(0)[:2]
    samples, labels = samples.double().flatten(1), labels.double()
    p = float(labels.mean())

    def at(point: torch.Tensor) -> tuple[nn.Linear, AUCMLoss]:
        model, loss = model_at(point), AUCMLoss(imratio=p, device="cpu").double()
        for parameter, value in zip((loss.a, loss.b, loss.alpha), point[WEIGHTS:], strict=True):
            parameter.data.fill_(float(value))
        loss.alpha.data += 1  # mpifed's α is 0 where LibAUC's is 1
        return model, loss

    def now(model: nn.Linear, loss: AUCMLoss) -> torch.Tensor:
        return torch.cat([flat(model), loss.a.detach(), loss.b.detach(), loss.alpha.detach() - 1])

    def gradients_here(point: torch.Tensor) -> torch.Tensor:
        leaves = [part.requires_grad_() for part in point.clone().split([64, 1, 1, 1, 1])]
        w, bias, a, b, alpha = leaves
        x = {"fc1.weight": w.reshape(1, 64), "fc1.bias": bias, "a": a, "b": b}
        value = simulation.problem.loss(x, {"alpha": alpha}, (samples.reshape(-1, 1, 8, 8), labels))
        return torch.cat([*torch.autograd.grad(value, leaves), value.detach().reshape(1)])

    def gradients_there(point: torch.Tensor) -> torch.Tensor:
        model, loss = at(point)
        value = loss(model(samples), labels, auto=False)
        parts = torch.autograd.grad(value, (*model.parameters(), loss.a, loss.b, loss.alpha))
        return torch.cat([*(part.flatten() for part in parts), value.detach() - p * (1 - p)])

    inputs = torch.randn(5, WEIGHTS + 3, generator=torch.Generator().manual_seed(0)) / 3
    compare(
        "DeepAUC at α - 1: gradients, and the loss plus p (1 - p)", PACKAGE, f"{PROBLEM}, 5 points",
        [gradients_here(point) for point in inputs], [gradients_there(point) for point in inputs],
    )  # fmt: skip

    def run(same: bool) -> list[torch.Tensor]:
        model, loss = at(points[0])
        optimizer = PESG(
            model.parameters(), loss, lr=eta, momentum=0, clip_value=math.inf, weight_decay=0,
            epoch_decay=prox, verbose=False, device="cpu",
        )  # fmt: skip
        if same:
            for reference, start in zip(optimizer.model_ref, (*model.parameters(), loss.a, loss.b)):
                reference.data = start.detach().clone()
        found = []
        for r in range(ROUNDS):
            optimizer.zero_grad()
            loss.alpha.grad = None
            loss(model(samples), labels, auto=False).backward()
            gradient = loss.alpha.grad
            if same:
                loss.alpha.grad = None  # PESG then does not change α
            optimizer.step()
            if same:
                loss.alpha.data += optimizer.lr * gradient
            found.append(now(model, loss))
            if (r + 1) % length == 0:
                optimizer.update_regularizer(decay_factor=decay)
        return found

    torch.manual_seed(0)
    compare(
        "CODAPlus, 1 client, 1 local step, 2 stages", PACKAGE, PROBLEM, points[1:], run(same=False),
        "The first reference point is random, and α ascends along 2 (m + b - a - α) after a and b change. "
        "With the start as reference point, and along the gradient in α:",
        run(same=True),
    )  # fmt: skip


def one_way() -> None:
    """FedAvg on the one-way partial AUC with one client and one local step is SOPA."""
    eta, speed, beta = 0.1, 60.0, 0.3
    problem = problems.OneWayPAUC(**DATA, theta_1=beta, s_speed=speed)
    simulation, points = simulate(problem, algorithms.FedAvg(K=1, eta=eta), ROUNDS)
    samples, labels, positive, negative = pairs(simulation)
    loss = pAUC_CVaR_Loss(
        data_len=positive, pos_len=positive, num_neg=negative, beta=beta, eta=eta * speed / positive,
        device="cpu",
    )  # fmt: skip
    model = model_at(points[0])
    optimizer = SOPA(model.parameters(), mode="sgd", lr=eta, momentum=0, clip_value=math.inf, device="cpu")
    found = []
    for _ in range(ROUNDS):
        optimizer.zero_grad()
        loss(model(samples), labels, torch.arange(positive), auto=False).backward()
        optimizer.step()
        found.append(torch.cat([flat(model), loss.u_pos.flatten() / speed**0.5]))
    compare("FedAvg on OneWayPAUC, 1 local step", PACKAGE, PROBLEM, points[1:], found)


def two_way() -> None:
    """LFedNest on the two-way partial AUC with one client and one local step is STACO."""
    alpha, beta, speed = 0.1, 5.0, 60.0
    rates = {"theta_0": 0.5, "theta_1": 0.3}
    for margin in (1.0, 0.5):
        problem = problems.TwoWayPAUC(**DATA, **rates, margin=margin, s_speed=speed)
        method = algorithms.LFedNest(T=1, tau=1, alpha=alpha, beta=beta)
        simulation, points = simulate(problem, method, ROUNDS)
        samples, labels, positive, negative = pairs(simulation)
        index = torch.cat([torch.arange(positive), torch.zeros(negative, dtype=torch.int64)])

        def run(s: float) -> list[torch.Tensor]:
            function = pAUCLoss(
                "STACO", data_length=positive, threshold=margin, alpha=beta / positive,
                beta_0=alpha * speed / positive, beta_1=alpha, **rates, device="cpu",
            )  # fmt: skip
            loss = function.loss_fn
            loss.dual_var.fill_(rates["theta_0"])  # mpifed's start
            loss.s1.fill_(s)
            model = model_at(points[0])
            settings = {"mode": "sgd", "lr": alpha, "momentum": 0, "clip_value": math.inf}
            optimizer = STACO(model.parameters(), **settings, device="cpu")
            found = []
            for _ in range(ROUNDS):
                optimizer.zero_grad()
                function(model(samples), labels, index).backward()
                optimizer.step()
                s1, y = loss.s1.flatten() / speed**0.5, loss.dual_var.flatten()
                found.append(torch.cat([flat(model), s1, loss.s2.flatten(), y]))
            return found

        name, where = f"LFedNest on TwoWayPAUC, margin {margin:g}", f"{PROBLEM}, float32 masks"
        if margin == 1:  # at the start, the losses of all pairs are positive
            compare(name, PACKAGE, where, points[1:], run(0.0))
            continue
        compare(
            name, PACKAGE, where, points[1:], run(0.0),
            "At the start, s and the losses of some pairs are 0. The subgradient of (loss - s)_+ in s is "
            "then 0 in LibAUC and -1 here. With the start s = -1e-12 in LibAUC:",
            run(-1e-12),
        )  # fmt: skip


def pairs(simulation) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """Return the client's positive samples, by their coordinate of s, and negative samples, their labels, and
    the numbers of both. Samples of the smaller class are repeated in the client's rows."""
    above, coordinates, _, below, _ = simulation.problem.client_data(0)
    first = [int((coordinates == i).nonzero()[0, 0]) for i in range(int(coordinates.max()) + 1)]
    samples = torch.cat([above[first], below]).double().flatten(1)
    labels = torch.cat([torch.ones(len(first)), torch.zeros(len(below))])
    return samples, labels, len(first), len(below)


def two_way_metric() -> None:
    """The two-way partial AUC for whole numbers of selected samples. LibAUC selects some of tied samples."""
    rng = np.random.default_rng(0)
    expected, found = [], []
    for max_fpr, min_tpr in ((0.5, 0.5), (0.1, 0.8), (0.3, 0.9)):
        labels = np.repeat([0, 1], (100, 50))
        scores = rng.standard_normal(150) + labels
        metric = TwoWayPartialAUC(max_fpr=max_fpr, min_tpr=min_tpr)
        expected.append(metric.given(torch.from_numpy(scores), torch.from_numpy(labels)))
        found.append(pauc_roc_score(labels, scores, max_fpr=max_fpr, min_tpr=min_tpr))
    compare("two-way partial AUC", PACKAGE, "3 rankings without ties", expected, found)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    auc_margin()
    one_way()
    two_way()
    two_way_metric()
