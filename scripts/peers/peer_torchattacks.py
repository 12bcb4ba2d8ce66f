#!/usr/bin/env python3
"""PGD of torchattacks and of mpifed; ``agreement.py`` runs this program and describes its output."""

from __future__ import annotations

import torch
import torchattacks
from torch import nn
from values import compare, simulate

from mpifed import algorithms, problems
from mpifed.data import read

PACKAGE, EPSILON, STEP = "torchattacks", 0.2, 0.03


def main() -> None:
    problem = problems.AdversarialTraining(
        dataset="digits", model="linear", clients=1, epsilon=EPSILON, step=STEP, test_steps=20
    )
    simulation, points = simulate(problem, algorithms.FedAvg(K=1, eta=0.5), 5)
    samples, labels = simulation.problem.client_data(0)[:2]
    samples, labels = samples.double()[:200], labels[:200]  # with many pixels at the borders 0 and 1
    w, b = points[-1].split([640, 10])
    x = {"fc1.weight": w.reshape(10, 64), "fc1.bias": b}
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    nn.utils.vector_to_parameters(points[-1].clone(), model.parameters())

    def attack(steps: int) -> torchattacks.PGD:
        return torchattacks.PGD(model, eps=EPSILON, alpha=STEP, steps=steps, random_start=False)

    steps, start = (1, 2, 3, 7, 20), torch.zeros_like(samples)
    compare(
        "PGD", PACKAGE, f"linear model, 200 digits, {len(steps)} numbers of steps",
        [samples + simulation.problem.attack(x, samples, labels, start, k) for k in steps],
        [attack(k)(samples, labels) for k in steps],
    )  # fmt: skip

    digits = read("digits")
    clean, test = digits.test.double(), digits.test_labels
    accuracies = [(model(s).argmax(1) == test).double().mean() for s in (clean, attack(20)(clean, test))]
    values = simulation.evaluate()
    expected = [values[name] for name in ("accuracy", "attacked_accuracy")]
    compare("accuracy without and with PGD", PACKAGE, "linear model, test digits", expected, accuracies)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    main()
