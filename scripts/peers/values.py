"""Comparison of values, such as metrics and gradients, for the programs ``peer_NAME.py``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from common import report

import mpifed

Value = float | np.ndarray | torch.Tensor


@dataclass
class Values:
    """Results of mpifed in the form in which ``report`` compares them.

    Attributes:
        problem: a short description of the inputs or of the problem.
        points: the value for each input, or the point after each round.
    """

    problem: str
    points: list[torch.Tensor]


def vectors(values: Iterable[Value]) -> list[torch.Tensor]:
    """Return each value as a float64 vector."""
    return [torch.as_tensor(value, dtype=torch.float64).detach().reshape(-1).clone() for value in values]


def compare(
    method: str,
    package: str,
    problem: str,
    expected: Sequence[Value],
    found: Sequence[Value],
    differs: str | None = None,
    corrected: Sequence[Value] | None = None,
) -> None:
    """Report a comparison of values; ``expected`` are those of mpifed. See ``common.report``."""
    values = Values(problem, vectors(expected))
    report(method, package, values, vectors(found), differs, corrected and vectors(corrected))


def simulate(problem, algorithm, rounds: int = 6, **settings) -> tuple[mpifed.Simulation, list[torch.Tensor]]:
    """Run rounds with gradients on all data and return the simulation, and the starting point and the point
    after each round."""
    run = {"dtype": "float64", "device": "cpu"}
    simulation = mpifed.Simulation(problem, algorithm, seed=1, oracle={"batch_size": 0}, run=run, **settings)
    simulation.start()
    points = [simulation.point().clone()]
    for _ in range(rounds):
        simulation.step()
        points.append(simulation.point().clone())
    return simulation, points
