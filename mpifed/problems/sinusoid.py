"""Meta-learning of sinusoids (Huang n.d., eq. 2, with the tasks of Finn et al. 2017)."""

from __future__ import annotations

import math

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Named
from mpifed.core.streams import BYTES_PER_DRAW, Stream
from mpifed.models import MLP, Model
from mpifed.problems.maml import NetworkMAML

__all__ = ["SinusoidMAML"]

#: Number of evenly spaced points of a held-out task's curve at which its error is computed.
GRID = 100


@problem_settings
class SinusoidMAML(NetworkMAML):
    """min over x of (1/N) Σ_n f_n(x - η ∇f_n(x)), with the mean squared error f_n on client n's sinusoid.

    The task of client n is a sin(t - b) with a uniform in (0.1, 5) and b in (0, π). Its rows are pairs of t,
    uniform in (-5, 5), and a sin(t - b). Metrics are errors on held-out tasks of the same distribution before
    and after one step on ``shots`` rows.
    """

    model: Model = Field(default=MLP(hidden=(40, 40)), description="network with one input and one output")
    clients: int = Field(default=10, ge=1, description="number of clients, each with one task")
    samples: int = Field(default=100, ge=1, description="number of rows per client")
    eta: float = Field(default=0.01, ge=0, description="step size η of the adaptation to a task")
    shots: int = Field(default=10, ge=1, description="number of rows for the adaptation to a held-out task")
    tests: int = Field(default=100, ge=1, description="number of held-out tasks")

    source = "Huang n.d., eq. 2; tasks of Finn et al. 2017"
    cites = ("huang_nd_mfcgd", "finn2017maml")
    metric_names = ("objective", "grad_norm", "test_error", "adapted_error")

    def footprint(self) -> int:
        return (16 * GRID + BYTES_PER_DRAW * self.shots) * self.tests

    def client_footprint(self) -> int:
        return 8 * self.samples

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Create the held-out tasks. A client's task and rows depend only on the seed and the client's
        number, and are drawn when they are asked for.

        Raises:
            ValueError: the model does not accept samples with one feature.
        """
        self.network = self.model.shapes((1,), outputs=1)
        self._seed = seed
        held_out = Stream(seed, "sinusoid test", np.arange(self.tests))
        grid = np.broadcast_to(np.linspace(-5, 5, GRID), (self.tests, 1, GRID))
        self._support, self._query = _rows(held_out, self.shots, grid)
        self.test_rows = self.tests

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return inputs and targets, each ``[n, 1]``."""
        (columns,) = _rows(Stream(self._seed, "sinusoid", clients), self.samples)
        return tuple(column.flatten(0, 1) for column in columns), self.client_sizes(clients)

    def client_sizes(self, clients: np.ndarray) -> np.ndarray:
        return np.full_like(clients, self.samples)

    def task_loss(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        inputs, targets = batch
        return ((self.model(x, inputs) - targets) ** 2).mean()

    def predict(self, x: Named, rows: slice) -> torch.Tensor:
        """Return the errors on held-out tasks before and after one step on their rows, ``[n, 2]``."""
        like = next(iter(x.values()))

        def errors(support, query):
            return torch.stack([self.task_loss(x, query), self.task_loss(self.adapted(x, support), query)])

        parts = self._support, self._query  # copied to a GPU once
        self._support, self._query = (tuple(column.to(like) for column in part) for part in parts)
        support, query = (tuple(column[rows] for column in part) for part in (self._support, self._query))
        return torch.func.vmap(errors)(support, query)

    def metrics(self, x: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``objective`` F and ``grad_norm`` ‖∇F‖ on the clients' rows, and errors on held-out tasks.

        ``test_error`` is the mean squared error before one step, and ``adapted_error`` after it.
        """
        before, after = predictions.mean(dim=0).tolist()
        return {**self.exact(x), "test_error": before, "adapted_error": after}


def _rows(stream: Stream, rows: int, *points: np.ndarray) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Return (inputs, targets) of each task, ``[tasks, rows, 1]`` each.

    Args:
        rows: number of random points.
        points: further points, ``[tasks, 1, rows]`` each.

    Returns:
        The pairs at the random points, and those at each of the ``points``.
    """
    amplitude, phase = 0.1 + 4.9 * stream.uniform(1), math.pi * stream.uniform(1)
    parts = ((t, amplitude * np.sin(t - phase)) for t in (10 * stream.uniform(rows) - 5, *points))
    return tuple(tuple(torch.from_numpy(column[:, 0, :, None].copy()) for column in part) for part in parts)
