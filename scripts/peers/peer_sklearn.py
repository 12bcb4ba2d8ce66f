#!/usr/bin/env python3
"""Metrics of scikit-learn and of mpifed; ``agreement.py`` runs this program and describes its output."""

from __future__ import annotations

import numpy as np
import torch
from sklearn import metrics
from values import compare, simulate

from mpifed import algorithms, problems
from mpifed.core.ranking import METRICS

PACKAGE = "scikit-learn"
DATA = {"dataset": "digits", "model": "linear", "clients": 2}


def rankings() -> list[tuple[torch.Tensor, np.ndarray]]:
    """Return scores and labels of two classes: without ties, with ties, and extreme cases."""
    rng, pairs = np.random.default_rng(0), []
    for n in (5, 50, 500):
        labels = np.append(rng.integers(2, size=n - 2), [0, 1])
        scores = rng.standard_normal(n) + labels
        pairs += [(scores, labels), (scores.round(), labels), (np.zeros(n), labels)]  # no, some, only ties
        pairs += [(labels - scores / 1e3, labels), (scores / 1e3 - labels, labels)]  # perfect, and inverted
        pairs += [(scores, np.eye(n, dtype=int)[0]), (scores, 1 - np.eye(n, dtype=int)[0])]  # one sample
    return [(torch.from_numpy(scores.astype(float)), labels) for scores, labels in pairs]


def two_classes() -> None:
    def of_mpifed(name: str, **settings) -> list[float]:
        return [METRICS[name](**settings).given(s, torch.from_numpy(y)) for s, y in rankings()]

    inputs = f"{len(rankings())} rankings with and without ties"
    for max_fpr in (1.0, 0.3, 0.05):
        found = [metrics.roc_auc_score(y, s, max_fpr=max_fpr) for s, y in rankings()]
        expected = of_mpifed("partial_auc", max_fpr=max_fpr)
        compare(f"partial AUC, max_fpr = {max_fpr:g}", PACKAGE, inputs, expected, found)
    found = [metrics.average_precision_score(y, s) for s, y in rankings()]
    compare("average precision", PACKAGE, inputs, of_mpifed("average_precision"), found)


def several_classes() -> None:
    """Ranking metrics of more classes: the mean over the classes, each against all others."""
    rng = np.random.default_rng(1)
    inputs = []
    for decimals in (9, 1, 0):
        labels = np.append(rng.integers(4, size=200), range(4))
        inputs.append((torch.from_numpy(rng.standard_normal((204, 4)).round(decimals)), labels))
    found = {
        "partial_auc": lambda p, y: metrics.roc_auc_score(y, p, multi_class="ovr"),
        "average_precision": lambda p, y: metrics.average_precision_score(np.eye(4)[y], p, average="macro"),
    }
    for name, function in found.items():
        title, settings = ("AUC", {"max_fpr": 1.0}) if name == "partial_auc" else ("average precision", {})
        metric = METRICS[name](**settings)
        compare(
            f"{title}, mean of 4 classes", PACKAGE, "3 score matrices with and without ties",
            [metric.given(scores, torch.from_numpy(labels)) for scores, labels in inputs],
            [function(scores.softmax(1).numpy(), labels) for scores, labels in inputs],
        )  # fmt: skip


def of_problems() -> None:
    """Metrics of problems, for random scores of the digits; a third of the scores are ties."""
    fedavg, sgda = algorithms.FedAvg(K=1, eta=0.1), algorithms.LocalSGDA(q=1, eta_x=0.1, eta_y=0.1)
    rng = np.random.default_rng(2)

    def prepared(problem, algorithm):
        return simulate(problem, algorithm, 0)[0].problem

    def scores(problem, *shape) -> list[torch.Tensor]:
        n = len(problem.test_labels())
        return [torch.from_numpy(rng.standard_normal((n, *shape)).round(d)) for d in (9, 2)]

    def check(metric, problem, given, expected, found) -> None:
        inputs = f"{type(problem).__name__}, {len(given)} random inputs"
        compare(metric, PACKAGE, inputs, [expected(one) for one in given], [found(one) for one in given])

    problem = prepared(problems.DeepAUC(**DATA), sgda)
    labels = problem.test_labels()
    check(
        "AUC", problem, scores(problem), lambda s: problem.metrics({}, {}, s)["auc"],
        lambda s: metrics.roc_auc_score(labels, s),
    )  # fmt: skip

    problem = prepared(problems.Classification(**DATA), fedavg)
    labels, given = problem.test_labels(), scores(problem, 10)
    check(
        "accuracy", problem, given, lambda s: problem.metrics({}, s)["accuracy"],
        lambda s: metrics.accuracy_score(labels, s.numpy().argmax(1)),
    )  # fmt: skip
    check(
        "worst accuracy", problem, given, lambda s: problem.metrics({}, s)["worst_accuracy"],
        lambda s: metrics.recall_score(labels, s.numpy().argmax(1), average=None).min(),
    )  # fmt: skip

    fair = prepared(problems.FairClassification(**DATA), sgda)
    check(
        "mean accuracy of the classes", fair, given, lambda s: fair.metrics({}, {}, s)["mean_accuracy"],
        lambda s: metrics.balanced_accuracy_score(labels, s.numpy().argmax(1)),
    )  # fmt: skip

    attacked = prepared(problems.AdversarialTraining(**DATA), fedavg)
    check(
        "cross-entropy", attacked, given,
        lambda s: attacked.metrics({}, torch.cat([s, s], dim=1))["attacked_loss"],
        lambda s: metrics.log_loss(labels, s.softmax(1)),
    )  # fmt: skip

    bilevel = algorithms.FedNestBilevel(T=1, tau=1, alpha=0.1, beta=0.1, J=1, ell=0.1)
    cleaning = prepared(problems.DataCleaning(**DATA), bilevel)
    wrong = np.concatenate(
        [cleaning.client_data(i)[1].numpy() != cleaning.client_labels(i) for i in range(DATA["clients"])]
    )
    logits = [torch.from_numpy(rng.standard_normal(len(wrong)) + shift) for shift in (0, -1, 9)]
    check(
        "F1", cleaning, logits, lambda x: cleaning.metrics({"logits": x}, {}, given[0])["f1"],
        lambda x: metrics.f1_score(wrong, x < 0, zero_division=0),
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    two_classes()
    several_classes()
    of_problems()
