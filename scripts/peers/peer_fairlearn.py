#!/usr/bin/env python3
"""Metrics of groups, fairlearn and mpifed; ``agreement.py`` runs this program and describes its output."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np
import torch
from fairlearn.metrics import MetricFrame, demographic_parity_difference, equal_opportunity_difference
from sklearn.metrics import accuracy_score, log_loss
from values import compare, simulate

from mpifed import algorithms, problems

PACKAGE, ROWS = "fairlearn", 300


def write_table(path: Path, rng: np.random.Generator) -> None:
    """Write rows of two classes and three groups, of which one is rare."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["feature", "label", "group"])
        for _ in range(ROWS):
            table.writerow(
                [rng.standard_normal(), rng.integers(2), rng.choice(["a", "b", "c"], p=[0.6, 0.3, 0.1])]
            )


def main() -> None:
    rng = np.random.default_rng(0)
    method = algorithms.LocalSGDA(q=1, eta_x=0.1, eta_y=0.1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.csv")
        write_table(path, rng)
        table = {"name": "table", "file": str(path), "target": "label", "test": 0.4, "groups": ["group"]}
        data = {"dataset": table, "model": "linear", "clients": 1, "groups": "group"}
        prepared = [
            simulate(problem, method, 0)[0].problem
            for problem in (
                problems.GroupParity(**data, criterion="demographic_parity"),
                problems.GroupParity(**data, criterion="equal_opportunity"),
                problems.FairClassification(**data),
            )
        ]
    labels, groups = prepared[0].test_labels(), prepared[0].test_groups()
    scores = [torch.from_numpy(rng.standard_normal((len(labels), 2))) for _ in range(3)]
    scores.append(torch.ones(len(labels), 1) * torch.tensor([1.0, 0.0]))  # no sample is assigned to class 1
    assigned = [one.numpy().argmax(1) for one in scores]
    inputs = f"3 groups, {len(scores)} random inputs"

    differences = (demographic_parity_difference, equal_opportunity_difference)
    for problem, difference in zip(prepared[:2], differences, strict=True):
        compare(
            f"rate_gap, {problem.criterion}", PACKAGE, inputs,
            [problem.metrics({}, {}, one)["rate_gap"] for one in scores],
            [difference(labels, one, sensitive_features=groups) for one in assigned],
        )  # fmt: skip

    values = [prepared[2].metrics({}, {}, one) for one in scores]
    frames = [
        MetricFrame(metrics=accuracy_score, y_true=labels, y_pred=one, sensitive_features=groups)
        for one in assigned
    ]
    compare(
        "accuracy_gap and worst_accuracy of groups", PACKAGE, inputs,
        [torch.tensor([one["accuracy_gap"], one["worst_accuracy"]]) for one in values],
        [torch.tensor([frame.difference(), frame.group_min()]) for frame in frames],
    )  # fmt: skip
    probabilities = [one.softmax(1)[:, 1].numpy() for one in scores]
    frames = [
        MetricFrame(metrics=log_loss, y_true=labels, y_pred=one, sensitive_features=groups)
        for one in probabilities
    ]
    compare(
        "loss_gap of groups", PACKAGE, inputs, [one["loss_gap"] for one in values],
        [frame.difference() for frame in frames],
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    main()
