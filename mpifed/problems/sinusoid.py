"""Meta-learning of sinusoids (Huang n.d., eq. 2, with the tasks of Finn et al., 2017)."""

from __future__ import annotations

import math

import numpy as np
import torch
from pydantic import Field

from mpifed.core.problem import Named
from mpifed.core.records import Blocks
from mpifed.core.settings import problem_settings
from mpifed.core.streams import BYTES_A_DRAW, Stream
from mpifed.models import MLP, Model
from mpifed.models.base import Shapes
from mpifed.problems.maml import MAML

__all__ = ["SinusoidMAML"]

#: Points of a held-out task's curve, evenly spaced, that its error is taken over.
GRID = 100


@problem_settings
class SinusoidMAML(MAML):
    """min over x of (1/N) Σ_n f_n(x - η ∇f_n(x)), f_n the mean squared error of a network on client n's
    sinusoid.

    Client n has the task a sin(t - b) with a uniform in (0.1, 5) and b in (0, π), and rows (t, a sin(t - b))
    with t uniform in (-5, 5). Held-out tasks of the same law measure what one step on a few rows makes of the
    parameters.
    """

    model: Model = Field(
        default=MLP(hidden=(40, 40)), description="network, of one number and with one output"
    )
    clients: int = Field(default=10, ge=1, description="number of clients, each with a task of its own")
    samples: int = Field(default=100, ge=1, description="rows of a client")
    eta: float = Field(default=0.01, ge=0, description="step size η of the adaptation to a task")
    shots: int = Field(default=10, ge=1, description="rows of a held-out task to adapt to")
    tests: int = Field(default=100, ge=1, description="number of held-out tasks")

    source = "Huang n.d., eq. 2; tasks of Finn et al. 2017"
    cites = ("huang_nd_mfcgd", "finn2017maml")

    def footprint(self) -> int:
        rows = self.clients * self.samples
        return max(BYTES_A_DRAW * rows, 16 * rows + (16 * GRID + 16 * self.shots) * self.tests)

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Make the tasks and their rows; a client's depend on the seed and its number alone.

        Raises:
            ValueError: the model takes no single numbers.
        """
        self._shapes = self.model.shapes((1,), outputs=1)
        self._inputs, self._targets = _rows(Stream(seed, "sinusoid", np.arange(self.clients)), self.samples)[
            0
        ]
        held_out = Stream(seed, "sinusoid test", np.arange(self.tests))
        self._support, self._query = _rows(held_out, self.shots)
        self.test_rows = self.tests

    @property
    def network(self) -> Shapes:
        """Names and shapes of the parameters of ``model``, all of x."""
        return self._shapes

    def variables(self) -> Blocks:
        return Blocks(x=self._shapes)

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """The network's random start."""
        return {
            "x": torch.cat([tensor.flatten() for tensor in self.model.initial(self._shapes, rng).values()])
        }

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        """Inputs and targets, ``[n, 1]`` each."""
        return self._inputs[client], self._targets[client]

    def client_size(self, client: int) -> int:
        return self.samples

    def task_loss(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        inputs, targets = batch
        return ((self.model(x, inputs) - targets) ** 2).mean()

    def predict(self, x: Named, rows: slice) -> torch.Tensor:
        """Errors on the curves of held-out tasks before and after one step on their rows, ``[n, 2]``."""
        like = next(iter(x.values()))

        def errors(support, query):
            return torch.stack([self.task_loss(x, query), self.task_loss(self.adapted(x, support), query)])

        support, query = (
            tuple(part[rows].to(like) for part in half) for half in (self._support, self._query)
        )
        return torch.func.vmap(errors)(support, query)

    def metrics(self, x: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """``objective`` F and ``grad_norm`` ‖∇F‖ on the clients' rows; mean squared errors of held-out tasks,
        ``test_error`` as they come and ``adapted_error`` after one step."""
        before, after = predictions.mean(dim=0).tolist()
        return {**self.exact(x), "test_error": before, "adapted_error": after}


def _rows(stream: Stream, rows: int) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Inputs and targets of each task of a stream, ``[tasks, rows, 1]``, at random places and then on the
    grid."""
    amplitude, phase = 0.1 + 4.9 * stream.uniform(1), math.pi * stream.uniform(1)
    places = (
        10 * stream.uniform(rows) - 5,
        np.broadcast_to(np.linspace(-5, 5, GRID), (len(stream.clients), 1, GRID)),
    )
    halves = ((t, amplitude * np.sin(t - phase)) for t in places)
    return tuple(tuple(torch.from_numpy(part[:, 0, :, None].copy()) for part in half) for half in halves)
